/** The table of a real GPU, made with the CUDA runtime. */
#include "collectives/gpu/gpu.h"

#ifdef TW_HAVE_CUDA

#include <cuda_runtime_api.h>

static tw_status_t cuda_current(const tw_gpu_device_t *device, int *index)
{
    (void)device;
    return tw_quant_cuda_status(cudaGetDevice(index), "cudaGetDevice");
}

static tw_status_t cuda_use(const tw_gpu_device_t *device, int index)
{
    (void)device;
    return tw_quant_cuda_status(cudaSetDevice(index), "cudaSetDevice");
}

/** Exchange this thread's capture mode. While a program captures a graph in global mode, no thread may
 *  allocate or poll. The calls here belong to no graph, so they use the relaxed mode. */
static void exchange_mode(enum cudaStreamCaptureMode *mode)
{
    (void)cudaThreadExchangeStreamCaptureMode(mode);
}

static tw_status_t cuda_alloc(const tw_gpu_device_t *device, size_t bytes, int pinned, void **out)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    (void)device;
    exchange_mode(&mode);
    cudaError_t error = pinned ? cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped)
                               : cudaMalloc(out, bytes);
    exchange_mode(&mode);
    return tw_quant_cuda_status(error, pinned ? "cudaHostAlloc" : "cudaMalloc");
}

static void cuda_free(const tw_gpu_device_t *device, void *memory, int pinned)
{
    (void)device;
    (void)tw_quant_cuda_status(pinned ? cudaFreeHost(memory) : cudaFree(memory),
                               pinned ? "cudaFreeHost" : "cudaFree");
}

/** Make a stream with priority over the caller's streams. It does not wait for the legacy default stream. */
static tw_status_t cuda_stream_create(const tw_gpu_device_t *device, tw_stream_t *out)
{
    int least = 0, greatest = 0;
    tw_status_t status = tw_quant_cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                              "cudaDeviceGetStreamPriorityRange");

    (void)device;
    if (status != TW_OK) {
        return status;
    }
    return tw_quant_cuda_status(
        cudaStreamCreateWithPriority((cudaStream_t *)out, cudaStreamNonBlocking, greatest),
        "cudaStreamCreateWithPriority");
}

static void cuda_stream_destroy(const tw_gpu_device_t *device, tw_stream_t stream)
{
    (void)device;
    (void)tw_quant_cuda_status(cudaStreamDestroy((cudaStream_t)stream), "cudaStreamDestroy");
}

static tw_status_t cuda_stream_wait(const tw_gpu_device_t *device, tw_stream_t stream, tw_gpu_event_t event)
{
    (void)device;
    return tw_quant_cuda_status(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0),
                                "cudaStreamWaitEvent");
}

static tw_status_t cuda_event_create(const tw_gpu_device_t *device, tw_gpu_event_t *out)
{
    (void)device;
    return tw_quant_cuda_status(cudaEventCreateWithFlags((cudaEvent_t *)out, cudaEventDisableTiming),
                                "cudaEventCreateWithFlags");
}

static void cuda_event_destroy(const tw_gpu_device_t *device, tw_gpu_event_t event)
{
    (void)device;
    (void)tw_quant_cuda_status(cudaEventDestroy((cudaEvent_t)event), "cudaEventDestroy");
}

static tw_status_t cuda_event_record(const tw_gpu_device_t *device, tw_gpu_event_t event, tw_stream_t stream)
{
    (void)device;
    return tw_quant_cuda_status(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "cudaEventRecord");
}

static tw_status_t cuda_copy(const tw_gpu_device_t *device, void *to, const void *from, size_t bytes,
                             tw_stream_t stream)
{
    (void)device;
    return tw_quant_cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)stream),
                                "cudaMemcpyAsync");
}

static tw_status_t cuda_event_query(const tw_gpu_device_t *device, tw_gpu_event_t event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    (void)device;
    exchange_mode(&mode);
    cudaError_t error = cudaEventQuery((cudaEvent_t)event);
    exchange_mode(&mode);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* else the program would find this error later and take it for its own */
        return TW_IN_PROGRESS;
    }
    return tw_quant_cuda_status(error, "an earlier operation on the GPU");
}

/** A transport's own copies have ended, because it has waited for their stream. But a network card's write
 *  may still be on its way to the GPU when the host learns that the write has ended. Some NVIDIA GPUs order
 *  such writes before work that is launched later (the attribute says OWNER or more). Others must be told to
 *  flush. A GPU that can do neither does not let network cards access its memory. */
static tw_status_t cuda_fence(const tw_gpu_device_t *device)
{
    int current = 0, ordering = 0, options = 0;

    (void)device;
    TW_TRY(tw_quant_cuda_status(cudaGetDevice(&current), "cudaGetDevice"));
    TW_TRY(tw_quant_cuda_status(
        cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, current),
        "cudaDevAttrGPUDirectRDMAWritesOrdering"));
    TW_TRY(tw_quant_cuda_status(
        cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, current),
        "cudaDevAttrGPUDirectRDMAFlushWritesOptions"));
    if (ordering >= cudaGPUDirectRDMAWritesOrderingOwner ||
        !(options & cudaFlushGPUDirectRDMAWritesOptionHost)) {
        return TW_OK;
    }
    return tw_quant_cuda_status(
        cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                           cudaFlushGPUDirectRDMAWritesToOwner),
        "cudaDeviceFlushGPUDirectRDMAWrites");
}

static tw_status_t cuda_capture_id(const tw_gpu_device_t *device, tw_stream_t stream, uint64_t *id)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
#if CUDART_VERSION >= 13000
    cudaError_t error =
        cudaStreamGetCaptureInfo((cudaStream_t)stream, &capture, &number, NULL, NULL, NULL, NULL);
#else
    cudaError_t error =
        cudaStreamGetCaptureInfo_v2((cudaStream_t)stream, &capture, &number, NULL, NULL, NULL);
#endif

    (void)device;
    *id = capture == cudaStreamCaptureStatusActive ? number : 0;
    return tw_quant_cuda_status(error, "cudaStreamGetCaptureInfo");
}

static tw_status_t cuda_enqueue(const tw_gpu_device_t *device, tw_gpu_kernels_fn_t fn, const void *arg,
                                size_t arg_bytes, tw_stream_t stream)
{
    (void)device;
    (void)arg_bytes;
    return fn(arg, stream);
}

static tw_status_t cuda_sum(const tw_gpu_device_t *device, const tw_gpu_sum_t *sum, tw_stream_t stream)
{
    (void)device;
    return tw_gpu_sum_cuda(sum, stream);
}

static const tw_gpu_device_t cuda_device = {
    .mem = TW_MEM_CUDA,
    .wire = TW_MEM_CUDA,
    .current = cuda_current,
    .use = cuda_use,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_wait = cuda_stream_wait,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .copy = cuda_copy,
    .event_query = cuda_event_query,
    .fence = cuda_fence,
    .capture_id = cuda_capture_id,
    .enqueue = cuda_enqueue,
    .sum = cuda_sum,
};

const tw_gpu_device_t *tw_gpu_device_cuda(void)
{
    int n_devices = 0;
    cudaError_t error = cudaGetDeviceCount(&n_devices);

    if (error == cudaSuccess && n_devices > 0) {
        return &cuda_device;
    }
    (void)cudaGetLastError();
    return tw_fail(NULL, "there is no GPU here: %s",
                   cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice));
}

#else

const tw_gpu_device_t *tw_gpu_device_cuda(void)
{
    return tw_fail(NULL, "collectives on GPU memory are not there: no CUDA was found when this was built");
}

#endif
