/** All-to-all: on step s every rank sends to the one s further on and receives from the one s before; steps overlap. */
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/table.h"

/* Put a chunk of `in` aside, after `*copied`, which becomes this copy: the last one has everything behind it. */
static tw_span_t set_aside(const tw_build_t *build, tw_span_t chunk, tw_task_t *copied)
{
    size_t bytes = chunk.n * build->in->elem_bytes;
    tw_span_t copy = tw_span_buffer(tw_sched_buffer(build->sched, bytes), 0, bytes);
    tw_task_t task = tw_work_copy(build->sched, chunk, copy);

    tw_sched_after(build->sched, task, *copied);
    *copied = task;
    return copy;
}

static void send_shard(const tw_build_t *build, int to, tw_task_t *copied)
{
    size_t first = build->in_first[to], n = build->in_first[to + 1] - first;

    for (size_t c = 0; c < tw_chunk_count(build, n); c++) {
        tw_span_t chunk =
            tw_span_view(build->in, first + c * build->chunk_elems, tw_chunk_elems(build, n, c));
        if (build->aliased) {
            chunk = set_aside(build, chunk, copied);
        }
        tw_sched_after(build->sched, tw_sched_send(build->sched, to, chunk), *copied);
    }
}

static void receive_shard(const tw_build_t *build, int from, tw_task_t copied)
{
    size_t first = build->out_first[from], n = build->out_first[from + 1] - first;

    for (size_t c = 0; c < tw_chunk_count(build, n); c++) {
        tw_span_t chunk =
            tw_span_view(build->out, first + c * build->chunk_elems, tw_chunk_elems(build, n, c));
        tw_sched_after(build->sched, tw_sched_recv(build->sched, from, chunk), copied);
    }
}

/* The own shard: from `in`, or from where it was put aside, in one piece. */
static void keep_own(const tw_build_t *build, tw_span_t own, tw_task_t copied)
{
    int rank = build->topo->rank;
    tw_span_t to =
        tw_span_view(build->out, build->out_first[rank], build->out_first[rank + 1] - build->out_first[rank]);

    tw_sched_after(build->sched, tw_work_copy(build->sched, own, to), copied);
}

static void build_pairwise_alltoall(const tw_build_t *build)
{
    int world = build->topo->world, rank = build->topo->rank;
    tw_task_t copied = TW_TASK_NONE;
    tw_span_t own =
        tw_span_view(build->in, build->in_first[rank], build->in_first[rank + 1] - build->in_first[rank]);

    if (build->aliased && own.n > 0) {
        own = set_aside(build, own, &copied);
    }
    for (int step = 1; step < world; step++) {
        send_shard(build, (rank + step) % world, &copied);
    }
    for (int step = 1; step < world; step++) {
        receive_shard(build, (rank - step + world) % world, copied);
    }
    keep_own(build, own, copied);
}

static void cost_pairwise_alltoall(const tw_case_t *c, tw_coll_cost_t *cost)
{
    const tw_topo_t *topo = c->topo;
    double shard = c->bytes / topo->world;
    int mates = topo->max_local - 1, remote = topo->world - topo->min_local;

    cost->inter_rounds += remote > 0;
    cost->inter_messages += remote > 0 ? tw_cost_messages(c, shard) * remote : 0;
    cost->inter_bytes += shard * tw_topo_remote_pairs(topo);
    cost->node_rounds += remote == 0 && mates > 0;
    cost->node_messages += tw_cost_messages(c, shard) * mates;
    cost->node_bytes += shard * mates * topo->max_local;
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLTOALL, "pairwise", "each shard goes straight to its rank; one hop", 0},
        .build = build_pairwise_alltoall,
        .cost = cost_pairwise_alltoall,
    },
};

const tw_algo_rows_t tw_alltoall_rows = {algos, sizeof(algos) / sizeof(algos[0])};
