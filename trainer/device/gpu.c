/* Fills the tables of table.h for a real GPU: the CUDA runtime, the kernels of trainer/cuda, cuBLASLt. */
#include "trainer/device/gpu.h"

#ifdef TW_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "quant/quant.h"
#include "trainer/cuda/archs.h"
#include "trainer/device/choose.h"

typedef struct gpu {
    tw_device_t table; /* first, so that a tw_device_t * can be cast to gpu_t * */
    int index, has_failed;
} gpu_t;

static const tw_device_kernels_t kernels = {
#define KERNEL(name) .name = tw_cuda_##name,
    TW_DEVICE_KERNELS(KERNEL)
#undef KERNEL
};

/** Check a CUDA call. Only the first error is logged: a GPU that has failed fails all later calls, too. */
static tw_status_t gpu_check(tw_device_t *device, cudaError_t error, const char *what)
{
    gpu_t *gpu = (gpu_t *)device;
    if (error != cudaSuccess && gpu->has_failed) {
        (void)cudaGetLastError();
        return TW_ERR_CUDA;
    }
    tw_status_t status = tw_quant_cuda_status(error, what);
    gpu->has_failed |= status == TW_ERR_CUDA;
    return status;
}

static tw_status_t use(tw_device_t *device)
{
    return gpu_check(device, cudaSetDevice(((gpu_t *)device)->index), "cudaSetDevice");
}

static tw_status_t gpu_take(tw_device_t *device, size_t bytes, int pinned, void **out)
{
    return pinned ? gpu_check(device, cudaHostAlloc(out, bytes, cudaHostAllocDefault), "cudaHostAlloc")
                  : gpu_check(device, cudaMalloc(out, bytes), "cudaMalloc");
}

static void gpu_give_back(tw_device_t *device, void *memory, int pinned)
{
    (void)gpu_check(device, pinned ? cudaFreeHost(memory) : cudaFree(memory),
                    pinned ? "cudaFreeHost" : "cudaFree");
}

static int pin(tw_device_t *device, void *start, size_t bytes)
{
    cudaError_t error = cudaHostRegister(start, bytes, cudaHostRegisterDefault);
    (void)device;
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        tw_debug("device: %zu bytes are not pinned: %s", bytes, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

static void unpin(tw_device_t *device, void *start)
{
    (void)gpu_check(device, cudaHostUnregister(start), "cudaHostUnregister");
}

/** Make a stream, which does not wait for the legacy default stream. */
static tw_status_t stream_create(tw_device_t *device, tw_stream_t *out)
{
    return gpu_check(device, cudaStreamCreateWithFlags((cudaStream_t *)out, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags");
}

static void stream_destroy(tw_device_t *device, tw_stream_t stream)
{
    (void)gpu_check(device, cudaStreamDestroy((cudaStream_t)stream), "cudaStreamDestroy");
}

static tw_status_t stream_wait(tw_device_t *device, tw_stream_t stream, tw_device_event_t event)
{
    return gpu_check(device, cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0),
                     "cudaStreamWaitEvent");
}

/** Make an event. A thread that waits for it sleeps, and leaves its core to the communicator's threads. */
static tw_status_t event_create(tw_device_t *device, tw_device_event_t *out)
{
    return gpu_check(
        device, cudaEventCreateWithFlags((cudaEvent_t *)out, cudaEventDisableTiming | cudaEventBlockingSync),
        "cudaEventCreateWithFlags");
}

static void event_destroy(tw_device_t *device, tw_device_event_t event)
{
    (void)gpu_check(device, cudaEventDestroy((cudaEvent_t)event), "cudaEventDestroy");
}

static tw_status_t event_record(tw_device_t *device, tw_device_event_t event, tw_stream_t stream)
{
    return gpu_check(device, cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "cudaEventRecord");
}

static tw_status_t event_wait(tw_device_t *device, tw_device_event_t event)
{
    return gpu_check(device, cudaEventSynchronize((cudaEvent_t)event), "an earlier operation on the GPU");
}

static tw_status_t gpu_copy(tw_device_t *device, void *to, const void *from, size_t bytes, tw_stream_t stream)
{
    return gpu_check(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)stream),
                     "cudaMemcpyAsync");
}

static tw_status_t gpu_zero(tw_device_t *device, void *at, size_t bytes, tw_stream_t stream)
{
    return gpu_check(device, cudaMemsetAsync(at, 0, bytes, (cudaStream_t)stream), "cudaMemsetAsync");
}

static void note_failure(tw_device_t *device)
{
    ((gpu_t *)device)->has_failed = 1;
}

static tw_status_t delta_create(tw_device_t *device, tw_quant_delta_stream_t **out)
{
    (void)device;
    return tw_quant_delta_stream_create(TW_MEM_CUDA, out);
}

static tw_status_t gpu_group(tw_device_t *device, tw_coll_t *parent, const int *ranks, int n_ranks,
                             tw_coll_t **out)
{
    (void)device;
    return tw_coll_group_create_for(parent, TW_MEM_CUDA, ranks, n_ranks, out);
}

static void gpu_destroy(tw_device_t *device)
{
    if (device->products) {
        (void)use(device);
        device->products->destroy(device->products);
    }
    free(device);
}

/* ---- which one ----------------------------------------------------------------------------------------- */

tw_status_t tw_device_gpu_count(int rank, int *n)
{
    cudaError_t error = cudaGetDeviceCount(n);
    if (error == cudaSuccess && *n > 0) {
        return TW_OK;
    }
    (void)cudaGetLastError();
    return tw_fail(TW_ERR_UNSUPPORTED, "rank %d: thinwire.device is cuda, but there is no GPU here: %s", rank,
                   cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice));
}

/** Check that the kernels were compiled for this GPU. */
static tw_status_t check_arch(tw_device_t *device, int rank)
{
    struct cudaDeviceProp of;
    tw_status_t status = tw_cuda_archs_check();
    if (status != TW_ERR_UNSUPPORTED) {
        return status;
    }
    TW_TRY(
        gpu_check(device, cudaGetDeviceProperties(&of, ((gpu_t *)device)->index), "cudaGetDeviceProperties"));
    tw_device_stranger_t gpu = {.name = of.name, .major = of.major, .minor = of.minor};
    gpu.n_archs = tw_cuda_archs(&gpu.archs);
    return tw_device_gpu_refuse(rank, &gpu);
}

tw_status_t tw_device_gpu_open(int rank, int local_rank, tw_device_t **out)
{
    int n, index;
    TW_TRY(tw_device_gpu_count(rank, &n));
    TW_TRY(tw_device_gpu_choose(rank, local_rank, n, &index));
    gpu_t *gpu = calloc(1, sizeof(*gpu));
    TW_FAIL_IF(!gpu, TW_ERR_NO_MEMORY, "rank %d: out of memory for a GPU", rank);
    gpu->index = index;
    gpu->table = (tw_device_t){.kernels = &kernels,
                               .use = use,
                               .alloc = gpu_take,
                               .free = gpu_give_back,
                               .pin = pin,
                               .unpin = unpin,
                               .stream_create = stream_create,
                               .stream_destroy = stream_destroy,
                               .stream_wait = stream_wait,
                               .event_create = event_create,
                               .event_destroy = event_destroy,
                               .event_record = event_record,
                               .event_wait = event_wait,
                               .copy = gpu_copy,
                               .zero = gpu_zero,
                               .note_failure = note_failure,
                               .delta_create = delta_create,
                               .group = gpu_group,
                               .destroy = gpu_destroy};
    tw_status_t status = use(&gpu->table);
    status = status == TW_OK ? check_arch(&gpu->table, rank) : status;
    status = status == TW_OK ? tw_device_products_create(&gpu->table.products) : status;
    if (status != TW_OK) {
        gpu_destroy(&gpu->table);
        return status;
    }
    *out = &gpu->table;
    return TW_OK;
}

#else

tw_status_t tw_device_gpu_count(int rank, int *n)
{
    *n = 0;
    return tw_fail(TW_ERR_UNSUPPORTED,
                   "rank %d: thinwire.device is cuda, but no CUDA was found when this was built", rank);
}

tw_status_t tw_device_gpu_open(int rank, int local_rank, tw_device_t **out)
{
    int n;
    (void)local_rank;
    *out = NULL;
    return tw_device_gpu_count(rank, &n);
}

#endif
