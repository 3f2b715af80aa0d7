/** The table of algorithms, exact ones first: the rows that the algorithms' files export. */
#ifndef TW_COLLECTIVES_ALGORITHMS_TABLE_H
#define TW_COLLECTIVES_ALGORITHMS_TABLE_H

#include "collectives/algorithms/algorithm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Row `index` of the table, NULL past its end. */
const tw_algo_t *tw_algo_get(size_t index);

#ifdef __cplusplus
}
#endif

#endif
