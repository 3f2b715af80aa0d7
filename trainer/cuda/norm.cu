/* Launches the kernels of norm.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/norm.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_norm_forward(const tw_cuda_norm_t *norm, void *y, tw_stream_t stream)
{
    return norm_forward(Launcher{stream}, norm, y);
}

tw_status_t tw_cuda_norm_backward(const tw_cuda_norm_t *norm, const tw_cuda_norm_gradients_t *gradients,
                                  tw_stream_t stream)
{
    return norm_backward(Launcher{stream}, norm, gradients);
}
