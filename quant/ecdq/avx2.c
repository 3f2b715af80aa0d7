/* The AVX2 backend. Compiled with -mavx2, used only if the machine has AVX2. */
#include "quant/entropy/vec_avx2.h"

#include "quant/ecdq/loops.h"
#include "quant/entropy/lanes.h"

/** Do Philox for four counters. Words are the lower halves of 64-bit elements, as a multiplication leaves
 *  them. The first round is short, because the counters' other words are 0. */
INLINE void philox4(vec_t counters, const vec_t keys[TW_PHILOX_ROUNDS][2], vec_t words[4])
{
    words[0] = keys[0][0];
    words[1] = vec_set(0);
    words[3] = _mm256_mul_epu32(counters, vec_set(TW_PHILOX_M0));
    words[2] = vec_xor(_mm256_srli_epi64(words[3], 32), keys[0][1]);
#pragma GCC unroll 10
    for (int round = 1; round < TW_PHILOX_ROUNDS; round++) {
        vec_t product0 = _mm256_mul_epu32(words[0], vec_set(TW_PHILOX_M0));
        vec_t product1 = _mm256_mul_epu32(words[2], vec_set(TW_PHILOX_M1));
        words[0] = vec_xor(_mm256_srli_epi64(product1, 32), vec_xor(words[1], keys[round][0]));
        words[1] = product1;
        words[2] = vec_xor(_mm256_srli_epi64(product0, 32), vec_xor(words[3], keys[round][1]));
        words[3] = product0;
    }
}

static void avx2_dither(const uint32_t key[2], uint32_t group, size_t n_groups, uint16_t *halves)
{
    vec_t keys[TW_PHILOX_ROUNDS][2];
    for (uint32_t round = 0; round < TW_PHILOX_ROUNDS; round++) {
        keys[round][0] = vec_set(key[0] + round * TW_PHILOX_W0);
        keys[round][1] = vec_set(key[1] + round * TW_PHILOX_W1);
    }
    for (size_t g = 0; g < n_groups; g++) {
        /* counters 0 to 3 and 8 to 11, then 4 to 7 and 12 to 15, so that packing needs no permutation */
        vec_t words[2][4];
#pragma GCC unroll 2
        for (size_t i = 0; i < 2; i++) {
            vec_t first = vec_set(TW_ECDQ_COUNTERS * (group + (uint32_t)g) + 4 * (uint32_t)i), low[4],
                  high[4];
            philox4(vec_add(first, _mm256_setr_epi64x(0, 1, 8, 9)), keys, low);
            philox4(vec_add(first, _mm256_setr_epi64x(2, 3, 10, 11)), keys, high);
            for (size_t w = 0; w < 4; w++) {
                __m256 a = _mm256_castsi256_ps(low[w]), b = _mm256_castsi256_ps(high[w]);
                words[i][w] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
            }
        }
        for (size_t w = 0; w < 4; w++, halves += 2 * TW_ECDQ_COUNTERS) {
            vec_t a = words[0][w], b = words[1][w], mask = vec_set(0xffff);
            vec16_store(halves, _mm256_packus_epi32(vec_and(a, mask), vec_and(b, mask)));
            vec16_store(halves + TW_ECDQ_COUNTERS, _mm256_packus_epi32(vec_shr(a, 16), vec_shr(b, 16)));
        }
    }
}

/* The steps of two times 8 elements, and their dither - LEAST_DITHER + 1, which is from 1 to 2. */
typedef struct {
    __m256 step[2], dither[2];
} scale_t;
#define LEAST_DITHER (-0x1p-1f + 0x1p-17f)

INLINE scale_t scale_of(const uint16_t *expected, const uint16_t *halves)
{
    vec16_t zero = vec16_set(0);
    vec16_t expect = _mm256_permute4x64_epi64(vec16_load(expected), 0xd8);
    vec16_t half = _mm256_permute4x64_epi64(vec16_load(halves), 0xd8);
    vec16_t quarters =
        vec16_sub(vec16_and(expect, vec16_set(TW_LOSSLESS_SCALE_MASK)), vec16_set(TW_LOSSLESS_BIAS));
    quarters = _mm256_min_epi16(_mm256_max_epi16(quarters, vec16_set(4)), vec16_set(1015));
    vec16_t step = vec16_shl(quarters, 5);
    /* The half becomes the upper mantissa bits of a float from 1 to 2. */
    vec16_t low = vec16_shl(half, 7), high = vec16_or(vec16_shr(half, 9), vec16_set(0x3f80));
    return (scale_t){{_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, step)),
                      _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, step))},
                     {_mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high)),
                      _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high))}};
}

INLINE vec_t integers_of(const float *values, __m256 step, __m256 dither)
{
    const __m256 end = _mm256_set1_ps((float)(TW_ECDQ_WIDE_MAX - 1));
    __m256 u = _mm256_add_ps(dither, _mm256_set1_ps(LEAST_DITHER - 1));
    __m256 x = _mm256_add_ps(_mm256_div_ps(_mm256_loadu_ps(values), step), u);
    __m256 near = _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), end, _CMP_LT_OQ);
    return vec_select(_mm256_castps_si256(near), _mm256_cvtps_epi32(x), vec_set(TW_ECDQ_RAW));
}

static void avx2_quantize(const float *values, const uint16_t *expected, const uint16_t *halves, size_t n,
                          int16_t *integers, uint8_t *symbols)
{
    size_t whole = n - n % WIDTH16;
    for (size_t i = 0; i < whole; i += WIDTH16) {
        scale_t scale = scale_of(expected + i, halves + i);
        vec_t a = integers_of(values + i, scale.step[0], scale.dither[0]);
        vec_t b = integers_of(values + i + WIDTH, scale.step[1], scale.dither[1]);
        vec16_t both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        vec16_store(integers + i, both);
        vec16_t symbol = vec16_min(vec16_add(both, vec16_set(TW_ECDQ_REACH)), vec16_set(TW_ENTROPY_ESCAPE));
        vec16_t of_class = vec16_shl(vec16_shr(vec16_load(expected + i), TW_LOSSLESS_CLASS_SHIFT), 5);
        symbol = vec16_or(symbol, of_class);
        _mm_storeu_si128((__m128i *)(symbols + i), _mm_packus_epi16(_mm256_castsi256_si128(symbol),
                                                                    _mm256_extracti128_si256(symbol, 1)));
    }
    loops_quantize(values + whole, expected + whole, halves + whole, n - whole, integers + whole,
                   symbols + whole);
}

INLINE void avx2_dequantize(const uint8_t *symbols, const uint16_t *expected, const uint16_t *halves,
                            size_t n, float *values)
{
    size_t whole = n - n % WIDTH16;
    for (size_t i = 0; i < whole; i += WIDTH16) {
        scale_t scale = scale_of(expected + i, halves + i);
        for (size_t k = 0; k < 2; k++) {
            /* These sums are exact. */
            __m256 x = _mm256_cvtepi32_ps(vec_load8(symbols + i + k * WIDTH));
            x = _mm256_sub_ps(_mm256_add_ps(x, _mm256_set1_ps(1 - LEAST_DITHER - TW_ECDQ_REACH)),
                              scale.dither[k]);
            _mm256_storeu_ps(values + i + k * WIDTH, _mm256_mul_ps(x, scale.step[k]));
        }
    }
    loops_dequantize(symbols + whole, expected + whole, halves + whole, n - whole, values + whole);
}

#define DITHER avx2_dither
#define QUANTIZE avx2_quantize
#define DEQUANTIZE avx2_dequantize
#include "quant/ecdq/lanes.h"

const tw_ecdq_backend_t tw_ecdq_avx2 = {.is = VEC_BACKEND, LANES};
