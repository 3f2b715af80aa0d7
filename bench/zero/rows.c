/* Rows: the table's columns, files of JSON lines, what rows are to each other. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/zero/zero.h"

/* A member whose name is its key. */
#define COLUMN(member, header_, format_, kind_, scale_)                      \
    {                                                                        \
        .key = #member, .header = header_, .format = format_, .kind = kind_, \
        .offset = offsetof(zero_row_t, member), .scale = scale_,             \
        .bytes = sizeof(((zero_row_t *)NULL)->member)                        \
    }
#define KEY(member, kind_) COLUMN(member, NULL, NULL, kind_, 0)

static const bench_column_t columns[] = {
    COLUMN(set, "set", "%-15s", BENCH_TEXT, 0),
    COLUMN(seed, "seed", "%4lld", BENCH_INT64, 0),
    KEY(stage, BENCH_INT64),
    KEY(nodes, BENCH_INT64),
    KEY(ranks_per_node, BENCH_INT64),
    KEY(link_bps, BENCH_DOUBLE),
    KEY(params, BENCH_INT64),
    KEY(steps, BENCH_INT64),
    KEY(tokens, BENCH_INT64),
    KEY(lr, BENCH_DOUBLE),
    KEY(warmup, BENCH_INT64),
    COLUMN(step_sec_median, "ms/step", "%9.1f", BENCH_DOUBLE, 1e3),
    COLUMN(speedup, "speed-up", "%8.2f", BENCH_DOUBLE, 0),
    COLUMN(wait_share, "wait, %", "%7.1f", BENCH_DOUBLE, 100),
    COLUMN(inter_node_bytes_per_step, "MB/step", "%9.4f", BENCH_DOUBLE, 1e-6),
    KEY(in_node_bytes_per_step, BENCH_DOUBLE),
    COLUMN(bytes_ratio, "bytes", "%7.4f", BENCH_DOUBLE, 0),
    COLUMN(delta_bits, "bits", "%6.2f", BENCH_DOUBLE, 0),
    KEY(first_loss, BENCH_DOUBLE),
    COLUMN(last_loss, "loss", "%8.4f", BENCH_DOUBLE, 0),
    COLUMN(val_loss, "val loss", "%9.5f", BENCH_DOUBLE, 0),
    KEY(load_inter_node_bytes, BENCH_DOUBLE),
    KEY(val_inter_node_bytes, BENCH_DOUBLE),
    KEY(upkeep_inter_node_bytes, BENCH_DOUBLE),
    COLUMN(peak_rss_bytes, "RSS MB", "%8.1f", BENCH_DOUBLE, 1e-6),
    KEY(planned_rss_bytes, BENCH_DOUBLE),
    KEY(before_rss_bytes, BENCH_DOUBLE),
    COLUMN(ok, "ok", "%6s", BENCH_BOOL, 0),
    COLUMN(losses, "losses", "%-16s", BENCH_TEXT, 0),
    KEY(losses_equal, BENCH_MAYBE),
};

const bench_table_t zero_table = {.columns = columns, .n_columns = sizeof(columns) / sizeof(columns[0])};

static tw_status_t parse_row(const char *path, size_t line, const char *text, zero_row_t *row)
{
    const char *key = NULL;
    tw_status_t status = bench_table_parse(&zero_table, text, row, &key);
    if (status != TW_OK) {
        tw_error("%s:%zu: no row of this benchmark: '%s'", path, line, key);
    }
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

/* ---- comparing ----------------------------------------------------------------------------------------- */

/** The model and the batch follow from the rest, so that what was asked for is compared, not what came of
 *  it. */
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

/** Of equal times the earlier row is before. */
static int is_before(const zero_row_t *row, const zero_row_t *other)
{
    return row->step_sec_median < other->step_sec_median ||
           (row->step_sec_median == other->step_sec_median && row < other);
}

/* What the rounds of a row's set and seed come to: how many there are, how many are faster, whether all went
 * alike. */
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
