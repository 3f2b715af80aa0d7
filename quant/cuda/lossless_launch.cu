/* The kernels of codecs of messages on a GPU. */
#include "quant/cuda/entropy_launch.cuh"

#include "quant/cuda/lossless_select.cuh"

namespace
{

using runner = tw_entropy_runner<tw_lossless_cuda_job_t>;

tw_status_t run(uint32_t kernel, const void *params, uint32_t grid, uint32_t threads, tw_stream_t stream)
{
    const tw_lossless_cuda_job_t *job = (const tw_lossless_cuda_job_t *)params;
    return tw_lossless_select(runner{job, grid, threads, (cudaStream_t)stream},
                              (tw_lossless_cuda_kernel_t)kernel, job->type);
}

tw_status_t load_kernels()
{
    const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};
    for (tw_type_t type : types) {
        for (int kernel = 0; kernel < TW_LOSSLESS_CUDA_KERNELS; kernel++) {
            tw_status_t status =
                tw_lossless_select(runner{NULL, 0, 0, NULL}, (tw_lossless_cuda_kernel_t)kernel, type);
            if (status != TW_OK) {
                return status;
            }
        }
    }
    return TW_OK;
}

} // namespace

extern "C" tw_status_t tw_lossless_cuda_device_create(tw_entropy_cuda_device_t *device)
{
    TW_TRY(tw_entropy_cuda_device_create(device));
    device->run = run;
    return load_kernels();
}
