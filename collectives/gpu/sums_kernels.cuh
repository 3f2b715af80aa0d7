/* The kernels of sums_cuda.cu as functions of one thread, and the geometry of their launches. Tests run
 * these functions on a CPU. If everything is aligned to 16 bytes, a thread takes 8 neighbouring elements at
 * a time, else one. A row of the grid is one segment. */
#pragma once

/* This comes first: after CUDA's headers, its variables `half` would shadow their type `half`. */
#include "quant/arithmetic/float.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include "collectives/gpu/sums.h"

#ifdef __CUDACC__
#define TW_SUM_FN __host__ __device__ __forceinline__
#else
#define TW_SUM_FN inline
#endif

namespace tw_gpu_sum_kernels
{

constexpr unsigned threads = 256;
constexpr size_t octet_elems = 8;
/* the most segments of a launch: segments are kernel parameters, of limited size */
constexpr size_t max_segments = 64;
/* the most blocks of a segment: enough for every GPU; each block then takes several turns */
constexpr size_t max_blocks = 1024;

struct Params {
    tw_gpu_sum_segment_t segments[max_segments];
    size_t stride;
    int n_inputs;
    float factor, limit;
};

/** The position of a thread in its launch. */
struct Place {
    unsigned thread, block, n_blocks, segment;
};

TW_SUM_FN size_t first_index(const Place &place)
{
    return (size_t)place.block * threads + place.thread;
}

TW_SUM_FN size_t index_step(const Place &place)
{
    return (size_t)place.n_blocks * threads;
}

/** Returns the number of blocks for the longest segment; 0 if there is nothing to do. */
inline size_t block_count(const Params &params, size_t n_segments)
{
    size_t most = 0, per_block = threads * octet_elems;
    for (size_t s = 0; s < n_segments; s++) {
        most = params.segments[s].n_elems > most ? params.segments[s].n_elems : most;
    }
    size_t blocks = most / per_block + (most % per_block != 0);
    return blocks < max_blocks ? blocks : max_blocks;
}

TW_SUM_FN bool is_aligned(const void *a, const void *b, size_t stride)
{
    return (((size_t)a | (size_t)b | stride) & 15) == 0;
}

/* ---- elements ------------------------------------------------------------------------------------------ */

TW_SUM_FN float to_float(float x)
{
    return x;
}

TW_SUM_FN float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

TW_SUM_FN float to_float(__half x)
{
    return __half2float(x);
}

TW_SUM_FN unsigned bits(__nv_bfloat16 x)
{
    return __bfloat16_as_ushort(x);
}

TW_SUM_FN unsigned bits(__half x)
{
    return __half_as_ushort(x);
}

/* These functions return the CPU's NaN. A GPU's own conversions would return other ones. */

TW_SUM_FN float to_float_exact(float x)
{
    return x;
}

TW_SUM_FN float to_float_exact(__nv_bfloat16 x)
{
    return tw_float_from_bf16((uint16_t)bits(x));
}

TW_SUM_FN float to_float_exact(__half x)
{
    return tw_float_from_fp16((uint16_t)bits(x));
}

TW_SUM_FN void from_float(float x, float *to)
{
    *to = x;
}

TW_SUM_FN void from_float(float x, __nv_bfloat16 *to)
{
    *to = x == x ? __float2bfloat16_rn(x) : __ushort_as_bfloat16(tw_float_to_bf16(x));
}

TW_SUM_FN void from_float(float x, __half *to)
{
    *to = x == x ? __float2half_rn(x) : __ushort_as_half(tw_float_to_fp16(x));
}

/** Eight elements in registers: 16 or 32 bytes, moved 16 bytes at a time. */
template <class T>
union Octet {
    uint4 words[sizeof(T) * octet_elems / 16];
    T elems[octet_elems];
    TW_SUM_FN Octet()
    {
    }
};

template <class T>
TW_SUM_FN void load(const T *from, Octet<T> *octet)
{
    for (size_t i = 0; i < sizeof(T) * octet_elems / 16; i++) {
        octet->words[i] = ((const uint4 *)from)[i];
    }
}

/** Store a value by one access. The compiler would split a plain store of a structure. */
template <class T>
TW_SUM_FN void put(T *to, T value)
{
#ifdef __CUDA_ARCH__
    __stcg(to, value);
#else
    *to = value;
#endif
}

TW_SUM_FN void store(const float *v, float *to)
{
    put((float4 *)to, float4{v[0], v[1], v[2], v[3]});
    put((float4 *)to + 1, float4{v[4], v[5], v[6], v[7]});
}

template <class T>
TW_SUM_FN unsigned pair(float low, float high)
{
    T a, b;
    from_float(low, &a);
    from_float(high, &b);
    return bits(a) | bits(b) << 16;
}

template <class T>
TW_SUM_FN void store(const float *v, T *to)
{
    put((uint4 *)to,
        uint4{pair<T>(v[0], v[1]), pair<T>(v[2], v[3]), pair<T>(v[4], v[5]), pair<T>(v[6], v[7])});
}

template <class In>
TW_SUM_FN const In *input(const Params &params, const tw_gpu_sum_segment_t &segment, int k)
{
    return (const In *)((const char *)segment.src + (size_t)k * params.stride);
}

/** Multiply a sum by the factor, and clip a finite result to the limit. */
TW_SUM_FN float scaled(float sum, const Params &params)
{
    float x = sum * params.factor, size = fabsf(x);
    return size > params.limit && size < INFINITY ? copysignf(params.limit, x) : x;
}

/** Make the scaled sum again with the CPU's NaN. Called if the fast way gave a NaN. */
template <class In>
TW_SUM_FN float exact(const Params &params, const tw_gpu_sum_segment_t &segment, size_t index)
{
    float acc = to_float_exact(input<In>(params, segment, 0)[index]);
    for (int k = 1; k < params.n_inputs; k++) {
        acc = tw_float_add_nan(acc, to_float_exact(input<In>(params, segment, k)[index]));
    }
    return acc == acc ? scaled(acc, params) : tw_float_add_nan(acc, 0.0f);
}

/* ---- bodies -------------------------------------------------------------------------------------------- */

template <class In, class Out>
struct SumBody {
    static TW_SUM_FN void octet(const Params &params, const tw_gpu_sum_segment_t &segment, size_t first)
    {
        float acc[octet_elems];
        Octet<In> in;
        load(input<In>(params, segment, 0) + first, &in);
        for (size_t i = 0; i < octet_elems; i++) {
            acc[i] = to_float(in.elems[i]);
        }
        for (int k = 1; k < params.n_inputs; k++) {
            load(input<In>(params, segment, k) + first, &in);
            for (size_t i = 0; i < octet_elems; i++) {
                acc[i] += to_float(in.elems[i]);
            }
        }
        for (size_t i = 0; i < octet_elems; i++) {
            acc[i] = scaled(acc[i], params);
            if (acc[i] != acc[i]) {
                acc[i] = exact<In>(params, segment, first + i);
            }
        }
        store(acc, (Out *)segment.dst + first);
    }

    static TW_SUM_FN void element(const Params &params, const tw_gpu_sum_segment_t &segment, size_t index)
    {
        float acc = to_float(input<In>(params, segment, 0)[index]);
        for (int k = 1; k < params.n_inputs; k++) {
            acc += to_float(input<In>(params, segment, k)[index]);
        }
        acc = scaled(acc, params);
        from_float(acc == acc ? acc : exact<In>(params, segment, index), (Out *)segment.dst + index);
    }

    static TW_SUM_FN void run(const Params &params, const Place &place)
    {
        const tw_gpu_sum_segment_t &segment = params.segments[place.segment];
        bool aligned = is_aligned(segment.src, segment.dst, params.stride);
        size_t n_octets = aligned ? segment.n_elems / octet_elems : 0;
        for (size_t i = first_index(place); i < n_octets; i += index_step(place)) {
            octet(params, segment, i * octet_elems);
        }
        for (size_t i = n_octets * octet_elems + first_index(place); i < segment.n_elems;
             i += index_step(place)) {
            element(params, segment, i);
        }
    }
};

/** Copy elements of one size as bits, whatever their type is. */
template <class T>
struct CopyBody {
    static TW_SUM_FN void run(const Params &params, const Place &place)
    {
        const tw_gpu_sum_segment_t &segment = params.segments[place.segment];
        size_t per_quad = 16 / sizeof(T);
        size_t n_quads = is_aligned(segment.src, segment.dst, 0) ? segment.n_elems / per_quad : 0;
        for (size_t i = first_index(place); i < n_quads; i += index_step(place)) {
            ((uint4 *)segment.dst)[i] = ((const uint4 *)segment.src)[i];
        }
        for (size_t i = n_quads * per_quad + first_index(place); i < segment.n_elems;
             i += index_step(place)) {
            ((T *)segment.dst)[i] = ((const T *)segment.src)[i];
        }
    }
};

/* ---- choosing ------------------------------------------------------------------------------------------ */

/** Returns the kernel that copies elements of a type's size. LAUNCHER::of<BODY>(): the kernel of a body. */
template <class LAUNCHER>
typename LAUNCHER::pointer select_copy(tw_type_t type)
{
    switch (tw_type_bytes(type)) {
    case 1:
        return LAUNCHER::template of<CopyBody<unsigned char>>();
    case 2:
        return LAUNCHER::template of<CopyBody<unsigned short>>();
    default:
        return LAUNCHER::template of<CopyBody<unsigned>>();
    }
}

template <class LAUNCHER>
typename LAUNCHER::pointer select(const tw_gpu_sum_t *sum)
{
    bool widen = sum->out == TW_TYPE_FP32;
    if (tw_gpu_sum_is_copy(sum)) {
        return select_copy<LAUNCHER>(sum->in);
    }
    if (sum->out != sum->in && !widen) {
        return nullptr;
    }
    switch (sum->in) {
    case TW_TYPE_FP32:
        return LAUNCHER::template of<SumBody<float, float>>();
    case TW_TYPE_BF16:
        return widen ? LAUNCHER::template of<SumBody<__nv_bfloat16, float>>()
                     : LAUNCHER::template of<SumBody<__nv_bfloat16, __nv_bfloat16>>();
    case TW_TYPE_FP16:
        return widen ? LAUNCHER::template of<SumBody<__half, float>>()
                     : LAUNCHER::template of<SumBody<__half, __half>>();
    default:
        return nullptr;
    }
}

/** Call launch(params, n_segments, blocks) for groups of at most max_segments, until one fails. */
template <class FN>
tw_status_t for_each_launch(const tw_gpu_sum_t *sum, FN launch)
{
    Params params;
    tw_status_t status = TW_OK;
    params.stride = sum->stride;
    params.n_inputs = sum->n_inputs;
    params.factor = sum->factor;
    params.limit = sum->limit;
    for (size_t first = 0; first < sum->n_segments && status == TW_OK; first += max_segments) {
        size_t left = sum->n_segments - first, n = left < max_segments ? left : max_segments;
        for (size_t s = 0; s < n; s++) {
            params.segments[s] = sum->segments[first + s];
        }
        size_t blocks = block_count(params, n);
        if (blocks > 0) {
            status = launch(params, n, blocks);
        }
    }
    return status;
}

} // namespace tw_gpu_sum_kernels
