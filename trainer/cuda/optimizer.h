/** Part of trainer/cuda (see cuda.h): the norm of gradients, without rounding, and AdamW on fp32 masters. */
#pragma once

#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/* ---- norm of gradients --------------------------------------------------------------------------------- */

#define TW_CUDA_NORM_BINS 256

/** Sum squares into bins [2][TW_CUDA_NORM_BINS], uint64 in device memory, which the caller zeroes first. Each
 *  exponent has a bin: the sum of the squares of the mantissas (integers below 2^8, or 2^24) of values [n],
 *  bf16 or fp32, with that exponent; the last bin counts values that are not finite. A sum is the first row's
 *  bin plus 2^32 times the second row's. They are integers, so the order of adding does not matter.
 *  trainer/engine's tw_norm_add_bins goes on from there on the host. TW_ERR_INVALID: another type. */
tw_status_t tw_cuda_norm_bins(tw_type_t type, const void *values, size_t n, uint64_t *bins,
                              tw_stream_t stream);

/* ---- AdamW --------------------------------------------------------------------------------------------- */

typedef struct tw_cuda_adamw_tensor {
    const void *grad;      /**< step->grad_type [n] */
    float *master, *m, *v; /**< [n], updated in place; m and v start as zeros */
    /** weight_type [n], output: the new masters, rounded to the nearest; NULL: not wanted */
    void *weights;
    tw_type_t weight_type;
    size_t n_elems;
} tw_cuda_adamw_tensor_t;

/** Take a step of AdamW, with the bits of tw_quant_adamw_encode_delta, but without encoding. step->grad_scale
 *  is device memory, or NULL. TW_ERR_INVALID: another type, step 0. */
tw_status_t tw_cuda_adamw(const tw_quant_adamw_t *step, const tw_cuda_adamw_tensor_t *tensor,
                          tw_stream_t stream);

TW_C_END
