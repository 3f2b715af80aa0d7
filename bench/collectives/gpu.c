/* Tensors in GPU memory: chooses each rank's GPU, makes the communicator there, and copies tensors. */
#include "bench/collectives/bench.h"

#ifdef TW_HAVE_CUDA

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <xxhash.h>

#include "core/line.h"

#define BUS_BYTES 32
#define NAME_BYTES 128

struct tw_bench_gpu {
    cudaStream_t stream;
    tw_bench_tensors_t host, there;
};

static tw_status_t coll_check(cudaError_t error, const char *what)
{
    return tw_quant_cuda_status(error, what);
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static tw_status_t coll_reserve(char **memory, size_t *have, size_t bytes)
{
    if (bytes <= *have) {
        return TW_OK;
    }
    tw_status_t status = coll_check(cudaFree(*memory), "cudaFree");
    *memory = NULL;
    *have = 0;
    if (status == TW_OK) {
        status = coll_check(cudaMalloc((void **)memory, bytes), "memory for the tensors");
    }
    *have = status == TW_OK ? bytes : 0;
    return status;
}

tw_status_t tw_bench_gpu_load(tw_bench_gpu_t *gpu, const tw_bench_tensors_t *host)
{
    tw_bench_tensors_t *there = &gpu->there;
    gpu->host = *host;
    free(there->segments);
    there->n_segments = host->n_segments;
    there->segments = calloc(host->n_segments + 1, sizeof(*there->segments));
    TW_FAIL_IF(!there->segments, TW_ERR_NO_MEMORY, "out of memory for %zu segments", host->n_segments);
    TW_TRY(coll_reserve(&there->src, &there->src_bytes, host->src_bytes));
    TW_TRY(coll_reserve(&there->dst, &there->dst_bytes, host->dst_bytes));
    for (size_t s = 0; s < host->n_segments; s++) {
        there->segments[s] = host->segments[s];
        there->segments[s].src = there->src + ((const char *)host->segments[s].src - host->src);
        there->segments[s].dst = there->dst + ((char *)host->segments[s].dst - host->dst);
    }
    return coll_check(cudaMemcpy(there->src, host->src, host->src_bytes, cudaMemcpyHostToDevice),
                      "copying the input");
}

const tw_coll_segment_t *tw_bench_gpu_segments(const tw_bench_gpu_t *gpu)
{
    return gpu->there.segments;
}

tw_status_t tw_bench_gpu_poison(tw_bench_gpu_t *gpu, int byte)
{
    TW_TRY(coll_check(cudaMemset(gpu->there.dst, byte, gpu->host.dst_bytes), "cudaMemset"));
    return coll_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

tw_status_t tw_bench_gpu_fetch(tw_bench_gpu_t *gpu)
{
    return coll_check(cudaMemcpy(gpu->host.dst, gpu->there.dst, gpu->host.dst_bytes, cudaMemcpyDeviceToHost),
                      "copying the result");
}

void tw_bench_gpu_destroy(tw_bench_gpu_t *gpu)
{
    if (!gpu) {
        return;
    }
    (void)coll_check(cudaFree(gpu->there.src), "cudaFree");
    (void)coll_check(cudaFree(gpu->there.dst), "cudaFree");
    if (gpu->stream) {
        (void)coll_check(cudaStreamDestroy(gpu->stream), "cudaStreamDestroy");
    }
    free(gpu->there.segments);
    free(gpu);
}

/* ---- who has which GPU --------------------------------------------------------------------------------- */

/* The machine and GPU of a rank, which it tells the other ranks. */
typedef struct seat {
    uint64_t machine; /* hash of the boot id, which nodes of a cluster in a box have in common */
    char bus[BUS_BYTES];
} seat_t;

static uint64_t machine_id(void)
{
    char id[64];
    (void)tw_line_read("/proc/sys/kernel/random/boot_id", "", id, sizeof(id));
    return XXH3_64bits(id, strlen(id));
}

/** Choose this rank's GPU: the ranks of a machine take its GPUs one after another, and begin again. */
static tw_status_t take_gpu(const tw_bench_rank_t *rank, const seat_t *seats, seat_t *own)
{
    int device = 0, n_devices = 0;
    for (int r = 0; r < rank->rank; r++) {
        device += seats[r].machine == own->machine;
    }
    TW_TRY(coll_check(cudaGetDeviceCount(&n_devices), "looking for a GPU"));
    TW_FAIL_IF(n_devices == 0, TW_ERR_UNSUPPORTED, "rank %d: there is no GPU here", rank->rank);
    TW_TRY(coll_check(cudaSetDevice(device % n_devices), "cudaSetDevice"));
    return coll_check(cudaDeviceGetPCIBusId(own->bus, sizeof(own->bus), device % n_devices),
                      "cudaDeviceGetPCIBusId");
}

/** Choose all ranks' GPUs; *most: the most ranks on one GPU. Fails on all ranks if one finds no GPU. */
static tw_status_t find_gpus(tw_bench_rank_t *rank, int *most)
{
    seat_t own = {.machine = machine_id()};
    seat_t *seats = calloc((size_t)rank->world, sizeof(*seats));
    tw_status_t status = seats ? bench_gather(rank->coll, &own, sizeof(own), seats)
                               : tw_bench_no_memory(rank, (size_t)rank->world * sizeof(*seats));
    tw_status_t found = status == TW_OK ? take_gpu(rank, seats, &own) : status;
    status = status == TW_OK ? bench_gather(rank->coll, &own, sizeof(own), seats) : status;
    *most = 0;
    for (int a = 0; a < rank->world && status == TW_OK; a++) {
        int n = 0;
        for (int b = 0; b < rank->world; b++) {
            n += memcmp(&seats[a], &seats[b], sizeof(seats[a])) == 0;
        }
        *most = n > *most ? n : *most;
        found = found == TW_OK && seats[a].bus[0] == '\0' ? TW_ERR_UNSUPPORTED : found;
    }
    free(seats);
    return status == TW_OK ? found : status;
}

/* ---- the wire ------------------------------------------------------------------------------------------ */

/** Set NCCL's variables, except those that the user has set. NCCL refuses two ranks on one GPU, unless they
 *  claim to be on different hosts (NCCL_HOSTID). In a cluster in a box, only sockets use the shaped links. */
static void prepare_nccl(const tw_bench_rank_t *rank, int is_shared)
{
    char name[32];
    snprintf(name, sizeof(name), "rank%d", rank->rank);
    if (is_shared) {
        setenv("NCCL_HOSTID", name, 0);
        setenv("NCCL_MAX_NCHANNELS", "2", 0); /* few, as the kernels of all ranks must run at the same time */
    }
    if (rank->kind == TW_CLUSTER_NODES) {
        setenv("NCCL_NET", "Socket", 0);
        setenv("NCCL_SOCKET_IFNAME", TW_CLUSTER_DEVICE, 0);
    }
}

static void coll_gpu_describe(tw_bench_rank_t *rank, int most)
{
    struct cudaDeviceProp properties;
    char name[NAME_BYTES] = "GPU";
    int device = 0;
    const char *over = !rank->is_counted ? "NCCL"
                       : tw_coll_workspace_mem(rank->measured) == TW_MEM_HOST
                           ? "the transport, through pinned host memory"
                           : "the transport, straight from GPU memory";
    if (cudaGetDevice(&device) == cudaSuccess &&
        cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
        snprintf(name, sizeof(name), "%.*s", NAME_BYTES - 1, properties.name);
    }
    snprintf(rank->wire, sizeof(rank->wire), "%s, %d rank%s each; over %s", name, most, most == 1 ? "" : "s",
             over);
    tw_info("rank %d: %s", rank->rank, rank->wire);
}

tw_status_t tw_bench_gpu_create(tw_bench_rank_t *rank)
{
    int most = 0;
    TW_TRY(find_gpus(rank, &most));
    tw_bench_gpu_t *gpu = calloc(1, sizeof(*gpu));
    if (!gpu) {
        return tw_bench_no_memory(rank, sizeof(*gpu));
    }
    tw_bench_wire_t wire = rank->options->wire;
    int over_nccl = wire == TW_BENCH_WIRE_NCCL || (wire == TW_BENCH_WIRE_AUTO && most == 1);
    tw_coll_params_t params = {
        .transport = rank->transport,
        .mem = TW_MEM_CUDA,
        .wire = over_nccl ? TW_COLL_WIRE_NCCL : TW_COLL_WIRE_TRANSPORT,
    };
    rank->is_counted = !over_nccl;
    if (over_nccl) {
        prepare_nccl(rank, most > 1);
    }
    tw_status_t status = coll_check(cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking),
                                    "cudaStreamCreateWithFlags");
    status = status == TW_OK ? tw_coll_create(&params, &rank->measured) : status;
    if (status != TW_OK) {
        tw_bench_gpu_destroy(gpu);
        return status;
    }
    rank->gpu = gpu;
    rank->stream = gpu->stream;
    coll_gpu_describe(rank, most);
    return TW_OK;
}

#else

tw_status_t tw_bench_gpu_create(tw_bench_rank_t *rank)
{
    return tw_fail(TW_ERR_UNSUPPORTED, "rank %d: --device cuda: no CUDA was found when this was built",
                   rank->rank);
}

/* This build has no CUDA and makes no tw_bench_gpu_t, so the functions below are never called. */

void tw_bench_gpu_destroy(tw_bench_gpu_t *gpu)
{
    (void)gpu;
}

tw_status_t tw_bench_gpu_load(tw_bench_gpu_t *gpu, const tw_bench_tensors_t *host)
{
    (void)gpu;
    (void)host;
    return TW_ERR_UNSUPPORTED;
}

const tw_coll_segment_t *tw_bench_gpu_segments(const tw_bench_gpu_t *gpu)
{
    (void)gpu;
    return NULL;
}

tw_status_t tw_bench_gpu_poison(tw_bench_gpu_t *gpu, int byte)
{
    (void)gpu;
    (void)byte;
    return TW_ERR_UNSUPPORTED;
}

tw_status_t tw_bench_gpu_fetch(tw_bench_gpu_t *gpu)
{
    (void)gpu;
    return TW_ERR_UNSUPPORTED;
}

#endif
