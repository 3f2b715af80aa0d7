/** The engine over a transport. Tick by tick, the host moves a plan's messages between the workspace and the
 *  other ranks, while kernels of the tick use other parts of the workspace. The workspace is in GPU memory
 *  if the transport takes that, else in pinned host memory. A message is posted when the host knows that the
 *  kernels of the tick before have ended: they wrote the data to send, or read the data that a receive
 *  overwrites. The kernels that read a message are launched when the host knows that the message has
 *  ended. */
#include <stdio.h>
#include <stdlib.h>

#include "collectives/gpu/gpu.h"

/** number of the first message to a rank: before it may come a signature and the counts of an all-to-all */
#define FIRST_NUMBER 2

/** Launch the tick's kernels, then record an event behind them. */
static tw_status_t launch(tw_gpu_run_t *run)
{
    const tw_gpu_device_t *device = run->call.coll->gpu->device;
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
    tw_coll_t *coll = run->call.coll;
    const tw_gpu_t *gpu = coll->gpu;
    int is_packed = message->packed != TW_GPU_NOT_PACKED;
    uint64_t *tag = &run->next_tag[message->is_send ? message->peer : coll->topo.world + message->peer];
    const tw_transport_message_t posted = {
        .peer = coll->topo.peer[message->peer],
        .tag = (*tag)++,
        .buffer = run->call.workspace + message->at,
        .bytes = is_packed && message->is_send ? run->call.lengths[message->packed] : message->bytes,
        .mem = gpu->memory.pinned ? TW_MEM_HOST : gpu->device->wire,
        .may_be_shorter = is_packed,
    };

    if (!message->is_send) {
        return tw_transport_message_recv(coll->transport, &posted, request);
    }
    tw_sched_count(&coll->sent[message->peer], posted.bytes, message->bytes);
    return tw_transport_message_send(coll->transport, &posted, request);
}

/** Post the tick's messages; receives first, so that data that arrives early finds its buffer. */
static tw_status_t post_messages(tw_gpu_run_t *run)
{
    const tw_gpu_tick_t *tick = &run->call.shape->plan.ticks[run->tick];
    tw_status_t status = TW_OK;

    run->n_requests = 0;
    for (int is_send = 0; is_send < 2; is_send++) {
        for (size_t i = 0; i < tick->n_messages && status == TW_OK; i++) {
            const tw_gpu_message_t *message = &run->call.shape->plan.messages[tick->first_message + i];
            if (message->is_send != is_send) {
                continue;
            }
            run->requests[run->n_requests] = NULL;
            run->messages[run->n_requests] = message;
            status = post_message(run, message, &run->requests[run->n_requests]);
            run->n_requests += status == TW_OK;
        }
    }
    run->n_open = run->n_requests;
    run->is_posted = 1;
    return status;
}

/** Explain a failed message. One of an unexpected size means that the other rank runs another operation. */
static tw_status_t explain_error(const tw_gpu_run_t *run, tw_status_t status)
{
    if (status != TW_ERR_TRUNCATED) {
        return status;
    }
    return tw_fail(TW_ERR_MISMATCH,
                   "rank %d: %s: a message of another size than expected came: the ranks' arguments differ",
                   run->call.coll->topo.rank, tw_coll_op_name(run->call.shape->request->args.op));
}

static tw_status_t test_messages(tw_gpu_run_t *run, int *moved)
{
    tw_transport_t *transport = run->call.coll->transport;

    for (size_t i = 0; i < run->n_requests && run->n_open > 0; i++) {
        if (!run->requests[i]) {
            continue;
        }
        const tw_gpu_message_t *message = run->messages[i];
        size_t bytes;
        tw_status_t status = tw_transport_test_bytes(transport, run->requests[i], &bytes);
        if (status == TW_IN_PROGRESS) {
            continue;
        }
        run->requests[i] = NULL;
        run->n_open--;
        *moved = 1;
        if (status != TW_OK) {
            return explain_error(run, status);
        }
        if (message->packed != TW_GPU_NOT_PACKED && !message->is_send) {
            run->call.lengths[message->packed] = bytes;
        }
    }
    return run->n_open > 0 ? TW_IN_PROGRESS : TW_OK;
}

/** Read the lengths and statuses of the chunks that a tick has packed or unpacked. The tick has ended. */
static tw_status_t read_outcomes(tw_gpu_run_t *run, size_t tick)
{
    const tw_gpu_plan_t *plan = &run->call.shape->plan;
    const tw_gpu_tick_t *at = &plan->ticks[tick];

    for (size_t i = 0; i < at->n_computes; i++) {
        const tw_gpu_compute_t *compute = &plan->computes[at->first_compute + i];
        if (compute->out == TW_FORM_PACKED) {
            run->call.lengths[compute->packed] = run->call.outcomes[compute->packed].bytes;
        } else if (compute->in == TW_FORM_PACKED) {
            const tw_quant_outcome_t *outcome = &run->call.outcomes[plan->n_cells + compute->packed];
            if (outcome->status != TW_OK) {
                tw_error("rank %d: %s: a message of %zu bytes is not one of %zu elements: %s",
                         run->call.coll->topo.rank, tw_coll_op_name(run->call.shape->request->args.op),
                         run->call.lengths[compute->packed], plan->grid.chunks[compute->chunk].n_elems,
                         tw_status_string((tw_status_t)outcome->status));
                return (tw_status_t)outcome->status;
            }
        }
    }
    return TW_OK;
}

/** Post the tick's messages when the computations of the tick before have ended, and test them. If the
 *  workspace is in GPU memory, a fence follows, so that kernels see the data that came. */
static tw_status_t move_messages(tw_gpu_run_t *run, int *moved)
{
    const tw_gpu_device_t *device = run->call.coll->gpu->device;

    if (!run->is_posted && run->tick > 0) {
        TW_TRY(device->event_query(device, run->computed[(run->tick - 1) % 2]));
        TW_TRY(read_outcomes(run, run->tick - 1));
    }
    if (!run->is_posted) {
        *moved = 1;
        TW_TRY(post_messages(run));
    }
    TW_TRY(test_messages(run, moved));
    return run->n_requests > 0 && !run->call.coll->gpu->memory.pinned ? device->fence(device) : TW_OK;
}

/** Make progress on a run. Returns TW_OK if the operation has ended, on the device as well. */
static tw_status_t move_run(tw_gpu_run_t *run, int *moved)
{
    const tw_gpu_device_t *device = run->call.coll->gpu->device;
    size_t n_ticks = run->call.shape->plan.n_ticks;

    while (run->tick < n_ticks) {
        if (!run->is_launched) {
            *moved = 1;
            TW_TRY(launch(run));
        }
        TW_TRY(move_messages(run, moved));
        run->tick++;
        run->is_launched = run->is_posted = 0;
    }
    if (n_ticks == 0) {
        return TW_OK;
    }
    TW_TRY(device->event_query(device, run->computed[(n_ticks - 1) % 2]));
    return read_outcomes(run, n_ticks - 1);
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static size_t most_messages(const tw_gpu_plan_t *plan)
{
    size_t most = 0;

    for (size_t t = 0; t < plan->n_ticks; t++) {
        most = plan->ticks[t].n_messages > most ? plan->ticks[t].n_messages : most;
    }
    return most;
}

/** Complete a request: allocate its run's memory, and make a schedule that only compares arguments. */
static tw_status_t over_transport_complete(tw_coll_request_t *request)
{
    const tw_gpu_device_t *device = request->coll->gpu->device;
    size_t n_channels = 2 * (size_t)request->coll->topo.world;
    tw_gpu_run_t *run = request->run;

    const tw_gpu_plan_t *plan = &run->call.shape->plan;
    size_t n_messages = most_messages(plan) + 1;
    run->requests = calloc(n_messages, sizeof(*run->requests));
    run->messages = calloc(n_messages, sizeof(*run->messages));
    run->next_tag = malloc(n_channels * sizeof(*run->next_tag));
    run->call.lengths = calloc(plan->n_cells + 1, sizeof(*run->call.lengths));
    if (!run->requests || !run->messages || !run->next_tag || !run->call.lengths) {
        return TW_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_channels; i++) {
        run->next_tag[i] = tw_request_tag(request) + FIRST_NUMBER;
    }
    for (int i = 0; i < 2; i++) {
        TW_TRY(device->event_create(device, &run->computed[i]));
    }
    return tw_check_create_sched(request);
}

/** Returns 1 if the operation may use the workspace, which operations use one after another. */
static int has_turn(const tw_coll_request_t *request)
{
    const tw_coll_request_t *first = TAILQ_FIRST(&request->coll->active);

    while (first != request && !first->run) {
        first = TAILQ_NEXT(first, link);
    }
    return first == request;
}

static tw_status_t over_transport_step(tw_coll_request_t *request, int *moved)
{
    tw_gpu_run_t *run = request->run;

    if (!run || !has_turn(request)) {
        return !run ? TW_OK : TW_IN_PROGRESS;
    }
    /* the workspace may have grown and moved since the post */
    if (run->tick == 0 && !run->is_launched) {
        tw_gpu_take_workspace(&run->call);
    }
    tw_status_t status = move_run(run, moved);
    if (status == TW_OK) {
        tw_gpu_release(request);
        *moved = 1;
    }
    return status;
}

static const char *over_transport_describe(const tw_coll_request_t *request, char *buf, size_t buf_bytes)
{
    const tw_gpu_run_t *run = request->run;

    snprintf(buf, buf_bytes, "step %zu of %zu, %zu messages", run->tick + 1, run->call.shape->plan.n_ticks,
             run->n_open);
    return buf;
}

const tw_coll_engine_t tw_gpu_transport_engine = {
    .algo_get = tw_gpu_algo_get,
    .request_create = tw_gpu_request_create,
    .complete = over_transport_complete,
    .planned_bytes = tw_gpu_planned_bytes,
    .prepare = tw_gpu_prepare,
    .step = over_transport_step,
    .release = tw_gpu_release,
    .describe = over_transport_describe,
    .workspace_bytes = tw_gpu_workspace_bytes,
    .trim = tw_gpu_workspace_free,
    .enter = tw_gpu_enter,
    .is_polled = 1,
    .drains = 1,
};
