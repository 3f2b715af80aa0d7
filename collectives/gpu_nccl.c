/** The wire over NCCL, and communicators made with it. */
#include "collectives/gpu.h"

#if defined(TW_HAVE_CUDA) && defined(TW_HAVE_NCCL)

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <xxhash.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error "NCCL 2.18.1 or newer is needed (ncclCommSplit); TW_NCCL=0 builds without"
#endif

#define POLL_NS 20000
#define JOIN_SEC 300.0 /**< a call that NCCL goes on with in the background has so long */

typedef struct nccl_wire {
    tw_gpu_wire_t base;
    ncclComm_t comm; /**< NULL: aborted */
    int rank;
    int is_noted; /**< its error is in the log */
} nccl_wire_t;

/* ---- errors ---------------------------------------------------------------------------------------------- */

/** The one translator of NCCL's results. */
static tw_status_t status_of(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return TW_OK;
    case ncclInProgress:
        return TW_IN_PROGRESS;
    case ncclUnhandledCudaError:
        return TW_ERR_CUDA;
    case ncclSystemError: /* a socket, shared memory or verbs call failed: often the other side's end */
        return TW_ERR_IO;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return TW_ERR_INVALID;
    case ncclRemoteError: /* another rank failed or left */
        return TW_ERR_PEER;
    default:
        return TW_ERR_NCCL;
    }
}

static tw_status_t note(int rank, ncclComm_t comm, ncclResult_t result, const char *what)
{
    const char *last = ncclGetLastError(comm);

    tw_error("rank %d: %s: NCCL error %d (%s)%s%s", rank, what, (int)result, ncclGetErrorString(result),
             last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
    return status_of(result);
}

/** NCCL may go on in the background, where its communicators are non-blocking (NCCL_COMM_BLOCKING=0): until it is done,
 *  for a bounded time. */
static ncclResult_t settle(ncclComm_t comm, ncclResult_t result)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    double end_sec = tw_time_sec() + JOIN_SEC;

    while (result == ncclInProgress && comm != NULL && tw_time_sec() < end_sec) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
        if (asked != ncclSuccess)
            return asked;
        if (result == ncclInProgress)
            (void)nanosleep(&nap, NULL);
    }
    return result;
}

static tw_status_t check(int rank, ncclComm_t comm, ncclResult_t result, const char *what)
{
    result = settle(comm, result);
    if (result == ncclSuccess)
        return TW_OK;
    if (result == ncclInProgress) {
        tw_error("rank %d: %s: not done after %.0f s", rank, what, JOIN_SEC);
        return TW_ERR_TIMEOUT;
    }
    return note(rank, comm, result, what);
}

/* ---- the wire -------------------------------------------------------------------------------------------- */

static nccl_wire_t *self(tw_gpu_wire_t *wire)
{
    return (nccl_wire_t *)wire;
}

/** Inside a group a call is only noted; ncclInProgress says that it is. */
static tw_status_t check_grouped(const nccl_wire_t *wire, ncclResult_t result, const char *what)
{
    return result == ncclSuccess || result == ncclInProgress ? TW_OK
                                                             : note(wire->rank, wire->comm, result, what);
}

static tw_status_t wire_begin(tw_gpu_wire_t *wire)
{
    return check_grouped(self(wire), ncclGroupStart(), "ncclGroupStart");
}

static tw_status_t wire_send(tw_gpu_wire_t *wire, int peer, const void *from, size_t bytes,
                             tw_stream_t stream)
{
    ncclComm_t comm = self(wire)->comm;

    return check_grouped(self(wire), ncclSend(from, bytes, ncclUint8, peer, comm, (cudaStream_t)stream),
                         "ncclSend");
}

static tw_status_t wire_recv(tw_gpu_wire_t *wire, int peer, void *to, size_t bytes, tw_stream_t stream)
{
    ncclComm_t comm = self(wire)->comm;

    return check_grouped(self(wire), ncclRecv(to, bytes, ncclUint8, peer, comm, (cudaStream_t)stream),
                         "ncclRecv");
}

static ncclDataType_t data_type(tw_type_t type)
{
    static const ncclDataType_t types[] = {[TW_TYPE_FP32] = ncclFloat32,
                                           [TW_TYPE_BF16] = ncclBfloat16,
                                           [TW_TYPE_FP16] = ncclFloat16,
                                           [TW_TYPE_BYTE] = ncclUint8};

    return types[type];
}

static tw_status_t wire_native(tw_gpu_wire_t *wire, const tw_gpu_native_t *native, tw_stream_t stream)
{
    ncclComm_t comm = self(wire)->comm;
    ncclDataType_t type = data_type(native->type);
    ncclRedOp_t op = native->reduction == TW_COLL_MEAN ? ncclAvg : ncclSum;
    cudaStream_t on = (cudaStream_t)stream;

    if (native->op == TW_COLL_ALLGATHER)
        return check_grouped(self(wire),
                             ncclAllGather(native->src, native->dst, native->n_elems, type, comm, on),
                             "ncclAllGather");
    if (native->op == TW_COLL_REDUCE_SCATTER)
        return check_grouped(self(wire),
                             ncclReduceScatter(native->src, native->dst, native->n_elems, type, op, comm, on),
                             "ncclReduceScatter");
    return check_grouped(self(wire),
                         ncclAllReduce(native->src, native->dst, native->n_elems, type, op, comm, on),
                         "ncclAllReduce");
}

static tw_status_t wire_end(tw_gpu_wire_t *wire)
{
    return check(self(wire)->rank, self(wire)->comm, ncclGroupEnd(), "ncclGroupEnd");
}

static tw_status_t wire_error(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);
    ncclResult_t async = ncclSuccess, asked;

    if (nccl->comm == NULL)
        return TW_ERR_NCCL;
    asked = ncclCommGetAsyncError(nccl->comm, &async);
    if (asked == ncclSuccess)
        asked = async;
    if (asked == ncclSuccess || asked == ncclInProgress)
        return TW_OK;
    if (nccl->is_noted)
        return status_of(asked);
    nccl->is_noted = 1;
    return note(nccl->rank, nccl->comm, asked, "on the device, or on another rank");
}

static void wire_abort(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);
    ncclComm_t comm = nccl->comm;

    nccl->comm = NULL;
    if (comm == NULL)
        return;
    ncclResult_t result = ncclCommAbort(comm);
    if (result != ncclSuccess && result != ncclInProgress)
        tw_warn("rank %d: ncclCommAbort: %s", nccl->rank, ncclGetErrorString(result));
}

/** All operations have ended, or it was aborted. */
static void wire_destroy(tw_gpu_wire_t *wire)
{
    nccl_wire_t *nccl = self(wire);

    if (nccl->comm != NULL) {
        (void)check(nccl->rank, nccl->comm, ncclCommFinalize(nccl->comm), "ncclCommFinalize");
        ncclResult_t result = ncclCommDestroy(nccl->comm);
        if (result != ncclSuccess && result != ncclInProgress)
            tw_warn("rank %d: ncclCommDestroy: %s", nccl->rank, ncclGetErrorString(result));
    }
    free(nccl);
}

static const tw_gpu_wire_t wire_table = {
    .begin = wire_begin,
    .send = wire_send,
    .recv = wire_recv,
    .native = wire_native,
    .end = wire_end,
    .error = wire_error,
    .abort = wire_abort,
    .destroy = wire_destroy,
};

/** Takes comm, also when it fails. */
static tw_gpu_wire_t *create_wire(ncclComm_t comm, int rank)
{
    nccl_wire_t *nccl = calloc(1, sizeof(*nccl));

    if (nccl == NULL) {
        (void)ncclCommAbort(comm);
        return NULL;
    }
    nccl->base = wire_table;
    nccl->comm = comm;
    nccl->rank = rank;
    return &nccl->base;
}

/* ---- nodes ----------------------------------------------------------------------------------------------- */

/** As NCCL tells hosts apart, so that what is one node to us is one to it. */
static uint64_t own_node_id(void)
{
    const char *names[] = {getenv("TW_NODE_ID"), getenv("NCCL_HOSTID")};
    char text[512] = "";
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i] != NULL && names[i][0] != '\0')
            return XXH3_64bits(names[i], strlen(names[i]));
    }
    if (gethostname(text, sizeof(text) / 2) != 0)
        tw_warn("gethostname failed: nodes are told apart by their boot alone");
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    n = strlen(text);
    n += file != NULL ? fread(text + n, 1, sizeof(text) - n, file) : 0;
    if (file != NULL)
        (void)fclose(file);
    return XXH3_64bits(text, n);
}

/** ids: [world], in device memory on the way. */
static tw_status_t gather_ids(ncclComm_t comm, int rank, int world, void *memory, cudaStream_t stream,
                              uint64_t *ids)
{
    uint64_t own = own_node_id();
    uint64_t *all = memory;
    tw_status_t status = tw_quant_cuda_status(
        cudaMemcpyAsync(all + rank, &own, sizeof(own), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");

    if (status == TW_OK)
        status = check(rank, comm, ncclAllGather(all + rank, all, sizeof(own), ncclUint8, comm, stream),
                       "ncclAllGather");
    if (status == TW_OK)
        status = tw_quant_cuda_status(
            cudaMemcpyAsync(ids, all, (size_t)world * sizeof(own), cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
    return status == TW_OK ? tw_quant_cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize")
                           : status;
}

static tw_status_t exchange_node_ids(ncclComm_t comm, int rank, int world, uint64_t *ids)
{
    void *memory = NULL;
    cudaStream_t stream = NULL;
    tw_status_t status =
        tw_quant_cuda_status(cudaMalloc(&memory, (size_t)world * sizeof(*ids)), "cudaMalloc");

    if (status != TW_OK)
        return status;
    status = tw_quant_cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                  "cudaStreamCreateWithFlags");
    if (status == TW_OK) {
        status = gather_ids(comm, rank, world, memory, stream, ids);
        (void)tw_quant_cuda_status(cudaStreamDestroy(stream), "cudaStreamDestroy");
    }
    (void)tw_quant_cuda_status(cudaFree(memory), "cudaFree");
    return status;
}

/* ---- from a communicator --------------------------------------------------------------------------------- */

static tw_status_t split_off(ncclComm_t parent, int rank, ncclComm_t *own)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    tw_status_t status;

    *own = NULL;
    config.blocking = 1;
    status = check(rank, parent, ncclCommSplit(parent, 0, rank, own, &config), "ncclCommSplit");
    if (status == TW_OK)
        status = check(rank, *own, ncclSuccess, "ncclCommSplit");
    return status;
}

static tw_status_t create_from_comm(ncclComm_t parent, tw_gpu_parts_t *parts, tw_coll_gpu_t **out)
{
    ncclComm_t own;
    tw_status_t status = check(-1, parent, ncclCommUserRank(parent, &parts->rank), "ncclCommUserRank");

    if (status == TW_OK)
        status = check(parts->rank, parent, ncclCommCount(parent, &parts->world), "ncclCommCount");
    if (status != TW_OK)
        return status;
    uint64_t *ids = calloc((size_t)parts->world, sizeof(*ids));
    if (ids == NULL)
        return TW_ERR_NO_MEMORY;
    parts->node_ids = ids;
    status = split_off(parent, parts->rank, &own);
    if (status == TW_OK) {
        status = exchange_node_ids(own, parts->rank, parts->world, ids);
        parts->wire = create_wire(own, parts->rank);
        if (parts->wire == NULL)
            status = TW_ERR_NO_MEMORY;
        else if (status == TW_OK)
            status = tw_gpu_create_of_parts(parts, out);
        else
            wire_destroy(parts->wire);
    }
    free(ids);
    return status;
}

/* ---- over a transport ------------------------------------------------------------------------------------ */

static tw_status_t finish(tw_transport_t *transport, tw_status_t posted, tw_transport_request_t *request)
{
    tw_status_t status = posted;

    if (status != TW_OK)
        return status;
    while ((status = tw_transport_test(transport, request)) == TW_IN_PROGRESS) {
        tw_status_t moved = tw_transport_progress(transport);
        if (moved == TW_IN_PROGRESS)
            moved = tw_transport_sleep(transport, 0.1);
        if (moved < 0) {
            tw_transport_cancel(transport, request);
            return moved;
        }
    }
    return status;
}

/** The first rank makes the id under which they find each other in NCCL, and tells the others. */
static tw_status_t share_id(const tw_coll_params_t *over, const tw_topo_t *topo, ncclUniqueId *id)
{
    uint64_t tag = (uint64_t)over->id << TW_COLL_ID_SHIFT;
    tw_transport_request_t *request;
    tw_status_t status = TW_OK;

    if (topo->rank > 0) {
        status = tw_transport_recv_post(over->transport, topo->peer[0], tag, id, sizeof(*id), &request);
        return finish(over->transport, status, request);
    }
    status = check(0, NULL, ncclGetUniqueId(id), "ncclGetUniqueId");
    for (int r = 1; r < topo->world && status == TW_OK; r++) {
        status = tw_transport_send_post(over->transport, topo->peer[r], tag, id, sizeof(*id), &request);
        status = finish(over->transport, status, request);
    }
    return status;
}

static tw_status_t meet(const tw_coll_params_t *over, const tw_topo_t *topo, ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    tw_status_t status = share_id(over, topo, &id);

    *comm = NULL;
    config.blocking = 1;
    if (status != TW_OK)
        return status;
    ncclResult_t result = ncclCommInitRankConfig(comm, topo->world, id, topo->rank, &config);
    return check(topo->rank, *comm, result, "ncclCommInitRankConfig");
}

static tw_status_t create_over(const tw_coll_params_t *over, tw_gpu_parts_t *parts, tw_coll_gpu_t **out)
{
    tw_topo_t topo;
    ncclComm_t comm;
    tw_status_t status = TW_OK;

    parts->transport = over->transport;
    parts->ranks = over->ranks;
    parts->world = over->ranks != NULL ? over->n_ranks : tw_transport_world(over->transport);
    int *all = calloc((size_t)parts->world, sizeof(*all));
    if (all == NULL)
        return TW_ERR_NO_MEMORY;
    for (int r = 0; r < parts->world; r++)
        all[r] = over->ranks != NULL ? over->ranks[r] : r;
    status = tw_topo_init(&topo, over->transport, all, parts->world);
    free(all);
    if (status != TW_OK)
        return status;
    status = meet(over, &topo, &comm);
    parts->wire = status == TW_OK ? create_wire(comm, topo.rank) : NULL;
    tw_topo_cleanup(&topo);
    if (status == TW_OK && parts->wire == NULL)
        status = TW_ERR_NO_MEMORY;
    return status == TW_OK ? tw_gpu_create_of_parts(parts, out) : status;
}

tw_status_t tw_gpu_create_nccl(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out)
{
    tw_gpu_parts_t parts = {.device = tw_gpu_device_cuda(), .id = params->over.id};

    if (parts.device == NULL)
        return TW_ERR_UNSUPPORTED;
    if (params->comm != NULL)
        return create_from_comm(params->comm, &parts, out);
    return create_over(&params->over, &parts, out);
}

#else

tw_status_t tw_gpu_create_nccl(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out)
{
    (void)params;
    (void)out;
    tw_error("collectives over NCCL are not there: no CUDA and NCCL were found when this was built");
    return TW_ERR_UNSUPPORTED;
}

#endif
