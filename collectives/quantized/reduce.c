/* Quantized reduce-scatter, and all-reduce: a reduce-scatter whose results are encoded again and spread, chunk by chunk. */
#include "collectives/quantized/collect.h"
#include "collectives/quantized/cost.h"
#include "collectives/quantized/spread.h"
#include "collectives/quantized/table.h"

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

void tw_reduce_scatter_one_hop_build(const tw_build_t *build)
{
    build_reduce_scatter(build, tw_collect_one_hop);
}

void tw_reduce_scatter_two_hop_build(const tw_build_t *build)
{
    build_reduce_scatter(build, tw_collect_two_hop);
}

void tw_allreduce_one_hop_build(const tw_build_t *build)
{
    build_allreduce(build, tw_collect_one_hop);
}

void tw_allreduce_two_hop_build(const tw_build_t *build)
{
    build_allreduce(build, tw_collect_two_hop);
}

void tw_reduce_scatter_one_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_one_hop(c, cost);
}

void tw_reduce_scatter_two_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_two_hop(c, cost);
}

void tw_allreduce_one_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_one_hop(c, cost);
    tw_cost_add_spread_nodes(c, cost);
}

void tw_allreduce_two_hop_cost(const tw_case_t *c, tw_coll_cost_t *cost)
{
    tw_cost_add_two_hop(c, cost);
    tw_cost_add_spread_nodes(c, cost);
}
