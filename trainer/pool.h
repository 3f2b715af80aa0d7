/** Private to trainer: the threads that a rank computes with. A task is cut into items, which the threads
 *  take one after the other. The caller cuts the task, either independently of the number of threads, or so
 *  that the cuts do not change the result.
 *
 *  Only one thread at a time may use a pool. That thread computes, too. The pool's threads sleep while they
 *  wait, except for some microseconds between tasks: progress threads and other ranks share the cores. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_POOL_MOST_THREADS 1024

typedef struct tw_pool tw_pool_t;

/** Make a pool. n_threads includes the caller's thread: 1 to TW_POOL_MOST_THREADS. Errors, logged:
 *  TW_ERR_INVALID, TW_ERR_NO_MEMORY, TW_ERR_IO (a thread does not start). */
tw_status_t tw_pool_create(int n_threads, tw_pool_t **out);
/** Accepts NULL. */
void tw_pool_destroy(tw_pool_t *pool);
/** Return the number of threads, the caller's included. A pool of NULL has 1. */
int tw_pool_threads(const tw_pool_t *pool);
/** Return the processor time so far of all threads except the caller's, in seconds. A pool of NULL has 0. */
double tw_pool_processor_sec(const tw_pool_t *pool);

/** Does an item of a task, and must not use the pool. thread: 0 for the caller's thread, else below
 *  tw_pool_threads. Threads that work at the same time have different numbers. */
typedef void (*tw_pool_item_t)(void *ctx, size_t item, int thread);
/** Run items 0 .. n_items - 1, each once, on any thread and in any order. Returns when all are done. If pool
 *  is NULL, the caller's thread runs them in order. */
void tw_pool_run(tw_pool_t *pool, size_t n_items, tw_pool_item_t item, void *ctx);

/** Does elements first .. first + n - 1 of a task. */
typedef void (*tw_pool_range_t)(void *ctx, size_t first, size_t n, int thread);
/** Run n elements in ranges of about the same length, several for each thread. Lengths are multiples of
 *  `step`, and at least `least`, below which a thread is not worth it. */
void tw_pool_ranges(tw_pool_t *pool, size_t n, size_t step, size_t least, tw_pool_range_t range, void *ctx);

TW_C_END
