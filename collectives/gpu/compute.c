/** Launches a tick's computations. Consecutive computations of one kind share a launch. */
#include <math.h>
#include <stdlib.h>

#include "collectives/gpu/gpu.h"

#define BATCH 64 /**< the most pieces in one call */

/** Computations of one kind, which share a launch. */
typedef struct batch {
    const tw_gpu_call_t *call;
    const tw_gpu_compute_t *like; /**< the first computation */
    tw_stream_t stream;
    tw_quant_segment_t items[BATCH]; /**< source (of a sum: its first input) and target of each piece */
    size_t n, room;
} batch_t;

static const tw_gpu_device_t *device_of(const batch_t *batch)
{
    return batch->call->coll->gpu->device;
}

/** Find the codec of a form. It exists, since it was made with the shape. */
static tw_quant_t *gpu_compute_codec_of(const tw_gpu_call_t *call, const tw_gpu_compute_t *compute,
                                        tw_form_t form)
{
    const tw_gpu_shape_t *shape = call->shape;
    tw_quant_t *codec = NULL;

    if (form == TW_FORM_CODEC) {
        (void)tw_codecs_get(&call->coll->codecs, tw_grid_chunk_codec(&shape->plan.grid, compute->chunk),
                            &codec);
    }
    return form == TW_FORM_INNER ? shape->inner : codec;
}

static tw_grid_walk_t walk_over(const tw_gpu_call_t *call, const tw_gpu_compute_t *compute)
{
    return tw_grid_walk_start(&call->shape->plan.grid, compute->chunk, call->tensors,
                              call->shape->request->args.type);
}

static uint64_t seed_of(const tw_gpu_call_t *call, tw_seed_t seed)
{
    const tw_topo_t *topo = &call->coll->topo;
    int index = seed == TW_SEED_NODE ? topo->node[topo->rank] : topo->rank;

    return tw_qop_seed(seed, call->shape->request->args.op, call->seed, index);
}

static tw_quant_args_t quant_args(const batch_t *batch)
{
    const tw_gpu_call_t *call = batch->call;

    return (tw_quant_args_t){
        .type = call->shape->request->args.type,
        .seed = seed_of(call, batch->like->seed),
        .step = call->step,
        .factor = batch->like->factor,
        .stream = batch->stream,
        .saturate = isfinite(tw_coll_limit(&call->shape->request->args)),
    };
}

/* ---- launches ------------------------------------------------------------------------------------------ */

static tw_status_t launch_codec(const batch_t *batch, tw_type_t type)
{
    tw_quant_args_t args = quant_args(batch);
    int encodes = batch->like->out != TW_FORM_PLAIN;
    tw_quant_t *codec =
        gpu_compute_codec_of(batch->call, batch->like, encodes ? batch->like->out : batch->like->in);

    args.type = type;
    return encodes ? tw_quant_encode(codec, &args, batch->items, batch->n)
                   : tw_quant_decode(codec, &args, batch->items, batch->n);
}

static tw_status_t launch_reduce(const batch_t *batch)
{
    tw_quant_t *in = gpu_compute_codec_of(batch->call, batch->like, batch->like->in);
    tw_quant_reduce_segment_t segments[BATCH];
    tw_quant_args_t args = quant_args(batch);
    size_t n_inputs = (size_t)batch->like->n_inputs;

    for (size_t i = 0; i < batch->n; i++) {
        const tw_quant_segment_t *item = &batch->items[i];
        const void **sources = batch->call->coll->gpu->sources + i * n_inputs;
        for (size_t k = 0; k < n_inputs; k++) {
            sources[k] = (const char *)item->src + k * batch->like->stride;
        }
        segments[i] = (tw_quant_reduce_segment_t){.srcs = sources,
                                                  .n_srcs = n_inputs,
                                                  .dst = item->dst,
                                                  .n_elems = item->n_elems,
                                                  .tensor = item->tensor,
                                                  .first_elem = item->first_elem};
    }
    if (batch->like->out == TW_FORM_PLAIN) {
        return tw_quant_reduce_decode(in, &args, segments, batch->n);
    }
    return tw_quant_reduce_encode(in, gpu_compute_codec_of(batch->call, batch->like, batch->like->out), &args,
                                  segments, batch->n);
}

/** Launch a batch of copies, or of sums of plain inputs. */
static tw_status_t launch_sum(const batch_t *batch)
{
    tw_type_t type = batch->call->shape->request->args.type;
    tw_gpu_sum_segment_t segments[BATCH];
    tw_gpu_sum_t sum = {
        .in = type,
        .out = type,
        .n_inputs = batch->like->n_inputs > 0 ? batch->like->n_inputs : 1,
        .stride = batch->like->stride,
        .factor = batch->like->factor,
        .limit = tw_coll_limit(&batch->call->shape->request->args),
        .segments = segments,
        .n_segments = batch->n,
    };

    for (size_t i = 0; i < batch->n; i++) {
        segments[i] =
            (tw_gpu_sum_segment_t){batch->items[i].src, batch->items[i].dst, batch->items[i].n_elems};
    }
    return device_of(batch)->sum(device_of(batch), &sum, batch->stream);
}

static int is_plain_encode(const tw_gpu_compute_t *compute)
{
    return compute->in == TW_FORM_PLAIN && compute->out != TW_FORM_PLAIN && compute->n_inputs > 0;
}

static tw_status_t flush(batch_t *batch)
{
    const tw_gpu_compute_t *like = batch->like;
    tw_status_t status = TW_OK;

    if (batch->n == 0) {
        return TW_OK;
    }
    if (is_plain_encode(like)) {
        status = launch_codec(batch, TW_TYPE_FP32);
    } else if (like->in == TW_FORM_PLAIN && like->out == TW_FORM_PLAIN) {
        status = launch_sum(batch);
    } else if (like->n_inputs > 0) {
        status = launch_reduce(batch);
    } else {
        status = launch_codec(batch, batch->call->shape->request->args.type);
    }
    batch->n = 0;
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/** Enqueue the packing or unpacking of a chunk. When the tick has ended, the host reads its status and the
 *  message's length in call->outcomes. */
static tw_status_t launch_message(const batch_t *batch, const tw_gpu_compute_t *compute)
{
    const tw_gpu_call_t *call = batch->call;
    const tw_gpu_plan_t *plan = &call->shape->plan;
    const tw_grid_chunk_t *chunk = &plan->grid.chunks[compute->chunk];
    tw_quant_messages_stream_t *packer;
    int packs = compute->out == TW_FORM_PACKED;
    size_t plain = packs ? compute->from : compute->to;
    const tw_quant_stream_args_t on = {
        .stream = batch->stream,
        .workspace = call->packing,
        .workspace_bytes = call->coll->gpu->packing.bytes,
        .host = &call->outcomes[compute->packed + (packs ? 0 : plan->n_cells)],
    };
    tw_status_t status;

    TW_TRY(tw_codecs_messages(&call->coll->codecs, tw_grid_chunk_codec(&plan->grid, compute->chunk),
                              &packer)); /* the shape has made this packer, so this call only finds it */
    tw_quant_message_segment_t *pieces = malloc((chunk->n_pieces + 1) * sizeof(*pieces));
    TW_FAIL_IF(!pieces, TW_ERR_NO_MEMORY, "out of memory for the pieces of a chunk");
    const tw_quant_message_args_t args = {
        .type = call->shape->request->args.type,
        .segments = pieces,
        .n_segments =
            tw_grid_pieces(walk_over(call, compute), plain < TW_GPU_RESULT ? call->workspace + plain : NULL,
                           plain == TW_GPU_USER, pieces),
        .seed = tw_qop_message_seed(seed_of(call, compute->seed), call->step, compute->chunk),
    };
    if (packs) {
        status = tw_quant_messages_stream_encode(
            packer, &on, &args, call->workspace + compute->to,
            tw_quant_bound_bytes(tw_quant_messages_stream_codec(packer), args.type, chunk->n_elems));
    } else {
        const tw_quant_message_t message = {.src = call->workspace + compute->from,
                                            .src_bytes = call->lengths[compute->packed]};
        status = tw_quant_messages_stream_decode(packer, &on, &args, TW_QUANT_SINK_STORE, message);
    }
    free(pieces);
    return status;
}

/* ---- batches ------------------------------------------------------------------------------------------- */

static int is_like(const tw_grid_t *grid, const tw_gpu_compute_t *a, const tw_gpu_compute_t *b)
{
    return grid->chunks[a->chunk].codec == grid->chunks[b->chunk].codec && a->in == b->in &&
           a->out == b->out && a->n_inputs == b->n_inputs && a->factor == b->factor && a->seed == b->seed &&
           a->stride == b->stride;
}

/** Launch the batch so far, and begin a batch of computations like this one. */
static tw_status_t gpu_compute_begin(batch_t *batch, const tw_gpu_compute_t *like)
{
    tw_status_t status = flush(batch);
    size_t fits = like->n_inputs > 0 ? batch->call->coll->gpu->n_sources / (size_t)like->n_inputs : BATCH;

    batch->like = like;
    batch->room = fits < BATCH ? fits : BATCH;
    return status;
}

static tw_status_t add_item(batch_t *batch, const tw_quant_segment_t *item)
{
    tw_status_t status = batch->n == batch->room ? flush(batch) : TW_OK;

    batch->items[batch->n++] = *item;
    return status;
}

/** Add a chunk's pieces. from: the source, if it is in the workspace. from_type: type of a plain source. */
static tw_status_t add_pieces(batch_t *batch, const tw_gpu_compute_t *compute, const char *from,
                              tw_type_t from_type)
{
    const tw_gpu_call_t *call = batch->call;
    tw_grid_walk_t walk = walk_over(call, compute);
    tw_grid_placed_t piece;

    walk.in_type = from_type;
    walk.in = compute->in;
    walk.out = compute->out;
    while (tw_grid_walk_next(&walk, &piece)) {
        if (compute->from == TW_GPU_RESULT) {
            piece.at.src = piece.at.dst;
        } else if (compute->from != TW_GPU_USER) {
            piece.at.src = from + piece.in_at;
        }
        if (compute->to != TW_GPU_USER) {
            piece.at.dst = call->workspace + compute->to + piece.out_at;
        }
        if (piece.at.src == piece.at.dst) { /* the piece is already in its place */
            continue;
        }
        TW_TRY(add_item(batch, &piece.at));
    }
    return TW_OK;
}

/** Launch the sum of plain inputs in fp32, into the room for one chunk at temp_at; add the sum's encoding. */
static tw_status_t add_plain_encode(batch_t *batch, const tw_gpu_compute_t *compute)
{
    const tw_gpu_call_t *call = batch->call;
    const tw_gpu_plan_t *plan = &call->shape->plan;
    char *temp = call->workspace + plan->temp_at;
    tw_gpu_sum_segment_t segment = {call->workspace + compute->from, temp,
                                    plan->grid.chunks[compute->chunk].n_elems};
    tw_gpu_sum_t sum = {
        .in = call->shape->request->args.type,
        .out = TW_TYPE_FP32,
        .n_inputs = compute->n_inputs,
        .stride = compute->stride,
        .factor = compute->factor,
        .limit = INFINITY,
        .segments = &segment,
        .n_segments = 1,
    };
    TW_TRY(flush(batch));
    TW_TRY(device_of(batch)->sum(device_of(batch), &sum, batch->stream));
    return add_pieces(batch, compute, temp, TW_TYPE_FP32);
}

static tw_status_t add_compute(batch_t *batch, const tw_gpu_compute_t *compute)
{
    tw_status_t status = TW_OK;

    if (compute->in == TW_FORM_PACKED || compute->out == TW_FORM_PACKED) {
        TW_TRY(flush(batch));
        return launch_message(batch, compute);
    }
    if (!batch->like || !is_like(&batch->call->shape->plan.grid, batch->like, compute)) {
        status = gpu_compute_begin(batch, compute);
    }
    if (status != TW_OK) {
        return status;
    }
    if (is_plain_encode(compute)) {
        return add_plain_encode(batch, compute);
    }
    return add_pieces(batch, compute,
                      batch->call->workspace + (compute->from >= TW_GPU_RESULT ? 0 : compute->from),
                      batch->call->shape->request->args.type);
}

typedef struct tick_arg {
    tw_gpu_call_t call;
    size_t tick;
} tick_arg_t;

static tw_status_t run_tick(const void *arg, tw_stream_t stream)
{
    const tick_arg_t *args = arg;
    const tw_gpu_plan_t *plan = &args->call.shape->plan;
    const tw_gpu_tick_t *tick = &plan->ticks[args->tick];
    batch_t batch = {.call = &args->call, .stream = stream};
    tw_status_t status = TW_OK;

    for (size_t i = 0; i < tick->n_computes && status == TW_OK; i++) {
        status = add_compute(&batch, &plan->computes[tick->first_compute + i]);
    }
    return status == TW_OK ? flush(&batch) : status;
}

tw_status_t tw_gpu_compute_tick(const tw_gpu_call_t *call, size_t tick, tw_stream_t stream)
{
    const tw_gpu_device_t *device = call->coll->gpu->device;
    tick_arg_t arg = {*call, tick};

    if (call->shape->plan.ticks[tick].n_computes == 0) {
        return TW_OK;
    }
    return device->enqueue(device, run_tick, &arg, sizeof(arg), stream);
}
