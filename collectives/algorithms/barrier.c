/** Barrier by dissemination: on hop k a rank signals the one 2^k further on, once it has heard from all hops before. */
#include "collectives/algorithms/algorithm.h"

static void build_dissemination_barrier(const tw_build_t *build)
{
    int world = build->topo->world, rank = build->topo->rank;
    tw_task_t heard[32];

    for (int hop = 0; hop < tw_log2_ceil(world); hop++) {
        int distance = 1 << hop;
        tw_task_t send = tw_sched_send(build->sched, (rank + distance) % world, tw_span_signal());
        for (int before = 0; before < hop; before++) {
            tw_sched_after(build->sched, send, heard[before]);
        }
        heard[hop] = tw_sched_recv(build->sched, (rank - distance + world) % world, tw_span_signal());
    }
}

static void cost_dissemination_barrier(const tw_case_t *c, tw_coll_cost_t *cost)
{
    int hops = tw_log2_ceil(c->topo->world), several_nodes = c->topo->n_nodes > 1;

    cost->inter_rounds += several_nodes ? hops : 0;
    cost->inter_messages += several_nodes ? hops : 0;
    cost->node_rounds += several_nodes ? 0 : hops;
    cost->node_messages += several_nodes ? 0 : hops;
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_BARRIER, "dissemination", "log2(W) hops of empty messages", 0},
        .build = build_dissemination_barrier,
        .cost = cost_dissemination_barrier,
    },
};

const tw_algo_rows_t tw_barrier_rows = {algos, sizeof(algos) / sizeof(algos[0])};
