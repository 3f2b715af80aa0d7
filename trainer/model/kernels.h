/** Private to trainer/model: the layers of a transformer between its products, fp32, forwards and backwards,
 *  for each instruction set.
 *  They are pure: all memory is the caller's, and nothing but the named outputs is written. All sets give the
 *  same bits. Shapes: N rows (tokens) of C channels; B sequences of T tokens; H heads of D channels; V
 *  words. */
#ifndef TW_TRAINER_MODEL_KERNELS_H
#define TW_TRAINER_MODEL_KERNELS_H

#include "core/core.h"

TW_C_BEGIN

/** What a layer norm keeps of each row. */
typedef struct tw_layernorm_stats {
    float *mean, *rstd; /* (N) each */
} tw_layernorm_stats_t;

/** The kernels of one instruction set. */
typedef struct tw_kernel_set {
    /* ---- layer norm: y = (x - mean) * rstd * gamma + beta, over a row (arXiv 1607.06450) ---- */

    /** stats are outputs. x, y (N,C); gamma, beta (C). */
    void (*layernorm_forward)(const float *x, const float *gamma, const float *beta, size_t n, size_t c,
                              double epsilon, tw_layernorm_stats_t stats, float *y);
    /** y again, from stats that forward left. */
    void (*layernorm_apply)(const float *x, const float *gamma, const float *beta, size_t n, size_t c,
                            tw_layernorm_stats_t stats, float *y);
    /** dx (N,C) += the gradient by x, or = if accumulate is 0; dgamma, dbeta (C) are added to. dy may be dx
     *  if accumulate is 0. */
    void (*layernorm_backward)(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                               tw_layernorm_stats_t stats, int accumulate, float *dx, float *dgamma,
                               float *dbeta);
    /** The same in two, with the same bits, so that threads can share the work: dx of some rows; and what a
     *  row adds to dgamma and dbeta, of n columns that begin at the pointers. dx may be x once no vector is
     *  needed any more. */
    void (*layernorm_backward_input)(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                                     tw_layernorm_stats_t stats, int accumulate, float *dx);
    void (*layernorm_row_vectors)(const float *dy, const float *x, float mean, float rstd, size_t n,
                                  float *dgamma, float *dbeta);

    /* ---- root-mean-square norm: y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + epsilon) (arXiv
     * 1910.07467) ---- */

    /** Returns rstd. x, y, gamma [c]; y may be x. */
    float (*rmsnorm_row)(const float *x, const float *gamma, size_t c, double epsilon, float *y);
    /** dx [c] += the gradient by x, or = if accumulate is 0; dgamma [c] is added to. dy may be dx if
     *  accumulate is 0. */
    void (*rmsnorm_row_backward)(const float *dy, const float *x, const float *gamma, size_t c, float rstd,
                                 int accumulate, float *dx, float *dgamma);
    /** The same in two, as above. */
    void (*rmsnorm_row_backward_input)(const float *dy, const float *x, const float *gamma, size_t c,
                                       float rstd, int accumulate, float *dx);
    void (*rmsnorm_row_vector)(const float *dy, const float *x, float rstd, size_t n, float *dgamma);
    /** Of n rows: x, y (N,C); rstd [n] is an output. */
    void (*rmsnorm_forward)(const float *x, const float *gamma, size_t n, size_t c, double epsilon,
                            float *rstd, float *y);
    /** y again, from the rstd that forward left. */
    void (*rmsnorm_apply)(const float *x, const float *gamma, size_t n, size_t c, const float *rstd,
                          float *y);
    void (*rmsnorm_backward)(const float *dy, const float *x, const float *gamma, size_t n, size_t c,
                             const float *rstd, int accumulate, float *dx, float *dgamma);

    /* ---- GELU, the tanh form (arXiv 1606.08415) ---- */

    /** y = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...)). x, y [n]. */
    void (*gelu_forward)(const float *x, size_t n, float *y);
    /** d [n] *= the derivative at x. */
    void (*gelu_backward)(const float *x, size_t n, float *d);

    /* ---- SwiGLU: y = silu(gate) * up, silu(x) = x / (1 + e^-x) (arXiv 2002.05202) ---- */

    /** gate, up, y [n]. */
    void (*swiglu_forward)(const float *gate, const float *up, size_t n, float *y);
    /** dy [n] becomes the gradient by up; d_gate [n] = that by gate. */
    void (*swiglu_backward)(const float *gate, const float *up, size_t n, float *dy, float *d_gate);

    /* ---- softmax and cross-entropy ---- */

    /** row [n] = exp(row - max) / sum. n >= 1. */
    void (*softmax_row)(float *row, size_t n);
    /** dp [n] becomes the gradient by what p [n] is the softmax of, times factor: p * (dp - sum of p * dp) *
     *  factor. */
    void (*softmax_row_backward)(const float *p, size_t n, float factor, float *dp);
    /** -log softmax(logits)[target]; afterwards logits [v] are its gradient times scale. */
    double (*cross_entropy_row)(float *logits, size_t v, size_t target, float scale);

    /* ---- rows and elements ---- */

    /** Each of n rows of y (c of `stride` elements) = b (c), or += b. */
    void (*bias_forward)(const float *b, size_t n, size_t c, size_t stride, int accumulate, float *y);
    /** db (c) += each row of dy. */
    void (*bias_backward)(const float *dy, size_t n, size_t c, size_t stride, float *db);
    /** y [n] = x as bf16, to the nearest. */
    void (*narrow)(const float *x, size_t n, uint16_t *y);
    /** x [n] becomes n elements of bf16 where it begins. */
    void (*narrow_in_place)(float *x, size_t n);
    /** Turn one head x [width] by the angles of its position, [width / 2] each; backwards, by their
     *  opposites. */
    void (*rope_turn)(float *x, size_t width, const float *cosines, const float *sines);
    void (*rope_turn_backward)(float *d, size_t width, const float *cosines, const float *sines);
} tw_kernel_set_t;

/** Those of the widest instruction set that this machine has. */
const tw_kernel_set_t *tw_kernels(void);
/** All that this machine can run, the plainest first; NULL past the last one. */
const tw_kernel_set_t *tw_kernels_get(size_t index);

TW_C_END

#endif
