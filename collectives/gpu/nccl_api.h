/** NCCL's functions, which are found at run time. So one binary runs with and without NCCL, and uses the
 *  NCCL that the process has already loaded, if there is one. Private to collectives. */
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "collectives/gpu/gpu.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error "NCCL 2.18.1 or newer is needed (ncclCommSplit); TW_NCCL=0 builds without"
#endif

TW_C_BEGIN

#define TW_NCCL_FUNCTIONS(X)  \
    X(ncclGetUniqueId)        \
    X(ncclCommInitRankConfig) \
    X(ncclCommSplit)          \
    X(ncclCommUserRank)       \
    X(ncclCommCount)          \
    X(ncclCommFinalize)       \
    X(ncclCommDestroy)        \
    X(ncclCommAbort)          \
    X(ncclCommGetAsyncError)  \
    X(ncclGetErrorString)     \
    X(ncclGetLastError)       \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)           \
    X(ncclSend)               \
    X(ncclRecv)               \
    X(ncclAllGather)          \
    X(ncclReduceScatter)      \
    X(ncclAllReduce)

typedef struct tw_nccl_api {
#define TW_NCCL_MEMBER(name) __typeof__(&name) name;
    TW_NCCL_FUNCTIONS(TW_NCCL_MEMBER)
#undef TW_NCCL_MEMBER
} tw_nccl_api_t;

/** Load NCCL; it is never unloaded. TW_ERR_UNSUPPORTED (logged): there is no NCCL, or it lacks a function. */
tw_status_t tw_nccl_load(tw_nccl_api_t *api);

/** Translate a result into a status. A failure is logged with NCCL's number, name and last error text. If
 *  NCCL continues the call in the background (non-blocking communicators), wait until the call ends, fails
 *  or comm is aborted; without a limit, as a rank may be late. comm may be NULL. rank -1: not known yet. */
tw_status_t tw_nccl_check(const tw_nccl_api_t *api, int rank, ncclComm_t comm, ncclResult_t result,
                          const char *what);
/** As tw_nccl_check, for a comm that another thread may end: calls of NCCL for this comm pass the gate.
 *  TW_ERR_CANCELED: the gate was closed. */
tw_status_t tw_nccl_check_gated(const tw_nccl_api_t *api, int rank, ncclComm_t comm, tw_coll_gate_t *gate,
                                ncclResult_t result, const char *what);

/** Make a wire that owns comm, even if this fails. Returns NULL if memory is out. is_shared 1: the wire
 *  borrows comm, and its calls pass the gate (NULL: no gate). */
tw_gpu_wire_t *tw_nccl_wire_create(const tw_nccl_api_t *api, ncclComm_t comm, int rank, int is_shared,
                                   tw_coll_gate_t *gate);

TW_C_END
