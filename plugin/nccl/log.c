/* Sends log lines to NCCL's logger, and converts statuses to NCCL's results. */
#include "plugin/nccl/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HOST_BYTES 256

static tw_nccl_log_level_t nccl_level(tw_log_level_t level)
{
    if (level <= TW_LOG_WARN) {
        return TW_NCCL_LOG_WARN;
    }
    return level == TW_LOG_INFO ? TW_NCCL_LOG_INFO : TW_NCCL_LOG_TRACE;
}

int tw_nccl_log_shows(tw_nccl_log_level_t level)
{
    static const struct {
        const char *name;
        tw_nccl_log_level_t level;
    } levels[] = {
        {"WARN", TW_NCCL_LOG_WARN},  {"ATTN", TW_NCCL_LOG_WARN},   {"INFO", TW_NCCL_LOG_INFO},
        {"ABORT", TW_NCCL_LOG_INFO}, {"TRACE", TW_NCCL_LOG_TRACE},
    };
    const char *chosen = getenv("NCCL_DEBUG");

    for (size_t i = 0; chosen && i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcasecmp(chosen, levels[i].name) == 0) {
            return level <= levels[i].level;
        }
    }
    return 0;
}

void tw_nccl_log_to_stderr(const char *level, int gpu, const char *message)
{
    char host[HOST_BYTES] = "?";
    int thread = (int)syscall(SYS_gettid); /* gettid() would need glibc 2.30 */
    (void)gethostname(host, sizeof(host) - 1);
    host[strcspn(host, ".")] = '\0';
    fprintf(stderr, "%s:%d:%d [%d] NCCL %s thinwire: %s\n", host, (int)getpid(), thread, gpu, level, message);
}

static void to_nccl(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    tw_nccl_logger_t logger = (tw_nccl_logger_t)(uintptr_t)ctx;
    logger(nccl_level(level), TW_NCCL_SUBSYSTEM_INIT | TW_NCCL_SUBSYSTEM_NET | TW_NCCL_SUBSYSTEM_TUNING, file,
           line, "thinwire: %s", message);
    if (level <= TW_LOG_WARN && !tw_nccl_log_shows(TW_NCCL_LOG_WARN)) {
        tw_nccl_log_to_stderr("WARN", -1, message);
    }
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
