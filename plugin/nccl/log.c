/* Lines and results, as NCCL wants them. */
#include "plugin/nccl/log.h"

#include <stdlib.h>

static tw_nccl_log_level_t nccl_level(tw_log_level_t level)
{
    if (level <= TW_LOG_WARN) {
        return TW_NCCL_LOG_WARN;
    }
    return level == TW_LOG_INFO ? TW_NCCL_LOG_INFO : TW_NCCL_LOG_TRACE;
}

static void to_nccl(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    tw_nccl_logger_t logger = (tw_nccl_logger_t)(uintptr_t)ctx;

    logger(nccl_level(level), TW_NCCL_SUBSYSTEM_INIT | TW_NCCL_SUBSYSTEM_NET | TW_NCCL_SUBSYSTEM_TUNING, file,
           line, "thinwire: %s", message);
}

void tw_nccl_log_install(tw_nccl_logger_t logger)
{
    if (!logger) {
        return;
    }
    tw_log_set_sink(to_nccl, (void *)(uintptr_t)logger);
    if (!getenv("TW_LOG_LEVEL")) {
        tw_log_set_level(TW_LOG_INFO);
    }
}

tw_nccl_result_t tw_nccl_result(tw_status_t status)
{
    switch (status) {
    case TW_OK:
    case TW_IN_PROGRESS:
        return TW_NCCL_SUCCESS;
    case TW_ERR_PEER:
    case TW_ERR_TIMEOUT:
    case TW_ERR_AUTH:
        return TW_NCCL_REMOTE_ERROR;
    case TW_ERR_NO_MEMORY:
    case TW_ERR_IO:
    case TW_ERR_UCX:
        return TW_NCCL_SYSTEM_ERROR;
    case TW_ERR_CONFIG:
    case TW_ERR_NOT_FOUND:
        return TW_NCCL_INVALID_USAGE;
    case TW_ERR_INVALID:
        return TW_NCCL_INVALID_ARGUMENT;
    default:
        return TW_NCCL_INTERNAL_ERROR;
    }
}
