/* GPUs as the place of the tensors. */
#include "bench/collectives/bench.h"

#ifdef TW_HAVE_CUDA

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <xxhash.h>

#define GPU_COLL_ID 1
#define BUS_BYTES 32
#define NAME_BYTES 128

typedef struct gpu {
    tw_bench_target_t base;
    tw_coll_t *coll;
    cudaStream_t stream;
    tw_bench_tensors_t host;
    char *src, *dst; /* on the GPU */
    size_t src_bytes, dst_bytes;
    tw_coll_segment_t *segments; /* [host.n_segments] */
} gpu_t;

static tw_status_t check(cudaError_t error, const char *what)
{
    return tw_quant_cuda_status(error, what);
}

static gpu_t *self(tw_bench_target_t *target)
{
    return (gpu_t *)target;
}

/* ---- tensors ------------------------------------------------------------------------------------------------ */

static tw_status_t reserve(char **memory, size_t *have, size_t bytes)
{
    if (bytes <= *have) {
        return TW_OK;
    }
    tw_status_t status = check(cudaFree(*memory), "cudaFree");
    *memory = NULL;
    *have = 0;
    if (status == TW_OK) {
        status = check(cudaMalloc((void **)memory, bytes), "memory for the tensors");
    }
    *have = status == TW_OK ? bytes : 0;
    return status;
}

static tw_status_t gpu_load(tw_bench_target_t *target, const tw_bench_tensors_t *tensors)
{
    gpu_t *gpu = self(target);
    free(gpu->segments);
    gpu->host = *tensors;
    gpu->segments = calloc(tensors->n_segments + 1, sizeof(*gpu->segments));
    if (!gpu->segments) {
        tw_error("out of memory for %zu segments", tensors->n_segments);
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = reserve(&gpu->src, &gpu->src_bytes, tensors->src_bytes);
    if (status == TW_OK) {
        status = reserve(&gpu->dst, &gpu->dst_bytes, tensors->dst_bytes);
    }
    for (size_t s = 0; s < tensors->n_segments && status == TW_OK; s++) {
        gpu->segments[s] = tensors->segments[s];
        gpu->segments[s].src = gpu->src + ((const char *)tensors->segments[s].src - tensors->src);
        gpu->segments[s].dst = gpu->dst + ((char *)tensors->segments[s].dst - tensors->dst);
    }
    return status == TW_OK
               ? check(cudaMemcpy(gpu->src, tensors->src, tensors->src_bytes, cudaMemcpyHostToDevice),
                       "copying the input")
               : status;
}

static tw_status_t gpu_poison(tw_bench_target_t *target, int byte)
{
    gpu_t *gpu = self(target);
    tw_status_t status = check(cudaMemset(gpu->dst, byte, gpu->host.dst_bytes), "cudaMemset");
    return status == TW_OK ? check(cudaDeviceSynchronize(), "cudaDeviceSynchronize") : status;
}

static tw_status_t gpu_fetch(tw_bench_target_t *target)
{
    gpu_t *gpu = self(target);
    return check(cudaMemcpy(gpu->host.dst, gpu->dst, gpu->host.dst_bytes, cudaMemcpyDeviceToHost),
                 "copying the result");
}

/* ---- operations --------------------------------------------------------------------------------------------- */

static tw_coll_args_t on_gpu(const gpu_t *gpu, const tw_coll_args_t *args)
{
    tw_coll_args_t there = *args;
    there.segments = gpu->segments;
    there.stream = gpu->stream;
    return there;
}

static tw_status_t gpu_run(tw_bench_target_t *target, const tw_coll_args_t *args, tw_coll_plan_t *plan,
                           char *reason)
{
    gpu_t *gpu = self(target);
    tw_coll_args_t there = on_gpu(gpu, args);
    return tw_bench_run(gpu->coll, &there, plan, reason);
}

static tw_status_t gpu_planned_bytes(tw_bench_target_t *target, const tw_coll_args_t *args, uint64_t *bytes)
{
    gpu_t *gpu = self(target);
    tw_coll_args_t there = on_gpu(gpu, args);
    return tw_coll_planned_inter_node_bytes(gpu->coll, &there, bytes);
}

static uint64_t gpu_nonfinite_blocks(tw_bench_target_t *target)
{
    return tw_coll_nonfinite_blocks(self(target)->coll);
}

static void gpu_destroy(tw_bench_target_t *target)
{
    gpu_t *gpu = self(target);
    tw_coll_destroy(gpu->coll);
    (void)check(cudaFree(gpu->src), "cudaFree");
    (void)check(cudaFree(gpu->dst), "cudaFree");
    if (gpu->stream) {
        (void)check(cudaStreamDestroy(gpu->stream), "cudaStreamDestroy");
    }
    free(gpu->segments);
    free(gpu);
}

/* ---- who has which GPU -------------------------------------------------------------------------------------- */

/* Where a rank runs, as the other ranks see it. */
typedef struct seat {
    uint64_t machine; /* of its boot: nodes of a cluster in a box are on one machine */
    char bus[BUS_BYTES];
} seat_t;

static uint64_t machine_id(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n = file ? fread(text, 1, sizeof(text), file) : 0;
    if (file) {
        fclose(file);
    }
    return XXH3_64bits(text, n);
}

/* The ranks of a machine take its GPUs in turn. */
static tw_status_t take_gpu(const tw_bench_rank_t *rank, const seat_t *seats, seat_t *own)
{
    int device = 0, n_devices = 0;
    for (int r = 0; r < rank->rank; r++) {
        device += seats[r].machine == own->machine;
    }
    tw_status_t status = check(cudaGetDeviceCount(&n_devices), "looking for a GPU");
    if (status == TW_OK && n_devices == 0) {
        tw_error("rank %d: there is no GPU here", rank->rank);
        status = TW_ERR_UNSUPPORTED;
    }
    if (status == TW_OK) {
        status = check(cudaSetDevice(device % n_devices), "cudaSetDevice");
    }
    if (status == TW_OK) {
        status = check(cudaDeviceGetPCIBusId(own->bus, sizeof(own->bus), device % n_devices),
                       "cudaDeviceGetPCIBusId");
    }
    return status;
}

/* Most ranks that share a GPU. A rank without one says so to the others, so that nobody waits for it. */
static tw_status_t find_gpus(tw_bench_rank_t *rank, int *most)
{
    seat_t own = {.machine = machine_id()};
    seat_t *seats = calloc((size_t)rank->world, sizeof(*seats));
    tw_status_t status = seats ? tw_bench_gather(rank, &own, sizeof(own), seats)
                               : tw_bench_no_memory(rank, (size_t)rank->world * sizeof(*seats));
    tw_status_t found = status == TW_OK ? take_gpu(rank, seats, &own) : status;
    if (status == TW_OK) {
        status = tw_bench_gather(rank, &own, sizeof(own), seats);
    }
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

/* ---- the wire ----------------------------------------------------------------------------------------------- */

/* NCCL refuses two ranks on one GPU of one host, unless they say they are on different hosts. In a cluster in a box only
 * sockets go through the shaped links. What the user has set stays. */
static void prepare_nccl(const tw_bench_rank_t *rank, int is_shared)
{
    char name[32];
    snprintf(name, sizeof(name), "rank%d", rank->rank);
    if (is_shared) {
        setenv("NCCL_HOSTID", name, 0);
        setenv("NCCL_MAX_NCHANNELS", "2", 0); /* all ranks' kernels must find room at once */
    }
    if (rank->kind == TW_CLUSTER_NODES) {
        setenv("NCCL_NET", "Socket", 0);
        setenv("NCCL_SOCKET_IFNAME", TW_CLUSTER_DEVICE, 0);
    }
}

static void describe(gpu_t *gpu, const tw_bench_rank_t *rank, int most, int over_nccl)
{
    struct cudaDeviceProp properties;
    char name[NAME_BYTES] = "GPU";
    int device = 0;
    if (cudaGetDevice(&device) == cudaSuccess &&
        cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
        snprintf(name, sizeof(name), "%.*s", NAME_BYTES - 1, properties.name);
    }
    const char *over = over_nccl                                 ? "NCCL"
                       : tw_coll_workspace_mem(gpu->coll) == TW_MEM_HOST ? "the transport, through pinned host memory"
                                                                 : "the transport, straight from GPU memory";
    snprintf(gpu->base.describe, sizeof(gpu->base.describe), "%s, %d rank%s each; over %s", name, most,
             most == 1 ? "" : "s", over);
    tw_info("rank %d: %s", rank->rank, gpu->base.describe);
}

static tw_status_t create_coll(gpu_t *gpu, const tw_bench_rank_t *rank, int over_nccl)
{
    tw_coll_params_t params = {
        .transport = rank->transport,
        .id = GPU_COLL_ID,
        .mem = TW_MEM_CUDA,
        .wire = over_nccl ? TW_COLL_WIRE_NCCL : TW_COLL_WIRE_TRANSPORT,
    };
    tw_status_t status =
        check(cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return status == TW_OK ? tw_coll_create(&params, &gpu->coll) : status;
}

tw_status_t tw_bench_target_cuda(tw_bench_rank_t *rank, tw_bench_target_t **out)
{
    int most = 0;
    tw_status_t status = find_gpus(rank, &most);
    if (status != TW_OK) {
        return status;
    }
    gpu_t *gpu = calloc(1, sizeof(*gpu));
    if (!gpu) {
        return tw_bench_no_memory(rank, sizeof(*gpu));
    }
    tw_bench_wire_t wire = rank->options->wire;
    int over_nccl = wire == TW_BENCH_WIRE_NCCL || (wire == TW_BENCH_WIRE_AUTO && most == 1);
    gpu->base = (tw_bench_target_t){.load = gpu_load,
                                    .poison = gpu_poison,
                                    .run = gpu_run,
                                    .fetch = gpu_fetch,
                                    .planned_bytes = gpu_planned_bytes,
                                    .nonfinite_blocks = gpu_nonfinite_blocks,
                                    .destroy = gpu_destroy,
                                    .is_counted = !over_nccl};
    if (over_nccl) {
        prepare_nccl(rank, most > 1);
    }
    status = create_coll(gpu, rank, over_nccl);
    if (status != TW_OK) {
        gpu_destroy(&gpu->base);
        return status;
    }
    describe(gpu, rank, most, over_nccl);
    *out = &gpu->base;
    return TW_OK;
}

#else

tw_status_t tw_bench_target_cuda(tw_bench_rank_t *rank, tw_bench_target_t **out)
{
    (void)out;
    tw_error("rank %d: --device cuda: no CUDA was found when this was built", rank->rank);
    return TW_ERR_UNSUPPORTED;
}

#endif
