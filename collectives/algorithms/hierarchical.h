/** What other algorithms take from the hierarchical ones. */
#ifndef TW_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H
#define TW_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H

#include "collectives/algorithms/shards.h"

TW_C_BEGIN

/** The all-gather's phase. */
void tw_hierarchical_gather(const tw_build_t *build, tw_shard_t *shards);
/** The cost of either phase, but for the processor's. */
void tw_hierarchical_add_phase(const tw_case_t *c, tw_coll_cost_t *cost);

TW_C_END

#endif
