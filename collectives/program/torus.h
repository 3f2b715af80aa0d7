/** All-reduces over tori: as a ring's, but along one dimension after the other, so that the hops are as many
 *  as the dimensions' lengths add up to, not their product.
 *
 *  The ring's places (topology.h) are a box of d0 x d1 (x d2) ranks, the first dimension the quickest. A
 *  shard is added up along d0 to the rank of that row that has the owner's place in it, then these sums along
 *  d1, then along d2; it is spread the other way round. A sum is rounded to the tensor's type on each hop,
 *  and all ranks get the owner's bits.
 *
 *  Where all nodes have L ranks, d0 is L and the others are of nodes, so that rows are inside nodes: what
 *  passes between nodes is as little as in a ring. Else the dimensions are of ranks. Each is the largest
 *  divisor that is no more than the root of what is left: a prime is a ring.
 *
 *  With a rank a node, alpha a message's latency, beta a byte's time, B bytes on W ranks, at most
 *    2 (d0 - 1 + d1 - 1 + d2 - 1) alpha + 2 (W - 1) / W B beta, in 2 (W - 1) messages of a rank:
 *  a ring's bytes and messages with a few roots of its latencies, many of which shards that are on the way at
 *  the same time hide. Lossless, what passes between nodes is encoded on each hop, and is as many bytes
 *  times the codec's ratio (bf16 gradients 0.65); a rank encodes and decodes W - 1 shards each, as in
 *  one_hop, which has every rank send to every other. Source: N. Jouppi et al., "TPU v4", ISCA 2023,
 *  section 2 (tori that reduce by dimension); E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn,
 *  "Collective communication: theory, practice, and experience", CCPE 19(13), 2007, section 4 (meshes, row
 *  then column). */
#ifndef TW_COLLECTIVES_PROGRAM_TORUS_H
#define TW_COLLECTIVES_PROGRAM_TORUS_H

#include "collectives/program/flow.h"

TW_C_BEGIN

#define TW_TORUS_DIMS 3

/** The lengths of n_dims (2 or 3) dimensions, and of 1 of those beyond. */
void tw_flow_torus_dims(const tw_topo_t *topo, int n_dims, int dims[TW_TORUS_DIMS]);

tw_value_t tw_flow_reduce_torus2(tw_flow_t *flow, int owner);
void tw_flow_spread_torus2(tw_flow_t *flow, int owner, tw_value_t from);
tw_value_t tw_flow_reduce_torus3(tw_flow_t *flow, int owner);
void tw_flow_spread_torus3(tw_flow_t *flow, int owner, tw_value_t from);

TW_C_END

#endif
