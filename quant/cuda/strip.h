/** Arithmetic on strips: block.h for the 16 elements that a CUDA thread holds. It avoids instructions that
 *  are slow on GPUs (divisions, conversions between integers and floats), and moves rare cases out of the
 *  common path. It gives block.h's bits; tests on the CPU compare both. C++17 and CUDA. */
#pragma once

#include "quant/arithmetic/block.h"
#include "quant/cuda/tiling.h"

#include <math.h>

/** The 32-bit words of a strip's codes. */
#define TW_STRIP_CODE_WORDS(kind) (TW_CODE_BITS(kind) / 2)

/* ---- primitives ---------------------------------------------------------------------------------------- */

/** Byte i of the result is byte number (selector >> 4 * i & 7); bytes 0 to 3 are a's, 4 to 7 are b's. */
TW_HD static inline uint32_t tw_strip_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(a, b, selector);
#else
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (uint32_t)(both >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
    }
    return out;
#endif
}

TW_HD static inline float tw_strip_fma(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

/** a * b + c, only for exact a * b: then a fused multiply-add gives the same bits. */
TW_HD static inline float tw_strip_fma_exact(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return a * b + c;
#endif
}

TW_HD static inline bool tw_strip_is_nan(float x)
{
    return tw_float_abs_bits(x) > TW_FLOAT_INF_BITS;
}

/** The larger magnitude; NaN if either is NaN. */
TW_HD static inline float tw_strip_max_magnitude(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float c;
    asm("{ .reg .f32 ma, mb; abs.f32 ma, %1; abs.f32 mb, %2; max.NaN.f32 %0, ma, mb; }"
        : "=f"(c)
        : "f"(a), "f"(b));
    return c;
#else
    uint32_t ma = tw_float_abs_bits(a), mb = tw_float_abs_bits(b);
    return tw_float_of_bits(ma > mb ? ma : mb);
#endif
}

TW_HD static inline uint32_t tw_strip_amax_bits(const float (&x)[TW_STRIP_ELEMS])
{
    float amax = x[0];
    for (int i = 1; i < TW_STRIP_ELEMS; i++) {
        amax = tw_strip_max_magnitude(amax, x[i]);
    }
    return tw_float_abs_bits(amax);
}

/* ---- scale --------------------------------------------------------------------------------------------- */

/** a / reach, correctly rounded from 2^-125 on, because there the residual of the first guess is exact. */
TW_HD static inline float tw_strip_divide(float a, float reach, float reach_inv)
{
    float q = tw_float_mul(a, reach_inv);
    return tw_strip_fma(tw_strip_fma(-q, reach, a), reach_inv, q);
}

/** tw_block_scale, with the same bits. */
TW_HD static inline float tw_strip_scale(float amax, float reach, float reach_inv, bool fp32)
{
    uint32_t bits = tw_float_bits(tw_strip_divide(amax, reach, reach_inv));
    bits = bits < TW_BLOCK_SCALE_MIN ? TW_BLOCK_SCALE_MIN : bits;
    bits = fp32 ? bits : (bits + 0xffffu) & 0xffff0000u;
    return amax == 0.0f ? 0.0f : tw_float_of_bits(bits);
}

/** tw_block_inverse, with the same bits. */
TW_HD static inline float tw_strip_inverse(float scale)
{
#ifdef __CUDA_ARCH__
    float inverse = __frcp_rn(scale);
#else
    float inverse = 1.0f / scale;
#endif
    return scale == 0.0f ? 0.0f : inverse;
}

/** Whether a scale is positive and below 2^109, so that no code times it overflows. */
TW_HD static inline bool tw_strip_scale_is_small(float scale)
{
    return tw_float_bits(scale) < 0x76000000u;
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/* A float in [2^23, 2^24) holds an integer in its lowest bits: a conversion is byte moves and an addition. */

template <int KIND>
TW_HD static inline void tw_strip_unpack(const uint32_t (&codes)[TW_STRIP_CODE_WORDS(KIND)],
                                         float (&q)[TW_STRIP_ELEMS])
{
    const uint32_t exponent = 0x4B000000u; /* 2^23 */
    const float bias = 8388608.0f + (float)(1 << (TW_CODE_BITS(KIND) - 1));
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        uint32_t word, byte;
        if (KIND == TW_QUANT_FP8) {
            q[i] = tw_block_fp8_value((int8_t)(codes[i / 4] >> (8 * (i % 4))));
            continue;
        } else if (TW_CODE_BITS(KIND) == 8) {
            word = codes[i / 4] ^ 0x80808080u;
            byte = i % 4;
        } else if (TW_CODE_BITS(KIND) == 4) {
            word = (codes[i / 8] ^ 0x88888888u) >> (i % 2 * 4) & 0x0f0f0f0fu;
            byte = i % 8 / 2;
        } else {
            word = (codes[0] ^ 0xaaaaaaaau) >> (i % 4 * 2) & 0x03030303u;
            byte = i / 4;
        }
        q[i] = tw_float_sub(tw_float_of_bits(tw_strip_bytes(word, exponent, 0x7540u | byte)), bias);
    }
}

TW_HD static inline uint32_t tw_strip_lowest_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return tw_strip_bytes(tw_strip_bytes(a, b, 0x0040u), tw_strip_bytes(c, d, 0x0040u), 0x5410u);
}

/** Pack 16 words, whose lowest bits are codes, into a strip's code words. */
template <int KIND>
TW_HD static inline void tw_strip_pack(const uint32_t (&q)[TW_STRIP_ELEMS],
                                       uint32_t (&codes)[TW_STRIP_CODE_WORDS(KIND)])
{
    for (int w = 0; w < TW_STRIP_CODE_WORDS(KIND); w++) {
        if (TW_CODE_BITS(KIND) == 8) {
            codes[w] = tw_strip_lowest_bytes(q[4 * w], q[4 * w + 1], q[4 * w + 2], q[4 * w + 3]);
        } else if (TW_CODE_BITS(KIND) == 2) {
            codes[w] = 0;
            for (int i = 0; i < 4; i++) {
                codes[w] |= (tw_strip_lowest_bytes(q[i], q[4 + i], q[8 + i], q[12 + i]) & 0x03030303u)
                            << (2 * i);
            }
        } else {
            uint32_t even = tw_strip_lowest_bytes(q[8 * w], q[8 * w + 2], q[8 * w + 4], q[8 * w + 6]);
            uint32_t odd = tw_strip_lowest_bytes(q[8 * w + 1], q[8 * w + 3], q[8 * w + 5], q[8 * w + 7]);
            codes[w] = (even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u);
        }
    }
}

/** Round to nearest even. Only 2-bit codes are clamped. For other kinds |x * inverse| is at most qmax * (1 +
 *  2^-22), if tw_block_scale made the scale; that rounds to at most qmax. */
template <int KIND>
TW_HD static inline void tw_strip_quantize_nearest(const float (&x)[TW_STRIP_ELEMS], float inverse,
                                                   uint32_t (&q)[TW_STRIP_ELEMS])
{
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        float v = tw_float_mul(x[i], inverse);
        if (KIND == TW_QUANT_INT2) {
            v = v > 1.0f ? 1.0f : v < -1.0f ? -1.0f : v;
        }
        q[i] = KIND == TW_QUANT_FP8 ? (uint32_t)tw_block_fp8_nearest(v)
                                    : tw_float_bits(tw_float_add(v, 12582912.0f));
    }
}

/** Round stochastically, with one random word per element. */
template <int KIND>
TW_HD static inline void tw_strip_quantize_stochastic(const float (&x)[TW_STRIP_ELEMS], float inverse,
                                                      const uint32_t (&random)[TW_STRIP_ELEMS],
                                                      uint32_t (&q)[TW_STRIP_ELEMS])
{
    const float magic = 12582912.0f, qmax = (float)tw_block_qmax((tw_quant_kind_t)KIND);
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        float v = tw_float_mul(x[i], inverse);
        float whole = tw_float_sub(tw_float_add(v, magic), magic);
        whole = whole > v ? tw_float_sub(whole, 1.0f) : whole; /* floor */
        float code = tw_block_uniform(random[i]) < tw_float_sub(v, whole) ? tw_float_add(whole, 1.0f) : whole;
        code = code > qmax ? qmax : code < -qmax ? -qmax : code;
        q[i] = tw_float_bits(tw_float_add(code, magic));
    }
}

/** Make the random words of elements elem .. elem + 15. */
TW_HD static inline void tw_strip_random(uint64_t seed, uint32_t step, uint32_t tensor, uint64_t elem,
                                         uint32_t (&random)[TW_STRIP_ELEMS])
{
    uint32_t shift = (uint32_t)elem & 3, words[TW_STRIP_ELEMS + 4];
    for (int quad = 0; quad <= TW_STRIP_ELEMS / 4; quad++) {
        tw_philox_words_t r = {{0, 0, 0, 0}};
        if (quad < TW_STRIP_ELEMS / 4 || shift) {
            r = tw_philox_quad(seed, step, tensor, (elem >> 2) + (uint64_t)quad);
        }
        for (int i = 0; i < 4; i++) {
            words[4 * quad + i] = r.word[i];
        }
    }
    /* Shift by 0 to 3 words, in two steps. An index unknown at compile time would move the array from
     * registers to memory. */
    for (int i = 0; i < TW_STRIP_ELEMS + 3; i++) {
        words[i] = shift & 1 ? words[i + 1] : words[i];
    }
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        random[i] = shift & 2 ? words[i + 2] : words[i];
    }
}

/** Decode values, without undoing the rotation. `overflow`: tw_block_may_overflow for fp32. */
template <int KIND>
TW_HD static inline void tw_strip_dequantize(const uint32_t (&codes)[TW_STRIP_CODE_WORDS(KIND)], float scale,
                                             bool overflow, float (&x)[TW_STRIP_ELEMS])
{
    float q[TW_STRIP_ELEMS];
    tw_strip_unpack<KIND>(codes, q);
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        x[i] = tw_float_mul(q[i], scale);
    }
    if (overflow) {
        bool nonfinite = tw_block_scale_is_nonfinite(scale);
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            if (tw_float_abs_bits(x[i]) == TW_FLOAT_INF_BITS) {
                x[i] = tw_float_of_bits(tw_float_bits(x[i]) - 1u);
            }
            if (nonfinite) {
                x[i] = tw_float_of_bits(TW_FLOAT_NAN_BITS);
            }
        }
    }
}

/** Compute sum += decoded, for a scale that tw_strip_scale_is_small accepts. `exact`: the scale is bf16 (8
 *  bits of mantissa), so its product with a code is exact, and one fused operation does both. */
template <int KIND>
TW_HD static inline void tw_strip_accumulate(const uint32_t (&codes)[TW_STRIP_CODE_WORDS(KIND)], float scale,
                                             bool exact, float (&sum)[TW_STRIP_ELEMS])
{
    float q[TW_STRIP_ELEMS];
    tw_strip_unpack<KIND>(codes, q);
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        sum[i] =
            exact ? tw_strip_fma_exact(q[i], scale, sum[i]) : tw_float_add(sum[i], tw_float_mul(q[i], scale));
    }
}

/** Compute sum += decoded, for any scale. */
template <int KIND>
TW_HD static inline void tw_strip_accumulate_any(const uint32_t (&codes)[TW_STRIP_CODE_WORDS(KIND)],
                                                 float scale, float (&sum)[TW_STRIP_ELEMS])
{
    float x[TW_STRIP_ELEMS];
    tw_strip_dequantize<KIND>(codes, scale, true, x);
    for (int i = 0; i < TW_STRIP_ELEMS; i++) {
        sum[i] = tw_float_add(sum[i], x[i]);
    }
}

/* ---- rotation ------------------------------------------------------------------------------------------ */

/** Do the butterflies within a strip: strides 1 to 8. Stride 16 is between neighbouring threads. */
TW_HD static inline void tw_strip_rotate_inside(float (&y)[TW_STRIP_ELEMS])
{
    for (int stride = 1; stride < TW_STRIP_ELEMS; stride *= 2) {
        for (int i = 0; i < TW_STRIP_ELEMS; i++) {
            if (i & stride) {
                continue;
            }
            float a = y[i], b = y[i + stride];
            y[i] = tw_float_add(a, b);
            y[i + stride] = tw_float_sub(a, b);
        }
    }
}

/** Do one butterfly between threads: `sign` is 1 in the thread with the lower elements, -1 in the other. */
TW_HD static inline float tw_strip_butterfly(float own, float other, float sign)
{
    return tw_strip_fma_exact(own, sign, other);
}
