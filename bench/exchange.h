/** What the ranks of a bench tell each other beside what is measured. All are collective. */
#pragma once

#include "collectives/collectives.h"

TW_C_BEGIN

/** all: every rank's `bytes`, in rank order. */
tw_status_t bench_gather(tw_coll_t *coll, const void *own, size_t bytes, void *all);
tw_status_t bench_barrier(tw_coll_t *coll);
/** The largest of all ranks' numbers, which are not negative. */
tw_status_t bench_most(tw_coll_t *coll, double own, double *most);

TW_C_END
