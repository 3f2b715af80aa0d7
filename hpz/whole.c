/** Fills in the arguments of operations between primary parts and whole units, over all ranks. */
#include <string.h>

#include "hpz/state.h"

/** Return 1 if the pieces of each tensor are in rank order, as with one rank per node or a single node. Then
 *  a tensor is one segment. Otherwise each piece is a segment that belongs to one rank. */
static int is_rank_major(const tw_hpz_t *hpz)
{
    return hpz->n_nodes == 1 || hpz->ranks_per_node == 1;
}

/* The two buffers of an operation. */
typedef struct {
    tw_type_t type;
    char *part, *full;
    int gathers;
} buffers_t;

tw_hpz_piece_t tw_hpz_piece_of_rank(const tw_hpz_t *hpz, size_t tensor, int rank)
{
    return tw_hpz_primary_piece(hpz->layout, tensor, tw_hpz_node_of(hpz, rank), tw_hpz_local_of(hpz, rank));
}

static tw_coll_segment_t segment_of(const tw_hpz_t *hpz, size_t tensor, const buffers_t *buffers,
                                    size_t full_offset, const char *part)
{
    char *full = buffers->full + full_offset * tw_type_bytes(buffers->type);
    const tw_hpz_tensor_t *what = &hpz->params.tensors[tensor];
    tw_coll_segment_t segment = {
        .tensor = (uint32_t)tensor, .unquantized = what->unquantized, .row_elems = what->row_elems};
    segment.src = buffers->gathers ? part : full;
    segment.dst = buffers->gathers ? full : (char *)part;
    return segment;
}

/** Add a tensor as one segment with a piece for each rank. */
static size_t whole_tensor(const tw_hpz_t *hpz, size_t tensor, const buffers_t *buffers,
                           tw_coll_segment_t *segments, size_t *counts)
{
    tw_hpz_piece_t full = tw_hpz_full_piece(hpz->layout, tensor);
    tw_hpz_piece_t mine = tw_hpz_piece_of_rank(hpz, tensor, hpz->rank);
    *segments = segment_of(hpz, tensor, buffers, full.offset,
                           buffers->part + mine.offset * tw_type_bytes(buffers->type));
    segments->n_elems = full.n_elems;
    segments->counts = counts;
    for (int r = 0; r < hpz->world; r++) {
        counts[r] = tw_hpz_piece_of_rank(hpz, tensor, r).n_elems;
    }
    return 1;
}

/** Add a segment with the piece of one rank. */
static void one_piece(const tw_hpz_t *hpz, size_t tensor, int rank, tw_hpz_piece_t piece,
                      const buffers_t *buffers, size_t full_offset, tw_coll_segment_t *segment,
                      size_t *counts)
{
    const char *part = buffers->part + piece.offset * tw_type_bytes(buffers->type);
    *segment = segment_of(hpz, tensor, buffers, full_offset, rank == hpz->rank ? part : NULL);
    segment->n_elems = piece.n_elems;
    segment->first_elem = piece.first;
    segment->counts = counts;
    memset(counts, 0, (size_t)hpz->world * sizeof(*counts));
    counts[rank] = piece.n_elems;
}

/** Add a tensor as a segment for each rank that has a piece of it. */
static size_t piece_by_piece(const tw_hpz_t *hpz, size_t tensor, const buffers_t *buffers,
                             tw_coll_segment_t *segments, size_t *counts)
{
    size_t n = 0, start = tw_hpz_full_piece(hpz->layout, tensor).offset;
    for (int r = 0; r < hpz->world; r++) {
        tw_hpz_piece_t piece = tw_hpz_piece_of_rank(hpz, tensor, r);
        if (piece.n_elems > 0) {
            one_piece(hpz, tensor, r, piece, buffers, start + piece.first, &segments[n],
                      counts + n * (size_t)hpz->world);
            n++;
        }
    }
    return n;
}

static void unit_args(tw_hpz_t *hpz, int unit, const buffers_t *buffers, tw_coll_args_t *args)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), n = 0;
    for (size_t t = first; t < first + n_tensors; t++) {
        tw_coll_segment_t *segments = hpz->segments + n;
        size_t *counts = hpz->counts + n * (size_t)hpz->world;
        n += is_rank_major(hpz) ? whole_tensor(hpz, t, buffers, segments, counts)
                                : piece_by_piece(hpz, t, buffers, segments, counts);
    }
    *args = (tw_coll_args_t){.op = buffers->gathers ? TW_COLL_ALLGATHER : TW_COLL_REDUCE_SCATTER,
                             .type = buffers->type,
                             .segments = hpz->segments,
                             .n_segments = n};
}

void tw_hpz_gather_args(tw_hpz_t *hpz, int unit, tw_type_t type, const void *part, void *full,
                        tw_coll_args_t *args)
{
    buffers_t buffers = {.type = type, .part = (char *)part, .full = full, .gathers = 1};
    unit_args(hpz, unit, &buffers, args);
}

void tw_hpz_reduce_args(tw_hpz_t *hpz, int unit, tw_type_t type, const void *full, void *part,
                        tw_coll_args_t *args)
{
    buffers_t buffers = {.type = type, .part = part, .full = (char *)full, .gathers = 0};
    unit_args(hpz, unit, &buffers, args);
}

void tw_hpz_reduce_slice_args(tw_hpz_t *hpz, int unit, tw_hpz_slice_t slice, tw_type_t type,
                              const void *staged, void *part, tw_coll_args_t *args)
{
    buffers_t buffers = {.type = type, .part = part, .full = (char *)staged, .gathers = 0};
    size_t first, n_tensors = tw_hpz_layout_tensors(hpz->layout, unit, &first), n = 0, at = 0;
    for (size_t i = 0; i < n_tensors * (size_t)hpz->world; i++) {
        size_t tensor = first + i / (size_t)hpz->world;
        int rank = (int)(i % (size_t)hpz->world);
        tw_hpz_piece_t piece = tw_hpz_slice_piece(hpz->layout, tensor, tw_hpz_node_of(hpz, rank),
                                                  tw_hpz_local_of(hpz, rank), slice);
        if (piece.n_elems > 0) {
            one_piece(hpz, tensor, rank, piece, &buffers, at, &hpz->segments[n],
                      hpz->counts + n * (size_t)hpz->world);
            at += piece.n_elems;
            n++;
        }
    }
    *args = (tw_coll_args_t){
        .op = TW_COLL_REDUCE_SCATTER, .type = type, .segments = hpz->segments, .n_segments = n};
}
