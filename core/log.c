/* The log. Its level is not read by tw_config_init, because that function logs. */
#include "core/config_value.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MESSAGE_BYTES 4096
#define LEVEL_UNSET (-1)

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace", NULL};

typedef struct log_options {
    int level;
} log_options_t;

static const tw_config_field_t log_fields[] = {
    {
        .name = "TW_LOG_LEVEL",
        .dflt = "warn",
        .doc = "Most verbose log level that is printed.",
        .type = TW_CONFIG_ENUM,
        .offset = offsetof(log_options_t, level),
        .choices = level_names,
    },
};

const tw_config_table_t tw_log_config_table = TW_CONFIG_TABLE("log", log_fields, log_options_t);

static void stderr_sink(void *ctx, tw_log_level_t level, const char *file, int line, const char *message);

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static tw_log_sink_t current_sink = stderr_sink;
static void *current_ctx;
static atomic_int current_level = LEVEL_UNSET;

static void stderr_sink(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    struct timespec now;
    struct tm local;
    char clock[16] = "";
    (void)ctx, (void)file, (void)line;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (localtime_r(&now.tv_sec, &local)) {
        (void)strftime(clock, sizeof(clock), "%H:%M:%S", &local);
    }
    fprintf(stderr, "%s.%03ld thinwire %s %s\n", clock, now.tv_nsec / 1000000, level_names[level], message);
}

void tw_log_set_sink(tw_log_sink_t sink, void *ctx)
{
    pthread_mutex_lock(&sink_lock);
    current_sink = sink ? sink : stderr_sink;
    current_ctx = sink ? ctx : NULL;
    pthread_mutex_unlock(&sink_lock);
}

void tw_log_set_level(tw_log_level_t level)
{
    atomic_store(&current_level, (int)level);
}

/** Read the level from the environment, when it is first asked for. Sets the default before that, so that
 *  tw_error, which logs a wrong variable, finds a level. */
static tw_log_level_t init_level(void)
{
    const tw_config_field_t *field = &log_fields[0];
    const char *text = getenv(field->name);
    tw_config_value_t value;
    char allowed[128];
    int unset = LEVEL_UNSET, before = TW_LOG_WARN;
    if (!atomic_compare_exchange_strong(&current_level, &unset, TW_LOG_WARN) || !text) {
        return (tw_log_level_t)atomic_load(&current_level);
    }
    if (tw_config_value_parse(field, text, &value) == TW_OK) {
        /* If another thread has set a level meanwhile, that level stays. */
        (void)atomic_compare_exchange_strong(&current_level, &before, value.flag);
    } else {
        tw_error("config: %s=%s: expected %s", field->name, text,
                 tw_config_describe(field, allowed, sizeof(allowed)));
    }
    return (tw_log_level_t)atomic_load(&current_level);
}

tw_log_level_t tw_log_level(void)
{
    int level = atomic_load_explicit(&current_level, memory_order_relaxed);
    return level == LEVEL_UNSET ? init_level() : (tw_log_level_t)level;
}

/* ---- errors that are kept back ------------------------------------------------------------------------- */

typedef struct tw_log_line {
    struct tw_log_line *next;
    const char *file;
    int line;
    char message[];
} tw_log_line_t;

static _Thread_local tw_log_held_t *keeper;

void tw_log_keep_begin(tw_log_held_t *held)
{
    *held = (tw_log_held_t){.outer = keeper};
    keeper = held;
}

void tw_log_keep_end(tw_log_held_t *held)
{
    keeper = held->outer;
}

/** Keep an error back. Returns 0 if there is no memory for it. */
static int keep(tw_log_held_t *held, const char *file, int line, const char *message)
{
    size_t n_bytes = strlen(message) + 1;
    tw_log_line_t *kept = malloc(sizeof(*kept) + n_bytes);
    if (!kept) {
        return 0;
    }
    *kept = (tw_log_line_t){.file = file, .line = line};
    memcpy(kept->message, message, n_bytes);
    if (held->last) {
        held->last->next = kept;
    } else {
        held->first = kept;
    }
    held->last = kept;
    return 1;
}

/** The hash is FNV-1a. It includes the zero byte at the end of each line. */
uint64_t tw_log_held_hash(const tw_log_held_t *held)
{
    uint64_t hash = held->first ? 14695981039346656037u : 0;
    for (const tw_log_line_t *line = held->first; line; line = line->next) {
        const char *at = line->message;
        do {
            hash = (hash ^ (uint8_t)*at) * 1099511628211u;
        } while (*at++ != '\0');
    }
    return hash;
}

static void print(tw_log_level_t level, const char *file, int line, const char *message)
{
    pthread_mutex_lock(&sink_lock);
    current_sink(current_ctx, level, file, line, message);
    pthread_mutex_unlock(&sink_lock);
}

void tw_log_held_cleanup(tw_log_held_t *held, int is_printed)
{
    for (tw_log_line_t *line = held->first, *next; line; line = next) {
        if (is_printed) {
            print(TW_LOG_ERROR, line->file, line->line, line->message);
        }
        next = line->next;
        free(line);
    }
    *held = (tw_log_held_t){.first = NULL};
}

/* ---- log lines ----------------------------------------------------------------------------------------- */

void tw_log(tw_log_level_t level, const char *file, int line, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    va_list args;
    if (level > tw_log_level()) {
        return;
    }
    va_start(args, format);
    int length = vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (length >= (int)sizeof(message)) {
        memcpy(message + sizeof(message) - 4, "...", 4);
    }
    if (level != TW_LOG_ERROR || !keeper || !keep(keeper, file, line, message)) {
        print(level, file, line, message);
    }
}
