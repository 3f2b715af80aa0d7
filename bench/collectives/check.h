/** Compares results with a reference computed in fp64. Errors must be within the codecs' bounds. */
#pragma once

#include "bench/collectives/data.h"
#include "collectives/collectives.h"

TW_C_BEGIN

/** An operation, as far as its result and the error bound depend on it. */
typedef struct tw_bench_check_params {
    const tw_bench_data_t *data;
    tw_type_t type;
    tw_coll_op_t op;    /**< all-gather, all-to-all, or a mean by reduce-scatter or all-reduce */
    int from;           /**< all-to-all: the rank that sent the shard */
    const int *node_of; /**< [world] */
    int world;
    const tw_quant_codec_t *codec; /**< NULL: plain */
    int two_hop;                   /**< 1: sums first inside nodes, then between nodes */
    const tw_quant_codec_t *inner; /**< with two_hop: codec of the hop inside nodes; NULL: plain */
} tw_bench_check_params_t;

/** Sums over all shards that were checked. The caller zeroes them before the first. */
typedef struct tw_bench_check_sums {
    double err2, ref2; /**< sums of (result - reference)^2 and of reference^2 */
    double max_abs_err;
    uint64_t n_outside;   /**< number of results outside the bound; NaN counts */
    uint64_t n_nonfinite; /**< number of references that are NaN or infinite, and so have no bound */
} tw_bench_check_sums_t;

/** Check one shard of a tensor: the one that rank `shard` owns, or in an all-to-all gets from rank
 *  params->from. `result` has the shard's elements, of params->type. Adds to *sums. TW_ERR_NO_MEMORY. */
tw_status_t tw_bench_check_shard(const tw_bench_check_params_t *params, size_t tensor, int shard,
                                 const void *result, tw_bench_check_sums_t *sums);

TW_C_END
