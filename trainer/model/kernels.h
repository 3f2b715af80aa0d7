/** Private to trainer/model: a transformer's fp32 operations apart from matrix products, forward and
 *  backward, for each instruction set. All sets give the same bits. The caller owns all memory.
 *  Shapes: N rows (tokens) of C channels; B sequences of T tokens; H heads of D channels; V words. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Statistics of each row that a norm's forward pass keeps for backward. */
typedef struct tw_model_norm_stats {
    float *mean, *rstd; /* (N) each; a root-mean-square norm has no mean */
} tw_model_norm_stats_t;

/** Arguments of a norm: a layer norm, or a root-mean-square norm if beta is NULL. */
typedef struct tw_model_norm {
    const float *x;            /* (N,C) */
    const float *gamma, *beta; /* (C) */
    size_t n, c;
    double epsilon; /* used by the forward pass only */
    tw_model_norm_stats_t stats;
} tw_model_norm_t;

/** Outputs of a norm's backward pass. */
typedef struct tw_model_norm_gradients {
    float *dx;             /* (N,C) */
    float *dgamma, *dbeta; /* (C) gradients are added to them; without beta, dbeta is not used */
    int accumulate;        /* 1: dx +=; 0: dx = */
} tw_model_norm_gradients_t;

/** The kernels of one instruction set. */
typedef struct tw_kernel_set {
    /* ---- norms of a row. Layer norm: y = (x - mean) * rstd * gamma + beta (arXiv 1607.06450);
     * root-mean-square norm: y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + epsilon) (arXiv 1910.07467) */

    /** Writes y (N,C) and stats. */
    void (*norm_forward)(const tw_model_norm_t *norm, float *y);
    /** Writes y (N,C) again, reading the stats of the forward pass. */
    void (*norm_apply)(const tw_model_norm_t *norm, float *y);
    /** Computes all gradients from dy (N,C), which may be to->dx if accumulate is 0. */
    void (*norm_backward)(const tw_model_norm_t *norm, const float *dy, const tw_model_norm_gradients_t *to);
    /** norm_backward in two calls with the same bits, so that threads can share the work: _input computes dx
     *  of some rows, _vectors dgamma and dbeta of n columns from `first` on. dx may be x if _vectors, which
     *  reads x, has run before for all columns. */
    void (*norm_backward_input)(const tw_model_norm_t *norm, const float *dy,
                                const tw_model_norm_gradients_t *to);
    void (*norm_backward_vectors)(const tw_model_norm_t *norm, const float *dy, size_t first, size_t n,
                                  const tw_model_norm_gradients_t *to);
    /** Computes one row's root-mean-square norm; returns rstd. x, y, gamma [c]; y may be x. */
    float (*rmsnorm_row)(const float *x, const float *gamma, size_t c, double epsilon, float *y);
    /** Adds one row's dy * x * rstd to dgamma [n]. */
    void (*rmsnorm_row_vector)(const float *dy, const float *x, float rstd, size_t n, float *dgamma);

    /* ---- GELU, the tanh form (arXiv 1606.08415) ---- */

    /** Computes y [n] = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...)). */
    void (*gelu_forward)(const float *x, size_t n, float *y);
    /** Multiplies d [n] by the derivative at x. */
    void (*gelu_backward)(const float *x, size_t n, float *d);

    /* ---- SwiGLU: y = silu(gate) * up, silu(x) = x / (1 + e^-x) (arXiv 2002.05202) ---- */

    /** Computes y = silu(gate) * up; gate, up, y [n]. */
    void (*swiglu_forward)(const float *gate, const float *up, size_t n, float *y);
    /** Turns dy [n] into the gradient of up, and writes the gradient of gate to d_gate [n]. */
    void (*swiglu_backward)(const float *gate, const float *up, size_t n, float *dy, float *d_gate);

    /* ---- softmax and cross-entropy ---- */

    /** Computes row [n] = exp(row - max) / sum; n >= 1. */
    void (*softmax_row)(float *row, size_t n);
    /** Turns dp [n] into the gradient of the scores whose softmax is p: factor * p * (dp - sum(p * dp)). */
    void (*softmax_row_backward)(const float *p, size_t n, float factor, float *dp);
    /** Returns -log softmax(logits)[target], and overwrites logits [v] by its gradient times scale. */
    double (*cross_entropy_row)(float *logits, size_t v, size_t target, float scale);

    /* ---- rows and elements ---- */

    /** Sets each of n rows of y (c elements, `stride` apart) to b [c], or adds b if accumulate is 1. */
    void (*bias_forward)(const float *b, size_t n, size_t c, size_t stride, int accumulate, float *y);
    /** Adds each row of dy to db (c). */
    void (*bias_backward)(const float *dy, size_t n, size_t c, size_t stride, float *db);
    /** Rounds x to y [n], bf16, to the nearest. */
    void (*narrow)(const float *x, size_t n, uint16_t *y);
    /** Rounds x [n] to bf16 in place. The results take the first half of x's memory. */
    void (*narrow_in_place)(float *x, size_t n);
    /** Rotates one head x [width] by its position's angles, whose cosines and sines are [width / 2]. The
     *  backward call rotates by the negative angles. */
    void (*rope_turn)(float *x, size_t width, const float *cosines, const float *sines);
    void (*rope_turn_backward)(float *d, size_t width, const float *cosines, const float *sines);
} tw_kernel_set_t;

/** Return the kernels of the widest instruction set that this machine has. */
const tw_kernel_set_t *tw_kernels(void);
/** Return set `index` of the sets that this machine can run, or NULL past the last. Set 0 is portable C, and
 *  the last has the widest instructions. */
const tw_kernel_set_t *tw_kernels_get(size_t index);

TW_C_END
