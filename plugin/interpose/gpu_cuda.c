/** The CUDA runtime, as gpu.h has it. */
#include "plugin/interpose/gpu.h"

#include <cuda_runtime_api.h>

#include "quant/quant.h"

int tw_ip_gpu_captures(tw_stream_t stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;

    if (cudaStreamIsCapturing((cudaStream_t)stream, &capture) != cudaSuccess) {
        (void)cudaGetLastError(); /* the job shall not find it */
        return 1;
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
        (void)cudaGetLastError(); /* the job shall not find it */
        return TW_IN_PROGRESS;
    }
    return tw_quant_cuda_status(error, "cudaEventElapsedTime");
}
