#include "collectives/algorithms/table.h"

static const tw_algo_rows_t *const all_rows[] = {
    &tw_ring_rows,
    &tw_doubling_rows,
    &tw_hierarchical_rows,
    &tw_two_hop_rows,
    &tw_direct_rows,
    &tw_broadcast_rows,
    &tw_alltoall_rows,
    &tw_barrier_rows,
    &tw_quantized_gather_rows,
    &tw_quantized_reduce_rows,
};

const tw_algo_t *tw_algo_get(size_t index)
{
    for (size_t i = 0; i < sizeof(all_rows) / sizeof(all_rows[0]); i++) {
        if (index < all_rows[i]->n) {
            return &all_rows[i]->algos[index];
        }
        index -= all_rows[i]->n;
    }
    return NULL;
}

const char *tw_coll_op_name(tw_coll_op_t op)
{
    static const char *const names[] = {"allgather", "reduce_scatter", "allreduce",
                                        "broadcast", "alltoall",       "barrier"};

    return (unsigned)op < TW_COLL_OP_COUNT ? names[op] : "?";
}
