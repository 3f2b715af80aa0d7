/** Exchange: an all-reduce in one hop for tiny tensors. Everybody sends everything to everybody. */
#include "collectives/algorithms/algorithm.h"

/* The rank `distance` further on: each step pairs every rank with another one. */
static int rank_at(const tw_topo_t *topo, int distance)
{
    return (topo->rank + distance + topo->world) % topo->world;
}

/* Sum up a chunk: inputs [W] by rank, each there when its task has ended. */
static tw_task_t sum_chunk(const tw_build_t *build, const tw_span_t *inputs, const tw_task_t *ready,
                           tw_span_t to)
{
    size_t world = (size_t)build->topo->world;
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = inputs,
        .n_inputs = world,
        .scale = build->scale,
        .factor = build->factor,
        .limit = build->limit,
        .to = to,
    };
    tw_task_t task = tw_work_reduce(build->sched, &sum);

    for (size_t r = 0; r < world; r++) {
        tw_sched_after(build->sched, task, ready[r]);
    }
    return task;
}

/* Room for one span and one task per rank; 0 when out of memory. */
static int alloc_inputs(const tw_build_t *build, tw_span_t **inputs, tw_task_t **ready)
{
    size_t world = (size_t)build->topo->world;

    *inputs = tw_sched_alloc(build->sched, world * sizeof(**inputs));
    *ready = tw_sched_alloc(build->sched, world * sizeof(**ready));
    return *inputs && *ready;
}

/* Everybody's elements [first, first + n), in one hop. */
static void exchange_chunk(const tw_build_t *build, size_t first, size_t n, tw_span_t *inputs,
                           tw_task_t *ready)
{
    const tw_topo_t *topo = build->topo;
    size_t bytes = n * build->in->elem_bytes;
    tw_span_t own = tw_span_view(build->in, first, n);
    tw_task_t sent = TW_TASK_NONE;

    inputs[topo->rank] = own;
    ready[topo->rank] = TW_TASK_NONE;
    for (int distance = 1; distance < topo->world; distance++) {
        int peer = rank_at(topo, -distance);
        tw_task_t send = tw_sched_send(build->sched, rank_at(topo, distance), own);
        inputs[peer] = tw_span_buffer(tw_sched_buffer(build->sched, bytes), 0, bytes);
        ready[peer] = tw_sched_recv(build->sched, peer, inputs[peer]);
        if (build->aliased) {
            tw_task_t both = tw_sched_join(build->sched);
            tw_sched_after(build->sched, both, send);
            tw_sched_after(build->sched, both, sent);
            sent = both;
        }
    }
    ready[topo->rank] = sent;
    sum_chunk(build, inputs, ready, tw_span_view(build->out, first, n));
}

static void build_exchange_allreduce(const tw_build_t *build)
{
    size_t n_elems = build->in->n_elems;
    tw_span_t *inputs;
    tw_task_t *ready;

    if (!alloc_inputs(build, &inputs, &ready)) {
        return;
    }
    for (size_t c = 0; c < tw_chunk_count(build, n_elems); c++) {
        tw_sched_next_round(build->sched);
        exchange_chunk(build, c * build->chunk_elems, tw_chunk_elems(build, n_elems, c), inputs, ready);
    }
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLREDUCE, "exchange",
                 "everybody sends everything to everybody and sums in fp32 in rank order; one hop, for tiny "
                 "tensors",
                 0},
        .build = build_exchange_allreduce,
        .flows = {.reduce = tw_flow_reduce_direct, .of = TW_FLOWS_WHOLES},
    },
};

const tw_algo_rows_t tw_exchange_rows = {algos, sizeof(algos) / sizeof(algos[0])};
