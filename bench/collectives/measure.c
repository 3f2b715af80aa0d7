/* Measures one size in all modes. In each iteration the modes take turns, so that noise affects all. */
#include <math.h>
#include <string.h>

#include <xxhash.h>

#include "bench/collectives/run.h"

#define MIN_ITERS 3
#define SMALL_SEC 0.5 /* small operations are repeated up to this long: their times vary most */
#define POISON 0xff   /* NaN in every float type */

/* ---- one operation ------------------------------------------------------------------------------------- */

typedef struct snapshot {
    tw_transport_counters_t sent;
    tw_netdev_counters_t device;
} snapshot_t;

static tw_status_t snapshot_take(const tw_bench_rank_t *rank, snapshot_t *out)
{
    *out = (snapshot_t){0};
    tw_transport_inter_node_counters(rank->transport, &out->sent);
    return rank->device && rank->is_leader ? tw_netdev_read(rank->device, &out->device) : TW_OK;
}

static void add_traffic(summary_t *summary, const snapshot_t *before, const snapshot_t *after)
{
    summary->loop_bytes += after->sent.bytes - before->sent.bytes;
    summary->loop_messages += after->sent.messages - before->sent.messages;
    summary->device.rx_bytes += after->device.rx_bytes - before->device.rx_bytes;
    summary->device.rx_packets += after->device.rx_packets - before->device.rx_packets;
    summary->device.tx_bytes += after->device.tx_bytes - before->device.tx_bytes;
    summary->device.tx_packets += after->device.tx_packets - before->device.tx_packets;
    summary->n_pauses++;
}

/** Use up the bursts of shaped links. A shaped link that was idle is fast for its first bytes
 *  (tw_cluster_burst_bytes), unlike a real link. Every node sends that many bytes to the next node, so that
 *  the operation that follows runs at the link's rate from its start. */
static tw_status_t spend_bursts(run_t *run)
{
    if (!run->spent) {
        return TW_OK;
    }
    size_t bytes = run->next[(run->rank->rank + run->rank->ranks_per_node) % run->rank->world];
    tw_coll_segment_t segment = {.src = run->spent,
                                 .dst = run->spent + bytes,
                                 .n_elems = bytes,
                                 .counts = run->next,
                                 .recv_counts = run->previous};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLTOALL, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(run->rank->coll, &args);
}

static tw_status_t run_op(run_t *run, mode_run_t *m)
{
    tw_coll_request_t *request;
    TW_TRY(tw_coll_post(run->rank->measured, &m->args, &request));
    tw_coll_request_plan(request, &m->plan);
    snprintf(m->reason, sizeof(m->reason), "%s", m->plan.reason);
    m->plan.reason = "";
    return tw_coll_wait(request);
}

static tw_status_t timed_op(run_t *run, mode_run_t *m, double *sec, uint64_t *op_bytes)
{
    tw_transport_counters_t before, after;
    tw_coll_counters_t spared, then;
    tw_transport_inter_node_counters(run->rank->transport, &before);
    tw_coll_counters_get(run->rank->measured, &spared);
    double start = tw_time_sec();
    tw_status_t status = run_op(run, m);
    *sec = tw_time_sec() - start;
    tw_transport_inter_node_counters(run->rank->transport, &after);
    tw_coll_counters_get(run->rank->measured, &then);
    m->summary.spared_bytes = then.inter_node_spared_bytes - spared.inter_node_spared_bytes;
    *op_bytes = run->rank->is_counted ? after.bytes - before.bytes : m->summary.planned_bytes;
    return status;
}

/** Run an operation between two barriers, and count the bytes of operation and barriers. The interface's
 *  counters are read at moments at which no rank sends. */
static tw_status_t one_iteration(run_t *run, mode_run_t *m, double *sec)
{
    tw_bench_rank_t *rank = run->rank;
    snapshot_t before, after;
    uint64_t op_bytes = 0;
    TW_TRY(bench_barrier(rank->coll));
    TW_TRY(snapshot_take(rank, &before));
    TW_TRY(bench_barrier(rank->coll));
    TW_TRY(spend_bursts(run));
    TW_TRY(timed_op(run, m, sec, &op_bytes));
    TW_TRY(bench_barrier(rank->coll));
    TW_TRY(snapshot_take(rank, &after));
    if (rank->gpu) {
        TW_TRY(tw_bench_gpu_fetch(rank->gpu));
    }
    add_traffic(&m->summary, &before, &after);
    uint64_t hash = XXH3_64bits(run->dst, run->dst_bytes);
    if (m->summary.n_pauses == 1) {
        m->summary.op_bytes = op_bytes;
        m->summary.hash = hash;
    }
    m->summary.n_unsteady += op_bytes != m->summary.op_bytes || hash != m->summary.hash;
    return TW_OK;
}

/* ---- the check ----------------------------------------------------------------------------------------- */

/** Return the codec that rounded the values, or NULL if none did. */
static const tw_quant_codec_t *rounding_codec(const mode_run_t *m)
{
    return m->plan.quantized && tw_quant_form(&m->codec) == TW_QUANT_BLOCKS ? &m->codec : NULL;
}

/** Check the shards that an all-to-all brought from each rank. Only those from other nodes were encoded. */
static tw_status_t check_received(run_t *run, mode_run_t *m, tw_bench_check_params_t *params, size_t tensor)
{
    const tw_bench_rank_t *rank = run->rank;
    const tw_coll_segment_t *segment = &run->segments[tensor];
    const char *at = segment->dst;
    for (int from = 0; from < rank->world; from++) {
        int leaves = rank->node_of[from] != rank->node_of[rank->rank];
        params->from = from;
        params->codec = leaves ? rounding_codec(m) : NULL;
        TW_TRY(tw_bench_check_shard(params, tensor, rank->rank, at, &m->summary.sums));
        at += segment->recv_counts[from] * tw_type_bytes(rank->options->type);
    }
    return TW_OK;
}

/** Check one shard of each tensor, so that each shard is checked on one rank: on its owner in a
 *  reduce-scatter, on the rank before its owner if all ranks have all shards. */
static tw_status_t check_result(run_t *run, mode_run_t *m)
{
    const tw_bench_rank_t *rank = run->rank;
    int owns = rank->options->op == TW_COLL_REDUCE_SCATTER;
    int shard = owns ? rank->rank : (rank->rank + 1) % rank->world;
    size_t elem_bytes = tw_type_bytes(rank->options->type);
    tw_bench_check_params_t params = {.data = run->data,
                                      .type = rank->options->type,
                                      .op = rank->options->op,
                                      .node_of = rank->node_of,
                                      .world = rank->world,
                                      .codec = rounding_codec(m),
                                      .two_hop = strcmp(m->plan.algo, "two_hop") == 0,
                                      .inner = m->args.inner_codec};
    for (size_t t = 0; t < run->n_segments; t++) {
        const tw_coll_segment_t *segment = &run->segments[t];
        if (params.op == TW_COLL_ALLTOALL) {
            TW_TRY(check_received(run, m, &params, t));
            continue;
        }
        size_t first = owns ? 0 : tw_coll_shard_offset(segment->n_elems, rank->world, shard);
        TW_TRY(tw_bench_check_shard(&params, t, shard, (const char *)segment->dst + first * elem_bytes,
                                    &m->summary.sums));
    }
    return TW_OK;
}

/** Get the planned bytes, and fill the output with NaN, so that an old result does not count as a new one. */
static tw_status_t coll_prepare(run_t *run, mode_run_t *m)
{
    tw_bench_rank_t *rank = run->rank;
    memset(run->dst, POISON, run->dst_bytes);
    tw_status_t status = rank->gpu ? tw_bench_gpu_poison(rank->gpu, POISON) : TW_OK;
    return status == TW_OK
               ? tw_coll_planned_inter_node_bytes(rank->measured, &m->args, &m->summary.planned_bytes)
               : status;
}

/** Run the first iteration of a mode. Its result is checked; its time is not part of the row. */
static tw_status_t warm_up(run_t *run, mode_run_t *m)
{
    uint64_t nonfinite = tw_coll_nonfinite_blocks(run->rank->measured);
    TW_TRY(coll_prepare(run, m));
    TW_TRY(one_iteration(run, m, &m->warm_sec));
    m->summary.nonfinite_blocks = tw_coll_nonfinite_blocks(run->rank->measured) - nonfinite;
    return check_result(run, m);
}

/* ---- all modes at one size ----------------------------------------------------------------------------- */

static void show_progress(const run_t *run, const mode_run_t *m, int done)
{
    char size[32], count[32] = "warming up", text[128];
    if (done > 0) {
        snprintf(count, sizeof(count), "%d/%d", done, run->n_iters);
    }
    snprintf(text, sizeof(text), "%s %s %s", tw_format_bytes(run->bytes, size, sizeof(size)),
             tw_quant_row_get(m->codec.kind)->name, count);
    if (run->rank->rank == 0) {
        tw_bench_report_progress(text);
    }
}

/** Choose the number of iterations by the budget and the warm-up's time. All ranks choose the same number. */
static tw_status_t choose_iters(run_t *run, double budget_sec)
{
    const tw_bench_options_t *options = run->rank->options;
    double own = 0, slowest;
    for (size_t i = 0; i < options->n_modes; i++) {
        own += run->modes[i].warm_sec;
    }
    tw_status_t status = bench_most(run->rank->coll, own, &slowest);
    slowest = fmax(slowest, 1e-9);
    double most = (double)options->iters * TW_BENCH_SMALL_MORE;
    double asked = fmin(most, fmax(options->iters, floor(SMALL_SEC / slowest)));
    run->n_iters = (int)fmin(asked, fmax(MIN_ITERS, floor(budget_sec / slowest)));
    return status;
}

static tw_status_t run_iterations(run_t *run, double budget_sec)
{
    const tw_bench_options_t *options = run->rank->options;
    for (size_t i = 0; i < options->n_modes; i++) {
        show_progress(run, &run->modes[i], 0);
        TW_TRY(warm_up(run, &run->modes[i]));
    }
    TW_TRY(choose_iters(run, budget_sec));
    for (int it = 0; it < run->n_iters; it++) {
        for (size_t i = 0; i < options->n_modes; i++) { /* each iteration begins with another mode */
            mode_run_t *m = &run->modes[((size_t)it + i) % options->n_modes];
            double sec = 0;
            show_progress(run, m, it + 1);
            TW_TRY(one_iteration(run, m, &sec));
            m->times_us[it] = sec * 1e6;
        }
    }
    return TW_OK;
}

static void set_speedups(tw_bench_row_t *rows, size_t n_rows)
{
    double plain_us = NAN;
    for (size_t i = 0; i < n_rows; i++) {
        plain_us = rows[i].mode == TW_QUANT_PLAIN ? rows[i].us_median : plain_us;
    }
    for (size_t i = 0; i < n_rows; i++) {
        rows[i].speedup = plain_us / rows[i].us_median;
    }
}

tw_status_t tw_bench_measure(tw_bench_rank_t *rank, size_t bytes, double budget_sec, tw_bench_row_t *rows)
{
    run_t run;
    size_t n_modes = rank->options->n_modes;
    tw_status_t status = tw_bench_run_init(&run, rank, bytes);
    status = status == TW_OK ? run_iterations(&run, budget_sec) : status;
    for (size_t i = 0; i < n_modes && status == TW_OK; i++) {
        status = tw_bench_make_row(&run, &run.modes[i], &rows[i]);
    }
    if (status == TW_OK) {
        set_speedups(rows, n_modes);
    }
    if (rank->rank == 0) {
        tw_bench_report_progress(NULL);
    }
    tw_bench_run_cleanup(&run);
    return status;
}
