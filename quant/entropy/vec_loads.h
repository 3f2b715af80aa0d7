/** Loads elements of tables one by one, because gather instructions are slower on many processors. AVX2. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/** Load four elements of 32 bits. */
static inline __m128i vec_load4(const uint32_t *table, const uint32_t *index)
{
    __m128i a = _mm_unpacklo_epi32(_mm_loadu_si32(table + index[0]), _mm_loadu_si32(table + index[1]));
    __m128i b = _mm_unpacklo_epi32(_mm_loadu_si32(table + index[2]), _mm_loadu_si32(table + index[3]));
    return _mm_unpacklo_epi64(a, b);
}

static inline __m256i vec_load8_of(const uint32_t *table, const uint32_t *index)
{
    return _mm256_set_m128i(vec_load4(table, index + 4), vec_load4(table, index));
}

/** Load two elements of 64 bits. */
static inline __m128 vec_load2(const uint64_t *table, size_t a, size_t b)
{
    __m128d low = _mm_load_sd((const double *)(table + a));
    return _mm_castpd_ps(_mm_loadh_pd(low, (const double *)(table + b)));
}

/** Load four elements of 64 bits: index[0] and [1] in the lower half, [4] and [5] in the upper. */
static inline __m256 vec_load2_2(const uint64_t *table, const uint32_t *index)
{
    return _mm256_set_m128(vec_load2(table, index[4], index[5]), vec_load2(table, index[0], index[1]));
}
