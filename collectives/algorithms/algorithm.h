/** The table of algorithms.
 *
 *  To add an algorithm, write its flows (flow.h), which say what the shard of an owner goes through, and give
 *  it a row in table.c: its cost and each rank's program are read off them. The world may be 1, and any shard
 *  may be empty. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/ops.h"

TW_C_BEGIN

typedef struct tw_algo {
    tw_coll_algo_info_t info;
    tw_flows_t flows; /**< what the shard of an owner goes through */
    int on_gpu;       /**< 1: for GPU memory, too (gpu/shape.c) */
    int meets;        /**< 1: if nodes have one rank each, every rank sends to all others at the same time */
    /** 1: the bits of a sum depend on which rank owns the element, or on the shape of a tree: unfit for
     *  deterministic operations */
    int owner_matters;
} tw_algo_t;

/** Row `index` of the table of algorithms, plain ones first; NULL past its end. */
const tw_algo_t *tw_algo_get(size_t index);

TW_C_END
