/** Thinwire core: status codes and element types (base.h), log, configuration tables, buffers, clock,
 *  quantiles, JSON lines. Every other folder may include this header; besides base.h it includes only the C
 *  library's. */
#ifndef TW_CORE_CORE_H
#define TW_CORE_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base.h"

TW_C_BEGIN

#define TW_VERSION "0.3.0"
/** TW_VERSION of the library that is loaded, which may be newer than these headers. */
const char *tw_version(void);

/* ---- log ----------------------------------------------------------------------------------------------- */

typedef enum tw_log_level {
    TW_LOG_ERROR = 0,
    TW_LOG_WARN,
    TW_LOG_INFO,
    TW_LOG_DEBUG,
    TW_LOG_TRACE
} tw_log_level_t;

/** Receives every line at or above the level (no newline, no level prefix; cut with "..." at 4095 bytes). May
 *  be called from any thread, one call at a time. Must not log. */
typedef void (*tw_log_sink_t)(void *ctx, tw_log_level_t level, const char *file, int line,
                              const char *message);

/** Replace the sink; NULL restores the default (stderr: "HH:MM:SS.mmm thinwire LEVEL message"). */
void tw_log_set_sink(tw_log_sink_t sink, void *ctx);
/** Most verbose level let through; the start value is TW_LOG_LEVEL from the environment, else warn. */
void tw_log_set_level(tw_log_level_t level);
tw_log_level_t tw_log_level(void);
/** Use the macros below: they do not evaluate their arguments when the level is off. */
void tw_log(tw_log_level_t level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Errors that are kept back until it is known whether somebody else has said the same. */
typedef struct tw_log_held {
    struct tw_log_line *first, *last;
    struct tw_log_held *outer; /**< the one that this thread began before, or NULL */
} tw_log_held_t;

/** Keep back the errors that this thread logs from now on, until tw_log_keep_end. What cannot be kept for
 *  want of memory is logged at once. */
void tw_log_keep_begin(tw_log_held_t *held);
/** A hash of the errors that are kept, of their texts and order; 0: there are none. */
uint64_t tw_log_held_hash(const tw_log_held_t *held);
/** End keeping errors back, in the thread that began it. */
void tw_log_keep_end(tw_log_held_t *held);
/** After tw_log_keep_end: free what was kept; if is_printed, log it before. */
void tw_log_held_cleanup(tw_log_held_t *held, int is_printed);

#define TW_LOG_AT(level, ...)                                 \
    do {                                                      \
        if ((level) <= tw_log_level())                        \
            tw_log((level), __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
#define tw_error(...) TW_LOG_AT(TW_LOG_ERROR, __VA_ARGS__)
#define tw_warn(...) TW_LOG_AT(TW_LOG_WARN, __VA_ARGS__)
#define tw_info(...) TW_LOG_AT(TW_LOG_INFO, __VA_ARGS__)
#define tw_debug(...) TW_LOG_AT(TW_LOG_DEBUG, __VA_ARGS__)
#define tw_trace(...) TW_LOG_AT(TW_LOG_TRACE, __VA_ARGS__)
/** Log an error; the value is `status`, for the one who detects it to return: a status, NULL or -1. */
#define tw_fail(status, ...) (tw_log(TW_LOG_ERROR, __FILE__, __LINE__, __VA_ARGS__), (status))
/** Return such an error from the calling function if a condition holds: checks of arguments and memory. */
#define TW_FAIL_IF(condition, status, ...)         \
    do {                                           \
        if (condition) {                           \
            return tw_fail((status), __VA_ARGS__); \
        }                                          \
    } while (0)

/* ---- configuration tables ------------------------------------------------------------------------------ */

typedef enum tw_config_type {
    TW_CONFIG_BOOL,   /**< int: y/n, yes/no, on/off, true/false, 1/0 */
    TW_CONFIG_INT,    /**< int64_t */
    TW_CONFIG_INT32,  /**< int, within int's own range whatever the field's range is */
    TW_CONFIG_DOUBLE, /**< double */
    TW_CONFIG_COUNT,  /**< double, a number of things: 1000, 500K, 1M, 7.5G (powers of 1000) */
    TW_CONFIG_BYTES,  /**< size_t: 64K, 1M, 2G (powers of 1024), plain bytes */
    TW_CONFIG_TIME,   /**< double, seconds: 10, 10s, 250ms, 50us */
    TW_CONFIG_RATE,   /**< double, bits per second: 1gbit, 100mbit, 1000000; "none" or "auto" is 0 */
    TW_CONFIG_STRING, /**< char *, owned by the options */
    TW_CONFIG_SECRET, /**< as STRING, but never printed nor logged */
    TW_CONFIG_ENUM    /**< int: index into choices */
} tw_config_type_t;

/** One row: an environment variable, a JSON key or a flag. The same table parses it, checks its range and
 *  prints the manual. */
typedef struct tw_config_field {
    const char *name; /**< the full name: "TW_PEER_TIMEOUT" */
    const char *dflt; /**< default, as text */
    const char *unit; /**< "s", "bytes", "" */
    const char *doc;  /**< one or two sentences */
    tw_config_type_t type;
    size_t offset;              /**< offsetof the value in the options struct */
    double min, max;            /**< inclusive range of numbers, perhaps infinite; both 0: no range */
    const char *const *choices; /**< TW_CONFIG_ENUM: NULL-terminated */
} tw_config_field_t;

typedef struct tw_config_table {
    const char *module; /**< "transport" */
    const tw_config_field_t *fields;
    size_t n_fields;
    size_t options_bytes; /**< sizeof the options struct */
} tw_config_table_t;

/** A table's initializer. list: an array of fields, itself. */
#define TW_CONFIG_TABLE(of, list, options_type)                                         \
    {                                                                                   \
        .module = (of), .fields = (list), .n_fields = sizeof(list) / sizeof((list)[0]), \
        .options_bytes = sizeof(options_type)                                           \
    }

/** Parse `text` as a value of the field, and store it in `options` if it is in the field's range.
 *  TW_ERR_INVALID (silent; tw_config_describe says what is allowed) or TW_ERR_NO_MEMORY; the old value stays
 *  then. */
tw_status_t tw_config_parse(const tw_config_field_t *field, void *options, const char *text);
/** Fill `options` (caller's storage, options_bytes) from the environment, with defaults for what is not set
 *  there. Words are compared without regard to case. Strings are never NULL. TW_ERR_CONFIG on a value that
 *  does not parse or is out of range: logged with the variable's name, its value and what is allowed; nothing
 *  needs cleaning up then. */
tw_status_t tw_config_init(const tw_config_table_t *table, void *options);
/** Set one field by its full name. TW_ERR_NOT_FOUND (silent) or TW_ERR_CONFIG (logged); the old value stays
 *  then. */
tw_status_t tw_config_set(const tw_config_table_t *table, void *options, const char *name, const char *value);
/** Set fields from "section:key=value,key=value;section:key=value", where "section:key" is a field's name;
 *  blanks around each word are ignored. TW_ERR_CONFIG on an unknown name, a value that is not allowed, or
 *  another form: logged with `source` (the variable that held the text) and the nearest name; fields before
 *  that one are set then. */
tw_status_t tw_config_set_list(const tw_config_table_t *table, void *options, const char *source,
                               const char *text);
/** Free the strings. */
void tw_config_cleanup(const tw_config_table_t *table, void *options);
/** Print the table: name, current value (options may be NULL: defaults), default, unit, range and doc. */
void tw_config_print(const tw_config_table_t *table, const void *options, FILE *out);
/** The field's current value (options may be NULL: its default), written into `buf` as tw_config_print shows
 *  it; returns buf. */
const char *tw_config_format(const tw_config_field_t *field, const void *options, char *buf,
                             size_t buf_bytes);
/** Write what the field accepts into `buf`, as "a size such as 65536, 64K or 1M, from 1 to 1G"; returns
 *  buf. */
const char *tw_config_describe(const tw_config_field_t *field, char *buf, size_t buf_bytes);
/** Warn about every TW_ variable of the environment that no table knows, naming the nearest one.
 *  Returns how many there were. */
size_t tw_config_check_environment(const tw_config_table_t *const *tables, size_t n_tables);
/** For libraries: warn about every TW_ variable that no part of Thinwire knows but whose name is near one of
 *  theirs. Only the first call in a process warns. */
void tw_config_check_names(void);
/** Make tw_config_check_names do nothing: another copy of this library in the process warns. */
void tw_config_leave_names(void);
/** Name `index` among all known variables, whichever part reads them; NULL past the end. */
const char *tw_config_name_get(size_t index);
/** The log's own table (TW_LOG_LEVEL). */
extern const tw_config_table_t tw_log_config_table;

/** 1 if a text from outside is `word`, or what that was called before ("exact" for "plain"); any case. */
int tw_word_is(const char *text, const char *word);
/** The candidate with the smallest edit distance to `name` (case does not matter), the first of equals, or
 *  NULL if all are more than length / 3 + 1 edits away. */
const char *tw_nearest_name(const char *name, const char *const *candidates, size_t n_candidates);

/** Parsers of the types above, for command lines; TW_ERR_INVALID, silent. The whole text must fit; no blanks,
 *  no signs. Sizes also as 1.5M, 64KB, 64KiB (all powers of 1024); times also in ns; rates in bit, kbit,
 *  mbit, gbit, tbit. */
tw_status_t tw_parse_bytes(const char *text, size_t *bytes);
tw_status_t tw_parse_time(const char *text, double *seconds);
tw_status_t tw_parse_rate(const char *text, double *bits_per_second);
/** 1000, 500K, 1M, 7.5G, 124e6: here K, M and G are powers of 1000. */
tw_status_t tw_parse_count(const char *text, double *count);
/** Write a byte count as "64K", "1M", "1.50M" or "100" into `buf`; returns buf. */
const char *tw_format_bytes(size_t bytes, char *buf, size_t buf_bytes);

/* ---- buffers ------------------------------------------------------------------------------------------- */

#define TW_CACHE_LINE_BYTES 64
/** Buffers of at least so many bytes share their pages with nothing else, so that they can be registered. */
#define TW_BUFFER_OWN_PAGES_FROM ((size_t)64 << 10)

/** `bytes` of uninitialised memory aligned to 64 bytes (to pages from TW_BUFFER_OWN_PAGES_FROM on; to 2 MiB,
 *  advised huge, from 4 MiB on); NULL when out of memory; a valid pointer for 0. Free with tw_buffer_free,
 *  which accepts NULL. */
void *tw_buffer_alloc(size_t bytes);
void *tw_buffer_alloc_zero(size_t bytes);
void tw_buffer_free(void *buffer);

/** Make room for `n` items of item_bytes in an array that has *max. Returns 1: *max >= n now; 0: out of
 *  memory, nothing has changed. items: the address of the array's pointer, which realloc moves; NULL there
 *  and *max 0: there is none yet. */
int tw_grow(void *items, size_t *max, size_t n, size_t item_bytes);

/* ---- checksums ----------------------------------------------------------------------------------------- */

/** A checksum of `bytes` bytes (XXH3, 64 bits): it finds what is spoilt or mixed up, and is no protection
 *  against forgery. data may be NULL for 0 bytes. With the checksum of a first part as the seed, the result
 *  is that of both parts in that order. */
uint64_t tw_checksum(const void *data, size_t bytes, uint64_t seed);

/* ---- clock --------------------------------------------------------------------------------------------- */

/** Monotonic wall clock in nanoseconds. */
uint64_t tw_time_ns(void);
static inline double tw_time_sec(void)
{
    return (double)tw_time_ns() * 1e-9;
}
/** Seconds of processor time that this thread has used: other programs on a busy machine do not count. */
double tw_thread_sec(void);

/* ---- processes ----------------------------------------------------------------------------------------- */

/** How many forks lie between this process and the one that loaded the library. What was made under another
 *  number belongs to a parent, whose threads and connections do not exist here. */
unsigned tw_fork_count(void);

/* ---- measurements -------------------------------------------------------------------------------------- */

/** The value below which `share` (0 to 1) of the `n_values` values lie, linear between two of them; sorts
 *  `values`. Returns NaN if there are no values; none may be NaN. */
double tw_quantile(double *values, size_t n_values, double share);
/** tw_quantile of 0.5: the one in the middle, or the mean of the two. Sorts `values`. */
double tw_median(double *values, size_t n_values);

/* ---- JSON lines ---------------------------------------------------------------------------------------- */

/** One object under construction; keys keep the order in which they were added. The first failure sticks and
 *  is returned by tw_json_write_line. NaN, infinities and NULL strings are written as null. All functions
 *  accept a NULL object (out of memory); writing one is TW_ERR_NO_MEMORY. */
typedef struct tw_json tw_json_t;
struct json_t;
tw_json_t *tw_json_create(void);
void tw_json_destroy(tw_json_t *json);
void tw_json_add_int(tw_json_t *json, const char *key, int64_t value);
void tw_json_add_double(tw_json_t *json, const char *key, double value);
void tw_json_add_string(tw_json_t *json, const char *key, const char *value);
void tw_json_add_bool(tw_json_t *json, const char *key, int value);
/** Add a value of Jansson's (json_t), such as a list, and own it. A NULL value is TW_ERR_NO_MEMORY. */
void tw_json_add_value(tw_json_t *json, const char *key, struct json_t *value);
/** Write the object as one line and flush. TW_ERR_NO_MEMORY, TW_ERR_INVALID (a text was not UTF-8) or
 *  TW_ERR_IO. */
tw_status_t tw_json_write_line(const tw_json_t *json, FILE *out);

TW_C_END

#endif
