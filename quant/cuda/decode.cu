/* Kernels of decode, decode_add and decode_apply. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_decode(const tw_qj_job_t *job, uint32_t grid)
{
    if (job->op == TW_QJ_DECODE) {
        return tw_qk_select_decode<tw_qk_runner, tw_qk_sink_store>(job, grid);
    }
    return tw_qk_select_decode<tw_qk_runner, tw_qk_sink_apply>(job, grid);
}
