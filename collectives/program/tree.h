/** All-reduces over trees of nodes: sums travel up to a root, the result travels down again, chunk after
 *  chunk, so a link carries both at once.
 *
 *  A rank of a node's is its gateway for what belongs to an owner (tw_topo_gateway): it adds up what comes
 *  from the nodes below it, the highest first, and its own node's contributions in rank order, all in fp32,
 *  rounded once, and passes that on. So a sum is rounded once on each level, and all ranks get the root's
 *  bits. The owners are the ranks of one node, or of two: of B bytes on N nodes each has an equal part.
 *
 *  With a rank a node, alpha a message's latency, beta a byte's time and chunks of c bytes:
 *    binomial     2 log2(N) (alpha + B beta) of one chunk; with several, at best half of that. Node 0 is the
 *                 root, its link takes log2(N) B each way: few messages, for small tensors.
 *    double_tree  2 B beta + about 2 log2(N) (alpha + 2 c beta). Two trees, each for half of the tensor; a
 *                 node passes on in one of them at most and is a leaf of the other, so a link takes 2 B,
 *                 hardly more than a ring's, in log2(N) hops each way.
 *  Lossless, what passes between nodes is encoded on each level, and is as many bytes times the codec's
 *  ratio.
 *  Sources: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
 *  and scan", Parallel Computing 35(12), 2009; R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of
 *  collective communication operations in MPICH", IJHPCA 19(1), 2005 (binomial). */
#ifndef TW_COLLECTIVES_PROGRAM_TREE_H
#define TW_COLLECTIVES_PROGRAM_TREE_H

#include "collectives/program/flow.h"

TW_C_BEGIN

/** 1: the rank is of the root's node. */
int tw_flow_owns_binomial(const tw_topo_t *topo, int rank);
int tw_flow_owns_double(const tw_topo_t *topo, int rank);

tw_value_t tw_flow_reduce_binomial(tw_flow_t *flow, int owner);
void tw_flow_spread_binomial_nodes(tw_flow_t *flow, int owner, tw_value_t from);
/** In the tree whose root the owner's node is. */
tw_value_t tw_flow_reduce_double(tw_flow_t *flow, int owner);
void tw_flow_spread_double(tw_flow_t *flow, int owner, tw_value_t from);

TW_C_END

#endif
