/** Groups of 32 floats in four AVX2 registers, and their operations, from which group.h's codec is built.
 *  Only for files compiled with -mavx2 -mfma -mf16c. Private to the folder. Every operation gives the same
 *  bits as its scalar counterpart. */
#pragma once

#include "quant/host/plain_avx2.h"
#include "quant/host/scale_avx2.h"

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

/** One butterfly stage within a register; `other` has each lane's partner. The product x * (+-1) is exact, so
 *  the fused operation rounds only the sum or difference. */
INLINE __m256 butterfly(__m256 x, __m256 other, __m256 signs)
{
    return _mm256_fmadd_ps(x, signs, other);
}

/** tw_block_hadamard32 of a group. */
INLINE group_t group_rotate(group_t g)
{
    const __m256 signs1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 signs2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 signs4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    UNROLL
    for (int r = 0; r < 4; r++) {
        g.v[r] = butterfly(g.v[r], _mm256_permute_ps(g.v[r], 0xb1), signs1);
        g.v[r] = butterfly(g.v[r], _mm256_permute_ps(g.v[r], 0x4e), signs2);
        g.v[r] = butterfly(g.v[r], _mm256_permute2f128_ps(g.v[r], g.v[r], 1), signs4);
    }
    group_t h = {{_mm256_add_ps(g.v[0], g.v[1]), _mm256_sub_ps(g.v[0], g.v[1]), _mm256_add_ps(g.v[2], g.v[3]),
                  _mm256_sub_ps(g.v[2], g.v[3])}};
    group_t k = {{_mm256_add_ps(h.v[0], h.v[2]), _mm256_add_ps(h.v[1], h.v[3]), _mm256_sub_ps(h.v[0], h.v[2]),
                  _mm256_sub_ps(h.v[1], h.v[3])}};
    return group_mul(k, TW_BLOCK_HADAMARD_NORM);
}

/* ---- largest magnitude --------------------------------------------------------------------------------- */

typedef struct {
    __m256i bits; /* bits of fp32 magnitudes */
} amax_t;

INLINE amax_t amax_zero(void)
{
    return (amax_t){_mm256_setzero_si256()};
}

INLINE amax_t amax_of_group(amax_t amax, group_t g)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    UNROLL
    for (int r = 0; r < 4; r++) {
        amax.bits = _mm256_max_epi32(amax.bits, _mm256_and_si256(_mm256_castps_si256(g.v[r]), magnitude));
    }
    return amax;
}

INLINE uint32_t amax_bits(amax_t amax)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(amax.bits), _mm256_extracti128_si256(amax.bits, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/** The largest magnitude of n elements of 16 bits, as bits; n is a multiple of 32. */
INLINE uint16_t amax_of_halves(const uint16_t *src, size_t n)
{
    const __m256i magnitude = _mm256_set1_epi16(0x7fff);
    __m256i m0 = _mm256_setzero_si256(), m1 = m0;
    for (size_t i = 0; i < n; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(src + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(src + i + 16));
        m0 = _mm256_max_epu16(m0, _mm256_and_si256(a, magnitude));
        m1 = _mm256_max_epu16(m1, _mm256_and_si256(b, magnitude));
    }
    m0 = _mm256_max_epu16(m0, m1);
    __m128i m = _mm_max_epu16(_mm256_castsi256_si128(m0), _mm256_extracti128_si256(m0, 1));
    /* complement, because the instruction finds a minimum */
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_cvtsi128_si32(least);
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/** Store 32 integers as codes, in order: bytes, nibbles or two bits each. */
INLINE void codes_store(int bits, uint8_t *codes, const __m256i q[4])
{
    __m256i words0 = _mm256_packs_epi32(q[0], q[1]), words1 = _mm256_packs_epi32(q[2], q[3]);
    __m256i bytes = _mm256_packs_epi16(words0, words1);
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    if (bits == 8) {
        _mm256_storeu_si256((__m256i *)codes, bytes);
        return;
    }
    __m256i parts = _mm256_and_si256(bytes, _mm256_set1_epi8(bits == 4 ? 0x0f : 0x03));
    /* even element + 16 * odd one, or even + 4 * odd */
    __m256i pairs = _mm256_maddubs_epi16(parts, _mm256_set1_epi16(bits == 4 ? 0x1001 : 0x0401));
    pairs = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    __m128i packed = _mm256_castsi256_si128(pairs);
    if (bits == 4) {
        _mm_storeu_si128((__m128i *)codes, packed);
        return;
    }
    packed = _mm_maddubs_epi16(packed, _mm_set1_epi16(0x1001));
    _mm_storel_epi64((__m128i *)codes, _mm_packus_epi16(packed, packed));
}

/** tw_block_fp8_nearest, without saturation: tw_block_scale's scales keep |v| below 464 * 512. */
INLINE __m256i fp8_nearest(__m256 v)
{
    const __m256i normal = _mm256_set1_epi32((int)TW_BLOCK_FP8_NORMAL), half = _mm256_set1_epi32(0x7ffff);
    __m256i bits = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), odd), 20);
    __m256i small = _mm256_cvtps_epi32(_mm256_castsi256_ps(bits));
    __m256i code = _mm256_blendv_epi8(_mm256_sub_epi32(up, _mm256_set1_epi32(TW_BLOCK_FP8_BIAS)), small,
                                      _mm256_cmpgt_epi32(normal, bits));
    __m256 negative = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ);
    return _mm256_sub_epi32(code, _mm256_and_si256(_mm256_castps_si256(negative), _mm256_set1_epi32(128)));
}

/** tw_block_fp8_value of each code. */
INLINE __m256 fp8_value(__m256i code)
{
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    __m256i large = _mm256_slli_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(TW_BLOCK_FP8_BIAS)), 20);
    __m256 value = _mm256_blendv_ps(_mm256_castsi256_ps(large), _mm256_cvtepi32_ps(magnitude),
                                    _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude)));
    return _mm256_or_ps(value, _mm256_and_ps(_mm256_castsi256_ps(code), _mm256_set1_ps(-0.0f)));
}

/** Round y * inverse to nearest even. Only 2-bit codes are clamped; for others tw_block_scale's scales keep
 *  |y * inverse| below qmax + 0.5. */
INLINE void group_quantize(tw_quant_kind_t kind, group_t g, float inverse, uint8_t *codes)
{
    __m256i q[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m256 v = _mm256_mul_ps(g.v[r], _mm256_set1_ps(inverse));
        q[r] = kind == TW_QUANT_FP8 ? fp8_nearest(v) : _mm256_cvtps_epi32(v);
        if (kind == TW_QUANT_INT2) {
            q[r] = _mm256_min_epi32(_mm256_set1_epi32(1), _mm256_max_epi32(_mm256_set1_epi32(-1), q[r]));
        }
    }
    codes_store(TW_CODE_BITS(kind), codes, q);
}

/** Round stochastically, as tw_block_round_stochastic does, with 32 random words. */
INLINE void group_quantize_stochastic(tw_quant_kind_t kind, group_t g, float inverse, const uint32_t *words,
                                      uint8_t *codes)
{
    const __m256i qmax = _mm256_set1_epi32(tw_block_qmax(kind)),
                  qmin = _mm256_set1_epi32(-tw_block_qmax(kind));
    __m256i q[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m256 v = _mm256_mul_ps(g.v[r], _mm256_set1_ps(inverse)), whole = _mm256_floor_ps(v);
        __m256i word = _mm256_loadu_si256((const __m256i *)(words + 8 * r));
        __m256 uniform =
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(word, 8)), _mm256_set1_ps(0x1p-24f));
        __m256 up = _mm256_cmp_ps(uniform, _mm256_sub_ps(v, whole), _CMP_LT_OQ);
        q[r] = _mm256_sub_epi32(_mm256_cvtps_epi32(whole), _mm256_castps_si256(up));
        q[r] = _mm256_min_epi32(qmax, _mm256_max_epi32(qmin, q[r]));
    }
    codes_store(TW_CODE_BITS(kind), codes, q);
}

/** Decode 32 codes: multiply them by the scale, without a clamp. */
INLINE group_t group_dequantize(tw_quant_kind_t kind, const uint8_t *codes, decoder_t decoder)
{
    /* Left shifts that move nibble i of a word (or its pair i or 8 + i of bits) to the top of lane i. */
    const __m256i shifts = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    const __m256i low = _mm256_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16),
                  high = _mm256_setr_epi32(14, 12, 10, 8, 6, 4, 2, 0);
    group_t g;
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m256i q;
        if (TW_CODE_BITS(kind) == 8) {
            q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(codes + 8 * r)));
        } else if (kind == TW_QUANT_INT4) {
            int eight;
            memcpy(&eight, codes + 4 * r, sizeof(eight));
            q = _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(eight), shifts), 28);
        } else {
            int sixteen;
            memcpy(&sixteen, codes + r / 2 * 4, sizeof(sixteen));
            q = _mm256_sllv_epi32(_mm256_set1_epi32(sixteen), r % 2 ? high : low);
            q = _mm256_srai_epi32(q, 30);
        }
        __m256 steps = kind == TW_QUANT_FP8 ? fp8_value(q) : _mm256_cvtepi32_ps(q);
        g.v[r] = _mm256_mul_ps(steps, decoder.scale);
    }
    return g;
}

/* ---- random words -------------------------------------------------------------------------------------- */

#define RANDOM_QUADS 8 /* quads that a call of random_quads makes */

/* Four Philox counters; c[i] has their words i in the low halves of 64-bit lanes. High halves are unused. */
typedef struct {
    __m256i c[4];
} counters_t;

INLINE counters_t philox_round(counters_t x, uint32_t key0, uint32_t key1)
{
    __m256i p0 = _mm256_mul_epu32(x.c[0], _mm256_set1_epi64x(TW_PHILOX_M0));
    __m256i p1 = _mm256_mul_epu32(x.c[2], _mm256_set1_epi64x(TW_PHILOX_M1));
    __m256i x1 = _mm256_xor_si256(x.c[1], _mm256_set1_epi32((int)key0));
    __m256i x3 = _mm256_xor_si256(x.c[3], _mm256_set1_epi32((int)key1));
    return (counters_t){{_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x1), p1,
                         _mm256_xor_si256(_mm256_srli_epi64(p0, 32), x3), p0}};
}

/** Store the words of the counters, from lanes 0, 2, 1, 3: the order in which unpacking gives them. */
INLINE void philox_store(counters_t x, uint32_t *words)
{
    __m256i w01 = _mm256_blend_epi32(x.c[0], _mm256_slli_epi64(x.c[1], 32), 0xaa);
    __m256i w23 = _mm256_blend_epi32(x.c[2], _mm256_slli_epi64(x.c[3], 32), 0xaa);
    _mm256_storeu_si256((__m256i *)words, _mm256_unpacklo_epi64(w01, w23));
    _mm256_storeu_si256((__m256i *)(words + 8), _mm256_unpackhi_epi64(w01, w23));
}

/** Make the random words of RANDOM_QUADS quads from `quad` on, as tw_philox_quad does. */
INLINE void random_quads(uint64_t seed, uint32_t step, uint32_t tensor, uint64_t quad, uint32_t *words)
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    counters_t x[2];
    UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i counter = _mm256_add_epi64(_mm256_set1_epi64x((long long)(quad + 4 * (uint64_t)half)),
                                           _mm256_setr_epi64x(0, 2, 1, 3));
        x[half] = (counters_t){
            {counter, _mm256_srli_epi64(counter, 32), _mm256_set1_epi64x(tensor), _mm256_set1_epi64x(step)}};
    }
    for (int round = 0; round < TW_PHILOX_ROUNDS; round++) {
        x[0] = philox_round(x[0], key0, key1);
        x[1] = philox_round(x[1], key0, key1);
        key0 += TW_PHILOX_W0;
        key1 += TW_PHILOX_W1;
    }
    philox_store(x[0], words);
    philox_store(x[1], words + 16);
}
