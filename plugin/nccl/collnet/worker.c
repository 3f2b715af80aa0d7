/* The worker thread of a communicator. NCCL makes all progress in one thread, which must not be held up. So
 * the worker connects the ranks, uses the transport, encodes and sums. It sleeps when it has no work. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/nccl/collnet/state.h"

#define SLEEP_SEC 1.0 /* longest sleep between two progress checks */

/* ---- posting operations -------------------------------------------------------------------------------- */

/** Count the elements of the window that belong to a rank. */
static size_t in_window(const tw_collnet_work_t *work, int rank)
{
    const size_t first = (size_t)rank * work->elems_per_rank, last = first + work->elems_per_rank;
    const size_t begin = work->window_first, end = begin + work->n_elems;
    const size_t from = first > begin ? first : begin, to = last < end ? last : end;
    return to > from ? to - from : 0;
}

static const size_t *window_counts(tw_collnet_comm_t *comm, const tw_collnet_work_t *work)
{
    for (int r = 0; r < comm->meeting.job.world; r++) {
        comm->counts[r] = in_window(work, r);
    }
    return comm->counts;
}

static tw_status_t worker_post(tw_collnet_comm_t *comm, tw_collnet_request_t *request)
{
    const tw_collnet_settings_t *settings = &comm->meeting.settings;
    const tw_collnet_work_t *work = &request->work;
    const int is_allreduce = work->op == TW_COLL_ALLREDUCE;
    const tw_coll_segment_t segment = {.src = work->src,
                                       .dst = work->dst,
                                       .n_elems = work->n_elems,
                                       .counts = is_allreduce ? NULL : window_counts(comm, work)};
    const tw_coll_args_t args = {.op = work->op,
                                 .type = work->type,
                                 .segments = &segment,
                                 .n_segments = 1,
                                 .reduction = TW_COLL_SUM,
                                 .codec = is_allreduce && settings->has_codec ? &settings->codec : NULL,
                                 .step = comm->n_operations++};
    return tw_coll_post(comm->coll, &args, &request->operation);
}

/* ---- ended operations ---------------------------------------------------------------------------------- */

/** Bytes of an operation's src. In a gather they are only this rank's part of the window. */
static size_t source_bytes(const tw_collnet_comm_t *comm, const tw_collnet_work_t *work)
{
    const size_t n = work->op == TW_COLL_ALLGATHER ? in_window(work, comm->meeting.job.rank) : work->n_elems;
    return n * tw_type_bytes(work->type);
}

static void worker_end_request(tw_collnet_comm_t *comm, tw_collnet_request_t *request, tw_status_t status)
{
    const tw_collnet_work_t *work = &request->work;
    request->operation = NULL;
    if (status == TW_OK && comm->meeting.settings.has_codec && work->src != work->dst) {
        memset(work->src, 0, source_bytes(comm, work));
    }
    pthread_mutex_lock(&comm->lock);
    TAILQ_REMOVE(&comm->running, request, link);
    request->status = status;
    (void)pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

/* ---- progress ------------------------------------------------------------------------------------------ */

static tw_collnet_request_t *take_posted(tw_collnet_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    tw_collnet_request_t *request = TAILQ_FIRST(&comm->posted);
    if (request) {
        TAILQ_REMOVE(&comm->posted, request, link);
        TAILQ_INSERT_TAIL(&comm->running, request, link);
    }
    pthread_mutex_unlock(&comm->lock);
    return request;
}

static tw_status_t post_all(tw_collnet_comm_t *comm)
{
    tw_collnet_request_t *request;
    tw_status_t status = TW_OK;
    while (status == TW_OK && (request = take_posted(comm))) {
        status = worker_post(comm, request);
        if (status != TW_OK) {
            worker_end_request(comm, request, status);
        }
    }
    return status;
}

/** Test all running operations. Needs no lock to read the list, because only this thread changes it. */
static tw_status_t worker_test_all(tw_collnet_comm_t *comm)
{
    tw_collnet_request_t *request = TAILQ_FIRST(&comm->running), *next;
    tw_status_t status = TW_IN_PROGRESS;
    for (; request && status >= 0; request = next) {
        next = TAILQ_NEXT(request, link);
        status = tw_coll_test(request->operation);
        if (status != TW_IN_PROGRESS) {
            worker_end_request(comm, request, status);
        }
    }
    return status < 0 ? status : TW_OK;
}

/** Returns 1 if there is work. Returns 0 if the worker may sleep; is_asleep then makes others wake it. */
static int is_wanted(tw_collnet_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    int wanted = comm->is_closing || comm->gives_up || !TAILQ_EMPTY(&comm->posted);
    comm->is_asleep = !wanted;
    pthread_mutex_unlock(&comm->lock);
    return wanted;
}

static void wake_up(tw_collnet_comm_t *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->is_asleep = 0;
    pthread_mutex_unlock(&comm->lock);
}

static tw_status_t worker_move(tw_collnet_comm_t *comm)
{
    tw_status_t status = post_all(comm);
    status = status == TW_OK ? worker_test_all(comm) : status;
    status = status == TW_OK ? tw_transport_progress(comm->transport) : status;
    if (status == TW_IN_PROGRESS && !is_wanted(comm)) {
        status = tw_transport_sleep(comm->transport, SLEEP_SEC);
        wake_up(comm);
    }
    return status;
}

/* ---- status of the communicator ------------------------------------------------------------------------ */

/** Set the communicator's status, and wake threads that wait for a change. */
static void worker_publish(tw_collnet_comm_t *comm, tw_status_t status)
{
    pthread_mutex_lock(&comm->lock);
    comm->status = status;
    (void)pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

/** End all present and later requests with this status. Returns when the communicator is being closed. */
static void worker_fail(tw_collnet_comm_t *comm, tw_status_t status)
{
    tw_collnet_request_t *request;
    worker_publish(comm, status);
    tw_coll_abort(comm->coll);
    while (take_posted(comm)) {
    }
    while ((request = TAILQ_FIRST(&comm->running))) {
        if (request->operation) {
            (void)tw_coll_test(request->operation);
        }
        worker_end_request(comm, request, status);
    }
    pthread_mutex_lock(&comm->lock);
    while (!comm->is_closing) {
        (void)pthread_cond_wait(&comm->changed, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

static int must_end(tw_collnet_comm_t *comm, tw_status_t *status)
{
    pthread_mutex_lock(&comm->lock);
    int closing = comm->is_closing;
    if (comm->gives_up && *status >= 0) {
        *status = TW_ERR_CANCELED;
    }
    pthread_mutex_unlock(&comm->lock);
    return closing;
}

static void worker_serve(tw_collnet_comm_t *comm)
{
    tw_status_t status = TW_OK;
    while (!must_end(comm, &status)) {
        if (status < 0) {
            worker_fail(comm, status);
            return;
        }
        status = worker_move(comm);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* Settings that must be the same on all ranks. */
typedef struct terms {
    int has_codec;
    tw_quant_codec_t codec;
} terms_t;

static tw_status_t compare_terms(const tw_collnet_comm_t *comm, const terms_t *all)
{
    for (int r = 1; r < comm->meeting.job.world; r++) {
        TW_FAIL_IF(all[r].has_codec != all[0].has_codec ||
                       !tw_quant_codec_equal(&all[r].codec, &all[0].codec),
                   TW_ERR_CONFIG, "collnet: rank %d: TW_ALLREDUCE_CODEC is not the same on ranks 0 and %d",
                   comm->meeting.job.rank, r);
    }
    return TW_OK;
}

/** Compare all ranks' terms. It is the last step that can fail: either all ranks connect or none. */
static tw_status_t worker_agree(tw_collnet_comm_t *comm)
{
    const tw_collnet_settings_t *settings = &comm->meeting.settings;
    const terms_t own = {.has_codec = settings->has_codec, .codec = settings->codec};
    const size_t bytes = (size_t)comm->meeting.job.world * sizeof(own);
    terms_t *all = malloc(bytes);
    const tw_coll_segment_t segment = {.src = &own, .dst = all, .n_elems = bytes};
    const tw_coll_args_t args = {
        .op = TW_COLL_ALLGATHER, .type = TW_TYPE_BYTE, .segments = &segment, .n_segments = 1};
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (all) {
        status = tw_coll_run(comm->coll, &args);
    }
    status = status == TW_OK ? compare_terms(comm, all) : status;
    free(all);
    return status;
}

static tw_status_t worker_join(tw_collnet_comm_t *comm)
{
    tw_coll_params_t params = {.deterministic = 1, .patient = 1};
    TW_TRY(tw_collnet_meet(&comm->meeting, &comm->transport));
    params.transport = comm->transport;
    TW_TRY(tw_coll_create(&params, &comm->coll));
    return worker_agree(comm);
}

/** Log how many bytes the operations have sent. */
static void tell_traffic(const tw_collnet_comm_t *comm)
{
    tw_coll_counters_t sent;
    tw_coll_counters_get(comm->coll, &sent);
    tw_info("collnet: rank %d of %d: %u operations, %" PRIu64 " bytes sent", comm->meeting.job.rank,
            comm->meeting.job.world, comm->n_operations, sent.inter_node_bytes);
}

static void *worker_run(void *arg)
{
    tw_collnet_comm_t *comm = arg;
    tw_status_t status = worker_join(comm);
    int is_orphan;
    worker_publish(comm, status);
    if (status == TW_OK) {
        worker_serve(comm);
        tell_traffic(comm);
    } else if (comm->transport) {
        tw_transport_abort(comm->transport, "it cannot take part in NCCL's collnet");
    }
    tw_coll_destroy(comm->coll);
    tw_transport_destroy(comm->transport);
    pthread_mutex_lock(&comm->lock);
    comm->has_ended = 1;
    is_orphan = comm->is_orphan;
    (void)pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (is_orphan) {
        tw_collnet_comm_free(comm);
    }
    return NULL;
}

tw_status_t tw_collnet_worker_start(tw_collnet_comm_t *comm)
{
    const int error = pthread_create(&comm->thread, NULL, worker_run, comm);
    TW_FAIL_IF(error != 0, TW_ERR_INTERNAL, "collnet: no thread: %s", strerror(error));
    (void)pthread_setname_np(comm->thread, "thinwire coll");
    return TW_OK;
}

void tw_collnet_worker_wake(tw_collnet_comm_t *comm)
{
    if (comm->is_asleep) {
        comm->is_asleep = 0;
        tw_transport_wake(comm->transport);
    }
}

void tw_collnet_comm_free(tw_collnet_comm_t *comm)
{
    (void)pthread_cond_destroy(&comm->changed);
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm->counts);
    free(comm);
}
