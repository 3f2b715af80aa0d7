/* Kernels of encode and encode_delta. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_encode(const tw_cuda_job_t *job, uint32_t grid)
{
    if (job->op == TW_CUDA_ENCODE) {
        return tw_kernel_select<tw_kernel_runner, tw_kernel_encode_plain>(job, grid);
    }
    return tw_kernel_select<tw_kernel_runner, tw_kernel_encode_delta>(job, grid);
}
