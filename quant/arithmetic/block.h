/** The arithmetic of one block: scale, rounding, rotation. Shared by the reference, the SIMD twins' scalar tails and
 *  the CUDA kernels, which is what makes their bytes equal. Specification: the head of quant.h.
 *  Compiles as C11, C++17 and CUDA. */
#ifndef TW_QUANT_BLOCK_H
#define TW_QUANT_BLOCK_H

#include "quant/arithmetic/float.h"
#include "quant/arithmetic/layout.h"
#include "quant/arithmetic/philox.h"
#include "quant/quant.h"

/* ---- scale ----------------------------------------------------------------------------------------------------
 * Magnitudes are compared as integers: the order of abs_bits is that of |x|, with NaN above infinity, so that one
 * maximum finds both the amax and any non-finite element. */

TW_HD static inline int tw_qb_qmax(int bits)
{
    return (1 << (bits - 1)) - 1;
}

/** Does a block with this largest magnitude get the NaN scale? */
TW_HD static inline int tw_qb_amax_is_nonfinite(uint32_t amax_bits, int hadamard)
{
    return amax_bits > (hadamard ? TW_QB_LIMIT_ROTATED : TW_QB_MAX_BITS);
}

/** The scale as stored and used, for a finite amax: 0, or in [2^-125, 2^126). */
TW_HD static inline float tw_qb_scale(float amax, int qmax, tw_quant_scale_t type)
{
    if (amax == 0.0f) {
        return 0.0f;
    }
    uint32_t bits = tw_qb_bits(tw_qb_div(amax, (float)qmax));
    if (bits < TW_QB_SCALE_MIN) {
        bits = TW_QB_SCALE_MIN;
    }
    if (type == TW_QUANT_SCALE_BF16) {
        bits = (bits + 0xffffu) & 0xffff0000u; /* up, so that amax does not clip */
    }
    return tw_qb_float(bits);
}

/** Factor to quantize with; 0 for a zero scale, so that the codes become 0. */
TW_HD static inline float tw_qb_inverse(float scale)
{
    return scale == 0.0f ? 0.0f : tw_qb_div(1.0f, scale);
}

TW_HD static inline int tw_qb_scale_is_nonfinite(float scale)
{
    return tw_qb_abs_bits(scale) >= TW_QB_EXP_BITS;
}

/** Can a code times this scale, with Hadamard after being rotated back, exceed the type's range? Then the block takes
 *  the path that clamps and saturates. 2^(bits-1) rather than qmax: a foreign encoder may use the lowest code. */
TW_HD static inline int tw_qb_may_overflow(float scale, int bits, int hadamard, tw_type_t type)
{
    float reach = tw_qb_mul(tw_qb_float(tw_qb_abs_bits(scale)), (float)(1 << (bits - 1)));
    return !(tw_qb_mul(reach, hadamard ? 8.0f : 1.0f) <= tw_qb_type_max(type)); /* 8 > 2^2.5 */
}

/* ---- rounding ------------------------------------------------------------------------------------------------- */

TW_HD static inline int tw_qb_clamp_code(int q, int qmax)
{
    return q > qmax ? qmax : q < -qmax ? -qmax : q;
}

/** v = y * inverse, |v| < 2^21: adding 1.5 * 2^23 rounds to an integer, to nearest even. */
TW_HD static inline int tw_qb_round_nearest(float v, int qmax)
{
    float rounded = tw_qb_sub(tw_qb_add(v, 12582912.0f), 12582912.0f);
    return tw_qb_clamp_code((int)rounded, qmax);
}

/** The uniform number in [0, 1) of a random word. */
TW_HD static inline float tw_qb_uniform(uint32_t word)
{
    return tw_qb_mul((float)(word >> 8), 0x1p-24f);
}

TW_HD static inline int tw_qb_round_stochastic(float v, float uniform, int qmax)
{
    int whole = (int)v;
    if ((float)whole > v) {
        whole--;
    }
    return tw_qb_clamp_code(whole + (uniform < tw_qb_sub(v, (float)whole) ? 1 : 0), qmax);
}

/** Decoded value, still rotated; clamped because a rounded-up scale may carry the largest fp32 over the top. */
TW_HD static inline float tw_qb_dequantize(int q, float scale)
{
    float z = tw_qb_mul((float)q, scale);
    if (tw_qb_abs_bits(z) == TW_QB_EXP_BITS) {
        z = tw_qb_float(tw_qb_bits(z) - 1u);
    }
    return z;
}

/* ---- Hadamard ------------------------------------------------------------------------------------------------- */

/** In place on 32 values. */
TW_HD static inline void tw_qb_hadamard32(float *y)
{
    for (int stride = 1; stride < TW_QUANT_HADAMARD_ELEMS; stride *= 2) {
        for (int i = 0; i < TW_QUANT_HADAMARD_ELEMS; i++) {
            if (i & stride) {
                continue;
            }
            float a = y[i], b = y[i + stride];
            y[i] = tw_qb_add(a, b);
            y[i + stride] = tw_qb_sub(a, b);
        }
    }
    for (int i = 0; i < TW_QUANT_HADAMARD_ELEMS; i++) {
        y[i] = tw_qb_mul(y[i], TW_QB_HADAMARD_NORM);
    }
}

#endif
