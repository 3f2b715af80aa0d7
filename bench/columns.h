/** A bench's row as a table of columns: one table prints the head and the rows, and writes the row as a line
 *  of JSON. A row is a plain struct that has every figure as it is printed or written. */
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
    BENCH_MAYBE,  /**< int: as BENCH_BOOL; below 0 (not known): "-" in the table, null in JSON */
    BENCH_JSON    /**< struct json_t * of Jansson, such as a list; in JSON alone */
} bench_kind_t;

typedef struct bench_column {
    const char *key;    /**< key in JSON; NULL: JSON does not have the column */
    const char *header; /**< head in the table; NULL: the table does not have the column */
    /** printf's format of a cell: for a long long if the value is an integer, for a text if it is a text or a
     *  bool. The header has the same width. NULL where there is no header. */
    const char *format;
    bench_kind_t kind;
    size_t offset; /**< offset of the value in the row */
    double scale;  /**< the table shows a double times this; 0: times 1. JSON has it unscaled. */
} bench_column_t;

/** The offset of a member of a bench's row, a struct that the bench calls row_t. */
#define BENCH_AT(member) offsetof(row_t, member)

/** The columns of a bench. Shared, not owned. */
typedef struct bench_table {
    const bench_column_t *columns;
    size_t n_columns;
    /** the head begins with "# ", rows with two spaces, so that programs can skip the head */
    int is_remarked;
} bench_table_t;

/** Print the headers in a line to stdout. */
void bench_table_head(const bench_table_t *table);
/** Print the row in a line to stdout, at once. `note` ends the line; NULL: nothing. */
void bench_table_row(const bench_table_t *table, const void *row, const char *note);
/** Append the row's keys to `json`. */
void bench_table_add(const bench_table_t *table, const void *row, tw_json_t *json);
/** Write the row as a line of JSON; `out` NULL: TW_OK. Errors are tw_json_write_line's. */
tw_status_t bench_table_write(const bench_table_t *table, const void *row, FILE *out);
/** Print the row and write it as JSON. */
tw_status_t bench_table_report(const bench_table_t *table, const void *row, const char *note, FILE *out);

/* ---- a file of such lines ------------------------------------------------------------------------------ */

typedef enum bench_json_mode { BENCH_JSON_ANEW, BENCH_JSON_APPEND } bench_json_mode_t;

/** Open `path` for lines; NULL: *json becomes NULL. TW_ERR_IO (logged). */
tw_status_t bench_json_open(const char *path, bench_json_mode_t mode, FILE **json);
/** Close it if it is open. Returns `status`, or TW_ERR_IO (logged) where that is TW_OK and lines are lost. */
tw_status_t bench_json_close(const char *path, FILE *json, tw_status_t status);

TW_C_END
