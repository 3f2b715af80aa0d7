/** Attention, forwards and backwards, as FlashAttention-2 orders it (arXiv 2307.08691): a block of 256
 *  threads writes to memory of its own, so results do not depend on the blocks' order.
 *
 *  Forwards a block takes some queries of a head and goes over the keys that they see, some at a time: scores
 *  S = Q K', the largest of each row so far and the sum of exponentials, y = y * correction + exp(S) V.
 *  Backwards probabilities are made again from the log of the sum: one kernel over queries makes dq, one over
 *  keys makes dk and dv, with all heads of q that share the keys one after the other. 7 products instead of 5
 *  (S and dP twice), and no sums in memory.
 *
 *  A pair of a query and a key that is seen costs D multiply-adds a product. FLOPs a head, with T * T / 2
 *  pairs: forwards 2 T T D, backwards 7 T T D. Bytes of a head in bf16: forwards q, k, v, y once, T D * 8;
 *  backwards q, k, v, dy twice, dq, dk, dv and, for the dots, y and dy once: T D * 26. With T = 2048 that is
 *  512 FLOPs a byte forwards and 551 backwards: FLOPs are what counts.
 *
 *    attention_mma_*.cuh    bf16, heads of 128 channels or fewer: on tensor cores
 *    attention_scalar.cuh   all others, in fp32 arithmetic
 *
 *  Include device.cuh, or what stands for it in a test, before. */
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

/** Launches KERNEL<T, COLUMNS> with the fewest columns that hold a head. */
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

/** Fill in the arguments. `more` and `strides` are all addresses and strides other than those of q, k and v,
 *  or'ed together: args.aligned depends on all of them. */
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
