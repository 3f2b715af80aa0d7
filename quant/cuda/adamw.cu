/* Kernels of adamw_encode_delta. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_adamw(const tw_cuda_job_t *job, uint32_t grid)
{
    return tw_kernel_select<tw_kernel_runner, tw_kernel_encode_adamw>(job, grid);
}
