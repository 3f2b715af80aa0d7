#include "collectives/quantized/table.h"

static const tw_algo_t algos[] = {
    {{TW_COLL_ALLGATHER, "ring",
      "each encoded shard travels from rank to rank, leaving each node once; W - 1 hops", 1},
     NULL,
     tw_allgather_quant_ring_build,
     tw_allgather_quant_ring_cost},
    {{TW_COLL_ALLGATHER, "hierarchical",
      "each encoded shard travels from node to node and is spread inside; N - 1 hops and one", 1},
     NULL,
     tw_allgather_quant_hierarchical_build,
     tw_allgather_quant_hierarchical_cost},
    {{TW_COLL_ALLGATHER, "direct",
      "each encoded shard goes from its owner to every rank; one hop, for small tensors", 1},
     NULL,
     tw_allgather_quant_direct_build,
     tw_allgather_quant_direct_cost},
    {{TW_COLL_REDUCE_SCATTER, "one_hop", "every rank encodes its piece for every owner, who sums them up", 1},
     NULL,
     tw_reduce_scatter_one_hop_build,
     tw_reduce_scatter_one_hop_cost},
    {{TW_COLL_REDUCE_SCATTER, "two_hop",
      "summed up inside each node first (inner_codec, or exact), then encoded across nodes", 1},
     NULL,
     tw_reduce_scatter_two_hop_build,
     tw_reduce_scatter_two_hop_cost},
    {{TW_COLL_ALLREDUCE, "one_hop", "the reduce-scatter of that name, then the hierarchical all-gather", 1},
     NULL,
     tw_allreduce_one_hop_build,
     tw_allreduce_one_hop_cost},
    {{TW_COLL_ALLREDUCE, "two_hop", "the reduce-scatter of that name, then the hierarchical all-gather", 1},
     NULL,
     tw_allreduce_two_hop_build,
     tw_allreduce_two_hop_cost},
};

const tw_algo_t *tw_quant_algo_get(size_t index)
{
    return index < sizeof(algos) / sizeof(algos[0]) ? &algos[index] : NULL;
}
