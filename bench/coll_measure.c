/* Measures one size in all modes, iteration by iteration in turns, so that noise hits all of them alike. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "bench/coll_bench.h"

#define MIN_ITERS 3
#define POISON 0xff /* NaN in every float type */

/* What one rank found out about a mode, for all the others. */
typedef struct summary {
    uint64_t op_bytes, planned_bytes; /* sent to other nodes, per operation */
    uint64_t hash;
    uint64_t n_unsteady; /* iterations that sent other bytes, or left another result, than the first */
    uint64_t nonfinite_blocks;
    uint64_t loop_bytes, loop_messages, n_pauses; /* around operations and barriers */
    tw_netdev_counters_t device;                  /* leaders: the interface's counters over the same time */
    tw_bench_check_sums_t sums;
} summary_t;

typedef struct mode_run {
    tw_bench_mode_t mode;
    tw_quant_codec_t codec, inner;
    tw_coll_args_t args;
    tw_coll_plan_t plan;
    char reason[TW_BENCH_REASON_BYTES];
    double *times_us; /* [max_iters] */
    double warm_sec;
    summary_t summary;
} mode_run_t;

typedef struct run {
    tw_bench_rank_t *rank;
    size_t bytes;
    tw_bench_data_t *data;
    tw_coll_segment_t *segments;
    size_t n_segments, src_bytes, dst_bytes;
    char *src, *dst;
    size_t *next, *previous; /* [world] bytes to send and to receive when the links' bursts are spent */
    char *spent;             /* those bytes, out and in */
    mode_run_t modes[TW_BENCH_MODE_COUNT];
    int n_iters;
} run_t;

/* ---- exchanges ---------------------------------------------------------------------------------------------- */

tw_status_t tw_bench_gather(tw_bench_rank_t *rank, const void *own, size_t bytes, void *all)
{
    tw_coll_segment_t segment = {.src = own, .dst = all, .n_elems = bytes * (size_t)rank->world};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(rank->coll, &args);
}

tw_status_t tw_bench_barrier(tw_bench_rank_t *rank)
{
    tw_coll_args_t args = {.op = TW_COLL_BARRIER, .type = TW_TYPE_BYTE};
    return tw_coll_run(rank->coll, &args);
}

/* ---- input and output --------------------------------------------------------------------------------------- */

static tw_bench_data_params_t data_params(const tw_bench_options_t *options, size_t bytes)
{
    return (tw_bench_data_params_t){.type = options->type,
                                    .n_elems = bytes / tw_type_bytes(options->type),
                                    .seed = options->seed,
                                    .tensors = options->tensors};
}

char *tw_bench_describe_data(const tw_bench_rank_t *rank, size_t bytes)
{
    tw_bench_data_params_t params = data_params(rank->options, bytes);
    tw_bench_data_t *data;
    if (tw_bench_data_create(&params, &data) != TW_OK) {
        return NULL;
    }
    char *text = strdup(tw_bench_data_describe(data));
    tw_bench_data_destroy(data);
    return text;
}

static size_t align_up(size_t bytes)
{
    return (bytes + TW_CACHE_LINE_BYTES - 1) / TW_CACHE_LINE_BYTES * TW_CACHE_LINE_BYTES;
}

/* Offset of each tensor's own shard, and bytes of them all, when they lie one after another. */
static size_t place_shards(const run_t *run, size_t *offsets)
{
    size_t at = 0, elem_bytes = tw_type_bytes(run->rank->options->type);
    for (size_t t = 0; t < run->n_segments; t++) {
        offsets[t] = at;
        size_t n_elems = tw_bench_data_tensor(run->data, t)->n_elems;
        at += align_up(tw_coll_shard_elems(n_elems, run->rank->world, run->rank->rank) * elem_bytes);
    }
    return at;
}

static void make_segments(run_t *run, const size_t *shards)
{
    tw_coll_op_t op = run->rank->options->op;
    size_t elem_bytes = tw_type_bytes(run->rank->options->type);
    for (size_t t = 0; t < run->n_segments; t++) {
        const tw_bench_tensor_t *tensor = tw_bench_data_tensor(run->data, t);
        size_t whole = tensor->offset * elem_bytes;
        run->segments[t] =
            (tw_coll_segment_t){.src = run->src + (op == TW_COLL_ALLGATHER ? shards[t] : whole),
                                .dst = run->dst + (op == TW_COLL_REDUCE_SCATTER ? shards[t] : whole),
                                .n_elems = tensor->n_elems,
                                .tensor = (uint32_t)t};
    }
}

/* What this rank puts in. */
static void fill_input(const run_t *run)
{
    int world = run->rank->world, rank = run->rank->rank;
    int gathers = run->rank->options->op == TW_COLL_ALLGATHER;
    for (size_t t = 0; t < run->n_segments; t++) {
        const tw_coll_segment_t *segment = &run->segments[t];
        size_t first = gathers ? tw_coll_shard_offset(segment->n_elems, world, rank) : 0;
        size_t n = gathers ? tw_coll_shard_elems(segment->n_elems, world, rank) : segment->n_elems;
        tw_bench_data_fill(run->data, t, gathers ? 0 : rank, first, n, (void *)segment->src);
    }
}

static tw_status_t run_init_buffers(run_t *run)
{
    tw_coll_op_t op = run->rank->options->op;
    size_t *shards = calloc(run->n_segments + 1, sizeof(*shards));
    run->segments = calloc(run->n_segments + 1, sizeof(*run->segments));
    if (!shards || !run->segments) {
        free(shards);
        return TW_ERR_NO_MEMORY;
    }
    size_t whole = tw_bench_data_buffer_elems(run->data) * tw_type_bytes(run->rank->options->type);
    size_t shard = place_shards(run, shards);
    run->src_bytes = op == TW_COLL_ALLGATHER ? shard : whole;
    run->dst_bytes = op == TW_COLL_REDUCE_SCATTER ? shard : whole;
    run->src = tw_buffer_alloc(run->src_bytes);
    run->dst = tw_buffer_alloc(run->dst_bytes);
    if (run->src && run->dst) {
        make_segments(run, shards);
        fill_input(run);
    }
    free(shards);
    return run->src && run->dst ? TW_OK : TW_ERR_NO_MEMORY;
}

/* On shaped links: a node's ranks together send a burst and a quarter. */
static tw_status_t run_init_bursts(run_t *run)
{
    tw_bench_rank_t *rank = run->rank;
    if (rank->kind != TW_CLUSTER_NODES || rank->link_bps <= 0 || rank->n_nodes < 2) {
        return TW_OK;
    }
    int ahead = rank->ranks_per_node, world = rank->world;
    size_t bytes = tw_cluster_burst_bytes(rank->link_bps) * 5 / 4 / (size_t)ahead;
    run->next = calloc((size_t)world, sizeof(*run->next));
    run->previous = calloc((size_t)world, sizeof(*run->previous));
    run->spent = tw_buffer_alloc_zero(2 * bytes);
    if (!run->next || !run->previous || !run->spent) {
        return TW_ERR_NO_MEMORY;
    }
    run->next[(rank->rank + ahead) % world] = bytes;
    run->previous[(rank->rank + world - ahead) % world] = bytes;
    return TW_OK;
}

/* ---- modes -------------------------------------------------------------------------------------------------- */

/* The algorithm asked for, if this mode has one of that name. */
static const char *choose_algo(const tw_bench_options_t *options, int quantized)
{
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; options->algo && (info = tw_coll_algo_get(i)) != NULL; i++) {
        if (info->op == options->op && info->quantized == quantized &&
            strcmp(info->name, options->algo) == 0) {
            return options->algo;
        }
    }
    return NULL;
}

static void mode_init_args(mode_run_t *m, const run_t *run, tw_bench_mode_t mode)
{
    const tw_bench_options_t *options = run->rank->options;
    int quantized = mode != TW_BENCH_EXACT;
    m->mode = mode;
    m->codec = (tw_quant_codec_t){.bits = mode == TW_BENCH_INT4 ? 4 : 8,
                                  .block = options->block,
                                  .scale = TW_QUANT_SCALE_BF16,
                                  .round = TW_QUANT_ROUND_NEAREST,
                                  .hadamard = options->hadamard};
    m->inner = m->codec;
    m->inner.bits = 8;
    m->args = (tw_coll_args_t){.op = options->op,
                               .type = options->type,
                               .segments = run->segments,
                               .n_segments = run->n_segments,
                               .reduction = TW_COLL_MEAN,
                               .codec = quantized ? &m->codec : NULL,
                               .algo = choose_algo(options, quantized),
                               .force_codec = options->force};
    /* Four bits between nodes bear eight inside; eight bits want nothing lost inside. */
    if (mode == TW_BENCH_INT4 && options->op != TW_COLL_ALLGATHER) {
        m->args.inner_codec = &m->inner;
    }
}

static void run_cleanup(run_t *run)
{
    for (size_t i = 0; i < TW_BENCH_MODE_COUNT; i++) {
        free(run->modes[i].times_us);
    }
    tw_buffer_free(run->src);
    tw_buffer_free(run->dst);
    tw_buffer_free(run->spent);
    free(run->next);
    free(run->previous);
    free(run->segments);
    tw_bench_data_destroy(run->data);
}

static tw_status_t run_init(run_t *run, tw_bench_rank_t *rank, size_t bytes)
{
    const tw_bench_options_t *options = rank->options;
    tw_bench_data_params_t params = data_params(options, bytes);
    *run = (run_t){.rank = rank, .bytes = bytes};
    tw_status_t status = tw_bench_data_create(&params, &run->data);
    if (status == TW_OK) {
        run->n_segments = tw_bench_data_count(run->data);
        status = run_init_buffers(run);
    }
    if (status == TW_OK) {
        status = run_init_bursts(run);
    }
    for (size_t i = 0; i < options->n_modes && status == TW_OK; i++) {
        mode_init_args(&run->modes[i], run, options->modes[i]);
        run->modes[i].times_us = calloc((size_t)options->iters, sizeof(double));
        status = run->modes[i].times_us ? TW_OK : TW_ERR_NO_MEMORY;
    }
    if (status == TW_ERR_NO_MEMORY) {
        tw_error("rank %d: not enough memory for tensors of %zu bytes", rank->rank, bytes);
    }
    return status;
}

/* ---- one operation ------------------------------------------------------------------------------------------ */

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

/* A link that was idle is fast for a moment (tw_cluster_burst_bytes), as no real one is. Every node sends that much to the
 * next, so that the operation that follows finds the link as it is in the middle of a stream. */
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

static tw_status_t timed_op(run_t *run, mode_run_t *m, double *sec, uint64_t *op_bytes)
{
    tw_transport_counters_t before, after;
    tw_transport_inter_node_counters(run->rank->transport, &before);
    double start = tw_time_sec();
    tw_status_t status = tw_coll_run(run->rank->coll, &m->args);
    *sec = tw_time_sec() - start;
    tw_coll_last_plan(run->rank->coll, &m->plan);
    /* The text is the communicator's, and changes with its next operation. */
    snprintf(m->reason, sizeof(m->reason), "%s", status == TW_OK ? m->plan.reason : "");
    m->plan.reason = "";
    tw_transport_inter_node_counters(run->rank->transport, &after);
    *op_bytes = after.bytes - before.bytes;
    return status;
}

/* An operation between barriers, and the traffic of them all. The interface's counters are read while nothing is sent. */
static tw_status_t one_iteration(run_t *run, mode_run_t *m, double *sec)
{
    tw_bench_rank_t *rank = run->rank;
    snapshot_t before, after;
    uint64_t op_bytes = 0;
    tw_status_t status = tw_bench_barrier(rank);
    if (status == TW_OK) {
        status = snapshot_take(rank, &before);
    }
    if (status == TW_OK) {
        status = tw_bench_barrier(rank);
    }
    if (status == TW_OK) {
        status = spend_bursts(run);
    }
    if (status == TW_OK) {
        status = timed_op(run, m, sec, &op_bytes);
    }
    if (status == TW_OK) {
        status = tw_bench_barrier(rank);
    }
    if (status == TW_OK) {
        status = snapshot_take(rank, &after);
    }
    if (status != TW_OK) {
        return status;
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

/* ---- the check ---------------------------------------------------------------------------------------------- */

/* Every shard is checked by one rank: its owner, or where all ranks have it the one before. */
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
                                      .codec = m->plan.quantized ? &m->codec : NULL,
                                      .two_hop = strcmp(m->plan.algo, "two_hop") == 0,
                                      .inner = m->args.inner_codec};
    tw_status_t status = TW_OK;
    for (size_t t = 0; t < run->n_segments && status == TW_OK; t++) {
        const tw_coll_segment_t *segment = &run->segments[t];
        size_t first = owns ? 0 : tw_coll_shard_offset(segment->n_elems, rank->world, shard);
        status = tw_bench_check_shard(&params, t, shard, (const char *)segment->dst + first * elem_bytes,
                                      &m->summary.sums);
    }
    return status;
}

/* The first iteration of a mode: not measured, but checked. */
static tw_status_t warm_up(run_t *run, mode_run_t *m)
{
    uint64_t nonfinite = tw_coll_nonfinite_blocks(run->rank->coll);
    memset(run->dst, POISON, run->dst_bytes);
    tw_status_t status =
        tw_coll_planned_inter_node_bytes(run->rank->coll, &m->args, &m->summary.planned_bytes);
    if (status == TW_OK) {
        status = one_iteration(run, m, &m->warm_sec);
    }
    if (status == TW_OK) {
        m->summary.nonfinite_blocks = tw_coll_nonfinite_blocks(run->rank->coll) - nonfinite;
        status = check_result(run, m);
    }
    return status;
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* An iteration takes as long as its slowest rank. */
static tw_status_t slowest_times(run_t *run, mode_run_t *m, double *us)
{
    size_t n = (size_t)run->n_iters, world = (size_t)run->rank->world;
    double *all = calloc(n * world, sizeof(*all));
    if (!all) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_bench_gather(run->rank, m->times_us, n * sizeof(*us), all);
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
    tw_status_t status = us ? slowest_times(run, m, us) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        qsort(us, n, sizeof(*us), compare_doubles);
        row->us_min = us[0];
        row->us_max = us[n - 1];
        row->us_median = (us[(n - 1) / 2] + us[n / 2]) / 2;
    }
    free(us);
    return status;
}

/* Adds up what the ranks of a node have; returns 1 if its interface agrees. */
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

static void judge(const tw_bench_rank_t *rank, const summary_t *all, int wire_agrees, tw_bench_row_t *row)
{
    tw_bench_check_sums_t sums = {0};
    uint64_t nonfinite = 0;
    int planned = 1;
    row->identical = 1;
    for (int r = 0; r < rank->world; r++) {
        sums.err2 += all[r].sums.err2;
        sums.ref2 += all[r].sums.ref2;
        sums.n_outside += all[r].sums.n_outside;
        sums.max_abs_err = fmax(sums.max_abs_err, all[r].sums.max_abs_err);
        nonfinite += all[r].nonfinite_blocks;
        planned &= all[r].planned_bytes == all[r].op_bytes;
        row->identical &= all[r].n_unsteady == 0;
        row->identical &= rank->options->op == TW_COLL_REDUCE_SCATTER || all[r].hash == all[0].hash;
    }
    row->rel_rmse = sums.ref2 > 0 ? sqrt(sums.err2 / sums.ref2) : 0;
    row->max_abs_err = sums.max_abs_err;
    row->fault = sums.n_outside > 0 ? "outside the error bound"
                 : nonfinite > 0    ? "NaN or Inf"
                 : !row->identical  ? "not the same everywhere"
                 : !planned         ? "bytes not as planned"
                 : !wire_agrees     ? "bytes not as the interface counted"
                                    : NULL;
}

static tw_status_t make_row(run_t *run, mode_run_t *m, tw_bench_row_t *row)
{
    tw_bench_rank_t *rank = run->rank;
    *row = (tw_bench_row_t){.mode = m->mode, .bytes = run->bytes, .plan = m->plan, .iters = run->n_iters};
    memcpy(row->reason, m->reason, sizeof(row->reason));
    summary_t *all = calloc((size_t)rank->world, sizeof(*all));
    tw_status_t status = all ? tw_bench_gather(rank, &m->summary, sizeof(*all), all) : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        int wire_agrees = 1;
        for (int n = 0; n < rank->n_nodes; n++) {
            wire_agrees &= join_node(rank, all, n, row);
        }
        judge(rank, all, wire_agrees, row);
        status = set_times(run, m, row);
    }
    free(all);
    return status;
}

static void set_speedups(tw_bench_row_t *rows, size_t n_rows)
{
    double exact_us = NAN;
    for (size_t i = 0; i < n_rows; i++) {
        exact_us = rows[i].mode == TW_BENCH_EXACT ? rows[i].us_median : exact_us;
    }
    for (size_t i = 0; i < n_rows; i++) {
        rows[i].speedup = exact_us / rows[i].us_median;
    }
}

/* ---- all of it ---------------------------------------------------------------------------------------------- */

static void show_progress(const run_t *run, const mode_run_t *m, int done)
{
    char size[32], text[128];
    snprintf(text, sizeof(text), "%s %s %d/%d", tw_format_bytes(run->bytes, size, sizeof(size)),
             tw_bench_mode_name(m->mode), done, run->n_iters);
    if (run->rank->rank == 0) {
        tw_bench_report_progress(text);
    }
}

/* All ranks settle on the iterations that fit the budget. */
static tw_status_t choose_iters(run_t *run, double budget_sec)
{
    const tw_bench_options_t *options = run->rank->options;
    double own = 0, slowest = 0, *all = calloc((size_t)run->rank->world, sizeof(*all));
    for (size_t i = 0; i < options->n_modes; i++) {
        own += run->modes[i].warm_sec;
    }
    tw_status_t status = all ? tw_bench_gather(run->rank, &own, sizeof(own), all) : TW_ERR_NO_MEMORY;
    for (int r = 0; status == TW_OK && r < run->rank->world; r++) {
        slowest = fmax(slowest, all[r]);
    }
    free(all);
    double fit = fmax(MIN_ITERS, floor(budget_sec / fmax(slowest, 1e-9)));
    run->n_iters = (int)fmin(options->iters, fit);
    return status;
}

static tw_status_t run_iterations(run_t *run, double budget_sec)
{
    const tw_bench_options_t *options = run->rank->options;
    tw_status_t status = TW_OK;
    for (size_t i = 0; i < options->n_modes && status == TW_OK; i++) {
        show_progress(run, &run->modes[i], 0);
        status = warm_up(run, &run->modes[i]);
    }
    if (status == TW_OK) {
        status = choose_iters(run, budget_sec);
    }
    for (int it = 0; it < run->n_iters && status == TW_OK; it++) {
        for (size_t i = 0; i < options->n_modes && status == TW_OK; i++) {
            double sec = 0;
            show_progress(run, &run->modes[i], it + 1);
            status = one_iteration(run, &run->modes[i], &sec);
            run->modes[i].times_us[it] = sec * 1e6;
        }
    }
    return status;
}

tw_status_t tw_bench_measure(tw_bench_rank_t *rank, size_t bytes, double budget_sec, tw_bench_row_t *rows)
{
    run_t run;
    size_t n_modes = rank->options->n_modes;
    tw_status_t status = run_init(&run, rank, bytes);
    if (status == TW_OK) {
        status = run_iterations(&run, budget_sec);
    }
    for (size_t i = 0; i < n_modes && status == TW_OK; i++) {
        status = make_row(&run, &run.modes[i], &rows[i]);
    }
    if (status == TW_OK) {
        set_speedups(rows, n_modes);
    }
    if (rank->rank == 0) {
        tw_bench_report_progress(NULL);
    }
    run_cleanup(&run);
    return status;
}
