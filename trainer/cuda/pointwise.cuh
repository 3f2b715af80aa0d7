/** Elementwise operations: GELU and SwiGLU, forward and backward, and conversions. Every call reads and
 *  writes each array once, and takes at most about 30 operations an element: 5 a byte of bf16. A GPU can do
 *  more than 15 a byte, so memory bandwidth is the limit. A thread takes eight adjacent elements with
 *  accesses of 16 bytes, so a block takes 4 KB of each bf16 array at a time. At most 64 registers, so that
 *  four blocks fit on a multiprocessor; no shared memory.
 *  Include device.cuh, or a test's replacement, first. */
#pragma once

#include "core/core.h"
#include "trainer/cuda/elements.cuh"
#include "trainer/model/exp.h"

namespace tw_trainer_kernels
{

/* ---- operations: of one element of each array, with the bits of trainer/model -------------------------- */

/** For operations without parameters besides their arrays. */
struct NoParams {
};

constexpr float gelu_slope = 1.5957691216f; /* 2 sqrt(2 / pi) */
constexpr float gelu_cube = 0.044715f;

/** Operation x -> y. Bytes per element: 4 (2 bf16). */
struct GeluForward {
    using Params = NoParams;
    static constexpr uint32_t n_in = 1, n_out = 1;
    static TW_DEVICE void apply(const Params &, const float *in, float *out)
    {
        float v = in[0];
        float two_u = gelu_slope * (v + gelu_cube * v * v * v);
        out[0] = v / (1.0f + tw_exp(-two_u));
    }
};

/** Operation x, d -> d. Bytes per element: 6 (3 bf16). */
struct GeluBackward {
    using Params = NoParams;
    static constexpr uint32_t n_in = 2, n_out = 1;
    static TW_DEVICE void apply(const Params &, const float *in, float *out)
    {
        float v = in[0];
        float two_u = gelu_slope * (v + gelu_cube * v * v * v);
        float slope = gelu_slope * (1.0f + 3.0f * gelu_cube * v * v);
        float s = 1.0f / (1.0f + tw_exp(-two_u));
        out[0] = in[1] * (s + v * s * (1.0f - s) * slope);
    }
};

/** Operation gate, up -> y. Bytes per element: 6 (3 bf16). */
struct SwigluForward {
    using Params = NoParams;
    static constexpr uint32_t n_in = 2, n_out = 1;
    static TW_DEVICE void apply(const Params &, const float *in, float *out)
    {
        out[0] = in[0] / (1.0f + tw_exp(-in[0])) * in[1];
    }
};

/** Operation gate, up, dy -> gradients of up and of gate. Bytes per element: 10 (5 bf16). */
struct SwigluBackward {
    using Params = NoParams;
    static constexpr uint32_t n_in = 3, n_out = 2;
    static TW_DEVICE void apply(const Params &, const float *in, float *out)
    {
        float gate = in[0], d = in[2], s = 1.0f / (1.0f + tw_exp(-gate));
        out[0] = d * gate * s;
        out[1] = d * in[1] * s * (1.0f + gate * (1.0f - s));
    }
};

/** Operation x -> y = factor * x in another type. Bytes per element: 6 (fp32 and bf16). 1 operation. */
struct Scale {
    struct Params {
        float factor;
    };
    static constexpr uint32_t n_in = 1, n_out = 1;
    static TW_DEVICE void apply(const Params &params, const float *in, float *out)
    {
        out[0] = params.factor * in[0];
    }
};

/* ---- the kernel ---------------------------------------------------------------------------------------- */

constexpr uint32_t arrays_max = 4;

/** Arrays [n] of an operation. An output may be the same array as an input. */
template <class PARAMS>
struct Pointwise {
    const void *in[arrays_max];
    void *out[arrays_max];
    size_t n;
    PARAMS params;
};

/** A kernel that applies OP. The first input has type FIRST, the last output LAST, all other arrays REST. */
template <class FIRST, class REST, class LAST, class OP>
struct PointwiseKernel {
    using Args = Pointwise<typename OP::Params>;

    static TW_DEVICE bool is_aligned(const Args &p)
    {
        size_t all = 0;
        for (uint32_t k = 0; k < OP::n_in; k++) {
            all |= (size_t)p.in[k];
        }
        for (uint32_t k = 0; k < OP::n_out; k++) {
            all |= (size_t)p.out[k];
        }
        return all % 16 == 0;
    }

    static TW_DEVICE void octet(const Args &p, size_t first)
    {
        float in[OP::n_in][octet_elems], out[OP::n_out][octet_elems];
        load_octet((const FIRST *)p.in[0] + first, in[0]);
        TW_UNROLL
        for (uint32_t k = 1; k < OP::n_in; k++) {
            load_octet((const REST *)p.in[k] + first, in[k]);
        }
        TW_UNROLL
        for (uint32_t i = 0; i < octet_elems; i++) {
            float of_in[OP::n_in], of_out[OP::n_out];
            for (uint32_t k = 0; k < OP::n_in; k++) {
                of_in[k] = in[k][i];
            }
            OP::apply(p.params, of_in, of_out);
            for (uint32_t k = 0; k < OP::n_out; k++) {
                out[k][i] = of_out[k];
            }
        }
        TW_UNROLL
        for (uint32_t k = 0; k + 1 < OP::n_out; k++) {
            store_octet(out[k], (REST *)p.out[k] + first);
        }
        store_octet(out[OP::n_out - 1], (LAST *)p.out[OP::n_out - 1] + first);
    }

    static TW_DEVICE void element(const Args &p, size_t index)
    {
        float in[OP::n_in], out[OP::n_out];
        in[0] = to_float(((const FIRST *)p.in[0])[index]);
        for (uint32_t k = 1; k < OP::n_in; k++) {
            in[k] = to_float(((const REST *)p.in[k])[index]);
        }
        OP::apply(p.params, in, out);
        for (uint32_t k = 0; k + 1 < OP::n_out; k++) {
            from_float(out[k], (REST *)p.out[k] + index);
        }
        from_float(out[OP::n_out - 1], (LAST *)p.out[OP::n_out - 1] + index);
    }

    static TW_DEVICE void run(const Args &p)
    {
        size_t thread = (size_t)blockIdx.x * threads + threadIdx.x, step = (size_t)gridDim.x * threads;
        size_t n_octets = is_aligned(p) ? p.n / octet_elems : 0;
        for (size_t i = thread; i < n_octets; i += step) {
            octet(p, i * octet_elems);
        }
        for (size_t i = n_octets * octet_elems + thread; i < p.n; i += step) {
            element(p, i);
        }
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

/* Enough blocks to fill every GPU. In longer arrays a block loops. */
constexpr size_t most_blocks = 2048;

/** launcher.run<KERNEL>(blocks, what, args) runs KERNEL::run(args) in blocks of `threads`. */
template <class FIRST, class REST, class LAST, class OP, class LAUNCHER>
tw_status_t launch_mixed(const LAUNCHER &launcher, const char *what, const Pointwise<typename OP::Params> &p)
{
    const size_t per_block = (size_t)threads * octet_elems, needed = (p.n + per_block - 1) / per_block;
    const uint32_t blocks = (uint32_t)(needed < most_blocks ? needed : most_blocks);

    return blocks ? launcher.template run<PointwiseKernel<FIRST, REST, LAST, OP>>(blocks, what, p) : TW_OK;
}

/** Launches an operation whose arrays all have the same type. */
template <class OP, class LAUNCHER>
tw_status_t launch_pointwise(const LAUNCHER &launcher, const char *what, tw_type_t type,
                             const Pointwise<typename OP::Params> &p)
{
    TW_TRY(check_type(what, type));
    return type == TW_TYPE_FP32 ? launch_mixed<float, float, float, OP>(launcher, what, p)
                                : launch_mixed<Bf16, Bf16, Bf16, OP>(launcher, what, p);
}

template <class LAUNCHER>
tw_status_t gelu_forward(const LAUNCHER &launcher, tw_type_t type, const void *x, size_t n, void *y)
{
    return launch_pointwise<GeluForward>(launcher, "gelu", type, {{x}, {y}, n, {}});
}

template <class LAUNCHER>
tw_status_t gelu_backward(const LAUNCHER &launcher, tw_type_t type, const void *x, size_t n, void *d)
{
    return launch_pointwise<GeluBackward>(launcher, "gelu backwards", type, {{x, d}, {d}, n, {}});
}

template <class LAUNCHER>
tw_status_t swiglu_forward(const LAUNCHER &launcher, tw_type_t type, const void *gate, const void *up,
                           size_t n, void *y)
{
    return launch_pointwise<SwigluForward>(launcher, "swiglu", type, {{gate, up}, {y}, n, {}});
}

template <class LAUNCHER>
tw_status_t swiglu_backward(const LAUNCHER &launcher, tw_type_t type, const void *gate, const void *up,
                            size_t n, void *dy, void *d_gate)
{
    return launch_pointwise<SwigluBackward>(launcher, "swiglu backwards", type,
                                            {{gate, up, dy}, {dy, d_gate}, n, {}});
}

template <class LAUNCHER>
tw_status_t narrow(const LAUNCHER &launcher, const float *x, size_t n, float factor, uint16_t *y)
{
    return launch_mixed<float, float, Bf16, Scale>(launcher, "narrow", {{x}, {y}, n, {factor}});
}

} // namespace tw_trainer_kernels
