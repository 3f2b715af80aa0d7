/** trainer/cuda: a transformer's operations apart from matrix products, on a GPU. They compute the same as
 *  trainer/model/kernels.h; tests compare both. Built only with CUDA.
 *
 *  To read the kernels, start with device.cuh (operations of a GPU), then pointwise.cuh (by elements) and
 *  norm.cuh (by rows). .cuh files have kernels as functions of one thread, and their launches as templates,
 *  so that tests run both on a CPU; .cu files launch them on a GPU. embedding.h, attention.h, loss.h and
 *  optimizer.h declare further functions, archs.h lists the supported GPUs.
 *
 *  Shapes: N rows (tokens) of C channels. Activations and weights have `type`, TW_TYPE_FP32 or TW_TYPE_BF16.
 *  Arithmetic, statistics and gradients of weights are fp32. Pointers are device memory with the alignment of
 *  their elements. A call is faster if all its pointers are multiples of 16 bytes, and C of 8. All calls
 *  enqueue on `stream` and return. TW_ERR_INVALID: another type; TW_ERR_CUDA; both logged. Results do not
 *  depend on the order in which a GPU runs blocks: the same call gives the same bits. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/* ---- GELU, the tanh form; SwiGLU ----------------------------------------------------------------------- */

/* fp32 results have the bits of trainer/model's kernels. bf16 results are the fp32 results, rounded. */

/** Computes y = gelu(x). x, y [n]; y may be x. */
tw_status_t tw_cuda_gelu_forward(tw_type_t type, const void *x, size_t n, void *y, tw_stream_t stream);
/** Multiplies d [n] by the derivative at x. */
tw_status_t tw_cuda_gelu_backward(tw_type_t type, const void *x, size_t n, void *d, tw_stream_t stream);
/** Computes y = silu(gate) * up. gate, up, y [n]; y may be one of them. */
tw_status_t tw_cuda_swiglu_forward(tw_type_t type, const void *gate, const void *up, size_t n, void *y,
                                   tw_stream_t stream);
/** Turns dy [n] into the gradient of up. Writes the gradient of gate to d_gate [n], which may be gate. */
tw_status_t tw_cuda_swiglu_backward(tw_type_t type, const void *gate, const void *up, size_t n, void *dy,
                                    void *d_gate, tw_stream_t stream);

/* ---- types --------------------------------------------------------------------------------------------- */

/** Rounds factor * x [n] to the nearest bf16, into y [n]. NaN stays NaN. */
tw_status_t tw_cuda_narrow(const float *x, size_t n, float factor, uint16_t *y, tw_stream_t stream);

/* ---- sums over rows ------------------------------------------------------------------------------------ */

/** How many rows a slab has. To sum columns, one kernel first sums each slab into an fp32 workspace: in 2048
 *  blocks for 8192 rows of 4096 channels. Size functions are inline, so that the planner needs no CUDA. */
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
/** Adds the sum of dy's rows to dbias (C). `workspace` is scratch of tw_cuda_bias_workspace_bytes. */
tw_status_t tw_cuda_bias_backward(const tw_cuda_rows_t *rows, const void *dy, float *dbias, float *workspace,
                                  tw_stream_t stream);

/* ---- layer norm; root-mean-square norm ----------------------------------------------------------------- */

/** Operands of a norm, for both forward and backward. */
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
    int accumulate;        /**< 1: dx += the gradient of x; 0: dx = the gradient */
    float *dgamma, *dbeta; /**< (C) gradients are added to them; dbeta NULL without beta */
    float *workspace;      /**< scratch memory, tw_cuda_norm_workspace_bytes */
} tw_cuda_norm_gradients_t;

/** Computes y (N,C) = (x - mean) * rstd * gamma + beta, or x * rstd * gamma without beta. y may be x only if
 *  no backward pass follows. TW_ERR_INVALID also if only one of beta and mean is NULL. */
tw_status_t tw_cuda_norm_forward(const tw_cuda_norm_t *norm, void *y, tw_stream_t stream);
static inline size_t tw_cuda_norm_workspace_bytes(const tw_cuda_norm_t *norm)
{
    return (norm->beta ? 2 : 1) * tw_cuda_slabs(norm->rows) * norm->channels * sizeof(float);
}
/** Computes gradients. They have the same bits on every GPU, as the order of sums depends only on N and C. */
tw_status_t tw_cuda_norm_backward(const tw_cuda_norm_t *norm, const tw_cuda_norm_gradients_t *gradients,
                                  tw_stream_t stream);

TW_C_END
