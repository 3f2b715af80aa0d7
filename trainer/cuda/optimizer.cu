/* Launches the kernels of optimizer.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/optimizer.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_norm_bins(tw_type_t type, const void *values, size_t n, uint64_t *bins,
                              tw_stream_t stream)
{
    return norm_bins(Launcher{stream}, type, values, n, bins);
}

tw_status_t tw_cuda_adamw(const tw_quant_adamw_t *step, const tw_cuda_adamw_tensor_t *tensor,
                          tw_stream_t stream)
{
    return adamw(Launcher{stream}, step, tensor);
}
