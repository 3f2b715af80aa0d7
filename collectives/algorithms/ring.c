/** Ring: shards travel from each rank to the next, node by node, so that each link between nodes carries every shard
 *  once. In a reduce-scatter, partial sums travel in the tensor's type: each hop rounds once, as NCCL's ring does. */
#include "collectives/algorithms/shards.h"

/* A sum of this rank's chunk and, if there is one, of what came in. */
static tw_task_t add_up(const tw_build_t *build, const tw_shard_t *shard, size_t c, const tw_span_t *partial,
                        int is_last)
{
    tw_span_t own = tw_shard_in(build, shard, c);
    tw_span_t inputs[2] = {partial ? *partial : own, own};
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = inputs,
        .n_inputs = partial ? 2 : 1,
        .n_partial = partial != NULL,
        .scale = build->scale,
        .factor = is_last ? build->factor : 1.0f,
        .limit = build->limit,
        .to = is_last ? tw_shard_out(build, shard, c) : shard->partial[c],
    };

    return tw_work_reduce(build->sched, &sum);
}

/* Hop 0: the own contribution goes as it is, or scaled. */
static void send_first(const tw_build_t *build, tw_shard_t *shard, size_t c)
{
    shard->partial[c] = tw_shard_in(build, shard, c);
    if (build->scale != 1.0f) {
        shard->partial[c] = tw_shard_scratch(build, shard, c);
        shard->task[c] = add_up(build, shard, c, NULL, 0);
    }
}

/* A chunk of partial sums comes in and ours is added. */
static void receive_chunk(const tw_build_t *build, tw_shard_t *shard, size_t c, int is_last)
{
    tw_span_t partial = tw_shard_scratch(build, shard, c);
    tw_task_t recv = tw_sched_recv(build->sched, tw_topo_ring_rank(build->topo, -1), partial);

    shard->partial[c] = partial;
    shard->task[c] = add_up(build, shard, c, &partial, is_last);
    tw_sched_after(build->sched, shard->task[c], recv);
}

/* A hop's message: a shard that was `hop` ranks away from its first sender goes on, the one before it comes in. */
static void reduce_hop(const tw_build_t *build, tw_shard_t *shards, int hop, size_t round)
{
    const tw_topo_t *topo = build->topo;
    tw_shard_t *out = &shards[tw_topo_ring_rank(topo, -1 - hop)];
    tw_shard_t *in = &shards[tw_topo_ring_rank(topo, -2 - hop)];
    size_t c;

    if (tw_hop_chunk(round, hop, out->n_chunks, &c)) {
        if (hop == 0) {
            send_first(build, out, c);
        }
        tw_task_t send = tw_sched_send(build->sched, tw_topo_ring_rank(topo, 1), out->partial[c]);
        tw_sched_after(build->sched, send, out->task[c]);
        out->task[c] = hop == 0 && out->task[c] == TW_TASK_NONE ? send : out->task[c];
    }
    if (tw_hop_chunk(round, hop, in->n_chunks, &c)) {
        receive_chunk(build, in, c, hop + 2 == topo->world);
    }
}

/* Shard r's sum starts after rank r and ends there, W - 1 hops later. */
static void reduce_scatter(const tw_build_t *build, tw_shard_t *shards)
{
    int n_hops = build->topo->world - 1;
    size_t n_chunks = tw_shards_most_chunks(build, shards), most_delay = (size_t)n_hops * TW_HOP_ROUNDS;

    for (size_t c = 0; n_hops == 0 && c < n_chunks; c++) { /* alone: only the factors are left to do */
        shards->task[c] = add_up(build, shards, c, NULL, 1);
    }
    for (size_t round = 0; n_hops > 0 && round < n_chunks + most_delay; round++) {
        tw_sched_next_round(build->sched);
        for (int hop = 0; hop < n_hops; hop++) {
            reduce_hop(build, shards, hop, round);
        }
    }
}

/* Hop by hop, whatever is long there: nothing is kept but what is packed while it travels. */
static void allgather(const tw_build_t *build, tw_shard_t *shards)
{
    const tw_topo_t *topo = build->topo;
    tw_sched_t *sched = build->sched;
    size_t n_chunks = tw_shards_most_chunks(build, shards);

    for (size_t i = 0; i < n_chunks * (size_t)(topo->world - 1); i++) {
        int hop = (int)(i / n_chunks);
        size_t c = i % n_chunks;
        tw_shard_t *out = &shards[tw_topo_ring_rank(topo, -hop)];
        tw_shard_t *in = &shards[tw_topo_ring_rank(topo, -1 - hop)];
        tw_sched_next_round(sched);
        if (c < out->n_chunks) {
            tw_span_t chunk = hop == 0 ? tw_shard_in(build, out, c) : tw_shard_out(build, out, c);
            tw_task_t send = tw_sched_send(sched, tw_topo_ring_rank(topo, 1), chunk);
            tw_sched_after(sched, send, out->task[c]);
        }
        if (c < in->n_chunks) {
            tw_task_t recv = tw_sched_recv(sched, tw_topo_ring_rank(topo, -1), tw_shard_out(build, in, c));
            tw_sched_after(sched, recv, in->task[c]);
            in->task[c] = recv;
        }
    }
}

static void build_allgather(const tw_build_t *build)
{
    tw_build_allgather(build, allgather);
}

static void build_reduce_scatter(const tw_build_t *build)
{
    tw_build_reduce_scatter(build, reduce_scatter);
}

static void build_allreduce(const tw_build_t *build)
{
    tw_build_allreduce(build, reduce_scatter, allgather);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLGATHER, "ring",
                 "each shard travels from rank to rank, leaving each node once; W - 1 hops", 0},
        .build = build_allgather,
        .flows = {.spread = tw_flow_spread_ring},
    },
    {
        .info =
            {TW_COLL_REDUCE_SCATTER, "ring",
             "partial sums travel from rank to rank, rounded to the tensor's type on each hop; W - 1 hops",
             0},
        .build = build_reduce_scatter,
        .flows = {.reduce = tw_flow_reduce_ring},
        .owner_matters = 1,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "ring", "ring reduce-scatter, then ring all-gather; 2 (W - 1) hops", 0},
        .build = build_allreduce,
        .flows = {.reduce = tw_flow_reduce_ring, .spread = tw_flow_spread_ring},
        .owner_matters = 1,
    },
};

const tw_algo_rows_t tw_ring_rows = {algos, sizeof(algos) / sizeof(algos[0])};
