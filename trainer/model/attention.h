/** Private to trainer/model: causal attention, softmax(Q K' / sqrt(D)) V for each head (arXiv 1706.03762). */
#pragma once

#include "trainer/model/linear.h"

TW_C_BEGIN

typedef struct tw_attention_shape {
    size_t batch, seq_len; /* B, T */
    /* H; K, which divides H: groups of H / K heads of q share one of k and v (arXiv 2305.13245) */
    size_t heads, kv_heads;
    size_t width;  /* D */
    size_t window; /* how many tokens a token sees, itself included; 0: all before it */
    /* (B,T): the first token that it sees, where its document starts; it is not after the token, and never
     * decreases. NULL: 0. */
    const int32_t *starts;
} tw_attention_shape_t;

/** Return the floats of scratch that each thread needs in both calls: for two tiles of rows of the T x T
 *  matrix, which never exists whole. */
size_t tw_attention_scratch_elems(size_t seq_len);
/** qkv (B,T,(H+2K)D): Q, K and V side by side in a row, heads one after the other in each. y (B,T,HD). In
 *  bf16 it uses the factors' memory of `compute`, as much as qkv, and as dy. */
void tw_attention_forward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                          float *scratch, float *y);
/** Compute dqkv, laid out like qkv: the gradient by it. Probabilities are computed again. dy (B,T,HD). */
void tw_attention_backward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                           const float *dy, float *scratch, float *dqkv);

TW_C_END
