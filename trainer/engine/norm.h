/** The gradient's norm, without rounding. Squares of bf16 or fp32 values are integers times a power of two;
 *  they are added as one wide integer. So the sum depends neither on the order of values nor on ranks. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

#define TW_NORM_LIMBS 10

/** The sum of squares in units of the square of the smallest value (bf16: 2^-266, fp32: 2^-298), least
 *  significant limb first. It has room for 2^60 of the largest squares. It starts as all zeros. */
typedef struct tw_norm {
    uint64_t limbs[TW_NORM_LIMBS];
    uint64_t n_nonfinite; /**< count of NaN and Inf values, which are left out of the sum */
} tw_norm_t;

/** Add values, type[n_elems], bf16 or fp32; all values of a norm have one type. */
void tw_norm_add(tw_norm_t *norm, tw_type_t type, const void *values, size_t n_elems);
/** Add values that were summed into bins, for instance on a GPU. bins [256], one per exponent, are sums of
 *  the squares of mantissas (integers below 2^8 in bf16, 2^24 in fp32), in units of 2^shift, shift <= 32. The
 *  last bin counts values that are not finite. */
void tw_norm_add_bins(tw_norm_t *norm, const uint64_t *bins, unsigned shift);
void tw_norm_merge(tw_norm_t *norm, const tw_norm_t *other);
/** Return the 2-norm; NaN if a value was not finite. */
double tw_norm_value(const tw_norm_t *norm, tw_type_t type);

TW_C_END
