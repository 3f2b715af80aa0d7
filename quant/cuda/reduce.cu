/* Kernels of reduce_encode and reduce_decode. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_reduce(const tw_cuda_job_t *job, uint32_t grid)
{
    if (job->op == TW_CUDA_REDUCE_ENCODE) {
        return tw_kernel_select_reduce_encode<tw_kernel_runner>(job, grid);
    }
    return tw_kernel_select<tw_kernel_runner, tw_kernel_reduce_decode, tw_kernel_sums>(job, grid);
}
