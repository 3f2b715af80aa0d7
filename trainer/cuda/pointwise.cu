/* Launches of pointwise.cuh. */
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

tw_status_t tw_cuda_add(tw_type_t type, const void *a, const void *b, size_t n, void *y, tw_stream_t stream)
{
    return add(Launcher{stream}, type, a, b, n, y);
}

tw_status_t tw_cuda_scale(tw_type_t type, float factor, size_t n, void *x, tw_stream_t stream)
{
    return scale(Launcher{stream}, type, factor, n, x);
}

tw_status_t tw_cuda_accumulate(tw_type_t type, const void *x, size_t n, float *y, tw_stream_t stream)
{
    return accumulate(Launcher{stream}, type, x, n, y);
}

tw_status_t tw_cuda_widen(const uint16_t *x, size_t n, float *y, tw_stream_t stream)
{
    return widen(Launcher{stream}, x, n, y);
}

tw_status_t tw_cuda_narrow(const float *x, size_t n, float factor, uint16_t *y, tw_stream_t stream)
{
    return narrow(Launcher{stream}, x, n, factor, y);
}
