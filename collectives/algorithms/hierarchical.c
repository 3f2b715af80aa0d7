/** Hierarchical: each shard crosses between nodes once per node, and the ranks of a node share that work.
 *
 *  Shard (m, i), of the i-th rank on node m, is handled on node n by that node's rank i mod L_n (ranks per node may
 *  differ). All-gather: the shard goes from its owner along the nodes m+1, m+2, ... by way of its handlers, each of
 *  which spreads it in its node. Reduce-scatter: every rank of a node gives its contribution to the handler, who sums
 *  them in fp32 in rank order together with what comes from the node before, rounds to the tensor's type, and sends that
 *  on; the sum starts on node m+1 and ends at the owner. */
#include "collectives/algorithms/hierarchical.h"

/* The node `distance` further on. */
static int node_at(const tw_topo_t *topo, int distance)
{
    return (topo->node[topo->rank] + distance + topo->n_nodes) % topo->n_nodes;
}

static int next_handler(const tw_topo_t *topo, int owner)
{
    return tw_topo_gateway(topo, owner, node_at(topo, 1));
}

static int is_gateway(const tw_topo_t *topo, int owner)
{
    return tw_topo_gateway(topo, owner, topo->node[topo->rank]) == topo->rank;
}

/* ---- all-gather ------------------------------------------------------------------------------------------ */

static tw_span_t gathered(const tw_build_t *build, const tw_shard_t *shards, int owner, size_t c)
{
    return owner == build->topo->rank ? tw_shard_in(build, &shards[owner], c)
                                      : tw_shard_out(build, &shards[owner], c);
}

/* Give a chunk that is here to the other ranks of the node. */
static void spread(const tw_build_t *build, tw_span_t chunk, tw_task_t ready)
{
    const tw_topo_t *topo = build->topo;
    int node = topo->node[topo->rank];

    for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
        int mate = tw_topo_rank_at(topo, node, l);
        if (mate != topo->rank) {
            tw_sched_after(build->sched, tw_sched_send(build->sched, mate, chunk), ready);
        }
    }
}

/* A chunk goes on to the next node. */
static void pass_on(const tw_build_t *build, const tw_shard_t *shards, int owner, size_t c)
{
    if (c < shards[owner].n_chunks && is_gateway(build->topo, owner)) {
        tw_task_t send =
            tw_sched_send(build->sched, next_handler(build->topo, owner), gathered(build, shards, owner, c));
        tw_sched_after(build->sched, send, shards[owner].task[c]);
    }
}

/* A chunk comes from the node before if this rank handles it, else from its handler here. */
static void gather_chunk(const tw_build_t *build, tw_shard_t *shards, int owner, size_t c)
{
    const tw_topo_t *topo = build->topo;
    int handles = is_gateway(topo, owner), node = topo->node[topo->rank];
    tw_shard_t *shard = &shards[owner];

    if (c >= shard->n_chunks) {
        return;
    }
    if (owner != topo->rank) {
        int from = tw_topo_gateway(topo, owner, handles ? node_at(topo, -1) : node);
        tw_task_t recv = tw_sched_recv(build->sched, from, tw_shard_out(build, shard, c));
        tw_sched_after(build->sched, recv, shard->task[c]);
        shard->task[c] = recv;
    }
    if (handles) {
        spread(build, gathered(build, shards, owner, c), shard->task[c]);
    }
}

/* Node by node; what is `distance` nodes away comes in once what is nearer has. */
void tw_hierarchical_gather(const tw_build_t *build, tw_shard_t *shards)
{
    const tw_topo_t *topo = build->topo;
    size_t n_chunks = tw_shards_most_chunks(build, shards);

    for (size_t i = 0; i < n_chunks * (size_t)topo->n_nodes; i++) {
        int distance = (int)(i / n_chunks), node = node_at(topo, -distance),
            nearer = node_at(topo, 1 - distance);
        tw_sched_next_round(build->sched);
        for (int l = 0; l < tw_topo_node_size(topo, nearer) && distance > 0; l++) {
            pass_on(build, shards, tw_topo_rank_at(topo, nearer, l), i % n_chunks);
        }
        for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
            gather_chunk(build, shards, tw_topo_rank_at(topo, node, l), i % n_chunks);
        }
    }
}

/* ---- reduce-scatter -------------------------------------------------------------------------------------- */

typedef struct handled_sum {
    tw_span_t *inputs; /* [1 + ranks of the node] */
    tw_task_t *ready;
    size_t n, n_partial;
} handled_sum_t;

/* The node's contributions to chunk c, after what came from the node before (from: its rank, or -1). */
static void collect(const tw_build_t *build, tw_shard_t *shard, size_t c, int from, handled_sum_t *sum)
{
    const tw_topo_t *topo = build->topo;
    int node = topo->node[topo->rank];

    sum->n = sum->n_partial = 0;
    if (from >= 0) {
        sum->inputs[0] = tw_shard_scratch(build, shard, c);
        sum->ready[0] = tw_sched_recv(build->sched, from, sum->inputs[0]);
        sum->n = sum->n_partial = 1;
    }
    for (int l = 0; l < tw_topo_node_size(topo, node); l++, sum->n++) {
        int mate = tw_topo_rank_at(topo, node, l);
        sum->inputs[sum->n] = tw_shard_in(build, shard, c);
        sum->ready[sum->n] = TW_TASK_NONE;
        if (mate == topo->rank) {
            continue;
        }
        sum->inputs[sum->n] = tw_shard_scratch(build, shard, c);
        sum->ready[sum->n] = tw_sched_recv(build->sched, mate, sum->inputs[sum->n]);
    }
}

static tw_task_t add_up(const tw_build_t *build, const handled_sum_t *handled, float factor, tw_span_t to)
{
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = handled->inputs,
        .n_inputs = handled->n,
        .n_partial = handled->n_partial,
        .scale = build->scale,
        .factor = factor,
        .limit = build->limit,
        .to = to,
    };
    tw_task_t task = tw_work_reduce(build->sched, &sum);

    for (size_t i = 0; i < handled->n; i++) {
        tw_sched_after(build->sched, task, handled->ready[i]);
    }
    return task;
}

/* The sum of a chunk goes from here to the next node. */
static void send_sum(const tw_build_t *build, const tw_shard_t *shards, int owner, size_t c)
{
    if (c < shards[owner].n_chunks && is_gateway(build->topo, owner)) {
        tw_task_t send =
            tw_sched_send(build->sched, next_handler(build->topo, owner), shards[owner].partial[c]);
        tw_sched_after(build->sched, send, shards[owner].task[c]);
    }
}

/* This node's part of the sum of a chunk, on the hop-th node after its owner's. */
static void reduce_chunk(const tw_build_t *build, tw_shard_t *shards, int owner, size_t c, int hop,
                         handled_sum_t *sum)
{
    const tw_topo_t *topo = build->topo;
    tw_shard_t *shard = &shards[owner];
    int by = tw_topo_gateway(topo, owner, topo->node[topo->rank]);

    if (c >= shard->n_chunks) {
        return;
    }
    if (by != topo->rank) {
        shard->task[c] = tw_sched_send(build->sched, by, tw_shard_in(build, shard, c));
        return;
    }
    collect(build, shard, c, hop > 0 ? tw_topo_gateway(topo, owner, node_at(topo, -1)) : -1, sum);
    if (owner == topo->rank) {
        shard->task[c] = add_up(build, sum, build->factor, tw_shard_out(build, shard, c));
        return;
    }
    shard->partial[c] = tw_shard_scratch(build, shard, c);
    shard->task[c] = add_up(build, sum, 1.0f, shard->partial[c]);
}

/* What a hop has to do in a round: sums made one hop earlier are passed on, then those of the next node are made. */
static void reduce_hop(const tw_build_t *build, tw_shard_t *shards, int hop, size_t c, handled_sum_t *sum)
{
    const tw_topo_t *topo = build->topo;
    int node = node_at(topo, -1 - hop), earlier = node_at(topo, -hop);

    for (int l = 0; hop > 0 && l < tw_topo_node_size(topo, earlier); l++) {
        send_sum(build, shards, tw_topo_rank_at(topo, earlier, l), c);
    }
    for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
        reduce_chunk(build, shards, tw_topo_rank_at(topo, node, l), c, hop, sum);
    }
}

/* Node by node, the own one last: its sums have gone round by then. */
static void reduce_scatter(const tw_build_t *build, tw_shard_t *shards)
{
    const tw_topo_t *topo = build->topo;
    size_t most = (size_t)topo->max_local + 1, n_chunks = tw_shards_most_chunks(build, shards);
    size_t n_rounds = n_chunks > 0 ? n_chunks + (size_t)(topo->n_nodes - 1) * TW_HOP_ROUNDS : 0;
    handled_sum_t sum = {
        .inputs = tw_sched_alloc(build->sched, most * sizeof(*sum.inputs)),
        .ready = tw_sched_alloc(build->sched, most * sizeof(*sum.ready)),
    };

    for (size_t round = 0; round < n_rounds && sum.inputs && sum.ready; round++) {
        tw_sched_next_round(build->sched);
        for (int hop = 0; hop < topo->n_nodes; hop++) {
            size_t c;
            if (tw_hop_chunk(round, hop, n_chunks, &c)) {
                reduce_hop(build, shards, hop, c, &sum);
            }
        }
    }
}

/* ---- operations ------------------------------------------------------------------------------------------ */

static void build_allgather(const tw_build_t *build)
{
    tw_build_allgather(build, tw_hierarchical_gather);
}

static void build_reduce_scatter(const tw_build_t *build)
{
    tw_build_reduce_scatter(build, reduce_scatter);
}

static void build_allreduce(const tw_build_t *build)
{
    tw_build_allreduce(build, reduce_scatter, tw_hierarchical_gather);
}

static const tw_algo_t algos[] = {
    {
        .info =
            {TW_COLL_ALLGATHER, "hierarchical",
             "shards travel from node to node, the ranks of a node share that work and spread them inside",
             0},
        .build = build_allgather,
        .flows = {.spread = tw_flow_spread_hierarchical},
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "hierarchical",
                 "summed inside the node in fp32 in rank order, then from node to node, rounded on each hop",
                 0},
        .build = build_reduce_scatter,
        .flows = {.reduce = tw_flow_reduce_hierarchical},
        .owner_matters = 1,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "hierarchical", "hierarchical reduce-scatter, then all-gather", 0},
        .build = build_allreduce,
        .flows = {.reduce = tw_flow_reduce_hierarchical, .spread = tw_flow_spread_hierarchical},
        .owner_matters = 1,
    },
};

const tw_algo_rows_t tw_hierarchical_rows = {algos, sizeof(algos) / sizeof(algos[0])};
