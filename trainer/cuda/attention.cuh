/** Attention, forward and backward, by the algorithm of FlashAttention-2 (arXiv 2307.08691). Each block of
 *  256 threads writes different outputs, so results do not depend on the order in which blocks run.
 *
 *  Forward: a block takes some queries of a head and loops over the keys that they attend to, a tile at a
 *  time. It computes scores S = Q K', updates each row's maximum and sum of exponentials, and y = y *
 *  correction + exp(S) V. Backward: probabilities are recomputed from the log of the sum (lse). One kernel
 *  over queries computes dq. Another over keys computes dk and dv, looping over the query heads that share
 *  the keys. So 7 products are computed instead of 5 (S and dP twice), but no sums are added up in global
 *  memory.
 *
 *  A pair of a query and a key costs D multiply-adds per product, and a head has T * T / 2 pairs: 2 T T D
 *  FLOPs forward, 7 T T D backward. Bytes of a head in bf16: forward q, k, v, y once, T D * 8; backward q, k,
 *  v, dy twice, dq, dk, dv once, and y and dy once for the dots: T D * 26. With T = 2048 that is 512 FLOPs a
 *  byte forward and 551 backward, so FLOPs are the limit.
 *
 *    attention_mma_*.cuh    bf16, heads of 128 channels or fewer: on tensor cores
 *    attention_scalar.cuh   all other cases, in fp32 arithmetic
 *  Include device.cuh, or a test's replacement, first. */
#pragma once

#include "trainer/cuda/attention.h"
#include "trainer/cuda/attention_mma_backward.cuh"
#include "trainer/cuda/attention_mma_forward.cuh"
#include "trainer/cuda/attention_scalar.cuh"

namespace tw_trainer_kernels
{

constexpr uint32_t attention_width_max = TW_CUDA_HEAD_WIDTH_MAX;

/* ---- launches ------------------------------------------------------------------------------------------ */

inline tw_status_t check_attention(const tw_cuda_attention_t *attention)
{
    TW_TRY(check_type("attention", attention->type));
    if (attention->width == 0 || attention->width > attention_width_max) {
        return tw_fail(TW_ERR_INVALID, "cuda: attention: heads of width %zu; it is 1 to %u", attention->width,
                       (unsigned)attention_width_max);
    }
    if (attention->kv_heads == 0 || attention->heads % attention->kv_heads != 0) {
        return tw_fail(TW_ERR_INVALID, "cuda: attention: %zu heads of q are no multiple of %zu of k and v",
                       attention->heads, attention->kv_heads);
    }
    return TW_OK;
}

/** Launches KERNEL<T, COLUMNS> with the smallest COLUMNS that is at least a head's width. */
template <template <class, uint32_t> class KERNEL, class T, class LAUNCHER>
tw_status_t launch_width(const LAUNCHER &launcher, size_t blocks, const char *what, const AttentionArgs &a)
{
    if (a.attention.width <= 64) {
        return launcher.template run<KERNEL<T, 64>>((uint32_t)blocks, what, a);
    }
    return a.attention.width <= 128 ? launcher.template run<KERNEL<T, 128>>((uint32_t)blocks, what, a)
                                    : launcher.template run<KERNEL<T, 256>>((uint32_t)blocks, what, a);
}

template <template <class, uint32_t> class KERNEL, class LAUNCHER>
tw_status_t launch_scalar(const LAUNCHER &launcher, size_t heads, const char *what, const AttentionArgs &a)
{
    const size_t blocks = a.attention.batch * heads * ceil_div(a.attention.seq_len, tile);

    return a.attention.type == TW_TYPE_FP32
               ? launch_width<KERNEL, float>(launcher, blocks, what, a)
               : launcher.template run<KERNEL<Bf16, 256>>((uint32_t)blocks, what, a);
}

inline bool takes_mma(const AttentionArgs &a)
{
    return a.attention.type == TW_TYPE_BF16 && a.attention.width <= mma_width_max;
}

template <template <uint32_t> class KERNEL, class LAUNCHER>
tw_status_t launch_mma(const LAUNCHER &launcher, size_t heads, const char *what, const AttentionArgs &a)
{
    const uint32_t blocks = (uint32_t)(a.attention.batch * heads * ceil_div(a.attention.seq_len, mma_rows));

    if (a.attention.width <= 64) {
        return launcher.template run<KERNEL<64>>(blocks, what, a);
    }
    if (a.attention.width <= 96) {
        return a.attention.width <= 80 ? launcher.template run<KERNEL<80>>(blocks, what, a)
                                       : launcher.template run<KERNEL<96>>(blocks, what, a);
    }
    return launcher.template run<KERNEL<128>>(blocks, what, a);
}

/** Fill in the arguments. `more` and `strides` are the other arrays' addresses and strides (besides q, k, v),
 *  or'ed together: args.aligned is true if all of them are aligned. */
inline AttentionArgs attention_args(const tw_cuda_attention_t *attention, size_t more, size_t strides)
{
    AttentionArgs args = {};

    args.attention = *attention;
    args.factor = 1.0f / sqrtf((float)attention->width);
    args.aligned = in_octets((size_t)attention->q | (size_t)attention->k | (size_t)attention->v | more,
                             attention->width | attention->q_stride | attention->k_stride |
                                 attention->v_stride | strides);
    return args;
}

inline bool attends_nothing(const tw_cuda_attention_t *attention)
{
    return attention->batch * attention->seq_len * attention->heads == 0;
}

template <class LAUNCHER>
tw_status_t attention_forward(const LAUNCHER &launcher, const tw_cuda_attention_t *attention, void *y,
                              size_t y_stride)
{
    AttentionArgs args = attention_args(attention, (size_t)y, y_stride);

    TW_TRY(check_attention(attention));
    args.y = y;
    args.y_stride = y_stride;
    if (attends_nothing(attention)) {
        return TW_OK;
    }
    return takes_mma(args) ? launch_mma<MmaForward>(launcher, attention->heads, "attention", args)
                           : launch_scalar<ScalarForward>(launcher, attention->heads, "attention", args);
}

template <class LAUNCHER>
tw_status_t attention_backward(const LAUNCHER &launcher, const tw_cuda_attention_t *attention,
                               const tw_cuda_attention_gradients_t *gradients)
{
    const tw_cuda_attention_gradients_t &g = *gradients;
    const size_t rows = attention->batch * attention->seq_len * attention->heads;
    const uint32_t blocks = (uint32_t)ceil_div(rows, warps);
    const char *const of_queries = "attention backwards, queries";
    const char *const of_keys = "attention backwards, keys";
    AttentionArgs args = attention_args(attention, (size_t)g.dy | (size_t)g.dq | (size_t)g.dk | (size_t)g.dv,
                                        g.dy_stride | g.dq_stride | g.dk_stride | g.dv_stride);

    TW_TRY(check_attention(attention));
    args.gradients = *gradients;
    if (attends_nothing(attention)) {
        return TW_OK;
    }
    TW_TRY(attention->type == TW_TYPE_FP32
               ? launcher.template run<AttentionDots<float>>(blocks, "attention backwards, dots", args)
               : launcher.template run<AttentionDots<Bf16>>(blocks, "attention backwards, dots", args));
    if (takes_mma(args)) {
        TW_TRY(launch_mma<MmaQueryGradients>(launcher, attention->heads, of_queries, args));
        return launch_mma<MmaKeyGradients>(launcher, attention->kv_heads, of_keys, args);
    }
    TW_TRY(launch_scalar<ScalarQueries>(launcher, attention->heads, of_queries, args));
    return launch_scalar<ScalarKeys>(launcher, attention->kv_heads, of_keys, args);
}

} // namespace tw_trainer_kernels
