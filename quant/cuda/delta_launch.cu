/* The lossless delta's kernels on a GPU. */
#include "quant/cuda/entropy_launch.cuh"

#include "quant/cuda/delta_select.cuh"

namespace
{

using runner = tw_entropy_runner<tw_delta_cuda_job_t>;

tw_status_t run(uint32_t kernel, const void *job, uint32_t grid, uint32_t threads, tw_stream_t stream)
{
    return tw_delta_select(runner{(const tw_delta_cuda_job_t *)job, grid, threads, (cudaStream_t)stream},
                           (tw_delta_cuda_kernel_t)kernel);
}

} // namespace

extern "C" tw_status_t tw_delta_cuda_device_create(tw_entropy_cuda_device_t *device)
{
    TW_TRY(tw_entropy_cuda_device_create(device));
    device->run = run;
    for (uint32_t kernel = 0; kernel < TW_DELTA_CUDA_KERNELS; kernel++) {
        TW_TRY(run(kernel, NULL, 0, 0, NULL));
    }
    return TW_OK;
}
