/** The arithmetic by which encoders choose how tails are sent. The host's and the GPU's encoder share it.
 *  Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/lossless/model.h"

/** Counts of tails' symbols, by the octave of their head minus its expectation. */
typedef uint32_t tw_lossless_tail_counts_t[TW_LOSSLESS_TAIL_OCTAVES][TW_LOSSLESS_TAIL_SYMBOLS];

/** The index of a head's octave in the counts. `expected` is before the window moves scales. The last index
 *  is for heads whose 9 bits are 0. */
TW_HD static inline uint32_t tw_lossless_tail_octave(uint16_t head, int32_t expected)
{
    int32_t most = TW_LOSSLESS_TAIL_OCTAVES - 2;
    int32_t octave = (int32_t)(tw_lossless_magnitude(head) >> 2) - (expected >> 2) + most / 2;
    octave = octave < 0 ? 0 : octave > most ? most : octave;
    return tw_lossless_coded(head) ? (uint32_t)octave : (uint32_t)most + 1;
}

/** The context of tails whose head has this octave, after the window has moved the scales. */
TW_HD static inline uint32_t tw_lossless_tail_octave_context(uint32_t octave, int window)
{
    int32_t zeros = TW_LOSSLESS_TAIL_OCTAVES - 1, most = TW_LOSSLESS_TAIL_CONTEXTS - 1;
    int32_t context = (int32_t)octave - (zeros - 1) / 2 - window / 4 + 1;
    return octave == (uint32_t)zeros ? 0 : (uint32_t)(context < 1 || context > most ? most : context);
}

/** Bits of tails with these counts of symbols in one table, in 1/256. */
TW_HD static inline uint64_t tw_lossless_tail_bits(const uint32_t *counts)
{
    uint64_t n = 0, bits = 0;
    for (uint32_t s = 0; s < TW_LOSSLESS_TAIL_SYMBOLS; s++) {
        n += counts[s];
    }
    uint64_t log_n = n ? tw_lossless_log2(n) : 0;
    for (uint32_t s = 0; s < TW_LOSSLESS_TAIL_SYMBOLS; s++) {
        uint64_t own = counts[s] ? log_n - tw_lossless_log2(counts[s]) : 0;
        bits += counts[s] * (own + 256ull * tw_lossless_tail_raw_bits(s));
    }
    return bits;
}

TW_HD static inline void tw_lossless_tail_table_of(const uint32_t *counts, tw_lossless_tail_table_t *table)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < TW_LOSSLESS_TAIL_SYMBOLS; s++) {
        n += counts[s];
    }
    for (uint32_t s = 0; s < TW_LOSSLESS_TAIL_SYMBOLS; s++) {
        table->density[s] = tw_lossless_code_of(n ? ((uint64_t)counts[s] << 16) / n : 0, counts[s] > 0);
    }
}

/** Choose and return the number of tables: the upper contexts have their own, all lower ones share the lowest
 *  table. *bits: the bits of n elements then, in 1/256. Adds to each context's counts those of all lower
 *  ones. */
TW_HD static inline uint32_t tw_lossless_tail_tables(uint32_t counts[][TW_LOSSLESS_TAIL_SYMBOLS],
                                                     uint64_t in_sample, uint64_t n, uint64_t *bits)
{
    uint64_t own[TW_LOSSLESS_TAIL_CONTEXTS], above = 0;
    uint32_t best = 0;
    for (uint32_t c = 0; c < TW_LOSSLESS_TAIL_CONTEXTS; c++) {
        own[c] = tw_lossless_tail_bits(counts[c]);
        for (uint32_t s = 0; c && s < TW_LOSSLESS_TAIL_SYMBOLS; s++) {
            counts[c][s] += counts[c - 1][s];
        }
    }
    *bits = UINT64_MAX;
    for (uint32_t n_tables = 1; n_tables <= TW_LOSSLESS_TAIL_CONTEXTS; n_tables++) {
        uint32_t c = TW_LOSSLESS_TAIL_CONTEXTS - n_tables;
        uint64_t cost = (above + tw_lossless_tail_bits(counts[c])) / in_sample * n +
                        256ull * 8 * n_tables * sizeof(tw_lossless_tail_table_t);
        best = cost < *bits ? n_tables : best;
        *bits = cost < *bits ? cost : *bits;
        above += own[c];
    }
    return best;
}

#define TW_LOSSLESS_TAIL_GAIN_BITS 4 /**< bits that coding must save for each tail, because it takes time */

/** Choose how the tails of n_live elements are sent, from a sample's counts. `by_context` is scratch. */
TW_HD static inline void tw_lossless_tails_choose(const tw_lossless_tail_counts_t counts, int window,
                                                  uint64_t n_live,
                                                  uint32_t by_context[][TW_LOSSLESS_TAIL_SYMBOLS],
                                                  tw_lossless_tails_t *tails)
{
    const uint32_t n_symbols = TW_LOSSLESS_TAIL_SYMBOLS, n_contexts = TW_LOSSLESS_TAIL_CONTEXTS;
    uint32_t all[TW_LOSSLESS_TAIL_SYMBOLS] = {0};
    uint64_t n = 0, bits;
    for (uint32_t s = 0; s < n_symbols; s++) {
        for (uint32_t octave = 0; octave < TW_LOSSLESS_TAIL_OCTAVES; octave++) {
            all[s] += counts[octave][s];
        }
        n += all[s];
    }
    tails->n_tables = 0;
    tails->tailed = n && (n - all[n_symbols - 1]) * TW_LOSSLESS_LISTED <= n;
    /* If tails look random with one table, many tables hardly help. */
    if (!n || tails->tailed || tw_lossless_tail_bits(all) > 256 * 15 * n) {
        return;
    }
    for (uint32_t c = 0; c < n_contexts; c++) {
        for (uint32_t s = 0; s < n_symbols; s++) {
            by_context[c][s] = 0;
        }
    }
    for (uint32_t octave = 0; octave < TW_LOSSLESS_TAIL_OCTAVES; octave++) {
        uint32_t c = tw_lossless_tail_octave_context(octave, window);
        for (uint32_t s = 0; s < n_symbols; s++) {
            by_context[c][s] += counts[octave][s];
        }
    }
    uint32_t n_tables = tw_lossless_tail_tables(by_context, n, n_live, &bits);
    tails->tailed = bits < 256 * (16 - TW_LOSSLESS_TAIL_GAIN_BITS) * n_live;
    tails->n_tables = tails->tailed ? n_tables : 0;
    for (uint32_t t = 0; t < tails->n_tables; t++) {
        uint32_t *own = by_context[n_contexts - 1 - t], *below = t + 1 < n_tables ? own - n_symbols : NULL;
        for (uint32_t s = 0; below && s < n_symbols; s++) {
            own[s] -= below[s];
        }
        tw_lossless_tail_table_of(own, &tails->tables[n_tables - 1 - t]);
    }
}

/** Make the symbols' frequencies from a table of tails. */
TW_HD static inline void tw_lossless_tail_freq(const tw_lossless_tail_table_t *table, uint16_t *freq)
{
    uint64_t weights[TW_ENTROPY_SYMBOLS] = {0};
    uint32_t present = 0;
    for (uint32_t s = 0; s < TW_LOSSLESS_TAIL_SYMBOLS; s++) {
        weights[s] = tw_lossless_density_of(table->density[s]);
        present |= (uint32_t)(weights[s] > 0) << s;
    }
    tw_entropy_freq_choose(weights, present, freq);
}
