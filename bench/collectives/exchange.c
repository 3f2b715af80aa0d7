/* What the ranks tell each other beside the measured operations. */
#include "bench/collectives/bench.h"

tw_status_t tw_bench_gather(tw_bench_rank_t *rank, const void *own, size_t bytes, void *all)
{
    tw_coll_segment_t segment = {.src = own, .dst = all, .n_elems = bytes * (size_t)rank->world};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(rank->coll, &args);
}

tw_status_t tw_bench_barrier(tw_bench_rank_t *rank)
{
    tw_coll_args_t args = {.op = TW_COLL_BARRIER, .type = TW_TYPE_BYTE};
    return tw_coll_run(rank->coll, &args);
}

tw_status_t tw_bench_no_memory(const tw_bench_rank_t *rank, size_t bytes)
{
    tw_error("rank %d: out of memory, for %zu bytes", rank->rank, bytes);
    return TW_ERR_NO_MEMORY;
}
