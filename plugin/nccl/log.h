/** Two translations for NCCL: log lines go to NCCL's logger, and a status becomes one of NCCL's results. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** Everything that is logged from now on goes to NCCL's logger, and NCCL_DEBUG decides what is seen: errors
 *  and warnings from WARN on, info from INFO on. Where it shows none, errors and warnings go to stderr: NCCL
 *  goes on without what has failed here, and nobody would hear of it. TW_LOG_LEVEL, where it is set, limits
 *  it further. NULL: the log stays where it is. */
void tw_nccl_log_install(tw_nccl_logger_t logger);
/** Returns 1 if NCCL_DEBUG shows lines of this level. Settings that NCCL takes from elsewhere than the
 *  environment do not count. */
int tw_nccl_log_shows(tw_nccl_log_level_t level);
/** Print a line in the form of NCCL's: "node1:4711:4712 [0] NCCL WARN thinwire: ...". gpu -1: not known. */
void tw_nccl_log_to_stderr(const char *level, int gpu, const char *message);

/** Which result NCCL, and so the job, gets for a failure:
 *    PEER, TIMEOUT, AUTH     remote error: another process is at fault, a job may go on without it
 *    NO_MEMORY, IO, UCX      system error
 *    CONFIG, NOT_FOUND       invalid usage: what the user has set
 *    INVALID                 invalid argument
 *    all others              internal error */
tw_nccl_result_t tw_nccl_result(tw_status_t status);

TW_C_END
