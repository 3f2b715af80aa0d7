/** What an algorithm is, and what an operation in host memory that runs one is made of.
 *
 *  To add an algorithm, say its flows (flow.h), what the shard of an owner goes through, and give it a row in
 *  table.c: its cost and each rank's program are read off them. The world may be 1, and any shard may be
 *  empty.
 *
 *  in and out, as streams of elements (W = topo->world; segments in order within each shard):
 *    all-gather      in: own shard                         out: shard 0, shard 1, ... (out_first)
 *    reduce-scatter  in: shard 0, shard 1, ... (in_first)  out: own shard
 *    all-reduce      in, out: the segments one after the other; in_first, out_first: an even split of that
 *                    into W
 *    broadcast       in, out: as all-reduce, both are dst
 *    all-to-all      in: what goes to rank 0, 1, ...       out: what comes from rank 0, 1, ...
 *  In place, in and out share memory: see in_place and aliased. */
#ifndef TW_COLLECTIVES_ALGORITHMS_ALGORITHM_H
#define TW_COLLECTIVES_ALGORITHMS_ALGORITHM_H

#include "collectives/collectives.h"
#include "collectives/program/ops.h"
#include "collectives/schedule/schedule.h"
#include "collectives/schedule/sums.h"
#include "collectives/topology.h"

TW_C_BEGIN

typedef struct tw_codecs tw_codecs_t;           /* quantized/chunks.h */
typedef struct tw_grid tw_grid_t;               /* likewise */
typedef struct tw_grid_tensor tw_grid_tensor_t; /* likewise */

typedef struct tw_build {
    tw_sched_t *sched;
    const tw_topo_t *topo;
    /** Checked copy; counts (and recv_counts of an all-to-all) are never NULL. No codec: all is plain. */
    const tw_coll_args_t *args;
    const tw_grid_tensor_t *tensors; /**< [n_segments] where they are */
    const tw_view_t *in, *out;       /**< NULL: it goes in chunks of the grid, which has its own */
    size_t *in_first;                /**< [W + 1] where shards begin in `in`; NULL where it is one shard */
    size_t *out_first;               /**< [W + 1] likewise */
    size_t chunk_elems;              /**< a message carries at most so many elements; >= 1 */
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
    tw_flows_t flows; /**< what it does */
    int on_gpu;       /**< 1: it works on GPU memory, too (gpu/shape.c) */
    int meets; /**< 1: where nodes have one rank each, every rank sends to every other one all the time */
    /** 1: the bits of a sum depend on which rank owns the element, or on the shape of a tree: not for
     *  deterministic operations */
    int owner_matters;
} tw_algo_t;

/** Row `index` of the table of algorithms, plain ones first; NULL past its end. */
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

/** Rounds between the hops of a chunk, in a pipeline (schedule.h). */
#define TW_HOP_ROUNDS 2

TW_C_END

#endif
