/** Types that all kinds of NCCL plugins share, as in NCCL 2.19 to 2.32. They are declared here again under
 *  our own names, so that the plugin needs none of NCCL's headers. */
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

/** ncclDebugLogLevel: NCCL shows a line if the level of NCCL_DEBUG is this number or a higher one. */
typedef enum tw_nccl_log_level {
    TW_NCCL_LOG_WARN = 2,
    TW_NCCL_LOG_INFO = 3,
    TW_NCCL_LOG_TRACE = 5
} tw_nccl_log_level_t;

/** Bits of NCCL_DEBUG_SUBSYS. If the user sets none, NCCL shows INIT, but not NET and TUNING. */
#define TW_NCCL_SUBSYSTEM_INIT 0x1ul
#define TW_NCCL_SUBSYSTEM_NET 0x10ul
#define TW_NCCL_SUBSYSTEM_TUNING 0x40ul

typedef void (*tw_nccl_logger_t)(tw_nccl_log_level_t level, unsigned long subsystems, const char *file,
                                 int line, const char *format, ...);

TW_C_END
