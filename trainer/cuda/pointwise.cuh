/** Element by element: GELU and SwiGLU, forwards and backwards. Every call reads and writes each array once,
 *  and computes about 20 to 30 operations an element: 5 a byte of bf16, where a GPU of today has more than 15
 *  a byte, so what counts is bytes. A thread takes eight neighbours with accesses of 16 bytes, 4 KB of bf16 a
 *  block and array. 64 registers at most, so that four blocks fit on a multiprocessor; no shared memory.
 *
 *  Include device.cuh, or what stands for it in a test, before. */
#ifndef TW_TRAINER_CUDA_POINTWISE_CUH
#define TW_TRAINER_CUDA_POINTWISE_CUH

#include "core/core.h"
#include "trainer/cuda/elements.cuh"
#include "trainer/model/exp.h"

namespace tw_trainer_kernels
{

/* ---- operations: of one element of each array, with the bits of trainer/model -------------------------- */

constexpr float gelu_slope = 1.5957691216f; /* 2 sqrt(2 / pi) */
constexpr float gelu_cube = 0.044715f;

/** x -> y. Bytes an element: 2 accesses of bf16, 4. */
struct GeluForward {
    static constexpr uint32_t n_in = 1, n_out = 1;
    static TW_DEVICE void apply(const float *in, float *out)
    {
        float v = in[0];
        float two_u = gelu_slope * (v + gelu_cube * v * v * v);
        out[0] = v / (1.0f + tw_exp(-two_u));
    }
};

/** x, d -> d. Bytes an element: 3 accesses of bf16, 6. */
struct GeluBackward {
    static constexpr uint32_t n_in = 2, n_out = 1;
    static TW_DEVICE void apply(const float *in, float *out)
    {
        float v = in[0];
        float two_u = gelu_slope * (v + gelu_cube * v * v * v);
        float slope = gelu_slope * (1.0f + 3.0f * gelu_cube * v * v);
        float s = 1.0f / (1.0f + tw_exp(-two_u));
        out[0] = in[1] * (s + v * s * (1.0f - s) * slope);
    }
};

/** gate, up -> y. Bytes an element: 3 accesses of bf16, 6. */
struct SwigluForward {
    static constexpr uint32_t n_in = 2, n_out = 1;
    static TW_DEVICE void apply(const float *in, float *out)
    {
        out[0] = in[0] / (1.0f + tw_exp(-in[0])) * in[1];
    }
};

/** gate, up, dy -> by up, by gate. Bytes an element: 5 accesses of bf16, 10. */
struct SwigluBackward {
    static constexpr uint32_t n_in = 3, n_out = 2;
    static TW_DEVICE void apply(const float *in, float *out)
    {
        float gate = in[0], d = in[2], s = 1.0f / (1.0f + tw_exp(-gate));
        out[0] = d * gate * s;
        out[1] = d * in[1] * s * (1.0f + gate * (1.0f - s));
    }
};

/* ---- the kernel ---------------------------------------------------------------------------------------- */

/** Arrays [n] of an operation; an output may be an input. */
struct Pointwise {
    const void *in[3];
    void *out[2];
    size_t n;
};

template <class T, class OP>
struct PointwiseKernel {
    static TW_DEVICE bool is_aligned(const Pointwise &p)
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

    static TW_DEVICE void octet(const Pointwise &p, size_t first)
    {
        float in[OP::n_in][octet_elems], out[OP::n_out][octet_elems];
        TW_UNROLL
        for (uint32_t k = 0; k < OP::n_in; k++) {
            load_octet((const T *)p.in[k] + first, in[k]);
        }
        TW_UNROLL
        for (uint32_t i = 0; i < octet_elems; i++) {
            float of_in[OP::n_in], of_out[OP::n_out];
            for (uint32_t k = 0; k < OP::n_in; k++) {
                of_in[k] = in[k][i];
            }
            OP::apply(of_in, of_out);
            for (uint32_t k = 0; k < OP::n_out; k++) {
                out[k][i] = of_out[k];
            }
        }
        TW_UNROLL
        for (uint32_t k = 0; k < OP::n_out; k++) {
            store_octet(out[k], (T *)p.out[k] + first);
        }
    }

    static TW_DEVICE void element(const Pointwise &p, size_t index)
    {
        float in[OP::n_in], out[OP::n_out];
        for (uint32_t k = 0; k < OP::n_in; k++) {
            in[k] = to_float(((const T *)p.in[k])[index]);
        }
        OP::apply(in, out);
        for (uint32_t k = 0; k < OP::n_out; k++) {
            from_float(out[k], (T *)p.out[k] + index);
        }
    }

    static TW_DEVICE void run(const Pointwise &p)
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

constexpr size_t most_blocks = 2048; /* fill every GPU; longer arrays are several turns */

/** launcher.run<KERNEL>(blocks, what, args) runs KERNEL::run(args) in blocks of `threads`. */
template <class OP, class LAUNCHER>
tw_status_t launch_pointwise(const LAUNCHER &launcher, const char *what, tw_type_t type, const Pointwise &p)
{
    const size_t per_block = (size_t)threads * octet_elems, needed = (p.n + per_block - 1) / per_block;
    const uint32_t blocks = (uint32_t)(needed < most_blocks ? needed : most_blocks);

    if (type != TW_TYPE_FP32 && type != TW_TYPE_BF16) {
        tw_error("cuda: %s: there is no kernel for %s", what, tw_type_name(type));
        return TW_ERR_INVALID;
    }
    if (blocks == 0) {
        return TW_OK;
    }
    return type == TW_TYPE_FP32 ? launcher.template run<PointwiseKernel<float, OP>>(blocks, what, p)
                                : launcher.template run<PointwiseKernel<Bf16, OP>>(blocks, what, p);
}

template <class LAUNCHER>
tw_status_t gelu_forward(const LAUNCHER &launcher, tw_type_t type, const void *x, size_t n, void *y)
{
    return launch_pointwise<GeluForward>(launcher, "gelu", type, {{x}, {y}, n});
}

template <class LAUNCHER>
tw_status_t gelu_backward(const LAUNCHER &launcher, tw_type_t type, const void *x, size_t n, void *d)
{
    return launch_pointwise<GeluBackward>(launcher, "gelu backwards", type, {{x, d}, {d}, n});
}

template <class LAUNCHER>
tw_status_t swiglu_forward(const LAUNCHER &launcher, tw_type_t type, const void *gate, const void *up,
                           size_t n, void *y)
{
    return launch_pointwise<SwigluForward>(launcher, "swiglu", type, {{gate, up}, {y}, n});
}

template <class LAUNCHER>
tw_status_t swiglu_backward(const LAUNCHER &launcher, tw_type_t type, const void *gate, const void *up,
                            size_t n, void *dy, void *d_gate)
{
    return launch_pointwise<SwigluBackward>(launcher, "swiglu backwards", type,
                                            {{gate, up, dy}, {dy, d_gate}, n});
}

} // namespace tw_trainer_kernels

#endif
