/** Private to trainer/model: causal attention, softmax(Q K' / sqrt(D)) V for each head (arXiv 1706.03762). */
#pragma once

#include "trainer/model/linear.h"

TW_C_BEGIN

typedef struct tw_attention_shape {
    size_t batch, seq_len; /* B, T */
    /* H; K, which divides H: H / K query heads share a k/v head (arXiv 2305.13245) */
    size_t heads, kv_heads;
    size_t width;  /* D */
    size_t window; /* tokens that a token attends to, itself included; 0: all before it */
    /* (B,T): index in the sequence where each token's document starts, as in tw_model_set_documents. NULL:
     * each sequence is one document. */
    const int32_t *starts;
} tw_attention_shape_t;

/** Return how many floats of scratch each thread needs in both calls: two tiles of the T x T score matrix,
 *  which is never stored whole. */
size_t tw_attention_scratch_elems(size_t seq_len);
/** Compute y (B,T,HD) from qkv (B,T,(H+2K)D), whose rows are Q, K and V, each with its heads one after the
 *  other. With bf16 products both calls write compute->narrow (qkv's size), backward also narrow_d (dy's). */
void tw_attention_forward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                          float *scratch, float *y);
/** Compute dqkv, the gradient of qkv, from dy (B,T,HD). Probabilities are computed again from qkv. */
void tw_attention_backward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                           const float *dy, float *scratch, float *dqkv);

TW_C_END
