/** The wire over NCCL. */
#include "collectives/gpu/gpu.h"

#if defined(TW_HAVE_CUDA) && defined(TW_HAVE_NCCL)

#include <stdlib.h>

#include "collectives/gpu/nccl_api.h"

typedef struct nccl_wire {
    tw_gpu_wire_t base;
    tw_nccl_api_t api;
    ncclComm_t comm; /**< NULL: comm was aborted */
    int rank;
    int is_shared; /**< 1: comm belongs to the caller */
    tw_coll_gate_t *gate;
    int is_grouping;   /**< 1: a group is open */
    tw_status_t error; /**< TW_OK, or the error (already logged) that ended the wire */
} nccl_wire_t;

static nccl_wire_t *self(tw_gpu_wire_t *wire)
{
    return (nccl_wire_t *)wire;
}

/** Check the result of a call inside a group. Such a call is only recorded, and may return ncclInProgress. */
static tw_status_t check_grouped(const nccl_wire_t *nccl, ncclResult_t result, const char *what)
{
    if (result == ncclInProgress) {
        return TW_OK;
    }
    return tw_nccl_check(&nccl->api, nccl->rank, nccl->comm, result, what);
}

static tw_status_t wire_begin(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);
    TW_TRY(tw_coll_gate_enter(nccl->gate));
    nccl->is_grouping = 1;
    return check_grouped(nccl, nccl->api.ncclGroupStart(), "ncclGroupStart");
}

static tw_status_t wire_send(tw_gpu_wire_t *wire, int peer, const void *from, size_t bytes,
                             tw_stream_t stream)
{
    nccl_wire_t *nccl = self(wire);
    ncclResult_t result = nccl->api.ncclSend(from, bytes, ncclUint8, peer, nccl->comm, (cudaStream_t)stream);

    return check_grouped(nccl, result, "ncclSend");
}

static tw_status_t wire_recv(tw_gpu_wire_t *wire, int peer, void *to, size_t bytes, tw_stream_t stream)
{
    nccl_wire_t *nccl = self(wire);
    ncclResult_t result = nccl->api.ncclRecv(to, bytes, ncclUint8, peer, nccl->comm, (cudaStream_t)stream);

    return check_grouped(nccl, result, "ncclRecv");
}

/** The value of ncclBfloat16: older headers of NCCL define the name only for C++. */
#define BF16 ((ncclDataType_t)9)

static ncclDataType_t data_type(tw_type_t type)
{
    static const ncclDataType_t types[] = {[TW_TYPE_FP32] = ncclFloat32,
                                           [TW_TYPE_BF16] = BF16,
                                           [TW_TYPE_FP16] = ncclFloat16,
                                           [TW_TYPE_BYTE] = ncclUint8};

    return types[type];
}

static tw_status_t wire_native(tw_gpu_wire_t *wire, const tw_gpu_native_t *native, tw_stream_t stream)
{
    nccl_wire_t *nccl = self(wire);
    ncclDataType_t type = data_type(native->type);
    ncclRedOp_t op = native->reduction == TW_COLL_MEAN ? ncclAvg : ncclSum;
    cudaStream_t on = (cudaStream_t)stream;
    ncclResult_t result;

    if (native->op == TW_COLL_ALLGATHER) {
        result = nccl->api.ncclAllGather(native->src, native->dst, native->n_elems, type, nccl->comm, on);
    } else if (native->op == TW_COLL_REDUCE_SCATTER) {
        result =
            nccl->api.ncclReduceScatter(native->src, native->dst, native->n_elems, type, op, nccl->comm, on);
    } else {
        result = nccl->api.ncclAllReduce(native->src, native->dst, native->n_elems, type, op, nccl->comm, on);
    }
    return check_grouped(nccl, result, tw_coll_op_name(native->op));
}

static tw_status_t wire_end(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);

    if (!nccl->is_grouping) {
        return TW_OK;
    }
    ncclResult_t result = nccl->api.ncclGroupEnd();
    nccl->is_grouping = 0;
    tw_coll_gate_leave(nccl->gate);
    return tw_nccl_check_gated(&nccl->api, nccl->rank, nccl->comm, nccl->gate, result, "ncclGroupEnd");
}

static tw_status_t wire_error(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);
    ncclResult_t async = ncclSuccess;

    if (nccl->error != TW_OK || !nccl->comm) {
        return nccl->error != TW_OK ? nccl->error : TW_ERR_NCCL;
    }
    TW_TRY(tw_coll_gate_enter(nccl->gate));
    ncclResult_t asked = nccl->api.ncclCommGetAsyncError(nccl->comm, &async);
    if (asked == ncclSuccess) {
        asked = async;
    }
    if (asked != ncclSuccess && asked != ncclInProgress) {
        nccl->error =
            tw_nccl_check(&nccl->api, nccl->rank, nccl->comm, asked, "on the device, or on another rank");
    }
    tw_coll_gate_leave(nccl->gate);
    return nccl->error;
}

static void wire_abort(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);
    ncclComm_t comm = nccl->comm;

    nccl->comm = NULL;
    if (!comm || nccl->is_shared) {
        return;
    }
    ncclResult_t result = nccl->api.ncclCommAbort(comm);
    if (result != ncclSuccess && result != ncclInProgress) {
        tw_warn("rank %d: ncclCommAbort: %s", nccl->rank, nccl->api.ncclGetErrorString(result));
    }
}

/** Destroy a wire. All its operations must have ended, or it was aborted. */
static void wire_destroy(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);
    const tw_nccl_api_t *api = &nccl->api;

    if (nccl->comm && !nccl->is_shared) {
        (void)tw_nccl_check(api, nccl->rank, nccl->comm, api->ncclCommFinalize(nccl->comm),
                            "ncclCommFinalize");
        ncclResult_t result = api->ncclCommDestroy(nccl->comm);
        if (result != ncclSuccess && result != ncclInProgress) {
            tw_warn("rank %d: ncclCommDestroy: %s", nccl->rank, api->ncclGetErrorString(result));
        }
    }
    free(nccl);
}

tw_gpu_wire_t *tw_nccl_wire_create(const tw_nccl_api_t *api, ncclComm_t comm, int rank, int is_shared,
                                   tw_coll_gate_t *gate)
{
    nccl_wire_t *nccl = calloc(1, sizeof(*nccl));

    if (!nccl) {
        if (!is_shared) {
            (void)api->ncclCommAbort(comm);
        }
        return NULL;
    }
    nccl->base = (tw_gpu_wire_t){
        .begin = wire_begin,
        .send = wire_send,
        .recv = wire_recv,
        .native = wire_native,
        .end = wire_end,
        .error = wire_error,
        .abort = wire_abort,
        .destroy = wire_destroy,
    };
    nccl->api = *api;
    nccl->comm = comm;
    nccl->rank = rank;
    nccl->is_shared = is_shared;
    nccl->gate = gate;
    return &nccl->base;
}

#endif
