/** Judges a call, and runs it by the library's collectives. */
#include "plugin/interpose/replace.h"

#include "plugin/interpose/comms.h"
#include "plugin/interpose/report.h"
#include "plugin/nccl/abi/types.h"

#define SEED 0x7457 /**< seed of stochastic rounding in all calls; `step` makes their random numbers differ */

/** Judge a call, and set *ready's factor and codec. The caller holds comm->lock. */
static tw_ip_reason_t replace_judge(tw_ip_comm_t *comm, const tw_ip_call_t *call, tw_ip_ready_t *ready)
{
    tw_ip_policy_t policy = tw_ip_policy_get();
    int world = tw_ip_comm_world(comm);
    if (world == 0) {
        return TW_IP_ARGUMENTS;
    }
    int is_scaled = tw_ip_comm_scale_find(comm, call->op, call->type, &ready->factor);
    tw_ip_reason_t why = tw_ip_policy_judge(&policy, call, world, is_scaled, &ready->codec);
    if (why == TW_IP_REPLACED && comm->is_known && comm->error == ncclSuccess) {
        why = comm->why_not;
    }
    return why == TW_IP_REPLACED && tw_ip_gpu_captures(call->stream) ? TW_IP_CAPTURED : why;
}

int tw_ip_replace_judge(const tw_ip_call_t *call, tw_ip_ready_t *ready)
{
    tw_ip_comm_t *comm = tw_ip_comm_get(call->comm);
    tw_ip_reason_t why = TW_IP_ARGUMENTS;
    *ready = (tw_ip_ready_t){.comm = comm, .call = *call, .factor = 1, .event = tw_ip_call_event(call)};
    if (comm) {
        (void)pthread_mutex_lock(&comm->lock);
        why = replace_judge(comm, call, ready);
        (void)pthread_mutex_unlock(&comm->lock);
    }
    if (why != TW_IP_REPLACED) {
        tw_ip_report_left(call->kind, why);
        tw_ip_replace_drop(ready);
    }
    return why == TW_IP_REPLACED;
}

static double ring_bytes(const tw_ip_comm_t *comm, const tw_ip_call_t *call, size_t elem_bytes)
{
    double world = comm->world, shard = (double)(call->count * elem_bytes);
    if (call->kind == TW_IP_ALLREDUCE) {
        return 2 * shard * (world - 1) / world * comm->ring_share;
    }
    return shard * (world - 1) * comm->ring_share;
}

static uint64_t sent_bytes(tw_coll_t *coll)
{
    tw_coll_counters_t counters;
    tw_coll_counters_get(coll, &counters);
    return counters.inter_node_bytes;
}

/** Enqueue the whole operation on the stream. */
static tw_status_t replace_post(tw_ip_comm_t *comm, const tw_ip_ready_t *ready, tw_type_t type)
{
    static const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};
    const tw_ip_call_t *call = &ready->call;
    size_t shards = call->kind == TW_IP_ALLREDUCE ? 1 : (size_t)comm->world;
    tw_coll_segment_t segment = {.src = call->from, .dst = call->to, .n_elems = call->count * shards};
    tw_coll_args_t args = {
        .op = ops[call->kind],
        .type = type,
        .segments = &segment,
        .n_segments = 1,
        .reduction = call->op == ncclAvg ? TW_COLL_MEAN : TW_COLL_SUM,
        .factor = ready->factor,
        .codec = &ready->codec,
        .seed = SEED,
        .step = comm->step++,
        .force_codec = 1,
        .stream = call->stream,
    };
    return tw_coll_post(comm->coll, &args, NULL);
}

static ncclResult_t replace(tw_ip_comm_t *comm, const tw_ip_ready_t *ready)
{
    const tw_ip_call_t *call = &ready->call;
    uint64_t before = sent_bytes(comm->coll);
    int timed = tw_ip_clock_begin(&comm->clock, call->kind, call->stream);
    tw_type_t type = TW_TYPE_BYTE;
    (void)tw_nccl_type_get(call->type, &type);
    tw_status_t status = replace_post(comm, ready, type);
    if (status == TW_OK && ready->event) {
        status = tw_ip_gpu_record(ready->event, call->stream);
    }
    if (timed >= 0) {
        tw_ip_clock_end(&comm->clock, timed, call->stream);
    }
    if (status == TW_OK) {
        tw_ip_report_replaced(call->kind, ring_bytes(comm, call, tw_type_bytes(type)),
                              sent_bytes(comm->coll) - before);
    }
    return tw_ip_result(status);
}

/** Run a call quantized, or pass it to NCCL. The caller holds comm->lock. */
static ncclResult_t replace_run(tw_ip_comm_t *comm, const tw_ip_ready_t *ready)
{
    ncclResult_t result = tw_ip_comm_learn(comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (comm->why_not == TW_IP_REPLACED) {
        return replace(comm, ready);
    }
    tw_ip_report_left(ready->call.kind, comm->why_not);
    return tw_ip_pass(&ready->call);
}

ncclResult_t tw_ip_replace_run(const tw_ip_ready_t *ready)
{
    (void)pthread_mutex_lock(&ready->comm->lock);
    ncclResult_t result = ready->comm->has_gone ? ncclInternalError : replace_run(ready->comm, ready);
    (void)pthread_mutex_unlock(&ready->comm->lock);
    tw_ip_comm_put(ready->comm);
    return result;
}

void tw_ip_replace_drop(const tw_ip_ready_t *ready)
{
    if (ready->comm) {
        tw_ip_comm_put(ready->comm);
    }
}
