/* Makes a row of the table from all ranks' measurements. */
#include "bench/collectives/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/** Set us[] to each iteration's time on its slowest rank. */
static tw_status_t slowest_times(run_t *run, mode_run_t *m, double *us)
{
    size_t n = (size_t)run->n_iters, world = (size_t)run->rank->world;
    double *all = calloc(n * world, sizeof(*all));
    if (!all) {
        return tw_bench_no_memory(run->rank, n * world * sizeof(*all));
    }
    tw_status_t status = bench_gather(run->rank->coll, m->times_us, n * sizeof(*us), all);
    for (size_t i = 0; i < n; i++) {
        us[i] = 0;
        for (size_t r = 0; r < world; r++) {
            us[i] = fmax(us[i], all[r * n + i]);
        }
    }
    free(all);
    return status;
}

static tw_status_t set_times(run_t *run, mode_run_t *m, tw_bench_row_t *row)
{
    size_t n = (size_t)run->n_iters;
    double *us = calloc(n, sizeof(*us));
    tw_status_t status = us ? slowest_times(run, m, us) : tw_bench_no_memory(run->rank, n * sizeof(*us));
    if (status == TW_OK) {
        row->us_median = tw_median(us, n); /* sorts us */
        row->us_min = us[0];
        row->us_max = us[n - 1];
    }
    free(us);
    return status;
}

/** Add the bytes that a node's ranks counted. Return 1 if its interface's counters fit them. */
static int join_node(const tw_bench_rank_t *rank, const summary_t *all, int node, tw_bench_row_t *row)
{
    tw_netdev_claim_t claim = {0};
    const summary_t *leader = NULL;
    uint64_t op_bytes = 0;
    for (int r = 0; r < rank->world; r++) {
        if (rank->node_of[r] == node) {
            leader = leader ? leader : &all[r];
            op_bytes += all[r].op_bytes;
            claim.sent_bytes += all[r].loop_bytes;
            claim.sent_messages += all[r].loop_messages;
        }
    }
    row->inter_node_bytes += op_bytes;
    row->busiest_bytes = op_bytes > row->busiest_bytes ? op_bytes : row->busiest_bytes;
    if (!leader || !rank->device) {
        return 1;
    }
    claim.n_pauses = (int)leader->n_pauses;
    int fits = tw_netdev_fits(&leader->device, &claim);
    if (!fits && rank->rank == 0) {
        tw_warn("node %d: the transport counted %llu bytes in %llu messages, the interface sent %llu and "
                "received %llu",
                node, (unsigned long long)claim.sent_bytes, (unsigned long long)claim.sent_messages,
                (unsigned long long)leader->device.tx_bytes, (unsigned long long)leader->device.rx_bytes);
    }
    return fits;
}

/** Return 1 if the operation gives all ranks the same result. */
static int is_gathered(tw_coll_op_t op)
{
    return op == TW_COLL_ALLGATHER || op == TW_COLL_ALLREDUCE;
}

/** Return the largest relative RMS error that counts as right, for codecs that have no bound for an element;
 *  0 for other codecs. Rounding with dither has an RMS error of 0.29 of a step, a step is about
 *  2^(codec->step / 4) standard deviations, and a sum that is sent on is encoded twice. */
static double most_error(const tw_quant_codec_t *codec)
{
    return tw_quant_row_get(codec->kind)->unbiased ? 0.5 * exp2(codec->step / 4.0) : 0;
}

static void coll_judge(const tw_bench_rank_t *rank, const tw_quant_codec_t *codec, const summary_t *all,
                       int wire_agrees, tw_bench_row_t *row)
{
    tw_bench_check_sums_t sums = {0};
    uint64_t nonfinite = 0;
    int planned = 1;
    row->identical = 1;
    for (int r = 0; r < rank->world; r++) {
        sums.err2 += all[r].sums.err2;
        sums.ref2 += all[r].sums.ref2;
        sums.n_outside += all[r].sums.n_outside;
        sums.n_nonfinite += all[r].sums.n_nonfinite;
        sums.max_abs_err = fmax(sums.max_abs_err, all[r].sums.max_abs_err);
        nonfinite += all[r].nonfinite_blocks;
        planned &= all[r].planned_bytes == all[r].op_bytes + all[r].spared_bytes;
        row->identical &= all[r].n_unsteady == 0;
        row->identical &= !is_gathered(rank->options->op) || all[r].hash == all[0].hash;
    }
    row->rel_rmse = sums.ref2 == 0 ? 0 : sqrt(sums.err2 / sums.ref2);
    row->max_abs_err = sums.max_abs_err;
    double most = most_error(codec);
    int is_outside = most > 0 ? row->rel_rmse > most : sums.n_outside > 0;
    row->fault = sums.n_nonfinite > 0 ? "NaN or Inf in the input"
                 : is_outside         ? "outside the error bound"
                 : nonfinite > 0      ? "NaN or Inf"
                 : !row->identical    ? "not the same everywhere"
                 : !planned           ? "bytes not as planned"
                 : !wire_agrees       ? "bytes not as the interface counted"
                                      : NULL;
}

tw_status_t tw_bench_make_row(run_t *run, mode_run_t *m, tw_bench_row_t *row)
{
    tw_bench_rank_t *rank = run->rank;
    *row =
        (tw_bench_row_t){.mode = m->codec.kind, .bytes = run->bytes, .plan = m->plan, .iters = run->n_iters};
    memcpy(row->reason, m->reason, sizeof(row->reason));
    summary_t *all = calloc((size_t)rank->world, sizeof(*all));
    tw_status_t status = all ? bench_gather(rank->coll, &m->summary, sizeof(*all), all)
                             : tw_bench_no_memory(rank, (size_t)rank->world * sizeof(*all));
    if (status == TW_OK) {
        int wire_agrees = 1;
        for (int n = 0; n < rank->n_nodes; n++) {
            wire_agrees &= join_node(rank, all, n, row);
        }
        coll_judge(rank, &m->codec, all, wire_agrees, row);
        status = set_times(run, m, row);
    }
    free(all);
    return status;
}
