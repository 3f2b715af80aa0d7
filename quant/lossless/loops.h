/** Loops over heads, which compilers vectorise. Each backend compiles them for its instructions. */
#pragma once

#include "quant/lossless/model.h"

static void loops_sum(const uint16_t *heads, size_t n, uint64_t *sum, uint64_t *live)
{
    uint32_t total = 0, zeros = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = (uint16_t)((heads[i] & 0x7fff) >> 5);
        total += magnitude;
        zeros += magnitude == 0;
    }
    *sum += total;
    *live += n - zeros;
}

static void loops_sum_columns(const uint16_t *heads, size_t n, int32_t scale, int32_t *sums, uint32_t *live)
{
    for (size_t i = 0; i < n; i++) {
        int32_t magnitude = (heads[i] & 0x7fff) >> 5;
        sums[i] += magnitude ? magnitude - scale : 0;
        live[i] += magnitude != 0;
    }
}

static void loops_deviation(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns,
                            uint64_t *sum, uint64_t *live)
{
    int16_t scale16 = (int16_t)scale;
    uint32_t total = 0, zeros = 0;
    for (size_t i = 0; !columns && i < n; i++) {
        int16_t magnitude = (int16_t)((heads[i] & 0x7fff) >> 5), off = (int16_t)(magnitude - scale16);
        int16_t size = (int16_t)(off < 0 ? -off : off);
        total += (uint16_t)(magnitude ? size : 0);
        zeros += magnitude == 0;
    }
    for (size_t i = 0; columns && i < n; i++) {
        int16_t magnitude = (int16_t)((heads[i] & 0x7fff) >> 5);
        int16_t off = (int16_t)(magnitude - scale16 - columns[i]);
        int16_t size = (int16_t)(off < 0 ? -off : off);
        total += (uint16_t)(magnitude ? size : 0);
        zeros += magnitude == 0;
    }
    *sum += total;
    *live += n - zeros;
}

static void loops_bins(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns, uint16_t *bins)
{
    int16_t down = (int16_t)(scale - 128);
    for (size_t i = 0; i < n; i++) {
        int16_t magnitude = (int16_t)((heads[i] & 0x7fff) >> 5);
        int16_t x = (int16_t)(magnitude - down - (columns ? columns[i] : 0));
        x = x < 0 ? 0 : x;
        bins[i] = (uint16_t)(tw_lossless_coded(heads[i]) == 0 ? TW_LOSSLESS_ZEROS_BIN : x > 255 ? 255 : x);
    }
}

static uint64_t loops_fold(const int16_t *values, size_t n, int32_t centre, uint32_t shift, uint16_t *folded)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t x = (uint16_t)tw_lossless_folded(values[i], centre, shift);
        folded[i] = x;
        sum += x;
    }
    return sum;
}

static uint64_t loops_folded_bits(const uint16_t *folded, size_t n, uint32_t k)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        bits += tw_lossless_folded_bits(folded[i], k);
    }
    return bits;
}

static void loops_expect(uint16_t value, const int16_t *columns, size_t n, uint16_t *expected)
{
    if (!columns) {
        for (size_t i = 0; i < n; i++) {
            expected[i] = value;
        }
        return;
    }
    uint16_t row_class = value & (uint16_t)~TW_LOSSLESS_SCALE_MASK;
    for (size_t i = 0; i < n; i++) {
        uint16_t sum = (uint16_t)(value + (uint16_t)columns[i]);
        expected[i] = (uint16_t)((sum & TW_LOSSLESS_SCALE_MASK) | row_class);
    }
}

static void loops_split(tw_type_t type, const void *src, size_t n, uint16_t *heads, uint16_t *tails)
{
    if (type == TW_TYPE_FP32) {
        const uint32_t *from = src;
        for (size_t i = 0; i < n; i++) {
            heads[i] = (uint16_t)(from[i] >> 16);
        }
        for (size_t i = 0; tails && i < n; i++) {
            tails[i] = (uint16_t)from[i];
        }
        return;
    }
    const uint16_t *from = src;
    for (size_t i = 0; i < n; i++) {
        heads[i] = (uint16_t)((from[i] & 0x8000) | (from[i] & 0x7fff) >> 3);
    }
    for (size_t i = 0; tails && i < n; i++) {
        tails[i] = from[i] & 7;
    }
}

static void loops_join(tw_type_t type, const uint16_t *heads, const uint16_t *tails, size_t n, void *dst)
{
    if (type == TW_TYPE_FP32) {
        uint32_t *to = dst;
        for (size_t i = 0; i < n; i++) {
            to[i] = (uint32_t)heads[i] << 16 | tails[i];
        }
        return;
    }
    uint16_t *to = dst;
    for (size_t i = 0; i < n; i++) {
        to[i] = (uint16_t)((heads[i] & 0x8000) | (heads[i] << 3 & 0x7ff8) | (tails[i] & 7));
    }
}

static size_t loops_count(const uint16_t *tails, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += tails[i] != 0;
    }
    return count;
}

static uint32_t loops_check(const uint8_t *words, size_t n, size_t first)
{
    uint32_t check = 0, position = ((uint32_t)first + 1) * TW_ENTROPY_CHECK_FACTOR;
    for (size_t i = 0; i < n; i++) {
        uint16_t word;
        memcpy(&word, words + 2 * i, sizeof(word));
        uint32_t term = word + position + (uint32_t)i * TW_ENTROPY_CHECK_FACTOR;
        check += term * term;
    }
    return check;
}

/** tw_entropy_decode_table, eight entries at a time. The next symbol's entries overwrite extra ones. */
static void loops_decode_table(const uint16_t *freq, uint32_t *table)
{
    const uint32_t *end = table + TW_ENTROPY_FREQ_SUM;
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; table += freq[s++]) {
        uint32_t entry = freq[s] | s << 21, slot = 0;
        for (; slot < freq[s] && end - table >= slot + 8; slot += 8) {
            for (uint32_t k = 0; k < 8; k++) {
                table[slot + k] = entry + ((slot + k) << 11);
            }
        }
        for (; slot < freq[s]; slot++) {
            table[slot] = entry + (slot << 11);
        }
    }
}

/* Initializers of a backend's operations that are loops here. */
#define LOOPS                                                                                           \
    .sum_columns = loops_sum_columns, .expect = loops_expect, .split = loops_split, .join = loops_join, \
    .fold = loops_fold, .folded_bits = loops_folded_bits, .decode_table = loops_decode_table,           \
    .count = loops_count
