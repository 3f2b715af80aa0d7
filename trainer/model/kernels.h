/** Private to trainer/model: the layers of a transformer between its products, fp32, forwards and backwards.
 *  They are pure: all memory is the caller's, and nothing but the named outputs is written. Sums run in a
 *  fixed order. Shapes: N rows (tokens) of C channels; B sequences of T tokens; H heads of D channels; V
 *  words. */
#ifndef TW_TRAINER_MODEL_KERNELS_H
#define TW_TRAINER_MODEL_KERNELS_H

#include "core/core.h"

TW_C_BEGIN

/* ---- layer norm: y = (x - mean) * rstd * gamma + beta, over a row (arXiv 1607.06450) ------------------- */

/** What a norm keeps of each row. */
typedef struct tw_layernorm_stats {
    float *mean, *rstd; /* (N) each */
} tw_layernorm_stats_t;

/** stats are outputs. x, y (N,C); gamma, beta (C). */
void tw_layernorm_forward(const float *x, const float *gamma, const float *beta, size_t n, size_t c,
                          double epsilon, tw_layernorm_stats_t stats, float *y);
/** y again, from stats that forward left. */
void tw_layernorm_apply(const float *x, const float *gamma, const float *beta, size_t n, size_t c,
                        tw_layernorm_stats_t stats, float *y);
/** dx (N,C) += the gradient by x, or = if accumulate is 0; dgamma, dbeta (C) are added to. dy may be dx if
 *  accumulate is 0. */
void tw_layernorm_backward(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                           tw_layernorm_stats_t stats, int accumulate, float *dx, float *dgamma,
                           float *dbeta);

/* ---- root-mean-square norm: y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + epsilon) (arXiv 1910.07467)
 * --------- */

/** Returns rstd. x, y, gamma [c]; y may be x. */
float tw_rmsnorm_row(const float *x, const float *gamma, size_t c, double epsilon, float *y);
/** dx [c] += the gradient by x, or = if accumulate is 0; dgamma [c] is added to. dy may be dx if accumulate
 *  is 0. */
void tw_rmsnorm_row_backward(const float *dy, const float *x, const float *gamma, size_t c, float rstd,
                             int accumulate, float *dx, float *dgamma);
/** Of n rows: x, y (N,C); rstd [n] is an output. */
void tw_rmsnorm_forward(const float *x, const float *gamma, size_t n, size_t c, double epsilon, float *rstd,
                        float *y);
/** y again, from the rstd that forward left. */
void tw_rmsnorm_apply(const float *x, const float *gamma, size_t n, size_t c, const float *rstd, float *y);
void tw_rmsnorm_backward(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                         const float *rstd, int accumulate, float *dx, float *dgamma);

/* ---- SwiGLU: y = silu(gate) * up, silu(x) = x / (1 + e^-x) (arXiv 2002.05202) -------------------------- */

/** gate, up, y [n]. */
void tw_swiglu_forward(const float *gate, const float *up, size_t n, float *y);
/** dy [n] becomes the gradient by up; d_gate [n] = that by gate. */
void tw_swiglu_backward(const float *gate, const float *up, size_t n, float *dy, float *d_gate);

/* ---- GELU, the tanh form (arXiv 1606.08415) ------------------------------------------------------------ */

/** y = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...)). x, y [n]. */
void tw_gelu_forward(const float *x, size_t n, float *y);
/** d [n] *= the derivative at x. */
void tw_gelu_backward(const float *x, size_t n, float *d);

/* ---- causal attention: softmax(Q K' / sqrt(D)) V for each head (arXiv 1706.03762) ---------------------- */

typedef struct tw_attention_shape {
    size_t batch, seq_len; /* B, T */
    /* H; K, which divides H: groups of H / K heads of q share one of k and v (arXiv 2305.13245) */
    size_t heads, kv_heads;
    size_t width;  /* D */
    size_t window; /* a token sees so many, itself among them; 0: all before it */
} tw_attention_shape_t;

/** Floats of scratch for both calls: for two tiles of rows of the T x T matrix, which never exists whole. */
size_t tw_attention_scratch_elems(size_t seq_len);
/** qkv (B,T,(H+2K)D): Q, K and V side by side in a row, heads one after the other in each. y (B,T,HD). */
void tw_attention_forward(const tw_attention_shape_t *shape, const float *qkv, float *scratch, float *y);
/** dqkv, like qkv, = the gradient by it; probabilities are computed again. dy (B,T,HD). */
void tw_attention_backward(const tw_attention_shape_t *shape, const float *qkv, const float *dy,
                           float *scratch, float *dqkv);

/* ---- softmax and cross-entropy ------------------------------------------------------------------------- */

/** row [n] = exp(row - max) / sum. n >= 1. */
void tw_softmax_row(float *row, size_t n);
/** -log softmax(logits)[target]; afterwards logits [v] are its gradient times scale. */
double tw_cross_entropy_row(float *logits, size_t v, size_t target, float scale);

TW_C_END

#endif
