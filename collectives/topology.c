#include "collectives/topology.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/collectives.h"

size_t tw_coll_shard_elems(size_t n_elems, int world, int rank)
{
    return n_elems / (size_t)world + ((size_t)rank < n_elems % (size_t)world);
}

size_t tw_coll_shard_offset(size_t n_elems, int world, int rank)
{
    size_t extra = n_elems % (size_t)world, r = (size_t)rank;
    return n_elems / (size_t)world * r + (r < extra ? r : extra);
}

static tw_status_t check_ranks(const tw_transport_t *transport, const int *ranks, int world)
{
    int own = tw_transport_rank(transport), found = 0;
    for (int i = 0; i < world; i++) {
        TW_FAIL_IF(ranks[i] < 0 || ranks[i] >= tw_transport_world(transport), TW_ERR_INVALID,
                   "rank %d: communicator: there is no rank %d", own, ranks[i]);
        for (int j = 0; j < i; j++) {
            TW_FAIL_IF(ranks[j] == ranks[i], TW_ERR_INVALID, "rank %d: communicator: rank %d is listed twice",
                       own, ranks[i]);
        }
        found |= ranks[i] == own;
    }
    TW_FAIL_IF(!found, TW_ERR_INVALID, "rank %d: communicator: own rank is not listed", own);
    return TW_OK;
}

/** Number the nodes in the order of their first rank. */
static void topology_number_nodes(tw_topo_t *topo, const uint64_t *node_ids)
{
    topo->n_nodes = 0;
    for (int r = 0; r < topo->world; r++) {
        int q = 0;
        while (node_ids[q] != node_ids[r]) {
            q++;
        }
        topo->node[r] = q == r ? topo->n_nodes++ : topo->node[q];
    }
}

static void order_ring(tw_topo_t *topo)
{
    int at = 0;
    topo->min_local = topo->world;
    topo->max_local = 0;
    for (int n = 0; n < topo->n_nodes; n++) {
        topo->node_first[n] = at;
        for (int r = 0; r < topo->world; r++) {
            if (topo->node[r] != n) {
                continue;
            }
            topo->local[r] = at - topo->node_first[n];
            topo->position[r] = at;
            topo->ring[at++] = r;
        }
        int size = at - topo->node_first[n];
        topo->min_local = size < topo->min_local ? size : topo->min_local;
        topo->max_local = size > topo->max_local ? size : topo->max_local;
    }
    topo->node_first[topo->n_nodes] = at;
}

tw_status_t tw_topo_init_nodes(tw_topo_t *topo, int rank, int world, const uint64_t *node_ids)
{
    size_t n = (size_t)world;
    int *all = calloc(6 * n + 1, sizeof(*all));
    if (!all) {
        return TW_ERR_NO_MEMORY;
    }
    memset(topo, 0, sizeof(*topo));
    topo->rank = rank;
    topo->world = world;
    topo->peer = all;
    topo->node = all + n;
    topo->local = all + 2 * n;
    topo->ring = all + 3 * n;
    topo->position = all + 4 * n;
    topo->node_first = all + 5 * n;
    for (int r = 0; r < world; r++) {
        topo->peer[r] = r;
    }
    topology_number_nodes(topo, node_ids);
    order_ring(topo);
    return TW_OK;
}

tw_status_t tw_topo_init(tw_topo_t *topo, const tw_transport_t *transport, const int *ranks, int n_ranks)
{
    int world = ranks ? n_ranks : tw_transport_world(transport);
    int own = tw_transport_rank(transport), rank = own;
    TW_TRY(ranks ? check_ranks(transport, ranks, world) : TW_OK);
    uint64_t *node_ids = malloc((size_t)world * sizeof(*node_ids));
    if (!node_ids) {
        return TW_ERR_NO_MEMORY;
    }
    for (int r = 0; r < world; r++) {
        int peer = ranks ? ranks[r] : r;
        node_ids[r] = (uint64_t)tw_transport_node_of(transport, peer);
        rank = peer == own ? r : rank;
    }
    tw_status_t status = tw_topo_init_nodes(topo, rank, world, node_ids);
    free(node_ids);
    if (status == TW_OK && ranks) {
        memcpy(topo->peer, ranks, (size_t)world * sizeof(*ranks));
    }
    return status;
}

void tw_topo_cleanup(tw_topo_t *topo)
{
    free(topo->peer);
    topo->peer = NULL;
}
