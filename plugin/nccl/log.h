/** Two translations between this library and NCCL: log lines go to NCCL's logger, and a status becomes a
 *  result of NCCL's. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/common.h"

TW_C_BEGIN

/** Everything that is logged from now on goes to NCCL's logger, and NCCL_DEBUG decides what is seen: errors
 *  and warnings from WARN on, info from INFO on. Errors and warnings are also on stderr where it shows none:
 *  NCCL goes on without what has failed here, and nobody would hear of it. TW_LOG_LEVEL, where it is set,
 *  limits it further. NULL: the log stays where it is. */
void tw_nccl_log_install(tw_nccl_logger_t logger);
/** 1: NCCL_DEBUG shows lines of this level. NCCL has other places for its settings than the environment;
 *  these are not seen here. */
int tw_nccl_log_shows(tw_nccl_log_level_t level);
/** "node1:4711:4712 [0] NCCL WARN thinwire: ...": a line as NCCL's are. gpu: -1: not known. */
void tw_nccl_log_to_stderr(const char *level, int gpu, const char *message);

/** What NCCL, and so the job, is told of a failure:
 *    PEER, TIMEOUT, AUTH     remote error: another process is at fault, a job may go on without it
 *    NO_MEMORY, IO, UCX      system error
 *    CONFIG, NOT_FOUND       invalid usage: what the user has set
 *    INVALID                 invalid argument
 *    all others              internal error */
tw_nccl_result_t tw_nccl_result(tw_status_t status);

TW_C_END
