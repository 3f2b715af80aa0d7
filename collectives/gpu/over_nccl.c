/** Over NCCL: the ticks of a plan on two streams, the caller's for computations and one of ours for the wire. */
#include "collectives/gpu/gpu.h"

static tw_status_t enqueue_messages(const tw_gpu_call_t *call, const tw_gpu_tick_t *tick, tw_stream_t stream)
{
    tw_gpu_wire_t *wire = call->coll->wire;
    tw_status_t status = wire->begin(wire);

    for (size_t i = 0; i < tick->n_messages && status == TW_OK; i++) {
        const tw_gpu_message_t *message = &call->shape->plan.messages[tick->first_message + i];
        char *at = call->workspace + message->at;
        status = message->is_send ? wire->send(wire, message->peer, at, message->bytes, stream)
                                  : wire->recv(wire, message->peer, at, message->bytes, stream);
    }
    tw_status_t end_status = wire->end(wire);
    return status == TW_OK ? end_status : status;
}

/** One round has nothing to overlap with: everything in order on one stream, no events. */
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

/** Waiting refers to the last record: so both sides wait for the tick before first, and record theirs at the end. The
 *  wire is served first, it is the slower one. */
static tw_status_t run_tick(const tw_gpu_call_t *call, size_t t, tw_stream_t stream)
{
    tw_coll_gpu_t *coll = call->coll;
    const tw_gpu_device_t *device = coll->device;
    const tw_gpu_tick_t *tick = &call->shape->plan.ticks[t];
    tw_status_t status = device->stream_wait(device, coll->wire_stream, coll->computed);

    if (status == TW_OK) {
        status = device->stream_wait(device, stream, coll->arrived);
    }
    if (status == TW_OK && tick->n_messages > 0) {
        status = enqueue_messages(call, tick, coll->wire_stream);
    }
    if (status == TW_OK) {
        status = tw_gpu_compute_tick(call, t, stream);
    }
    if (status == TW_OK) {
        status = device->event_record(device, coll->computed, stream);
    }
    if (status == TW_OK) {
        status = device->event_record(device, coll->arrived, coll->wire_stream);
    }
    return status;
}

static tw_status_t run_overlapped(const tw_gpu_call_t *call, tw_stream_t stream)
{
    tw_coll_gpu_t *coll = call->coll;
    const tw_gpu_device_t *device = coll->device;
    tw_status_t status = device->event_record(device, coll->computed, stream);

    /* the wire's stream starts where the caller's is; a capture goes on in it */
    if (status == TW_OK) {
        status = device->stream_wait(device, coll->wire_stream, coll->computed);
    }
    if (status == TW_OK) {
        status = device->event_record(device, coll->arrived, coll->wire_stream);
    }
    for (size_t t = 0; t < call->shape->plan.n_ticks && status == TW_OK; t++) {
        status = run_tick(call, t, stream);
    }
    if (status == TW_OK) {
        status = device->stream_wait(device, stream, coll->arrived);
    }
    return status;
}

tw_status_t tw_gpu_stream_run(const tw_gpu_call_t *call, tw_stream_t stream)
{
    return call->shape->plan.n_rounds > 1 ? run_overlapped(call, stream) : run_in_order(call, stream);
}

/** One tensor after another; NCCL makes one launch of them. */
tw_status_t tw_gpu_native_run(const tw_gpu_call_t *call, const tw_coll_args_t *args, tw_stream_t stream)
{
    tw_gpu_wire_t *wire = call->coll->wire;
    size_t world = (size_t)call->coll->base.topo.world;
    tw_status_t status = wire->begin(wire);

    for (size_t s = 0; s < args->n_segments && status == TW_OK; s++) {
        const tw_qop_tensor_t *at = &call->tensors[s];
        size_t n = args->segments[s].n_elems;
        size_t shard = args->op == TW_COLL_ALLREDUCE ? n : n / world;
        tw_gpu_native_t native = {args->op, args->type, args->reduction, at->src, at->dst, shard};
        if (n > 0) {
            status = wire->native(wire, &native, stream);
        }
    }
    tw_status_t end_status = wire->end(wire);
    return status == TW_OK ? end_status : status;
}
