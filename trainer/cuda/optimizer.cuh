/** The norm of gradients and AdamW. Include device.cuh, or a test's replacement, first. */
#pragma once

#include "quant/arithmetic/adamw.h"
#include "trainer/cuda/optimizer.h"
#include "trainer/cuda/pointwise.cuh"

namespace tw_trainer_kernels
{

/* ---- norm ---------------------------------------------------------------------------------------------- */

constexpr uint32_t norm_bins_count = TW_CUDA_NORM_BINS, last_bin = norm_bins_count - 1;
/* Most bf16 elements of a block. Squares are below 2^16 and 32 lanes have 32-bit bins, so 2^21 would fit. */
constexpr size_t bin_elems_max = (size_t)1 << 20;
/* Most fp32 elements of a block: their squares are below 2^48, and bins have 64 bits. */
constexpr size_t wide_bin_elems_max = (size_t)1 << 15;

struct NormBinArgs {
    const uint16_t *values;
    size_t n;
    uint64_t *bins;
};

/** Kernel: bf16 values -> bins. Each lane number has separate bins, in one bank of shared memory:
 *  neighbouring elements mostly have the same exponent, and lanes that add to one bin would wait for each
 *  other. An element costs 2 bytes and an atomic addition in shared memory. A multiprocessor makes 32
 *  additions a clock, while memory delivers 8 elements. 32 KB of shared memory, fewer than 40 registers:
 *  seven blocks per multiprocessor. */
struct NormBins {
    static TW_DEVICE void count(uint32_t *bins, uint32_t bits)
    {
        const uint32_t exponent = bits >> 7 & 0xff;
        const uint32_t mantissa = (bits & 0x7f) | (exponent > 0 ? 0x80u : 0);
        atomicAdd(&bins[exponent * warp_lanes], exponent < last_bin ? mantissa * mantissa : 1u);
    }

    static TW_DEVICE void run(const NormBinArgs &a)
    {
        __shared__ uint32_t bins[norm_bins_count * warp_lanes];
        const size_t thread = (size_t)blockIdx.x * threads + threadIdx.x, step = (size_t)gridDim.x * threads;
        const size_t n_octets = (size_t)a.values % 16 == 0 ? a.n / octet_elems : 0;
        const uint32_t lane = threadIdx.x % warp_lanes;
        for (uint32_t i = threadIdx.x; i < norm_bins_count * warp_lanes; i += threads) {
            bins[i] = 0;
        }
        __syncthreads();
        for (size_t i = thread; i < n_octets; i += step) {
            uint32_t words[octet_elems / 2];
            tw_dev_load_mutable(a.values + i * octet_elems, words);
            TW_UNROLL
            for (uint32_t w = 0; w < octet_elems / 2; w++) {
                count(bins + lane, words[w] & 0xffff);
                count(bins + lane, words[w] >> 16);
            }
        }
        for (size_t i = n_octets * octet_elems + thread; i < a.n; i += step) {
            count(bins + lane, a.values[i]);
        }
        __syncthreads();
        leave(bins, a.bins);
    }

    /* Add the bins to the result. A thread takes one exponent, and starts at its lane's bank. */
    static TW_DEVICE void leave(const uint32_t *bins, uint64_t *to)
    {
        uint64_t sum = 0;
        static_assert(norm_bins_count == threads, "one each");
        for (uint32_t i = 0; i < warp_lanes; i++) {
            sum += bins[threadIdx.x * warp_lanes + (threadIdx.x + i) % warp_lanes];
        }
        if (sum > 0) {
            atomicAdd((unsigned long long *)&to[threadIdx.x], (unsigned long long)sum);
        }
    }
};

struct WideNormBinArgs {
    const float *values;
    size_t n;
    uint64_t *bins;
};

/** Kernel: fp32 values -> bins. Bins have 64 bits, as squares have 48. Four lanes of a warp share each of
 *  eight sets of bins. An element costs 4 bytes and a 64-bit atomic addition in shared memory. A block takes
 *  16 KB of shared memory, so a multiprocessor can run its full number of threads. */
struct WideNormBins {
    static constexpr uint32_t copies = 8;

    static TW_DEVICE void count(uint64_t *bins, float value)
    {
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        const uint32_t exponent = bits >> 23 & 0xff;
        const uint64_t mantissa = (bits & 0x7fffff) | (exponent > 0 ? 0x800000u : 0);
        atomicAdd((unsigned long long *)&bins[exponent * copies],
                  (unsigned long long)(exponent < last_bin ? mantissa * mantissa : 1));
    }

    static TW_DEVICE void run(const WideNormBinArgs &a)
    {
        __shared__ uint64_t bins[norm_bins_count * copies];
        const size_t thread = (size_t)blockIdx.x * threads + threadIdx.x, step = (size_t)gridDim.x * threads;
        const size_t n_octets = (size_t)a.values % 16 == 0 ? a.n / octet_elems : 0;
        uint64_t *own = bins + threadIdx.x % copies;
        for (uint32_t i = threadIdx.x; i < norm_bins_count * copies; i += threads) {
            bins[i] = 0;
        }
        __syncthreads();
        for (size_t i = thread; i < n_octets; i += step) {
            float values[octet_elems];
            load_octet(a.values + i * octet_elems, values);
            TW_UNROLL
            for (uint32_t k = 0; k < octet_elems; k++) {
                count(own, values[k]);
            }
        }
        for (size_t i = n_octets * octet_elems + thread; i < a.n; i += step) {
            count(own, a.values[i]);
        }
        __syncthreads();
        leave(bins, a.bins);
    }

    /* Add the bins to the result. A thread takes one exponent. */
    static TW_DEVICE void leave(const uint64_t *bins, uint64_t *to)
    {
        uint64_t sum = 0;
        static_assert(norm_bins_count == threads, "one each");
        for (uint32_t i = 0; i < copies; i++) {
            sum += bins[threadIdx.x * copies + i];
        }
        if (sum > 0) {
            atomicAdd((unsigned long long *)&to[threadIdx.x], (unsigned long long)(sum & 0xffffffff));
            atomicAdd((unsigned long long *)&to[norm_bins_count + threadIdx.x],
                      (unsigned long long)(sum >> 32));
        }
    }
};

/** Returns the number of blocks: enough to fill a GPU, and none with more than `most` elements. */
inline uint32_t norm_blocks(size_t n, size_t most)
{
    const size_t wanted = ceil_div(n, (size_t)threads * octet_elems), needed = ceil_div(n, most);
    const size_t filling = wanted < most_blocks ? wanted : most_blocks;
    return (uint32_t)(filling > needed ? filling : needed);
}

template <class LAUNCHER>
tw_status_t norm_bins(const LAUNCHER &launcher, tw_type_t type, const void *values, size_t n, uint64_t *bins)
{
    TW_TRY(check_type("norm of gradients", type));
    if (n == 0) {
        return TW_OK;
    }
    if (type == TW_TYPE_FP32) {
        const WideNormBinArgs args = {(const float *)values, n, bins};
        return launcher.template run<WideNormBins>(norm_blocks(n, wide_bin_elems_max), "norm of gradients",
                                                   args);
    }
    const NormBinArgs args = {(const uint16_t *)values, n, bins};
    return launcher.template run<NormBins>(norm_blocks(n, bin_elems_max), "norm of gradients", args);
}

/* ---- AdamW --------------------------------------------------------------------------------------------- */

/** Operation grad, master, m, v -> master, m, v, and weights if N_OUT is 4. Bytes per element: 28 with bf16
 *  gradients and weights. 15 operations, a square root and a division. */
template <uint32_t N_OUT>
struct AdamW {
    struct Params {
        tw_adamw_factors_t factors;
        const float *grad_scale;
    };
    static constexpr uint32_t n_in = 4, n_out = N_OUT;
    static TW_DEVICE void apply(const Params &params, const float *in, float *out)
    {
        const float grad = tw_float_mul(in[0], params.grad_scale ? *params.grad_scale : 1.0f);
        float m = in[2], v = in[3];
        out[0] = tw_adamw_element(&params.factors, grad, in[1], &m, &v);
        out[1] = m;
        out[2] = v;
        out[N_OUT - 1] = N_OUT == 4 ? out[0] : v;
    }
};

template <class GRAD, class LAUNCHER>
tw_status_t launch_adamw(const LAUNCHER &launcher, const tw_quant_adamw_t *adamw,
                         const tw_cuda_adamw_tensor_t *t)
{
    const tw_adamw_factors_t factors = tw_adamw_factors_of(adamw);

    if (!t->weights) {
        return launch_mixed<GRAD, float, float, AdamW<3>>(launcher, "adamw",
                                                          {{t->grad, t->master, t->m, t->v},
                                                           {t->master, t->m, t->v},
                                                           t->n_elems,
                                                           {factors, adamw->grad_scale}});
    }
    const Pointwise<typename AdamW<4>::Params> p = {{t->grad, t->master, t->m, t->v},
                                                    {t->master, t->m, t->v, t->weights},
                                                    t->n_elems,
                                                    {factors, adamw->grad_scale}};
    return t->weight_type == TW_TYPE_BF16 ? launch_mixed<GRAD, float, Bf16, AdamW<4>>(launcher, "adamw", p)
                                          : launch_mixed<GRAD, float, float, AdamW<4>>(launcher, "adamw", p);
}

template <class LAUNCHER>
tw_status_t adamw(const LAUNCHER &launcher, const tw_quant_adamw_t *step,
                  const tw_cuda_adamw_tensor_t *tensor)
{
    TW_TRY(check_type("adamw", step->grad_type));
    TW_TRY(tensor->weights ? check_type("adamw", tensor->weight_type) : TW_OK);
    TW_FAIL_IF(step->step == 0, TW_ERR_INVALID, "cuda: adamw: the first step is 1");
    return step->grad_type == TW_TYPE_BF16 ? launch_adamw<Bf16>(launcher, step, tensor)
                                           : launch_adamw<float>(launcher, step, tensor);
}

} // namespace tw_trainer_kernels
