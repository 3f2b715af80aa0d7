/* Quantized reduce-scatter, and all-reduce: a reduce-scatter whose results are encoded again and spread,
 * chunk by chunk. */
#include "collectives/quantized/collect.h"
#include "collectives/quantized/gather.h"

static void build_reduce_scatter(const tw_build_t *build, tw_collect_round_t collect_round)
{
    tw_qop_t *op = tw_qop_create(build);
    tw_collect_t *collect = op ? tw_collect_create(op, 0) : NULL;

    for (size_t round = 0; collect && round < op->grid.shard_chunks; round++) {
        tw_sched_next_round(op->sched);
        collect_round(collect, round);
    }
}

/** In place, a chunk's result comes in after everybody, this rank too, has contributed to it; the spread is
 *  told when. */
static void build_allreduce(const tw_build_t *build, tw_collect_round_t collect_round)
{
    tw_qop_t *op = tw_qop_create(build);
    tw_collect_t *collect = op ? tw_collect_create(op, 1) : NULL;
    tw_spread_t *spread = collect ? tw_spread_create(op, &tw_route_nodes) : NULL;

    if (!spread) {
        return;
    }
    const tw_grid_shard_t *own = &op->grid.shards[op->topo->rank];
    spread->read = build->aliased ? collect->read : NULL;
    for (size_t round = 0; round < tw_spread_rounds(spread); round++) {
        tw_sched_next_round(op->sched);
        if (round < op->grid.shard_chunks) {
            collect_round(collect, round);
        }
        if (round < own->n_chunks) {
            size_t chunk = own->first_chunk + round;
            spread->ready[chunk] = collect->done[chunk];
            spread->buffers[chunk] = collect->results[chunk];
        }
        tw_spread_round(spread, round);
    }
}

static void build_scatter_one_hop(const tw_build_t *build)
{
    build_reduce_scatter(build, tw_collect_one_hop);
}

static void build_scatter_two_hop(const tw_build_t *build)
{
    build_reduce_scatter(build, tw_collect_two_hop);
}

static void build_allreduce_one_hop(const tw_build_t *build)
{
    build_allreduce(build, tw_collect_one_hop);
}

static void build_allreduce_two_hop(const tw_build_t *build)
{
    build_allreduce(build, tw_collect_two_hop);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_REDUCE_SCATTER, "one_hop",
                 "every rank encodes its share for every owner, who sums them up", 1},
        .build = build_scatter_one_hop,
        .flows = {.reduce = tw_flow_reduce_direct},
        .meets = 1,
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "two_hop",
                 "summed up inside each node first (inner_codec, or exact), then encoded across nodes", 1},
        .build = build_scatter_two_hop,
        .flows = {.reduce = tw_flow_reduce_two_hop, .nodes_first = 1},
        .meets = 1,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "one_hop",
                 "the reduce-scatter of that name, then the hierarchical all-gather", 1},
        .build = build_allreduce_one_hop,
        .flows = {.reduce = tw_flow_reduce_direct, .spread = tw_flow_spread_hierarchical},
    },
    {
        .info = {TW_COLL_ALLREDUCE, "two_hop",
                 "the reduce-scatter of that name, then the hierarchical all-gather", 1},
        .build = build_allreduce_two_hop,
        .flows = {.reduce = tw_flow_reduce_two_hop, .spread = tw_flow_spread_hierarchical, .nodes_first = 1},
    },
};

const tw_algo_rows_t tw_quantized_reduce_rows = {algos, sizeof(algos) / sizeof(algos[0])};
