/* Kernels of adamw_delta_encode. */
#include "quant/cuda/launch.cuh"

tw_status_t tw_quant_cuda_run_adamw(const tw_qj_job_t *job, uint32_t grid)
{
    return tw_qk_select_encode<tw_qk_runner, tw_qk_source_adamw>(job, grid);
}
