/** Shards: an operation seen as one shard per rank, each owned by its rank. What exact algorithms are made of.
 *
 *  Reductions and gathers are phases over the same shards: a reduce-scatter phase turns everybody's `in` of a shard into
 *  the owner's `out`, an all-gather phase turns the owner's `in` into everybody's `out`; an all-reduce is one after the
 *  other. What orders the phases is shard.task, per chunk. */
#ifndef TW_COLLECTIVES_ALGORITHMS_SHARDS_H
#define TW_COLLECTIVES_ALGORITHMS_SHARDS_H

#include "collectives/algorithms/algorithm.h"

TW_C_BEGIN

typedef struct tw_shard {
    tw_span_t in, out;
    size_t n_elems;
    size_t n_chunks;
    /** [n_chunks]
     *  before a reduce-scatter phase: all TW_TASK_NONE
     *  after it: own shard: its `out` is there; others: their `in` is no longer read
     *  before an all-gather phase: own shard: its `in` is there; others: their `out` may be written
     *  after it: others: their `out` is there */
    tw_task_t *task;
    tw_span_t *partial; /**< [n_chunks] for a phase to remember: a sum that travels on */
} tw_shard_t;

/** The shards of an operation: [W] by rank, shard r of `in` and `out` (empty where the view is the own one alone). Lives as long as the schedule; NULL when out of memory: the phases then do nothing. */
tw_shard_t *tw_shards_create(const tw_build_t *build);

/** Between the phases of an all-reduce: what the reduce-scatter left in `out` of the own shard is what is gathered. */
void tw_shards_turn(const tw_build_t *build, tw_shard_t *shards);

/** Most chunks of a shard. */
size_t tw_shards_most_chunks(const tw_build_t *build, const tw_shard_t *shards);

/** Chunk c of shard->in, of shard->out, and its length. */
tw_span_t tw_shard_in(const tw_build_t *build, const tw_shard_t *shard, size_t c);
tw_span_t tw_shard_out(const tw_build_t *build, const tw_shard_t *shard, size_t c);
size_t tw_shard_chunk_bytes(const tw_build_t *build, const tw_shard_t *shard, size_t c);
/** A new scratch buffer for chunk c. */
tw_span_t tw_shard_scratch(const tw_build_t *build, const tw_shard_t *shard, size_t c);

/** A phase, as above. Reduce-scatter phases apply build->factor in their last step. */
typedef void (*tw_phase_t)(const tw_build_t *build, tw_shard_t *shards);

/** Whole operations out of phases. */
void tw_build_allgather(const tw_build_t *build, tw_phase_t gather);
void tw_build_reduce_scatter(const tw_build_t *build, tw_phase_t reduce);
void tw_build_allreduce(const tw_build_t *build, tw_phase_t reduce, tw_phase_t gather);

TW_C_END

#endif
