/** Checks results of collectives against a reference computed in fp64 from the inputs, within the codecs'
 *  stated bounds. */
#pragma once

#include "bench/collectives/data.h"
#include "collectives/collectives.h"

TW_C_BEGIN

/** What is needed to know which result is right. */
typedef struct tw_bench_check_params {
    const tw_bench_data_t *data;
    tw_type_t type;
    tw_coll_op_t op;    /**< all-gather, all-to-all, or a mean by reduce-scatter or all-reduce */
    int from;           /**< all-to-all: the rank that sent the shard */
    const int *node_of; /**< [world] */
    int world;
    const tw_quant_codec_t *codec; /**< NULL: plain */
    int two_hop;                   /**< 1: summed inside the node first, then across nodes */
    const tw_quant_codec_t *inner; /**< two_hop: codec of the hop inside the node; NULL: plain */
} tw_bench_check_params_t;

/** Sums over all that has been checked; the caller zeroes them first. */
typedef struct tw_bench_check_sums {
    double err2, ref2; /**< sums of (result - reference)^2 and of reference^2 */
    double max_abs_err;
    uint64_t n_outside;   /**< how many elements are outside the bound, NaN among them */
    uint64_t n_nonfinite; /**< how many references are NaN or infinite: they have no bound */
} tw_bench_check_sums_t;

/** Check the shard of a tensor that rank `shard` owns, or gets in an all-to-all. `result` has its elements,
 *  of params->type. Blocks start at the shard's first element, as in the collectives. TW_ERR_NO_MEMORY. */
tw_status_t tw_bench_check_shard(const tw_bench_check_params_t *params, size_t tensor, int shard,
                                 const void *result, tw_bench_check_sums_t *sums);

TW_C_END
