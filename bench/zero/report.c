/* The table. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/zero/zero.h"

void zero_report_head(const zero_options_t *options)
{
    char link[32];
    snprintf(link, sizeof(link), options->link_bps > 0 ? "%g Mb/s" : "not shaped", options->link_bps * 1e-6);
    printf("# %d x %d ranks, links %s; %" PRId64 " steps, learning rate %g, warm-up %" PRId64 "\n",
           options->n_nodes, options->ranks_per_node, link, options->steps, options->lr, options->warmup);
    bench_table_head(&zero_table);
}

void zero_report_row(const zero_row_t *row)
{
    int is_equal = row->losses_equal == 1 && strcmp(row->set, ZERO_BASE) != 0;
    bench_table_row(&zero_table, row, is_equal ? " as " ZERO_BASE : "");
}

void zero_report_round(const zero_options_t *options, int64_t round, const zero_row_t *row)
{
    printf("# round %" PRId64 " of %" PRId64 ", %s, seed %" PRId64 ": %.1f ms\n", round + 1,
           options->n_rounds, row->set, row->seed, row->step_sec_median * 1e3);
    fflush(stdout);
}

/* ---- seeds --------------------------------------------------------------------------------------------- */

/** Student's 97.5 % quantile. */
static double t_quantile(size_t freedom)
{
    static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
    size_t n = sizeof(table) / sizeof(table[0]);
    return freedom <= n ? table[freedom - 1] : 1.96 + 2.4 / (double)freedom;
}

/** Differences of the validation loss to the base of the same seed, in percent; returns how many. */
static size_t differences(const zero_rows_t *rows, const char *set, double *out)
{
    size_t n = 0;
    for (size_t i = 0; i < rows->n_rows; i++) {
        const zero_row_t *row = &rows->rows[i];
        const zero_row_t *base = zero_rows_find(rows, ZERO_BASE, row->seed);
        if (base && strcmp(row->set, set) == 0) {
            out[n++] = 100 * (row->val_loss / base->val_loss - 1);
        }
    }
    return n;
}

static void report_set(const char *set, const double *diff, size_t n)
{
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        mean += diff[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        square += (diff[i] - mean) * (diff[i] - mean);
    }
    double half = t_quantile(n - 1) * sqrt(square / (double)(n - 1) / (double)n);
    printf("# %-15s validation loss %+.3f %% of " ZERO_BASE "'s, 95 %% interval %+.3f to %+.3f (%zu seeds)\n",
           set, mean, mean - half, mean + half, n);
}

void zero_report_seeds(const zero_options_t *options, const zero_rows_t *rows)
{
    double *diff = malloc((rows->n_rows + 1) * sizeof(*diff));
    for (size_t i = 0; diff && i < options->n_sets; i++) {
        const char *set = options->sets[i]->name;
        size_t n = strcmp(set, ZERO_BASE) == 0 ? 0 : differences(rows, set, diff);
        if (n > 1) {
            report_set(set, diff, n);
        }
    }
    free(diff);
}
