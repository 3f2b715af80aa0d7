/** Floats as bits, fp32 arithmetic without fused multiply-add, and conversions of bf16 and fp16 with integer
 *  operations. The host's compiler, SIMD code and nvcc all give the same bits. Compiles as C11, C++17 and
 *  CUDA.
 *
 *  In this folder a function's name begins with its file's name. Read the files in this order: float.h,
 *  layout.h, philox.h, block.h, adamw.h. Functions are pure and do not use libm, except AdamW's factors. On a
 *  GPU tw_float_add, _sub and _mul are intrinsics, which nvcc never fuses; host compilers get
 *  -ffp-contract=off. Requires the default floating-point environment: round to nearest, denormals kept. */
#pragma once

#include "core/core.h"

#include <string.h>

#ifdef __CUDACC__
#define TW_HD __host__ __device__
#else
#define TW_HD
#endif

/* ---- bits of a float and arithmetic without contraction ------------------------------------------------ */

#define TW_FLOAT_INF_BITS 0x7f800000u     /**< +Inf; larger bits are NaN */
#define TW_FLOAT_MAX_BITS 0x7f7fffffu     /**< largest finite fp32 */
#define TW_FLOAT_NAN_BITS 0x7fc00000u     /**< the quiet NaN that is stored and decoded */
#define TW_FLOAT_NEW_NAN_BITS 0xffc00000u /**< what x86 makes of Inf - Inf */

TW_HD static inline uint32_t tw_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

TW_HD static inline float tw_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

TW_HD static inline uint32_t tw_float_abs_bits(float x)
{
    return tw_float_bits(x) & 0x7fffffffu;
}

TW_HD static inline float tw_float_add(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

/** a + b with the NaN that x86 gives: a's if a is NaN, else b's, else a new one. A GPU's own addition gives
 *  one NaN for all cases. */
TW_HD static inline float tw_float_add_nan(float a, float b)
{
    float sum = tw_float_add(a, b);
    if (tw_float_abs_bits(sum) <= TW_FLOAT_INF_BITS) {
        return sum;
    }
    uint32_t bits = tw_float_abs_bits(a) > TW_FLOAT_INF_BITS   ? tw_float_bits(a)
                    : tw_float_abs_bits(b) > TW_FLOAT_INF_BITS ? tw_float_bits(b)
                                                               : TW_FLOAT_NEW_NAN_BITS;
    return tw_float_of_bits(bits | 0x400000u);
}

TW_HD static inline float tw_float_sub(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

TW_HD static inline float tw_float_mul(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

TW_HD static inline float tw_float_div(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

/* ---- types --------------------------------------------------------------------------------------------- */

/* A NaN keeps its sign and the leading bits of its payload, and becomes quiet, as with x86's F16C. */

TW_HD static inline float tw_float_from_bf16(uint16_t h)
{
    return tw_float_of_bits((uint32_t)h << 16);
}

TW_HD static inline uint16_t tw_float_to_bf16(float x)
{
    uint32_t bits = tw_float_bits(x);
    if ((bits & 0x7fffffffu) > TW_FLOAT_INF_BITS) {
        return (uint16_t)((bits >> 16) | 0x0040u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

TW_HD static inline float tw_float_from_fp16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0) { /* zero or denormal: the value is mantissa * 2^-24, exactly */
        float x = tw_float_mul((float)mantissa, 0x1p-24f);
        return tw_float_of_bits(tw_float_bits(x) | sign);
    }
    if (exponent == 0x1fu) {
        return tw_float_of_bits(sign | TW_FLOAT_INF_BITS | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
    }
    return tw_float_of_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

TW_HD static inline uint16_t tw_float_to_fp16(float x)
{
    uint32_t bits = tw_float_bits(x), sign = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu;
    if (a > TW_FLOAT_INF_BITS) {
        return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    }
    if (a >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a >= 0x38800000u) { /* from 2^-14 on fp16 is normal */
        a -= 112u << 23;
        return (uint16_t)(sign | ((a + 0xfffu + ((a >> 13) & 1u)) >> 13));
    }
    if (a < 0x33000000u) { /* below 2^-25, half of the smallest denormal, it rounds to 0 */
        return (uint16_t)sign;
    }
    uint32_t mantissa = (a & 0x7fffffu) | 0x800000u, shift = 126u - (a >> 23); /* the shift is 14 to 24 */
    uint32_t half = 1u << (shift - 1u), kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u);
    kept += (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    return (uint16_t)(sign | kept);
}

/** Round to bf16. A finite value beyond its range becomes its largest number; infinities and NaN stay. */
TW_HD static inline uint16_t tw_float_to_bf16_saturate(float x)
{
    uint16_t h = tw_float_to_bf16(x);
    return (h & 0x7fffu) == 0x7f80u && tw_float_abs_bits(x) < TW_FLOAT_INF_BITS ? (uint16_t)(h - 1u) : h;
}

TW_HD static inline uint16_t tw_float_to_fp16_saturate(float x)
{
    uint16_t h = tw_float_to_fp16(x);
    return (h & 0x7fffu) == 0x7c00u && tw_float_abs_bits(x) < TW_FLOAT_INF_BITS ? (uint16_t)(h - 1u) : h;
}

/** Element i of an array, as fp32. The type must be fp32, bf16 or fp16: callers have refused all others. */
TW_HD static inline float tw_float_load(tw_type_t type, const void *src, size_t i)
{
    if (type == TW_TYPE_FP32) {
        return ((const float *)src)[i];
    }
    uint16_t h = ((const uint16_t *)src)[i];
    return type == TW_TYPE_BF16 ? tw_float_from_bf16(h) : tw_float_from_fp16(h);
}

TW_HD static inline void tw_float_store(tw_type_t type, void *dst, size_t i, float x)
{
    if (type == TW_TYPE_FP32) {
        ((float *)dst)[i] = x;
    } else {
        ((uint16_t *)dst)[i] = type == TW_TYPE_BF16 ? tw_float_to_bf16(x) : tw_float_to_fp16(x);
    }
}

TW_HD static inline void tw_float_store_saturate(tw_type_t type, void *dst, size_t i, float x)
{
    if (type == TW_TYPE_FP32) {
        ((float *)dst)[i] = x;
    } else {
        ((uint16_t *)dst)[i] =
            type == TW_TYPE_BF16 ? tw_float_to_bf16_saturate(x) : tw_float_to_fp16_saturate(x);
    }
}

/** Largest finite value of a type. */
TW_HD static inline float tw_float_type_max(tw_type_t type)
{
    return type == TW_TYPE_FP16 ? 65504.0f
                                : tw_float_of_bits(type == TW_TYPE_BF16 ? 0x7f7f0000u : TW_FLOAT_MAX_BITS);
}
