/** The wrappers: functions under NCCL's names. Calls that are not quantized go on to NCCL unchanged. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/interpose/comms.h"
#include "plugin/interpose/group.h"
#include "plugin/interpose/interpose.h"
#include "plugin/interpose/redirect.h"
#include "plugin/interpose/report.h"
#include "plugin/nccl/abi/types.h"

/* ---- collectives --------------------------------------------------------------------------------------- */

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

/* ---- groups -------------------------------------------------------------------------------------------- */

ncclResult_t ncclGroupStart(void)
{
    return tw_ip_group_start();
}

ncclResult_t ncclGroupEnd(void)
{
    return tw_ip_group_end();
}

/** Drop the calls that were kept in the group: NCCL cannot simulate quantized calls. */
ncclResult_t ncclGroupSimulateEnd(tw_ip_sim_info_t *info)
{
    tw_ip_group_drop();
    return TW_IP_CALL(ncclGroupSimulateEnd, info);
}

/* ---- communicators ------------------------------------------------------------------------------------- */

/** Make an id, and open a registry for it in this process. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ncclResult_t result = TW_IP_CALL(ncclGetUniqueId, id);
    if (result == ncclSuccess && id) {
        tw_ip_meeting_invite(id);
    }
    return result;
}

/** Note a communicator made from an id. Its handle is set at once, also in a group or without blocking. */
static ncclResult_t made(const ncclComm_t *out, tw_ip_meeting_t *meeting, ncclResult_t result)
{
    if ((result == ncclSuccess || result == ncclInProgress) && out && *out) {
        tw_ip_comm_made(*out, meeting);
    } else if (result != ncclSuccess && result != ncclInProgress) {
        tw_ip_meeting_drop(meeting);
    }
    return result;
}

/** Redirect and register. On failure make no communicator: other ranks may have redirected their calls. */
static ncclResult_t begin_comm(const ncclUniqueId *id, int rank, int world, tw_ip_meeting_t **meeting)
{
    if (tw_ip_redirect_loaded() != TW_OK) {
        return ncclSystemError;
    }
    return tw_ip_meeting_begin(id, rank, world, meeting);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int world, ncclUniqueId id, int rank)
{
    tw_ip_meeting_t *meeting;
    ncclResult_t result = begin_comm(&id, rank, world, &meeting);
    return result == ncclSuccess ? made(comm, meeting, TW_IP_CALL(ncclCommInitRank, comm, world, id, rank))
                                 : result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    tw_ip_meeting_t *meeting;
    ncclResult_t result = begin_comm(&id, rank, world, &meeting);
    return result == ncclSuccess
               ? made(comm, meeting, TW_IP_CALL(ncclCommInitRankConfig, comm, world, id, rank, config))
               : result;
}

/** All ranks pass the same ids, so they register at the meeting of the first id. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int world, int rank, int n_ids, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    static const ncclUniqueId none;
    tw_ip_meeting_t *meeting;
    ncclResult_t result = begin_comm(n_ids > 0 && ids ? ids : &none, rank, world, &meeting);
    return result == ncclSuccess
               ? made(comm, meeting,
                      TW_IP_CALL(ncclCommInitRankScalable, comm, world, rank, n_ids, ids, config))
               : result;
}

/** All ranks are in this process, so nothing is quantized between them. */
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    ncclResult_t result = TW_IP_CALL(ncclCommInitAll, comms, n, devices);
    tw_ip_meeting_t *meeting = result == ncclSuccess ? tw_ip_meeting_settled(TW_IP_ONE_PROCESS) : NULL;
    for (int i = 0; i < n && meeting; i++) {
        tw_ip_comm_made(comms[i], meeting);
    }
    return result;
}

/** Note a communicator derived from another. Its handle is NULL until NCCL has made it, perhaps later. */
static ncclResult_t derived(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting, ncclResult_t result)
{
    ncclResult_t kept = result;
    if (!meeting || !out || (result != ncclSuccess && result != ncclInProgress)) {
        return result;
    }
    if (tw_ip_group_is_open()) {
        kept = tw_ip_group_expect(parent, out, meeting);
    } else if (*out) {
        tw_ip_comm_made(*out, meeting);
    } else if (result == ncclInProgress) {
        kept = tw_ip_comm_expect(parent, out, meeting);
    }
    return kept == ncclSuccess ? result : kept;
}

/** Note a communicator of some of the parent's ranks, which use the parent's meeting. */
static ncclResult_t parted(ncclComm_t parent, ncclComm_t *out, ncclResult_t result)
{
    return derived(parent, out, tw_ip_comm_meeting(parent), result);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    return tw_ip_redirect_loaded() == TW_OK
               ? parted(comm, out, TW_IP_CALL(ncclCommSplit, comm, color, key, out, config))
               : ncclSystemError;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n_excluded, ncclComm_t *out,
                            ncclConfig_t *config, int flags)
{
    return tw_ip_redirect_loaded() == TW_OK
               ? parted(comm, out, TW_IP_CALL(ncclCommShrink, comm, excluded, n_excluded, out, config, flags))
               : ncclSystemError;
}

/** Nothing is quantized on a grown communicator: not all ranks pass the id, which names the registry. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int world, const ncclUniqueId *id, int rank, ncclComm_t *out,
                          ncclConfig_t *config)
{
    tw_ip_meeting_t *meeting = tw_ip_redirect_loaded() == TW_OK ? tw_ip_meeting_settled(TW_IP_GROWN) : NULL;
    if (!meeting) {
        return ncclSystemError;
    }
    ncclResult_t result = TW_IP_CALL(ncclCommGrow, comm, world, id, rank, out, config);
    if (result != ncclSuccess && result != ncclInProgress) {
        tw_ip_meeting_drop(meeting);
    }
    return derived(comm, out, meeting, result);
}

/** A job polls this until NCCL has finished its work in the background. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    ncclResult_t result = TW_IP_CALL(ncclCommGetAsyncError, comm, error);
    if (result == ncclSuccess && comm && *error != ncclInProgress) {
        tw_ip_comm_arrived(comm);
    }
    return result;
}

/** A revoked communicator runs no more collectives; it can only be queried, shrunk and destroyed. */
ncclResult_t ncclCommRevoke(ncclComm_t nccl, int flags)
{
    if (!tw_ip_real()->ncclCommRevoke) {
        return ncclInvalidUsage;
    }
    tw_ip_comm_close(nccl);
    ncclResult_t result = TW_IP_CALL(ncclCommRevoke, nccl, flags);
    if (result == ncclSuccess || result == ncclInProgress) {
        tw_ip_comm_revoke(nccl);
    }
    return result;
}

/** Quantized calls may still be running. ncclCommDestroy waits for them, so ncclCommFinalize need not. */
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return TW_IP_CALL(ncclCommFinalize, comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    tw_ip_comm_forget(comm, 0);
    ncclResult_t result = TW_IP_CALL(ncclCommDestroy, comm);
    tw_ip_comm_arrived(comm);
    return result;
}

/** NCCL's abort ends the calls of NCCL in which other threads wait. Closing the gate first keeps threads that
 *  are between two such calls from making the next. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    tw_ip_comm_close(comm);
    ncclResult_t result = TW_IP_CALL(ncclCommAbort, comm);

    tw_ip_comm_forget(comm, 1);
    tw_ip_comm_arrived(comm);
    return result;
}

/* ---- past the net plugin ------------------------------------------------------------------------------- */

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window,
                                    int flags)
{
    tw_ip_report_bypass(TW_IP_WINDOWS);
    return TW_IP_CALL(ncclCommWindowRegister, comm, memory, bytes, window, flags);
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements *requirements,
                               struct ncclDevComm *out)
{
    tw_ip_report_bypass(TW_IP_DEVICE_COMM);
    return TW_IP_CALL(ncclDevCommCreate, comm, requirements, out);
}

ncclResult_t ncclPutSignal(const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream)
{
    tw_ip_report_bypass(TW_IP_ONE_SIDED);
    return TW_IP_CALL(ncclPutSignal, from, count, type, peer, window, offset, signal, context, flags, comm,
                      stream);
}

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream)
{
    tw_ip_report_bypass(TW_IP_ONE_SIDED);
    return TW_IP_CALL(ncclSignal, peer, signal, context, flags, comm, stream);
}

ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *awaited, ncclComm_t comm, cudaStream_t stream)
{
    tw_ip_report_bypass(TW_IP_ONE_SIDED);
    return TW_IP_CALL(ncclWaitSignal, n, awaited, comm, stream);
}

/* ---- encryption ---------------------------------------------------------------------------------------- */

/** A secret that the job has set. The list keeps all secrets, because another thread may be reading one. */
typedef struct secret {
    struct secret *before;
    char text[];
} secret_t;

static _Atomic(secret_t *) secrets; /* newest first; an empty text means that no secret is set now */

static ncclResult_t keep_secret(const char *text)
{
    size_t size = strlen(text) + 1;
    secret_t *one = malloc(sizeof(*one) + size);
    if (!one) {
        return ncclSystemError;
    }
    memcpy(one->text, text, size);
    one->before = secrets;
    while (!atomic_compare_exchange_weak(&secrets, &one->before, one)) {
    }
    return ncclSuccess;
}

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config)
{
    const tw_ip_encryption_t *ours = (const tw_ip_encryption_t *)config;
    ncclResult_t result = TW_IP_CALL(ncclSetEncryption, config);
    if (result == ncclSuccess) {
        result = keep_secret(ours->mode == TW_IP_ENCRYPTION_NONE ? "" : ours->secret);
    }
    return result;
}

const char *tw_nccl_secret(void)
{
    const secret_t *last = secrets;
    return last && last->text[0] ? last->text : NULL;
}

/* ---- sums with a factor -------------------------------------------------------------------------------- */

/** Read a scalar from host memory. Returns 0 if quantized sums cannot be multiplied by it. */
static float read_scalar(const void *scalar, ncclDataType_t type)
{
    float value = 0;
    tw_type_t ours;
    if (scalar && tw_nccl_type_get(type, &ours)) {
        tw_convert_to_fp32(ours, scalar, &value, 1);
    }
    return isfinite(value) ? value : 0;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    ncclResult_t result = TW_IP_CALL(ncclRedOpCreatePreMulSum, op, scalar, type, residence, comm);
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
    tw_ip_comm_scale_drop(comm, op);
    return TW_IP_CALL(ncclRedOpDestroy, op, comm);
}

/* ---- the library's own function ------------------------------------------------------------------------ */

int tw_nccl_set_policy(const char *gathers, const char *sums)
{
    return (int)tw_ip_result(tw_ip_policy_set(gathers, sums) == TW_OK ? TW_OK : TW_ERR_INVALID);
}
