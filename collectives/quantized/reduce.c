/* Quantized reduce-scatter, and all-reduce: a reduce-scatter whose results are encoded again and spread, chunk by chunk. */
#include "collectives/algorithms/table.h"
#include "collectives/quantized/collect.h"
#include "collectives/quantized/cost.h"
#include "collectives/quantized/spread.h"

typedef void (*collect_fn_t)(const tw_collect_t *collect);

/** 0: out of memory, the error sticks. */
static int init_collect(tw_collect_t *collect, const tw_qop_t *op)
{
    size_t n = op->grid.n_chunks + 1;

    *collect = (tw_collect_t){.op = op};
    collect->read = tw_sched_alloc(op->sched, n * sizeof(*collect->read));
    collect->done = tw_sched_alloc(op->sched, n * sizeof(*collect->done));
    return collect->read != NULL && collect->done != NULL;
}

static void build_reduce_scatter(const tw_build_t *build, collect_fn_t collect_fn)
{
    tw_qop_t *op = tw_qop_create(build);
    tw_collect_t collect;

    if (op != NULL && init_collect(&collect, op)) {
        collect_fn(&collect);
    }
}

/** In place, a chunk's result comes in after everybody, this rank too, has contributed to it; the spread is told when. */
static void build_allreduce(const tw_build_t *build, collect_fn_t collect_fn)
{
    tw_qop_t *op = tw_qop_create(build);
    tw_collect_t collect;

    if (op == NULL || !init_collect(&collect, op)) {
        return;
    }
    const tw_grid_shard_t *own = &op->grid.shards[op->topo->rank];
    tw_sbuf_t *results = tw_sched_alloc(op->sched, (op->grid.n_chunks + 1) * sizeof(*results));
    if (results == NULL) {
        return;
    }
    for (size_t c = own->first_chunk; c < own->first_chunk + own->n_chunks; c++) {
        results[c] = tw_qop_buffer(op, c, op->codec);
    }
    collect.results = results;
    collect_fn(&collect);
    tw_spread_t spread = {
        .op = op,
        .route = &tw_route_nodes,
        .encoded = collect.done,
        .buffers = results,
        .read = build->aliased ? collect.read : NULL,
    };
    tw_spread_build(&spread);
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

static void cost_scatter_one_hop(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_one_hop(c, cost);
}

static void cost_scatter_two_hop(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_two_hop(c, cost);
}

static void cost_allreduce_one_hop(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_one_hop(c, cost);
    tw_cost_add_spread_nodes(c, cost);
}

static void cost_allreduce_two_hop(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_two_hop(c, cost);
    tw_cost_add_spread_nodes(c, cost);
}

static const tw_algo_t algos[] = {
    {
        .info = {TW_COLL_REDUCE_SCATTER, "one_hop",
                 "every rank encodes its piece for every owner, who sums them up", 1},
        .build = build_scatter_one_hop,
        .cost = cost_scatter_one_hop,
    },
    {
        .info = {TW_COLL_REDUCE_SCATTER, "two_hop",
                 "summed up inside each node first (inner_codec, or exact), then encoded across nodes", 1},
        .build = build_scatter_two_hop,
        .cost = cost_scatter_two_hop,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "one_hop",
                 "the reduce-scatter of that name, then the hierarchical all-gather", 1},
        .build = build_allreduce_one_hop,
        .cost = cost_allreduce_one_hop,
    },
    {
        .info = {TW_COLL_ALLREDUCE, "two_hop",
                 "the reduce-scatter of that name, then the hierarchical all-gather", 1},
        .build = build_allreduce_two_hop,
        .cost = cost_allreduce_two_hop,
    },
};

const tw_algo_rows_t tw_quantized_reduce_rows = {algos, sizeof(algos) / sizeof(algos[0])};
