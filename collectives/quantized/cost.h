/** Costs that the quantized algorithms are made of; each adds to `cost`. */
#ifndef TW_COLLECTIVES_QUANTIZED_COST_H
#define TW_COLLECTIVES_QUANTIZED_COST_H

#include "collectives/algorithms/algorithm.h"

TW_C_BEGIN

/** Bytes of all shards of all segments, encoded with the operation's codec (or their own) or its inner one; as they are
 *  for a NULL codec, or where they are exact. */
double tw_cost_encoded_bytes(const tw_case_t *c, const tw_quant_codec_t *codec);
/** Plain bytes of one chunk of a shard. */
double tw_cost_plain_chunk(const tw_case_t *c);

/** All-gather: every rank encodes its shard and decodes all. */
void tw_cost_add_spread_codec(const tw_case_t *c, tw_coll_cost_t *cost);
/** All-gather from node to node and then inside. */
void tw_cost_add_spread_nodes(const tw_case_t *c, tw_coll_cost_t *cost);
/** Reduce-scatter. */
void tw_cost_add_one_hop(const tw_case_t *c, tw_coll_cost_t *cost);
void tw_cost_add_two_hop(const tw_case_t *c, tw_coll_cost_t *cost);

TW_C_END

#endif
