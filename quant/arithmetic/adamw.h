/** AdamW: the factors of a step and the update of one element. The CPU code and the CUDA kernel share them.
 *  Compiles as C11, C++17 and CUDA. Source: Loshchilov and Hutter, "Decoupled weight decay regularization"
 *  (arXiv 1711.05101), algorithm 2, with the bias corrections folded into the step size and the second
 *  moment's root. */
#pragma once

#include "quant/arithmetic/float.h"
#include "quant/quant.h"

#include <math.h>

/** Factors of step t. The host computes them in fp64 and rounds each of them to fp32 once. */
typedef struct tw_adamw_factors {
    float keep;         /**< 1 - lr * weight_decay */
    float beta1, rest1; /**< rest1 = 1 - beta1 */
    float beta2, rest2;
    float step_size; /**< lr / (1 - beta1^t) */
    float root_inv;  /**< 1 / sqrt(1 - beta2^t) */
    float eps;
} tw_adamw_factors_t;

static inline tw_adamw_factors_t tw_adamw_factors_of(const tw_quant_adamw_t *adamw)
{
    tw_adamw_factors_t f;
    f.keep = (float)(1.0 - adamw->lr * adamw->weight_decay);
    f.beta1 = (float)adamw->beta1;
    f.rest1 = (float)(1.0 - adamw->beta1);
    f.beta2 = (float)adamw->beta2;
    f.rest2 = (float)(1.0 - adamw->beta2);
    f.step_size = (float)(adamw->lr / (1.0 - pow(adamw->beta1, (double)adamw->step)));
    f.root_inv = (float)(1.0 / sqrt(1.0 - pow(adamw->beta2, (double)adamw->step)));
    f.eps = (float)adamw->eps;
    return f;
}

TW_HD static inline float tw_adamw_sqrt(float x)
{
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return sqrtf(x);
#endif
}

/** Returns x, or if x is a NaN, the one NaN that all backends store. */
TW_HD static inline float tw_adamw_result(float x)
{
    return x == x ? x : tw_float_of_bits(TW_FLOAT_NAN_BITS);
}

/** Update the moments in place, and return the new master weight. */
TW_HD static inline float tw_adamw_element(const tw_adamw_factors_t *f, float grad, float master, float *m,
                                           float *v)
{
    *m = tw_adamw_result(tw_float_add(tw_float_mul(f->beta1, *m), tw_float_mul(f->rest1, grad)));
    *v = tw_adamw_result(
        tw_float_add(tw_float_mul(f->beta2, *v), tw_float_mul(f->rest2, tw_float_mul(grad, grad))));
    float root = tw_float_add(tw_float_mul(tw_adamw_sqrt(*v), f->root_inv), f->eps);
    return tw_adamw_result(
        tw_float_sub(tw_float_mul(master, f->keep), tw_float_mul(f->step_size, tw_float_div(*m, root))));
}
