/** Loads and stores 8 floats from and to memory of any type. Only for files compiled with -mavx2 -mf16c.
 *  Private to the folder. */
#pragma once

#include "quant/host/simd.h"

#include <cpuid.h>
#include <immintrin.h>

#define SIMD_ELEMS 8
typedef __m256 simd_t;

/** Whether this machine has F16C, which __builtin_cpu_supports of some compilers does not know. */
static inline int cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static inline simd_t simd_set(float x)
{
    return _mm256_set1_ps(x);
}

/** Load 8 elements at src[i]. */
static inline __m256 simd_load(tw_type_t type, const void *src, size_t i)
{
    if (type == TW_TYPE_FP32) {
        return _mm256_loadu_ps((const float *)src + i);
    }
    __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)src + i));
    if (type == TW_TYPE_FP16) {
        return _mm256_cvtph_ps(h);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/** Round to bf16, nearest even. Results are the low halves of lanes; wrong for NaN. */
static inline __m256i bf16_round8(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
}

/** bf16_round8, but right for any x. */
static inline __m256i bf16_round8_any(__m256 x)
{
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 16), _mm256_set1_epi32(0x40));
    __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(bf16_round8(x)), _mm256_castsi256_ps(quiet), is_nan));
}

/** Pack 8 words below 2^16 into 8 elements of 16 bits. */
static inline __m128i pack8(__m256i words)
{
    __m256i packed = _mm256_packus_epi32(words, words);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

/** Store 8 elements to dst[i], as tw_float_store does. */
static inline void simd_store(tw_type_t type, void *dst, size_t i, __m256 x)
{
    if (type == TW_TYPE_FP32) {
        _mm256_storeu_ps((float *)dst + i, x);
        return;
    }
    __m128i h =
        type == TW_TYPE_FP16 ? _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT) : pack8(bf16_round8_any(x));
    _mm_storeu_si128((__m128i *)((uint16_t *)dst + i), h);
}
