/** The vector operations of coders: on 16 elements of 32 bits, and on 32 of 16 bits. AVX-512 F, BW, VL. */
#pragma once

#include "quant/entropy/vec_loads.h"

static int vec_usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#define VEC_BACKEND                       \
    {                                     \
        "avx512", TW_MEM_HOST, vec_usable \
    }

#define WIDTH 16
typedef __m512i vec_t;
typedef __mmask16 mask_t;

#define vec_set(x) _mm512_set1_epi32((int)(x))
#define vec_add(a, b) _mm512_add_epi32(a, b)
#define vec_sub(a, b) _mm512_sub_epi32(a, b)
#define vec_mul(a, b) _mm512_mullo_epi32(a, b)
#define vec_and(a, b) _mm512_and_si512(a, b)
#define vec_andnot(a, b) _mm512_andnot_si512(a, b) /* ~a & b */
#define vec_or(a, b) _mm512_or_si512(a, b)
#define vec_xor(a, b) _mm512_xor_si512(a, b)
#define vec_min(a, b) _mm512_min_epu32(a, b)
#define vec_max(a, b) _mm512_max_epu32(a, b)
#define vec_shl(a, n) _mm512_slli_epi32(a, n)
#define vec_shr(a, n) _mm512_srli_epi32(a, n)
#define vec_sar(a, n) _mm512_srai_epi32(a, n)
#define vec_shlv(a, n) _mm512_sllv_epi32(a, n)
#define vec_shrv(a, n) _mm512_srlv_epi32(a, n)
#define vec_lookup32(table, index) \
    _mm512_permutex2var_epi32(_mm512_loadu_si512(table), index, _mm512_loadu_si512((table) + 16))
#define vec_float(a) _mm512_castps_si512(_mm512_cvtepi32_ps(a)) /* the bits of float(a) */
#define vec_select(mask, a, b) _mm512_mask_blend_epi32(mask, b, a)
#define vec_zero_where(mask, a) _mm512_maskz_mov_epi32((mask_t) ~(mask), a)
#define mask_ge(a, b) _mm512_cmpge_epu32_mask(a, b)
#define mask_less(a, b) _mm512_cmplt_epu32_mask(a, b)
#define mask_sign(a) _mm512_movepi32_mask(a)

/** A mask's bits, by an explicit instruction that avoids a bug of GCC 12: when it runs out of registers, as
 *  with -fsanitize=null, it stores 16 bits of a mask on the stack and loads 32. */
static inline uint32_t mask_bits(__mmask16 mask)
{
    uint32_t bits;
    __asm__("kmovw %1, %0" : "=r"(bits) : "k"(mask));
    return bits;
}

#define vec_load16(at) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(at)))
#define vec_load8(at) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(at)))
#define vec_store16(at, a) _mm256_storeu_si256((__m256i *)(at), _mm512_cvtepi32_epi16(a))
#define vec_store8(at, a) _mm_storeu_si128((__m128i *)(at), _mm512_cvtepi32_epi8(a))

#define WIDTH16 32
typedef __m512i vec16_t;

#define vec16_set(x) _mm512_set1_epi16((short)(x))
#define vec16_add(a, b) _mm512_add_epi16(a, b)
#define vec16_sub(a, b) _mm512_sub_epi16(a, b)
#define vec16_and(a, b) _mm512_and_si512(a, b)
#define vec16_or(a, b) _mm512_or_si512(a, b)
#define vec16_min(a, b) _mm512_min_epu16(a, b)
#define vec16_shl(a, n) _mm512_slli_epi16(a, n)
#define vec16_shr(a, n) _mm512_srli_epi16(a, n)
#define vec16_zero_where_zero(a, b) _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(a, a), b)
#define vec16_load(at) _mm512_loadu_si512(at)
#define vec16_store(at, a) _mm512_storeu_si512(at, a)

static inline __m512i vec_gather(const uint32_t *table, __m512i index)
{
    uint32_t i[WIDTH];
    _mm512_storeu_si512(i, index);
    return _mm512_inserti64x4(_mm512_castsi256_si512(vec_load8_of(table, i)), vec_load8_of(table, i + 8), 1);
}

/** Look up 64-bit entries; returns their lower halves, and the upper halves in *upper. */
static inline __m512i vec_gather_pair(const uint64_t *table, __m512i index, __m512i *upper)
{
    uint32_t i[WIDTH];
    _mm512_storeu_si512(i, index);
    __m512 a = _mm512_castps256_ps512(vec_load2_2(table, i));
    __m512 b = _mm512_castps256_ps512(vec_load2_2(table, i + 2));
    a = _mm512_insertf32x8(a, vec_load2_2(table, i + 8), 1);
    b = _mm512_insertf32x8(b, vec_load2_2(table, i + 10), 1);
    *upper = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
    return _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
}

/** Multiply; returns the lower halves of the products, and the upper halves in *upper. */
static inline __m512i vec_mul_wide(__m512i a, __m512i b, __m512i *upper)
{
    __m512i even = _mm512_mul_epu32(a, b);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    *upper = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

static inline __m512i vec_mul_high(__m512i a, __m512i b)
{
    __m512i upper;
    vec_mul_wide(a, b, &upper);
    return upper;
}

/** Store the low halves of the mask's elements, packed. Returns their end. Always writes 32 bytes. */
static inline uint16_t *vec_store_words(uint16_t *at, __m512i a, __mmask16 mask)
{
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, a)));
    return at + __builtin_popcount(mask_bits(mask));
}

/** Load packed words into the mask's elements; the others become 0. Always reads 32 bytes. */
static inline __m512i vec_load_words(const uint8_t *at, __mmask16 mask)
{
    return _mm512_maskz_expand_epi32(mask, vec_load16(at));
}
