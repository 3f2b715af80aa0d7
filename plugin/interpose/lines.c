/** Writes lines to NCCL's log, or to stderr in the same form. */
#include "plugin/interpose/lines.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin/interpose/gpu.h"
#include "plugin/interpose/interpose.h"
#include "plugin/nccl/log.h"

#define LINE_BYTES 1024
#define SUBSYSTEMS (TW_NCCL_SUBSYSTEM_INIT | TW_NCCL_SUBSYSTEM_NET)

static _Atomic(tw_nccl_logger_t) nccl_logger;
static void (*print_last)(void);

static void sink(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    (void)ctx, (void)file, (void)line;
    tw_nccl_log_to_stderr(level <= TW_LOG_WARN   ? "WARN"
                          : level == TW_LOG_INFO ? "INFO"
                                                 : "TRACE",
                          tw_ip_gpu_device(), message);
}

static void __attribute__((constructor)) lines_begin(void)
{
    tw_log_set_sink(sink, NULL);
}

void tw_ip_lines_last(void (*print)(void))
{
    print_last = print;
}

/** Print the last lines. Runs before NCCL ends, because it is registered after NCCL was loaded. */
static void lines_end(void)
{
    if (print_last) {
        print_last();
    }
    nccl_logger = NULL;
    lines_begin();
}

void tw_nccl_log_to(tw_nccl_logger_t logger, int has_named)
{
    static atomic_flag was_here = ATOMIC_FLAG_INIT;
    if (logger) {
        tw_nccl_log_install(logger);
        nccl_logger = logger;
        if (!atomic_flag_test_and_set(&was_here)) {
            (void)atexit(lines_end);
        }
    }
    if (has_named) {
        tw_config_leave_names();
    }
    tw_config_check_names();
}

void tw_ip_print(const char *format, ...)
{
    tw_nccl_logger_t logger = nccl_logger;
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (logger && tw_nccl_log_shows(TW_NCCL_LOG_INFO)) {
        logger(TW_NCCL_LOG_INFO, SUBSYSTEMS, __FILE__, __LINE__, "thinwire: %s", message);
    } else {
        tw_nccl_log_to_stderr("INFO", tw_ip_gpu_device(), message);
    }
}
