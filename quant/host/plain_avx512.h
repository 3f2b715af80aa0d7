/** Loads and stores a group, 32 floats in two AVX-512 registers, from and to any type. Private to
 *  group_avx512.h. */
#pragma once

#include "quant/arithmetic/block.h"
#include "quant/host/simd_avx2.h"

#include <immintrin.h>

/* Loops over registers must be unrolled, or compilers would keep the registers in memory. */
#define UNROLL _Pragma("GCC unroll 4")

typedef struct {
    __m512 v[2];
} group_t;

/** Load 32 elements at src[i]. */
INLINE group_t group_load(tw_type_t type, const void *src, size_t i)
{
    group_t g;
    UNROLL
    for (int r = 0; r < 2; r++) {
        size_t at = i + 16 * (size_t)r;
        if (type == TW_TYPE_FP32) {
            g.v[r] = _mm512_loadu_ps((const float *)src + at);
            continue;
        }
        __m256i h = _mm256_loadu_si256((const __m256i *)((const uint16_t *)src + at));
        g.v[r] = type == TW_TYPE_FP16 ? _mm512_cvtph_ps(h)
                                      : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    }
    return g;
}

/** Round x to bf16, nearest even. Results are the upper halves of lanes; wrong for NaN. */
INLINE __m512i bf16_round16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

INLINE void bf16_store32(void *dst, size_t i, __m512i low, __m512i high)
{
    const __m512i upper_halves =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                         21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    _mm512_storeu_si512((uint16_t *)dst + i, _mm512_permutex2var_epi16(low, upper_halves, high));
}

/** tw_float_store for 32 elements, but wrong for NaN. */
INLINE void group_store_small(tw_type_t type, void *dst, size_t i, group_t g)
{
    if (type == TW_TYPE_BF16) {
        bf16_store32(dst, i, bf16_round16(g.v[0]), bf16_round16(g.v[1]));
        return;
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        size_t at = i + 16 * (size_t)r;
        if (type == TW_TYPE_FP32) {
            _mm512_storeu_ps((float *)dst + at, g.v[r]);
        } else {
            _mm256_storeu_si256((__m256i *)((uint16_t *)dst + at),
                                _mm512_cvtps_ph(g.v[r], _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

/** tw_float_store for 32 elements. */
INLINE void group_store(tw_type_t type, void *dst, size_t i, group_t g)
{
    if (type != TW_TYPE_BF16) {
        group_store_small(type, dst, i, g);
        return;
    }
    __m512i rounded[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        __mmask16 nan = _mm512_cmp_ps_mask(g.v[r], g.v[r], _CMP_UNORD_Q);
        rounded[r] = _mm512_mask_or_epi32(bf16_round16(g.v[r]), nan, _mm512_castps_si512(g.v[r]),
                                          _mm512_set1_epi32(0x400000));
    }
    bf16_store32(dst, i, rounded[0], rounded[1]);
}

/** Blocks with scales above this, or 0, decode fast (see group_decode.h): no decoded value is denormal then.
 *  The bf16 instruction would flush denormals to 0. Codes times scales are multiples of 2^-23 of the scale's
 *  power of two; undoing the rotation divides by less than 2^3. */
#ifdef __AVX512BF16__
#define GROUP_SCALE_TINY_BITS 0x0d7fffffu /* just below 2^-100 */
#else
#define GROUP_SCALE_TINY_BITS 0u
#endif

/** tw_float_store for 32 values of a block that decodes fast. */
INLINE void group_store_decoded(tw_type_t type, void *dst, size_t i, group_t g)
{
#ifdef __AVX512BF16__
    if (type == TW_TYPE_BF16) {
        _mm512_storeu_si512((uint16_t *)dst + i, (__m512i)_mm512_cvtne2ps_pbh(g.v[1], g.v[0]));
        return;
    }
#endif
    group_store_small(type, dst, i, g);
}

/** Whether all magnitudes are below `max`. A NaN is not. */
INLINE int group_is_below(group_t g, float max)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i m0 = _mm512_and_si512(_mm512_castps_si512(g.v[0]), magnitude);
    __m512i m1 = _mm512_and_si512(_mm512_castps_si512(g.v[1]), magnitude);
    return _mm512_cmpge_epi32_mask(_mm512_max_epi32(m0, m1), _mm512_set1_epi32((int)tw_float_bits(max))) == 0;
}

/** Limit finite values to [-max, max]; infinities and NaN stay. */
INLINE group_t group_saturate(group_t g, float max)
{
    const __m512 top = _mm512_set1_ps(max), bottom = _mm512_set1_ps(-max);
    const __m512 infinity = _mm512_set1_ps(tw_float_of_bits(TW_FLOAT_INF_BITS));
    UNROLL
    for (int r = 0; r < 2; r++) {
        __mmask16 infinite = _mm512_cmp_ps_mask(_mm512_abs_ps(g.v[r]), infinity, _CMP_EQ_OQ);
        /* if g.v[r] is NaN, min and max return their second operand, the NaN */
        __m512 inside = _mm512_max_ps(bottom, _mm512_min_ps(top, g.v[r]));
        g.v[r] = _mm512_mask_mov_ps(inside, infinite, g.v[r]);
    }
    return g;
}
