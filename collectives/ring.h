/** Rings: every rank of a group owns one piece; pieces travel from each position to the next, chunk by chunk. */
#ifndef TW_COLLECTIVES_RING_H
#define TW_COLLECTIVES_RING_H

#include "collectives/algo.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The piece of one position. */
typedef struct tw_ring_piece {
    tw_span_t in;  /**< this rank's contribution (view or buffer) */
    tw_span_t out; /**< where the result belongs */
    size_t n_elems;
    tw_task_t *task; /**< [chunks] see the phases below; all TW_TASK_NONE after tw_ring_init */
} tw_ring_piece_t;

typedef struct tw_ring {
    const tw_build_t *build;
    int size, me;           /**< positions, and this rank's */
    const int *ranks;       /**< [size] communicator rank at each position */
    tw_ring_piece_t *piece; /**< [size], or NULL when out of memory: the phases then do nothing */
} tw_ring_t;

/** A ring over `ranks` [size]; this rank is ranks[me]. The caller then describes each piece with tw_ring_set. */
void tw_ring_init(tw_ring_t *ring, const tw_build_t *build, const int *ranks, int size, int me);
void tw_ring_set(tw_ring_t *ring, int position, tw_span_t in, tw_span_t out, size_t n_elems);

/** Emit: piece `me` of every rank's `in` is summed up into this rank's `out` of piece `me`. Partial sums travel in the
 *  tensor's type: each hop rounds once. piece.task before: `in` is there; after: for the own piece, the result is
 *  there; for the others, `in` is no longer read. */
void tw_ring_reduce_scatter(tw_ring_t *ring, float factor);

/** Emit: this rank's own piece goes from its `in` to `out` of that piece on every other rank. piece.task before: for the
 *  own piece, `in` is there; for the others, `out` may be written; after: the piece is there. */
void tw_ring_allgather(tw_ring_t *ring);

/** n elements of a span, from its element `first` on. */
tw_span_t tw_span_elems(tw_span_t span, size_t first, size_t n, size_t elem_bytes);

#ifdef __cplusplus
}
#endif

#endif
