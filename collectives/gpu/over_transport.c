/** Over a transport: the host takes a plan's messages from and to the workspace, tick by tick, while kernels of the same
 *  tick write and read other parts of it. The workspace is in pinned host memory, or in the GPU's if the transport takes
 *  that. Either way a message is posted once the host has seen the end of the kernels of the tick before, which wrote what it
 *  sends and read what it overwrites; and kernels that read what came are launched once the host has seen its end. */
#include <stdlib.h>

#include "collectives/gpu/gpu.h"

/** One operation under way. */
typedef struct tw_gpu_run {
    TAILQ_ENTRY(tw_gpu_run) link;
    tw_gpu_call_t call;
    tw_stream_t stream;
    uint64_t tag;
    size_t tick;
    int is_launched;                   /**< this tick's computations are enqueued */
    int is_posted;                     /**< its messages are under way */
    tw_gpu_event_t computed[2];        /**< after the computations of even ticks, and of odd ones */
    tw_transport_request_t **requests; /**< [messages of the largest tick]; NULL: ended */
    size_t n_requests, n_open;
    uint64_t *slots; /**< [2 * world] messages so far to each rank, and from each rank */
    tw_qop_tensor_t tensors[];
} tw_gpu_run_t;

/* ---- one operation --------------------------------------------------------------------------------------- */

static const tw_gpu_tick_t *tick_of(const tw_gpu_run_t *run)
{
    return &run->call.shape->plan.ticks[run->tick];
}

static void destroy_run(tw_gpu_run_t *run)
{
    const tw_gpu_device_t *device = run->call.coll->device;

    for (size_t i = 0; i < run->n_requests; i++) {
        if (run->requests[i] != NULL) {
            tw_transport_cancel(run->call.coll->base.transport, run->requests[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (run->computed[i] != NULL) {
            device->event_destroy(device, run->computed[i]);
        }
    }
    free(run->requests);
    free(run->slots);
    free(run);
}

/** The tick's kernels, then an event behind them. */
static tw_status_t launch(tw_gpu_run_t *run)
{
    const tw_gpu_device_t *device = run->call.coll->device;
    tw_status_t status = tw_gpu_compute_tick(&run->call, run->tick, run->stream);

    if (status == TW_OK) {
        status = device->event_record(device, run->computed[run->tick % 2], run->stream);
    }
    run->is_launched = 1;
    return status;
}

static tw_status_t post_message(tw_gpu_run_t *run, const tw_gpu_message_t *message,
                                tw_transport_request_t **request)
{
    const tw_coll_t *base = &run->call.coll->base;
    char *at = run->call.workspace + message->at;
    int peer = base->topo.peer[message->peer];
    uint64_t *slot = &run->slots[message->is_send ? message->peer : base->topo.world + message->peer];
    const tw_transport_message_t posted = {
        .peer = peer,
        .tag = run->tag | (*slot)++,
        .buffer = at,
        .bytes = message->bytes,
        .mem = run->call.coll->memory.pinned ? TW_MEM_HOST : run->call.coll->device->wire,
    };

    if (message->is_send) {
        return tw_transport_message_send(base->transport, &posted, request);
    }
    return tw_transport_message_recv(base->transport, &posted, request);
}

/** Receives first: what arrives finds its place. */
static tw_status_t post_messages(tw_gpu_run_t *run)
{
    const tw_gpu_tick_t *tick = tick_of(run);
    tw_status_t status = TW_OK;

    run->n_requests = 0;
    for (int is_send = 0; is_send < 2; is_send++) {
        for (size_t i = 0; i < tick->n_messages && status == TW_OK; i++) {
            const tw_gpu_message_t *message = &run->call.shape->plan.messages[tick->first_message + i];
            if (message->is_send != is_send) {
                continue;
            }
            run->requests[run->n_requests] = NULL;
            status = post_message(run, message, &run->requests[run->n_requests]);
            run->n_requests += status == TW_OK;
        }
    }
    run->n_open = run->n_requests;
    run->is_posted = 1;
    return status;
}

/** A message of another size is the other rank's idea of another operation. */
static tw_status_t explain_error(const tw_gpu_run_t *run, tw_status_t status)
{
    if (status != TW_ERR_TRUNCATED) {
        return status;
    }
    tw_error("rank %d: %s: a message of another size than expected came: the ranks' arguments differ",
             run->call.coll->base.topo.rank, tw_coll_op_name(run->call.shape->request->args.op));
    return TW_ERR_MISMATCH;
}

static tw_status_t test_messages(tw_gpu_run_t *run, int *moved)
{
    tw_transport_t *transport = run->call.coll->base.transport;

    for (size_t i = 0; i < run->n_requests && run->n_open > 0; i++) {
        if (run->requests[i] == NULL) {
            continue;
        }
        tw_status_t status = tw_transport_test(transport, run->requests[i]);
        if (status == TW_IN_PROGRESS) {
            continue;
        }
        run->requests[i] = NULL;
        run->n_open--;
        *moved = 1;
        if (status != TW_OK) {
            return explain_error(run, status);
        }
    }
    return run->n_open > 0 ? TW_IN_PROGRESS : TW_OK;
}

/** Messages go when the computations of the tick before have ended. In GPU memory, that they have ended is not yet that
 *  kernels see them. */
static tw_status_t move_messages(tw_gpu_run_t *run, int *moved)
{
    const tw_gpu_device_t *device = run->call.coll->device;
    tw_status_t status = TW_OK;

    if (!run->is_posted && run->tick > 0) {
        status = device->event_query(device, run->computed[(run->tick - 1) % 2]);
    }
    if (status == TW_OK && !run->is_posted) {
        *moved = 1;
        status = post_messages(run);
    }
    if (status == TW_OK) {
        status = test_messages(run, moved);
    }
    if (status == TW_OK && run->n_requests > 0 && !run->call.coll->memory.pinned) {
        status = device->fence(device);
    }
    return status;
}

/** TW_OK: the operation has ended, on the device too. */
static tw_status_t move_run(tw_gpu_run_t *run, int *moved)
{
    const tw_gpu_device_t *device = run->call.coll->device;
    size_t n_ticks = run->call.shape->plan.n_ticks;
    tw_status_t status = TW_OK;

    while (run->tick < n_ticks && status == TW_OK) {
        if (!run->is_launched) {
            *moved = 1;
            status = launch(run);
        }
        if (status == TW_OK) {
            status = move_messages(run, moved);
        }
        if (status == TW_OK) {
            run->tick++;
            run->is_launched = run->is_posted = 0;
        }
    }
    if (status == TW_OK && n_ticks > 0) {
        status = device->event_query(device, run->computed[(n_ticks - 1) % 2]);
    }
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------------------- */

static size_t most_messages(const tw_gpu_plan_t *plan)
{
    size_t most = 0;

    for (size_t t = 0; t < plan->n_ticks; t++) {
        most = plan->ticks[t].n_messages > most ? plan->ticks[t].n_messages : most;
    }
    return most;
}

static tw_status_t create_run(const tw_gpu_call_t *call, tw_stream_t stream, tw_gpu_run_t **out)
{
    tw_coll_gpu_t *coll = call->coll;
    const tw_coll_args_t *args = &call->shape->request->args;
    size_t n_segments = args->n_segments;
    tw_gpu_run_t *run = calloc(1, sizeof(*run) + n_segments * sizeof(run->tensors[0]));
    tw_status_t status = TW_OK;

    if (run == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    run->call = *call;
    run->call.tensors = run->tensors;
    for (size_t s = 0; s < n_segments; s++) {
        run->tensors[s] = call->tensors[s];
    }
    run->stream = stream;
    run->tag = (uint64_t)coll->base.id << TW_COLL_ID_SHIFT | (uint64_t)(coll->base.sequence++ & 0xffff)
                                                                 << TW_SCHED_SLOT_BITS;
    run->requests = calloc(most_messages(&call->shape->plan) + 1, sizeof(*run->requests));
    run->slots = calloc(2 * (size_t)coll->base.topo.world, sizeof(*run->slots));
    if (run->requests == NULL || run->slots == NULL) {
        status = TW_ERR_NO_MEMORY;
    }
    for (int i = 0; i < 2 && status == TW_OK; i++) {
        status = coll->device->event_create(coll->device, &run->computed[i]);
    }
    if (status == TW_OK) {
        *out = run;
    } else {
        destroy_run(run);
    }
    return status;
}

tw_status_t tw_gpu_host_post(const tw_gpu_call_t *call, tw_stream_t stream)
{
    tw_gpu_run_t *run;
    tw_status_t status = create_run(call, stream, &run);

    if (status != TW_OK) {
        return status;
    }
    TAILQ_INSERT_TAIL(&call->coll->runs, run, link);
    status = tw_transport_progress(call->coll->base.transport); /* which moves it, too */
    return status < 0 ? status : call->coll->status;
}

tw_status_t tw_gpu_host_move(tw_coll_gpu_t *coll, int *moved)
{
    while (!TAILQ_EMPTY(&coll->runs)) {
        tw_gpu_run_t *run = TAILQ_FIRST(&coll->runs);
        /* the workspace may have grown, and moved, since it was posted */
        if (run->tick == 0 && !run->is_launched) {
            run->call.workspace = tw_gpu_workspace(coll);
        }
        tw_status_t status = move_run(run, moved);
        if (status != TW_OK) {
            return status;
        }
        TAILQ_REMOVE(&coll->runs, run, link);
        destroy_run(run);
        *moved = 1;
    }
    return TW_OK;
}

void tw_gpu_host_cancel(tw_coll_gpu_t *coll)
{
    while (!TAILQ_EMPTY(&coll->runs)) {
        tw_gpu_run_t *run = TAILQ_FIRST(&coll->runs);
        TAILQ_REMOVE(&coll->runs, run, link);
        destroy_run(run);
    }
}
