/** Lines, in NCCL's log or as if they were. */
#include "plugin/interpose/lines.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "plugin/interpose/gpu.h"
#include "plugin/interpose/interpose.h"
#include "plugin/nccl/log.h"

#define LINE_BYTES 1024
#define HOST_BYTES 256
#define SUBSYSTEMS (TW_NCCL_SUBSYSTEM_INIT | TW_NCCL_SUBSYSTEM_NET)

static _Atomic(tw_nccl_logger_t) nccl_logger;
static void (*print_last)(void);

/** "node1:4711:4712 [0] NCCL WARN thinwire: ..." */
static void to_stderr(const char *level, const char *message)
{
    char host[HOST_BYTES] = "?";

    (void)gethostname(host, sizeof(host) - 1);
    host[strcspn(host, ".")] = '\0';
    fprintf(stderr, "%s:%d:%d [%d] NCCL %s thinwire: %s\n", host, (int)getpid(), (int)gettid(),
            tw_ip_gpu_device(), level, message);
}

static void sink(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    (void)ctx, (void)file, (void)line;
    to_stderr(level <= TW_LOG_WARN ? "WARN" : level == TW_LOG_INFO ? "INFO" : "TRACE", message);
}

static void __attribute__((constructor)) begin(void)
{
    tw_log_set_sink(sink, NULL);
}

void tw_ip_lines_last(void (*print)(void))
{
    print_last = print;
}

/** NCCL is still there: what begins later ends sooner. */
static void end(void)
{
    if (print_last) {
        print_last();
    }
    nccl_logger = NULL;
    begin();
}

void tw_nccl_log_to(tw_nccl_logger_t logger, int has_named)
{
    static atomic_flag was_here = ATOMIC_FLAG_INIT;

    if (logger) {
        tw_nccl_log_install(logger);
        nccl_logger = logger;
        if (!atomic_flag_test_and_set(&was_here)) {
            (void)atexit(end);
        }
    }
    if (has_named) {
        tw_config_leave_names();
    }
    tw_config_check_names();
}

/** NCCL has other places for its settings than the environment: then the line is on stderr. */
static int nccl_shows_info(void)
{
    const char *level = getenv("NCCL_DEBUG");

    return level && (strcasecmp(level, "INFO") == 0 || strcasecmp(level, "TRACE") == 0);
}

void tw_ip_print(const char *format, ...)
{
    tw_nccl_logger_t logger = nccl_logger;
    char message[LINE_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (logger && nccl_shows_info()) {
        logger(TW_NCCL_LOG_INFO, SUBSYSTEMS, __FILE__, __LINE__, "thinwire: %s", message);
    } else {
        to_stderr("INFO", message);
    }
}
