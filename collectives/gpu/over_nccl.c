/** The engine over NCCL. It enqueues the ticks of a plan on two streams: computations on the caller's
 *  stream, messages on the communicator's. */
#include <stdio.h>

#include "collectives/gpu/gpu.h"

static tw_status_t enqueue_messages(const tw_gpu_call_t *call, const tw_gpu_tick_t *tick, tw_stream_t stream)
{
    tw_gpu_wire_t *wire = call->coll->gpu->wire;
    tw_status_t status = wire->begin(wire);

    for (size_t i = 0; i < tick->n_messages && status == TW_OK; i++) {
        const tw_gpu_message_t *message = &call->shape->plan.messages[tick->first_message + i];
        char *at = call->workspace + message->at;
        if (message->is_send) {
            tw_sched_count(&call->coll->sent[message->peer], message->bytes, message->bytes);
            status = wire->send(wire, message->peer, at, message->bytes, stream);
        } else {
            status = wire->recv(wire, message->peer, at, message->bytes, stream);
        }
    }
    tw_status_t end_status = wire->end(wire);
    return status == TW_OK ? end_status : status;
}

/** Run a plan of one round on one stream, in order and without events: nothing could overlap. */
static tw_status_t run_in_order(const tw_gpu_call_t *call, tw_stream_t stream)
{
    const tw_gpu_plan_t *plan = &call->shape->plan;
    tw_status_t status = TW_OK;

    for (size_t t = 0; t < plan->n_ticks && status == TW_OK; t++) {
        status = tw_gpu_compute_tick(call, t, stream);
        if (status == TW_OK && plan->ticks[t].n_messages > 0) {
            status = enqueue_messages(call, &plan->ticks[t], stream);
        }
    }
    return status;
}

/** Run a tick. A wait is for an event's last record, so both streams first wait for the tick before, and
 *  record their events at the end. The messages are enqueued first, because they take longer. */
static tw_status_t run_tick(const tw_gpu_call_t *call, size_t t, tw_stream_t stream)
{
    const tw_gpu_t *gpu = call->coll->gpu;
    const tw_gpu_device_t *device = gpu->device;
    const tw_gpu_tick_t *tick = &call->shape->plan.ticks[t];

    TW_TRY(device->stream_wait(device, gpu->wire_stream, gpu->computed));
    TW_TRY(device->stream_wait(device, stream, gpu->arrived));
    if (tick->n_messages > 0) {
        TW_TRY(enqueue_messages(call, tick, gpu->wire_stream));
    }
    TW_TRY(tw_gpu_compute_tick(call, t, stream));
    TW_TRY(device->event_record(device, gpu->computed, stream));
    return device->event_record(device, gpu->arrived, gpu->wire_stream);
}

static tw_status_t run_overlapped(const tw_gpu_call_t *call, tw_stream_t stream)
{
    const tw_gpu_t *gpu = call->coll->gpu;
    const tw_gpu_device_t *device = gpu->device;

    TW_TRY(device->event_record(device, gpu->computed, stream));
    /* the wire's stream starts at the caller's position, and joins its graph capture if there is one */
    TW_TRY(device->stream_wait(device, gpu->wire_stream, gpu->computed));
    TW_TRY(device->event_record(device, gpu->arrived, gpu->wire_stream));
    for (size_t t = 0; t < call->shape->plan.n_ticks; t++) {
        TW_TRY(run_tick(call, t, stream));
    }
    return device->stream_wait(device, stream, gpu->arrived);
}

/** Count the planned bytes of a native call as sent to the first rank of the next node. */
static void count_native(const tw_gpu_call_t *call)
{
    const tw_topo_t *topo = &call->coll->topo;
    int next = tw_topo_rank_at(topo, (topo->node[topo->rank] + 1) % topo->n_nodes, 0);

    call->coll->sent[next].bytes += call->shape->inter_node_bytes;
}

/** Enqueue one call for each tensor, in a group, so that NCCL makes one launch of them. */
static tw_status_t run_native(const tw_gpu_call_t *call, tw_stream_t stream)
{
    const tw_coll_args_t *args = &call->shape->request->args;
    tw_gpu_wire_t *wire = call->coll->gpu->wire;
    size_t world = (size_t)call->coll->topo.world;
    tw_status_t status = wire->begin(wire);

    for (size_t s = 0; s < args->n_segments && status == TW_OK; s++) {
        const tw_grid_tensor_t *at = &call->tensors[s];
        size_t n = args->segments[s].n_elems;
        size_t shard = args->op == TW_COLL_ALLREDUCE ? n : n / world;
        tw_gpu_native_t native = {args->op, args->type, args->reduction, at->src, at->dst, shard};
        if (n > 0) {
            status = wire->native(wire, &native, stream);
        }
    }
    tw_status_t end_status = wire->end(wire);
    count_native(call);
    return status == TW_OK ? end_status : status;
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

static tw_status_t enqueue_all(const tw_gpu_run_t *run)
{
    const tw_gpu_call_t *call = &run->call;

    if (call->shape->is_native) {
        return run_native(call, run->stream);
    }
    return call->shape->plan.n_rounds > 1 ? run_overlapped(call, run->stream)
                                          : run_in_order(call, run->stream);
}

/** Start an operation. Operations run one after another, because they share the workspace. A captured
 *  operation and uncaptured ones do not wait for each other: no wait crosses the border of a graph. */
static tw_status_t over_nccl_start(tw_coll_request_t *request)
{
    const tw_gpu_run_t *run = request->run;
    tw_gpu_t *gpu = request->coll->gpu;
    const tw_gpu_device_t *device = gpu->device;
    const int in_graph = run->capture != 0;
    tw_status_t status = TW_OK;

    if (!in_graph || run->capture == gpu->capture) {
        status = device->stream_wait(device, run->stream, gpu->done[in_graph]);
    }
    if (status == TW_OK) {
        status = enqueue_all(run);
    }
    if (status == TW_OK) {
        status = device->event_record(device, gpu->done[in_graph], run->stream);
    }
    if (status == TW_OK && !in_graph) {
        status = device->event_record(device, run->computed[0], run->stream);
    }
    gpu->capture = in_graph ? run->capture : gpu->capture;
    return status;
}

/** Test whether a request has ended. A request that is captured into a graph ends at once. */
static tw_status_t over_nccl_step(tw_coll_request_t *request, int *moved)
{
    const tw_gpu_device_t *device = request->coll->gpu->device;

    (void)moved;
    return request->run->capture != 0 ? TW_OK : device->event_query(device, request->run->computed[0]);
}

static tw_status_t over_nccl_complete(tw_coll_request_t *request)
{
    const tw_gpu_device_t *device = request->coll->gpu->device;
    tw_gpu_run_t *run = request->run;

    return run->capture == 0 ? device->event_create(device, &run->computed[0]) : TW_OK;
}

static const char *over_nccl_describe(const tw_coll_request_t *request, char *buf, size_t buf_bytes)
{
    (void)request;
    snprintf(buf, buf_bytes, "it is on the GPU, and nccl has not ended it");
    return buf;
}

static tw_status_t over_nccl_check(tw_coll_t *coll)
{
    return coll->gpu->wire->error(coll->gpu->wire);
}

static void abort_wire(tw_coll_t *coll)
{
    coll->gpu->wire->abort(coll->gpu->wire);
}

const tw_coll_engine_t tw_gpu_nccl_engine = {
    .algo_get = tw_gpu_algo_get,
    .request_create = tw_gpu_request_create,
    .complete = over_nccl_complete,
    .planned_bytes = tw_gpu_planned_bytes,
    .prepare = tw_gpu_prepare,
    .start = over_nccl_start,
    .step = over_nccl_step,
    .release = tw_gpu_release,
    .describe = over_nccl_describe,
    .check = over_nccl_check,
    .abort = abort_wire,
    .workspace_bytes = tw_gpu_workspace_bytes,
    .enter = tw_gpu_enter,
    .is_polled = 1,
    .fixes_lengths = 1,
    .drains = 1,
};
