/* Launches the kernels of pointwise.cuh. */
#include "trainer/cuda/launch.cuh"

#include "trainer/cuda/cuda.h"
#include "trainer/cuda/pointwise.cuh"

using namespace tw_trainer_kernels;

tw_status_t tw_cuda_gelu_forward(tw_type_t type, const void *x, size_t n, void *y, tw_stream_t stream)
{
    return gelu_forward(Launcher{stream}, type, x, n, y);
}

tw_status_t tw_cuda_gelu_backward(tw_type_t type, const void *x, size_t n, void *d, tw_stream_t stream)
{
    return gelu_backward(Launcher{stream}, type, x, n, d);
}

tw_status_t tw_cuda_swiglu_forward(tw_type_t type, const void *gate, const void *up, size_t n, void *y,
                                   tw_stream_t stream)
{
    return swiglu_forward(Launcher{stream}, type, gate, up, n, y);
}

tw_status_t tw_cuda_swiglu_backward(tw_type_t type, const void *gate, const void *up, size_t n, void *dy,
                                    void *d_gate, tw_stream_t stream)
{
    return swiglu_backward(Launcher{stream}, type, gate, up, n, dy, d_gate);
}

tw_status_t tw_cuda_narrow(const float *x, size_t n, float factor, uint16_t *y, tw_stream_t stream)
{
    return narrow(Launcher{stream}, x, n, factor, y);
}
