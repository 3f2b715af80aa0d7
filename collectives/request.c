/** Requests: post, test, wait, and progress. */
#include <stdlib.h>
#include <time.h>

#include "collectives/communicator.h"
#include "collectives/shared.h"

#define NS_PER_SEC 1000000000u
#define SLEEP_SEC 0.5      /* longest sleep between two progress checks */
#define AWAY_NS NS_PER_SEC /* if nobody asks for progress for this time, the watchdog does not count it */
#define SPIN_NS 200000     /* without a transport: a wait polls without pauses for this time */
#define NAP_NS 50000       /* then this pause is between two polls */
#define DESCRIBE_BYTES 512

/** Store a time that several threads read and write. */
static void tw_store_ns(uint64_t *at, uint64_t ns)
{
    __atomic_store_n(at, ns, __ATOMIC_RELAXED);
}

static uint64_t tw_load_ns(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static void request_finish(tw_coll_request_t *request, tw_status_t status)
{
    tw_coll_t *coll = request->coll;
    TAILQ_REMOVE(&coll->active, request, link);
    if (coll->engine->release) {
        coll->engine->release(request);
    }
    tw_sched_destroy(request->sched);
    request->sched = NULL;
    if (request->args.elapsed_sec) {
        *request->args.elapsed_sec = (double)(tw_time_ns() - request->posted_ns) / NS_PER_SEC;
    }
    if (request->is_detached) {
        tw_request_destroy(request);
        return;
    }
    tw_progress_lock(coll->progress);
    request->status = status;
    TAILQ_INSERT_TAIL(&coll->ended, request, link);
    tw_progress_notify(coll->progress);
    tw_progress_unlock(coll->progress);
}

/** If an operation failed here, the other ranks cannot complete it. Give up the job to tell them. This is
 *  not needed if the transport has told them, or if nothing has moved: then they time out, too. */
static void request_give_up(tw_transport_t *transport, tw_status_t status)
{
    if (status == TW_ERR_PEER || status == TW_ERR_TIMEOUT || tw_transport_failed_rank(transport) >= 0) {
        return;
    }
    tw_transport_abort(transport, status == TW_ERR_MISMATCH ? "ranks disagree about an operation"
                                                            : tw_status_string(status));
}

/** End the communicator, and all its requests, with this status. */
static tw_status_t request_fail(tw_coll_t *coll, tw_status_t status)
{
    if (coll->status != TW_OK) {
        return coll->status;
    }
    coll->status = status;
    while (!TAILQ_EMPTY(&coll->active)) {
        request_finish(TAILQ_FIRST(&coll->active), status);
    }
    if (coll->engine->abort) {
        coll->engine->abort(coll);
    } else {
        request_give_up(coll->transport, status);
    }
    return status;
}

static void drop(tw_coll_request_list_t *list)
{
    while (!TAILQ_EMPTY(list)) {
        tw_coll_request_t *request = TAILQ_FIRST(list);
        TAILQ_REMOVE(list, request, link);
        if (request->coll->engine->release) {
            request->coll->engine->release(request);
        }
        tw_request_destroy(request);
    }
}

void tw_coll_drop_requests(tw_coll_t *coll)
{
    drop(&coll->active);
    drop(&coll->ended);
}

tw_status_t tw_coll_check_process(const tw_coll_t *coll)
{
    if (coll->n_forks == tw_fork_count()) {
        return TW_OK;
    }
    return tw_fail(
        TW_ERR_INVALID,
        "rank %d: this process was forked from the one that made the communicator, and cannot use it",
        coll->topo.rank);
}

/* ---- progress ------------------------------------------------------------------------------------------ */

/** Make progress on a request: its schedule's messages, then the engine's part. TW_OK: it has ended. */
static tw_status_t request_step(tw_coll_request_t *request, int *moved)
{
    const tw_coll_engine_t *engine = request->coll->engine;
    tw_status_t rest = TW_OK, status = TW_OK;
    if (request->sched) {
        status = tw_sched_step(request->sched, moved);
    }
    if (status == TW_OK) {
        tw_sched_destroy(request->sched);
        request->sched = NULL;
    }
    if (status >= 0 && engine->step) {
        rest = engine->step(request, moved);
    }
    return rest != TW_OK ? rest : status;
}

static tw_status_t step_all(tw_coll_t *coll, int *moved)
{
    tw_coll_request_t *request = TAILQ_FIRST(&coll->active);
    while (request) {
        tw_coll_request_t *next = TAILQ_NEXT(request, link);
        tw_status_t status = request_step(request, moved);
        if (status < 0) {
            return status;
        }
        if (status == TW_OK) {
            *moved = 1;
            request_finish(request, TW_OK);
        }
        request = next;
    }
    return TW_OK;
}

/** Do one computation of the oldest request that has one ready. More would keep messages waiting. */
static tw_status_t compute_one(tw_coll_t *coll, int *moved)
{
    tw_coll_request_t *request;
    int computed = 0;
    TAILQ_FOREACH(request, &coll->active, link)
    {
        tw_status_t status = request->sched ? tw_sched_compute_one(request->sched, &computed) : TW_OK;
        if (status < 0) {
            return status;
        }
        if (computed) {
            break;
        }
    }
    *moved |= computed;
    return TW_OK;
}

void tw_coll_move(void *arg, int *all_moved)
{
    tw_coll_t *coll = arg;
    int own_moved = 0, *moved = &own_moved;
    if (TAILQ_EMPTY(&coll->active)) {
        coll->mover.polls = 0;
        return;
    }
    tw_coll_enter(coll);
    tw_status_t status = step_all(coll, moved);
    status = status == TW_OK ? compute_one(coll, moved) : status;
    if (own_moved) {
        *all_moved = 1;
        tw_store_ns(&coll->moved_ns, tw_time_ns());
    }
    if (status < 0) {
        (void)request_fail(coll, status);
    }
    coll->mover.polls = coll->engine->is_polled && !TAILQ_EMPTY(&coll->active);
}

static const char *request_describe(const tw_coll_request_t *request, char *buf, size_t buf_bytes)
{
    if (request->sched) {
        return tw_sched_describe(request->sched, buf, buf_bytes);
    }
    return request->coll->engine->describe(request, buf, buf_bytes);
}

/** Returns the oldest request that a caller may be waiting for. */
static tw_coll_request_t *first_awaited(const tw_coll_t *coll)
{
    tw_coll_request_t *request = TAILQ_FIRST(&coll->active);
    while (request && request->is_failed) {
        request = TAILQ_NEXT(request, link);
    }
    return request;
}

double tw_coll_timeout(const tw_coll_t *coll)
{
    return (double)tw_load_ns(&coll->limit_ns) / NS_PER_SEC;
}

static double still_sec(const tw_coll_t *coll)
{
    return (double)(int64_t)(tw_time_ns() - tw_load_ns(&coll->moved_ns)) / NS_PER_SEC;
}

void tw_coll_timeout_set(tw_coll_t *coll, double timeout_sec)
{
    tw_store_ns(&coll->limit_ns, timeout_sec > 0 ? (uint64_t)(timeout_sec * NS_PER_SEC) : 0);
}

void tw_coll_patient_set(tw_coll_t *coll)
{
    __atomic_store_n(&coll->is_patient, 1, __ATOMIC_RELAXED);
}

/** Returns 1 if nothing has moved for too long although somebody asked for progress all the time. */
static int is_overdue(tw_coll_t *coll, int moved)
{
    uint64_t now = tw_time_ns();
    if (moved || now - tw_load_ns(&coll->looked_ns) > AWAY_NS) {
        tw_store_ns(&coll->moved_ns, now);
    }
    tw_store_ns(&coll->looked_ns, now);
    return tw_coll_timeout(coll) > 0 && still_sec(coll) >= tw_coll_timeout(coll);
}

/** Returns 1 if the communicator, or an operation in flight, is patient. Operations behind a patient one may
 *  be as late. */
static int has_patient(const tw_coll_t *coll)
{
    const tw_coll_request_t *request;
    TAILQ_FOREACH(request, &coll->active, link)
    {
        if (request->args.patient) {
            return 1;
        }
    }
    return __atomic_load_n(&coll->is_patient, __ATOMIC_RELAXED);
}

/** Warn, once, that a patient operation has waited for so long that another rank may hang. */
static void say_waiting(tw_coll_request_t *request)
{
    const tw_coll_t *coll = request->coll;
    char what[DESCRIBE_BYTES], since[16] = "";
    time_t begin = time(NULL) - (time_t)still_sec(coll);
    struct tm local;
    if (request->is_said) {
        return;
    }
    if (localtime_r(&begin, &local)) {
        (void)strftime(since, sizeof(since), "%H:%M:%S", &local);
    }
    tw_warn("rank %d: %s (%s, number %u) has waited for %.1f s, since %s, and waits on without a limit, "
            "as another rank may be busy: %s",
            coll->topo.rank, tw_coll_op_name(request->args.op),
            coll->engine->algo_get(request->choice.algo)->name, request->signature.sequence, still_sec(coll),
            since, request_describe(request, what, sizeof(what)));
    request->is_said = 1;
}

/** If the limit has passed, log what the operation waits for, and end the communicator. */
static tw_status_t time_out(void *arg)
{
    tw_coll_t *coll = arg;
    tw_coll_request_t *request = first_awaited(coll);
    char what[DESCRIBE_BYTES];
    if (!request || still_sec(coll) < tw_coll_timeout(coll)) {
        return TW_OK;
    }
    if (has_patient(coll)) {
        say_waiting(request);
        return TW_OK;
    }
    tw_error("rank %d: %s (%s, number %u) has not moved for %.1f s (TW_COLL_TIMEOUT): %s", coll->topo.rank,
             tw_coll_op_name(request->args.op), coll->engine->algo_get(request->choice.algo)->name,
             request->signature.sequence, still_sec(coll), request_describe(request, what, sizeof(what)));
    return request_fail(coll, TW_ERR_TIMEOUT);
}

/** Make progress on all operations of the transport, once. *moved: 1 if anything happened. */
static tw_status_t progress(tw_coll_t *coll, int *moved)
{
    tw_status_t status = coll->status;
    *moved = 0;
    if (status == TW_OK && coll->engine->check) {
        status = coll->engine->check(coll);
    }
    if (status < 0) {
        return request_fail(coll, status);
    }
    if (coll->transport) {
        status = tw_transport_progress(coll->transport);
        *moved = status == TW_OK;
    } else {
        tw_coll_move(coll, moved);
    }
    if (status < 0) {
        return request_fail(coll, status);
    }
    if (coll->status == TW_OK && is_overdue(coll, *moved)) {
        return time_out(coll);
    }
    return coll->status;
}

static double sleep_sec(const tw_coll_t *coll)
{
    double share = tw_coll_timeout(coll) / 4;
    return share > 0 && share < SLEEP_SEC ? share : SLEEP_SEC;
}

/** Sleep until something may have happened. A transport first polls for a moment. This time counts for the
 *  watchdog, because the caller is waiting. */
static void sleep_a_while(tw_coll_t *coll)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    if (coll->transport) {
        (void)tw_transport_sleep(coll->transport, sleep_sec(coll));
    } else if (tw_time_ns() - tw_load_ns(&coll->moved_ns) > SPIN_NS) {
        (void)nanosleep(&nap, NULL);
    }
    tw_store_ns(&coll->looked_ns, tw_time_ns());
}

tw_status_t tw_coll_drain(tw_coll_t *coll)
{
    tw_status_t status = coll->status;
    while (status == TW_OK && first_awaited(coll)) {
        int moved;
        status = progress(coll, &moved);
        if (!moved && status == TW_OK) {
            sleep_a_while(coll);
        }
    }
    return status;
}

/* ---- posting ------------------------------------------------------------------------------------------- */

/** Give the request its number, and start it. */
static tw_status_t request_start(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    int moved = 0;
    coll->sequence++;
    request->posted_ns = tw_time_ns();
    tw_store_ns(&coll->moved_ns, request->posted_ns);
    TAILQ_INSERT_TAIL(&coll->active, request, link);
    tw_status_t status = coll->engine->start ? coll->engine->start(request) : TW_OK;
    if (status < 0) {
        return request_fail(coll, status);
    }
    status = request_step(request, &moved);
    if (status == TW_OK) {
        request_finish(request, TW_OK);
        /* A detached request waits for the requests before it, and perhaps no caller ever asks for progress
         * on them. So all of them are moved here. */
    } else if (status > 0 && request->is_detached) {
        status = step_all(coll, &moved);
    }
    if (status < 0) { /* the caller gets this error from the request */
        (void)request_fail(coll, status);
    }
    coll->mover.polls = coll->engine->is_polled && !TAILQ_EMPTY(&coll->active);
    return TW_OK;
}

static tw_status_t take_status(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    tw_progress_lock(coll->progress);
    tw_status_t status = request->status;
    if (status != TW_IN_PROGRESS) {
        TAILQ_REMOVE(&coll->ended, request, link);
    }
    tw_progress_unlock(coll->progress);
    if (status != TW_IN_PROGRESS) {
        tw_request_destroy(request);
    }
    return status;
}

/** Tell the other ranks that this rank cannot post the operation; they wait for its signature. The message
 *  counts as an operation, so that ranks that all fail in the same way can go on. */
static void tell_failure(tw_coll_t *coll)
{
    if (!tw_check_is_on(coll)) {
        return;
    }
    tw_coll_request_t *request = tw_request_alloc(coll);
    if (request) {
        request->is_detached = request->is_failed = 1;
        if (tw_check_create_sched(request) == TW_OK) {
            (void)request_start(request);
            return;
        }
        tw_request_destroy(request);
    }
    tw_transport_abort(coll->transport, "an operation could not be posted");
}

/* The arguments of a public call, for the thread that owns the transport. */
typedef struct call {
    tw_coll_t *coll;
    const tw_coll_args_t *args;
    tw_coll_request_t **request;
    uint64_t *bytes;
} call_t;

static tw_status_t request_post(void *arg)
{
    const call_t *call = arg;
    tw_coll_t *coll = call->coll;
    tw_coll_request_t *posted, **request = call->request;
    tw_status_t status = coll->status;
    tw_coll_enter(coll);
    if (status == TW_OK && coll->engine->check) {
        status = coll->engine->check(coll);
    }
    if (status != TW_OK) {
        return request_fail(coll, status);
    }
    status = coll->engine->request_create(coll, call->args, &posted);
    if (status != TW_OK) {
        tell_failure(coll);
        return status;
    }
    posted->is_detached = !request;
    status = request_start(posted);
    if (!request) {
        return status;
    }
    if (status != TW_OK) {
        (void)take_status(posted);
        return status;
    }
    *request = posted;
    return TW_OK;
}

tw_status_t tw_coll_post(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request)
{
    call_t call = {.coll = coll, .args = args, .request = request};
    TW_TRY(tw_coll_check_process(coll));
    return coll->progress ? tw_progress_call(coll->progress, request_post, &call) : request_post(&call);
}

/* ---- test and wait ------------------------------------------------------------------------------------- */

/** Test a request of a communicator with a progress thread, which alone makes progress on requests. */
static tw_status_t test_apart(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    tw_status_t status = take_status(request);
    if (status == TW_IN_PROGRESS && is_overdue(coll, 0)) {
        (void)tw_progress_call(coll->progress, time_out, coll);
    }
    return status;
}

static tw_status_t wait_apart(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    tw_status_t status;
    while ((status = test_apart(request)) == TW_IN_PROGRESS) {
        tw_progress_lock(coll->progress);
        if (request->status == TW_IN_PROGRESS) {
            tw_progress_wait(coll->progress, sleep_sec(coll));
        }
        tw_progress_unlock(coll->progress);
        tw_store_ns(&coll->looked_ns, tw_time_ns());
    }
    return status;
}

tw_status_t tw_coll_test(tw_coll_request_t *request)
{
    int moved;
    TW_TRY(tw_coll_check_process(request->coll));
    if (request->coll->progress) {
        return test_apart(request);
    }
    if (request->status == TW_IN_PROGRESS) {
        (void)progress(request->coll, &moved);
    }
    return take_status(request);
}

tw_status_t tw_coll_wait(tw_coll_request_t *request)
{
    TW_TRY(tw_coll_check_process(request->coll));
    if (request->coll->progress) {
        return wait_apart(request);
    }
    while (request->status == TW_IN_PROGRESS) {
        int moved;
        (void)progress(request->coll, &moved);
        if (!moved && request->status == TW_IN_PROGRESS) {
            sleep_a_while(request->coll);
        }
    }
    return take_status(request);
}

tw_status_t tw_coll_run(tw_coll_t *coll, const tw_coll_args_t *args)
{
    tw_coll_request_t *request;
    TW_TRY(tw_coll_post(coll, args, &request));
    return tw_coll_wait(request);
}

static tw_status_t status_now(void *arg)
{
    const tw_coll_t *coll = arg;
    return coll->status;
}

tw_status_t tw_coll_progress(tw_coll_t *coll)
{
    int moved;
    TW_TRY(tw_coll_check_process(coll));
    return coll->progress ? tw_progress_call(coll->progress, status_now, coll) : progress(coll, &moved);
}

static tw_status_t cancel(void *arg)
{
    tw_coll_t *coll = arg;
    tw_coll_enter(coll);
    return request_fail(coll, TW_ERR_CANCELED);
}

void tw_coll_abort(tw_coll_t *coll)
{
    if (tw_coll_check_process(coll) == TW_OK) {
        (void)tw_progress_call(coll->progress, cancel, coll);
    }
}

void tw_coll_failed(void *arg, tw_status_t status)
{
    tw_coll_enter(arg);
    (void)request_fail(arg, status);
}

static tw_status_t request_prepare(void *arg)
{
    const call_t *call = arg;
    tw_coll_t *coll = call->coll;
    TW_FAIL_IF(!coll->engine->prepare, TW_ERR_UNSUPPORTED,
               "rank %d: %s: operations on host memory cannot be prepared", coll->topo.rank,
               tw_coll_op_name(call->args->op));
    tw_coll_enter(coll);
    return coll->status == TW_OK ? coll->engine->prepare(coll, call->args) : coll->status;
}

tw_status_t tw_coll_prepare(tw_coll_t *coll, const tw_coll_args_t *args)
{
    call_t call = {.coll = coll, .args = args};
    TW_TRY(tw_coll_check_process(coll));
    return tw_progress_call(coll->progress, request_prepare, &call);
}

static tw_status_t request_planned_bytes(void *arg)
{
    const call_t *call = arg;
    tw_coll_enter(call->coll);
    return call->coll->engine->planned_bytes(call->coll, call->args, call->bytes);
}

tw_status_t tw_coll_planned_inter_node_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes)
{
    call_t call = {.coll = coll, .args = args, .bytes = bytes};
    TW_TRY(tw_coll_check_process(coll));
    return tw_progress_call(coll->progress, request_planned_bytes, &call);
}

void tw_coll_request_plan(const tw_coll_request_t *request, tw_coll_plan_t *plan)
{
    const tw_coll_choice_t *choice = &request->choice;
    const tw_coll_algo_info_t *info = request->coll->engine->algo_get(choice->algo);
    *plan = (tw_coll_plan_t){
        .algo = info->name,
        .quantized = info->quantized,
        .model_sec = choice->model_sec,
        .chunk_bytes = choice->chunk_bytes,
        .reason = choice->reason,
    };
}
