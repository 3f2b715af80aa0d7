#include "collectives/quantized/gather.h"

/* ---- routes -------------------------------------------------------------------------------------------- */

static int ring_distance(const tw_topo_t *topo, int from, int to)
{
    return (topo->position[to] - topo->position[from] + topo->world) % topo->world;
}

static int ring_parent(const tw_topo_t *topo, int owner, int rank)
{
    (void)owner;
    return topo->ring[(topo->position[rank] + topo->world - 1) % topo->world];
}

const tw_route_t tw_route_ring = {ring_parent, ring_distance};

static int node_distance(const tw_topo_t *topo, int owner, int rank)
{
    return (topo->node[rank] - topo->node[owner] + topo->n_nodes) % topo->n_nodes;
}

static int nodes_parent(const tw_topo_t *topo, int owner, int rank)
{
    int node = topo->node[rank], own_gateway = tw_topo_gateway(topo, owner, node);

    if (rank != own_gateway) {
        return own_gateway;
    }
    return tw_topo_gateway(topo, owner, (node + topo->n_nodes - 1) % topo->n_nodes);
}

const tw_route_t tw_route_nodes = {nodes_parent, node_distance};

static int direct_parent(const tw_topo_t *topo, int owner, int rank)
{
    (void)topo;
    (void)rank;
    return owner;
}

static int direct_step(const tw_topo_t *topo, int owner, int rank)
{
    (void)topo;
    return owner != rank;
}

const tw_route_t tw_route_direct = {direct_parent, direct_step};

/* ---- emitting ------------------------------------------------------------------------------------------ */

/** Who gets the shard of `owner` from this rank; returns the end of the list. */
static int *add_children(tw_spread_t *spread, int owner, int *end)
{
    const tw_topo_t *topo = spread->op->topo;

    for (int d = 1; d < topo->world; d++) {
        int rank = tw_topo_ring_rank(topo, d);
        if (rank != owner && spread->route->parent(topo, owner, rank) == topo->rank) {
            int step = spread->route->step(topo, owner, rank);
            *end++ = rank;
            spread->last_step = step > spread->last_step ? step : spread->last_step;
        }
    }
    return end;
}

tw_spread_t *tw_spread_create(const tw_qop_t *op, const tw_route_t *route)
{
    const tw_topo_t *topo = op->topo;
    size_t n = op->grid.n_chunks + 1, world = (size_t)topo->world;
    tw_spread_t *spread = tw_sched_alloc(op->sched, sizeof(*spread));

    if (!spread) {
        return NULL;
    }
    *spread = (tw_spread_t){.op = op, .route = route};
    spread->ready = tw_sched_alloc(op->sched, n * sizeof(*spread->ready));
    spread->buffers = tw_sched_alloc(op->sched, n * sizeof(*spread->buffers));
    spread->first_child = tw_sched_alloc(op->sched, (world + 1) * sizeof(*spread->first_child));
    spread->children = tw_sched_alloc(op->sched, world * world * sizeof(*spread->children));
    if (!spread->ready || !spread->buffers || !spread->first_child || !spread->children) {
        return NULL;
    }
    int *end = spread->children;
    for (int owner = 0; owner < topo->world; owner++) {
        int step = route->step(topo, owner, topo->rank);
        spread->last_step = step > spread->last_step ? step : spread->last_step;
        end = add_children(spread, owner, end);
        spread->first_child[owner + 1] = (int)(end - spread->children);
    }
    return spread;
}

size_t tw_spread_rounds(const tw_spread_t *spread)
{
    size_t n = spread->op->grid.shard_chunks;

    return n > 0 ? n + (size_t)spread->last_step * TW_HOP_ROUNDS : 0;
}

/** A chunk comes to this rank; its own one is here, and in dst already if nothing is lost on the way. */
static void arrive(const tw_spread_t *spread, int owner, size_t chunk)
{
    const tw_qop_t *op = spread->op;
    const tw_topo_t *topo = op->topo;

    if (owner == topo->rank && tw_qop_is_lossless(op, chunk)) {
        return;
    }
    if (owner != topo->rank) {
        spread->buffers[chunk] = tw_qop_message_buffer(op, chunk);
        spread->ready[chunk] = tw_sched_recv(op->sched, spread->route->parent(topo, owner, topo->rank),
                                             tw_qop_message_span(op, chunk, spread->buffers[chunk]));
    }
    tw_task_t decode = tw_qop_decode(op, chunk, spread->buffers[chunk]);
    tw_sched_after(op->sched, decode, spread->ready[chunk]);
    if (spread->read) {
        tw_sched_after(op->sched, decode, spread->read[chunk]);
    }
}

/** A chunk goes to those who get it from here in this step. */
static void send_on(const tw_spread_t *spread, int owner, size_t chunk, int step)
{
    const tw_qop_t *op = spread->op;

    for (int i = spread->first_child[owner]; i < spread->first_child[owner + 1]; i++) {
        int rank = spread->children[i];
        if (spread->route->step(op->topo, owner, rank) == step) {
            tw_span_t message = tw_qop_message_span(op, chunk, spread->buffers[chunk]);
            tw_sched_after(op->sched, tw_sched_send(op->sched, rank, message), spread->ready[chunk]);
        }
    }
}

void tw_spread_round(const tw_spread_t *spread, size_t round)
{
    const tw_qop_t *op = spread->op;
    const tw_topo_t *topo = op->topo;

    for (int step = 0; step <= spread->last_step; step++) {
        size_t c;
        if (!tw_hop_chunk(round, step, op->grid.shard_chunks, &c)) {
            continue;
        }
        for (int p = 0; p < topo->world; p++) {
            int owner = topo->ring[p];
            const tw_grid_shard_t *shard = &op->grid.shards[owner];
            if (c >= shard->n_chunks) {
                continue;
            }
            if (spread->route->step(topo, owner, topo->rank) == step) {
                arrive(spread, owner, shard->first_chunk + c);
            }
            send_on(spread, owner, shard->first_chunk + c, step);
        }
    }
}

/* ---- all-gather ---------------------------------------------------------------------------------------- */

static void build(const tw_build_t *build, const tw_route_t *route)
{
    tw_qop_t *op = tw_qop_create(build);
    tw_spread_t *spread = op ? tw_spread_create(op, route) : NULL;

    for (size_t round = 0; spread && round < tw_spread_rounds(spread); round++) {
        const tw_grid_shard_t *own = &op->grid.shards[op->topo->rank];
        size_t chunk = own->first_chunk + round;
        tw_sched_next_round(op->sched);
        if (round < own->n_chunks) {
            spread->buffers[chunk] = tw_qop_message_buffer(op, chunk);
            spread->ready[chunk] = tw_qop_encode_message(op, chunk, spread->buffers[chunk]);
            if (tw_qop_is_lossless(op, chunk)) {
                tw_qop_keep(op, chunk);
            }
        }
        tw_spread_round(spread, round);
    }
}

static void build_ring(const tw_build_t *b)
{
    build(b, &tw_route_ring);
}

static void build_hierarchical(const tw_build_t *b)
{
    build(b, &tw_route_nodes);
}

static void build_direct(const tw_build_t *b)
{
    build(b, &tw_route_direct);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLGATHER, "ring",
                 "each encoded shard travels from rank to rank, leaving each node once; W - 1 hops", 1},
        .build = build_ring,
        .flows = {.spread = tw_flow_spread_ring},
    },
    {
        .info = {TW_COLL_ALLGATHER, "hierarchical",
                 "each encoded shard travels from node to node and is spread inside; N - 1 hops and one", 1},
        .build = build_hierarchical,
        .flows = {.spread = tw_flow_spread_hierarchical},
    },
    {
        .info = {TW_COLL_ALLGATHER, "direct",
                 "each encoded shard goes from its owner to every rank; one hop, for small tensors", 1},
        .build = build_direct,
        .flows = {.spread = tw_flow_spread_direct},
    },
};

const tw_algo_rows_t tw_quantized_gather_rows = {algos, sizeof(algos) / sizeof(algos[0])};
