/** The benchmark of the trainer's feature sets: each is a run of its own in a cluster in a box, all in one
 *  call, compared with plain ZeRO-3 of the same seed. Read rank.c (a run), rows.c (what comes of it),
 *  report.c. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "bench/columns.h"
#include "core/core.h"
#include "trainer/trainer.h"

TW_C_BEGIN

#define ZERO_MAX_SETS 32
#define ZERO_BASE "zero3" /**< what the others are compared with */

typedef struct zero_options {
    const tw_trainer_set_t *sets[ZERO_MAX_SETS];
    size_t n_sets;
    int n_nodes, ranks_per_node;
    double link_bps;
    int64_t steps, tokens, warmup, first_seed, n_seeds, n_rounds;
    double params, lr;
    const char *data, *json, *metrics;
    /* What follows is set in the ranks of a run. */
    const tw_trainer_set_t *child;
    int64_t child_seed, child_round; /**< round: from 1 */
    const char *child_out;
} zero_options_t;

void zero_options_parse(int argc, char **argv, zero_options_t *options);

/** What a run of a set came to. Numbers that are not known are NaN. */
typedef struct zero_row {
    char set[24], losses[20]; /**< losses: a hash of the loss of every step, bit by bit */
    int64_t seed, stage, nodes, ranks_per_node, params, steps, tokens;
    double link_bps, lr;
    int64_t warmup;
    double step_sec_median, wait_share, inter_node_bytes_per_step, in_node_bytes_per_step;
    double first_loss, last_loss, val_loss, delta_bits;
    double load_inter_node_bytes, val_inter_node_bytes, upkeep_inter_node_bytes;
    double peak_rss_bytes, planned_rss_bytes, before_rss_bytes; /**< before: before the engine was made */
    double bytes_ratio, speedup;                                /**< against ZERO_BASE of the same seed */
    int losses_equal; /**< 1: yes; 0: no; -1: ZERO_BASE did not run */
    int ok;
} zero_row_t;

typedef struct zero_rows {
    zero_row_t *rows;
    size_t n_rows;
} zero_rows_t;

/** One rank's part of a set's run; rank 0 writes the row to options->child_out. Returns the exit code. */
int zero_rank_run(const zero_options_t *options);

/** The columns of a zero_row_t, with their keys. */
extern const bench_table_t zero_table;

/** Hand the row of a run over in a file. TW_ERR_IO (logged). */
tw_status_t zero_row_write(const char *path, const zero_row_t *row);
tw_status_t zero_row_read(const char *path, zero_row_t *row);
/** NULL: no row of this set and seed. */
const zero_row_t *zero_rows_find(const zero_rows_t *rows, const char *set, int64_t seed);
/** Of the rows of a set and seed, a row for each round, the one with the middle time (of two, the faster); ok
 *  only if all are, with the same losses. TW_ERR_NOT_FOUND: there is none (silent). */
tw_status_t zero_rows_middle(const zero_rows_t *rows, const char *set, int64_t seed, zero_row_t *middle);
tw_status_t zero_rows_append(zero_rows_t *rows, const zero_row_t *row);
/** Set bytes_ratio, speedup and losses_equal. */
void zero_row_compare(zero_row_t *row, const zero_row_t *base);
void zero_rows_cleanup(zero_rows_t *rows);

void zero_report_head(const zero_options_t *options);
void zero_report_row(const zero_row_t *row);
/** Print that a round of a set has ended. round: from 0. */
void zero_report_round(const zero_options_t *options, int64_t round, const zero_row_t *row);
/** Print, of several seeds, the mean difference of the validation loss from the base's, and its 95 %
 *  interval. */
void zero_report_seeds(const zero_options_t *options, const zero_rows_t *rows);

TW_C_END
