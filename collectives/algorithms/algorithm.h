/** The table of algorithms.
 *
 *  To add an algorithm, write its flows (flow.h): the hops through which the shard of one owner goes. Then
 *  add a row to table.c. The algorithm's cost and the program of each rank are derived from its flows. The
 *  flows must work for a world of 1 and for empty shards. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/ops.h"

TW_C_BEGIN

typedef struct tw_algo {
    tw_coll_algo_info_t info;
    tw_flows_t flows; /**< the hops through which an owner's shard goes */
    int on_gpu;       /**< 1: works on GPU memory, too (gpu/shape.c) */
    int meets;        /**< 1: if nodes have one rank each, every rank sends to all others at the same time */
    /** 1: the bits of a sum depend on which rank owns the element, or on the shape of a tree. Deterministic
     *  operations do not use the algorithm. */
    int owner_matters;
} tw_algo_t;

/** Returns row `index` of the table of algorithms, which begins with the plain ones; NULL past the end. */
const tw_algo_t *tw_algo_get(size_t index);
/** Returns 1 if the algorithm, lossless, gives the bits of whatever plain one a deterministic communicator
 *  chooses in its place: it adds nothing up, or in the same order. */
int tw_algo_adds_as_plain(const tw_algo_t *algo, const tw_topo_t *topo);

TW_C_END
