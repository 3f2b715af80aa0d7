/** The arithmetic by which encoders choose scales, classes and tables. The host's and the GPU's encoder share
 *  it, so their bytes are equal. Compiles as C11, C++17 and CUDA.
 *
 *  A table has the density of a class's elements by their magnitude minus expectation, in quarters of an
 *  octave: byte k is for k - 3 above the bottom (the value of symbol 1, see value.h). A symbol covers two
 *  quarters; which two depends on the expectation's phase (expectation mod 4). Quarters are not equally wide,
 *  because magnitudes are linear between powers of two. So a symbol's weight is the sum of density times
 *  width. */
#pragma once

#include "quant/lossless/tables.h"
#include "quant/lossless/value.h"

#define TW_LOSSLESS_LOOKED_AT 128 /**< most rows of a piece from which scales of columns are computed */
#define TW_LOSSLESS_TRIED_ON 32   /**< most rows of a piece on which scales are tried, to see if they pay */
#define TW_LOSSLESS_SAMPLE_RUN 64 /**< elements of one run of the sample */
/** added to the distance of runs, so that they begin in different columns */
#define TW_LOSSLESS_SAMPLE_ODD 37
#define TW_LOSSLESS_SAMPLE_SHARE 16 /**< about one element in 16 is in the sample */
#define TW_LOSSLESS_SAMPLE_MIN 8192 /**< fewest elements of a sample */
/** Bits that a table saves on the sample from which it was made, but does not save on other elements. */
#define TW_LOSSLESS_SAMPLE_LOSS_BITS 40

/* ---- whole numbers ------------------------------------------------------------------------------------- */

TW_HD static inline uint32_t tw_lossless_bit_length(uint64_t x)
{
#ifdef __CUDA_ARCH__
    return 64u - (uint32_t)__clzll((long long)x);
#else
    return x ? 64u - (uint32_t)__builtin_clzll(x) : 0;
#endif
}

/** The rounded mean; 0 for no elements. */
TW_HD static inline int64_t tw_lossless_mean(int64_t sum, int64_t n)
{
    return n ? (sum + (sum < 0 ? -n : n) / 2) / n : 0;
}

/** log2(x) in 1/256, x >= 1. */
TW_HD static inline uint64_t tw_lossless_log2(uint64_t x)
{
    uint64_t whole = tw_lossless_bit_length(x) - 1, fraction = 0;
    uint64_t y = whole > 31 ? x >> (whole - 31) : x << (31 - whole); /* 2^31 stands for 1.0 */
    for (int bit = 0; bit < 8; bit++) {
        y = y * y >> 31;
        uint64_t more = y >> 32;
        y >>= more;
        fraction = fraction << 1 | more;
    }
    return whole << 8 | fraction;
}

/* ---- scales and classes -------------------------------------------------------------------------------- */

TW_HD static inline uint16_t tw_lossless_row_of(int64_t scale)
{
    return (uint16_t)(scale + TW_LOSSLESS_BIAS);
}

TW_HD static inline int32_t tw_lossless_scale_of(uint16_t row)
{
    return (int32_t)(row & TW_LOSSLESS_SCALE_MASK) - TW_LOSSLESS_BIAS;
}

TW_HD static inline uint16_t tw_lossless_with_class(uint16_t row, uint32_t row_class)
{
    return (uint16_t)((row & TW_LOSSLESS_SCALE_MASK) | row_class << TW_LOSSLESS_CLASS_SHIFT);
}

/** Estimated bits of n elements. `deviations` is the sum of their distances from the expectation. */
TW_HD static inline uint64_t tw_lossless_cost(uint64_t n, uint64_t deviations)
{
    return n * tw_lossless_log2(deviations + 1) >> 8;
}

/** The class of a row. `edges`: mean deviations, in 1/16 of a quarter octave, where classes 1 to 7 begin. */
TW_HD static inline uint32_t tw_lossless_class_of(uint64_t deviation, uint64_t live)
{
    const uint32_t edges[TW_LOSSLESS_CLASSES - 1] = {16, 29, 45, 57, 66, 74, 91};
    uint64_t mean = live ? 16 * deviation / live : 0;
    uint32_t row_class = 0;
    /* no branches: they would be unpredictable */
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES - 1; c++) {
        row_class += mean >= edges[c];
    }
    return row_class;
}

/** Estimated bits of an element of a class, in 1/256, from the class's middle deviation. */
TW_HD static inline uint64_t tw_lossless_class_bits(uint32_t row_class)
{
    const uint32_t means[TW_LOSSLESS_CLASSES] = {11, 22, 36, 51, 62, 70, 82, 108};
    return tw_lossless_log2(means[row_class]);
}

/** Estimated bits of n elements of a class. */
TW_HD static inline uint64_t tw_lossless_class_cost(uint64_t n, uint32_t row_class)
{
    return n * tw_lossless_class_bits(row_class) >> 8;
}

/** Estimated bits of n elements if their rows have one class. `deviation`: the sum of their distances. */
TW_HD static inline uint64_t tw_lossless_one_class_cost(uint64_t n, uint64_t deviation)
{
    return n * tw_lossless_log2(16 * deviation / (n + 1) + 1) >> 8;
}

/** A column's scale, from the sum of its elements' magnitudes minus their rows' scales. */
TW_HD static inline int16_t tw_lossless_column_of(int64_t sum, int64_t live, uint32_t shift)
{
    return (int16_t)(tw_lossless_mean(sum, live << shift) * (1 << shift));
}

/* ---- lists --------------------------------------------------------------------------------------------- */

#define TW_LOSSLESS_LONG_AFTER 12 /**< after 12 ones, a list's value is written in full */
#define TW_LOSSLESS_LONG_BITS 13
#define TW_LOSSLESS_LIST_K_BITS 4
#define TW_LOSSLESS_LIST_K_MAX 11

/** A list's value as the x that is sent: its difference from the centre, with the sign in the lowest bit. The
 *  value is divided by 1 << shift, the centre is not. */
TW_HD static inline uint32_t tw_lossless_folded(int32_t value, int32_t centre, uint32_t shift)
{
    int32_t x = (value >> shift) - centre;
    return (uint32_t)x << 1 ^ (uint32_t)(x >> 31);
}

TW_HD static inline int32_t tw_lossless_unfolded(uint32_t folded, int32_t centre)
{
    return (int32_t)(folded >> 1 ^ (0u - (folded & 1))) + centre;
}

/** Bits of a folded value in a list with this k. */
TW_HD static inline uint32_t tw_lossless_folded_bits(uint32_t folded, uint32_t k)
{
    uint32_t ones = folded >> k;
    return k + (ones < TW_LOSSLESS_LONG_AFTER ? ones + 1 : TW_LOSSLESS_LONG_AFTER + TW_LOSSLESS_LONG_BITS);
}

/** The k of a list of n folded values with this sum: as many bits as their mean has. k - 1 may be better. */
TW_HD static inline uint32_t tw_lossless_list_k(uint64_t n, uint64_t sum)
{
    uint32_t k = 0;
    while (k < TW_LOSSLESS_LIST_K_MAX && n << k < sum) {
        k++;
    }
    return k;
}

/* ---- the sample ---------------------------------------------------------------------------------------- */

/** The distance between runs of the sample of n coded elements. */
TW_HD static inline uint32_t tw_lossless_sample_distance(uint32_t n)
{
    uint32_t share = n / TW_LOSSLESS_SAMPLE_SHARE;
    uint32_t wanted = share > TW_LOSSLESS_SAMPLE_MIN ? share : TW_LOSSLESS_SAMPLE_MIN;
    uint32_t times = (n + wanted - 1) / wanted;
    return times > 1 ? TW_LOSSLESS_SAMPLE_RUN * times + TW_LOSSLESS_SAMPLE_ODD : TW_LOSSLESS_SAMPLE_RUN;
}

/** Counts of the sample's elements of one class. */
typedef struct tw_lossless_counts {
    uint32_t above[256]; /**< by magnitude - expectation + 128, clamped */
    /** by the expectation's phase; with scales of columns all phases count as equally frequent */
    uint32_t phases[TW_LOSSLESS_PHASES];
    uint32_t zeros, n;
} tw_lossless_counts_t;

/* ---- tables -------------------------------------------------------------------------------------------- */

/** The width of a quarter of an octave, in 1/256: log2(5/4), log2(6/5), log2(7/6), log2(8/7). */
TW_HD static inline uint32_t tw_lossless_quarter_width(uint32_t quarter)
{
    return 0x32394352u >> 8 * (quarter & 3) & 0xff;
}

/** The density that a table's byte stands for: 0 to 15, then 16 steps per octave. */
TW_HD static inline uint64_t tw_lossless_density_of(uint8_t code)
{
    return code < 16 ? code : (uint64_t)(16 + (code & 15)) << ((code >> 4) - 1);
}

/** The largest byte whose density is at most `density`; at least 1 if `any` is 1. */
TW_HD static inline uint8_t tw_lossless_code_of(uint64_t density, int any)
{
    if (density < 16) {
        return (uint8_t)(density || !any ? density : 1);
    }
    uint32_t octave = tw_lossless_bit_length(density) - 5;
    return (uint8_t)(octave > 14 ? 255 : (octave + 1) << 4 | (density >> octave & 15));
}

/** The window: how far to move expectations, so that the symbols cover most of the sample. A multiple of 4.
 *  `above`: the counts of all classes, summed. */
TW_HD static inline int tw_lossless_window(const uint32_t *above)
{
    uint64_t inside = 0, most = 0;
    /* sizes: symbols cover 60 quarters of an octave, but only 57 of these in all four phases. */
    int best = -128, sizes = 2 * (TW_ENTROPY_ESCAPE - 1) - 3;
    for (int x = -128; x < 128; x++) {
        inside += above[x + 128];
        inside -= x - sizes >= -128 ? above[x - sizes + 128] : 0;
        int bottom = x - sizes + 1;
        if (bottom >= -128 && bottom % 4 == 0 && inside > most) {
            most = inside;
            best = bottom;
        }
    }
    return best;
}

TW_HD static inline void tw_lossless_table_choose(const tw_lossless_counts_t *counts, int window,
                                                  tw_lossless_table_t *table)
{
    uint64_t inside = 0, n = counts->n ? counts->n : 1;
    for (int bin = 0; bin < TW_LOSSLESS_BINS; bin++) {
        int above = bin - 3, at = above + window + 128;
        uint64_t count = at >= 0 && at < 256 ? counts->above[at] : 0, width = 0;
        for (int phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            width += (uint64_t)counts->phases[phase] * tw_lossless_quarter_width((uint32_t)(above + phase));
        }
        table->density[bin] = tw_lossless_code_of(width ? (count << 24) / width : 0, count > 0);
        inside += count;
    }
    uint64_t escapes = counts->n - counts->zeros - inside;
    table->zeros = tw_lossless_code_of(((uint64_t)counts->zeros << 16) / n, counts->zeros > 0);
    table->escapes = tw_lossless_code_of((escapes << 16) / n, 1);
}

#define TW_LOSSLESS_ESCAPED_BITS 26ull /**< bits of an escape and of its value among the escapes */

/** Estimated bits of a sample with a table, in 1/256, as if each quarter had its own symbol. Elements without
 *  density are escaped; a density counts as at least 1/1024. */
TW_HD static inline uint64_t tw_lossless_table_bits(const tw_lossless_counts_t *counts, int window,
                                                    const tw_lossless_table_t *table)
{
    uint64_t zeros = tw_lossless_density_of(table->zeros), inside = counts->zeros;
    uint64_t sum = 1 + zeros + tw_lossless_density_of(table->escapes);
    for (int bin = 0; bin < TW_LOSSLESS_BINS; bin++) {
        sum += tw_lossless_density_of(table->density[bin]);
    }
    uint64_t least = sum >> TW_ENTROPY_FREQ_BITS, escaped = TW_LOSSLESS_ESCAPED_BITS << 8;
    uint64_t log_sum = tw_lossless_log2(sum), most = log_sum - tw_lossless_log2(least + 1), bits = 0;
    for (int bin = -1; bin < TW_LOSSLESS_BINS; bin++) {
        int at = bin - 3 + window + 128;
        uint64_t count = bin < 0 ? counts->zeros : at >= 0 && at < 256 ? counts->above[at] : 0;
        uint8_t code = bin < 0 ? table->zeros : table->density[bin];
        uint64_t density = tw_lossless_density_of(code);
        uint64_t symbol = density > least ? log_sum - tw_lossless_code_log(code) : most;
        bits += count * (density ? symbol : escaped);
        inside += bin < 0 ? 0 : count;
    }
    return bits + (counts->n - inside) * escaped;
}

/** Choose the table of a class. Returns 1 if sending the class's own table pays. n_live: coded elements of
 *  the message; in_sample: elements of its sample. */
TW_HD static inline int tw_lossless_table_of(const tw_lossless_counts_t *counts, uint32_t row_class,
                                             int window, uint64_t n_live, uint64_t in_sample,
                                             tw_lossless_table_t *table)
{
    tw_lossless_table_t own;
    tw_lossless_table_choose(counts, window, &own);
    tw_lossless_table_common(row_class, window, table);
    uint64_t with_own = tw_lossless_table_bits(counts, window, &own) + 256 * TW_LOSSLESS_SAMPLE_LOSS_BITS;
    uint64_t without = tw_lossless_table_bits(counts, window, table);
    uint64_t gain = without > with_own ? (without - with_own) >> 8 : 0;
    int pays = gain * n_live > 8 * TW_LOSSLESS_TABLE_BYTES * in_sample;
    if (pays) {
        *table = own;
    }
    return pays;
}

/** Make the symbols' frequencies for a phase. The table may have any bytes. */
TW_HD static inline void tw_lossless_freq(const tw_lossless_table_t *table, uint32_t phase, uint16_t *freq)
{
    uint64_t weights[TW_ENTROPY_SYMBOLS] = {0};
    uint32_t present = 0;
    weights[0] = 64 * tw_lossless_density_of(table->zeros);
    weights[TW_ENTROPY_ESCAPE] = 64 * tw_lossless_density_of(table->escapes);
    for (uint32_t s = 1; s < TW_ENTROPY_ESCAPE; s++) {
        uint32_t quarter = 2 * (s - 1), bin = quarter + 3 - phase;
        weights[s] = tw_lossless_density_of(table->density[bin]) * tw_lossless_quarter_width(quarter) +
                     tw_lossless_density_of(table->density[bin + 1]) * tw_lossless_quarter_width(quarter + 1);
    }
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        present |= (uint32_t)(weights[s] > 0) << s;
    }
    tw_entropy_freq_choose(weights, present, freq);
}
