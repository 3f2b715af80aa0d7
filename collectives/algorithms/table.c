/** The table of algorithms. */
#include "collectives/algorithms/algorithm.h"

/* Flows of algorithms that have a plain row and a lossless one. */
#define TORUS_2D .reduce = tw_flow_reduce_torus2, .spread = tw_flow_spread_torus2, .in_order = 1
#define TORUS_3D .reduce = tw_flow_reduce_torus3, .spread = tw_flow_spread_torus3, .in_order = 1
#define DOUBLE_TREE                                                                        \
    .reduce = tw_flow_reduce_double, .spread = tw_flow_spread_double, .of = TW_FLOWS_SOME, \
    .owns = tw_flow_owns_double, .in_order = 1
#define BINOMIAL                                                                                     \
    .reduce = tw_flow_reduce_binomial, .spread = tw_flow_spread_binomial_nodes, .of = TW_FLOWS_SOME, \
    .owns = tw_flow_owns_binomial, .in_order = 1

static const tw_algo_t algos[] = {
    {.info = {TW_COLL_ALLGATHER, "ring",
              "each shard travels from rank to rank, leaving each node once; W - 1 hops", 0, 0},
     .flows = {.spread = tw_flow_spread_ring}},
    {.info = {TW_COLL_REDUCE_SCATTER, "ring",
              "partial sums travel from rank to rank, rounded to the tensor's type on each hop; W - 1 hops",
              0, 0},
     .flows = {.reduce = tw_flow_reduce_ring},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "ring", "ring reduce-scatter, then ring all-gather; 2 (W - 1) hops", 0, 0},
     .flows = {.reduce = tw_flow_reduce_ring, .spread = tw_flow_spread_ring},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLGATHER, "hierarchical",
              "shards travel from node to node, the ranks of a node share that work and spread them inside",
              0, 0},
     .flows = {.spread = tw_flow_spread_hierarchical},
     .on_gpu = 1},
    {.info = {TW_COLL_REDUCE_SCATTER, "hierarchical",
              "summed inside the node in fp32 in rank order, then from node to node, rounded on each hop", 0,
              0},
     .flows = {.reduce = tw_flow_reduce_hierarchical},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "hierarchical", "hierarchical reduce-scatter, then all-gather", 0, 0},
     .flows = {.reduce = tw_flow_reduce_hierarchical, .spread = tw_flow_spread_hierarchical},
     .owner_matters = 1},
    {.info = {TW_COLL_REDUCE_SCATTER, "two_hop",
              "summed in fp32 inside the node in rank order, rounded, then at the owner in node order; "
              "the same bits for any owner",
              0, 0},
     .flows = {.reduce = tw_flow_reduce_two_hop, .nodes_first = 1},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLREDUCE, "two_hop", "two-hop reduce-scatter, then hierarchical all-gather", 0, 0},
     .flows = {.reduce = tw_flow_reduce_two_hop, .spread = tw_flow_spread_hierarchical, .nodes_first = 1},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLGATHER, "direct", "each rank sends its shard to every other rank; one hop", 0, 0},
     .flows = {.spread = tw_flow_spread_direct},
     .on_gpu = 1},
    {.info = {TW_COLL_REDUCE_SCATTER, "direct",
              "raw inputs go to the owner, who sums in fp32 in rank order and rounds once; one hop, the "
              "most accurate",
              0, 0},
     .flows = {.reduce = tw_flow_reduce_direct},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLREDUCE, "direct", "direct reduce-scatter, then all-gather; two hops, rounded once",
              0, 0},
     .flows = {.reduce = tw_flow_reduce_direct, .spread = tw_flow_spread_direct},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLREDUCE, "exchange",
              "everybody sends everything to everybody and sums in fp32 in rank order; one hop, for tiny "
              "tensors",
              0, 0},
     .flows = {.reduce = tw_flow_reduce_direct, .of = TW_FLOWS_WHOLES}},
    {.info = {TW_COLL_BROADCAST, "chain", "from rank to rank, chunk after chunk; for large tensors", 0, 0},
     .flows = {.spread = tw_flow_spread_ring, .of = TW_FLOWS_ROOT}},
    {.info = {TW_COLL_BROADCAST, "binomial", "a binomial tree; log2(W) hops", 0, 0},
     .flows = {.spread = tw_flow_spread_binomial, .of = TW_FLOWS_ROOT}},
    {.info = {TW_COLL_ALLGATHER, "doubling", "recursive doubling for any W; log2(W) hops", 0, 0},
     .flows = {.spread = tw_flow_spread_doubling, .merges = 1}},
    {.info = {TW_COLL_REDUCE_SCATTER, "halving",
              "recursive halving for any W, partial sums rounded to the tensor's type on each hop; "
              "log2(W) hops",
              0, 0},
     .flows = {.reduce = tw_flow_reduce_halving, .merges = 1},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "halving_doubling",
              "recursive halving, then doubling, for any W; 2 log2(W) hops", 0, 0},
     .flows = {.reduce = tw_flow_reduce_halving, .spread = tw_flow_spread_doubling, .merges = 1},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "torus_2d",
              "summed along the rows of a 2-D torus of ranks, then along its columns (rows are nodes "
              "where all have as many ranks), and back; rounded on each of few hops",
              0, 0},
     .flows = {TORUS_2D},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "torus_3d", "likewise along three dimensions, on fewer hops", 0, 0},
     .flows = {TORUS_3D},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "double_tree",
              "halves travel up and down two binary trees of nodes, summed in fp32 on each, rounded on "
              "each level; 2 log2(N) hops",
              0, 0},
     .flows = {DOUBLE_TREE},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "binomial",
              "up and down a binomial tree of nodes, rounded on each level; 2 log2(N) hops, for small "
              "tensors",
              0, 0},
     .flows = {BINOMIAL},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLTOALL, "pairwise", "each shard goes straight to its rank; one hop", 0, 0},
     .flows = {.spread = tw_flow_spread_direct, .by_pair = 1},
     .on_gpu = 1},
    {.info = {TW_COLL_BARRIER, "dissemination", "log2(W) hops of empty messages", 0, 0},
     .flows = {.spread = tw_flow_spread_doubling, .merges = 1}},
    {.info = {TW_COLL_ALLGATHER, "ring",
              "each encoded shard travels from rank to rank, leaving each node once; W - 1 hops", 1, 0},
     .flows = {.spread = tw_flow_spread_ring}},
    {.info = {TW_COLL_ALLGATHER, "hierarchical",
              "each encoded shard travels from node to node and is spread inside; N - 1 hops and one", 1, 0},
     .flows = {.spread = tw_flow_spread_hierarchical},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLGATHER, "direct",
              "each encoded shard goes from its owner to every rank; one hop, for small tensors", 1, 0},
     .flows = {.spread = tw_flow_spread_direct},
     .on_gpu = 1},
    {.info = {TW_COLL_REDUCE_SCATTER, "one_hop",
              "every rank encodes its share for every owner, who sums them up", 1, 0},
     .flows = {.reduce = tw_flow_reduce_direct},
     .meets = 1,
     .on_gpu = 1},
    {.info = {TW_COLL_REDUCE_SCATTER, "two_hop",
              "summed up inside each node first (inner_codec, or plain), then encoded across nodes", 1, 0},
     .flows = {.reduce = tw_flow_reduce_two_hop, .nodes_first = 1},
     .meets = 1,
     .on_gpu = 1},
    {.info = {TW_COLL_ALLREDUCE, "one_hop",
              "the reduce-scatter of that name, then the hierarchical all-gather", 1, 0},
     .flows = {.reduce = tw_flow_reduce_direct, .spread = tw_flow_spread_hierarchical},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLREDUCE, "two_hop",
              "the reduce-scatter of that name, then the hierarchical all-gather", 1, 0},
     .flows = {.reduce = tw_flow_reduce_two_hop, .spread = tw_flow_spread_hierarchical, .nodes_first = 1},
     .on_gpu = 1},
    {.info = {TW_COLL_ALLREDUCE, "torus_2d",
              "the plain one's sums, encoded between nodes again on each hop; lossless alone", 1, 1},
     .flows = {TORUS_2D, .recodes = 1},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "torus_3d", "likewise along three dimensions; lossless alone", 1, 1},
     .flows = {TORUS_3D, .recodes = 1},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "double_tree",
              "the plain one's sums, encoded between nodes again on each level; lossless alone", 1, 1},
     .flows = {DOUBLE_TREE, .recodes = 1},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLREDUCE, "binomial", "likewise up and down a binomial tree; lossless alone", 1, 1},
     .flows = {BINOMIAL, .recodes = 1},
     .owner_matters = 1},
    {.info = {TW_COLL_ALLTOALL, "pairwise",
              "each shard goes straight to its rank, encoded if that is on another node; one hop", 1, 0},
     .flows = {.spread = tw_flow_spread_direct, .by_pair = 1},
     .on_gpu = 1},
};

const tw_algo_t *tw_algo_get(size_t index)
{
    return index < sizeof(algos) / sizeof(algos[0]) ? &algos[index] : NULL;
}

int tw_algo_adds_as_plain(const tw_algo_t *algo, const tw_topo_t *topo)
{
    int is_in_order = !algo->owner_matters && (algo->flows.nodes_first || !tw_topo_has_tiers(topo));
    return !algo->flows.reduce || is_in_order;
}
