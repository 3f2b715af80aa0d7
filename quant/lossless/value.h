/** One element of a lossless message: the readable code. lanes.h does the same in vectors. */
#pragma once

#include "quant/lossless/lossless.h"

/** A head's magnitude, in quarters of an octave: the exponent and the mantissa's first two bits. */
TW_HD static inline uint32_t tw_lossless_magnitude(uint16_t head)
{
    return (head & 0x7fffu) >> 5;
}

/** The part of a head that is coded, 9 bits: the exponent and the mantissa's first bit. */
TW_HD static inline uint32_t tw_lossless_coded(uint16_t head)
{
    return head >> 6 & 0x1ffu;
}

TW_HD static inline uint8_t tw_lossless_raw(uint16_t head)
{
    return (uint8_t)((head & 0x3f) | (head >> 9 & 0x40));
}

TW_HD static inline uint16_t tw_lossless_head_of(uint32_t coded, uint8_t raw)
{
    return (uint16_t)(coded << 6 | (raw & 0x3f) | (uint32_t)(raw & 0x40) << 9);
}

/** The index of the coder's table: from the class and the expectation's phase in its octave. */
TW_HD static inline uint32_t tw_lossless_context(uint16_t expected)
{
    return (uint32_t)expected >> TW_LOSSLESS_CLASS_SHIFT << 2 | (expected & 3);
}

/** The value of symbol 1: the expectation's octave, in half octaves, plus BIAS / 2. */
TW_HD static inline uint32_t tw_lossless_bottom(uint16_t expected)
{
    return (expected & TW_LOSSLESS_SCALE_MASK & ~3u) >> 1;
}

/** The symbol of 9 bits: 0 for 0; 1 to 30 from the bottom up; else the escape. */
TW_HD static inline uint32_t tw_lossless_symbol(uint32_t coded, uint16_t expected)
{
    uint32_t above = coded + TW_LOSSLESS_BIAS / 2 - tw_lossless_bottom(expected);
    return !coded ? 0 : (above < TW_ENTROPY_ESCAPE - 1 ? above : TW_ENTROPY_ESCAPE - 1) + 1;
}

/** The 9 bits of a symbol that is not the escape. They stay 9 bits for any expectation. */
TW_HD static inline uint32_t tw_lossless_coded_of(uint32_t symbol, uint16_t expected)
{
    uint32_t coded = symbol - 1 + tw_lossless_bottom(expected) - TW_LOSSLESS_BIAS / 2;
    return symbol ? coded & 0x1ff : 0;
}

/** The expectation of an element. row: its row's value, not DEAD; column: its column's scale. */
TW_HD static inline uint16_t tw_lossless_expected(uint16_t row, int16_t column)
{
    return (uint16_t)((((uint32_t)row + (uint32_t)column) & TW_LOSSLESS_SCALE_MASK) |
                      (row & ~(uint32_t)TW_LOSSLESS_SCALE_MASK));
}

/** Scales of columns are multiples of 1 << this shift, since few rows give imprecise scales. */
TW_HD static inline uint32_t tw_lossless_column_shift(const tw_lossless_piece_t *piece)
{
    uint32_t rows = piece->n_elems / piece->row_elems;
    return (uint32_t)(rows < 48) + (rows < 20);
}

/** Bytes of the 7 bits of n elements. */
TW_HD static inline size_t tw_lossless_raw_bytes(size_t n)
{
    size_t rest = n % 32, last = rest < TW_LOSSLESS_RAW_BYTES ? rest : TW_LOSSLESS_RAW_BYTES;
    return (n / 32 * TW_LOSSLESS_RAW_BYTES + last + 1) & ~(size_t)1;
}

/** How many bytes of a block's 7 bits are in the lanes' first states, two bytes in each, and nowhere else. */
TW_HD static inline size_t tw_lossless_raw_in_lanes(size_t raw_bytes)
{
    return raw_bytes < 2 * TW_ENTROPY_LANES ? raw_bytes : 2 * TW_ENTROPY_LANES;
}

/** Bytes of a block's tails. `tails` is from the block's entry. */
TW_HD static inline size_t tw_lossless_tail_bytes(tw_type_t type, size_t n, uint32_t tails)
{
    if (type != TW_TYPE_FP32) {
        return type == TW_TYPE_FP16 ? (n + 31) / 32 * 12 : 0;
    }
    return tails == TW_LOSSLESS_TAILS_RAW ? 2 * n : tails == TW_LOSSLESS_TAILS_CODED ? 0 : 4 * (size_t)tails;
}

/** Bytes of a block's entry. */
TW_HD static inline size_t tw_lossless_entry_bytes(int tailed)
{
    return tailed ? sizeof(tw_lossless_entry_t) : sizeof(tw_entropy_entry_t);
}

/** Returns 1 if an entry can hold these numbers of words and escapes, and they do not look like RAW. */
TW_HD static inline int tw_lossless_sizes_fit(size_t n_words, size_t n_escapes)
{
    return n_words < 0xffff && n_escapes <= 0xffff;
}

/** Whether an encoder may have written an entry's `tails`, for a block of n elements. */
TW_HD static inline int tw_lossless_tails_may_be(const tw_lossless_entry_t *entry, uint32_t n_tables,
                                                 size_t n)
{
    if (entry->tails == TW_LOSSLESS_TAILS_CODED) {
        return n_tables && entry->sizes != TW_ENTROPY_RAW;
    }
    return entry->tails == TW_LOSSLESS_TAILS_RAW || (uint64_t)entry->tails * TW_LOSSLESS_LISTED <= n;
}

/* ---- tails that are coded ------------------------------------------------------------------------------ */

/** A tail's symbol: the number of zeros at its end. */
TW_HD static inline uint32_t tw_lossless_tail_symbol(uint16_t tail)
{
#ifdef __CUDA_ARCH__
    return (uint32_t)__ffs((int)(tail | 0x10000u)) - 1;
#else
    return (uint32_t)__builtin_ctz(tail | 0x10000u);
#endif
}

/** Bits of a tail above its lowest one bit. They are sent as they are. */
TW_HD static inline uint32_t tw_lossless_tail_raw_bits(uint32_t symbol)
{
    return symbol < 15 ? 15 - symbol : 0;
}

TW_HD static inline uint16_t tw_lossless_tail_of(uint32_t symbol, uint32_t raw)
{
    return (uint16_t)((raw << 1 | 1) << symbol);
}

/** The index of a tail's table, from its head's symbol. `first`: 16 - the number of tables. */
TW_HD static inline uint32_t tw_lossless_tail_context(uint32_t head_symbol, uint32_t first)
{
    uint32_t most = TW_LOSSLESS_TAIL_CONTEXTS - 1, octave = (head_symbol + 1) / 2;
    octave = octave < most ? octave : most;
    return octave > first ? octave - first : 0;
}
