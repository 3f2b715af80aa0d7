/** Flows: what an algorithm does with the shard of one owner, stated once, from the topology alone.
 *
 *  A flow moves values from rank to rank and adds them up. A value is a rank's data of the shard: at first
 *  its own contribution, later a sum. A flow knows no sizes, types or codecs. Two things are derived from
 *  flows:
 *  - the cost of an operation (cost.h): bytes, messages, hops and computations;
 *  - a rank's program (ops.h): its sends, receives and sums.
 *  Both need only a topology, no communicator. Each walks the flows of all owners once. With W ranks that
 *  takes O(W^2) time, but a program keeps only one rank's steps. Code that needs the steps of all ranks
 *  walks each owner's flow once itself: a flow has every move of the shard, with sender and receiver, in
 *  O(W).
 *
 *  Operations have hops: the one with the higher hop comes later. A value is moved on in the hop in which
 *  it came, or in a later one. Inside a hop, messages between two ranks are ordered by owner (ops.h). */
#pragma once

#include "collectives/topology.h"

TW_C_BEGIN

/** Index of the operation that makes the value. A negative number is a rank's own contribution. */
typedef int tw_value_t;

static inline tw_value_t tw_flow_own(int rank)
{
    return -1 - rank;
}

typedef struct tw_flow_op {
    int is_sum; /**< 1: a sum; 0: a move, with one input */
    int hop;
    int at; /**< the rank that has the result */
    int first_input, n_inputs;
} tw_flow_op_t;

/** The flow of one owner. If all members but the topology are zero, it is empty. */
typedef struct tw_flow {
    const tw_topo_t *topo;
    tw_flow_op_t *ops;
    tw_value_t *inputs;
    int n_ops, n_inputs;
    size_t max_ops, max_inputs;
    int hop; /**< hop of the operations that are emitted next */
    /** TW_ERR_NO_MEMORY (not logged) stays until the end; then the values have no meaning */
    tw_status_t status;
} tw_flow_t;

void tw_flow_cleanup(tw_flow_t *flow);
/** Remove all operations. */
void tw_flow_clear(tw_flow_t *flow);

/** Returns the rank that holds a value. */
static inline int tw_flow_rank(const tw_flow_t *flow, tw_value_t value)
{
    return value < 0 ? -1 - value : flow->ops[value].at;
}

/** Move a value to another rank. Emits nothing if the rank already has the value. */
tw_value_t tw_flow_move(tw_flow_t *flow, tw_value_t value, int to);
/** Emit a sum at a rank, of inputs in this order, which are moved there. Inputs that are sums come first. */
tw_value_t tw_flow_sum(tw_flow_t *flow, int at, const tw_value_t *inputs, int n_inputs);

/** Smallest k with 2^k >= n. */
int tw_log2_ceil(int n);

/** Reduce all ranks' contributions to the owner's shard. Returns the sum, which is at the owner. */
typedef tw_value_t (*tw_flow_reduce_t)(tw_flow_t *flow, int owner);
/** Spread the value `from`, which the owner has, to all other ranks. */
typedef void (*tw_flow_spread_t)(tw_flow_t *flow, int owner, tw_value_t from);

/** Sum up along the ring: a partial sum travels, and each rank adds its contribution to it. */
tw_value_t tw_flow_reduce_ring(tw_flow_t *flow, int owner);
/** Contributions go straight to the owner, which adds them up in rank order. */
tw_value_t tw_flow_reduce_direct(tw_flow_t *flow, int owner);
/** Sums go from node to node. On each node, one rank adds the node's contributions to the sum that came. */
tw_value_t tw_flow_reduce_hierarchical(tw_flow_t *flow, int owner);
/** Sum up on one rank of each node, then on the owner in node order. One step does it if all ranks are on
 *  one node or if each node has one rank. */
tw_value_t tw_flow_reduce_two_hop(tw_flow_t *flow, int owner);
/** Recursive halving. */
tw_value_t tw_flow_reduce_halving(tw_flow_t *flow, int owner);

void tw_flow_spread_ring(tw_flow_t *flow, int owner, tw_value_t from);
void tw_flow_spread_direct(tw_flow_t *flow, int owner, tw_value_t from);
/** Spread from node to node. One rank of each node passes the value on to the others. */
void tw_flow_spread_hierarchical(tw_flow_t *flow, int owner, tw_value_t from);
/** Spread to one rank of every node at once. That rank passes the value on to the others. */
void tw_flow_spread_rails(tw_flow_t *flow, int owner, tw_value_t from);
/** Recursive doubling. */
void tw_flow_spread_doubling(tw_flow_t *flow, int owner, tw_value_t from);
/** Spread over a binomial tree of ranks in the ring's order. */
void tw_flow_spread_binomial(tw_flow_t *flow, int owner, tw_value_t from);

/* ---- trees of nodes (tree.c) --------------------------------------------------------------------------- */

/** Return 1 if the rank is on the node of a root, so that it owns a part of the tensor. */
int tw_flow_owns_binomial(const tw_topo_t *topo, int rank);
int tw_flow_owns_double(const tw_topo_t *topo, int rank);

tw_value_t tw_flow_reduce_binomial(tw_flow_t *flow, int owner);
void tw_flow_spread_binomial_nodes(tw_flow_t *flow, int owner, tw_value_t from);
/** Sums go up to the root of the tree. The root is the owner's node. */
tw_value_t tw_flow_reduce_double(tw_flow_t *flow, int owner);
void tw_flow_spread_double(tw_flow_t *flow, int owner, tw_value_t from);

/* ---- tori (torus.c) ------------------------------------------------------------------------------------ */

#define TW_TORUS_DIMS 3

/** Get the lengths of the torus's n_dims (2 or 3) dimensions. Further dimensions get length 1. */
void tw_flow_torus_dims(const tw_topo_t *topo, int n_dims, int dims[TW_TORUS_DIMS]);

tw_value_t tw_flow_reduce_torus2(tw_flow_t *flow, int owner);
void tw_flow_spread_torus2(tw_flow_t *flow, int owner, tw_value_t from);
tw_value_t tw_flow_reduce_torus3(tw_flow_t *flow, int owner);
void tw_flow_spread_torus3(tw_flow_t *flow, int owner, tw_value_t from);

TW_C_END
