/** Small collectives with which a bench's ranks exchange results. They are not measured. */
#pragma once

#include "collectives/collectives.h"

TW_C_BEGIN

/** Gather `bytes` bytes of every rank into all[world * bytes], in rank order. */
tw_status_t bench_gather(tw_coll_t *coll, const void *own, size_t bytes, void *all);
tw_status_t bench_barrier(tw_coll_t *coll);
/** Set *most to the largest of all ranks' numbers. No number may be negative. */
tw_status_t bench_most(tw_coll_t *coll, double own, double *most);

TW_C_END
