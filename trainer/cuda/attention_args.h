/** Part of trainer/cuda (see attention.h): the arguments of attention. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_CUDA_HEAD_WIDTH_MAX 256

typedef struct tw_cuda_attention {
    tw_type_t type;        /**< type of q, k, v, y and their gradients */
    size_t batch, seq_len; /**< B, T */
    /** H, and K, which divides H: H / K query heads share a k/v head (arXiv 2305.13245) */
    size_t heads, kv_heads;
    size_t width;  /**< D: 1 to TW_CUDA_HEAD_WIDTH_MAX */
    size_t window; /**< tokens that a token attends to, itself included; 0: all before it */
    /** (B,T): index in its sequence where each token's document starts, never decreasing. A token attends to
     *  none before. NULL: each sequence is one document. */
    const int32_t *starts;
    /** Row b * T + t holds a token's heads side by side. Strides are in elements. q, k and v may be parts of
     *  the same rows; then their strides are equal. */
    const void *q, *k, *v;
    size_t q_stride, k_stride, v_stride;
    float *lse; /**< (B,H,T) log of the sum of exponentials: output of forward, input of backward */
} tw_cuda_attention_t;

typedef struct tw_cuda_attention_gradients {
    const void *y, *dy; /**< (B,T,HD): rows y_stride and dy_stride elements apart */
    size_t y_stride, dy_stride;
    void *dq, *dk, *dv; /**< outputs in the layout of q, k and v; they must not overlap inputs */
    size_t dq_stride, dk_stride, dv_stride;
    float *workspace; /**< scratch memory, tw_cuda_attention_workspace_bytes */
} tw_cuda_attention_gradients_t;

TW_C_END
