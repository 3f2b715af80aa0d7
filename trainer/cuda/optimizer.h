/** Part of trainer/cuda (see cuda.h): the norm of gradients, without rounding, and AdamW on fp32 masters. */
#pragma once

#include "core/core.h"
#include "quant/quant.h"

TW_C_BEGIN

/* ---- norm of gradients --------------------------------------------------------------------------------- */

#define TW_CUDA_NORM_BINS 256

/** Add squares to bins [2][TW_CUDA_NORM_BINS], uint64 in device memory, which the caller zeroes first. Each
 *  exponent has a bin: the sum of squared mantissas (integers below 2^8 in bf16, 2^24 in fp32) of the values
 *  [n] with that exponent. The last bin counts values that are not finite. A bin's value is its entry in the
 *  first row plus 2^32 times that in the second. All are integers, so the order of adding does not matter.
 *  tw_norm_add_bins (trainer/engine) then adds the bins on the host. TW_ERR_INVALID: another type. */
tw_status_t tw_cuda_norm_bins(tw_type_t type, const void *values, size_t n, uint64_t *bins,
                              tw_stream_t stream);

/* ---- AdamW --------------------------------------------------------------------------------------------- */

typedef struct tw_cuda_adamw_tensor {
    const void *grad;      /**< step->grad_type [n] */
    float *master, *m, *v; /**< [n], updated in place; m and v start as zeros */
    /** weight_type [n], output: the new masters, rounded to the nearest; may be NULL */
    void *weights;
    tw_type_t weight_type;
    size_t n_elems;
} tw_cuda_adamw_tensor_t;

/** Take a step of AdamW with the bits of tw_quant_adamw_encode_delta, but encode nothing. step->grad_scale is
 *  device memory, or NULL. TW_ERR_INVALID: another type, or step 0. */
tw_status_t tw_cuda_adamw(const tw_quant_adamw_t *step, const tw_cuda_adamw_tensor_t *tensor,
                          tw_stream_t stream);

TW_C_END
