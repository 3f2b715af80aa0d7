/** Part of trainer/cuda (see cuda.h): the norm of gradients, without rounding, and AdamW on fp32 masters. */
#pragma once

#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/* ---- norm of gradients --------------------------------------------------------------------------------- */

#define TW_CUDA_NORM_BINS 256

/** bins [2][TW_CUDA_NORM_BINS] uint64, device memory, are added to: for each exponent of values [n], bf16 or
 *  fp32, the sum of the squares of mantissas (integers below 2^8, or 2^24) of those that have it; in the last
 *  one, how many values are not finite. A sum is a bin of the first row and 2^32 times that of the second.
 *  Integers: the sum does not depend on who adds what. Zero them first; trainer/engine's tw_norm_add_bins
 *  goes on from there on the host. TW_ERR_INVALID: another type. */
tw_status_t tw_cuda_norm_bins(tw_type_t type, const void *values, size_t n, uint64_t *bins,
                              tw_stream_t stream);

/* ---- AdamW --------------------------------------------------------------------------------------------- */

typedef struct tw_cuda_adamw_tensor {
    const void *grad;      /**< step->grad_type [n] */
    float *master, *m, *v; /**< [n], updated in place; m and v start as zeros */
    void *weights;         /**< weight_type [n] = the new masters, to the nearest; NULL: nowhere */
    tw_type_t weight_type;
    size_t n_elems;
} tw_cuda_adamw_tensor_t;

/** A step, as tw_quant_adamw_encode_delta describes it, with the same bits, but without encoding.
 *  step->grad_scale is device memory, or NULL. TW_ERR_INVALID: another type, step 0. */
tw_status_t tw_cuda_adamw(const tw_quant_adamw_t *step, const tw_cuda_adamw_tensor_t *tensor,
                          tw_stream_t stream);

TW_C_END
