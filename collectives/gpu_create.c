/** Communicators over NCCL. */
#include "collectives/gpu.h"

#if defined(TW_HAVE_CUDA) && defined(TW_HAVE_NCCL)

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "collectives/gpu_nccl_api.h"

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
static tw_status_t gather_ids(const tw_nccl_api_t *api, ncclComm_t comm, int rank, int world, void *memory,
                              cudaStream_t stream, uint64_t *ids)
{
    uint64_t own = own_node_id();
    uint64_t *all = memory;
    tw_status_t status = tw_quant_cuda_status(
        cudaMemcpyAsync(all + rank, &own, sizeof(own), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");

    if (status == TW_OK)
        status = tw_nccl_check(api, rank, comm,
                               api->ncclAllGather(all + rank, all, sizeof(own), ncclUint8, comm, stream),
                               "ncclAllGather");
    if (status == TW_OK)
        status = tw_quant_cuda_status(
            cudaMemcpyAsync(ids, all, (size_t)world * sizeof(own), cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
    return status == TW_OK ? tw_quant_cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize")
                           : status;
}

static tw_status_t exchange_node_ids(const tw_nccl_api_t *api, ncclComm_t comm, int rank, int world,
                                     uint64_t *ids)
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
        status = gather_ids(api, comm, rank, world, memory, stream, ids);
        (void)tw_quant_cuda_status(cudaStreamDestroy(stream), "cudaStreamDestroy");
    }
    (void)tw_quant_cuda_status(cudaFree(memory), "cudaFree");
    return status;
}

/* ---- from a communicator --------------------------------------------------------------------------------- */

static tw_status_t split_off(const tw_nccl_api_t *api, ncclComm_t parent, int rank, ncclComm_t *own)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    tw_status_t status;

    *own = NULL;
    config.blocking = 1;
    status =
        tw_nccl_check(api, rank, parent, api->ncclCommSplit(parent, 0, rank, own, &config), "ncclCommSplit");
    if (status == TW_OK)
        status = tw_nccl_check(api, rank, *own, ncclInProgress, "ncclCommSplit");
    return status;
}

static tw_status_t create_from_comm(const tw_nccl_api_t *api, ncclComm_t parent, tw_gpu_parts_t *parts,
                                    tw_coll_gpu_t **out)
{
    ncclComm_t own;
    tw_status_t status =
        tw_nccl_check(api, -1, parent, api->ncclCommUserRank(parent, &parts->rank), "ncclCommUserRank");

    if (status == TW_OK)
        status = tw_nccl_check(api, parts->rank, parent, api->ncclCommCount(parent, &parts->world),
                               "ncclCommCount");
    if (status != TW_OK)
        return status;
    uint64_t *ids = calloc((size_t)parts->world, sizeof(*ids));
    if (ids == NULL)
        return TW_ERR_NO_MEMORY;
    parts->node_ids = ids;
    status = split_off(api, parent, parts->rank, &own);
    if (status == TW_OK) {
        status = exchange_node_ids(api, own, parts->rank, parts->world, ids);
        parts->wire = tw_nccl_wire_create(api, own, parts->rank);
        if (parts->wire == NULL)
            status = TW_ERR_NO_MEMORY;
        else if (status == TW_OK)
            status = tw_gpu_create_of_parts(parts, out);
        else
            parts->wire->destroy(parts->wire);
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
static tw_status_t share_id(const tw_nccl_api_t *api, const tw_coll_params_t *over, const tw_topo_t *topo,
                            ncclUniqueId *id)
{
    uint64_t tag = (uint64_t)over->id << TW_COLL_ID_SHIFT;
    tw_transport_request_t *request;
    tw_status_t status = TW_OK;

    if (topo->rank > 0) {
        status = tw_transport_recv_post(over->transport, topo->peer[0], tag, id, sizeof(*id), &request);
        return finish(over->transport, status, request);
    }
    status = tw_nccl_check(api, 0, NULL, api->ncclGetUniqueId(id), "ncclGetUniqueId");
    for (int r = 1; r < topo->world && status == TW_OK; r++) {
        status = tw_transport_send_post(over->transport, topo->peer[r], tag, id, sizeof(*id), &request);
        status = finish(over->transport, status, request);
    }
    return status;
}

static tw_status_t meet(const tw_nccl_api_t *api, const tw_coll_params_t *over, const tw_topo_t *topo,
                        ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    tw_status_t status = share_id(api, over, topo, &id);

    *comm = NULL;
    config.blocking = 1;
    if (status != TW_OK)
        return status;
    ncclResult_t result = api->ncclCommInitRankConfig(comm, topo->world, id, topo->rank, &config);
    return tw_nccl_check(api, topo->rank, *comm, result, "ncclCommInitRankConfig");
}

static tw_status_t create_over(const tw_nccl_api_t *api, const tw_coll_params_t *over, tw_gpu_parts_t *parts,
                               tw_coll_gpu_t **out)
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
    status = meet(api, over, &topo, &comm);
    parts->wire = status == TW_OK ? tw_nccl_wire_create(api, comm, topo.rank) : NULL;
    tw_topo_cleanup(&topo);
    if (status == TW_OK && parts->wire == NULL)
        status = TW_ERR_NO_MEMORY;
    return status == TW_OK ? tw_gpu_create_of_parts(parts, out) : status;
}

tw_status_t tw_gpu_create_nccl(const tw_coll_gpu_params_t *params, tw_coll_gpu_t **out)
{
    tw_gpu_parts_t parts = {.device = tw_gpu_device_cuda(), .id = params->over.id};
    tw_nccl_api_t api;
    tw_status_t status = parts.device != NULL ? tw_nccl_load(&api) : TW_ERR_UNSUPPORTED;

    if (status != TW_OK)
        return status;
    if (params->comm != NULL)
        return create_from_comm(&api, params->comm, &parts, out);
    return create_over(&api, &params->over, &parts, out);
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
