/** What a job calls, under NCCL's own names. Everything that is not about to be quantized goes on to NCCL as it came. */
#include <math.h>
#include <string.h>

#include "plugin/interpose/comms.h"
#include "plugin/interpose/group.h"
#include "plugin/interpose/interpose.h"
#include "plugin/interpose/redirect.h"
#include "plugin/interpose/report.h"
#include "plugin/nccl/abi/types.h"

/* ---- collectives ------------------------------------------------------------------------------------------- */

static ncclResult_t handle(const tw_ip_call_t *call)
{
    tw_ip_ready_t ready;

    if (!tw_ip_replace_judge(call, &ready)) {
        return tw_ip_pass(call);
    }
    return tw_ip_group_is_open() ? tw_ip_group_add(&ready) : tw_ip_replace_run(&ready);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return handle(&(tw_ip_call_t){TW_IP_ALLGATHER, from, to, count, type, ncclSum, comm, stream, 0, NULL});
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return handle(&(tw_ip_call_t){TW_IP_REDUCE_SCATTER, from, to, count, type, op, comm, stream, 0, NULL});
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return handle(&(tw_ip_call_t){TW_IP_ALLREDUCE, from, to, count, type, op, comm, stream, 0, NULL});
}

ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    return handle(&(tw_ip_call_t){TW_IP_ALLTOALL, from, to, count, type, ncclSum, comm, stream, 0, NULL});
}

ncclResult_t ncclAllGatherConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return handle(&(tw_ip_call_t){TW_IP_ALLGATHER, from, to, count, type, ncclSum, comm, stream, 1, config});
}

ncclResult_t ncclReduceScatterConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t *config)
{
    return handle(&(tw_ip_call_t){TW_IP_REDUCE_SCATTER, from, to, count, type, op, comm, stream, 1, config});
}

ncclResult_t ncclAllReduceConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config)
{
    return handle(&(tw_ip_call_t){TW_IP_ALLREDUCE, from, to, count, type, op, comm, stream, 1, config});
}

ncclResult_t ncclAlltoAllConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    return handle(&(tw_ip_call_t){TW_IP_ALLTOALL, from, to, count, type, ncclSum, comm, stream, 1, config});
}

/* ---- groups ------------------------------------------------------------------------------------------------ */

ncclResult_t ncclGroupStart(void)
{
    return tw_ip_group_start();
}

ncclResult_t ncclGroupEnd(void)
{
    return tw_ip_group_end();
}

/** Of what is quantized there is nothing to tell. */
ncclResult_t ncclGroupSimulateEnd(tw_ip_sim_info_t *info)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_group_drop();
    return real->ncclGroupSimulateEnd != NULL ? real->ncclGroupSimulateEnd(info) : ncclInvalidUsage;
}

/* ---- communicators ----------------------------------------------------------------------------------------- */

/** In a group, and where a communicator does not block, it is there later. */
static ncclResult_t made(const ncclComm_t *comm, ncclResult_t result)
{
    tw_ip_redirect_loaded();
    return tw_ip_group_is_open() || comm == NULL ? result : tw_ip_comm_made(*comm, result);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int world, ncclUniqueId id, int rank)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommInitRank != NULL ? made(comm, real->ncclCommInitRank(comm, world, id, rank))
                                          : ncclInvalidUsage;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommInitRankConfig != NULL
               ? made(comm, real->ncclCommInitRankConfig(comm, world, id, rank, config))
               : ncclInvalidUsage;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int world, int rank, int n_ids, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommInitRankScalable != NULL
               ? made(comm, real->ncclCommInitRankScalable(comm, world, rank, n_ids, ids, config))
               : ncclInvalidUsage;
}

/** All ranks are in this process: one thread drives them, and cannot meet itself. */
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    const tw_ip_functions_t *real = tw_ip_real();
    ncclResult_t result =
        real->ncclCommInitAll != NULL ? real->ncclCommInitAll(comms, n, devices) : ncclInvalidUsage;

    tw_ip_redirect_loaded();
    for (int i = 0; i < n && result == ncclSuccess; i++) {
        tw_ip_comm_t *comm = tw_ip_comm_get(comms[i]);
        if (comm != NULL) {
            (void)pthread_mutex_lock(&comm->lock);
            tw_ip_comm_rule_out(comm, n > 1 ? TW_IP_ONE_PROCESS : TW_IP_ONE_NODE);
            (void)pthread_mutex_unlock(&comm->lock);
            tw_ip_comm_put(comm);
        }
    }
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommSplit != NULL ? made(out, real->ncclCommSplit(comm, color, key, out, config))
                                       : ncclInvalidUsage;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n_excluded, ncclComm_t *out,
                            ncclConfig_t *config, int flags)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommShrink != NULL
               ? made(out, real->ncclCommShrink(comm, excluded, n_excluded, out, config, flags))
               : ncclInvalidUsage;
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int world, const ncclUniqueId *id, int rank, ncclComm_t *out,
                          ncclConfig_t *config)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommGrow != NULL ? made(out, real->ncclCommGrow(comm, world, id, rank, out, config))
                                      : ncclInvalidUsage;
}

/** What was revoked can be asked, shrunk and destroyed, no more. */
ncclResult_t ncclCommRevoke(ncclComm_t nccl, int flags)
{
    const tw_ip_functions_t *real = tw_ip_real();

    if (real->ncclCommRevoke == NULL) {
        return ncclInvalidUsage;
    }
    tw_ip_comm_close(nccl);
    ncclResult_t result = real->ncclCommRevoke(nccl, flags);
    if (result == ncclSuccess || result == ncclInProgress) {
        tw_ip_comm_revoke(nccl);
    }
    return result;
}

/** There may be calls under way: they end before ncclCommDestroy does. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    const tw_ip_functions_t *real = tw_ip_real();

    return real->ncclCommFinalize != NULL ? real->ncclCommFinalize(comm) : ncclInvalidUsage;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_comm_forget(comm, 0);
    return real->ncclCommDestroy != NULL ? real->ncclCommDestroy(comm) : ncclInvalidUsage;
}

/** NCCL first: that is what ends whoever waits in a call. Who is between two calls makes no more. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_comm_close(comm);
    ncclResult_t result = real->ncclCommAbort != NULL ? real->ncclCommAbort(comm) : ncclInvalidUsage;

    tw_ip_comm_forget(comm, 1);
    return result;
}

/* ---- past the net plugin ----------------------------------------------------------------------------------- */

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window,
                                    int flags)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_report_bypass(TW_IP_WINDOWS);
    return real->ncclCommWindowRegister != NULL
               ? real->ncclCommWindowRegister(comm, memory, bytes, window, flags)
               : ncclInvalidUsage;
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements *requirements,
                               struct ncclDevComm *out)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_report_bypass(TW_IP_DEVICE_COMM);
    return real->ncclDevCommCreate != NULL ? real->ncclDevCommCreate(comm, requirements, out)
                                           : ncclInvalidUsage;
}

ncclResult_t ncclPutSignal(const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_report_bypass(TW_IP_ONE_SIDED);
    return real->ncclPutSignal != NULL ? real->ncclPutSignal(from, count, type, peer, window, offset, signal,
                                                             context, flags, comm, stream)
                                       : ncclInvalidUsage;
}

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_report_bypass(TW_IP_ONE_SIDED);
    return real->ncclSignal != NULL ? real->ncclSignal(peer, signal, context, flags, comm, stream)
                                    : ncclInvalidUsage;
}

ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *awaited, ncclComm_t comm, cudaStream_t stream)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_report_bypass(TW_IP_ONE_SIDED);
    return real->ncclWaitSignal != NULL ? real->ncclWaitSignal(n, awaited, comm, stream) : ncclInvalidUsage;
}

/* ---- sums with a factor ------------------------------------------------------------------------------------ */

/** A scalar in host memory; 0: none that sums can be multiplied with here. */
static float read_scalar(const void *scalar, ncclDataType_t type)
{
    float value = 0;
    tw_type_t ours;

    if (scalar != NULL && tw_nccl_type_get(type, &ours)) {
        tw_convert_to_fp32(ours, scalar, &value, 1);
    }
    return isfinite(value) ? value : 0;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    const tw_ip_functions_t *real = tw_ip_real();
    ncclResult_t result = real->ncclRedOpCreatePreMulSum != NULL
                              ? real->ncclRedOpCreatePreMulSum(op, scalar, type, residence, comm)
                              : ncclInvalidUsage;

    if (result == ncclSuccess && residence == ncclScalarHostImmediate) {
        float factor = read_scalar(scalar, type);
        if (factor != 0) {
            tw_ip_comm_scale_add(comm, *op, type, factor);
        }
    }
    return result;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const tw_ip_functions_t *real = tw_ip_real();

    tw_ip_comm_scale_drop(comm, op);
    return real->ncclRedOpDestroy != NULL ? real->ncclRedOpDestroy(op, comm) : ncclInvalidUsage;
}

/* ---- ours -------------------------------------------------------------------------------------------------- */

int tw_nccl_set_policy(const char *weights, const char *grads)
{
    return (int)tw_ip_result(tw_ip_policy_set(weights, grads) == TW_OK ? TW_OK : TW_ERR_INVALID);
}
