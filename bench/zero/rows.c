/* Rows: the table's columns, how a run hands its row over, what rows are to each other. */
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
        .offset = offsetof(zero_row_t, member), .scale = scale_              \
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

tw_status_t zero_rows_append(zero_rows_t *rows, const zero_row_t *row)
{
    zero_row_t *more = realloc(rows->rows, (rows->n_rows + 1) * sizeof(*more));
    TW_FAIL_IF(!more, TW_ERR_NO_MEMORY, "out of memory for %zu rows", rows->n_rows + 1);
    more[rows->n_rows++] = *row;
    rows->rows = more;
    return TW_OK;
}

/** The row goes as it lies in memory: the same program on the same machine reads it. */
tw_status_t zero_row_write(const char *path, const zero_row_t *row)
{
    FILE *file = fopen(path, "we");
    int written = file && fwrite(row, sizeof(*row), 1, file) == 1;
    TW_FAIL_IF(!file || fclose(file) != 0 || !written, TW_ERR_IO, "%s: cannot write: %s", path,
               strerror(errno));
    return TW_OK;
}

tw_status_t zero_row_read(const char *path, zero_row_t *row)
{
    FILE *file = fopen(path, "re");
    int found = file && fread(row, sizeof(*row), 1, file) == 1;
    if (file) {
        fclose(file);
    }
    if (!found) {
        tw_error("%s: the run has left no row", path);
    }
    return found ? TW_OK : TW_ERR_IO;
}

void zero_rows_cleanup(zero_rows_t *rows)
{
    free(rows->rows);
    *rows = (zero_rows_t){.rows = NULL};
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static int is_of(const zero_row_t *row, const char *set, int64_t seed)
{
    return strcmp(row->set, set) == 0 && row->seed == seed;
}

const zero_row_t *zero_rows_find(const zero_rows_t *rows, const char *set, int64_t seed)
{
    for (size_t i = 0; i < rows->n_rows; i++) {
        const zero_row_t *row = &rows->rows[i];
        if (is_of(row, set, seed)) {
            return row;
        }
    }
    return NULL;
}

/** Of rows with equal times, the one that was made earlier comes before. */
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

static rounds_t rounds_beside(const zero_rows_t *rows, const zero_row_t *row)
{
    rounds_t rounds = {.ok = 1};
    for (const zero_row_t *other = rows->rows; other < rows->rows + rows->n_rows; other++) {
        if (is_of(other, row->set, row->seed)) {
            rounds.n++;
            rounds.n_faster += (size_t)is_before(other, row);
            rounds.ok &= other->ok && strcmp(other->losses, row->losses) == 0;
        }
    }
    return rounds;
}

tw_status_t zero_rows_middle(const zero_rows_t *rows, const char *set, int64_t seed, zero_row_t *middle)
{
    for (const zero_row_t *row = rows->rows; row < rows->rows + rows->n_rows; row++) {
        rounds_t rounds = rounds_beside(rows, row);
        if (is_of(row, set, seed) && rounds.n_faster == (rounds.n - 1) / 2) {
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
