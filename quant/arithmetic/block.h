/** The arithmetic of one block: scale, rounding, rotation. The reference, the scalar tails of the SIMD code
 *  and the CUDA kernels share it, so they write the same bytes. Specification: the top of block_codec.h.
 *  Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/arithmetic/float.h"
#include "quant/arithmetic/layout.h"
#include "quant/arithmetic/philox.h"
#include "quant/quant.h"

/** Bits of 2^122. A rotated block that has a larger magnitude counts as non-finite. */
#define TW_BLOCK_LIMIT_ROTATED 0x7c800000u
/** Bits of 2^-125, the smallest scale other than 0. So all scales are normal numbers. Their
 *  inverses are normal numbers, too, except the inverses of int2's largest scales. */
#define TW_BLOCK_SCALE_MIN 0x01000000u
#define TW_BLOCK_HADAMARD_NORM 0x1.6a09e6p-3f /**< 2^-2.5 */

/* ---- scale --------------------------------------------------------------------------------------------- */

/* Magnitudes are compared as integers: abs_bits has the order of |x|, with NaN above infinity, so one maximum
 * gives the largest magnitude (amax) and also shows whether any element is non-finite. */

/** The largest code that our encoders write, in steps of the scale. fp8's step is e4m3's smallest number. */
TW_HD static inline int tw_block_qmax(tw_quant_kind_t kind)
{
    return kind == TW_QUANT_FP8 ? 448 * 512 : (1 << (TW_CODE_BITS(kind) - 1)) - 1;
}

/** The largest magnitude that a code can hold, in steps of the scale. Only other encoders may write it. */
TW_HD static inline int tw_block_qmax_foreign(tw_quant_kind_t kind)
{
    return kind == TW_QUANT_FP8 ? 480 * 512 : 1 << (TW_CODE_BITS(kind) - 1);
}

/** The magnitude that the block's largest value maps to, in steps of the scale. It is qmax, except for 2
 *  bits: there it is 2, which rounding then clips to 1. */
TW_HD static inline int tw_block_reach(tw_quant_kind_t kind)
{
    return kind == TW_QUANT_INT2 ? 2 : tw_block_qmax(kind);
}

/** The largest rounding error of a value, in steps of the scale. It is half a step. With 2 bits it is 1,
 *  because 2 is clipped to 1. With fp8 it is half the distance between the two largest codes, 416 and 448. */
TW_HD static inline double tw_block_error_steps(tw_quant_kind_t kind)
{
    return kind == TW_QUANT_INT2 ? 1 : kind == TW_QUANT_FP8 ? 16 * 512 : 0.5;
}

/** Whether a block with this largest magnitude gets the NaN scale. */
TW_HD static inline int tw_block_amax_is_nonfinite(uint32_t amax_bits, int hadamard)
{
    return amax_bits > (hadamard ? TW_BLOCK_LIMIT_ROTATED : TW_FLOAT_MAX_BITS);
}

/** The scale for a finite amax, rounded to `type` as it is stored. It is 0 or in [2^-125, 2^126); codes of 2
 *  bits have scales up to 2^127. */
TW_HD static inline float tw_block_scale(float amax, int reach, tw_quant_scale_t type)
{
    if (amax == 0.0f) {
        return 0.0f;
    }
    uint32_t bits = tw_float_bits(tw_float_div(amax, (float)reach));
    if (bits < TW_BLOCK_SCALE_MIN) {
        bits = TW_BLOCK_SCALE_MIN;
    }
    if (type == TW_QUANT_SCALE_BF16) {
        bits = (bits + 0xffffu) & 0xffff0000u; /* round up, so that amax does not clip */
    }
    return tw_float_of_bits(bits);
}

/** 1 / scale, the factor that turns values into steps. It is 0 for a zero scale, so that codes become 0. */
TW_HD static inline float tw_block_inverse(float scale)
{
    return scale == 0.0f ? 0.0f : tw_float_div(1.0f, scale);
}

TW_HD static inline int tw_block_scale_is_nonfinite(float scale)
{
    return tw_float_abs_bits(scale) >= TW_FLOAT_INF_BITS;
}

/** Whether some code times this scale can exceed the type's range, after the rotation (if any) is undone. If
 *  so, the decoder takes the path that clamps and saturates. */
TW_HD static inline int tw_block_may_overflow(float scale, tw_quant_kind_t kind, int hadamard, tw_type_t type)
{
    float reach =
        tw_float_mul(tw_float_of_bits(tw_float_abs_bits(scale)), (float)tw_block_qmax_foreign(kind));
    return !(tw_float_mul(reach, hadamard ? 8.0f : 1.0f) <= tw_float_type_max(type)); /* 8 > 2^2.5 */
}

/* ---- rounding ------------------------------------------------------------------------------------------ */

TW_HD static inline int tw_block_clamp_code(int q, int qmax)
{
    return q > qmax ? qmax : q < -qmax ? -qmax : q;
}

/** Round v = y * inverse to the nearest integer, ties to even. Adding 1.5 * 2^23 does that if |v| < 2^21. */
TW_HD static inline int tw_block_round_nearest(float v, int qmax)
{
    float rounded = tw_float_sub(tw_float_add(v, 12582912.0f), 12582912.0f);
    return tw_block_clamp_code((int)rounded, qmax);
}

/** Bits of 8.0f. An e4m3 below 8 steps of its smallest number is denormal; at 8 its exponent field is 1. */
#define TW_BLOCK_FP8_NORMAL 0x41000000u
/** If an fp32 is 8 or more, its upper 12 bits minus this are its e4m3 code. */
#define TW_BLOCK_FP8_BIAS 1032

/** The e4m3 code of v, saturated; v is in steps of the smallest e4m3. For v >= 0 the code is 0 to 0x7e. For v
 *  < 0 it is the code of -v, less 128: as a byte, the sign bit is set. */
TW_HD static inline int tw_block_fp8_nearest(float v)
{
    uint32_t bits = tw_float_abs_bits(v), up = bits + 0x7ffffu + (bits >> 20 & 1u);
    int code = bits < TW_BLOCK_FP8_NORMAL ? tw_block_round_nearest(tw_float_of_bits(bits), 8)
                                          : (int)(up >> 20) - TW_BLOCK_FP8_BIAS;
    code = code > 0x7e ? 0x7e : code;
    return v < 0.0f ? code - 128 : code;
}

/** The code that v = y * inverse rounds to, nearest even. */
TW_HD static inline int tw_block_code_nearest(tw_quant_kind_t kind, float v)
{
    return kind == TW_QUANT_FP8 ? tw_block_fp8_nearest(v) : tw_block_round_nearest(v, tw_block_qmax(kind));
}

/** Turns a random word into a uniform number in [0, 1). */
TW_HD static inline float tw_block_uniform(uint32_t word)
{
    return tw_float_mul((float)(word >> 8), 0x1p-24f);
}

TW_HD static inline int tw_block_round_stochastic(float v, float uniform, int qmax)
{
    int whole = (int)v;
    if ((float)whole > v) {
        whole--;
    }
    return tw_block_clamp_code(whole + (uniform < tw_float_sub(v, (float)whole) ? 1 : 0), qmax);
}

/** The value of an e4m3 code (negative if its sign bit is set), in steps of the smallest e4m3. */
TW_HD static inline float tw_block_fp8_value(int code)
{
    uint32_t magnitude = (uint32_t)code & 0x7fu;
    float value = magnitude < 8 ? (float)magnitude : tw_float_of_bits((magnitude + TW_BLOCK_FP8_BIAS) << 20);
    return code < 0 ? -value : value;
}

/** The value of a code, in steps of the scale. */
TW_HD static inline float tw_block_code_value(tw_quant_kind_t kind, int code)
{
    return kind == TW_QUANT_FP8 ? tw_block_fp8_value(code) : (float)code;
}

/** The decoded value of q steps, before the rotation is undone. It is clamped to finite fp32: since scales
 *  are rounded up, the largest fp32 could overflow. */
TW_HD static inline float tw_block_dequantize(float q, float scale)
{
    float z = tw_float_mul(q, scale);
    if (tw_float_abs_bits(z) == TW_FLOAT_INF_BITS) {
        z = tw_float_of_bits(tw_float_bits(z) - 1u);
    }
    return z;
}

/** Decodes code i of a block with the block's scale. The rotation is not undone. */
TW_HD static inline float tw_block_decode_code(const uint8_t *codes, tw_quant_kind_t kind, size_t i,
                                               float scale)
{
    return tw_block_scale_is_nonfinite(scale)
               ? tw_float_of_bits(TW_FLOAT_NAN_BITS)
               : tw_block_dequantize(
                     tw_block_code_value(kind, tw_layout_code_get(codes, TW_CODE_BITS(kind), i)), scale);
}

/* ---- Hadamard ------------------------------------------------------------------------------------------ */

/** Rotate 32 values in place. */
TW_HD static inline void tw_block_hadamard32(float *y)
{
    for (int stride = 1; stride < TW_QUANT_HADAMARD_ELEMS; stride *= 2) {
        for (int i = 0; i < TW_QUANT_HADAMARD_ELEMS; i++) {
            if (i & stride) {
                continue;
            }
            float a = y[i], b = y[i + stride];
            y[i] = tw_float_add(a, b);
            y[i + stride] = tw_float_sub(a, b);
        }
    }
    for (int i = 0; i < TW_QUANT_HADAMARD_ELEMS; i++) {
        y[i] = tw_float_mul(y[i], TW_BLOCK_HADAMARD_NORM);
    }
}
