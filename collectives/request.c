/** Requests: post, test, wait, and what keeps them moving. */
#include <stdlib.h>

#include "collectives/algorithms/table.h"
#include "collectives/communicator.h"
#include "collectives/schedule/run.h"

#define NS_PER_SEC 1000000000u
#define SLEEP_SEC 1.0      /* at most, without a look */
#define AWAY_NS NS_PER_SEC /* nobody has looked for so long: the time does not count for the watchdog */
#define DESCRIBE_BYTES 512

static tw_status_t create_sched(tw_coll_request_t *request)
{
    const tw_coll_t *coll = request->coll;
    tw_sched_env_t env = {
        .transport = coll->transport,
        .scratch = coll->scratch,
        .peer = coll->topo.peer,
        .rank = coll->topo.rank,
        .world = coll->topo.world,
        .window = (int)coll->options.window,
        .tag = (uint64_t)coll->id << TW_COLL_ID_SHIFT | (uint64_t)(coll->sequence & 0xffff)
                                                            << TW_SCHED_SLOT_BITS,
    };

    return tw_sched_create(&env, &request->sched);
}

tw_status_t tw_request_build(tw_coll_request_t *request)
{
    const tw_coll_t *coll = request->coll;
    tw_status_t status = create_sched(request);

    if (status != TW_OK) {
        return status;
    }
    size_t elem_bytes = tw_type_bytes(request->args.type);
    float scale = tw_coll_scale(&request->args, coll->topo.world);
    size_t chunk_elems = request->choice.chunk_bytes / elem_bytes;
    tw_build_t build = {
        .sched = request->sched,
        .topo = &coll->topo,
        .args = &request->args,
        .in = &request->in,
        .out = &request->out,
        .in_first = request->in_first,
        .out_first = request->out_first,
        .chunk_elems = chunk_elems > 0 ? chunk_elems : 1,
        .scale = scale,
        .factor = scale != 1.0f ? request->args.factor : tw_coll_factor(&request->args, coll->topo.world),
        .in_place = request->in_place,
        .aliased = request->aliased,
        .codecs = &request->coll->codecs,
    };
    tw_check_build(request);
    tw_algo_get(request->choice.algo)->build(&build);
    return tw_sched_seal(request->sched);
}

void tw_coll_give_up(tw_transport_t *transport, tw_status_t status)
{
    if (status >= 0 || status == TW_ERR_PEER || status == TW_ERR_TIMEOUT ||
        tw_transport_failed_rank(transport) >= 0) {
        return;
    }
    tw_transport_abort(transport, status == TW_ERR_MISMATCH ? "ranks disagree about an operation"
                                                            : tw_status_string(status));
}

/* Bring a request to its end, good or bad. */
static void finish(tw_coll_request_t *request, tw_status_t status)
{
    tw_transport_t *transport = request->coll->transport;

    TAILQ_REMOVE(&request->coll->active, request, link);
    tw_sched_destroy(request->sched);
    request->sched = NULL;
    request->status = status;
    if (request->silent) {
        request->coll->silent_status = status < 0 ? status : request->coll->silent_status;
        tw_request_destroy(request);
    } else {
        TAILQ_INSERT_TAIL(&request->coll->ended, request, link);
    }
    tw_coll_give_up(transport, status);
}

static void finish_all(tw_coll_t *coll, tw_status_t status)
{
    while (!TAILQ_EMPTY(&coll->active)) {
        finish(TAILQ_FIRST(&coll->active), status);
    }
}

/* Move the messages of all requests. */
static void step_all(tw_coll_t *coll, int *moved)
{
    tw_coll_request_t *request = TAILQ_FIRST(&coll->active);

    while (request != NULL) {
        tw_coll_request_t *next = TAILQ_NEXT(request, link);
        tw_status_t status = tw_sched_step(request->sched, moved);
        if (status != TW_IN_PROGRESS) {
            finish(request, status);
        }
        request = next;
    }
}

/* Run one computation, of the oldest request that has one ready; then the wire gets its turn again. */
static void compute_one(tw_coll_t *coll, int *moved)
{
    tw_coll_request_t *request = TAILQ_FIRST(&coll->active);
    int computed = 0;

    while (request != NULL && !computed) {
        tw_coll_request_t *next = TAILQ_NEXT(request, link);
        tw_status_t status = tw_sched_compute_one(request->sched, &computed);
        if (status != TW_IN_PROGRESS) {
            finish(request, status);
        }
        request = next;
    }
    *moved |= computed;
}

void tw_coll_move(void *coll, int *moved)
{
    step_all(coll, moved);
    compute_one(coll, moved);
}

/* The oldest request that somebody may wait for. */
static const tw_coll_request_t *first_awaited(const tw_coll_t *coll)
{
    const tw_coll_request_t *request = TAILQ_FIRST(&coll->active);

    while (request != NULL && request->silent) {
        request = TAILQ_NEXT(request, link);
    }
    return request;
}

/* Nothing moves for too long, with somebody looking all the while: say what is awaited and give up. */
static void watch(tw_coll_t *coll, int moved)
{
    uint64_t now = tw_time_ns();
    char what[DESCRIBE_BYTES];

    if (moved || now - coll->looked_ns > AWAY_NS) {
        coll->moved_ns = now;
    }
    coll->looked_ns = now;
    double still_sec = (double)(now - coll->moved_ns) / NS_PER_SEC;
    const tw_coll_request_t *request = first_awaited(coll);
    if (request == NULL || coll->options.timeout_sec <= 0 || still_sec < coll->options.timeout_sec) {
        return;
    }
    tw_error("rank %d: %s (%s, number %u) has not moved for %.1f s: %s", coll->topo.rank,
             tw_coll_op_name(request->args.op), tw_algo_get(request->choice.algo)->info.name,
             request->signature.sequence, still_sec, tw_sched_describe(request->sched, what, sizeof(what)));
    finish_all(coll, TW_ERR_TIMEOUT);
}

/* One look at everything, whosever it is: the transport moves its communicators. *moved: 1 if anything happened. */
static tw_status_t progress(tw_coll_t *coll, int *moved)
{
    tw_status_t status = tw_transport_progress(coll->transport);

    *moved = status == TW_OK;
    if (status < 0) {
        finish_all(coll, status);
        return status;
    }
    if (!TAILQ_EMPTY(&coll->active)) {
        watch(coll, *moved);
    }
    return TW_OK;
}

tw_status_t tw_coll_progress(tw_coll_t *coll)
{
    int moved;

    return progress(coll, &moved);
}

static void note_plan(tw_coll_t *coll, const tw_coll_choice_t *choice)
{
    const tw_coll_algo_info_t *info = &tw_algo_get(choice->algo)->info;

    coll->last_plan = (tw_coll_plan_t){
        .algo = info->name,
        .quantized = info->quantized,
        .model_sec = choice->model_sec,
        .chunk_bytes = choice->chunk_bytes,
        .reason = choice->reason,
    };
}

/* Number the request and set it going. */
static void start(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    int moved = 0;

    coll->sequence++;
    coll->moved_ns = tw_time_ns();
    TAILQ_INSERT_TAIL(&coll->active, request, link);
    tw_status_t status = tw_sched_step(request->sched, &moved);
    if (status != TW_IN_PROGRESS) {
        finish(request, status);
    }
}

static tw_status_t build_silent(tw_coll_request_t *request)
{
    tw_status_t status = tw_view_init(&request->signature_view, 1, 1);

    if (status == TW_OK) {
        status = tw_view_init(&request->neighbour_view, 1, 1);
    }
    if (status == TW_OK) {
        status = create_sched(request);
    }
    if (status != TW_OK) {
        return status;
    }
    tw_check_build(request);
    request->args = (tw_coll_args_t){0}; /* somebody else's */
    return tw_sched_seal(request->sched);
}

/* An operation that this rank cannot post is one that the others wait for: they are told in place of the arguments. It
 * counts as an operation, so that ranks that all fail alike can go on. */
void tw_coll_tell(tw_coll_t *coll, const tw_coll_request_t *about)
{
    if (!tw_check_is_on(coll)) {
        return;
    }
    tw_coll_request_t *request = calloc(1, sizeof(*request));
    if (request == NULL) {
        goto err_abort;
    }
    request->coll = coll;
    request->status = TW_IN_PROGRESS;
    request->silent = 1;
    request->failed = about == NULL;
    if (about != NULL) {
        request->args = about->args;
        request->n_elems = about->n_elems;
        request->choice = about->choice;
    }
    if (build_silent(request) != TW_OK) {
        goto err_request;
    }
    start(request);
    return;

err_request:
    tw_request_destroy(request);
err_abort:
    tw_transport_abort(coll->transport, "an operation could not be posted");
}

int tw_coll_is_telling(const tw_coll_t *coll)
{
    const tw_coll_request_t *request = TAILQ_FIRST(&coll->active);

    while (request != NULL && request->failed) {
        request = TAILQ_NEXT(request, link);
    }
    return request != NULL;
}

static tw_status_t create_posted(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    tw_coll_request_t *request;
    tw_status_t status = tw_request_create(coll, args, &request);

    if (status != TW_OK) {
        return status;
    }
    status = tw_coll_choose(coll, &request->args, request->n_elems, &request->choice);
    if (status == TW_OK) {
        status = tw_request_build(request);
    }
    if (status != TW_OK) {
        tw_request_destroy(request);
        return status;
    }
    *out = request;
    return TW_OK;
}

tw_status_t tw_coll_post(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **request)
{
    tw_coll_request_t *posted;
    tw_status_t status = create_posted(coll, args, &posted);

    if (status != TW_OK) {
        tw_coll_tell(coll, NULL);
        return status;
    }
    note_plan(coll, &posted->choice);
    start(posted);
    *request = posted;
    return TW_OK;
}

static tw_status_t take_status(tw_coll_request_t *request)
{
    tw_status_t status = request->status;

    if (status != TW_IN_PROGRESS) {
        TAILQ_REMOVE(&request->coll->ended, request, link);
        tw_request_destroy(request);
    }
    return status;
}

tw_status_t tw_coll_test(tw_coll_request_t *request)
{
    int moved;

    if (request->status == TW_IN_PROGRESS) {
        (void)progress(request->coll, &moved);
    }
    return take_status(request);
}

/* Until something may have happened; the transport spins a little first. Time slept counts for the watchdog: somebody is waiting. */
static void sleep_a_while(tw_coll_t *coll)
{
    double timeout_sec = coll->options.timeout_sec / 4;

    (void)tw_transport_sleep(coll->transport,
                             timeout_sec > 0 && timeout_sec < SLEEP_SEC ? timeout_sec : SLEEP_SEC);
    coll->looked_ns = tw_time_ns();
}

tw_status_t tw_coll_wait(tw_coll_request_t *request)
{
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
    tw_status_t status = tw_coll_post(coll, args, &request);

    return status == TW_OK ? tw_coll_wait(request) : status;
}
