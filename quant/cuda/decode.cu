/* Kernels of decode, decode_add and decode_apply. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_decode(const tw_cuda_job_t *job, uint32_t grid)
{
    if (job->op == TW_CUDA_DECODE) {
        return tw_kernel_select<tw_kernel_runner, tw_kernel_decode_store>(job, grid);
    }
    return tw_kernel_select<tw_kernel_runner, tw_kernel_decode_apply>(job, grid);
}
