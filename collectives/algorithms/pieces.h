/** Pieces: an operation seen as one piece per rank, each owned by its rank. What exact algorithms are made of.
 *
 *  Reductions and gathers are phases over the same pieces: a reduce-scatter phase turns everybody's `in` of a piece into
 *  the owner's `out`, an all-gather phase turns the owner's `in` into everybody's `out`; an all-reduce is one after the
 *  other. What orders the phases is piece.task, per chunk. */
#ifndef TW_COLLECTIVES_ALGORITHMS_PIECES_H
#define TW_COLLECTIVES_ALGORITHMS_PIECES_H

#include "collectives/algorithms/algorithm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_piece {
    tw_span_t in, out;
    size_t n_elems;
    size_t n_chunks;
    /** [n_chunks]
     *  before a reduce-scatter phase: all TW_TASK_NONE
     *  after it: own piece: its `out` is there; others: their `in` is no longer read
     *  before an all-gather phase: own piece: its `in` is there; others: their `out` may be written
     *  after it: others: their `out` is there */
    tw_task_t *task;
} tw_piece_t;

/** The pieces of an operation: [W] by rank, piece r is shard r of `in` and `out` (its own shard where the view has no
 *  other). Lives as long as the schedule; NULL when out of memory: the phases then do nothing. */
tw_piece_t *tw_pieces_create(const tw_build_t *build);

/** Between the phases of an all-reduce: what the reduce-scatter left in `out` of the own piece is what is gathered. */
void tw_pieces_turn(const tw_build_t *build, tw_piece_t *pieces);

/** Chunk c of piece->in, of piece->out, and its length. */
tw_span_t tw_piece_in(const tw_build_t *build, const tw_piece_t *piece, size_t c);
tw_span_t tw_piece_out(const tw_build_t *build, const tw_piece_t *piece, size_t c);
size_t tw_piece_chunk_bytes(const tw_build_t *build, const tw_piece_t *piece, size_t c);
/** A new scratch buffer for chunk c. */
tw_span_t tw_piece_scratch(const tw_build_t *build, const tw_piece_t *piece, size_t c);

/** A phase, as above. Reduce-scatter phases apply build->factor in their last step. */
typedef void (*tw_phase_t)(const tw_build_t *build, tw_piece_t *pieces);

/** Whole operations out of phases. */
void tw_build_allgather(const tw_build_t *build, tw_phase_t gather);
void tw_build_reduce_scatter(const tw_build_t *build, tw_phase_t reduce);
void tw_build_allreduce(const tw_build_t *build, tw_phase_t reduce, tw_phase_t gather);

#ifdef __cplusplus
}
#endif

#endif
