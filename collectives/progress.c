#include "collectives/shared.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <time.h>

#define SLEEP_SEC 1.0 /* longest sleep between two progress checks */

/** A call that another thread wants the progress thread to make. The caller has it on its stack, and waits
 *  for it. */
typedef struct command {
    STAILQ_ENTRY(command) link;
    tw_progress_fn_t fn;
    void *arg;
    tw_status_t status;
    int is_done;
} command_t;

struct tw_progress {
    tw_transport_t *transport;
    tw_shared_t *shared;
    tw_shared_mover_t mover;
    pthread_t thread;
    pthread_mutex_t lock; /**< guards all members below */
    pthread_cond_t changed;
    STAILQ_HEAD(, command) commands;
    int refs;
    unsigned n_forks; /**< tw_fork_count of the process in which the thread runs */
    int is_stopping;
};

/* ---- the thread ---------------------------------------------------------------------------------------- */

static command_t *take_command(tw_progress_t *progress)
{
    tw_progress_lock(progress);
    command_t *command = STAILQ_FIRST(&progress->commands);
    if (command) {
        STAILQ_REMOVE_HEAD(&progress->commands, link);
    }
    tw_progress_unlock(progress);
    return command;
}

/** Run the other threads' commands. This function is also a mover, so that commands run while an earlier
 *  command waits for the transport, as making a communicator does. Commands add and remove movers. That is
 *  safe, since the walk over the list is then at this mover, which no command removes. */
static void run_commands(void *arg, int *moved)
{
    tw_progress_t *progress = arg;
    command_t *command;
    while ((command = take_command(progress))) {
        tw_status_t status = command->fn(command->arg);
        tw_progress_lock(progress);
        command->status = status;
        command->is_done = 1;
        tw_progress_notify(progress);
        tw_progress_unlock(progress);
        *moved = 1;
    }
}

/** Tell all communicators that the transport has failed, then wait for a command. The thread no longer moves
 *  messages or sleeps in the transport. */
static void live_on(tw_progress_t *progress, tw_status_t status)
{
    const tw_shared_mover_t *mover;
    LIST_FOREACH(mover, &progress->shared->movers, link)
    {
        if (mover->failed) {
            mover->failed(mover->arg, status);
        }
    }
    tw_progress_lock(progress);
    while (STAILQ_EMPTY(&progress->commands) && !progress->is_stopping) {
        tw_progress_wait(progress, SLEEP_SEC);
    }
    tw_progress_unlock(progress);
}

static int is_stopping(tw_progress_t *progress)
{
    tw_progress_lock(progress);
    int stopping = progress->is_stopping;
    tw_progress_unlock(progress);
    return stopping;
}

static void *progress_run(void *arg)
{
    tw_progress_t *progress = arg;
    while (!is_stopping(progress)) {
        int moved = 0;
        run_commands(progress, &moved);
        tw_status_t status = tw_transport_progress(progress->transport);
        if (status == TW_IN_PROGRESS && !moved) {
            status = tw_transport_sleep(progress->transport, SLEEP_SEC);
        }
        if (status < 0) {
            live_on(progress, status);
        }
    }
    return NULL;
}

/* ---- other threads ------------------------------------------------------------------------------------- */

static tw_status_t progress_start(tw_progress_t *progress)
{
    pthread_condattr_t attr;
    int error = pthread_mutex_init(&progress->lock, NULL);
    if (error != 0) {
        goto err;
    }
    error = pthread_condattr_init(&attr);
    if (error != 0) {
        goto err_lock;
    }
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    error = pthread_cond_init(&progress->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (error != 0) {
        goto err_lock;
    }
    progress->mover = (tw_shared_mover_t){.move = run_commands, .arg = progress};
    tw_shared_mover_add(progress->shared, &progress->mover);
    error = pthread_create(&progress->thread, NULL, progress_run, progress);
    if (error == 0) {
        return TW_OK;
    }
    tw_shared_mover_remove(&progress->mover);
    pthread_cond_destroy(&progress->changed);
err_lock:
    pthread_mutex_destroy(&progress->lock);
err:
    return tw_fail(TW_ERR_NO_MEMORY, "rank %d: no progress thread: error %d",
                   tw_transport_rank(progress->transport), error);
}

tw_status_t tw_progress_get(tw_transport_t *transport, tw_progress_t **out)
{
    tw_shared_t *shared = tw_shared_find(transport);
    tw_progress_t *progress = shared ? shared->progress : NULL;
    TW_FAIL_IF(progress && progress->n_forks != tw_fork_count(), TW_ERR_INVALID,
               "rank %d: a forked process does not have the thread of its parent's transport",
               tw_transport_rank(transport));
    if (progress) {
        tw_progress_lock(progress);
        progress->refs++;
        tw_progress_unlock(progress);
        *out = progress;
        return TW_OK;
    }
    TW_TRY(tw_shared_get(transport, &shared));
    progress = calloc(1, sizeof(*progress));
    if (!progress) {
        tw_shared_put(shared);
        return TW_ERR_NO_MEMORY;
    }
    progress->transport = transport;
    progress->shared = shared;
    progress->refs = 1;
    progress->n_forks = tw_fork_count();
    STAILQ_INIT(&progress->commands);
    tw_status_t status = progress_start(progress);
    if (status != TW_OK) {
        free(progress);
        tw_shared_put(shared);
        return status;
    }
    shared->progress = progress;
    *out = progress;
    return TW_OK;
}

void tw_progress_put(tw_progress_t *progress)
{
    if (!progress) {
        return;
    }
    tw_progress_lock(progress);
    int is_last = --progress->refs == 0;
    progress->is_stopping = is_last;
    tw_progress_notify(progress);
    tw_progress_unlock(progress);
    if (!is_last) {
        return;
    }
    tw_transport_wake(progress->transport);
    pthread_join(progress->thread, NULL);
    tw_shared_mover_remove(&progress->mover);
    progress->shared->progress = NULL;
    tw_shared_put(progress->shared);
    pthread_cond_destroy(&progress->changed);
    pthread_mutex_destroy(&progress->lock);
    free(progress);
}

tw_status_t tw_progress_call(tw_progress_t *progress, tw_progress_fn_t fn, void *arg)
{
    command_t command = {.fn = fn, .arg = arg};
    if (!progress || pthread_equal(pthread_self(), progress->thread)) {
        return fn(arg);
    }
    if (progress->n_forks != tw_fork_count()) { /* a forked process does not have the progress thread */
        return TW_ERR_INVALID;
    }
    tw_progress_lock(progress);
    STAILQ_INSERT_TAIL(&progress->commands, &command, link);
    tw_progress_notify(progress);
    tw_progress_unlock(progress);
    tw_transport_wake(progress->transport);
    tw_progress_lock(progress);
    while (!command.is_done) {
        tw_progress_wait(progress, SLEEP_SEC);
    }
    tw_progress_unlock(progress);
    return command.status;
}

void tw_progress_lock(tw_progress_t *progress)
{
    if (progress) {
        pthread_mutex_lock(&progress->lock);
    }
}

void tw_progress_unlock(tw_progress_t *progress)
{
    if (progress) {
        pthread_mutex_unlock(&progress->lock);
    }
}

void tw_progress_notify(tw_progress_t *progress)
{
    if (progress) {
        pthread_cond_broadcast(&progress->changed);
    }
}

void tw_progress_wait(tw_progress_t *progress, double timeout_sec)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)(timeout_sec * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    (void)pthread_cond_timedwait(&progress->changed, &progress->lock, &until);
}
