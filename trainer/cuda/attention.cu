/* Launches the kernels of attention.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/attention.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_attention_forward(const tw_cuda_attention_t *attention, void *y, size_t y_stride,
                                      tw_stream_t stream)
{
    return attention_forward(Launcher{stream}, attention, y, y_stride);
}

tw_status_t tw_cuda_attention_backward(const tw_cuda_attention_t *attention,
                                       const tw_cuda_attention_gradients_t *gradients, tw_stream_t stream)
{
    return attention_backward(Launcher{stream}, attention, gradients);
}
