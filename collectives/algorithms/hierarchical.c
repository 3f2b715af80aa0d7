/** Hierarchical: each piece crosses between nodes once per node, and the ranks of a node share that work.
 *
 *  Piece (m, i), of the i-th rank on node m, is handled on node n by that node's rank i mod L_n (ranks per node may
 *  differ). All-gather: the piece goes from its owner along the nodes m+1, m+2, ... by way of its handlers, each of
 *  which spreads it in its node. Reduce-scatter: every rank of a node gives its contribution to the handler, who sums
 *  them in fp32 in rank order together with what comes from the node before, rounds to the tensor's type, and sends that
 *  on; the sum starts on node m+1 and ends at the owner. */
#include <math.h>

#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/table.h"

/* The node `distance` further on. */
static int node_at(const tw_topo_t *topo, int distance)
{
    return (topo->node[topo->rank] + distance + topo->n_nodes) % topo->n_nodes;
}

static int next_handler(const tw_topo_t *topo, int owner)
{
    return tw_topo_gateway(topo, owner, node_at(topo, 1));
}

/* ---- all-gather ------------------------------------------------------------------------------------------ */

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

static void start_own(const tw_build_t *build, tw_piece_t *own)
{
    const tw_topo_t *topo = build->topo;

    for (size_t c = 0; c < own->n_chunks; c++) {
        tw_span_t in = tw_piece_in(build, own, c);
        if (topo->n_nodes > 1) {
            int next = next_handler(topo, topo->rank);
            tw_sched_after(build->sched, tw_sched_send(build->sched, next, in), own->task[c]);
        }
        spread(build, in, own->task[c]);
    }
}

static tw_task_t receive(const tw_build_t *build, tw_piece_t *piece, size_t c, int from)
{
    tw_task_t recv = tw_sched_recv(build->sched, from, tw_piece_out(build, piece, c));

    tw_sched_after(build->sched, recv, piece->task[c]);
    piece->task[c] = recv;
    return recv;
}

/* This rank handles the piece: take it from the node before, send it on, spread it. */
static void pass_on(const tw_build_t *build, tw_piece_t *piece, int owner, int distance)
{
    const tw_topo_t *topo = build->topo;
    int from = distance == 1 ? owner : tw_topo_gateway(topo, owner, node_at(topo, -1));

    for (size_t c = 0; c < piece->n_chunks; c++) {
        tw_task_t recv = receive(build, piece, c, from);
        tw_span_t out = tw_piece_out(build, piece, c);
        if (distance + 1 < topo->n_nodes) {
            tw_sched_after(build->sched, tw_sched_send(build->sched, next_handler(topo, owner), out), recv);
        }
        spread(build, out, recv);
    }
}

/* A piece of another rank: from outside if this rank handles it, else from the handler. */
static void gather_piece(const tw_build_t *build, tw_piece_t *pieces, int owner, int distance)
{
    const tw_topo_t *topo = build->topo;
    int from = tw_topo_gateway(topo, owner, topo->node[topo->rank]);
    tw_piece_t *piece = &pieces[owner];

    if (distance > 0 && from == topo->rank) {
        pass_on(build, piece, owner, distance);
        return;
    }
    for (size_t c = 0; c < piece->n_chunks; c++) {
        receive(build, piece, c, from);
    }
}

static void allgather(const tw_build_t *build, tw_piece_t *pieces)
{
    const tw_topo_t *topo = build->topo;

    start_own(build, &pieces[topo->rank]);
    for (int distance = 0; distance < topo->n_nodes; distance++) {
        int node = node_at(topo, -distance);
        for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
            int owner = tw_topo_rank_at(topo, node, l);
            if (owner != topo->rank) {
                gather_piece(build, pieces, owner, distance);
            }
        }
    }
}

/* ---- reduce-scatter -------------------------------------------------------------------------------------- */

typedef struct handled_sum {
    tw_span_t *inputs; /* [1 + ranks of the node] */
    tw_task_t *ready;
    size_t n;
} handled_sum_t;

/* The node's contributions to chunk c, after what came from the node before (from: its rank, or -1). */
static void collect(const tw_build_t *build, tw_piece_t *piece, size_t c, int from, handled_sum_t *sum)
{
    const tw_topo_t *topo = build->topo;
    int node = topo->node[topo->rank];

    sum->n = 0;
    if (from >= 0) {
        sum->inputs[0] = tw_piece_scratch(build, piece, c);
        sum->ready[0] = tw_sched_recv(build->sched, from, sum->inputs[0]);
        sum->n = 1;
    }
    for (int l = 0; l < tw_topo_node_size(topo, node); l++, sum->n++) {
        int mate = tw_topo_rank_at(topo, node, l);
        sum->inputs[sum->n] = tw_piece_in(build, piece, c);
        sum->ready[sum->n] = TW_TASK_NONE;
        if (mate == topo->rank) {
            continue;
        }
        sum->inputs[sum->n] = tw_piece_scratch(build, piece, c);
        sum->ready[sum->n] = tw_sched_recv(build->sched, mate, sum->inputs[sum->n]);
    }
}

static tw_task_t add_up(const tw_build_t *build, const handled_sum_t *handled, float factor, tw_span_t to)
{
    tw_work_sum_t sum = {build->args->type, handled->inputs, handled->n, factor, to};
    tw_task_t task = tw_work_reduce(build->sched, &sum);

    for (size_t i = 0; i < handled->n; i++) {
        tw_sched_after(build->sched, task, handled->ready[i]);
    }
    return task;
}

/* This rank handles the piece, whose owner's node is `distance` nodes back. */
static void handle_piece(const tw_build_t *build, tw_piece_t *piece, int owner, int distance)
{
    const tw_topo_t *topo = build->topo;
    int is_owner = owner == topo->rank;
    int from = distance > 1 ? tw_topo_gateway(topo, owner, node_at(topo, -1)) : -1;
    int to = distance + 1 < topo->n_nodes ? next_handler(topo, owner) : owner;
    size_t most = (size_t)topo->max_local + 1;
    handled_sum_t sum = {
        .inputs = tw_sched_alloc(build->sched, most * sizeof(*sum.inputs)),
        .ready = tw_sched_alloc(build->sched, most * sizeof(*sum.ready)),
    };

    if (sum.inputs == NULL || sum.ready == NULL) {
        return;
    }
    for (size_t c = 0; c < piece->n_chunks; c++) {
        collect(build, piece, c, from, &sum);
        if (is_owner) {
            piece->task[c] = add_up(build, &sum, build->factor, tw_piece_out(build, piece, c));
            continue;
        }
        tw_span_t partial = tw_piece_scratch(build, piece, c);
        piece->task[c] = add_up(build, &sum, 1.0f, partial);
        tw_sched_after(build->sched, tw_sched_send(build->sched, to, partial), piece->task[c]);
    }
}

/* Node by node, the own one last: its sums have gone round by then. */
static void reduce_scatter(const tw_build_t *build, tw_piece_t *pieces)
{
    const tw_topo_t *topo = build->topo;

    for (int distance = 1; distance <= topo->n_nodes; distance++) {
        int node = node_at(topo, -distance);
        for (int l = 0; l < tw_topo_node_size(topo, node); l++) {
            int owner = tw_topo_rank_at(topo, node, l);
            int by = tw_topo_gateway(topo, owner, topo->node[topo->rank]);
            tw_piece_t *piece = &pieces[owner];
            if (by == topo->rank) {
                handle_piece(build, piece, owner, distance);
                continue;
            }
            for (size_t c = 0; c < piece->n_chunks; c++) {
                piece->task[c] = tw_sched_send(build->sched, by, tw_piece_in(build, piece, c));
            }
        }
    }
}

/* ---- operations ------------------------------------------------------------------------------------------ */

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

/* Either phase: a node receives, or gives away, what is not its own; inside, everyone needs, or gives, everything. */
static void add_phase(const tw_case_t *c, tw_coll_cost_t *cost)
{
    const tw_topo_t *topo = c->topo;
    double shard = c->bytes / topo->world, remote = shard * (topo->world - topo->min_local);
    int hops = topo->n_nodes - 1, mates = topo->max_local - 1;
    double handled = remote / topo->min_local;

    cost->inter_rounds += hops;
    cost->inter_bytes += remote;
    cost->inter_messages += hops > 0 ? fmax(tw_cost_messages(c, handled), hops) : 0;
    cost->node_rounds += mates > 0;
    cost->node_bytes += c->bytes * mates;
    cost->node_messages += mates > 0 ? fmax(tw_cost_messages(c, handled + shard), topo->n_nodes) * mates : 0;
}

static void cost_allgather(const tw_case_t *c, tw_coll_cost_t *cost)
{
    add_phase(c, cost);
}

static void cost_reduce_scatter(const tw_case_t *c, tw_coll_cost_t *cost)
{
    add_phase(c, cost);
    cost->cpu_sec += c->bytes * (1 + (double)c->topo->n_nodes / c->topo->world) * c->model->reduce_sec;
}

static void cost_allreduce(const tw_case_t *c, tw_coll_cost_t *cost)
{
    cost_reduce_scatter(c, cost);
    add_phase(c, cost);
}

static const tw_algo_t algos[] = {
    {
        .info =
            {TW_COLL_ALLGATHER, "hierarchical",
             "shards travel from node to node, the ranks of a node share that work and spread them inside",
             0},
        .build = build_allgather,
        .cost = cost_allgather,
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "hierarchical",
                 "summed inside the node in fp32 in rank order, then from node to node, rounded on each hop",
                 0},
        .build = build_reduce_scatter,
        .cost = cost_reduce_scatter,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "hierarchical", "hierarchical reduce-scatter, then all-gather", 0},
        .build = build_allreduce,
        .cost = cost_allreduce,
    },
};

const tw_algo_rows_t tw_hierarchical_rows = {algos, sizeof(algos) / sizeof(algos[0])};
