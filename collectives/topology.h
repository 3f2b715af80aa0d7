/** Where the ranks of a communicator live: nodes, and an order for rings that leaves each node once. */
#pragma once

#include "transport/transport.h"

TW_C_BEGIN

/** All numbers are communicator ranks, nodes are numbered from 0 in the order of their lowest rank; plain
 *  data, which does not change after init. Ranks per node may differ. */
typedef struct tw_topo {
    int rank, world;
    int n_nodes;
    int *peer;       /**< [world] transport rank of each rank */
    int *node;       /**< [world] node of each rank */
    int *local;      /**< [world] index of each rank within its node */
    int *ring;       /**< [world] ranks node by node, ascending inside a node: the order of every ring */
    int *position;   /**< [world] the inverse of ring */
    int *node_first; /**< [n_nodes + 1] ring[node_first[n] ...] are node n's ranks */
    int min_local, max_local; /**< fewest and most ranks on a node */
} tw_topo_t;

/** Make the topology of a communicator. ranks: [n_ranks] transport ranks in communicator order; NULL:
 *  all. TW_ERR_INVALID (logged) if the transport's own rank is not among them, or one is out of range or
 *  there twice. */
tw_status_t tw_topo_init(tw_topo_t *topo, const tw_transport_t *transport, const int *ranks, int n_ranks);
/** Make a topology without a transport. node_ids: [world] equal for ranks of one node; peer[r] is r. */
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

/** The rank with local index `local` on `node`. */
static inline int tw_topo_rank_at(const tw_topo_t *topo, int node, int local)
{
    return topo->ring[topo->node_first[node] + local];
}

/** The rank `distance` positions behind another one in the ring, 0 to world. */
static inline int tw_topo_ring_behind(const tw_topo_t *topo, int rank, int distance)
{
    return topo->ring[(topo->position[rank] + distance) % topo->world];
}

/** The rank of `node` that handles the data of `owner` there: on its own node the owner itself. Nodes may be
 *  of different sizes. */
static inline int tw_topo_gateway(const tw_topo_t *topo, int owner, int node)
{
    return tw_topo_rank_at(topo, node, topo->local[owner] % tw_topo_node_size(topo, node));
}

TW_C_END
