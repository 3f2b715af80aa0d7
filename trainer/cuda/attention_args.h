/** Part of trainer/cuda (see attention.h): what attention is given. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_CUDA_HEAD_WIDTH_MAX 256

typedef struct tw_cuda_attention {
    tw_type_t type;        /**< type of q, k, v, y and their gradients */
    size_t batch, seq_len; /**< B, T */
    /** H, and K, which divides H: groups of H / K heads of q share one of k and v (arXiv 2305.13245) */
    size_t heads, kv_heads;
    size_t width;  /**< D: 1 to TW_CUDA_HEAD_WIDTH_MAX */
    size_t window; /**< how many tokens one sees, itself among them; 0: all before it */
    /** (B,T): the first position of its sequence that each token sees, never less than that of the token
     *  before it: where its document starts. NULL: 0. */
    const int32_t *starts;
    /** Row b * T + t holds a token's heads side by side; rows begin so many elements apart. Where a product
     *  leaves q, k and v in one row: pointers into it and the same stride. */
    const void *q, *k, *v;
    size_t q_stride, k_stride, v_stride;
    float *lse; /**< (B,H,T) log of the sum of exponentials: output of forward, input of backward */
} tw_cuda_attention_t;

typedef struct tw_cuda_attention_gradients {
    const void *y, *dy; /**< (B,T,HD): rows y_stride and dy_stride elements apart */
    size_t y_stride, dy_stride;
    void *dq, *dk, *dv; /**< outputs, like q, k and v; they may not overlap what is read */
    size_t dq_stride, dk_stride, dv_stride;
    float *workspace; /**< tw_cuda_attention_workspace_bytes, whose contents mean nothing before and after */
} tw_cuda_attention_gradients_t;

TW_C_END
