/** Groups of 32 floats in two AVX-512 registers, and their operations, from which group.h's codec is built.
 *  Only for files compiled with -mavx512{f,bw,vl,dq}. Private to the folder. Every operation gives the same
 *  bits as its scalar counterpart. */
#pragma once

#include "quant/host/plain_avx512.h"
#include "quant/host/scale_avx2.h"

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

INLINE group_t group_add(group_t a, group_t b)
{
    return (group_t){{_mm512_add_ps(a.v[0], b.v[0]), _mm512_add_ps(a.v[1], b.v[1])}};
}

INLINE group_t group_sub(group_t a, group_t b)
{
    return (group_t){{_mm512_sub_ps(a.v[0], b.v[0]), _mm512_sub_ps(a.v[1], b.v[1])}};
}

INLINE group_t group_mul(group_t g, float factor)
{
    const __m512 f = _mm512_set1_ps(factor);
    return (group_t){{_mm512_mul_ps(g.v[0], f), _mm512_mul_ps(g.v[1], f)}};
}

/** tw_block_hadamard32. Within a register, a stage is x * (+-1) + each lane's partner. The product is exact,
 *  so the fused operation rounds only the sum or difference. */
INLINE group_t group_rotate(group_t g)
{
    const __m512 signs1 =
        _mm512_castpd_ps(_mm512_castsi512_pd(_mm512_set1_epi64((long long)0xbf8000003f800000)));
    const __m512 signs2 = _mm512_set4_ps(-1, -1, 1, 1);
    const __m512 signs4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m512 signs8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    UNROLL
    for (int r = 0; r < 2; r++) {
        __m512 x = g.v[r];
        x = _mm512_fmadd_ps(x, signs1, _mm512_permute_ps(x, 0xb1));
        x = _mm512_fmadd_ps(x, signs2, _mm512_permute_ps(x, 0x4e));
        x = _mm512_fmadd_ps(x, signs4, _mm512_shuffle_f32x4(x, x, 0xb1));
        g.v[r] = _mm512_fmadd_ps(x, signs8, _mm512_shuffle_f32x4(x, x, 0x4e));
    }
    group_t h = {{_mm512_add_ps(g.v[0], g.v[1]), _mm512_sub_ps(g.v[0], g.v[1])}};
    return group_mul(h, TW_BLOCK_HADAMARD_NORM);
}

/* ---- largest magnitude --------------------------------------------------------------------------------- */

typedef struct {
    __m512i bits; /* bits of fp32 magnitudes */
} amax_t;

INLINE amax_t amax_zero(void)
{
    return (amax_t){_mm512_setzero_si512()};
}

INLINE amax_t amax_of_group(amax_t amax, group_t g)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    UNROLL
    for (int r = 0; r < 2; r++) {
        amax.bits = _mm512_max_epi32(amax.bits, _mm512_and_si512(_mm512_castps_si512(g.v[r]), magnitude));
    }
    return amax;
}

INLINE uint32_t amax_bits(amax_t amax)
{
    return (uint32_t)_mm512_reduce_max_epi32(amax.bits);
}

/** The largest magnitude of n elements of 16 bits, as bits; n is a multiple of 32. */
INLINE uint16_t amax_of_halves(const uint16_t *src, size_t n)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i m = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 32) {
        m = _mm512_max_epu16(m, _mm512_and_si512(_mm512_loadu_si512(src + i), magnitude));
    }
    __m256i m256 = _mm256_max_epu16(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1));
    __m128i m128 = _mm_max_epu16(_mm256_castsi256_si128(m256), _mm256_extracti128_si256(m256, 1));
    /* complement, because the instruction finds a minimum */
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(m128, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_cvtsi128_si32(least);
}

/* ---- codes --------------------------------------------------------------------------------------------- */

/** Store 32 integers as codes, in order: bytes, nibbles or two bits each. */
INLINE void codes_store(int bits, uint8_t *codes, __m512i q0, __m512i q1)
{
    __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(q0)),
                                            _mm512_cvtepi32_epi8(q1), 1);
    if (bits == 8) {
        _mm256_storeu_si256((__m256i *)codes, bytes);
        return;
    }
    __m256i parts = _mm256_and_si256(bytes, _mm256_set1_epi8(bits == 4 ? 0x0f : 0x03));
    /* even element + 16 * odd one, or even + 4 * odd */
    __m256i pairs = _mm256_maddubs_epi16(parts, _mm256_set1_epi16(bits == 4 ? 0x1001 : 0x0401));
    __m128i packed = _mm256_cvtepi16_epi8(pairs);
    if (bits == 4) {
        _mm_storeu_si128((__m128i *)codes, packed);
        return;
    }
    _mm_storel_epi64((__m128i *)codes, _mm_cvtepi16_epi8(_mm_maddubs_epi16(packed, _mm_set1_epi16(0x1001))));
}

/** tw_block_fp8_nearest, without saturation: tw_block_scale's scales keep |v| below 464 * 512. */
INLINE __m512i fp8_nearest(__m512 v)
{
    __m512i bits = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
    __m512i up =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7ffff)), odd), 20);
    __m512i code = _mm512_sub_epi32(up, _mm512_set1_epi32(TW_BLOCK_FP8_BIAS));
    __mmask16 small = _mm512_cmplt_epi32_mask(bits, _mm512_set1_epi32((int)TW_BLOCK_FP8_NORMAL));
    __mmask16 negative = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LT_OQ);
    code = _mm512_mask_cvtps_epi32(code, small, _mm512_castsi512_ps(bits));
    return _mm512_mask_sub_epi32(code, negative, code, _mm512_set1_epi32(128));
}

/** tw_block_fp8_value of each code. */
INLINE __m512 fp8_value(__m512i code)
{
    __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
    __m512i large = _mm512_slli_epi32(_mm512_add_epi32(magnitude, _mm512_set1_epi32(TW_BLOCK_FP8_BIAS)), 20);
    __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
    __m512 value = _mm512_mask_cvtepi32_ps(_mm512_castsi512_ps(large), small, magnitude);
    return _mm512_or_ps(value, _mm512_and_ps(_mm512_castsi512_ps(code), _mm512_set1_ps(-0.0f)));
}

/** Round y * inverse to nearest even. Only 2-bit codes are clamped; for others tw_block_scale's scales keep
 *  |y * inverse| below qmax + 0.5. */
INLINE void group_quantize(tw_quant_kind_t kind, group_t g, float inverse, uint8_t *codes)
{
    const __m512i one = _mm512_set1_epi32(1), minus = _mm512_set1_epi32(-1);
    __m512i q[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        __m512 v = _mm512_mul_ps(g.v[r], _mm512_set1_ps(inverse));
        q[r] = kind == TW_QUANT_FP8 ? fp8_nearest(v) : _mm512_cvtps_epi32(v);
        if (kind == TW_QUANT_INT2) {
            q[r] = _mm512_min_epi32(one, _mm512_max_epi32(minus, q[r]));
        }
    }
    codes_store(TW_CODE_BITS(kind), codes, q[0], q[1]);
}

/** Round stochastically, as tw_block_round_stochastic does, with 32 random words. */
INLINE void group_quantize_stochastic(tw_quant_kind_t kind, group_t g, float inverse, const uint32_t *words,
                                      uint8_t *codes)
{
    const __m512i qmax = _mm512_set1_epi32(tw_block_qmax(kind)),
                  qmin = _mm512_set1_epi32(-tw_block_qmax(kind));
    const __m512i one = _mm512_set1_epi32(1);
    __m512i q[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        __m512 v = _mm512_mul_ps(g.v[r], _mm512_set1_ps(inverse));
        __m512 whole = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        __m512i word = _mm512_srli_epi32(_mm512_loadu_si512(words + 16 * r), 8);
        __m512 uniform = _mm512_mul_ps(_mm512_cvtepi32_ps(word), _mm512_set1_ps(0x1p-24f));
        __mmask16 up = _mm512_cmp_ps_mask(uniform, _mm512_sub_ps(v, whole), _CMP_LT_OQ);
        q[r] = _mm512_cvtps_epi32(whole);
        q[r] = _mm512_mask_add_epi32(q[r], up, q[r], one);
        q[r] = _mm512_min_epi32(qmax, _mm512_max_epi32(qmin, q[r]));
    }
    codes_store(TW_CODE_BITS(kind), codes, q[0], q[1]);
}

/** A block's decoder: its scale for 8 bits; the decoded values of all 16 codes for 4 bits; of all 4 codes,
 *  repeated, for 2 bits. */
typedef struct {
    __m512 v;
} decoder_t;

INLINE decoder_t decoder_for(tw_quant_kind_t kind, float scale)
{
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512 few = _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
    __m512 s = _mm512_set1_ps(scale);
    return (decoder_t){TW_CODE_BITS(kind) == 8 ? s : _mm512_mul_ps(kind == TW_QUANT_INT4 ? values : few, s)};
}

/** Decode 32 codes: multiply them by the scale, without a clamp. */
INLINE group_t group_dequantize(tw_quant_kind_t kind, const uint8_t *codes, decoder_t decoder)
{
    group_t g;
    if (TW_CODE_BITS(kind) == 8) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            __m512i q = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + 16 * r)));
            g.v[r] = _mm512_mul_ps(kind == TW_QUANT_FP8 ? fp8_value(q) : _mm512_cvtepi32_ps(q), decoder.v);
        }
        return g;
    }
    if (kind == TW_QUANT_INT2) {
        const __m512i pairs = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        UNROLL
        for (int r = 0; r < 2; r++) {
            int sixteen;
            memcpy(&sixteen, codes + 4 * r, sizeof(sixteen));
            g.v[r] = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(sixteen), pairs), decoder.v);
        }
        return g;
    }
    /* Right shifts that move lane i's nibble to the lowest bits. The look-up ignores the other bits. */
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i all = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)codes));
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i second = _mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    g.v[0] =
        _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(first, all), shifts), decoder.v);
    g.v[1] =
        _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(second, all), shifts), decoder.v);
    return g;
}

/* ---- random words -------------------------------------------------------------------------------------- */

#define RANDOM_QUADS 16 /* quads that a call of random_quads makes */

#define XOR3 0x96 /* truth table of a ^ b ^ c */

/* Eight Philox counters; c[i] has their words i in the low halves of 64-bit lanes. High halves are unused. */
typedef struct {
    __m512i c[4];
} counters_t;

INLINE counters_t philox_round(counters_t x, uint32_t key0, uint32_t key1)
{
    __m512i p0 = _mm512_mul_epu32(x.c[0], _mm512_set1_epi64(TW_PHILOX_M0));
    __m512i p1 = _mm512_mul_epu32(x.c[2], _mm512_set1_epi64(TW_PHILOX_M1));
    __m512i c0 =
        _mm512_ternarylogic_epi32(_mm512_srli_epi64(p1, 32), x.c[1], _mm512_set1_epi32((int)key0), XOR3);
    __m512i c2 =
        _mm512_ternarylogic_epi32(_mm512_srli_epi64(p0, 32), x.c[3], _mm512_set1_epi32((int)key1), XOR3);
    return (counters_t){{c0, p1, c2, p0}};
}

/** Store the words of the counters, in the order of lanes 0, 2, 4, 6, 1, 3, 5, 7 that unpack gives. */
INLINE void philox_store(counters_t x, uint32_t *words)
{
    __m512i w01 = _mm512_mask_mov_epi32(x.c[0], 0xaaaa, _mm512_slli_epi64(x.c[1], 32));
    __m512i w23 = _mm512_mask_mov_epi32(x.c[2], 0xaaaa, _mm512_slli_epi64(x.c[3], 32));
    _mm512_storeu_si512(words, _mm512_unpacklo_epi64(w01, w23));
    _mm512_storeu_si512(words + 16, _mm512_unpackhi_epi64(w01, w23));
}

/** Make the random words of RANDOM_QUADS quads from `quad` on, as tw_philox_quad does. */
INLINE void random_quads(uint64_t seed, uint32_t step, uint32_t tensor, uint64_t quad, uint32_t *words)
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    counters_t x[2];
    UNROLL
    for (int half = 0; half < 2; half++) {
        __m512i counter = _mm512_add_epi64(_mm512_set1_epi64((long long)(quad + 8 * (uint64_t)half)),
                                           _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
        x[half] = (counters_t){
            {counter, _mm512_srli_epi64(counter, 32), _mm512_set1_epi64(tensor), _mm512_set1_epi64(step)}};
    }
    for (int round = 0; round < TW_PHILOX_ROUNDS; round++) {
        x[0] = philox_round(x[0], key0, key1);
        x[1] = philox_round(x[1], key0, key1);
        key0 += TW_PHILOX_W0;
        key1 += TW_PHILOX_W1;
    }
    philox_store(x[0], words);
    philox_store(x[1], words + 32);
}
