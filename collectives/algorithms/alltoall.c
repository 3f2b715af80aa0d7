/** All-to-all: on step s every rank sends to the one s further on and receives from the one s before; steps
 *  overlap. In place, all that is sent is put aside first: this takes as much scratch memory as the tensors
 *  do. */
#include "collectives/algorithms/algorithm.h"

/* Put a chunk of `in` aside, after `*copied`, which becomes this copy: the last one has everything behind
 * it. */
static tw_span_t set_aside(const tw_build_t *build, tw_span_t chunk, tw_task_t *copied)
{
    size_t bytes = chunk.n * build->in->elem_bytes;
    tw_span_t copy = tw_span_buffer(tw_sched_buffer(build->sched, bytes), 0, bytes);
    tw_task_t task = tw_work_copy(build->sched, chunk, copy);

    tw_sched_after(build->sched, task, *copied);
    *copied = task;
    return copy;
}

/* Chunk c of what is between first[peer] and the next one; 0 elements: there is none. */
static tw_span_t chunk_of(const tw_build_t *build, const tw_view_t *view, const size_t *first, int peer,
                          size_t c)
{
    size_t n = first[peer + 1] - first[peer], at = c * build->chunk_elems;

    return tw_span_view(view, first[peer] + at, at < n ? tw_chunk_elems(build, n, c) : 0);
}

static void send_chunks(const tw_build_t *build, size_t c, tw_task_t *copied)
{
    int world = build->topo->world;

    for (int step = 1; step < world; step++) {
        int to = (build->topo->rank + step) % world;
        tw_span_t chunk = chunk_of(build, build->in, build->in_first, to, c);
        if (build->aliased && chunk.n > 0) {
            chunk = set_aside(build, chunk, copied);
        }
        tw_sched_after(build->sched, tw_sched_send(build->sched, to, chunk), *copied);
    }
}

static void receive_chunks(const tw_build_t *build, size_t c, tw_task_t copied)
{
    int world = build->topo->world;

    for (int step = 1; step < world; step++) {
        int from = (build->topo->rank - step + world) % world;
        tw_span_t chunk = chunk_of(build, build->out, build->out_first, from, c);
        tw_sched_after(build->sched, tw_sched_recv(build->sched, from, chunk), copied);
    }
}

/* Most chunks of what goes to one rank or comes from one. */
static size_t most_chunks(const tw_build_t *build)
{
    size_t most = 0;

    for (int r = 0; r < build->topo->world; r++) {
        size_t in = build->in_first[r + 1] - build->in_first[r];
        size_t out = build->out_first[r + 1] - build->out_first[r];
        most = in > most ? in : most;
        most = out > most ? out : most;
    }
    return tw_chunk_count(build, most);
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
    int rank = build->topo->rank;
    size_t n_chunks = most_chunks(build);
    tw_task_t copied = TW_TASK_NONE;
    tw_span_t own =
        tw_span_view(build->in, build->in_first[rank], build->in_first[rank + 1] - build->in_first[rank]);

    if (build->aliased && own.n > 0) {
        own = set_aside(build, own, &copied);
    }
    for (size_t c = 0; c < n_chunks; c++) {
        if (!build->aliased) {
            tw_sched_next_round(build->sched);
        }
        send_chunks(build, c, &copied);
        if (!build->aliased) {
            receive_chunks(build, c, copied);
        }
    }
    for (size_t c = 0; c < n_chunks && build->aliased; c++) {
        receive_chunks(build, c, copied);
    }
    keep_own(build, own, copied);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLTOALL, "pairwise", "each shard goes straight to its rank; one hop", 0},
        .build = build_pairwise_alltoall,
        .flows = {.spread = tw_flow_spread_direct, .by_pair = 1},
    },
};

const tw_algo_rows_t tw_alltoall_rows = {algos, sizeof(algos) / sizeof(algos[0])};
