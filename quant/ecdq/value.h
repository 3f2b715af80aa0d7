/** One element: its step, its integer, and back; one row; one table. Compile it without fused multiply-add.
 *  Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/arithmetic/philox.h"
#include "quant/ecdq/ecdq.h"

/** A row's value with the step in place of the scale. The row must not be DEAD. `step`: the codec's. */
TW_HD static inline uint16_t tw_ecdq_moved_row(uint16_t row, int32_t step)
{
    /* By class: about how many quarters of an octave a row's standard deviation is above its scale, the mean
     * of logarithms. It grows with the spread of the row's elements. */
    static const uint8_t deviations[TW_LOSSLESS_CLASSES] = {0, 1, 1, 2, 3, 4, 4, 6};
    uint32_t scale = (uint32_t)row + deviations[row >> TW_LOSSLESS_CLASS_SHIFT] + (uint32_t)step;
    return (uint16_t)((scale & TW_LOSSLESS_SCALE_MASK) | (row & ~(uint32_t)TW_LOSSLESS_SCALE_MASK));
}

/** An element's step: a normal number for any expectation. */
TW_HD static inline float tw_ecdq_step(uint16_t expected)
{
    int32_t quarters = (expected & TW_LOSSLESS_SCALE_MASK) - TW_LOSSLESS_BIAS;
    quarters = quarters < 4 ? 4 : quarters;
    quarters = quarters > 1015 ? 1015 : quarters;
    return tw_float_of_bits((uint32_t)quarters << 21);
}

/** The Philox counter of the dither of a message's element i. Eight elements share a counter. */
TW_HD static inline uint32_t tw_ecdq_counter(uint32_t i)
{
    return i / TW_ECDQ_DITHER_GROUP * TW_ECDQ_COUNTERS + i % TW_ECDQ_COUNTERS;
}

/** The dither of element i: a half of one of the words that its counter gives. */
TW_HD static inline uint16_t tw_ecdq_half(tw_philox_words_t words, uint32_t i)
{
    uint32_t k = i % TW_ECDQ_DITHER_GROUP / (2 * TW_ECDQ_COUNTERS);
    /* Conditions, not an index, so that a GPU keeps the words in registers. */
    uint32_t low = k % 2 ? words.word[1] : words.word[0], high = k % 2 ? words.word[3] : words.word[2];
    return (uint16_t)((k / 2 ? high : low) >> 16 * (i / TW_ECDQ_COUNTERS % 2));
}

/** The dither as a number between -1/2 and 1/2; exact. */
TW_HD static inline float tw_ecdq_dither_of(uint16_t half)
{
    return ((float)half + 0.5f) * 0x1p-16f - 0.5f;
}

/** The integer of an element, as a float; TW_ECDQ_RAW if it is too large or the value is not finite. */
TW_HD static inline float tw_ecdq_integer(float value, uint16_t expected, uint16_t half)
{
    float x = value / tw_ecdq_step(expected) + tw_ecdq_dither_of(half);
    float size = tw_float_of_bits(tw_float_bits(x) & 0x7fffffff);
    float rounded = (x + 0x1.8p23f) - 0x1.8p23f; /* round to the nearest integer; right if |x| < 2^22 */
    return size < (float)(TW_ECDQ_WIDE_MAX - 1) ? rounded : (float)TW_ECDQ_RAW;
}

TW_HD static inline float tw_ecdq_value(float integer, uint16_t expected, uint16_t half)
{
    return (integer - tw_ecdq_dither_of(half)) * tw_ecdq_step(expected);
}

/** The symbol of an integer, with its row's class: class << 5 | symbol. */
TW_HD static inline uint8_t tw_ecdq_symbol(int32_t integer, uint16_t expected)
{
    uint32_t symbol = (uint32_t)(integer + TW_ECDQ_REACH);
    symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
    return (uint8_t)((uint32_t)expected >> TW_LOSSLESS_CLASS_SHIFT << 5 | symbol);
}

/** Choose the frequencies of a class's symbols. Those of symbols *first to *end - 1 are sent. Returns 0 if
 *  the block has no element of the class. */
TW_HD static inline int tw_ecdq_choose_table(const uint32_t *counts, uint16_t *freq, uint32_t *first,
                                             uint32_t *end)
{
    uint64_t weights[TW_ENTROPY_SYMBOLS];
    uint32_t present = 0;
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        weights[s] = counts[s];
        present |= (uint32_t)(counts[s] > 0) << s;
    }
    if (!present) {
        return 0;
    }
    tw_entropy_freq_choose(weights, present, freq);
    *first = 0;
    *end = TW_ENTROPY_ESCAPE;
    while (*first < *end && !freq[*first]) {
        ++*first;
    }
    while (*end > *first && !freq[*end - 1]) {
        --*end;
    }
    return 1;
}
