#include "bench/exchange.h"

#include <math.h>
#include <stdlib.h>

tw_status_t bench_gather(tw_coll_t *coll, const void *own, size_t bytes, void *all)
{
    tw_coll_segment_t segment = {.src = own, .dst = all, .n_elems = bytes * (size_t)tw_coll_size(coll)};
    tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    return tw_coll_run(coll, &args);
}

tw_status_t bench_barrier(tw_coll_t *coll)
{
    tw_coll_args_t args = {.op = TW_COLL_BARRIER, .type = TW_TYPE_BYTE};
    return tw_coll_run(coll, &args);
}

tw_status_t bench_most(tw_coll_t *coll, double own, double *most)
{
    double *all = calloc((size_t)tw_coll_size(coll), sizeof(*all));
    *most = 0;
    TW_FAIL_IF(!all, TW_ERR_NO_MEMORY, "bench: out of memory");
    tw_status_t status = bench_gather(coll, &own, sizeof(own), all);
    for (int r = 0; r < tw_coll_size(coll); r++) {
        *most = fmax(*most, all[r]);
    }
    free(all);
    return status;
}
