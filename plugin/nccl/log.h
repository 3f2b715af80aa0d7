/** Sends log lines to NCCL's logger, and converts a status to NCCL's result code. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** Send all further log lines to NCCL's logger; NULL changes nothing. NCCL_DEBUG=WARN shows errors and
 *  warnings, INFO also info. Errors and warnings that NCCL_DEBUG hides go to stderr: NCCL goes on without a
 *  plugin that has failed, and users must notice. If TW_LOG_LEVEL is set, it hides more lines. */
void tw_nccl_log_install(tw_nccl_logger_t logger);
/** Returns 1 if NCCL_DEBUG shows lines of this level. Reads only the environment, not NCCL's config files. */
int tw_nccl_log_shows(tw_nccl_log_level_t level);
/** Print a line to stderr in NCCL's form: "node1:4711:4712 [0] NCCL WARN thinwire: ...". The fields before
 *  NCCL are host, process, thread and `gpu`, which is -1 if it is not known. */
void tw_nccl_log_to_stderr(const char *level, int gpu, const char *message);

/** Convert a status to the result that NCCL, and through it the job, gets:
 *    PEER, TIMEOUT, AUTH     remote error: another process has failed, and a job may go on without it
 *    NO_MEMORY, IO, UCX      system error
 *    CONFIG, NOT_FOUND       invalid usage: the user's settings are wrong
 *    INVALID                 invalid argument
 *    all others              internal error */
tw_nccl_result_t tw_nccl_result(tw_status_t status);

TW_C_END
