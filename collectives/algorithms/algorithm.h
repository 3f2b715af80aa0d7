/** What an algorithm is and what it gets.
 *
 *  To add one, say its flows (flow.h), what the shard of an owner goes through, and give it a row in
 *  table.c: its cost and each rank's program are read off them. One that is not chunk by chunk of shards
 *  also has a build function: it emits this rank's tasks into build->sched (schedule.h: sends, receives,
 *  computations; sums.h: copies and plain sums), reading build->in and writing build->out. It has no result:
 *  errors stick to the schedule. It runs on every rank with the same arguments (but for pointers), so both
 *  ends of a message derive its size, its chunks and its place in the order from the same numbers. The engine
 *  does the rest: arguments are checked and copied, tasks are run, memory is found, failures are cleaned up,
 *  the world may be 1 and any shard may be empty (spans of 0 elements emit nothing, on either side).
 *
 *  in and out, as streams of elements (W = topo->world; segments in order within each shard):
 *    all-gather      in: own shard                         out: shard 0, shard 1, ... (out_first)
 *    reduce-scatter  in: shard 0, shard 1, ... (in_first)  out: own shard
 *    all-reduce      in, out: the segments one after the other; in_first, out_first: an even split of that
 *                    into W
 *    broadcast       in, out: as all-reduce, both are dst
 *    all-to-all      in: what goes to rank 0, 1, ... (in_first)   out: what comes from rank 0, 1, ...
 *                    (out_first)
 *  In place, in and out share memory: see in_place and aliased. */
#ifndef TW_COLLECTIVES_ALGORITHMS_ALGORITHM_H
#define TW_COLLECTIVES_ALGORITHMS_ALGORITHM_H

#include "collectives/collectives.h"
#include "collectives/program/ops.h"
#include "collectives/schedule/schedule.h"
#include "collectives/schedule/sums.h"
#include "collectives/topology.h"

TW_C_BEGIN

typedef struct tw_codecs tw_codecs_t; /* quantized/chunks.h */
typedef struct tw_grid tw_grid_t;     /* likewise */

typedef struct tw_build {
    tw_sched_t *sched;
    const tw_topo_t *topo;
    /** Checked copy; counts (and recv_counts of an all-to-all) are never NULL. No codec: all is plain. */
    const tw_coll_args_t *args;
    const tw_view_t *in, *out;
    const size_t *in_first;  /**< [W + 1] where each shard begins in `in`; NULL where `in` is one shard */
    const size_t *out_first; /**< [W + 1] likewise */
    size_t chunk_elems;      /**< a message carries at most so many elements; >= 1 */
    /** of what a rank contributes to a sum that travels: 1 / W for a mean whose sums might overflow, else
     *  1 */
    float scale;
    float factor;    /**< of the last step of a reduction, besides scale */
    float limit;     /**< of finite results: see tw_coll_limit */
    int in_place;    /**< every segment lies where it belongs: nothing to copy */
    int aliased;     /**< some segment does: what is written may still have to be read */
    int rounds_sums; /**< quantized all-reduce: a sum is rounded to the type before it is encoded again */
    size_t least_packed_bytes; /**< as in tw_coll_choice_t */
    tw_grid_t *grid;     /**< zeroed; filled by who goes by chunks of it, and the request's to clean up */
    tw_codecs_t *codecs; /**< the communicator's */
} tw_build_t;

typedef struct tw_algo {
    tw_coll_algo_info_t info;
    void (*build)(const tw_build_t *build); /**< NULL: the program of its flows is run */
    tw_flows_t flows;                       /**< what it does */
    int meets; /**< 1: where nodes have one rank each, every rank sends to every other one all the time */
    /** 1: the bits of a sum depend on which rank owns the element, or on the shape of a tree: not for
     *  deterministic operations */
    int owner_matters;
} tw_algo_t;

/** Row `index` of the table of algorithms for host memory, plain ones first; NULL past its end. */
const tw_algo_t *tw_algo_get(size_t index);

/** The chunks of n elements: how many, where one begins, and its length. */
static inline size_t tw_chunk_count(const tw_build_t *build, size_t n_elems)
{
    return (n_elems + build->chunk_elems - 1) / build->chunk_elems;
}

static inline size_t tw_chunk_elems(const tw_build_t *build, size_t n_elems, size_t chunk)
{
    size_t first = chunk * build->chunk_elems;

    return n_elems - first < build->chunk_elems ? n_elems - first : build->chunk_elems;
}

/** Where the rounds of a pipeline of several hops begin (schedule.h): hop h (from 0) of chunk c is in round
 *  c + h * TW_HOP_ROUNDS, so that what a hop sends on came in rounds ago. */
#define TW_HOP_ROUNDS 2

/** 1 and the chunk that hop `hop` has in a round; 0: it has none. */
static inline int tw_hop_chunk(size_t round, int hop, size_t n_chunks, size_t *chunk)
{
    size_t delay = (size_t)hop * TW_HOP_ROUNDS;

    *chunk = round - delay;
    return round >= delay && *chunk < n_chunks;
}

/* Those that are not chunk by chunk of shards: doubling.c (an all-gather, a reduce-scatter, an all-reduce),
 * barrier.c. */
void tw_build_doubling(const tw_build_t *build);
void tw_build_halving(const tw_build_t *build);
void tw_build_halving_doubling(const tw_build_t *build);
void tw_build_barrier(const tw_build_t *build);

TW_C_END

#endif
