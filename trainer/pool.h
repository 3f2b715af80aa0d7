/** Private to trainer: the threads that a rank computes with. A task is cut into items, which the threads
 *  take one after the other; where the cuts are is the caller's, and does not depend on the number of
 *  threads, or changes no bit of the result.
 *
 *  A pool is used by one thread at a time, which computes with the others. They wait asleep, but for some
 *  microseconds between one task and the next: the cores are shared with progress threads and other ranks. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_POOL_MOST_THREADS 1024

typedef struct tw_pool tw_pool_t;

/** n_threads: 1 to TW_POOL_MOST_THREADS, the caller's among them. TW_ERR_INVALID, TW_ERR_NO_MEMORY,
 *  TW_ERR_IO (a thread does not start); logged. */
tw_status_t tw_pool_create(int n_threads, tw_pool_t **out);
/** NULL: nothing to do. */
void tw_pool_destroy(tw_pool_t *pool);
/** Returns the number of threads; NULL has 1. */
int tw_pool_threads(const tw_pool_t *pool);
/** Returns the processor time of all its threads but the caller's, so far. NULL has 0. */
double tw_pool_processor_sec(const tw_pool_t *pool);

/** An item of a task; thread < tw_pool_threads, 0 is the caller's: no other item has the same one at the same
 *  time. It must not use the pool. */
typedef void (*tw_pool_item_t)(void *ctx, size_t item, int thread);
/** Items 0 .. n_items - 1, each once, by any thread and in any order; returns when all are done. NULL: the
 *  caller's thread, in order. */
void tw_pool_run(tw_pool_t *pool, size_t n_items, tw_pool_item_t item, void *ctx);

/** Elements first .. first + n - 1 of a task. */
typedef void (*tw_pool_range_t)(void *ctx, size_t first, size_t n, int thread);
/** n elements in ranges of about one length, which is a multiple of `step`, for each thread several; at least
 *  `least` in each, so that it is worth the while. */
void tw_pool_ranges(tw_pool_t *pool, size_t n, size_t step, size_t least, tw_pool_range_t range, void *ctx);

TW_C_END
