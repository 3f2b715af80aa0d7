/** The arithmetic by which factors, contexts and tables are chosen and sent. The host's and the GPU's codec
 *  share it, so their bytes are equal. Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/delta/value.h"

/* ---- the sample ---------------------------------------------------------------------------------------- */

/* The sample: runs of 64 elements at equal distances, in all 1/16 of the message, but at least SAMPLE_MIN and
 * at most SAMPLE_MAX elements. An element of the sample takes ten times as long as coding an element. All
 * sums below are over at most SAMPLE_MAX elements, and fit in 32 bits. */
#define TW_DELTA_SAMPLE_RUN 64
#define TW_DELTA_SAMPLE_SHARE 16
#define TW_DELTA_SAMPLE_MIN 8192
#define TW_DELTA_MEAN_Z_MAX 2047 /**< larger z count as this, so that outliers do not decide a table */
#define TW_DELTA_SIZE_MAX 1023   /**< larger previous changes count as this */

/** Elements from the beginning of a run of the sample to the beginning of the next run. */
TW_HD static inline uint32_t tw_delta_sample_distance(uint32_t n_elems)
{
    uint32_t share = n_elems / TW_DELTA_SAMPLE_SHARE;
    uint32_t wanted = share > TW_DELTA_SAMPLE_MIN ? share : TW_DELTA_SAMPLE_MIN;
    uint32_t most = wanted < TW_DELTA_SAMPLE_MAX ? wanted : TW_DELTA_SAMPLE_MAX;
    return TW_DELTA_SAMPLE_RUN * ((n_elems + most - 1) / most);
}

TW_HD static inline int32_t tw_delta_clamp(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

/** The size of a previous change, at most TW_DELTA_SIZE_MAX, from which a factor is chosen. */
TW_HD static inline uint32_t tw_delta_sample_size(uint8_t state)
{
    uint32_t size = tw_delta_state_size(state);
    return size < TW_DELTA_SIZE_MAX ? size : TW_DELTA_SIZE_MAX;
}

/** The part of a change that continues the previous change, clamped to 0 to 2 times the previous size: a
 *  factor cannot predict more. */
TW_HD static inline uint32_t tw_delta_sample_part(int16_t change, uint8_t state)
{
    int32_t turned = state & 0x80 ? -change : change;
    return (uint32_t)tw_delta_clamp(turned, 0, 2 * (int32_t)tw_delta_sample_size(state));
}

/* ---- choices ------------------------------------------------------------------------------------------- */

/** The factor: the mean ratio of changes to previous changes, weighted by the previous sizes. parts and
 *  sizes: sums of tw_delta_sample_part and of tw_delta_sample_size. */
TW_HD static inline uint8_t tw_delta_factor_of(uint32_t parts, uint32_t sizes)
{
    uint64_t factor = sizes ? (128 * (uint64_t)parts + sizes / 2) / sizes : 0;
    return (uint8_t)(factor < 255 ? factor : 255);
}

/** The table of a context of n > 0 elements with this sum of z: one for each octave of the mean. */
TW_HD static inline uint8_t tw_delta_table_of(uint32_t sum, uint32_t n)
{
    uint32_t mean64 = (uint32_t)((uint64_t)sum * 64 / n);
    return (uint8_t)tw_delta_clamp((int32_t)tw_delta_octave(mean64 | 1), 0, TW_DELTA_TABLES - 1);
}

/** Turn counts into frequencies, at least 1 up to the last symbol that occurs. Later symbols are escaped. */
TW_HD static inline void tw_delta_freq_of(const uint32_t *counts, uint16_t *freq)
{
    uint64_t weights[TW_ENTROPY_SYMBOLS];
    uint32_t present = 0;
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        weights[s] = counts[s];
        present = counts[s] && s < TW_ENTROPY_ESCAPE ? (2u << s) - 1 : present;
    }
    tw_entropy_freq_choose(weights, present, freq);
}

/** The coders' entry of an exponent: indices of its contexts' tables, 4 bits each, | factor << 16. */
TW_HD static inline uint32_t tw_delta_row_of(const tw_delta_stats_t *stats, uint32_t row)
{
    uint32_t entry = (uint32_t)stats->factor[row] << 16;
    for (uint32_t size = 0; size < TW_DELTA_SIZES; size++) {
        entry |= (uint32_t)stats->table[row * TW_DELTA_SIZES + size] << 4 * size;
    }
    return entry;
}

/* ---- what is sent of them ------------------------------------------------------------------------------ */

/** The distance between contexts whose tables are sent: 1, or SIZES without the second context. Then only
 *  the first context of each exponent is sent. */
TW_HD static inline uint32_t tw_delta_context_stride(int second)
{
    return second ? 1 : TW_DELTA_SIZES;
}

/** The number of a table's frequencies that are sent: those up to the last one that is not 0. */
TW_HD static inline uint32_t tw_delta_freq_count(const uint16_t *freq)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < TW_ENTROPY_ESCAPE; s++) {
        n = freq[s] ? s + 1 : n;
    }
    return n;
}

/** Bytes of a table in a message. */
TW_HD static inline uint32_t tw_delta_freq_bytes(const uint16_t *freq)
{
    uint32_t n = tw_delta_freq_count(freq), bytes = 1;
    for (uint32_t s = 0; s < n; s++) {
        bytes += freq[s] > 0x7f ? 2 : 1;
    }
    return bytes;
}

/** Write a table; returns its end. */
TW_HD static inline uint8_t *tw_delta_freq_write(const uint16_t *freq, uint8_t *at)
{
    uint32_t n = tw_delta_freq_count(freq);
    *at++ = (uint8_t)n;
    for (uint32_t s = 0; s < n; s++) {
        if (freq[s] > 0x7f) {
            *at++ = (uint8_t)(freq[s] | 0x80);
            *at++ = (uint8_t)(freq[s] >> 7);
        } else {
            *at++ = (uint8_t)freq[s];
        }
    }
    return at;
}

/** Write base, factors and contexts, which come before the tables. Returns their end. */
TW_HD static inline uint8_t *tw_delta_contexts_write(const tw_delta_stats_t *stats, int second, uint8_t *at)
{
    uint32_t stride = tw_delta_context_stride(second);
    *at++ = stats->base;
    for (uint32_t row = 0; second && row < TW_DELTA_EXPONENTS; row++) {
        *at++ = stats->factor[row];
    }
    for (uint32_t c = 0; c < TW_DELTA_CONTEXTS; c += 2 * stride) {
        *at++ = (uint8_t)(stats->table[c] | stats->table[c + stride] << 4);
    }
    return at;
}

/** Untrusted bytes that have not been read. */
typedef struct tw_delta_source {
    const uint8_t *at, *end;
    int ended; /**< 1: a read went past the end */
} tw_delta_source_t;

/** Read the next byte; 0 at the end. */
TW_HD static inline uint32_t tw_delta_next_byte(tw_delta_source_t *source)
{
    if (source->at == source->end) {
        source->ended = 1;
        return 0;
    }
    return *source->at++;
}

/** Read base, factors and contexts. */
TW_HD static inline void tw_delta_contexts_read(tw_delta_stats_t *stats, int second,
                                                tw_delta_source_t *source)
{
    uint32_t stride = tw_delta_context_stride(second);
    stats->base = (uint8_t)tw_delta_next_byte(source);
    for (uint32_t row = 0; row < TW_DELTA_EXPONENTS; row++) {
        stats->factor[row] = (uint8_t)(second ? tw_delta_next_byte(source) : 0);
    }
    for (uint32_t c = 0; c < TW_DELTA_CONTEXTS; c += 2 * stride) {
        uint32_t pair = tw_delta_next_byte(source);
        for (uint32_t i = 0; i < 2 * stride; i++) {
            stats->table[c + i] = (uint8_t)(i == 0 ? pair & 0xf : i == stride ? pair >> 4 : 0);
        }
    }
}

/** Read a table. Returns 0 if it is invalid. */
TW_HD static inline int tw_delta_freq_read(tw_delta_source_t *source, uint16_t *freq)
{
    uint32_t sum = 0, n = tw_delta_next_byte(source);
    if (n > TW_ENTROPY_ESCAPE) {
        return 0;
    }
    for (uint32_t s = 0; s < TW_ENTROPY_ESCAPE; s++) {
        uint32_t value = s < n ? tw_delta_next_byte(source) : 0;
        value = value & 0x80 ? (value & 0x7f) | tw_delta_next_byte(source) << 7 : value;
        sum += value;
        if (sum >= TW_ENTROPY_FREQ_SUM) {
            return 0;
        }
        freq[s] = (uint16_t)value;
    }
    freq[TW_ENTROPY_ESCAPE] = (uint16_t)(TW_ENTROPY_FREQ_SUM - sum);
    return !source->ended;
}
