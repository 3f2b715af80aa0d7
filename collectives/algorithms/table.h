/** The table of algorithms, exact ones first. Each algorithm's file exports its rows, which are listed in table.c. */
#ifndef TW_COLLECTIVES_ALGORITHMS_TABLE_H
#define TW_COLLECTIVES_ALGORITHMS_TABLE_H

#include "collectives/algorithms/algorithm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_algo_rows {
    const tw_algo_t *algos; /**< [n] */
    size_t n;
} tw_algo_rows_t;

extern const tw_algo_rows_t tw_ring_rows;
extern const tw_algo_rows_t tw_doubling_rows;
extern const tw_algo_rows_t tw_hierarchical_rows;
extern const tw_algo_rows_t tw_two_hop_rows;
extern const tw_algo_rows_t tw_direct_rows;
extern const tw_algo_rows_t tw_broadcast_rows;
extern const tw_algo_rows_t tw_alltoall_rows;
extern const tw_algo_rows_t tw_barrier_rows;
extern const tw_algo_rows_t tw_quantized_gather_rows;
extern const tw_algo_rows_t tw_quantized_reduce_rows;

/** Row `index` of the table, NULL past its end. */
const tw_algo_t *tw_algo_get(size_t index);

#ifdef __cplusplus
}
#endif

#endif
