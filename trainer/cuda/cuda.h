/** trainer/cuda: the layers of a transformer between its products, on a GPU. They compute the same as
 *  trainer/model/kernels.h; tests compare both.
 *
 *  Read device.cuh (what kernels ask of a GPU), then pointwise.cuh (element by element) and norm.cuh (row by
 *  row): the kernels as functions of one thread, and how they are launched, so that tests run them on a CPU.
 *  The .cu files of the same names launch them on a GPU. embedding.h, attention.h, loss.h and optimizer.h
 *  declare the rest; archs.h tells for which GPUs there is code.
 *
 *  Shapes: N rows (tokens) of C channels. Activations and weights are of `type`, TW_TYPE_FP32 or
 *  TW_TYPE_BF16; arithmetic, statistics and gradients of weights are fp32. Pointers are device memory and
 *  need the alignment of their elements; where all of a call's are multiples of 16 bytes (and C of 8), it is
 *  faster. All calls enqueue on `stream` and return: TW_ERR_INVALID for another type, TW_ERR_CUDA; logged.
 *  Nothing depends on the order in which a GPU runs blocks: the same call gives the same bits.
 *  Only where there is CUDA. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/* ---- GELU, the tanh form; SwiGLU ----------------------------------------------------------------------- */

/* fp32 results have the bits of trainer/model's functions; bf16 results are these, rounded to the nearest. */

/** Computes y = gelu(x). x, y [n]; y may be x. */
tw_status_t tw_cuda_gelu_forward(tw_type_t type, const void *x, size_t n, void *y, tw_stream_t stream);
/** Multiplies d [n] by the derivative at x. */
tw_status_t tw_cuda_gelu_backward(tw_type_t type, const void *x, size_t n, void *d, tw_stream_t stream);
/** Computes y = silu(gate) * up. gate, up, y [n]; y may be one of them. */
tw_status_t tw_cuda_swiglu_forward(tw_type_t type, const void *gate, const void *up, size_t n, void *y,
                                   tw_stream_t stream);
/** Computes gradients: dy [n] becomes the gradient by up, d_gate [n] is that by gate; d_gate may be gate. */
tw_status_t tw_cuda_swiglu_backward(tw_type_t type, const void *gate, const void *up, size_t n, void *dy,
                                    void *d_gate, tw_stream_t stream);

/* ---- types --------------------------------------------------------------------------------------------- */

/** Converts factor * x to y [n], bf16, to the nearest; NaN stays one. */
tw_status_t tw_cuda_narrow(const float *x, size_t n, float factor, uint16_t *y, tw_stream_t stream);

/* ---- sums over rows ------------------------------------------------------------------------------------ */

/** Rows of a slab, in sums of columns; the slabs' sums take fp32 workspace. 8192 rows of 4096 channels give
 *  the first kernel 2048 blocks. Sizes of workspaces are here: the planner asks for them without a GPU. */
#define TW_CUDA_SLAB_ROWS 64
static inline size_t tw_cuda_slabs(size_t rows)
{
    return rows / TW_CUDA_SLAB_ROWS + (rows % TW_CUDA_SLAB_ROWS > 0);
}

/* ---- the gradient of a bias ---------------------------------------------------------------------------- */

/** A matrix (N,C) whose rows begin `stride` elements apart. */
typedef struct tw_cuda_rows {
    tw_type_t type;
    size_t rows, channels, stride;
} tw_cuda_rows_t;

static inline size_t tw_cuda_bias_workspace_bytes(const tw_cuda_rows_t *rows)
{
    return tw_cuda_slabs(rows->rows) * rows->channels * sizeof(float);
}
/** Computes dbias (C) += the sum of dy's rows. `workspace` is scratch memory,
 *  tw_cuda_bias_workspace_bytes. */
tw_status_t tw_cuda_bias_backward(const tw_cuda_rows_t *rows, const void *dy, float *dbias, float *workspace,
                                  tw_stream_t stream);

/* ---- layer norm; root-mean-square norm ----------------------------------------------------------------- */

/** Operands of a norm, the same forwards and backwards. */
typedef struct tw_cuda_norm {
    tw_type_t type;
    size_t rows, channels; /**< N, C */
    float epsilon;
    const void *x;            /**< (N,C) */
    const void *gamma, *beta; /**< (C); beta NULL: root-mean-square norm */
    float *mean, *rstd;       /**< (N) outputs of forward, inputs of backward; mean NULL if beta is */
} tw_cuda_norm_t;

typedef struct tw_cuda_norm_gradients {
    const void *dy;        /**< (N,C) */
    void *dx;              /**< (N,C); may be x, or dy, if accumulate is 0 */
    int accumulate;        /**< 1: dx += the gradient by x; 0: dx = the gradient */
    float *dgamma, *dbeta; /**< (C) gradients are added to them; dbeta NULL without beta */
    float *workspace;      /**< scratch memory, tw_cuda_norm_workspace_bytes */
} tw_cuda_norm_gradients_t;

/** Computes y (N,C) = x^ * gamma + beta, x^ = (x - mean) * rstd; without beta x^ = x * rstd. y may be x only
 *  if there is no backward pass. Also TW_ERR_INVALID: beta without mean, or mean without beta. */
tw_status_t tw_cuda_norm_forward(const tw_cuda_norm_t *norm, void *y, tw_stream_t stream);
static inline size_t tw_cuda_norm_workspace_bytes(const tw_cuda_norm_t *norm)
{
    return (norm->beta ? 2 : 1) * tw_cuda_slabs(norm->rows) * norm->channels * sizeof(float);
}
/** Computes gradients, with the same bits on every GPU: the order of sums depends on N and C alone. */
tw_status_t tw_cuda_norm_backward(const tw_cuda_norm_t *norm, const tw_cuda_norm_gradients_t *gradients,
                                  tw_stream_t stream);

TW_C_END
