/* Rows as JSON lines, written and read by one table. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "bench/zero/zero.h"

typedef enum { TEXT, COUNT, NUMBER, FLAG, MAYBE } kind_t;

typedef struct column {
    const char *name;
    kind_t kind;
    size_t offset, bytes;
} column_t;

#define KEY(member, kind_)                                                      \
    {                                                                           \
        .name = #member, .kind = kind_, .offset = offsetof(zero_row_t, member), \
        .bytes = sizeof(((zero_row_t *)NULL)->member)                           \
    }

static const column_t keys[] = {KEY(set, TEXT),
                                KEY(seed, COUNT),
                                KEY(stage, COUNT),
                                KEY(nodes, COUNT),
                                KEY(ranks_per_node, COUNT),
                                KEY(link_bps, NUMBER),
                                KEY(params, COUNT),
                                KEY(steps, COUNT),
                                KEY(tokens, COUNT),
                                KEY(lr, NUMBER),
                                KEY(warmup, COUNT),
                                KEY(step_sec_median, NUMBER),
                                KEY(wait_share, NUMBER),
                                KEY(inter_node_bytes_per_step, NUMBER),
                                KEY(in_node_bytes_per_step, NUMBER),
                                KEY(bytes_ratio, NUMBER),
                                KEY(speedup, NUMBER),
                                KEY(delta_bits, NUMBER),
                                KEY(first_loss, NUMBER),
                                KEY(last_loss, NUMBER),
                                KEY(val_loss, NUMBER),
                                KEY(losses, TEXT),
                                KEY(losses_equal, MAYBE),
                                KEY(load_inter_node_bytes, NUMBER),
                                KEY(val_inter_node_bytes, NUMBER),
                                KEY(upkeep_inter_node_bytes, NUMBER),
                                KEY(peak_rss_bytes, NUMBER),
                                KEY(planned_rss_bytes, NUMBER),
                                KEY(before_rss_bytes, NUMBER),
                                KEY(ok, FLAG)};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

/* ---- writing ------------------------------------------------------------------------------------------------- */

static void add(tw_json_t *json, const column_t *key, const void *value)
{
    switch (key->kind) {
    case TEXT:
        tw_json_add_string(json, key->name, value);
        return;
    case COUNT:
        tw_json_add_int(json, key->name, *(const int64_t *)value);
        return;
    case NUMBER:
        tw_json_add_double(json, key->name, *(const double *)value);
        return;
    case FLAG:
        tw_json_add_bool(json, key->name, *(const int *)value);
        return;
    case MAYBE:
        if (*(const int *)value < 0) {
            tw_json_add_double(json, key->name, NAN);
        } else {
            tw_json_add_bool(json, key->name, *(const int *)value);
        }
        return;
    }
}

tw_status_t zero_row_write(const zero_row_t *row, FILE *out)
{
    tw_json_t *json = tw_json_create();
    for (size_t i = 0; i < N_KEYS; i++) {
        add(json, &keys[i], (const char *)row + keys[i].offset);
    }
    tw_status_t status = tw_json_write_line(json, out);
    tw_json_destroy(json);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* 0: not of its kind. */
static int take(const column_t *key, const json_t *value, void *at)
{
    switch (key->kind) {
    case TEXT:
        return json_is_string(value) &&
               snprintf(at, key->bytes, "%s", json_string_value(value)) < (int)key->bytes;
    case COUNT:
        *(int64_t *)at = json_integer_value(value);
        return json_is_integer(value);
    case NUMBER:
        *(double *)at = json_is_number(value) ? json_number_value(value) : NAN;
        return !value || json_is_null(value) || json_is_number(value); /* rows of old may lack some */
    case FLAG:
        *(int *)at = json_is_true(value);
        return json_is_boolean(value);
    case MAYBE:
        *(int *)at = json_is_null(value) ? -1 : json_is_true(value);
        return json_is_null(value) || json_is_boolean(value);
    }
    return 0;
}

static tw_status_t parse_row(const char *path, size_t line, const char *text, zero_row_t *row)
{
    json_t *object = json_loads(text, 0, NULL);
    tw_status_t status = TW_OK;

    for (size_t i = 0; i < N_KEYS && status == TW_OK; i++) {
        if (!take(&keys[i], json_object_get(object, keys[i].name), (char *)row + keys[i].offset)) {
            tw_error("%s:%zu: no row of this benchmark: '%s'", path, line, keys[i].name);
            status = TW_ERR_FORMAT;
        }
    }
    json_decref(object);
    return status;
}

tw_status_t zero_rows_append(zero_rows_t *rows, const zero_row_t *row)
{
    zero_row_t *more = realloc(rows->rows, (rows->n_rows + 1) * sizeof(*more));
    if (!more) {
        tw_error("out of memory for %zu rows", rows->n_rows + 1);
        return TW_ERR_NO_MEMORY;
    }
    more[rows->n_rows++] = *row;
    rows->rows = more;
    return TW_OK;
}

tw_status_t zero_rows_read(const char *path, zero_rows_t *rows)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t room = 0, line = 0;
    tw_status_t status = TW_OK;

    if (!file) {
        if (errno != ENOENT) {
            tw_error("%s: %s", path, strerror(errno));
        }
        return tw_status_from_errno(errno);
    }
    while (status == TW_OK && getline(&text, &room, file) > 0) {
        zero_row_t row = {.seed = 0};
        status = parse_row(path, ++line, text, &row);
        status = status == TW_OK ? zero_rows_append(rows, &row) : status;
    }
    free(text);
    fclose(file);
    return status;
}

void zero_rows_cleanup(zero_rows_t *rows)
{
    free(rows->rows);
    *rows = (zero_rows_t){.rows = NULL};
}

/* ---- comparing ----------------------------------------------------------------------------------------------- */

/* The model and the batch follow from the rest, so that what was asked for is compared, not what came of it. */
static int is_of(const zero_row_t *row, const zero_options_t *options)
{
    double params = (double)row->params / options->params;
    int64_t ranks = row->nodes * row->ranks_per_node;
    return row->nodes == options->n_nodes && row->ranks_per_node == options->ranks_per_node &&
           row->link_bps == options->link_bps && row->steps == options->steps && row->lr == options->lr &&
           row->warmup == options->warmup && params * ZERO_PARAMS_FACTOR > 1 && params < ZERO_PARAMS_FACTOR &&
           row->tokens <= options->tokens && options->tokens - row->tokens < 128 * ranks;
}

const zero_row_t *zero_rows_find(const zero_rows_t *rows, const zero_options_t *options, const char *set,
                                 int64_t seed)
{
    for (size_t i = 0; i < rows->n_rows; i++) {
        const zero_row_t *row = &rows->rows[i];
        if (strcmp(row->set, set) == 0 && row->seed == seed && is_of(row, options)) {
            return row;
        }
    }
    return NULL;
}

/* Of equal times the earlier row is before. */
static int is_before(const zero_row_t *row, const zero_row_t *other)
{
    return row->step_sec_median < other->step_sec_median ||
           (row->step_sec_median == other->step_sec_median && row < other);
}

/* What the rounds of a row's set and seed come to: how many there are, how many are faster, whether all went alike. */
typedef struct rounds {
    size_t n, n_faster;
    int ok;
} rounds_t;

static rounds_t rounds_beside(const zero_rows_t *rows, const zero_options_t *options, const zero_row_t *row)
{
    rounds_t rounds = {.ok = 1};
    for (const zero_row_t *other = rows->rows; other < rows->rows + rows->n_rows; other++) {
        if (strcmp(other->set, row->set) == 0 && other->seed == row->seed && is_of(other, options)) {
            rounds.n++;
            rounds.n_faster += (size_t)is_before(other, row);
            rounds.ok &= other->ok && strcmp(other->losses, row->losses) == 0;
        }
    }
    return rounds;
}

tw_status_t zero_rows_middle(const zero_rows_t *rows, const zero_options_t *options, const char *set,
                             int64_t seed, zero_row_t *middle)
{
    for (const zero_row_t *row = rows->rows; row < rows->rows + rows->n_rows; row++) {
        rounds_t rounds = rounds_beside(rows, options, row);
        if (strcmp(row->set, set) == 0 && row->seed == seed && rounds.n > 0 &&
            rounds.n_faster == (rounds.n - 1) / 2) {
            *middle = *row;
            middle->ok = rounds.ok;
            return TW_OK;
        }
    }
    return TW_ERR_NOT_FOUND;
}

void zero_row_compare(zero_row_t *row, const zero_row_t *base)
{
    if (base->inter_node_bytes_per_step > 0) {
        row->bytes_ratio = row->inter_node_bytes_per_step / base->inter_node_bytes_per_step;
    }
    row->speedup = base->step_sec_median / row->step_sec_median;
    row->losses_equal = strcmp(row->losses, base->losses) == 0;
}
