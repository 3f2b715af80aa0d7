/* Sums and copies of plain tensors. A thread takes 8 neighbouring elements at a time where everything is aligned to 16
 * bytes, else one; a row of the grid is one segment. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "collectives/gpu_sum.h"
#include "quant/quant.h"

#define THREADS 256
#define OCTET 8
#define MAX_SEGMENTS 64 /* of a launch: they travel as kernel parameters */
#define MAX_BLOCKS 1024 /* of a segment: enough for every GPU, each takes several turns */

namespace
{

struct Sum {
    tw_gpu_sum_segment_t segments[MAX_SEGMENTS];
    size_t stride;
    int n_inputs;
    float factor;
};

__device__ bool is_aligned(const void *a, const void *b, size_t stride)
{
    return (((size_t)a | (size_t)b | stride) & 15) == 0;
}

/* ---- elements -------------------------------------------------------------------------------------------- */

__device__ float to_float(float x)
{
    return x;
}

__device__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ float to_float(__half x)
{
    return __half2float(x);
}

__device__ void from_float(float x, float *to)
{
    *to = x;
}

__device__ void from_float(float x, __nv_bfloat16 *to)
{
    *to = __float2bfloat16_rn(x);
}

__device__ void from_float(float x, __half *to)
{
    *to = __float2half_rn(x);
}

/* Eight elements in one register image: 16 or 32 bytes. */
template <class T>
union Octet {
    T elems[OCTET];
    uint4 words[sizeof(T) * OCTET / 16];
    __device__ Octet()
    {
    }
};

template <class T>
__device__ Octet<T> load(const T *from)
{
    Octet<T> octet;
#pragma unroll
    for (size_t i = 0; i < sizeof(T) * OCTET / 16; i++)
        octet.words[i] = ((const uint4 *)from)[i];
    return octet;
}

template <class T>
__device__ void store(T *to, const Octet<T> &octet)
{
#pragma unroll
    for (size_t i = 0; i < sizeof(T) * OCTET / 16; i++)
        ((uint4 *)to)[i] = octet.words[i];
}

/* ---- sums ------------------------------------------------------------------------------------------------ */

template <class In, class Out>
__device__ void sum_octet(const Sum &sum, const tw_gpu_sum_segment_t &segment, size_t first)
{
    float acc[OCTET];
    Octet<Out> out;
    Octet<In> in = load((const In *)segment.src + first);
#pragma unroll
    for (int i = 0; i < OCTET; i++)
        acc[i] = to_float(in.elems[i]);
    for (int k = 1; k < sum.n_inputs; k++) {
        in = load((const In *)((const char *)segment.src + (size_t)k * sum.stride) + first);
#pragma unroll
        for (int i = 0; i < OCTET; i++)
            acc[i] += to_float(in.elems[i]);
    }
#pragma unroll
    for (int i = 0; i < OCTET; i++)
        from_float(acc[i] * sum.factor, &out.elems[i]);
    store((Out *)segment.dst + first, out);
}

template <class In, class Out>
__device__ void sum_element(const Sum &sum, const tw_gpu_sum_segment_t &segment, size_t index)
{
    float acc = to_float(((const In *)segment.src)[index]);
    for (int k = 1; k < sum.n_inputs; k++)
        acc += to_float(((const In *)((const char *)segment.src + (size_t)k * sum.stride))[index]);
    from_float(acc * sum.factor, (Out *)segment.dst + index);
}

template <class In, class Out>
__global__ void sum_kernel(const __grid_constant__ Sum sum)
{
    const tw_gpu_sum_segment_t &segment = sum.segments[blockIdx.y];
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x, n_threads = (size_t)gridDim.x * THREADS;
    size_t n_octets = is_aligned(segment.src, segment.dst, sum.stride) ? segment.n_elems / OCTET : 0;
    for (size_t i = thread; i < n_octets; i += n_threads)
        sum_octet<In, Out>(sum, segment, i * OCTET);
    for (size_t i = n_octets * OCTET + thread; i < segment.n_elems; i += n_threads)
        sum_element<In, Out>(sum, segment, i);
}

/* Elements of a size, whatever they mean. */
template <class T>
__global__ void copy_kernel(const __grid_constant__ Sum sum)
{
    const tw_gpu_sum_segment_t &segment = sum.segments[blockIdx.y];
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x, n_threads = (size_t)gridDim.x * THREADS;
    size_t per_quad = 16 / sizeof(T);
    size_t n_quads = is_aligned(segment.src, segment.dst, 0) ? segment.n_elems / per_quad : 0;
    for (size_t i = thread; i < n_quads; i += n_threads)
        ((uint4 *)segment.dst)[i] = ((const uint4 *)segment.src)[i];
    for (size_t i = n_quads * per_quad + thread; i < segment.n_elems; i += n_threads)
        ((T *)segment.dst)[i] = ((const T *)segment.src)[i];
}

/* ---- launches -------------------------------------------------------------------------------------------- */

typedef void (*kernel_t)(Sum);

kernel_t find_copy(tw_type_t type)
{
    switch (tw_type_bytes(type)) {
    case 1:
        return copy_kernel<uint8_t>;
    case 2:
        return copy_kernel<uint16_t>;
    default:
        return copy_kernel<uint32_t>;
    }
}

kernel_t find_kernel(const tw_gpu_sum_t *sum)
{
    bool widen = sum->out == TW_TYPE_FP32;
    if (tw_gpu_sum_is_copy(sum))
        return find_copy(sum->in);
    if (sum->out != sum->in && !widen)
        return nullptr;
    switch (sum->in) {
    case TW_TYPE_FP32:
        return sum_kernel<float, float>;
    case TW_TYPE_BF16:
        return widen ? sum_kernel<__nv_bfloat16, float> : sum_kernel<__nv_bfloat16, __nv_bfloat16>;
    case TW_TYPE_FP16:
        return widen ? sum_kernel<__half, float> : sum_kernel<__half, __half>;
    default:
        return nullptr;
    }
}

tw_status_t launch(kernel_t kernel, Sum *params, size_t n_segments, tw_stream_t stream)
{
    size_t most = 0;
    for (size_t s = 0; s < n_segments; s++)
        most = params->segments[s].n_elems > most ? params->segments[s].n_elems : most;
    size_t blocks = (most + (size_t)THREADS * OCTET - 1) / ((size_t)THREADS * OCTET);
    if (blocks == 0)
        return TW_OK;
    dim3 grid((unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), (unsigned)n_segments);
    void *args[] = {params};
    return tw_quant_cuda_status(
        cudaLaunchKernel((const void *)kernel, grid, dim3(THREADS), args, 0, (cudaStream_t)stream),
        "launch of a sum");
}

} // namespace

tw_status_t tw_gpu_sum_cuda(const tw_gpu_sum_t *sum, tw_stream_t stream)
{
    kernel_t kernel = find_kernel(sum);
    Sum params;
    if (kernel == nullptr) {
        tw_error("cannot sum %s into %s", tw_type_name(sum->in), tw_type_name(sum->out));
        return TW_ERR_INVALID;
    }
    params.stride = sum->stride;
    params.n_inputs = sum->n_inputs;
    params.factor = sum->factor;
    tw_status_t status = TW_OK;
    for (size_t first = 0; first < sum->n_segments && status == TW_OK; first += MAX_SEGMENTS) {
        size_t left = sum->n_segments - first, n = left < MAX_SEGMENTS ? left : MAX_SEGMENTS;
        for (size_t s = 0; s < n; s++)
            params.segments[s] = sum->segments[first + s];
        status = launch(kernel, &params, n, stream);
    }
    return status;
}
