/** Private to trainer: the threads that a rank computes with. A task is cut into items, which the threads
 *  take one after the other. The caller decides where the cuts are; they do not depend on the number of
 *  threads, or do not change the result.
 *
 *  A pool is used by one thread at a time, which computes with the others. They sleep while they wait, except
 *  for some microseconds between tasks: the cores are shared with progress threads and other ranks. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_POOL_MOST_THREADS 1024

typedef struct tw_pool tw_pool_t;

/** Make a pool; n_threads is 1 to TW_POOL_MOST_THREADS, the caller's included. TW_ERR_INVALID,
 *  TW_ERR_NO_MEMORY, TW_ERR_IO (a thread does not start); logged. */
tw_status_t tw_pool_create(int n_threads, tw_pool_t **out);
/** Accepts NULL. */
void tw_pool_destroy(tw_pool_t *pool);
/** Return the number of threads; NULL has 1. */
int tw_pool_threads(const tw_pool_t *pool);
/** Return the processor time so far of all its threads but the caller's. NULL has 0. */
double tw_pool_processor_sec(const tw_pool_t *pool);

/** Does an item of a task. thread: a number below tw_pool_threads, 0 for the caller's; no two threads
 *  that do items at the same time have the same. It must not use the pool. */
typedef void (*tw_pool_item_t)(void *ctx, size_t item, int thread);
/** Run items 0 .. n_items - 1, each once, by any thread and in any order; return when all are done. pool
 *  NULL: the caller's thread runs them in order. */
void tw_pool_run(tw_pool_t *pool, size_t n_items, tw_pool_item_t item, void *ctx);

/** Does elements first .. first + n - 1 of a task. */
typedef void (*tw_pool_range_t)(void *ctx, size_t first, size_t n, int thread);
/** Run n elements in ranges of about the same length, a multiple of `step`, several for each thread; each has
 *  at least `least`, so that it is worth a thread. */
void tw_pool_ranges(tw_pool_t *pool, size_t n, size_t step, size_t least, tw_pool_range_t range, void *ctx);

TW_C_END
