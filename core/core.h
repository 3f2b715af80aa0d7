/** Thinwire core: status codes and element types (base.h), log, configuration tables, buffers, clock,
 *  quantiles, JSON lines. Every other folder may include this header. Besides base.h it only includes
 *  headers of the C library. */
#ifndef TW_CORE_CORE_H
#define TW_CORE_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base.h"

TW_C_BEGIN

#define TW_VERSION "0.3.0"
/** TW_VERSION of the library that is loaded. It may be newer than these headers. */
const char *tw_version(void);

/* ---- log ----------------------------------------------------------------------------------------------- */

typedef enum tw_log_level {
    TW_LOG_ERROR = 0,
    TW_LOG_WARN,
    TW_LOG_INFO,
    TW_LOG_DEBUG,
    TW_LOG_TRACE
} tw_log_level_t;

/** A sink receives every line at or above the level, without newline and level prefix, cut with "..." at
 *  4095 bytes. It is called from any thread, one call at a time, and must not log. */
typedef void (*tw_log_sink_t)(void *ctx, tw_log_level_t level, const char *file, int line,
                              const char *message);

/** Replace the sink; NULL restores the default (stderr: "HH:MM:SS.mmm thinwire LEVEL message"). */
void tw_log_set_sink(tw_log_sink_t sink, void *ctx);
/** Set the most verbose level that is logged. At first it is TW_LOG_LEVEL of the environment, else warn. */
void tw_log_set_level(tw_log_level_t level);
tw_log_level_t tw_log_level(void);
/** Log a line. Use the macros below: they do not evaluate their arguments if the level is off. */
void tw_log(tw_log_level_t level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Errors of a thread, kept back until it is known whether another rank has logged the same ones. */
typedef struct tw_log_held {
    struct tw_log_line *first, *last;
    struct tw_log_held *outer; /**< the tw_log_held_t that this thread filled before this one, or NULL */
} tw_log_held_t;

/** Keep back the errors that this thread logs, until tw_log_keep_end. If memory is out, log them at once. */
void tw_log_keep_begin(tw_log_held_t *held);
/** Returns a hash of the texts of the kept errors, in order; 0 if there are none. */
uint64_t tw_log_held_hash(const tw_log_held_t *held);
/** Stop keeping errors back. Called by the thread that began it. */
void tw_log_keep_end(tw_log_held_t *held);
/** After tw_log_keep_end: log the kept errors if is_printed, then free them. */
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
/** Log an error. The value of the expression is `status` (a status, NULL or -1), for the caller to return. */
#define tw_fail(status, ...) (tw_log(TW_LOG_ERROR, __FILE__, __LINE__, __VA_ARGS__), (status))
/** If the condition holds, log an error and return `status` from the calling function. */
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

/** One row of a table: an environment variable, a JSON key or a flag. The table is used to parse it, to
 *  check its range and to print the manual. */
typedef struct tw_config_field {
    const char *name; /**< the full name: "TW_PEER_TIMEOUT" */
    const char *dflt; /**< default, as text */
    const char *unit; /**< "s", "bytes", "" */
    const char *doc;  /**< one or two sentences */
    tw_config_type_t type;
    size_t offset;              /**< offsetof the value in the options struct */
    double min, max;            /**< inclusive range of a number, perhaps infinite; both 0: no range */
    const char *const *choices; /**< TW_CONFIG_ENUM: NULL-terminated */
} tw_config_field_t;

typedef struct tw_config_table {
    const char *module; /**< "transport" */
    const tw_config_field_t *fields;
    size_t n_fields;
    size_t options_bytes; /**< sizeof the options struct */
} tw_config_table_t;

/** Initializer of a tw_config_table_t. list: an array of fields (not a pointer, as its size is taken). */
#define TW_CONFIG_TABLE(of, list, options_type)                                         \
    {                                                                                   \
        .module = (of), .fields = (list), .n_fields = sizeof(list) / sizeof((list)[0]), \
        .options_bytes = sizeof(options_type)                                           \
    }

/** Parse `text` as a value of the field, and store it in `options` if it is in the field's range.
 *  TW_ERR_INVALID (silent; see tw_config_describe) or TW_ERR_NO_MEMORY: the old value stays. */
tw_status_t tw_config_parse(const tw_config_field_t *field, void *options, const char *text);
/** Fill `options` (caller's storage, options_bytes) from the environment. Variables that are not set get
 *  their defaults. Words are compared without regard to case. Strings are never NULL. TW_ERR_CONFIG if a
 *  value does not parse or is out of range: logged with the variable's name, its value and what is allowed;
 *  then nothing needs cleaning up. */
tw_status_t tw_config_init(const tw_config_table_t *table, void *options);
/** Set one field by its full name. TW_ERR_NOT_FOUND (silent), TW_ERR_CONFIG (logged): the old value stays. */
tw_status_t tw_config_set(const tw_config_table_t *table, void *options, const char *name, const char *value);
/** Set fields from "section:key=value,key=value;section:key=value", where "section:key" is a field's name;
 *  blanks around words are ignored. TW_ERR_CONFIG if a name is unknown, a value is not allowed or the form
 *  is wrong: logged with `source` (the variable that held the text) and the nearest name. Fields before the
 *  wrong one stay set. */
tw_status_t tw_config_set_list(const tw_config_table_t *table, void *options, const char *source,
                               const char *text);
/** Free the strings in `options`. */
void tw_config_cleanup(const tw_config_table_t *table, void *options);
/** Print each field's name, value (options NULL: its default), default, unit, range and doc. */
void tw_config_print(const tw_config_table_t *table, const void *options, FILE *out);
/** Write the field's value (options NULL: its default) as tw_config_print shows it. Returns buf. */
const char *tw_config_format(const tw_config_field_t *field, const void *options, char *buf,
                             size_t buf_bytes);
/** Write what the field accepts, as "a size such as 65536, 64K or 1M, from 1 to 1G". Returns buf. */
const char *tw_config_describe(const tw_config_field_t *field, char *buf, size_t buf_bytes);
/** Warn about every environment variable that begins with TW_ and is in none of the tables, and name the
 *  nearest one. Returns the number of warnings. */
size_t tw_config_check_environment(const tw_config_table_t *const *tables, size_t n_tables);
/** For libraries: warn about every TW_ variable that no part of Thinwire reads but whose name is near a
 *  known one. Only the first call in a process warns. */
void tw_config_check_names(void);
/** Make tw_config_check_names do nothing, because another copy of this library in the process warns. */
void tw_config_leave_names(void);
/** Returns name `index` of all variables that any part of Thinwire reads; NULL past the end. */
const char *tw_config_name_get(size_t index);
/** The log's own table (TW_LOG_LEVEL). */
extern const tw_config_table_t tw_log_config_table;

/** Returns 1 if `text` is `word` or a former name of it ("exact" for "plain"); ignores case. */
int tw_word_is(const char *text, const char *word);
/** Returns the candidate with the smallest edit distance to `name`, ignoring case; the first one of several.
 *  Returns NULL if all are more than length / 3 + 1 edits away. */
const char *tw_nearest_name(const char *name, const char *const *candidates, size_t n_candidates);

/** Parsers of the types above, for command lines. The whole text must be a number, without blanks and signs;
 *  otherwise TW_ERR_INVALID, silent. Sizes may also be 1.5M, 64KB or 64KiB (all powers of 1024), times also
 *  in ns, rates in bit, kbit, mbit, gbit or tbit. */
tw_status_t tw_parse_bytes(const char *text, size_t *bytes);
tw_status_t tw_parse_time(const char *text, double *seconds);
tw_status_t tw_parse_rate(const char *text, double *bits_per_second);
/** 1000, 500K, 1M, 7.5G, 124e6: here K, M and G are powers of 1000. */
tw_status_t tw_parse_count(const char *text, double *count);
/** Write a byte count as "64K", "1M", "1.50M" or "100" into `buf`; returns buf. */
const char *tw_format_bytes(size_t bytes, char *buf, size_t buf_bytes);

/* ---- buffers ------------------------------------------------------------------------------------------- */

#define TW_CACHE_LINE_BYTES 64
/** Buffers of at least this size have pages of their own, so that their memory can be registered. */
#define TW_BUFFER_OWN_PAGES_FROM ((size_t)64 << 10)

/** Returns `bytes` of uninitialised memory, NULL if memory is out; a valid pointer for 0 bytes. Aligned to
 *  64 bytes; from TW_BUFFER_OWN_PAGES_FROM bytes on to pages; from 4 MiB on to 2 MiB, with huge pages
 *  advised. Free with tw_buffer_free, which accepts NULL. */
void *tw_buffer_alloc(size_t bytes);
void *tw_buffer_alloc_zero(size_t bytes);
void tw_buffer_free(void *buffer);

/** Grow an array with room for *max items, if it has no room for `n`. items: the address of the array's
 *  pointer, which realloc may change; at first the pointer is NULL and *max 0. Returns 1, or 0 if memory is
 *  out; then nothing has changed. */
int tw_grow(void *items, size_t *max, size_t n, size_t item_bytes);

/* ---- checksums ----------------------------------------------------------------------------------------- */

/** Returns a checksum of `bytes` bytes (XXH3, 64 bits). It detects damage and mix-ups, but not forgery. data
 *  may be NULL for 0 bytes. With the checksum of a first part as the seed, the result is the checksum of
 *  both parts together. */
uint64_t tw_checksum(const void *data, size_t bytes, uint64_t seed);

/* ---- clock --------------------------------------------------------------------------------------------- */

/** Monotonic wall clock in nanoseconds. */
uint64_t tw_time_ns(void);
static inline double tw_time_sec(void)
{
    return (double)tw_time_ns() * 1e-9;
}
/** Seconds of processor time that this thread has used. Time of other programs does not count. */
double tw_thread_sec(void);

/* ---- processes ----------------------------------------------------------------------------------------- */

/** Number of forks between the process that loaded the library and this one. Objects that were made at
 *  another number belong to a parent process; their threads and connections do not exist here. */
unsigned tw_fork_count(void);

/* ---- measurements -------------------------------------------------------------------------------------- */

/** Returns the value below which `share` (0 to 1) of the `n_values` values lie, interpolated between two
 *  values. Sorts `values`, of which none may be NaN. Returns NaN if there are no values. */
double tw_quantile(double *values, size_t n_values, double share);
/** Returns the median: the middle value, or the mean of the two middle ones. Sorts `values`. */
double tw_median(double *values, size_t n_values);

/* ---- JSON lines ---------------------------------------------------------------------------------------- */

/** A JSON object under construction; keys keep the order in which they were added. tw_json_write_line
 *  returns the first error of all calls. NaN, infinities and NULL strings are written as null. All functions
 *  accept a NULL object (out of memory); writing it returns TW_ERR_NO_MEMORY. */
typedef struct tw_json tw_json_t;
struct json_t;
tw_json_t *tw_json_create(void);
void tw_json_destroy(tw_json_t *json);
void tw_json_add_int(tw_json_t *json, const char *key, int64_t value);
void tw_json_add_double(tw_json_t *json, const char *key, double value);
void tw_json_add_string(tw_json_t *json, const char *key, const char *value);
void tw_json_add_bool(tw_json_t *json, const char *key, int value);
/** Add a value of Jansson's (json_t), such as a list, and take it over. A NULL value is TW_ERR_NO_MEMORY. */
void tw_json_add_value(tw_json_t *json, const char *key, struct json_t *value);
/** Write the object as one line, and flush. TW_ERR_IO, TW_ERR_NO_MEMORY, or TW_ERR_INVALID (a text was not
 *  UTF-8). */
tw_status_t tw_json_write_line(const tw_json_t *json, FILE *out);

TW_C_END

#endif
