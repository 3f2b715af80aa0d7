/* Launches the kernels of heads.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/heads.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_heads_forward(const tw_cuda_heads_t *heads, void *y, size_t y_stride, tw_stream_t stream)
{
    return heads_forward(Launcher{stream}, heads, y, y_stride);
}

tw_status_t tw_cuda_heads_backward(const tw_cuda_heads_t *heads, void *d, size_t d_stride, float *dgamma,
                                   float *workspace, tw_stream_t stream)
{
    return heads_backward(Launcher{stream}, heads, d, d_stride, dgamma, workspace);
}
