#include "collectives/quantized/operation.h"

#include <math.h>
#include <string.h>

#include "collectives/schedule/run.h"

#define BATCH 16                 /**< parts handed to the codec at once */
#define SUM_ELEMS ((size_t)8192) /**< of an exact sum at a time, or a frame if that is longer */

/* ---- making one ---------------------------------------------------------------------------------------- */

/** Elements of a segment before rank's shard. */
static size_t shard_first(const tw_coll_segment_t *segment, int rank)
{
    size_t first = 0;

    for (int r = 0; r < rank; r++) {
        first += segment->counts[r];
    }
    return first;
}

tw_qop_tensor_t tw_qop_place(const tw_coll_segment_t *segment, tw_coll_op_t op, int rank, size_t elem_bytes)
{
    tw_qop_tensor_t at = {.src = segment->src,
                          .dst = segment->dst,
                          .tensor = segment->tensor,
                          .first_elem = segment->first_elem,
                          .row_elems = segment->row_elems};

    if (op == TW_COLL_ALLGATHER) {
        at.src_first = shard_first(segment, rank);
        at.src = at.src ? at.src : at.dst + at.src_first * elem_bytes;
    } else if (op == TW_COLL_REDUCE_SCATTER) {
        at.dst_first = shard_first(segment, rank);
        at.dst = at.dst ? at.dst : (char *)segment->src + at.dst_first * elem_bytes;
    } else {
        at.src = at.src ? at.src : at.dst;
    }
    return at;
}

/** Where element `first` is if base_first is at base; only a number where there is no such element. */
static char *locate(const char *base, size_t base_first, size_t first, size_t elem_bytes)
{
    return (char *)((uintptr_t)base + (first - base_first) * elem_bytes);
}

int tw_qop_walk_next(tw_qop_walk_t *walk, tw_qop_part_t *part)
{
    const tw_grid_chunk_t *chunk = &walk->grid->chunks[walk->chunk];
    size_t elem_bytes = tw_type_bytes(walk->type);

    if (walk->next == chunk->n_parts) {
        return 0;
    }
    const tw_grid_part_t *at = &walk->grid->parts[chunk->first_part + walk->next++];
    const tw_qop_tensor_t *tensor = &walk->tensors[at->segment];
    *part = (tw_qop_part_t){
        .src = locate(tensor->src, tensor->src_first, at->first, elem_bytes),
        .dst = locate(tensor->dst, tensor->dst_first, at->first, elem_bytes),
        .in_at = walk->in_at,
        .out_at = walk->out_at,
        .n_elems = at->n_elems,
        .tensor = tensor->tensor,
        .first_elem = tensor->first_elem + at->first,
        .row_elems = tensor->row_elems,
    };
    walk->in_at += tw_message_bytes(walk->in, walk->in_type, at->n_elems);
    walk->out_at += tw_message_bytes(walk->out, walk->type, at->n_elems);
    return 1;
}

/** Copy the grid into the schedule's memory. */
static tw_status_t adopt_grid(tw_qop_t *op, const tw_grid_t *grid)
{
    size_t shards_bytes = (size_t)grid->world * sizeof(*grid->shards);
    size_t chunks_bytes = grid->n_chunks * sizeof(*grid->chunks);
    size_t parts_bytes = grid->n_parts * sizeof(*grid->parts);
    size_t codecs_bytes = grid->n_codecs * sizeof(*grid->codecs);

    op->grid = *grid;
    op->grid.shards = tw_sched_alloc(op->sched, shards_bytes);
    op->grid.chunks = tw_sched_alloc(op->sched, chunks_bytes + 1);
    op->grid.parts = tw_sched_alloc(op->sched, parts_bytes + 1);
    op->grid.codecs = tw_sched_alloc(op->sched, codecs_bytes + 1);
    if (!op->grid.shards || !op->grid.chunks || !op->grid.parts || !op->grid.codecs) {
        return TW_ERR_NO_MEMORY;
    }
    memcpy(op->grid.shards, grid->shards, shards_bytes);
    memcpy((void *)op->grid.codecs, grid->codecs, codecs_bytes);
    if (grid->n_chunks > 0) {
        memcpy(op->grid.chunks, grid->chunks, chunks_bytes);
        memcpy(op->grid.parts, grid->parts, parts_bytes);
    }
    return TW_OK;
}

static tw_status_t make_grid(tw_qop_t *op, const tw_build_t *build)
{
    tw_grid_t grid;
    tw_status_t status =
        tw_grid_init(&grid, build->args, build->topo->world, build->chunk_elems * op->elem_bytes);

    if (status == TW_OK) {
        status = adopt_grid(op, &grid);
        tw_grid_cleanup(&grid);
    }
    return status;
}

/** src of an all-gather holds one shard only; the others' chunks get no place in the view. */
static tw_status_t make_plain_view(tw_qop_t *op, const tw_coll_args_t *args)
{
    const tw_grid_t *grid = &op->grid;

    op->plain = (tw_view_t){.elem_bytes = op->elem_bytes, .max_extents = grid->n_parts};
    op->plain.extents = tw_sched_alloc(op->sched, (grid->n_parts + 1) * sizeof(*op->plain.extents));
    op->plain_first = tw_sched_alloc(op->sched, (grid->n_chunks + 1) * sizeof(*op->plain_first));
    if (!op->plain.extents || !op->plain_first) {
        return TW_ERR_NO_MEMORY;
    }
    if (args->op == TW_COLL_ALLGATHER) {
        return TW_OK;
    }
    for (size_t c = 0; c < grid->n_chunks; c++) {
        tw_qop_walk_t walk = {.grid = grid, .chunk = c, .tensors = op->tensors, .type = args->type};
        tw_qop_part_t part;
        op->plain_first[c] = op->plain.n_elems;
        while (tw_qop_walk_next(&walk, &part)) {
            tw_view_append(&op->plain, part.src, part.n_elems);
        }
    }
    return TW_OK;
}

static tw_status_t get_codecs(tw_qop_t *op, const tw_build_t *build)
{
    op->codecs = tw_sched_alloc(op->sched, (op->grid.n_codecs + 1) * sizeof(*op->codecs));
    if (!op->codecs) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t k = 0; k < op->grid.n_codecs; k++) {
        if (op->grid.codecs[k]->lossless) {
            TW_TRY(tw_codecs_lossless(build->codecs, &op->lossless));
        } else {
            TW_TRY(tw_codecs_get(build->codecs, op->grid.codecs[k], &op->codecs[k]));
        }
    }
    if (build->args->inner_codec) {
        TW_TRY(tw_codecs_get(build->codecs, build->args->inner_codec, &op->inner));
    }
    return TW_OK;
}

/** Seeds of different contributions have nothing in common (the finalizer of splitmix64). */
static uint64_t mix_seed(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t tw_qop_rank_seed(tw_coll_op_t op, uint64_t seed, int rank)
{
    return op == TW_COLL_ALLGATHER ? seed : mix_seed(seed, 2 * (uint64_t)rank);
}

uint64_t tw_qop_node_seed(uint64_t seed, int node)
{
    return mix_seed(seed, 2 * (uint64_t)node + 1);
}

/** Elements of an exact chunk, or one encoded with `codec`, that are summed up at a time: whole frames. */
static size_t sum_elems(const tw_quant_codec_t *codec)
{
    size_t frame = codec && !codec->lossless ? tw_quant_frame_elems(codec) : 1;

    return frame < SUM_ELEMS ? SUM_ELEMS / frame * frame : frame;
}

static tw_sbuf_t make_work(const tw_qop_t *op)
{
    size_t most = sum_elems(NULL);

    for (size_t k = 0; k < op->grid.n_codecs; k++) {
        size_t n = sum_elems(op->grid.codecs[k]);
        most = n > most ? n : most;
    }
    return tw_sched_buffer(op->sched, most * sizeof(float));
}

tw_qop_t *tw_qop_create(const tw_build_t *build)
{
    const tw_coll_args_t *args = build->args;
    tw_qop_t *op = tw_sched_alloc(build->sched, sizeof(*op));
    tw_qop_tensor_t *tensors = tw_sched_alloc(build->sched, (args->n_segments + 1) * sizeof(*tensors));

    if (!op || !tensors) {
        return NULL;
    }
    op->sched = build->sched;
    op->topo = build->topo;
    op->tensors = tensors;
    op->elem_bytes = tw_type_bytes(args->type);
    op->args = (tw_quant_args_t){.type = args->type, .seed = args->seed, .step = args->step, .factor = 1};
    op->scale = build->scale;
    op->rest = build->factor;
    op->factor = build->scale * build->factor;
    op->limit = build->limit;
    op->rounds_sums = build->rounds_sums;
    op->least_packed_bytes = build->least_packed_bytes;
    op->own_seed = tw_qop_rank_seed(args->op, args->seed, op->topo->rank);
    op->node_seed = tw_qop_node_seed(args->seed, op->topo->node[op->topo->rank]);
    for (size_t s = 0; s < args->n_segments; s++) {
        tensors[s] = tw_qop_place(&args->segments[s], args->op, build->topo->rank, op->elem_bytes);
    }
    tw_status_t status = make_grid(op, build);
    if (status == TW_OK) {
        status = get_codecs(op, build);
    }
    if (status == TW_OK) {
        status = make_plain_view(op, args);
        op->work = make_work(op);
    }
    if (status != TW_OK) {
        tw_sched_fail(build->sched, status);
        return NULL;
    }
    return op;
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

tw_quant_t *tw_qop_codec(const tw_qop_t *op, size_t chunk)
{
    int codec = op->grid.chunks[chunk].codec;

    return codec == TW_GRID_EXACT ? NULL : op->codecs[codec];
}

tw_quant_t *tw_qop_inner(const tw_qop_t *op, size_t chunk)
{
    return !tw_grid_codec(&op->grid, chunk) ? NULL : op->inner;
}

int tw_qop_is_lossless(const tw_qop_t *op, size_t chunk)
{
    const tw_quant_codec_t *codec = tw_grid_chunk_codec(&op->grid, chunk);

    return codec && codec->lossless;
}

int tw_qop_is_packed(const tw_qop_t *op, size_t chunk, int peer)
{
    const tw_topo_t *topo = op->topo;

    return tw_qop_is_lossless(op, chunk) && topo->node[peer] != topo->node[topo->rank];
}

static size_t chunk_bytes(const tw_qop_t *op, size_t chunk, const tw_quant_t *codec)
{
    return tw_grid_chunk_bytes(&op->grid, chunk, codec ? tw_quant_codec_get(codec) : NULL, op->args.type);
}

tw_sbuf_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, const tw_quant_t *codec)
{
    return tw_sched_buffer(op->sched, chunk_bytes(op, chunk, codec));
}

tw_span_t tw_qop_span(const tw_qop_t *op, size_t chunk, const tw_quant_t *codec, tw_sbuf_t buffer)
{
    return tw_span_buffer(buffer, 0, chunk_bytes(op, chunk, codec));
}

static size_t message_bytes(const tw_qop_t *op, size_t chunk)
{
    return tw_grid_chunk_bytes(&op->grid, chunk, tw_grid_chunk_codec(&op->grid, chunk), op->args.type);
}

tw_sbuf_t tw_qop_message_buffer(const tw_qop_t *op, size_t chunk)
{
    return tw_sched_buffer(op->sched, message_bytes(op, chunk));
}

tw_span_t tw_qop_message_span(const tw_qop_t *op, size_t chunk, tw_sbuf_t buffer)
{
    size_t bytes = message_bytes(op, chunk);

    return tw_qop_is_lossless(op, chunk) ? tw_span_bound(buffer, bytes) : tw_span_buffer(buffer, 0, bytes);
}

tw_span_t tw_qop_plain_span(const tw_qop_t *op, size_t chunk)
{
    return tw_span_view(&op->plain, op->plain_first[chunk], op->grid.chunks[chunk].n_elems);
}

/* ---- computations -------------------------------------------------------------------------------------- */

typedef struct qop_task {
    const tw_qop_t *op;
    size_t chunk;
    tw_quant_t *codec; /**< of what is read, or of what encode writes */
    float factor;
    uint64_t seed;
    int from_dst; /**< encode reads dst in place of src */
    tw_sbuf_t to;
    tw_sbuf_t work; /**< exact sum: fp32 */
    int n_from;
    tw_sbuf_t from[];
} qop_task_t;

static qop_task_t *new_task(const tw_qop_t *op, size_t chunk, tw_quant_t *codec, int n_from)
{
    qop_task_t *task = tw_sched_alloc(op->sched, sizeof(*task) + (size_t)n_from * sizeof(task->from[0]));

    if (task) {
        task->op = op;
        task->chunk = chunk;
        task->codec = codec;
        task->factor = 1;
        task->seed = op->own_seed;
        task->to = task->work = TW_SBUF_NONE;
        task->n_from = n_from;
    }
    return task;
}

static tw_task_t emit_task(tw_compute_fn_t fn, const qop_task_t *task)
{
    tw_task_t index = tw_sched_compute(task->op->sched, fn, task);

    for (int i = 0; i < task->n_from; i++) {
        tw_sched_use(task->op->sched, index, task->from[i]);
    }
    tw_sched_use(task->op->sched, index, task->to);
    tw_sched_use(task->op->sched, index, task->work);
    return index;
}

static char *buffer_at(tw_sched_t *sched, tw_sbuf_t buffer)
{
    return tw_sched_at(sched, tw_span_buffer(buffer, 0, 0), NULL);
}

/** in, out: how the chunk is in the messages that are read and written. */
static tw_qop_walk_t start_walk(const qop_task_t *task, const tw_quant_codec_t *in,
                                const tw_quant_codec_t *out)
{
    const tw_qop_t *op = task->op;

    return (tw_qop_walk_t){
        .grid = &op->grid,
        .chunk = task->chunk,
        .tensors = op->tensors,
        .type = op->args.type,
        .in_type = op->args.type,
        .in = in,
        .out = out,
    };
}

/** encode: src -> to; decode: from[0] -> dst; a batch of parts at a time. */
static tw_status_t run_codec(tw_sched_t *sched, const qop_task_t *task, int decode)
{
    const tw_quant_codec_t *codec = tw_quant_codec_get(task->codec);
    tw_qop_walk_t walk = start_walk(task, codec, codec);
    char *message = buffer_at(sched, decode ? task->from[0] : task->to);
    tw_status_t status = message ? TW_OK : TW_ERR_NO_MEMORY;
    tw_quant_args_t args = task->op->args;
    tw_quant_segment_t batch[BATCH];
    tw_qop_part_t part;
    size_t n = BATCH;

    args.seed = task->seed;
    while (status == TW_OK && n == BATCH) {
        for (n = 0; n < BATCH && tw_qop_walk_next(&walk, &part); n++) {
            const char *src = task->from_dst ? part.dst : part.src;
            batch[n] = (tw_quant_segment_t){
                .src = decode ? message + part.in_at : src,
                .dst = decode ? part.dst : message + part.out_at,
                .n_elems = part.n_elems,
                .tensor = part.tensor,
                .first_elem = part.first_elem,
            };
        }
        status = decode ? tw_quant_decode(task->codec, &args, batch, n)
                        : tw_quant_encode(task->codec, &args, batch, n);
    }
    return status;
}

static tw_status_t run_encode(tw_sched_t *sched, const void *arg)
{
    return run_codec(sched, arg, 0);
}

static tw_status_t run_decode(tw_sched_t *sched, const void *arg)
{
    return run_codec(sched, arg, 1);
}

/** An exact chunk: src -> to, or from[0] -> dst. */
static tw_status_t run_copy(tw_sched_t *sched, const void *arg)
{
    const qop_task_t *task = arg;
    tw_qop_walk_t walk = start_walk(task, NULL, NULL);
    int packs = task->to != TW_SBUF_NONE;
    char *message = buffer_at(sched, packs ? task->to : task->from[0]);
    tw_qop_part_t part;

    while (message && tw_qop_walk_next(&walk, &part)) {
        memcpy(packs ? message + part.out_at : part.dst, packs ? part.src : message + part.in_at,
               part.n_elems * task->op->elem_bytes);
    }
    return message ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_task_t tw_qop_encode(const tw_qop_t *op, size_t chunk, tw_quant_t *codec, tw_sbuf_t to)
{
    qop_task_t *task = new_task(op, chunk, codec, !codec);

    if (!task) {
        return TW_TASK_NONE;
    }
    task->to = to;
    if (codec) {
        return emit_task(run_encode, task);
    }
    task->from[0] = TW_SBUF_NONE;
    return emit_task(run_copy, task);
}

/** src -> dst of an exact chunk, or of a lossless one; nothing where they are the same. */
static tw_status_t run_keep(tw_sched_t *sched, const void *arg)
{
    const qop_task_t *task = arg;
    tw_qop_walk_t walk = start_walk(task, NULL, NULL);
    tw_qop_part_t part;

    (void)sched;
    while (tw_qop_walk_next(&walk, &part)) {
        if (part.dst != part.src) {
            memcpy(part.dst, part.src, part.n_elems * task->op->elem_bytes);
        }
    }
    return TW_OK;
}

tw_task_t tw_qop_keep(const tw_qop_t *op, size_t chunk)
{
    const qop_task_t *task = new_task(op, chunk, NULL, 0);

    return task ? emit_task(run_keep, task) : TW_TASK_NONE;
}

/* ---- lossless messages --------------------------------------------------------------------------------- */

/** Where a lossless chunk is, in as few pieces as it lies in. */
typedef struct pack_task {
    const tw_qop_t *op;
    size_t chunk;
    tw_sbuf_t plain; /**< TW_SBUF_NONE: in the tensors */
    tw_sbuf_t message;
    int at_dst;                          /**< in the tensors: dst, else src */
    tw_quant_lossless_segment_t *pieces; /**< [parts of the chunk] */
} pack_task_t;

/** The parts of a chunk; in a buffer they follow each other. */
static size_t find_pieces(tw_sched_t *sched, const pack_task_t *task)
{
    const tw_qop_t *op = task->op;
    char *plain = task->plain != TW_SBUF_NONE ? buffer_at(sched, task->plain) : NULL;
    tw_qop_walk_t walk = {.grid = &op->grid,
                          .chunk = task->chunk,
                          .tensors = op->tensors,
                          .type = op->args.type,
                          .in_type = op->args.type};
    tw_qop_part_t part;
    size_t n = 0;

    while (tw_qop_walk_next(&walk, &part)) {
        task->pieces[n++] = (tw_quant_lossless_segment_t){
            .src = plain          ? plain + part.in_at
                   : task->at_dst ? part.dst
                                  : part.src,
            .dst = plain ? plain + part.in_at : part.dst,
            .n_elems = part.n_elems,
            .row_elems = part.row_elems,
            .first_elem = part.first_elem,
        };
    }
    return n;
}

static tw_status_t run_pack(tw_sched_t *sched, const void *arg)
{
    const pack_task_t *task = arg;
    const tw_qop_t *op = task->op;
    char *message = buffer_at(sched, task->message);
    size_t bytes, n = find_pieces(sched, task), room = message_bytes(op, task->chunk);
    int is_short = op->grid.chunks[task->chunk].n_elems * op->elem_bytes < op->least_packed_bytes;

    if (!message) {
        return TW_ERR_NO_MEMORY;
    }
    TW_TRY(is_short ? tw_quant_lossless_encode_plain(op->lossless, op->args.type, task->pieces, n, message,
                                                     room, &bytes)
                    : tw_quant_lossless_encode(op->lossless, op->args.type, task->pieces, n, message, room,
                                               &bytes));
    tw_sched_fill(sched, task->message, bytes);
    return TW_OK;
}

static tw_status_t run_unpack(tw_sched_t *sched, const void *arg)
{
    const pack_task_t *task = arg;
    char *message = buffer_at(sched, task->message);
    size_t n = find_pieces(sched, task);

    return !message ? TW_ERR_NO_MEMORY
                    : tw_quant_lossless_decode(task->op->lossless, task->op->args.type, task->pieces, n,
                                               message, tw_sched_filled(sched, task->message));
}

static tw_task_t emit_pack(const tw_qop_t *op, tw_compute_fn_t run, const pack_task_t *what)
{
    size_t n_parts = op->grid.chunks[what->chunk].n_parts;
    pack_task_t *task = tw_sched_alloc(op->sched, sizeof(*task));

    if (!task) {
        return TW_TASK_NONE;
    }
    *task = *what;
    task->op = op;
    task->pieces = tw_sched_alloc(op->sched, n_parts * sizeof(*task->pieces));
    if (!task->pieces) {
        return TW_TASK_NONE;
    }
    tw_task_t index = tw_sched_compute(op->sched, run, task);
    tw_sched_use(op->sched, index, task->plain);
    tw_sched_use(op->sched, index, task->message);
    return index;
}

tw_task_t tw_qop_pack(const tw_qop_t *op, size_t chunk, tw_sbuf_t from, tw_sbuf_t to)
{
    return emit_pack(op, run_pack, &(pack_task_t){.chunk = chunk, .plain = from, .message = to});
}

tw_task_t tw_qop_unpack(const tw_qop_t *op, size_t chunk, tw_sbuf_t from, tw_sbuf_t to)
{
    return emit_pack(op, run_unpack, &(pack_task_t){.chunk = chunk, .plain = to, .message = from});
}

tw_task_t tw_qop_encode_message(const tw_qop_t *op, size_t chunk, tw_sbuf_t to)
{
    return tw_qop_is_lossless(op, chunk) ? tw_qop_pack(op, chunk, TW_SBUF_NONE, to)
                                         : tw_qop_encode(op, chunk, tw_qop_codec(op, chunk), to);
}

tw_task_t tw_qop_encode_result(const tw_qop_t *op, size_t chunk, tw_sbuf_t to)
{
    if (tw_qop_is_lossless(op, chunk)) {
        const pack_task_t from_dst = {.chunk = chunk, .plain = TW_SBUF_NONE, .message = to, .at_dst = 1};
        return emit_pack(op, run_pack, &from_dst);
    }
    qop_task_t *task = new_task(op, chunk, tw_qop_codec(op, chunk), 0);

    if (!task) {
        return TW_TASK_NONE;
    }
    task->to = to;
    task->seed = op->args.seed;
    task->from_dst = 1;
    return emit_task(run_encode, task);
}

tw_task_t tw_qop_decode(const tw_qop_t *op, size_t chunk, tw_sbuf_t from)
{
    if (tw_qop_is_lossless(op, chunk)) {
        return tw_qop_unpack(op, chunk, from, TW_SBUF_NONE);
    }
    qop_task_t *task = new_task(op, chunk, tw_qop_codec(op, chunk), 1);

    if (!task) {
        return TW_TASK_NONE;
    }
    task->from[0] = from;
    return emit_task(task->codec ? run_decode : run_copy, task);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

/** Encoded inputs -> to, or dst if there is no `to`. */
static tw_status_t run_sum_encoded(tw_sched_t *sched, const void *arg)
{
    const qop_task_t *task = arg;
    tw_quant_t *out = tw_qop_codec(task->op, task->chunk);
    tw_qop_walk_t walk = start_walk(task, tw_quant_codec_get(task->codec), tw_quant_codec_get(out));
    const void *srcs[task->n_from];
    const char *inputs[task->n_from];
    tw_quant_args_t args = task->op->args;
    char *to = task->to != TW_SBUF_NONE ? buffer_at(sched, task->to) : NULL;
    tw_status_t status = task->to != TW_SBUF_NONE && !to ? TW_ERR_NO_MEMORY : TW_OK;
    tw_qop_part_t part;

    args.factor = task->factor;
    args.seed = task->seed;
    args.saturate = isfinite(task->op->limit);
    for (int i = 0; i < task->n_from; i++) {
        inputs[i] = buffer_at(sched, task->from[i]);
        status = inputs[i] ? status : TW_ERR_NO_MEMORY;
    }
    while (status == TW_OK && tw_qop_walk_next(&walk, &part)) {
        tw_quant_reduce_segment_t segment = {
            .srcs = srcs,
            .n_srcs = (size_t)task->n_from,
            .dst = to ? to + part.out_at : part.dst,
            .n_elems = part.n_elems,
            .tensor = part.tensor,
            .first_elem = part.first_elem,
        };
        for (int i = 0; i < task->n_from; i++) {
            srcs[i] = inputs[i] + part.in_at;
        }
        status = to ? tw_quant_reduce_encode(task->codec, out, &args, &segment, 1)
                    : tw_quant_reduce_decode(task->codec, &args, &segment, 1);
    }
    return status;
}

/** acc = the sum of n elements: of src, and of the inputs' messages from byte `at` on. */
static void sum_plain(tw_sched_t *sched, const qop_task_t *task, const char *src, size_t at, size_t n,
                      float *acc)
{
    for (int i = 0; i < task->n_from; i++) {
        const char *input = task->from[i] != TW_SBUF_NONE ? buffer_at(sched, task->from[i]) + at : src;
        if (i == 0) {
            tw_convert_to_fp32(task->op->args.type, input, acc, n);
        } else {
            tw_convert_add_fp32(task->op->args.type, input, acc, n);
        }
    }
}

/** Elements whose sum is in acc -> `to`, encoded if the chunk is. */
static tw_status_t put_sum(const qop_task_t *task, const tw_qop_part_t *elems, float *acc, char *to)
{
    tw_quant_t *codec = tw_qop_codec(task->op, task->chunk);
    tw_quant_args_t args = task->op->args;
    tw_quant_segment_t segment = {
        .src = acc,
        .dst = to,
        .n_elems = elems->n_elems,
        .tensor = elems->tensor,
        .first_elem = elems->first_elem,
    };

    if (!codec) {
        tw_sum_round(args.type, acc, elems->n_elems, task->factor, task->op->limit, to);
        return TW_OK;
    }
    for (size_t i = 0; task->factor != 1 && i < elems->n_elems; i++) {
        acc[i] *= task->factor;
    }
    args.type = TW_TYPE_FP32;
    args.seed = task->seed;
    return tw_quant_encode(codec, &args, &segment, 1);
}

/** Inputs as they are -> to, or dst if there is no `to`; a long part in pieces of whole frames. */
static tw_status_t run_sum_plain(tw_sched_t *sched, const void *arg)
{
    const qop_task_t *task = arg;
    const tw_quant_codec_t *codec = tw_grid_codec(&task->op->grid, task->chunk);
    tw_qop_walk_t walk = start_walk(task, NULL, codec);
    char *to = task->to != TW_SBUF_NONE ? buffer_at(sched, task->to) : NULL;
    float *acc = (float *)(void *)buffer_at(sched, task->work);
    size_t step = sum_elems(codec), elem_bytes = task->op->elem_bytes;
    tw_status_t status = (to || task->to == TW_SBUF_NONE) && acc ? TW_OK : TW_ERR_NO_MEMORY;
    tw_qop_part_t part;

    while (status == TW_OK && tw_qop_walk_next(&walk, &part)) {
        char *out = to ? to + part.out_at : part.dst;
        for (size_t at = 0; at < part.n_elems && status == TW_OK; at += step) {
            tw_qop_part_t elems = part;
            elems.n_elems = part.n_elems - at < step ? part.n_elems - at : step;
            elems.first_elem += at;
            sum_plain(sched, task, part.src + at * elem_bytes, part.in_at + at * elem_bytes, elems.n_elems,
                      acc);
            status = put_sum(task, &elems, acc, out + tw_message_bytes(codec, walk.type, at));
        }
    }
    return status;
}

static tw_task_t emit_sum(const tw_qop_t *op, const tw_qop_sum_t *sum, tw_sbuf_t to)
{
    qop_task_t *task = new_task(op, sum->chunk, sum->codec, sum->n_from);

    if (!task) {
        return TW_TASK_NONE;
    }
    memcpy(task->from, sum->from, (size_t)sum->n_from * sizeof(*sum->from));
    task->factor = sum->factor;
    task->seed = sum->seed;
    task->to = to;
    if (sum->codec) {
        return emit_task(run_sum_encoded, task);
    }
    task->work = op->work;
    return emit_task(run_sum_plain, task);
}

tw_task_t tw_qop_sum_encode(const tw_qop_t *op, const tw_qop_sum_t *sum, tw_sbuf_t to)
{
    return emit_sum(op, sum, to);
}

tw_task_t tw_qop_sum_decode(const tw_qop_t *op, const tw_qop_sum_t *sum)
{
    return emit_sum(op, sum, TW_SBUF_NONE);
}
