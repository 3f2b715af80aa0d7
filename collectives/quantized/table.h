/** The quantized algorithms: the second half of the algorithm table. */
#ifndef TW_COLLECTIVES_QUANTIZED_TABLE_H
#define TW_COLLECTIVES_QUANTIZED_TABLE_H

#include "collectives/algorithms/algorithm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Row `index` of the quantized algorithms, NULL past the end. */
const tw_algo_t *tw_quant_algo_get(size_t index);

void tw_allgather_quant_ring_build(const tw_build_t *build);
void tw_allgather_quant_ring_cost(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_allgather_quant_hierarchical_build(const tw_build_t *build);
void tw_allgather_quant_hierarchical_cost(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_allgather_quant_direct_build(const tw_build_t *build);
void tw_allgather_quant_direct_cost(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_reduce_scatter_one_hop_build(const tw_build_t *build);
void tw_reduce_scatter_one_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_reduce_scatter_two_hop_build(const tw_build_t *build);
void tw_reduce_scatter_two_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_allreduce_one_hop_build(const tw_build_t *build);
void tw_allreduce_one_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_allreduce_two_hop_build(const tw_build_t *build);
void tw_allreduce_two_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost);

#ifdef __cplusplus
}
#endif

#endif
