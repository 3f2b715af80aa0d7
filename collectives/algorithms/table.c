#include "collectives/quantized/table.h"
#include "collectives/algorithms/algorithm.h"

#include <math.h>

static const tw_algo_t algos[] = {
    {{TW_COLL_ALLGATHER, "ring", "each shard travels from rank to rank, leaving each node once; W - 1 hops",
      0},
     NULL,
     tw_ring_allgather_build,
     tw_ring_allgather_cost},
    {{TW_COLL_ALLGATHER, "doubling", "recursive doubling for any W; log2(W) hops", 0},
     NULL,
     tw_doubling_allgather_build,
     tw_doubling_allgather_cost},
    {{TW_COLL_ALLGATHER, "hierarchical",
      "shards travel from node to node, the ranks of a node share that work and spread them inside", 0},
     NULL,
     tw_hier_allgather_build,
     tw_hier_allgather_cost},
    {{TW_COLL_ALLGATHER, "direct", "each rank sends its shard to every other rank; one hop", 0},
     NULL,
     tw_direct_allgather_build,
     tw_direct_allgather_cost},
    {{TW_COLL_REDUCE_SCATTER, "ring",
      "partial sums travel from rank to rank, rounded to the tensor's type on each hop; W - 1 hops", 0},
     NULL,
     tw_ring_reduce_scatter_build,
     tw_ring_reduce_scatter_cost},
    {{TW_COLL_REDUCE_SCATTER, "halving",
      "recursive halving for any W, partial sums rounded to the tensor's type on each hop; log2(W) hops", 0},
     NULL,
     tw_halving_reduce_scatter_build,
     tw_halving_reduce_scatter_cost},
    {{TW_COLL_REDUCE_SCATTER, "hierarchical",
      "summed inside the node in fp32 in rank order, then from node to node, rounded on each hop", 0},
     NULL,
     tw_hier_reduce_scatter_build,
     tw_hier_reduce_scatter_cost},
    {{TW_COLL_REDUCE_SCATTER, "direct",
      "raw inputs go to the owner, who sums in fp32 in rank order and rounds once; one hop, the most "
      "accurate",
      0},
     NULL,
     tw_direct_reduce_scatter_build,
     tw_direct_reduce_scatter_cost},
    {{TW_COLL_ALLREDUCE, "ring", "ring reduce-scatter, then ring all-gather; 2 (W - 1) hops", 0},
     NULL,
     tw_ring_allreduce_build,
     tw_ring_allreduce_cost},
    {{TW_COLL_ALLREDUCE, "halving_doubling", "recursive halving, then doubling, for any W; 2 log2(W) hops",
      0},
     NULL,
     tw_halving_doubling_allreduce_build,
     tw_halving_doubling_allreduce_cost},
    {{TW_COLL_ALLREDUCE, "hierarchical", "hierarchical reduce-scatter, then all-gather", 0},
     NULL,
     tw_hier_allreduce_build,
     tw_hier_allreduce_cost},
    {{TW_COLL_ALLREDUCE, "direct", "direct reduce-scatter, then all-gather; two hops, rounded once", 0},
     NULL,
     tw_direct_allreduce_build,
     tw_direct_allreduce_cost},
    {{TW_COLL_ALLREDUCE, "exchange",
      "everybody sends everything to everybody and sums in fp32 in rank order; one hop, for tiny tensors", 0},
     NULL,
     tw_exchange_allreduce_build,
     tw_exchange_allreduce_cost},
    {{TW_COLL_BROADCAST, "chain", "from rank to rank, chunk after chunk; for large tensors", 0},
     NULL,
     tw_chain_broadcast_build,
     tw_chain_broadcast_cost},
    {{TW_COLL_BROADCAST, "binomial", "a binomial tree; log2(W) hops", 0},
     NULL,
     tw_binomial_broadcast_build,
     tw_binomial_broadcast_cost},
    {{TW_COLL_ALLTOALL, "pairwise", "each shard goes straight to its rank; one hop", 0},
     NULL,
     tw_pairwise_alltoall_build,
     tw_pairwise_alltoall_cost},
    {{TW_COLL_BARRIER, "dissemination", "log2(W) hops of empty messages", 0},
     NULL,
     tw_dissemination_barrier_build,
     tw_dissemination_barrier_cost},
};

const tw_algo_t *tw_algo_get(size_t index)
{
    const size_t n_exact = sizeof(algos) / sizeof(algos[0]);

    return index < n_exact ? &algos[index] : tw_quant_algo_get(index - n_exact);
}

const tw_coll_algo_info_t *tw_coll_algo_get(size_t index)
{
    const tw_algo_t *algo = tw_algo_get(index);

    return algo != NULL ? &algo->info : NULL;
}

const char *tw_coll_op_name(tw_coll_op_t op)
{
    static const char *const names[] = {"allgather", "reduce_scatter", "allreduce",
                                        "broadcast", "alltoall",       "barrier"};

    return (unsigned)op < TW_COLL_OP_COUNT ? names[op] : "?";
}

tw_task_t tw_build_copy(const tw_build_t *build, size_t in_first, size_t out_first, size_t n)
{
    tw_task_t last = TW_TASK_NONE;
    size_t n_chunks = tw_chunk_count(build, n);

    if (build->in_place || n == 0) {
        return TW_TASK_NONE;
    }
    tw_task_t *copies = tw_sched_alloc(build->sched, n_chunks * sizeof(*copies));
    if (copies == NULL) {
        return TW_TASK_NONE;
    }
    for (size_t c = 0; c < n_chunks; c++) {
        size_t at = c * build->chunk_elems, part = tw_chunk_elems(build, n, c);
        copies[c] = tw_work_copy(build->sched, tw_span_view(build->in, in_first + at, part),
                                 tw_span_view(build->out, out_first + at, part));
        last = copies[c];
    }
    if (n_chunks == 1) {
        return last;
    }
    last = tw_sched_join(build->sched);
    for (size_t c = 0; c < n_chunks; c++) {
        tw_sched_after(build->sched, last, copies[c]);
    }
    return last;
}

double tw_cost_messages(const tw_case_t *c, double bytes)
{
    return bytes > 0 ? ceil(bytes / c->chunk_bytes) : 0;
}

void tw_cost_add_ring(const tw_case_t *c, int rounds, double bytes, tw_coll_cost_t *cost)
{
    const tw_topo_t *topo = c->topo;
    double messages = fmax(rounds, tw_cost_messages(c, bytes));
    int several_nodes = topo->n_nodes > 1, crossings = 0;

    if (several_nodes) {
        crossings = rounds < topo->n_nodes ? rounds : topo->n_nodes;
        cost->inter_messages += messages;
        cost->inter_bytes += bytes;
    }
    cost->inter_rounds += crossings;
    cost->node_rounds += rounds - crossings;
    if (topo->max_local > 1) {
        cost->node_messages += messages;
        cost->node_bytes += bytes * (topo->max_local - several_nodes);
    }
}

int tw_log2_ceil(int n)
{
    int k = 0;

    while ((1 << k) < n) {
        k++;
    }
    return k;
}
