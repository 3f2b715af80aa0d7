/* Kernels of reduce_encode and reduce_decode. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_reduce(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->op == TW_QJ_REDUCE_ENCODE) {
        return tw_qk_select_reduce_encode<tw_qk_runner>(job, grid);
    }
    return tw_qk_select_reduce_decode<tw_qk_runner>(job, grid);
}
