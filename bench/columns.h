/** The columns of a bench's table. One list of columns prints the head and the rows, and writes rows as lines
 *  of JSON. A row is a plain struct with a member for each column. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

typedef enum bench_kind {
    BENCH_STRING, /**< const char * */
    BENCH_TEXT,   /**< char[] */
    BENCH_INT,    /**< int */
    BENCH_INT64,  /**< int64_t, uint64_t, size_t */
    BENCH_DOUBLE, /**< double; not finite: "-" in the table, null in JSON */
    BENCH_BOOL,   /**< int: "yes" or "NO" in the table */
    BENCH_MAYBE,  /**< int: as BENCH_BOOL, but below 0 is not known: "-" in the table, null in JSON */
    BENCH_JSON    /**< json_t * of Jansson, such as a list; only in JSON */
} bench_kind_t;

typedef struct bench_column {
    const char *key;    /**< key in JSON; NULL: the column is not in JSON */
    const char *header; /**< header in the table; NULL: the column is not in the table */
    /** printf's format of a cell: of a long long for integers, of a string for strings and bools. The header
     *  gets the same width. NULL if header is NULL. */
    const char *format;
    bench_kind_t kind;
    size_t offset; /**< offset of the value in the row */
    double scale;  /**< factor of a double in the table, not in JSON; 0 means 1 */
} bench_column_t;

/** The offset of a member in the struct of a bench's row, which must have the name row_t. */
#define BENCH_AT(member) offsetof(row_t, member)

/** The list of columns of a bench. Does not own `columns`. */
typedef struct bench_table {
    const bench_column_t *columns;
    size_t n_columns;
    /** 1: the head begins with "# " and rows with two spaces, so that programs can skip the head */
    int is_remarked;
} bench_table_t;

/** Print the headers in a line to stdout. */
void bench_table_head(const bench_table_t *table);
/** Print the row in a line to stdout, and flush. The line ends with `note`, unless it is NULL. */
void bench_table_row(const bench_table_t *table, const void *row, const char *note);
/** Append the row's keys and values to `json`. */
void bench_table_add(const bench_table_t *table, const void *row, tw_json_t *json);
/** Write the row as a line of JSON. Does nothing if `out` is NULL. Errors as tw_json_write_line. */
tw_status_t bench_table_write(const bench_table_t *table, const void *row, FILE *out);
/** Call bench_table_row, then bench_table_write. */
tw_status_t bench_table_report(const bench_table_t *table, const void *row, const char *note, FILE *out);

/* ---- a file of such lines ------------------------------------------------------------------------------ */

typedef enum bench_json_mode { BENCH_JSON_ANEW, BENCH_JSON_APPEND } bench_json_mode_t;

/** Open a file for JSON lines. If `path` is NULL, *json becomes NULL. TW_ERR_IO (logged). */
tw_status_t bench_json_open(const char *path, bench_json_mode_t mode, FILE **json);
/** Close the file unless it is NULL. Returns `status`, or TW_ERR_IO (logged) if only closing fails. */
tw_status_t bench_json_close(const char *path, FILE *json, tw_status_t status);

TW_C_END
