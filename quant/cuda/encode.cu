/* Kernels of encode and delta_encode. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_encode(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->op == TW_QJ_ENCODE) {
        return tw_qk_select_encode<tw_qk_runner, tw_qk_source_plain>(job, grid);
    }
    return tw_qk_select_encode<tw_qk_runner, tw_qk_source_delta>(job, grid);
}
