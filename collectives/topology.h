/** Which rank of a communicator is on which node, and an order of ranks for rings. */
#pragma once

#include "transport/transport.h"

TW_C_BEGIN

/** The topology. All ranks are communicator ranks unless said otherwise. Nodes are numbered from 0 in the
 *  order of their lowest rank, and may differ in size. The data does not change after init. */
typedef struct tw_topo {
    int rank, world;
    int n_nodes;
    int *peer;  /**< [world] transport rank of each rank */
    int *node;  /**< [world] node of each rank */
    int *local; /**< [world] index of each rank among the ranks of its node */
    /** [world] ranks node by node, ascending inside a node: every ring's order, which leaves a node once */
    int *ring;
    int *position; /**< [world] index of each rank in `ring` */
    /** [n_nodes + 1] node n has the ranks from ring[node_first[n]] to ring[node_first[n + 1] - 1] */
    int *node_first;
    int min_local, max_local; /**< fewest and most ranks on a node */
} tw_topo_t;

/** Make the topology of a communicator. ranks: [n_ranks] transport ranks in communicator order; NULL: all
 *  ranks. TW_ERR_INVALID (logged) if the list lacks the own rank, or has a rank twice or a wrong one. */
tw_status_t tw_topo_init(tw_topo_t *topo, const tw_transport_t *transport, const int *ranks, int n_ranks);
/** Make a topology without a transport. node_ids: [world] equal for ranks of one node. peer[r] becomes r. */
tw_status_t tw_topo_init_nodes(tw_topo_t *topo, int rank, int world, const uint64_t *node_ids);
void tw_topo_cleanup(tw_topo_t *topo);

static inline int tw_topo_node_size(const tw_topo_t *topo, int node)
{
    return topo->node_first[node + 1] - topo->node_first[node];
}

/** Returns 1 if there are several nodes, and some node has several ranks. */
static inline int tw_topo_has_tiers(const tw_topo_t *topo)
{
    return topo->n_nodes > 1 && topo->max_local > 1;
}

/** Returns the rank with local index `local` on `node`. */
static inline int tw_topo_rank_at(const tw_topo_t *topo, int node, int local)
{
    return topo->ring[topo->node_first[node] + local];
}

/** Returns the rank that follows `rank` by `distance` (0 to world) places in the ring. */
static inline int tw_topo_ring_behind(const tw_topo_t *topo, int rank, int distance)
{
    return topo->ring[(topo->position[rank] + distance) % topo->world];
}

/** Returns the rank of `node` that handles the data of `owner` there. On the owner's node it is the owner.
 *  Works for nodes of different sizes. */
static inline int tw_topo_gateway(const tw_topo_t *topo, int owner, int node)
{
    return tw_topo_rank_at(topo, node, topo->local[owner] % tw_topo_node_size(topo, node));
}

TW_C_END
