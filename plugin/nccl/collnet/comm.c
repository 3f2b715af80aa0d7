/* Functions for NCCL's threads: they hand operations to the worker thread, and test for their end. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "plugin/nccl/collnet/state.h"

struct tw_collnet_region {
    tw_collnet_comm_t *comm;
    char *data;
    size_t bytes;
};

static void init_lists(tw_collnet_comm_t *comm)
{
    TAILQ_INIT(&comm->idle);
    TAILQ_INIT(&comm->posted);
    TAILQ_INIT(&comm->running);
    for (int i = 0; i < TW_COLLNET_REQUESTS; i++) {
        comm->requests[i].comm = comm;
        TAILQ_INSERT_TAIL(&comm->idle, &comm->requests[i], link);
    }
}

static tw_collnet_comm_t *collnet_comm_create(int world)
{
    tw_collnet_comm_t *comm = calloc(1, sizeof(*comm));
    pthread_condattr_t attributes;
    if (comm) {
        comm->counts = calloc(world > 0 ? (size_t)world : 1, sizeof(*comm->counts));
    }
    if (!comm || !comm->counts) {
        tw_error("collnet: out of memory for a communicator");
        free(comm);
        return NULL;
    }
    comm->status = TW_IN_PROGRESS;
    comm->meeting.listener = -1;
    (void)pthread_mutex_init(&comm->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&comm->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    init_lists(comm);
    return comm;
}

static tw_status_t await_others(tw_collnet_comm_t *comm)
{
    tw_status_t status;
    pthread_mutex_lock(&comm->lock);
    while (comm->status == TW_IN_PROGRESS) {
        (void)pthread_cond_wait(&comm->changed, &comm->lock);
    }
    status = comm->status;
    pthread_mutex_unlock(&comm->lock);
    return status;
}

static void log_codec(const tw_collnet_comm_t *comm)
{
    const tw_collnet_settings_t *settings = &comm->meeting.settings;
    char codec[64] = "plain";
    if (settings->has_codec) {
        (void)tw_quant_codec_format(&settings->codec, codec, sizeof(codec));
    }
    tw_info("collnet: rank %d of %d on %s: all-reduces are sent as %s", comm->meeting.job.rank,
            comm->meeting.job.world, comm->meeting.device->name, codec);
}

tw_status_t tw_collnet_connect(void **handles, int world, int rank, tw_collnet_listener_t *listener,
                               tw_collnet_comm_t **out)
{
    tw_collnet_comm_t *comm = collnet_comm_create(world);
    if (!comm) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = tw_collnet_meeting_init(&comm->meeting, handles, world, rank, listener);
    status = status == TW_OK ? tw_collnet_worker_start(comm) : status;
    if (status != TW_OK) {
        if (comm->meeting.listener >= 0) {
            close(comm->meeting.listener);
        }
        tw_collnet_comm_free(comm);
        return status;
    }
    status = await_others(comm);
    if (status != TW_OK) {
        tw_error("collnet: rank %d of %d: not connected: %s", rank, world, tw_status_string(status));
        tw_collnet_close(comm);
        return status;
    }
    log_codec(comm);
    *out = comm;
    return TW_OK;
}

static struct timespec deadline_after(double sec)
{
    struct timespec until;
    const uint64_t ns = (uint64_t)(sec * 1e9);
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec += (long)(ns % 1000000000u);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

/** The worker may end late: on rank 0 it waits until the other ranks have closed. After the timeout this
 *  returns, and the worker itself frees the communicator. */
void tw_collnet_close(tw_collnet_comm_t *comm)
{
    int has_ended, error = 0;
    if (!comm) {
        return;
    }
    struct timespec until = deadline_after(comm->meeting.settings.timeout_sec);
    pthread_mutex_lock(&comm->lock);
    comm->is_closing = 1;
    (void)pthread_cond_broadcast(&comm->changed);
    tw_collnet_worker_wake(comm);
    while (!comm->has_ended && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&comm->changed, &comm->lock, &until);
    }
    has_ended = comm->has_ended;
    comm->is_orphan = !has_ended;
    if (!has_ended) {
        (void)pthread_detach(comm->thread);
    }
    pthread_mutex_unlock(&comm->lock);
    if (has_ended) {
        (void)pthread_join(comm->thread, NULL);
        tw_collnet_comm_free(comm);
    }
}

/* ---- memory -------------------------------------------------------------------------------------------- */

tw_status_t tw_collnet_register(tw_collnet_comm_t *comm, void *data, size_t bytes, tw_collnet_region_t **out)
{
    tw_collnet_region_t *region = malloc(sizeof(*region));
    TW_FAIL_IF(!region, TW_ERR_NO_MEMORY, "collnet: out of memory for a region");
    *region = (tw_collnet_region_t){.comm = comm, .data = data, .bytes = bytes};
    *out = region;
    return TW_OK;
}

static int region_has(const tw_collnet_region_t *region, const void *at)
{
    const uintptr_t data = (uintptr_t)region->data;
    return (uintptr_t)at >= data && (uintptr_t)at - data < region->bytes;
}

static int is_at_work(const tw_collnet_region_t *region, const tw_collnet_requests_t *requests)
{
    const tw_collnet_request_t *request;
    TAILQ_FOREACH(request, requests, link)
    {
        if (region_has(region, request->work.src) || region_has(region, request->work.dst)) {
            return 1;
        }
    }
    return 0;
}

void tw_collnet_deregister(tw_collnet_region_t *region)
{
    tw_collnet_comm_t *comm = region->comm;
    pthread_mutex_lock(&comm->lock);
    while (is_at_work(region, &comm->posted) || is_at_work(region, &comm->running)) {
        comm->gives_up = 1;
        tw_collnet_worker_wake(comm);
        (void)pthread_cond_wait(&comm->changed, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
    free(region);
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static tw_status_t check_window(const tw_collnet_comm_t *comm, const tw_collnet_work_t *work)
{
    const size_t world = (size_t)comm->meeting.job.world, most = SIZE_MAX / world;
    const size_t n = work->elems_per_rank;
    if (work->op == TW_COLL_ALLREDUCE ||
        (n <= most && work->n_elems <= world * n && work->window_first <= world * n - work->n_elems)) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_INVALID, "collnet: rank %d: a window of %zu from %zu on, of %zu times %zu",
                   comm->meeting.job.rank, work->n_elems, work->window_first, world, n);
}

tw_status_t tw_collnet_post(tw_collnet_comm_t *comm, const tw_collnet_work_t *work,
                            tw_collnet_request_t **out)
{
    TW_TRY(check_window(comm, work));
    pthread_mutex_lock(&comm->lock);
    tw_status_t status = comm->gives_up ? TW_ERR_CANCELED : comm->status;
    tw_collnet_request_t *request = TAILQ_FIRST(&comm->idle);
    if (status == TW_OK && !request) {
        status = TW_IN_PROGRESS;
    }
    if (status == TW_OK) {
        TAILQ_REMOVE(&comm->idle, request, link);
        request->work = *work;
        request->status = TW_IN_PROGRESS;
        TAILQ_INSERT_TAIL(&comm->posted, request, link);
        tw_collnet_worker_wake(comm);
        *out = request;
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}

tw_status_t tw_collnet_test(tw_collnet_request_t *request, size_t *bytes)
{
    tw_collnet_comm_t *comm = request->comm;
    tw_status_t status;
    pthread_mutex_lock(&comm->lock);
    status = request->status;
    if (status != TW_IN_PROGRESS) {
        *bytes = request->work.n_elems * tw_type_bytes(request->work.type);
        TAILQ_INSERT_TAIL(&comm->idle, request, link);
    }
    pthread_mutex_unlock(&comm->lock);
    return status;
}
