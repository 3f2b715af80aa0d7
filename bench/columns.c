#include "bench/columns.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

/* ---- the table ----------------------------------------------------------------------------------------- */

/** Return the width in a format such as "%-12s", for printf's `*`; negative if it aligns left. */
static int width_of(const char *format)
{
    return atoi(format + 1);
}

static void print_text(const bench_column_t *column, const char *text)
{
    printf("%*s", width_of(column->format), text);
}

static void print_bool(const bench_column_t *column, int value)
{
    print_text(column, value < 0 ? "-" : value ? "yes" : "NO");
}

static void print_double(const bench_column_t *column, double value)
{
    if (isfinite(value)) {
        printf(column->format, column->scale != 0 ? value * column->scale : value);
    } else {
        print_text(column, "-");
    }
}

static void print_cell(const bench_column_t *column, const void *value)
{
    switch (column->kind) {
    case BENCH_STRING:
        printf(column->format, *(const char *const *)value);
        return;
    case BENCH_TEXT:
        printf(column->format, (const char *)value);
        return;
    case BENCH_INT:
        printf(column->format, (long long)*(const int *)value);
        return;
    case BENCH_INT64:
        printf(column->format, (long long)*(const int64_t *)value);
        return;
    case BENCH_DOUBLE:
        print_double(column, *(const double *)value);
        return;
    case BENCH_BOOL:
    case BENCH_MAYBE:
        print_bool(column, *(const int *)value);
        return;
    case BENCH_JSON:
        print_text(column, "-");
        return;
    }
}

void bench_table_head(const bench_table_t *table)
{
    const char *space = table->is_remarked ? "# " : "";
    for (size_t i = 0; i < table->n_columns; i++) {
        const bench_column_t *column = &table->columns[i];
        if (column->header) {
            printf("%s%*s", space, width_of(column->format), column->header);
            space = " ";
        }
    }
    printf("\n");
    fflush(stdout);
}

void bench_table_row(const bench_table_t *table, const void *row, const char *note)
{
    const char *space = table->is_remarked ? "  " : "";
    for (size_t i = 0; i < table->n_columns; i++) {
        const bench_column_t *column = &table->columns[i];
        if (column->header) {
            printf("%s", space);
            print_cell(column, (const char *)row + column->offset);
            space = " ";
        }
    }
    printf("%s\n", note ? note : "");
    fflush(stdout);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void add_cell(const bench_column_t *column, const void *value, tw_json_t *json)
{
    switch (column->kind) {
    case BENCH_STRING:
        tw_json_add_string(json, column->key, *(const char *const *)value);
        return;
    case BENCH_TEXT:
        tw_json_add_string(json, column->key, value);
        return;
    case BENCH_INT:
        tw_json_add_int(json, column->key, *(const int *)value);
        return;
    case BENCH_INT64:
        tw_json_add_int(json, column->key, *(const int64_t *)value);
        return;
    case BENCH_DOUBLE:
        tw_json_add_double(json, column->key, *(const double *)value);
        return;
    case BENCH_BOOL:
    case BENCH_MAYBE:
        if (*(const int *)value < 0) {
            tw_json_add_double(json, column->key, NAN);
        } else {
            tw_json_add_bool(json, column->key, *(const int *)value);
        }
        return;
    case BENCH_JSON:
        tw_json_add_value(json, column->key, json_incref(*(json_t *const *)value));
        return;
    }
}

void bench_table_add(const bench_table_t *table, const void *row, tw_json_t *json)
{
    for (size_t i = 0; i < table->n_columns; i++) {
        if (table->columns[i].key) {
            add_cell(&table->columns[i], (const char *)row + table->columns[i].offset, json);
        }
    }
}

tw_status_t bench_table_write(const bench_table_t *table, const void *row, FILE *out)
{
    if (!out) {
        return TW_OK;
    }
    tw_json_t *json = tw_json_create();
    bench_table_add(table, row, json);
    tw_status_t status = tw_json_write_line(json, out);
    tw_json_destroy(json);
    return status;
}

tw_status_t bench_table_report(const bench_table_t *table, const void *row, const char *note, FILE *out)
{
    bench_table_row(table, row, note);
    return bench_table_write(table, row, out);
}

/* ---- a file of such lines ------------------------------------------------------------------------------ */

static tw_status_t columns_fail(const char *path)
{
    return tw_fail(TW_ERR_IO, "bench: %s: %s", path, strerror(errno));
}

tw_status_t bench_json_open(const char *path, bench_json_mode_t mode, FILE **json)
{
    *json = path ? fopen(path, mode == BENCH_JSON_APPEND ? "ae" : "we") : NULL;
    return path && !*json ? columns_fail(path) : TW_OK;
}

tw_status_t bench_json_close(const char *path, FILE *json, tw_status_t status)
{
    return json && fclose(json) != 0 && status == TW_OK ? columns_fail(path) : status;
}
