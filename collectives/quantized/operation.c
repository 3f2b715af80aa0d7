/** Making a quantized operation: where its chunks are, and in which forms. */
#include "collectives/quantized/operation.h"

#include <string.h>

#define SUM_ELEMS ((size_t)8192) /**< of a plain sum at a time, or a frame if that is longer */

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
    size_t shards_bytes = (size_t)grid->n_shards * sizeof(*grid->shards);
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
        tw_grid_unpack_short(&grid, build->least_packed_bytes / op->elem_bytes);
        status = adopt_grid(op, &grid);
        tw_grid_cleanup(&grid);
    }
    return status;
}

/** The shards that are in src, or in dst: not the other ranks' of an all-gather, or of a reduce-scatter; of
 *  an all-to-all, either half. */
static void find_shards(const tw_qop_t *op, const tw_coll_args_t *args, int is_out, int *first, int *end)
{
    tw_coll_op_t own_only = is_out ? TW_COLL_REDUCE_SCATTER : TW_COLL_ALLGATHER;
    int world = op->grid.world;

    *first = args->op == own_only ? op->topo->rank : args->op == TW_COLL_ALLTOALL && is_out ? world : 0;
    *end = args->op == own_only ? op->topo->rank + 1 : *first + world;
}

/** Chunks that are not there get no place in the view. */
static tw_status_t make_view(tw_qop_t *op, const tw_coll_args_t *args, int is_out)
{
    const tw_grid_t *grid = &op->grid;
    tw_qop_view_t *at = is_out ? &op->out : &op->in;
    int first, end;

    at->view = (tw_view_t){.elem_bytes = op->elem_bytes, .max_extents = grid->n_parts};
    at->view.extents = tw_sched_alloc(op->sched, (grid->n_parts + 1) * sizeof(*at->view.extents));
    at->first = tw_sched_alloc(op->sched, (grid->n_chunks + 1) * sizeof(*at->first));
    if (!at->view.extents || !at->first) {
        return TW_ERR_NO_MEMORY;
    }
    find_shards(op, args, is_out, &first, &end);
    size_t last = grid->shards[end - 1].first_chunk + grid->shards[end - 1].n_chunks;
    for (size_t c = grid->shards[first].first_chunk; c < last; c++) {
        tw_qop_walk_t walk = {.grid = grid, .chunk = c, .tensors = op->tensors, .type = args->type};
        tw_qop_part_t part;
        at->first[c] = at->view.n_elems;
        while (tw_qop_walk_next(&walk, &part)) {
            tw_view_append(&at->view, is_out ? part.dst : part.src, part.n_elems);
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

size_t tw_qop_sum_elems(const tw_quant_codec_t *codec)
{
    size_t frame = codec && !codec->lossless ? tw_quant_frame_elems(codec) : 1;

    return frame < SUM_ELEMS ? SUM_ELEMS / frame * frame : frame;
}

static tw_sbuf_t make_work(const tw_qop_t *op)
{
    size_t most = SUM_ELEMS;

    for (size_t k = 0; k < op->grid.n_codecs; k++) {
        size_t n = tw_qop_sum_elems(op->grid.codecs[k]);
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
    op->limit = build->limit;
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
        status = make_view(op, args, 0);
    }
    if (status == TW_OK) {
        status = make_view(op, args, 1);
        op->work = make_work(op);
    }
    if (status != TW_OK) {
        tw_sched_fail(build->sched, status);
        return NULL;
    }
    return op;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

tw_coding_t tw_qop_coding(const tw_qop_t *op, size_t chunk)
{
    const tw_quant_codec_t *codec = tw_grid_chunk_codec(&op->grid, chunk);

    return !codec ? TW_CODING_NONE : codec->lossless ? TW_CODING_LOSSLESS : TW_CODING_BLOCKS;
}

tw_quant_t *tw_qop_codec(const tw_qop_t *op, size_t chunk, tw_form_t form)
{
    int codec = op->grid.chunks[chunk].codec;

    return form == TW_FORM_INNER ? op->inner : form == TW_FORM_CODEC ? op->codecs[codec] : NULL;
}

static size_t bytes_of(const tw_qop_t *op, size_t chunk, tw_form_t form)
{
    const tw_quant_codec_t *codec = form == TW_FORM_PLAIN   ? NULL
                                    : form == TW_FORM_INNER ? tw_quant_codec_get(op->inner)
                                                            : tw_grid_chunk_codec(&op->grid, chunk);

    return tw_grid_chunk_bytes(&op->grid, chunk, codec, op->args.type);
}

tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form)
{
    size_t bytes = bytes_of(op, chunk, form);
    tw_sbuf_t buffer = tw_sched_buffer(op->sched, bytes);

    return form == TW_FORM_PACKED ? tw_span_bound(buffer, bytes) : tw_span_buffer(buffer, 0, bytes);
}

tw_span_t tw_qop_in(const tw_qop_t *op, size_t chunk)
{
    return tw_span_view(&op->in.view, op->in.first[chunk], op->grid.chunks[chunk].n_elems);
}

tw_span_t tw_qop_out(const tw_qop_t *op, size_t chunk)
{
    return tw_span_view(&op->out.view, op->out.first[chunk], op->grid.chunks[chunk].n_elems);
}
