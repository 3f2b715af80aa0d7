/** What other algorithms take from the hierarchical ones. */
#ifndef TW_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H
#define TW_COLLECTIVES_ALGORITHMS_HIERARCHICAL_H

#include "collectives/algorithms/shards.h"

TW_C_BEGIN

/** The all-gather's phase. */
void tw_hierarchical_gather(const tw_build_t *build, tw_shard_t *shards);

TW_C_END

#endif
