/** Flows: what an algorithm does with the shard of one owner, stated once, from the topology alone.
 *
 *  A flow moves values from rank to rank and adds them up: a value is what a rank has of the shard, at first
 *  its own contribution. A flow knows no sizes, types or codecs; "plain" is one form of many. Derived from a
 *  flow are - what an operation costs (cost.h): bytes, messages, hops and computations; - a rank's program
 *  (ops.h): its sends, receives and sums. Both take a topology alone, no communicator. Each walks the flows
 *  of all owners once: of a world of W ranks that is O(W^2) time, but only the rank's own steps are kept. Who
 *  wants all ranks walks each owner's flow once himself: it has every move of that shard, from whom to whom,
 *  in O(W).
 *
 *  Hops: what has a higher number comes later, and a value is moved on in a later hop than it came in, or in
 *  the same. Inside a hop, messages between two ranks are ordered by owner (ops.h). */
#pragma once

#include "collectives/topology.h"

TW_C_BEGIN

/** The index of the operation that makes the value; below 0: a rank's own contribution. */
typedef int tw_value_t;

static inline tw_value_t tw_flow_own(int rank)
{
    return -1 - rank;
}

typedef struct tw_flow_op {
    int is_sum; /**< 1: a sum; 0: a move, with one input */
    int hop;
    int at; /**< the rank that has the value afterwards */
    int first_input, n_inputs;
} tw_flow_op_t;

/** Zeroed except the topology, it is an empty flow. */
typedef struct tw_flow {
    const tw_topo_t *topo;
    tw_flow_op_t *ops;
    tw_value_t *inputs;
    int n_ops, n_inputs;
    size_t max_ops, max_inputs;
    int hop;            /**< hop of the operations that are emitted next */
    tw_status_t status; /**< TW_ERR_NO_MEMORY (not logged) sticks; values have no meaning then */
} tw_flow_t;

void tw_flow_cleanup(tw_flow_t *flow);
/** Forget all operations. */
void tw_flow_clear(tw_flow_t *flow);

/** The rank that holds a value. */
static inline int tw_flow_rank(const tw_flow_t *flow, tw_value_t value)
{
    return value < 0 ? -1 - value : flow->ops[value].at;
}

/** Move a value to another rank; if it is there already, nothing is emitted. */
tw_value_t tw_flow_move(tw_flow_t *flow, tw_value_t value, int to);
/** Emit a sum at a rank, with inputs in order, each moved there. Inputs that are sums come first. */
tw_value_t tw_flow_sum(tw_flow_t *flow, int at, const tw_value_t *inputs, int n_inputs);

/** Smallest k with 2^k >= n. */
int tw_log2_ceil(int n);

/** Reduce all contributions to what `owner` owns to one value, at the owner. */
typedef tw_value_t (*tw_flow_reduce_t)(tw_flow_t *flow, int owner);
/** Spread the value `from`, which `owner` has, to all others. */
typedef void (*tw_flow_spread_t)(tw_flow_t *flow, int owner, tw_value_t from);

/** Sum up along the ring: a partial sum travels, and each rank adds its contribution. */
tw_value_t tw_flow_reduce_ring(tw_flow_t *flow, int owner);
/** Contributions go straight to the owner, which adds them up in rank order. */
tw_value_t tw_flow_reduce_direct(tw_flow_t *flow, int owner);
/** Sums go from node to node; on each, one of its ranks adds up the node's contributions and what came. */
tw_value_t tw_flow_reduce_hierarchical(tw_flow_t *flow, int owner);
/** Sum up on one rank of each node, then on the owner in node order; in one step if all is on one node or
 *  nodes have one rank each. */
tw_value_t tw_flow_reduce_two_hop(tw_flow_t *flow, int owner);
/** Recursive halving. */
tw_value_t tw_flow_reduce_halving(tw_flow_t *flow, int owner);

void tw_flow_spread_ring(tw_flow_t *flow, int owner, tw_value_t from);
void tw_flow_spread_direct(tw_flow_t *flow, int owner, tw_value_t from);
/** Spread from node to node, by one rank of each, which gives the value to the others of its node. */
void tw_flow_spread_hierarchical(tw_flow_t *flow, int owner, tw_value_t from);
/** Spread to one rank of every node at once, which gives the value to the others of its node. */
void tw_flow_spread_rails(tw_flow_t *flow, int owner, tw_value_t from);
/** Recursive doubling. */
void tw_flow_spread_doubling(tw_flow_t *flow, int owner, tw_value_t from);
/** The value spreads over a binomial tree whose ranks are in the ring's order. */
void tw_flow_spread_binomial(tw_flow_t *flow, int owner, tw_value_t from);

/* ---- trees of nodes (tree.c) --------------------------------------------------------------------------- */

/** Returns 1 if the rank is on the root's node. */
int tw_flow_owns_binomial(const tw_topo_t *topo, int rank);
int tw_flow_owns_double(const tw_topo_t *topo, int rank);

tw_value_t tw_flow_reduce_binomial(tw_flow_t *flow, int owner);
void tw_flow_spread_binomial_nodes(tw_flow_t *flow, int owner, tw_value_t from);
/** Sums go up the tree whose root is the owner's node. */
tw_value_t tw_flow_reduce_double(tw_flow_t *flow, int owner);
void tw_flow_spread_double(tw_flow_t *flow, int owner, tw_value_t from);

/* ---- tori (torus.c) ------------------------------------------------------------------------------------ */

#define TW_TORUS_DIMS 3

/** The lengths of n_dims (2 or 3) dimensions; those beyond get length 1. */
void tw_flow_torus_dims(const tw_topo_t *topo, int n_dims, int dims[TW_TORUS_DIMS]);

tw_value_t tw_flow_reduce_torus2(tw_flow_t *flow, int owner);
void tw_flow_spread_torus2(tw_flow_t *flow, int owner, tw_value_t from);
tw_value_t tw_flow_reduce_torus3(tw_flow_t *flow, int owner);
void tw_flow_spread_torus3(tw_flow_t *flow, int owner, tw_value_t from);

TW_C_END
