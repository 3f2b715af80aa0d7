/** Ring: pieces travel from each rank to the next, node by node, so that each link between nodes carries every piece
 *  once. In a reduce-scatter, partial sums travel in the tensor's type: each hop rounds once, as NCCL's ring does. */
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/table.h"

/* A chunk of partial sums comes in, ours is added, and it goes on, or ends here. */
static void add_chunk(const tw_build_t *build, tw_piece_t *piece, size_t c, int is_last)
{
    const tw_topo_t *topo = build->topo;
    tw_span_t partial = tw_piece_scratch(build, piece, c);
    tw_span_t inputs[2] = {partial, tw_piece_in(build, piece, c)};
    tw_work_sum_t sum = {
        .type = build->args->type,
        .inputs = inputs,
        .n_inputs = 2,
        .factor = is_last ? build->factor : 1.0f,
        .to = is_last ? tw_piece_out(build, piece, c) : partial,
    };
    tw_task_t recv = tw_sched_recv(build->sched, tw_topo_ring_rank(topo, -1), partial);

    piece->task[c] = tw_work_reduce(build->sched, &sum);
    tw_sched_after(build->sched, piece->task[c], recv);
    if (is_last) {
        return;
    }
    tw_task_t send = tw_sched_send(build->sched, tw_topo_ring_rank(topo, 1), partial);
    tw_sched_after(build->sched, send, piece->task[c]);
}

/* A world of one: only the factor is left to do. */
static void scale(const tw_build_t *build, tw_piece_t *piece)
{
    for (size_t c = 0; c < piece->n_chunks; c++) {
        tw_span_t in = tw_piece_in(build, piece, c);
        tw_work_sum_t sum = {build->args->type, &in, 1, build->factor, tw_piece_out(build, piece, c)};
        piece->task[c] = tw_work_reduce(build->sched, &sum);
    }
}

/* Piece r's sum starts after rank r and ends there. */
static void reduce_scatter(const tw_build_t *build, tw_piece_t *pieces)
{
    const tw_topo_t *topo = build->topo;
    tw_piece_t *piece = &pieces[tw_topo_ring_rank(topo, -1)];

    if (topo->world == 1) {
        scale(build, pieces);
        return;
    }
    for (size_t c = 0; c < piece->n_chunks; c++) {
        piece->task[c] =
            tw_sched_send(build->sched, tw_topo_ring_rank(topo, 1), tw_piece_in(build, piece, c));
    }
    for (int distance = 2; distance <= topo->world; distance++) {
        piece = &pieces[tw_topo_ring_rank(topo, -distance)];
        for (size_t c = 0; c < piece->n_chunks; c++) {
            add_chunk(build, piece, c, distance == topo->world);
        }
    }
}

static void allgather(const tw_build_t *build, tw_piece_t *pieces)
{
    const tw_topo_t *topo = build->topo;
    tw_sched_t *sched = build->sched;
    tw_piece_t *piece = &pieces[topo->rank];

    if (topo->world == 1) {
        return;
    }
    for (size_t c = 0; c < piece->n_chunks; c++) {
        tw_task_t send = tw_sched_send(sched, tw_topo_ring_rank(topo, 1), tw_piece_in(build, piece, c));
        tw_sched_after(sched, send, piece->task[c]);
    }
    for (int distance = 1; distance < topo->world; distance++) {
        piece = &pieces[tw_topo_ring_rank(topo, -distance)];
        for (size_t c = 0; c < piece->n_chunks; c++) {
            tw_span_t out = tw_piece_out(build, piece, c);
            tw_task_t recv = tw_sched_recv(sched, tw_topo_ring_rank(topo, -1), out);
            tw_sched_after(sched, recv, piece->task[c]);
            piece->task[c] = recv;
            if (distance + 1 < topo->world) {
                tw_sched_after(sched, tw_sched_send(sched, tw_topo_ring_rank(topo, 1), out), recv);
            }
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

/* Every rank sends all pieces but one to the next rank. */
static void add_pass(const tw_case_t *c, tw_coll_cost_t *cost)
{
    int hops = c->topo->world - 1;

    tw_cost_add_ring(c, hops, c->bytes * hops / c->topo->world, cost);
}

static void cost_allgather(const tw_case_t *c, tw_coll_cost_t *cost)
{
    add_pass(c, cost);
}

static void cost_reduce_scatter(const tw_case_t *c, tw_coll_cost_t *cost)
{
    add_pass(c, cost);
    cost->cpu_sec += c->bytes * c->model->reduce_sec;
}

static void cost_allreduce(const tw_case_t *c, tw_coll_cost_t *cost)
{
    cost_reduce_scatter(c, cost);
    add_pass(c, cost);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLGATHER, "ring",
                 "each shard travels from rank to rank, leaving each node once; W - 1 hops", 0},
        .build = build_allgather,
        .cost = cost_allgather,
    },
    {
        .info =
            {TW_COLL_REDUCE_SCATTER, "ring",
             "partial sums travel from rank to rank, rounded to the tensor's type on each hop; W - 1 hops",
             0},
        .build = build_reduce_scatter,
        .cost = cost_reduce_scatter,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "ring", "ring reduce-scatter, then ring all-gather; 2 (W - 1) hops", 0},
        .build = build_allreduce,
        .cost = cost_allreduce,
    },
};

const tw_algo_rows_t tw_ring_rows = {algos, sizeof(algos) / sizeof(algos[0])};
