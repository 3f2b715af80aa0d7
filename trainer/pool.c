/* Threads that share the items of a task. A thread that comes late finds the task closed. Nobody waits for
 * it: on a loaded machine the other threads do its items. */
#include "trainer/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* spins of a waiting thread before it sleeps; about 20 microseconds */
enum { SPINS = 500 };
/* Ranges per thread, so that a thread that is held up leaves some to the others. */
enum { RANGES_PER_THREAD = 2 };

typedef struct task {
    tw_pool_item_t item;
    void *ctx;
    size_t n_items;
    atomic_size_t next;
} task_t;

typedef struct worker {
    tw_pool_t *pool;
    pthread_t thread;
    int index;
} worker_t;

struct tw_pool {
    int n_threads;
    worker_t *workers; /* [n_threads - 1] */
    int n_workers;     /* number of workers that have started */
    pthread_mutex_t lock;
    pthread_cond_t opened, left;
    /* guarded by the lock */
    task_t *task;            /* the open task, or NULL */
    int n_inside, n_asleep;  /* workers in the task; workers that sleep until a task opens */
    atomic_uint n_tasks;     /* tasks opened so far; written under the lock, read without it */
    atomic_int is_ending;    /* 1: the workers must end; written under the lock, read without it */
    atomic_int n_inside_now; /* copy of n_inside that is read without the lock */
};

static void take_items(task_t *task, int thread)
{
    size_t item;
    while ((item = atomic_fetch_add_explicit(&task->next, 1, memory_order_relaxed)) < task->n_items) {
        task->item(task->ctx, item, thread);
    }
}

static void pause_for_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ---- a worker ------------------------------------------------------------------------------------------ */

static int has_news(tw_pool_t *pool, unsigned seen)
{
    return atomic_load_explicit(&pool->n_tasks, memory_order_relaxed) != seen ||
           atomic_load_explicit(&pool->is_ending, memory_order_relaxed);
}

/** Wait for a task that is new to this worker, or for the pool's end. The lock is held before and after. */
static void wait_for_news(tw_pool_t *pool, unsigned seen)
{
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < SPINS && !has_news(pool, seen); i++) {
        pause_for_a_moment();
    }
    pthread_mutex_lock(&pool->lock);
    pool->n_asleep++;
    while (!has_news(pool, seen)) {
        pthread_cond_wait(&pool->opened, &pool->lock);
    }
    pool->n_asleep--;
}

static void pool_enter(tw_pool_t *pool, task_t *task, int index)
{
    atomic_store_explicit(&pool->n_inside_now, ++pool->n_inside, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    take_items(task, index);
    pthread_mutex_lock(&pool->lock);
    atomic_store_explicit(&pool->n_inside_now, --pool->n_inside, memory_order_relaxed);
    if (pool->n_inside == 0) {
        pthread_cond_signal(&pool->left);
    }
}

static void *work(void *ctx)
{
    const worker_t *worker = ctx;
    tw_pool_t *pool = worker->pool;
    unsigned seen = 0;
    pthread_mutex_lock(&pool->lock);
    while (!atomic_load(&pool->is_ending)) {
        wait_for_news(pool, seen);
        seen = atomic_load(&pool->n_tasks);
        if (pool->task) {
            pool_enter(pool, pool->task, worker->index);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- create and destroy -------------------------------------------------------------------------------- */

/** Start a worker with all signals blocked: a handler must not run on the stack of a thread that computes. */
static int start_worker(worker_t *worker)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, work, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static tw_status_t start_workers(tw_pool_t *pool)
{
    for (int i = 0; i < pool->n_threads - 1; i++) {
        worker_t *worker = &pool->workers[i];
        *worker = (worker_t){.pool = pool, .index = i + 1};
        int error = start_worker(worker);
        TW_FAIL_IF(error != 0, TW_ERR_IO, "thread %d of %d that compute does not start: %s", i + 2,
                   pool->n_threads, strerror(error));
        pool->n_workers++;
    }
    return TW_OK;
}

tw_status_t tw_pool_create(int n_threads, tw_pool_t **out)
{
    TW_FAIL_IF(n_threads < 1 || n_threads > TW_POOL_MOST_THREADS, TW_ERR_INVALID,
               "%d threads to compute with: expected 1 to %d", n_threads, TW_POOL_MOST_THREADS);
    tw_pool_t *pool = calloc(1, sizeof(*pool));
    worker_t *workers = calloc((size_t)n_threads, sizeof(*workers));
    if (!pool || !workers) {
        tw_error("out of memory for %d threads", n_threads);
        free(pool);
        free(workers);
        return TW_ERR_NO_MEMORY;
    }
    pool->n_threads = n_threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pthread_cond_init(&pool->left, NULL);
    tw_status_t status = start_workers(pool);
    if (status != TW_OK) {
        tw_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return TW_OK;
}

void tw_pool_destroy(tw_pool_t *pool)
{
    if (!pool) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->is_ending, 1);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_workers; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->opened);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

int tw_pool_threads(const tw_pool_t *pool)
{
    return pool ? pool->n_threads : 1;
}

double tw_pool_processor_sec(const tw_pool_t *pool)
{
    double sum = 0;
    for (int i = 0; pool && i < pool->n_workers; i++) {
        clockid_t clock;
        struct timespec time;
        if (pthread_getcpuclockid(pool->workers[i].thread, &clock) == 0 && clock_gettime(clock, &time) == 0) {
            sum += (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
        }
    }
    return sum;
}

/* ---- tasks -------------------------------------------------------------------------------------------- */

static void open_task(tw_pool_t *pool, task_t *task)
{
    pthread_mutex_lock(&pool->lock);
    pool->task = task;
    atomic_fetch_add(&pool->n_tasks, 1);
    int n_asleep = pool->n_asleep;
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < (size_t)n_asleep && i + 1 < task->n_items; i++) {
        pthread_cond_signal(&pool->opened);
    }
}

/** Close a task whose items are all taken, and wait until they are done. */
static void close_task(tw_pool_t *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->task = NULL;
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < SPINS && atomic_load_explicit(&pool->n_inside_now, memory_order_relaxed) > 0; i++) {
        pause_for_a_moment();
    }
    pthread_mutex_lock(&pool->lock);
    while (pool->n_inside > 0) {
        pthread_cond_wait(&pool->left, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

void tw_pool_run(tw_pool_t *pool, size_t n_items, tw_pool_item_t item, void *ctx)
{
    task_t task = {.item = item, .ctx = ctx, .n_items = n_items};
    if (tw_pool_threads(pool) == 1 || n_items <= 1) {
        take_items(&task, 0);
        return;
    }
    open_task(pool, &task);
    take_items(&task, 0);
    close_task(pool);
}

typedef struct ranges {
    tw_pool_range_t range;
    void *ctx;
    size_t n, length;
} ranges_t;

static void do_range(void *ctx, size_t item, int thread)
{
    const ranges_t *ranges = ctx;
    size_t first = item * ranges->length, left = ranges->n - first;
    ranges->range(ranges->ctx, first, left < ranges->length ? left : ranges->length, thread);
}

void tw_pool_ranges(tw_pool_t *pool, size_t n, size_t step, size_t least, tw_pool_range_t range, void *ctx)
{
    size_t n_threads = (size_t)tw_pool_threads(pool);
    size_t length = n_threads > 1 ? n / (n_threads * RANGES_PER_THREAD) : n;
    length = length > least ? length : least;
    length = (length + step - 1) / step * step;
    ranges_t ranges = {.range = range, .ctx = ctx, .n = n, .length = length};
    if (n > 0) {
        tw_pool_run(pool, (n + length - 1) / length, do_range, &ranges);
    }
}
