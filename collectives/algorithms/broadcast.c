/** Broadcast from the root along the ring order: as a chain, chunk after chunk, for large tensors; as a binomial tree for
 *  small ones. */
#include "collectives/algorithms/algorithm.h"

/* Position in the ring order, counted from the root. */
static int relative(const tw_build_t *build)
{
    const tw_topo_t *topo = build->topo;

    return (topo->position[topo->rank] - topo->position[build->args->root] + topo->world) % topo->world;
}

static int rank_at(const tw_build_t *build, int from_root)
{
    const tw_topo_t *topo = build->topo;

    return topo->ring[(topo->position[build->args->root] + from_root) % topo->world];
}

/* Receive each chunk from `parent` (-1: none) and pass it on to the children, all counted from the root. */
static void relay(const tw_build_t *build, int parent, const int *children, int n_children)
{
    size_t n = build->out->n_elems;

    for (size_t c = 0; c < tw_chunk_count(build, n); c++) {
        tw_span_t chunk = tw_span_view(build->out, c * build->chunk_elems, tw_chunk_elems(build, n, c));
        tw_task_t recv = TW_TASK_NONE;
        tw_sched_next_round(build->sched);
        if (parent >= 0) {
            recv = tw_sched_recv(build->sched, rank_at(build, parent), chunk);
        }
        for (int i = 0; i < n_children; i++) {
            tw_sched_after(build->sched, tw_sched_send(build->sched, rank_at(build, children[i]), chunk),
                           recv);
        }
    }
}

static void build_chain_broadcast(const tw_build_t *build)
{
    int me = relative(build), next = me + 1;

    relay(build, me - 1, &next, next < build->topo->world);
}

/* The parent is found by clearing the lowest set bit, the children by setting one below it, the largest subtree first. */
static void build_binomial_broadcast(const tw_build_t *build)
{
    int me = relative(build), world = build->topo->world, children[32], n_children = 0;

    for (int hop = tw_log2_ceil(world) - 1; hop >= 0; hop--) {
        int bit = 1 << hop, is_below_lowest = me == 0 || bit < (me & -me);
        if (is_below_lowest && me + bit < world) {
            children[n_children++] = me + bit;
        }
    }
    relay(build, me > 0 ? (me & (me - 1)) : -1, children, n_children);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_BROADCAST, "chain", "from rank to rank, chunk after chunk; for large tensors", 0},
        .build = build_chain_broadcast,
        .flows = {.spread = tw_flow_spread_ring, .of = TW_FLOWS_ROOT},
    },
    {
        .info = {TW_COLL_BROADCAST, "binomial", "a binomial tree; log2(W) hops", 0},
        .build = build_binomial_broadcast,
        .flows = {.spread = tw_flow_spread_binomial, .of = TW_FLOWS_ROOT},
    },
};

const tw_algo_rows_t tw_broadcast_rows = {algos, sizeof(algos) / sizeof(algos[0])};
