/** How a communicator finds its ranks in NCCL: split off one that is there, or met over the transport. */
#include "collectives/gpu/gpu.h"

#if defined(TW_HAVE_CUDA) && defined(TW_HAVE_NCCL)

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "collectives/gpu/nccl_api.h"
#include "collectives/model/bootstrap.h"

/* ---- nodes ----------------------------------------------------------------------------------------------- */

/** As NCCL tells hosts apart, so that what is one node to us is one to it. */
static uint64_t own_node_id(void)
{
    const char *names[] = {getenv("TW_NODE_ID"), getenv("NCCL_HOSTID")};
    char text[512] = "";
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i] != NULL && names[i][0] != '\0') {
            return XXH3_64bits(names[i], strlen(names[i]));
        }
    }
    if (gethostname(text, sizeof(text) / 2) != 0) {
        tw_warn("gethostname failed: nodes are told apart by their boot alone");
    }
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    n = strlen(text);
    n += file != NULL ? fread(text + n, 1, sizeof(text) - n, file) : 0;
    if (file != NULL) {
        (void)fclose(file);
    }
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

    if (status == TW_OK) {
        status = tw_nccl_check(api, rank, comm,
                               api->ncclAllGather(all + rank, all, sizeof(own), ncclUint8, comm, stream),
                               "ncclAllGather");
    }
    if (status == TW_OK) {
        status = tw_quant_cuda_status(
            cudaMemcpyAsync(ids, all, (size_t)world * sizeof(own), cudaMemcpyDeviceToHost, stream),
            "cudaMemcpyAsync");
    }
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

    if (status != TW_OK) {
        return status;
    }
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
    if (status == TW_OK) {
        status = tw_nccl_check(api, rank, *own, ncclInProgress, "ncclCommSplit");
    }
    return status;
}

static tw_status_t join_comm(const tw_nccl_api_t *api, ncclComm_t parent, tw_gpu_wire_t **wire, int *rank,
                             int *world, uint64_t **node_ids)
{
    ncclComm_t own;
    tw_status_t status =
        tw_nccl_check(api, -1, parent, api->ncclCommUserRank(parent, rank), "ncclCommUserRank");

    if (status == TW_OK) {
        status = tw_nccl_check(api, *rank, parent, api->ncclCommCount(parent, world), "ncclCommCount");
    }
    if (status != TW_OK) {
        return status;
    }
    *node_ids = calloc((size_t)*world, sizeof(**node_ids));
    if (*node_ids == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    status = split_off(api, parent, *rank, &own);
    if (status != TW_OK) {
        return status;
    }
    status = exchange_node_ids(api, own, *rank, *world, *node_ids);
    *wire = tw_nccl_wire_create(api, own, *rank);
    if (*wire == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    if (status != TW_OK) {
        (*wire)->destroy(*wire);
    }
    return status;
}

/* ---- over a transport ------------------------------------------------------------------------------------ */

/** What the first rank tells the others: under which id they find each other in NCCL, or that there is none. */
typedef struct invitation {
    tw_status_t status;
    ncclUniqueId id;
} invitation_t;

static tw_status_t share_id(const tw_nccl_api_t *api, const tw_coll_params_t *over, const tw_topo_t *topo,
                            ncclUniqueId *id)
{
    tw_bootstrap_t boot = {.transport = over->transport, .topo = topo, .tag = TW_COLL_MEETING_TAG};
    invitation_t invitation = {TW_OK, {{0}}};

    if (topo->rank == 0) {
        invitation.status =
            tw_nccl_check(api, 0, NULL, api->ncclGetUniqueId(&invitation.id), "ncclGetUniqueId");
    }
    tw_status_t status = tw_bootstrap_broadcast(&boot, &invitation, sizeof(invitation));
    if (status != TW_OK) {
        return status;
    }
    if (invitation.status != TW_OK && topo->rank > 0) {
        tw_error("rank %d: rank 0 has no id for a communicator of NCCL (%s)", topo->rank,
                 tw_status_string(invitation.status));
    }
    *id = invitation.id;
    return invitation.status;
}

static tw_status_t join(const tw_nccl_api_t *api, const tw_coll_params_t *over, const tw_topo_t *topo,
                        ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    tw_status_t status = share_id(api, over, topo, &id);

    *comm = NULL;
    config.blocking = 1;
    if (status != TW_OK) {
        return status;
    }
    ncclResult_t result = api->ncclCommInitRankConfig(comm, topo->world, id, topo->rank, &config);
    return tw_nccl_check(api, topo->rank, *comm, result, "ncclCommInitRankConfig");
}

static tw_status_t join_over(const tw_nccl_api_t *api, const tw_coll_params_t *over, tw_gpu_wire_t **wire)
{
    tw_topo_t topo;
    ncclComm_t comm;
    tw_status_t status = tw_topo_init(&topo, over->transport, over->ranks, over->n_ranks);

    if (status != TW_OK) {
        return status;
    }
    status = join(api, over, &topo, &comm);
    if (status == TW_OK) {
        *wire = tw_nccl_wire_create(api, comm, topo.rank);
        status = *wire != NULL ? TW_OK : TW_ERR_NO_MEMORY;
    }
    tw_topo_cleanup(&topo);
    return status;
}

tw_status_t tw_nccl_join(const tw_coll_params_t *params, tw_gpu_wire_t **wire, int *rank, int *world,
                         uint64_t **node_ids)
{
    tw_nccl_api_t api;
    tw_status_t status = tw_nccl_load(&api);

    if (status != TW_OK) {
        return status;
    }
    if (params->nccl_comm != NULL) {
        return join_comm(&api, params->nccl_comm, wire, rank, world, node_ids);
    }
    return join_over(&api, params, wire);
}

#else

tw_status_t tw_nccl_join(const tw_coll_params_t *params, tw_gpu_wire_t **wire, int *rank, int *world,
                         uint64_t **node_ids)
{
    (void)params;
    (void)wire;
    (void)rank;
    (void)world;
    (void)node_ids;
    tw_error("collectives over NCCL are not there: no CUDA and NCCL were found when this was built");
    return TW_ERR_UNSUPPORTED;
}

#endif
