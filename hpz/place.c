/* Finds out on which nodes and rails the ranks are, and makes the communicators of node and rail. */
#include <limits.h>
#include <stdlib.h>

#include "hpz/state.h"

/** For nodes with unequal numbers of ranks, which have no replicas: count each rank as a node. */
static void find_single_places(tw_hpz_t *hpz)
{
    hpz->is_flat = 1;
    hpz->n_nodes = hpz->world;
    hpz->ranks_per_node = 1;
    hpz->node = hpz->rank;
    hpz->local = 0;
}

static tw_status_t take_place(tw_hpz_t *hpz, const tw_hpz_place_t *place)
{
    int n_nodes = place->n_nodes, per_node = place->ranks_per_node;
    TW_FAIL_IF(n_nodes < 1 || per_node < 1 || n_nodes > INT_MAX / per_node || place->rank < 0 ||
                   place->rank >= n_nodes * per_node,
               TW_ERR_INVALID, "an hpz without a communicator: there is no rank %d on %d nodes of %d ranks",
               place->rank, n_nodes, per_node);
    hpz->rank = place->rank;
    hpz->world = place->n_nodes * place->ranks_per_node;
    hpz->n_nodes = place->n_nodes;
    hpz->ranks_per_node = place->ranks_per_node;
    hpz->node = tw_hpz_node_of(hpz, place->rank);
    hpz->local = tw_hpz_local_of(hpz, place->rank);
    return TW_OK;
}

tw_status_t tw_hpz_places_find(tw_hpz_t *hpz)
{
    tw_coll_t *coll = hpz->params.coll;
    if (!coll) {
        return take_place(hpz, &hpz->params.place);
    }
    hpz->rank = tw_coll_rank(coll);
    hpz->world = tw_coll_size(coll);
    hpz->n_nodes = tw_coll_n_nodes(coll);
    hpz->node = tw_coll_node_of(coll, hpz->rank);
    hpz->local = tw_coll_local_of(coll, hpz->rank);
    hpz->ranks_per_node = hpz->world / hpz->n_nodes;
    for (int r = 0; r < hpz->world; r++) {
        if (tw_coll_local_of(coll, r) < hpz->ranks_per_node) {
            continue;
        }
        if (!hpz->params.replicas) {
            find_single_places(hpz);
            return TW_OK;
        }
        return tw_fail(
            TW_ERR_UNSUPPORTED,
            "rank %d: %d ranks on %d nodes, but more than %d on node %d: replicas need as many ranks on "
            "each",
            hpz->rank, hpz->world, hpz->n_nodes, hpz->ranks_per_node, tw_coll_node_of(coll, r));
    }
    return TW_OK;
}

int tw_hpz_node_of(const tw_hpz_t *hpz, int rank)
{
    if (!hpz->params.coll) {
        return rank / hpz->ranks_per_node;
    }
    return hpz->is_flat ? rank : tw_coll_node_of(hpz->params.coll, rank);
}

int tw_hpz_local_of(const tw_hpz_t *hpz, int rank)
{
    if (!hpz->params.coll) {
        return rank % hpz->ranks_per_node;
    }
    return hpz->is_flat ? 0 : tw_coll_local_of(hpz->params.coll, rank);
}

/** Make a communicator of the ranks of this rank's node (by_node 1) or rail (by_node 0), in rank order. */
static tw_status_t make_group(tw_hpz_t *hpz, int by_node, tw_coll_t **out)
{
    const tw_hpz_memory_t *memory = &hpz->memory;
    tw_coll_t *coll = hpz->params.coll;
    int n = 0, *ranks = malloc((size_t)hpz->world * sizeof(*ranks));
    TW_FAIL_IF(!ranks, TW_ERR_NO_MEMORY, "rank %d: out of memory for a group", hpz->rank);
    for (int r = 0; r < hpz->world; r++) {
        if (by_node ? tw_coll_node_of(coll, r) == hpz->node : tw_coll_local_of(coll, r) == hpz->local) {
            ranks[n++] = r;
        }
    }
    tw_status_t status = by_node ? memory->group(memory->ctx, coll, ranks, n, out, &hpz->stream)
                                 : tw_coll_group_create(coll, ranks, n, out);
    free(ranks);
    return status;
}

tw_status_t tw_hpz_groups_make(tw_hpz_t *hpz)
{
    tw_status_t status = make_group(hpz, 1, &hpz->in_node);
    status = status == TW_OK ? make_group(hpz, 0, &hpz->rail) : status;
    status = status == TW_OK ? make_group(hpz, 0, &hpz->rail_lengths) : status;
    return status;
}
