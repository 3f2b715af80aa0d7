/** Implements gpu.h with the CUDA runtime. */
#include "plugin/interpose/gpu.h"

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "quant/quant.h"

/** CUDA 12.1. Older toolkits and drivers refuse kernels with more than 4 KB of parameters, as in quant/. */
#define LEAST_DRIVER 12010
_Static_assert(CUDART_VERSION >= LEAST_DRIVER, "kernels with more than 4 KB of parameters need CUDA 12.1");

static int works;

static void gpu_probe(void)
{
    int driver = 0, runtime = 0, device = 0;
    cudaError_t error = cudaDriverGetVersion(&driver);
    error = error == cudaSuccess ? cudaRuntimeGetVersion(&runtime) : error;
    error = error == cudaSuccess ? cudaGetDevice(&device) : error;
    works = error == cudaSuccess && driver / 1000 >= runtime / 1000 && driver >= LEAST_DRIVER;
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* clear the error, which the job must not see */
        tw_error("nccl: nothing can be quantized here: CUDA: %s", cudaGetErrorString(error));
    } else if (!works) {
        tw_error("nccl: nothing can be quantized here: built with CUDA %d.%d, and the driver is for %d.%d "
                 "(12.1 is the least)",
                 runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    }
}

int tw_ip_gpu_works(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, gpu_probe);
    return works;
}

int tw_ip_gpu_device(void)
{
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
        (void)cudaGetLastError(); /* clear the error, which the job must not see */
        return 0;
    }
    return device;
}

int tw_ip_gpu_captures(tw_stream_t stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing((cudaStream_t)stream, &capture) != cudaSuccess) {
        (void)cudaGetLastError(); /* clear the error, which the job must not see */
        return 0;
    }
    return capture != cudaStreamCaptureStatusNone;
}

tw_status_t tw_ip_gpu_record(void *event, tw_stream_t stream)
{
    return tw_quant_cuda_status(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "cudaEventRecord");
}

tw_status_t tw_ip_gpu_mark_create(tw_ip_mark_t *out)
{
    return tw_quant_cuda_status(cudaEventCreate((cudaEvent_t *)out), "cudaEventCreate");
}

void tw_ip_gpu_mark_destroy(tw_ip_mark_t mark)
{
    (void)tw_quant_cuda_status(cudaEventDestroy((cudaEvent_t)mark), "cudaEventDestroy");
}

tw_status_t tw_ip_gpu_mark_put(tw_ip_mark_t mark, tw_stream_t stream)
{
    return tw_ip_gpu_record(mark, stream);
}

tw_status_t tw_ip_gpu_mark_sec(tw_ip_mark_t from, tw_ip_mark_t to, double *sec)
{
    float ms = 0;
    cudaError_t error = cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to);
    *sec = (double)ms * 1e-3;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* clear the error, which the job must not see */
        return TW_IN_PROGRESS;
    }
    return tw_quant_cuda_status(error, "cudaEventElapsedTime");
}
