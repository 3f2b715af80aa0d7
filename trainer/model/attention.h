/** Private to trainer/model: causal attention, softmax(Q K' / sqrt(D)) V for each head (arXiv 1706.03762). */
#pragma once

#include "trainer/model/linear.h"

TW_C_BEGIN

typedef struct tw_attention_shape {
    size_t batch, seq_len; /* B, T */
    /* H; K, which divides H: groups of H / K heads of q share one of k and v (arXiv 2305.13245) */
    size_t heads, kv_heads;
    size_t width;  /* D */
    size_t window; /* a token sees so many, itself among them; 0: all before it */
    /* (B,T): nor does it see what is before this one, which is not after itself, nor before that of the token
     * before; NULL: 0 */
    const int32_t *starts;
} tw_attention_shape_t;

/** Floats of scratch for both calls, for each thread: for two tiles of rows of the T x T matrix, which never
 *  exists whole. */
size_t tw_attention_scratch_elems(size_t seq_len);
/** qkv (B,T,(H+2K)D): Q, K and V side by side in a row, heads one after the other in each. y (B,T,HD).
 *  In bf16 the factors' memory of `compute` is used: as much as qkv, and as dy. */
void tw_attention_forward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                          float *scratch, float *y);
/** dqkv, like qkv, = the gradient by it; probabilities are computed again. dy (B,T,HD). */
void tw_attention_backward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                           const float *dy, float *scratch, float *dqkv);

TW_C_END
