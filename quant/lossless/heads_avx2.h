/** Operations on heads, in AVX2, for both backends of x86. symbols.h has those on symbols. */
#pragma once

#include <immintrin.h>

#include "quant/entropy/lanes.h"
#include "quant/lossless/loops.h"

/* ---- sums ---------------------------------------------------------------------------------------------- */

/** The magnitudes of 16 heads. */
INLINE __m256i magnitudes(const uint16_t *heads)
{
    return _mm256_srli_epi16(_mm256_slli_epi16(_mm256_loadu_si256((const __m256i *)heads), 1), 6);
}

/** Add neighbouring 16-bit numbers to 32-bit sums. */
INLINE __m256i pairs(__m256i x)
{
    return _mm256_madd_epi16(x, _mm256_set1_epi16(1));
}

INLINE uint32_t total8(__m256i x)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

static void lanes_sum(const uint16_t *heads, size_t n, uint64_t *sum, uint64_t *live)
{
    __m256i sums = _mm256_setzero_si256(), zeros = sums;
    size_t whole = n - n % 16;
    for (size_t i = 0; i < whole; i += 16) {
        __m256i magnitude = magnitudes(heads + i);
        sums = _mm256_add_epi32(sums, pairs(magnitude));
        zeros = _mm256_sub_epi16(zeros, _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256()));
    }
    *sum += total8(sums);
    *live += whole - total8(pairs(zeros));
    loops_sum(heads + whole, n - whole, sum, live);
}

static void lanes_deviation(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns,
                            uint64_t *sum, uint64_t *live)
{
    __m256i sums = _mm256_setzero_si256(), zeros = sums, expect = _mm256_set1_epi16((short)scale);
    size_t whole = n - n % 16;
    for (size_t i = 0; i < whole; i += 16) {
        __m256i magnitude = magnitudes(heads + i), off = _mm256_sub_epi16(magnitude, expect);
        if (columns) {
            off = _mm256_sub_epi16(off, _mm256_loadu_si256((const __m256i *)(columns + i)));
        }
        __m256i zero = _mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256());
        sums = _mm256_add_epi32(sums, pairs(_mm256_andnot_si256(zero, _mm256_abs_epi16(off))));
        zeros = _mm256_sub_epi16(zeros, zero);
    }
    *sum += total8(sums);
    *live += whole - total8(pairs(zeros));
    loops_deviation(heads + whole, n - whole, scale, columns ? columns + whole : NULL, sum, live);
}

static void lanes_bins(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns, uint16_t *bins)
{
    const __m256i zeros_bin = _mm256_set1_epi16(TW_LOSSLESS_ZEROS_BIN), coded = _mm256_set1_epi16(0x7fc0);
    __m256i down = _mm256_set1_epi16((short)(scale - 128));
    size_t whole = n - n % 16;
    for (size_t i = 0; i < whole; i += 16) {
        __m256i x = _mm256_sub_epi16(magnitudes(heads + i), down);
        if (columns) {
            x = _mm256_sub_epi16(x, _mm256_loadu_si256((const __m256i *)(columns + i)));
        }
        x = _mm256_min_epi16(_mm256_max_epi16(x, _mm256_setzero_si256()), _mm256_set1_epi16(255));
        __m256i bits = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(heads + i)), coded);
        x = _mm256_blendv_epi8(x, zeros_bin, _mm256_cmpeq_epi16(bits, _mm256_setzero_si256()));
        _mm256_storeu_si256((__m256i *)(bins + i), x);
    }
    loops_bins(heads + whole, n - whole, scale, columns ? columns + whole : NULL, bins + whole);
}

/* ---- the other bits ------------------------------------------------------------------------------------ */

/* For the high bit of byte k: its element minus 28, and which bit of that element it is. */
#define HIGH_ELEMENT(k) ((k) < 28 ? (char)((k) / 7) : 0)
#define HIGH_BIT(k) ((k) < 28 ? (char)(1 << (k) % 7) : 0)
#define EACH4(f, k) f(k), f((k) + 1), f((k) + 2), f((k) + 3)
#define EACH16(f, k) EACH4(f, k), EACH4(f, (k) + 4), EACH4(f, (k) + 8), EACH4(f, (k) + 12)

static void lanes_pack(const uint16_t *heads, size_t n, uint8_t *raw)
{
    const __m256i low6 = _mm256_set1_epi16(0x3f), sign = _mm256_set1_epi16(0x40);
    const __m256i element = _mm256_setr_epi8(EACH16(HIGH_ELEMENT, 0), EACH16(HIGH_ELEMENT, 16));
    const __m256i bit = _mm256_setr_epi8(EACH16(HIGH_BIT, 0), EACH16(HIGH_BIT, 16));
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(heads + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(heads + i + 16));
        a = _mm256_or_si256(_mm256_and_si256(a, low6), _mm256_and_si256(_mm256_srli_epi16(a, 9), sign));
        b = _mm256_or_si256(_mm256_and_si256(b, low6), _mm256_and_si256(_mm256_srli_epi16(b, 9), sign));
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8);
        __m256i last = _mm256_permutevar8x32_epi32(bytes, _mm256_set1_epi32(7));
        __m256i chosen = _mm256_and_si256(_mm256_shuffle_epi8(last, element), bit);
        __m256i high = _mm256_and_si256(_mm256_cmpeq_epi8(chosen, bit), _mm256_set1_epi8((char)0x80));
        _mm256_storeu_si256((__m256i *)raw, _mm256_or_si256(bytes, high));
    }
    tw_lossless_ref.pack(heads + whole, n - whole, raw);
}

static void lanes_unpack(const uint8_t *raw, size_t n, uint16_t *heads)
{
    const __m256i low6 = _mm256_set1_epi16(0x3f), sign = _mm256_set1_epi16((short)0x8000);
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)raw);
        uint32_t high = (uint32_t)_mm256_movemask_epi8(bytes);
        uint32_t last =
            (high & 0x7f) | (high >> 7 & 0x7f) << 8 | (high >> 14 & 0x7f) << 16 | (high >> 21 & 0x7f) << 24;
        bytes = _mm256_insert_epi32(bytes, (int)last, 7);
        for (size_t half = 0; half < 2; half++) {
            __m128i eight = half ? _mm256_extracti128_si256(bytes, 1) : _mm256_castsi256_si128(bytes);
            __m256i bits = _mm256_cvtepu8_epi16(eight), *at = (__m256i *)(heads + i + 16 * half);
            __m256i coded = _mm256_slli_epi16(_mm256_loadu_si256(at), 6);
            bits = _mm256_or_si256(_mm256_and_si256(bits, low6),
                                   _mm256_and_si256(_mm256_slli_epi16(bits, 9), sign));
            _mm256_storeu_si256(at, _mm256_or_si256(coded, bits));
        }
    }
    tw_lossless_ref.unpack(raw, n - whole, heads + whole);
}

static void lanes_pack_tails(const uint16_t *tails, size_t n, uint8_t *planes)
{
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(tails + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(tails + i + 16));
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8);
        for (int bit = 0; bit < 3; bit++, planes += sizeof(uint32_t)) {
            uint32_t word = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7 - bit));
            memcpy(planes, &word, sizeof(word));
        }
    }
    tw_lossless_ref.pack_tails(tails + whole, n - whole, planes);
}

/** Spread 32 bits to 32 bytes: byte i is `value` if bit i is set, else 0. */
INLINE __m256i lanes_spread(const uint8_t *plane, char value)
{
    const __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2,
                                          2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    int word;
    memcpy(&word, plane, sizeof(word));
    __m256i chosen = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), from), bits);
    return _mm256_and_si256(_mm256_cmpeq_epi8(chosen, bits), _mm256_set1_epi8(value));
}

static void lanes_unpack_tails(const uint8_t *planes, size_t n, uint16_t *tails)
{
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, planes += 3 * sizeof(uint32_t)) {
        __m256i bytes = _mm256_or_si256(lanes_spread(planes, 1), lanes_spread(planes + 4, 2));
        bytes = _mm256_or_si256(bytes, lanes_spread(planes + 8, 4));
        __m256i *to = (__m256i *)(tails + i);
        _mm256_storeu_si256(to, _mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes)));
        _mm256_storeu_si256(to + 1, _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes, 1)));
    }
    tw_lossless_ref.unpack_tails(planes, n - whole, tails + whole);
}

#define HEADS                                                                               \
    .sum = lanes_sum, .deviation = lanes_deviation, .bins = lanes_bins, .pack = lanes_pack, \
    .unpack = lanes_unpack, .pack_tails = lanes_pack_tails, .unpack_tails = lanes_unpack_tails
