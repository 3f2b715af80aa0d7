/** NCCL's plugin interface, as NCCL 2.19 to 2.32 have it: what all kinds of plugins share. It needs none of
 *  NCCL's own headers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

/** ncclResult_t. */
typedef enum tw_nccl_result {
    TW_NCCL_SUCCESS = 0,
    TW_NCCL_SYSTEM_ERROR = 2,
    TW_NCCL_INTERNAL_ERROR = 3,
    TW_NCCL_INVALID_ARGUMENT = 4,
    TW_NCCL_INVALID_USAGE = 5,
    TW_NCCL_REMOTE_ERROR = 6
} tw_nccl_result_t;

/** ncclDebugLogLevel: a line is shown if NCCL_DEBUG has this level, or a more talkative one. */
typedef enum tw_nccl_log_level {
    TW_NCCL_LOG_WARN = 2,
    TW_NCCL_LOG_INFO = 3,
    TW_NCCL_LOG_TRACE = 5
} tw_nccl_log_level_t;

/** Bits of NCCL_DEBUG_SUBSYS; INIT is shown when the user chooses none. */
#define TW_NCCL_SUBSYSTEM_INIT 0x1ul
#define TW_NCCL_SUBSYSTEM_NET 0x10ul
#define TW_NCCL_SUBSYSTEM_TUNING 0x40ul

typedef void (*tw_nccl_logger_t)(tw_nccl_log_level_t level, unsigned long subsystems, const char *file,
                                 int line, const char *format, ...);

TW_C_END
