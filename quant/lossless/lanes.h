/** A block, one vector of 32-bit elements at a time: the same steps as ref.c. entropy/vec_avx2.h or
 *  entropy/vec_avx512.h comes first. What is left after whole groups of 32 is ref.c's. */
#pragma once

#include "quant/entropy/lanes.h"
#include "quant/lossless/loops.h"

/* ---- sums ---------------------------------------------------------------------------------------------- */

/** The magnitudes of 16 heads. */
INLINE __m256i magnitudes(const uint16_t *heads)
{
    return _mm256_srli_epi16(_mm256_slli_epi16(_mm256_loadu_si256((const __m256i *)heads), 1), 6);
}

/** Pairs of 16 bits, added. */
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

/* ---- symbols ------------------------------------------------------------------------------------------- */

INLINE vec_t context_of(vec_t expected)
{
    return vec_or(vec_and(vec_shr(expected, TW_LOSSLESS_CLASS_SHIFT - 2), vec_set(0x1c)),
                  vec_and(expected, vec_set(3)));
}

INLINE vec_t bottom_of(vec_t expected)
{
    return vec_shr(vec_and(expected, vec_set(TW_LOSSLESS_SCALE_MASK & ~3)), 1);
}

static void lanes_encode(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                         size_t n, tw_entropy_writer_t *writer)
{
    encode_tables_t tables;
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words, *escaped = writer->escapes;
    size_t whole = n - n % TW_ENTROPY_LANES;
    make_tables(model, &tables);
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = 0; i < whole; i += TW_ENTROPY_LANES) {
        vec_t entries[VECTORS], reciprocals[VECTORS];
        look_up(&tables, heads + i, expected + i, entries, reciprocals);
        uint32_t escapes = 0;
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            escapes |= mask_bits(mask_sign(entries[v])) << (v * WIDTH);
            lanes[v] = push_symbol(lanes[v], entries[v], reciprocals[v], &words);
        }
        for (; __builtin_expect(escapes != 0, 0); escapes &= escapes - 1) {
            *escaped++ = (uint16_t)tw_lossless_coded(heads[i + (size_t)__builtin_ctz(escapes)]);
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    writer->escapes = escaped;
    tw_lossless_ref.encode(model, heads + whole, expected + whole, n - whole, writer);
}

/** The escaped elements of a group, of which these bits count; highest lane first. 0 when there are none
 *  left. */
static int take_escapes(uint16_t *values, uint32_t escapes, uint16_t bits, tw_entropy_reader_t *reader)
{
    while (escapes) {
        uint32_t lane = 31u - (uint32_t)__builtin_clz(escapes);
        if (!tw_entropy_pop(&reader->escapes, reader->escapes_begin, &values[lane])) {
            return 0;
        }
        values[lane] &= bits;
        escapes ^= 1u << lane;
    }
    return 1;
}

static int decode_groups(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                         tw_entropy_reader_t *reader, uint16_t *heads)
{
    vec_t lanes[VECTORS];
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > 0;) {
        i -= TW_ENTROPY_LANES;
        uint32_t escapes = 0;
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = i + v * WIDTH;
            vec_t expect = vec_load16(expected + at);
            vec_t slot = vec_and(lanes[v], vec_set(TW_ENTROPY_FREQ_SUM - 1));
            vec_t index = vec_or(vec_shl(context_of(expect), TW_ENTROPY_FREQ_BITS), slot);
            vec_t entry = vec_gather(model->decode, index), symbol = vec_shr(entry, 21);
            lanes[v] = take_symbol(lanes[v], entry);
            escapes |= mask_bits(mask_ge(symbol, vec_set(TW_ENTROPY_ESCAPE))) << (v * WIDTH);
            vec_t above = vec_sub(symbol, vec_set(1 + TW_LOSSLESS_BIAS / 2));
            vec_t coded = vec_and(vec_add(above, bottom_of(expect)), vec_set(0x1ff));
            vec_store16(heads + at, vec_zero_where(mask_ge(vec_set(0), symbol), coded));
        }
        if (!refill_all(lanes, &words, reader->words_begin) ||
            (__builtin_expect(escapes != 0, 0) && !take_escapes(heads + i, escapes, 0x1ff, reader))) {
            return 0;
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    return 1;
}

static int lanes_decode(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                        tw_entropy_reader_t *reader, uint16_t *heads)
{
    size_t whole = n - n % TW_ENTROPY_LANES;
    return tw_lossless_ref.decode(model, expected + whole, n - whole, reader, heads + whole) &&
           decode_groups(model, expected, whole, reader, heads);
}

/* ---- tails in lanes ------------------------------------------------------------------------------------ */

/** The contexts of a group of heads, moved down by `down` bits to the 9 that count. */
INLINE void tail_contexts(const uint16_t *heads, int down, const uint16_t *expected, uint32_t first,
                          uint16_t *contexts)
{
    for (size_t i = 0; i < TW_ENTROPY_LANES; i += WIDTH16) {
        vec16_t coded = vec16_and(vec16_shr(vec16_load(heads + i), down), vec16_set(0x1ff));
        vec16_t symbols = symbols_of_coded(coded, vec16_load(expected + i));
        vec16_t octaves = vec16_min(vec16_shr(vec16_add(symbols, vec16_set(1)), 1),
                                    vec16_set(TW_LOSSLESS_TAIL_CONTEXTS - 1));
        vec16_store(contexts + i, vec16_sub(octaves, vec16_min(octaves, vec16_set(first))));
    }
}

/** Symbols of tails: 16 bits and a one behind them, of which the lowest is found as a float's exponent. */
INLINE vec_t tail_symbols(vec_t tails)
{
    vec_t ended = vec_or(tails, vec_set(0x10000));
    return vec_sub(vec_shr(vec_float(vec_and(ended, vec_sub(vec_set(0), ended))), 23), vec_set(127));
}

INLINE vec_t tail_raw_bits(vec_t symbols)
{
    return vec_sub(vec_set(15), vec_min(symbols, vec_set(15)));
}

static void lanes_encode_tails(const tw_lossless_model_t *model, const uint16_t *heads,
                               const uint16_t *expected, const uint16_t *tails, size_t n,
                               tw_entropy_writer_t *writer)
{
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words, *escaped = writer->escapes;
    size_t whole = n - n % TW_ENTROPY_LANES;
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = 0; i < whole; i += TW_ENTROPY_LANES) {
        uint16_t contexts[TW_ENTROPY_LANES];
        vec_t entries[VECTORS], reciprocals[VECTORS];
        uint32_t escapes = 0;
        tail_contexts(heads + i, 6, expected + i, model->tail_first, contexts);
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t tail = vec_load16(tails + i + v * WIDTH), symbol = tail_symbols(tail);
            vec_t index = vec_or(vec_shl(vec_load16(contexts + v * WIDTH), 5), symbol);
            entries[v] = vec_gather_pair(model->encode_tails, index, &reciprocals[v]);
            mask_t escape = mask_sign(entries[v]);
            vec_t bits = vec_zero_where(escape, tail_raw_bits(symbol));
            vec_t raw = vec_zero_where(escape, vec_shrv(tail, vec_add(symbol, vec_set(1))));
            escapes |= mask_bits(escape) << (v * WIDTH);
            mask_t full = mask_ge(vec_shrv(lanes[v], vec_sub(vec_set(32), bits)), vec_set(1));
            lanes[v] = vec_or(vec_shlv(spill(lanes[v], full, &words), bits), raw);
        }
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            lanes[v] = push_symbol(lanes[v], entries[v], reciprocals[v], &words);
        }
        for (; __builtin_expect(escapes != 0, 0); escapes &= escapes - 1) {
            *escaped++ = tails[i + (size_t)__builtin_ctz(escapes)];
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    writer->escapes = escaped;
    tw_lossless_ref.encode_tails(model, heads + whole, expected + whole, tails + whole, n - whole, writer);
}

static int decode_tail_groups(const tw_lossless_model_t *model, const uint16_t *heads,
                              const uint16_t *expected, size_t n, tw_entropy_reader_t *reader,
                              uint16_t *tails)
{
    vec_t lanes[VECTORS];
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > 0;) {
        uint16_t contexts[TW_ENTROPY_LANES];
        vec_t symbols[VECTORS];
        uint32_t escapes = 0;
        i -= TW_ENTROPY_LANES;
        tail_contexts(heads + i, 0, expected + i, model->tail_first, contexts);
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t slot = vec_and(lanes[v], vec_set(TW_ENTROPY_FREQ_SUM - 1));
            vec_t index = vec_or(vec_shl(vec_load16(contexts + v * WIDTH), TW_ENTROPY_FREQ_BITS), slot);
            vec_t entry = vec_gather(model->decode_tails, index);
            symbols[v] = vec_shr(entry, 21);
            escapes |= mask_bits(mask_ge(symbols[v], vec_set(TW_ENTROPY_ESCAPE))) << (v * WIDTH);
            lanes[v] = take_symbol(lanes[v], entry);
        }
        if (!refill_all(lanes, &words, reader->words_begin)) {
            return 0;
        }
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t bits = tail_raw_bits(symbols[v]);
            vec_t raw = vec_andnot(vec_shlv(vec_set(~0u), bits), lanes[v]);
            vec_t tail = vec_shlv(vec_or(vec_shl(raw, 1), vec_set(1)), symbols[v]);
            vec_store16(tails + i + v * WIDTH, tail);
            lanes[v] = vec_shrv(lanes[v], bits);
        }
        if (!refill_all(lanes, &words, reader->words_begin) ||
            (__builtin_expect(escapes != 0, 0) && !take_escapes(tails + i, escapes, 0xffff, reader))) {
            return 0;
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    return 1;
}

static int lanes_decode_tails(const tw_lossless_model_t *model, const uint16_t *heads,
                              const uint16_t *expected, size_t n, tw_entropy_reader_t *reader,
                              uint16_t *tails)
{
    size_t whole = n - n % TW_ENTROPY_LANES;
    return tw_lossless_ref.decode_tails(model, heads + whole, expected + whole, n - whole, reader,
                                        tails + whole) &&
           decode_tail_groups(model, heads, expected, whole, reader, tails);
}

/* ---- the other bits ------------------------------------------------------------------------------------ */

/* Which of elements 28 to 31 has a bit in the high bit of byte k, and which bit. */
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

/** Bytes that are `value` where a word has a bit, else 0. */
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

/* ---- checksums ----------------------------------------------------------------------------------------- */

static uint32_t lanes_check(const uint8_t *words, size_t n, size_t first)
{
    uint32_t positions[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++) {
        positions[i] = ((uint32_t)first + i + 1) * TW_ENTROPY_CHECK_FACTOR;
    }
    vec_t sum = vec_set(0), position;
    memcpy(&position, positions, sizeof(position));
    size_t whole = n - n % WIDTH;
    for (size_t i = 0; i < whole; i += WIDTH) {
        vec_t term = vec_add(vec_load16(words + 2 * i), position);
        sum = vec_add(sum, vec_mul(term, term));
        position = vec_add(position, vec_set(WIDTH * TW_ENTROPY_CHECK_FACTOR));
    }
    return total(sum) + loops_check(words + 2 * whole, n - whole, first + whole);
}

#define LANES                                                                                          \
    LOOPS, .sum = lanes_sum, .deviation = lanes_deviation, .bins = lanes_bins, .encode = lanes_encode, \
           .check = lanes_check, .decode = lanes_decode, .encode_tails = lanes_encode_tails,           \
           .decode_tails = lanes_decode_tails, .pack = lanes_pack, .unpack = lanes_unpack,             \
           .pack_tails = lanes_pack_tails, .unpack_tails = lanes_unpack_tails
