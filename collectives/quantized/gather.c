/* Quantized all-gather: each shard is encoded once, by its owner, and sent on as it is. Everybody decodes the same bytes,
 * the owner too. */
#include "collectives/quantized/cost.h"
#include "collectives/quantized/spread.h"

static void build(const tw_build_t *build, const tw_route_t *route)
{
    tw_qop_t *op = tw_qop_create(build);
    tw_spread_t *spread = op != NULL ? tw_spread_create(op, route) : NULL;

    for (size_t round = 0; spread != NULL && round < tw_spread_rounds(spread); round++) {
        const tw_grid_shard_t *own = &op->grid.shards[op->topo->rank];
        size_t chunk = own->first_chunk + round;
        tw_sched_next_round(op->sched);
        if (round < own->n_chunks) {
            tw_quant_t *codec = tw_qop_codec(op, chunk);
            spread->buffers[chunk] = tw_qop_buffer(op, chunk, codec);
            spread->ready[chunk] = tw_qop_encode(op, chunk, codec, spread->buffers[chunk]);
        }
        tw_spread_round(spread, round);
    }
}

static void build_ring(const tw_build_t *b)
{
    build(b, &tw_route_ring);
}

static void cost_ring(const tw_case_t *c, tw_coll_cost_t *cost)
{
    int world = c->topo->world;

    tw_cost_add_ring(c, world - 1, c->encoded_bytes * (world - 1) / world, cost);
    tw_cost_add_spread_codec(c, cost);
}

static void build_hierarchical(const tw_build_t *b)
{
    build(b, &tw_route_nodes);
}

static void cost_hierarchical(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_spread_nodes(c, cost);
}

static void build_direct(const tw_build_t *b)
{
    build(b, &tw_route_direct);
}

static void cost_direct(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_all_pairs(c, c->encoded_bytes / c->topo->world, cost);
    tw_cost_add_spread_codec(c, cost);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_ALLGATHER, "ring",
                 "each encoded shard travels from rank to rank, leaving each node once; W - 1 hops", 1},
        .build = build_ring,
        .cost = cost_ring,
    },
    {
        .info = {TW_COLL_ALLGATHER, "hierarchical",
                 "each encoded shard travels from node to node and is spread inside; N - 1 hops and one", 1},
        .build = build_hierarchical,
        .cost = cost_hierarchical,
    },
    {
        .info = {TW_COLL_ALLGATHER, "direct",
                 "each encoded shard goes from its owner to every rank; one hop, for small tensors", 1},
        .build = build_direct,
        .cost = cost_direct,
    },
};

const tw_algo_rows_t tw_quantized_gather_rows = {algos, sizeof(algos) / sizeof(algos[0])};
