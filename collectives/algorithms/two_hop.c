/** Two hops: a sum is made inside each node first, in fp32 in rank order, and rounded to the tensor's type; the owner adds the
 *  nodes' sums in fp32 in node order and rounds once more. On one node, or with one rank per node, it is one hop and is rounded
 *  once. Neither the owner of an element nor its chunk changes the bits of its sum, which deterministic communicators need. */
#include "collectives/algorithms/hierarchical.h"

/** What is emitted, chunk by chunk. */
typedef struct two_hop {
    const tw_build_t *build;
    const tw_topo_t *topo;
    tw_shard_t *shards;
    int node;
    int rounds_twice;  /**< there are nodes of several ranks, and several nodes */
    tw_span_t *inputs; /**< [max_local or n_nodes] of a sum */
    tw_task_t *ready;  /**< likewise: when they are there */
} two_hop_t;

/* ---- inside the node ------------------------------------------------------------------------------------- */

/** Sum up the first n inputs. scale: of each of them; factor: of the sum. */
static tw_task_t add_up(const two_hop_t *t, int n, float scale, float factor, tw_span_t to)
{
    tw_work_sum_t sum = {
        .type = t->build->args->type,
        .inputs = t->inputs,
        .n_inputs = (size_t)n,
        .scale = scale,
        .factor = factor,
        .limit = t->build->limit,
        .to = to,
    };
    tw_task_t task = tw_work_reduce(t->build->sched, &sum);

    for (int i = 0; i < n; i++) {
        tw_sched_after(t->build->sched, task, t->ready[i]);
    }
    return task;
}

/** Chunk c of a shard from all ranks of this node, in rank order, becomes the inputs; returns how many there are. */
static int collect(const two_hop_t *t, const tw_shard_t *shard, size_t c)
{
    int size = tw_topo_node_size(t->topo, t->node);

    for (int l = 0; l < size; l++) {
        int mate = tw_topo_rank_at(t->topo, t->node, l);
        int own = mate == t->topo->rank;
        t->inputs[l] = own ? tw_shard_in(t->build, shard, c) : tw_shard_scratch(t->build, shard, c);
        t->ready[l] = own ? TW_TASK_NONE : tw_sched_recv(t->build->sched, mate, t->inputs[l]);
    }
    return size;
}

/** The node's sum of chunk c, as it travels to the owner or is added up by him. */
static tw_task_t node_sum(const two_hop_t *t, tw_shard_t *shard, size_t c, tw_span_t *sum)
{
    if (!t->rounds_twice) { /* a single rank */
        *sum = tw_shard_in(t->build, shard, c);
        return TW_TASK_NONE;
    }
    int n = collect(t, shard, c);
    *sum = tw_shard_scratch(t->build, shard, c);
    return add_up(t, n, t->build->scale, 1.0f, *sum);
}

/** This rank's contribution to another rank's chunk. */
static void contribute(const two_hop_t *t, int owner, size_t c)
{
    tw_shard_t *shard = &t->shards[owner];
    int gateway = tw_topo_gateway(t->topo, owner, t->node);
    tw_span_t sum;

    if (gateway != t->topo->rank) {
        shard->task[c] = tw_sched_send(t->build->sched, gateway, tw_shard_in(t->build, shard, c));
        return;
    }
    tw_task_t summed = node_sum(t, shard, c, &sum);
    tw_task_t send = tw_sched_send(t->build->sched, owner, sum);
    tw_sched_after(t->build->sched, send, summed);
    shard->task[c] = t->rounds_twice ? summed : send;
}

/* ---- between nodes --------------------------------------------------------------------------------------- */

static void finish(const two_hop_t *t, size_t c)
{
    const tw_topo_t *topo = t->topo;
    tw_shard_t *own = &t->shards[topo->rank];
    tw_span_t out = tw_shard_out(t->build, own, c), sum;

    if (topo->n_nodes == 1) {
        own->task[c] = add_up(t, collect(t, own, c), t->build->scale, t->build->factor, out);
        return;
    }
    tw_task_t summed = node_sum(t, own, c, &sum);
    for (int node = 0; node < topo->n_nodes; node++) {
        int here = node == t->node;
        t->inputs[node] = here ? sum : tw_shard_scratch(t->build, own, c);
        t->ready[node] =
            here ? summed
                 : tw_sched_recv(t->build->sched, tw_topo_gateway(topo, topo->rank, node), t->inputs[node]);
    }
    own->task[c] = add_up(t, topo->n_nodes, t->rounds_twice ? 1.0f : t->build->scale, t->build->factor, out);
}

/* ---- operations ------------------------------------------------------------------------------------------ */

/** Chunk by chunk; from the next node on, the own one last: at any time all nodes send to different ones. */
static void reduce_scatter(const tw_build_t *build, tw_shard_t *shards)
{
    const tw_topo_t *topo = build->topo;
    int node = topo->node[topo->rank];
    size_t most = (size_t)(topo->max_local > topo->n_nodes ? topo->max_local : topo->n_nodes);
    two_hop_t t = {
        .build = build,
        .topo = topo,
        .shards = shards,
        .node = node,
        .rounds_twice = tw_topo_has_tiers(topo),
        .inputs = tw_sched_alloc(build->sched, most * sizeof(*t.inputs)),
        .ready = tw_sched_alloc(build->sched, most * sizeof(*t.ready)),
    };

    if (!t.inputs || !t.ready) {
        return;
    }
    for (size_t c = 0; c < tw_shards_most_chunks(build, shards); c++) {
        tw_sched_next_round(build->sched);
        for (int i = 0; i < topo->world; i++) {
            int owner = topo->ring[(topo->node_first[node + 1] + i) % topo->world];
            if (c < shards[owner].n_chunks && owner != topo->rank) {
                contribute(&t, owner, c);
            }
        }
        if (c < shards[topo->rank].n_chunks) {
            finish(&t, c);
        }
    }
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
        .info = {TW_COLL_REDUCE_SCATTER, "two_hop",
                 "summed in fp32 inside the node in rank order, rounded, then at the owner in node order; "
                 "the same bits "
                 "for any owner",
                 0},
        .build = build_reduce_scatter,
        .flows = {.reduce = tw_flow_reduce_two_hop, .nodes_first = 1},
    },
    {
        .info = {TW_COLL_ALLREDUCE, "two_hop", "two-hop reduce-scatter, then hierarchical all-gather", 0},
        .build = build_allreduce,
        .flows = {.reduce = tw_flow_reduce_two_hop, .spread = tw_flow_spread_hierarchical, .nodes_first = 1},
    },
};

const tw_algo_rows_t tw_two_hop_rows = {algos, sizeof(algos) / sizeof(algos[0])};
