#include "collectives/topo.h"

#include <stdlib.h>
#include <string.h>

static tw_status_t check_ranks(const tw_transport_t *transport, const int *ranks, int world)
{
    int own = tw_transport_rank(transport), found = 0;

    for (int i = 0; i < world; i++) {
        if (ranks[i] < 0 || ranks[i] >= tw_transport_world(transport)) {
            tw_error("rank %d: communicator: there is no rank %d", own, ranks[i]);
            return TW_ERR_INVALID;
        }
        for (int j = 0; j < i; j++) {
            if (ranks[j] == ranks[i]) {
                tw_error("rank %d: communicator: rank %d is listed twice", own, ranks[i]);
                return TW_ERR_INVALID;
            }
        }
        found |= ranks[i] == own;
    }
    if (!found) {
        tw_error("rank %d: communicator: own rank is not listed", own);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

/* Number the nodes in the order in which the ranks meet them. */
static void number_nodes(tw_topo_t *topo, const tw_transport_t *transport)
{
    topo->n_nodes = 0;
    for (int r = 0; r < topo->world; r++) {
        int q = 0;
        while (tw_transport_node_of(transport, topo->peer[q]) !=
               tw_transport_node_of(transport, topo->peer[r]))
            q++;
        topo->node[r] = q == r ? topo->n_nodes++ : topo->node[q];
        if (topo->peer[r] == tw_transport_rank(transport))
            topo->rank = r;
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
            if (topo->node[r] != n)
                continue;
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

tw_status_t tw_topo_init(tw_topo_t *topo, const tw_transport_t *transport, const int *ranks, int world)
{
    size_t n = (size_t)world;
    tw_status_t status = check_ranks(transport, ranks, world);

    if (status != TW_OK)
        return status;
    int *all = calloc(6 * n + 1, sizeof(*all));
    if (all == NULL)
        return TW_ERR_NO_MEMORY;
    memset(topo, 0, sizeof(*topo));
    topo->world = world;
    topo->peer = all;
    topo->node = all + n;
    topo->local = all + 2 * n;
    topo->ring = all + 3 * n;
    topo->position = all + 4 * n;
    topo->node_first = all + 5 * n;
    memcpy(topo->peer, ranks, n * sizeof(*ranks));
    number_nodes(topo, transport);
    order_ring(topo);
    return TW_OK;
}

void tw_topo_cleanup(tw_topo_t *topo)
{
    free(topo->peer);
    topo->peer = NULL;
}

int tw_topo_remote_pairs(const tw_topo_t *topo)
{
    int most = 0;

    for (int n = 0; n < topo->n_nodes; n++) {
        int pairs = tw_topo_node_size(topo, n) * (topo->world - tw_topo_node_size(topo, n));
        most = pairs > most ? pairs : most;
    }
    return most;
}
