/* Sets up the measurement of a size: buffers, input, and the modes' arguments. */
#include "bench/collectives/run.h"

#include <stdlib.h>
#include <string.h>

/* ---- input and output ---------------------------------------------------------------------------------- */

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
    if (!text) {
        tw_bench_no_memory(rank, strlen(tw_bench_data_describe(data)));
    }
    tw_bench_data_destroy(data);
    return text;
}

static size_t align_up(size_t bytes)
{
    return (bytes + TW_CACHE_LINE_BYTES - 1) / TW_CACHE_LINE_BYTES * TW_CACHE_LINE_BYTES;
}

/** Return the elements of this rank's shard of a tensor; in an all-to-all, of a shard from every rank. */
static size_t share_elems(const run_t *run, size_t tensor)
{
    size_t world = (size_t)run->rank->world;
    size_t shard = tw_coll_shard_elems(tw_bench_data_tensor(run->data, tensor)->n_elems, run->rank->world,
                                       run->rank->rank);
    return run->rank->options->op == TW_COLL_ALLTOALL ? world * shard : shard;
}

/** Place the tensors' shares one after another: set their byte offsets, and return their total size. */
static size_t place_shards(const run_t *run, size_t *offsets)
{
    size_t at = 0, elem_bytes = tw_type_bytes(run->rank->options->type);
    for (size_t t = 0; t < run->n_segments; t++) {
        offsets[t] = at;
        at += align_up(share_elems(run, t) * elem_bytes);
    }
    return at;
}

static void make_segments(run_t *run, const size_t *shards)
{
    tw_coll_op_t op = run->rank->options->op;
    size_t elem_bytes = tw_type_bytes(run->rank->options->type), world = (size_t)run->rank->world;
    for (size_t t = 0; t < run->n_segments; t++) {
        const tw_bench_tensor_t *tensor = tw_bench_data_tensor(run->data, t);
        size_t whole = tensor->offset * elem_bytes;
        run->segments[t] = (tw_coll_segment_t){
            .src = run->src + (op == TW_COLL_ALLGATHER ? shards[t] : whole),
            .dst = run->dst + (op == TW_COLL_REDUCE_SCATTER || op == TW_COLL_ALLTOALL ? shards[t] : whole),
            .n_elems = tensor->n_elems,
            .tensor = (uint32_t)t,
            .row_elems = tensor->row_elems};
        size_t *counts = &run->recv_counts[t * world];
        for (size_t r = 0; r < world && op == TW_COLL_ALLTOALL; r++) {
            counts[r] = share_elems(run, t) / world;
            run->segments[t].recv_counts = counts;
        }
    }
}

/** Fill in this rank's input. */
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
    size_t n_counts = run->n_segments * (size_t)run->rank->world + 1;
    run->recv_counts = calloc(n_counts, sizeof(*run->recv_counts));
    if (!shards || !run->segments || !run->recv_counts) {
        free(shards);
        return tw_bench_no_memory(run->rank, n_counts * (sizeof(*shards) + sizeof(*run->segments)));
    }
    size_t whole = tw_bench_data_buffer_elems(run->data) * tw_type_bytes(run->rank->options->type);
    size_t shard = place_shards(run, shards);
    run->src_bytes = op == TW_COLL_ALLGATHER ? shard : whole;
    run->dst_bytes = op == TW_COLL_REDUCE_SCATTER || op == TW_COLL_ALLTOALL ? shard : whole;
    run->src = tw_buffer_alloc(run->src_bytes);
    run->dst = tw_buffer_alloc(run->dst_bytes);
    if (run->src && run->dst) {
        make_segments(run, shards);
        fill_input(run);
    }
    free(shards);
    return run->src && run->dst ? TW_OK : tw_bench_no_memory(run->rank, run->src_bytes + run->dst_bytes);
}

/** Allocate the buffers of spend_bursts(), if links are shaped. A node's ranks together send 1.25 bursts. */
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
        return tw_bench_no_memory(rank, 2 * bytes);
    }
    run->next[(rank->rank + ahead) % world] = bytes;
    run->previous[(rank->rank + world - ahead) % world] = bytes;
    return TW_OK;
}

/* ---- modes --------------------------------------------------------------------------------------------- */

/** Return the name in --algo if this mode has an algorithm of that name, otherwise NULL. */
static const char *choose_algo(const tw_bench_options_t *options, const tw_quant_codec_t *codec)
{
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; options->algo && (info = tw_bench_algo_get(options, i)); i++) {
        if (info->op == options->op && info->quantized == (codec != NULL) &&
            (!info->lossless_only || tw_quant_form(codec) == TW_QUANT_MESSAGE) &&
            strcmp(info->name, options->algo) == 0) {
            return options->algo;
        }
    }
    return NULL;
}

static void mode_init_args(mode_run_t *m, const run_t *run, tw_quant_kind_t mode)
{
    const tw_bench_options_t *options = run->rank->options;
    const tw_quant_codec_t blocks = {.kind = mode, .block = options->block, .hadamard = options->hadamard};
    tw_quant_form_t form = tw_quant_row_get(mode)->form;
    int quantized = form != TW_QUANT_AS_IS;
    m->codec = form == TW_QUANT_BLOCKS ? blocks : (tw_quant_codec_t){.kind = mode};
    m->inner = blocks;
    m->inner.kind = TW_QUANT_INT8;
    m->args =
        (tw_coll_args_t){.op = options->op,
                         .type = options->type,
                         .segments = run->rank->gpu ? tw_bench_gpu_segments(run->rank->gpu) : run->segments,
                         .n_segments = run->n_segments,
                         .reduction = TW_COLL_MEAN,
                         .codec = quantized ? &m->codec : NULL,
                         .algo = choose_algo(options, quantized ? &m->codec : NULL),
                         .force_codec = options->force,
                         .stream = run->rank->stream};
    if (form == TW_QUANT_BLOCKS && options->inner_int8 && options->op != TW_COLL_ALLGATHER) {
        m->args.inner_codec = &m->inner;
    }
}

void tw_bench_run_cleanup(run_t *run)
{
    for (size_t i = 0; i < TW_QUANT_KINDS; i++) {
        free(run->modes[i].times_us);
    }
    tw_buffer_free(run->src);
    tw_buffer_free(run->dst);
    tw_buffer_free(run->spent);
    free(run->next);
    free(run->previous);
    free(run->segments);
    free(run->recv_counts);
    tw_bench_data_destroy(run->data);
}

tw_status_t tw_bench_run_init(run_t *run, tw_bench_rank_t *rank, size_t bytes)
{
    const tw_bench_options_t *options = rank->options;
    tw_bench_data_params_t params = data_params(options, bytes);
    *run = (run_t){.rank = rank, .bytes = bytes};
    tw_status_t status = tw_bench_data_create(&params, &run->data);
    if (status == TW_OK) {
        run->n_segments = tw_bench_data_count(run->data);
        status = run_init_buffers(run);
    }
    status = status == TW_OK ? run_init_bursts(run) : status;
    if (status == TW_OK && rank->gpu) {
        tw_bench_tensors_t tensors = {run->src,       run->dst,      run->src_bytes,
                                      run->dst_bytes, run->segments, run->n_segments};
        status = tw_bench_gpu_load(rank->gpu, &tensors);
    }
    for (size_t i = 0; i < options->n_modes && status == TW_OK; i++) {
        mode_init_args(&run->modes[i], run, options->modes[i]);
        run->modes[i].times_us = calloc((size_t)options->iters * TW_BENCH_SMALL_MORE, sizeof(double));
        if (!run->modes[i].times_us) {
            status = tw_bench_no_memory(rank, (size_t)options->iters * TW_BENCH_SMALL_MORE * sizeof(double));
        }
    }
    return status;
}
