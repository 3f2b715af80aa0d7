#include "collectives/quantized/spread.h"

/* ---- routes ---------------------------------------------------------------------------------------------- */

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

/* ---- emitting -------------------------------------------------------------------------------------------- */

/** To those who get this shard from here; starting behind this rank, so that not all ranks turn to the same one. */
static void send_on(const tw_spread_t *spread, int owner, tw_span_t message, tw_task_t ready)
{
    const tw_topo_t *topo = spread->op->topo;

    for (int d = 1; d < topo->world; d++) {
        int rank = tw_topo_ring_rank(topo, d);
        if (rank != owner && spread->route->parent(topo, owner, rank) == topo->rank) {
            tw_sched_after(spread->op->sched, tw_sched_send(spread->op->sched, rank, message), ready);
        }
    }
}

static void spread_chunk(const tw_spread_t *spread, int owner, size_t chunk)
{
    const tw_qop_t *op = spread->op;
    const tw_topo_t *topo = op->topo;
    int own = owner == topo->rank;
    tw_sbuf_t buffer = own ? spread->buffers[chunk] : tw_qop_buffer(op, chunk, op->codec);
    tw_span_t message = tw_qop_span(op, chunk, op->codec, buffer);
    tw_task_t ready = own ? spread->encoded[chunk]
                          : tw_sched_recv(op->sched, spread->route->parent(topo, owner, topo->rank), message);

    send_on(spread, owner, message, ready);
    tw_task_t decode = tw_qop_decode(op, chunk, buffer);
    tw_sched_after(op->sched, decode, ready);
    if (spread->read != NULL) {
        tw_sched_after(op->sched, decode, spread->read[chunk]);
    }
}

/** Owners whose shard comes here in this step; [world], returns how many. */
static int owners_of_step(const tw_spread_t *spread, int step, int *owners)
{
    const tw_topo_t *topo = spread->op->topo;
    int n = 0;

    for (int p = 0; p < topo->world; p++) {
        if (spread->route->step(topo, topo->ring[p], topo->rank) == step) {
            owners[n++] = topo->ring[p];
        }
    }
    return n;
}

void tw_spread_build(const tw_spread_t *spread)
{
    const tw_qop_t *op = spread->op;
    int *owners = tw_sched_alloc(op->sched, (size_t)op->topo->world * sizeof(*owners));

    if (owners == NULL) {
        return;
    }
    for (int step = 0; step < op->topo->world; step++) {
        int n_owners = owners_of_step(spread, step, owners);
        for (size_t c = 0; n_owners > 0 && c < op->grid.shard_chunks; c++) {
            for (int i = 0; i < n_owners; i++) {
                const tw_grid_shard_t *shard = &op->grid.shards[owners[i]];
                if (c < shard->n_chunks) {
                    spread_chunk(spread, owners[i], shard->first_chunk + c);
                }
            }
        }
    }
}
