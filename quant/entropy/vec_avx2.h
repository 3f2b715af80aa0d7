/** The vector operations of coders: on 8 elements of 32 bits, and on 16 of 16 bits. AVX2. */
#pragma once

#include "quant/entropy/vec_loads.h"

static int vec_usable(void)
{
    return __builtin_cpu_supports("avx2");
}

#define VEC_BACKEND                     \
    {                                   \
        "avx2", TW_MEM_HOST, vec_usable \
    }

#define WIDTH 8
typedef __m256i vec_t;
typedef __m256i mask_t; /* each element has all ones or all zeros */

#define vec_set(x) _mm256_set1_epi32((int)(x))
#define vec_add(a, b) _mm256_add_epi32(a, b)
#define vec_sub(a, b) _mm256_sub_epi32(a, b)
#define vec_mul(a, b) _mm256_mullo_epi32(a, b)
#define vec_and(a, b) _mm256_and_si256(a, b)
#define vec_andnot(a, b) _mm256_andnot_si256(a, b) /* ~a & b */
#define vec_or(a, b) _mm256_or_si256(a, b)
#define vec_xor(a, b) _mm256_xor_si256(a, b)
#define vec_min(a, b) _mm256_min_epu32(a, b)
#define vec_max(a, b) _mm256_max_epu32(a, b)
#define vec_shl(a, n) _mm256_slli_epi32(a, n)
#define vec_shr(a, n) _mm256_srli_epi32(a, n)
#define vec_sar(a, n) _mm256_srai_epi32(a, n)
#define vec_shlv(a, n) _mm256_sllv_epi32(a, n)
#define vec_shrv(a, n) _mm256_srlv_epi32(a, n)
#define vec_float(a) _mm256_castps_si256(_mm256_cvtepi32_ps(a)) /* the bits of float(a) */
#define vec_select(mask, a, b) _mm256_blendv_epi8(b, a, mask)
#define vec_zero_where(mask, a) _mm256_andnot_si256(mask, a)
#define mask_ge(a, b) _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a)
#define mask_less(a, b) _mm256_cmpgt_epi32(b, a) /* for numbers below 2^31 */
#define mask_sign(a) _mm256_srai_epi32(a, 31)
#define mask_bits(mask) ((uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(mask)))

#define vec_load16(at) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(at)))
#define vec_load8(at) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(at)))

#define WIDTH16 16
typedef __m256i vec16_t;

#define vec16_set(x) _mm256_set1_epi16((short)(x))
#define vec16_add(a, b) _mm256_add_epi16(a, b)
#define vec16_sub(a, b) _mm256_sub_epi16(a, b)
#define vec16_and(a, b) _mm256_and_si256(a, b)
#define vec16_or(a, b) _mm256_or_si256(a, b)
#define vec16_min(a, b) _mm256_min_epu16(a, b)
#define vec16_shl(a, n) _mm256_slli_epi16(a, n)
#define vec16_shr(a, n) _mm256_srli_epi16(a, n)
#define vec16_zero_where_zero(a, b) _mm256_andnot_si256(_mm256_cmpeq_epi16(a, _mm256_setzero_si256()), b)
#define vec16_load(at) _mm256_loadu_si256((const __m256i *)(at))
#define vec16_store(at, a) _mm256_storeu_si256((__m256i *)(at), a)

/** The low halves of 8 elements, packed. */
static inline __m128i vec_halves(__m256i a)
{
    a = _mm256_and_si256(a, vec_set(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}

static inline void vec_store16(uint16_t *at, __m256i a)
{
    _mm_storeu_si128((__m128i *)at, vec_halves(a));
}

static inline void vec_store8(uint8_t *at, __m256i a)
{
    _mm_storel_epi64((__m128i *)at, _mm_packus_epi16(vec_halves(a), _mm_setzero_si128()));
}

static inline __m256i vec_gather(const uint32_t *table, __m256i index)
{
    uint32_t i[WIDTH];
    _mm256_storeu_si256((__m256i *)i, index);
    return vec_load8_of(table, i);
}

/** Look up entries of a table of 32 entries, with permutations of registers. */
static inline __m256i vec_lookup32(const uint32_t *table, __m256i index)
{
    __m256 bit3 = _mm256_castsi256_ps(vec_shl(index, 28)), quarter[4];
    for (size_t i = 0; i < 4; i++) {
        quarter[i] = _mm256_permutevar8x32_ps(_mm256_loadu_ps((const float *)(table + 8 * i)), index);
    }
    __m256 low = _mm256_blendv_ps(quarter[0], quarter[1], bit3);
    __m256 high = _mm256_blendv_ps(quarter[2], quarter[3], bit3);
    return _mm256_castps_si256(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(vec_shl(index, 27))));
}

/** Look up 64-bit entries; returns their lower halves, and the upper halves in *upper. */
static inline __m256i vec_gather_pair(const uint64_t *table, __m256i index, __m256i *upper)
{
    uint32_t i[WIDTH];
    _mm256_storeu_si256((__m256i *)i, index);
    __m256 a = vec_load2_2(table, i), b = vec_load2_2(table, i + 2);
    *upper = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    return _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
}

/** Multiply; returns the lower halves of the products, and the upper halves in *upper. */
static inline __m256i vec_mul_wide(__m256i a, __m256i b, __m256i *upper)
{
    __m256i even = _mm256_mul_epu32(a, b);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    *upper = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

static inline __m256i vec_mul_high(__m256i a, __m256i b)
{
    __m256i upper;
    vec_mul_wide(a, b, &upper);
    return upper;
}

/* Byte shuffles for each mask of 8 elements of 16 bits: `together` packs the chosen elements, `apart` spreads
 * packed elements to the chosen places. */
#define BIT(m, i) (((m) >> (i)) & 1)
#define BELOW(m, i) ((uint64_t)__builtin_popcount((m) & ((1u << (i)) - 1)))
#define PUT(i, at, half) ((at) / 4 == (half) ? (uint64_t)(0x100 + 0x202 * (i)) << (at) % 4 * 16 : 0)
#define TOGETHER(m, i, half) (BIT(m, i) ? PUT((uint64_t)(i), BELOW(m, i), half) : 0)
#define APART(m, i, half) PUT(BELOW(m, i), i, half)
#define OR4(f, m, i, half) (f(m, i, half) | f(m, i + 1, half) | f(m, i + 2, half) | f(m, i + 3, half))
#define OR8(f, m, half) (OR4(f, m, 0, half) | OR4(f, m, 4, half))
#define ROW(f, m)                  \
    {                              \
        OR8(f, m, 0), OR8(f, m, 1) \
    }
#define ROW4(f, m) ROW(f, m), ROW(f, (m) + 1), ROW(f, (m) + 2), ROW(f, (m) + 3)
#define ROW16(f, m) ROW4(f, m), ROW4(f, (m) + 4), ROW4(f, (m) + 8), ROW4(f, (m) + 12)
#define ROW64(f, m) ROW16(f, m), ROW16(f, (m) + 16), ROW16(f, (m) + 32), ROW16(f, (m) + 48)
#define ROWS(f) ROW64(f, 0u), ROW64(f, 64u), ROW64(f, 128u), ROW64(f, 192u)

static const uint64_t together[256][2] = {ROWS(TOGETHER)}, apart[256][2] = {ROWS(APART)};

/** Store the low halves of the mask's elements, packed. Returns their end. Always writes 16 bytes. */
static inline uint16_t *vec_store_words(uint16_t *at, __m256i a, __m256i mask)
{
    uint32_t bits = mask_bits(mask);
    __m128i from = _mm_loadu_si128((const __m128i *)together[bits]);
    _mm_storeu_si128((__m128i *)at, _mm_shuffle_epi8(vec_halves(a), from));
    return at + __builtin_popcount(bits);
}

/** Load packed words into the mask's elements; the others get anything. Always reads 16 bytes. */
static inline __m256i vec_load_words(const uint8_t *at, __m256i mask)
{
    __m128i from = _mm_loadu_si128((const __m128i *)apart[mask_bits(mask)]);
    return _mm256_cvtepu16_epi32(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)at), from));
}
