/* What the coder believes of the elements of a class: chosen from a sample, and made into tables.
 *
 * A table says how dense a class's elements are by magnitude less expectation, in quarters of an octave: byte k is for k - 3
 * above the bottom. A symbol covers two quarters, and which two depends on the expectation's phase. Quarters are not
 * equally wide, as magnitudes are straight lines between powers of two: a symbol's weight is the sum of density times width. */
#include "quant/lossless/value.h"

/* log2(5/4), log2(6/5), log2(7/6), log2(8/7), in 1/256. */
static const uint8_t widths[4] = {82, 67, 57, 50};

/* Densities of classes that have no table of their own: of magnitudes from COMMON_FIRST above the expectation on. Means of
 * gradients and weights of GPTs. */
#define COMMON_FIRST (-56)
#define COMMON_BINS 80
static const uint8_t common[TW_LOSSLESS_CLASSES][COMMON_BINS] = {
    {0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0,
     0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  3,  4,  3,   4,   5,   7,   8,   13,  16,
     20, 24, 31, 36, 40, 44, 50, 54, 60, 66, 71, 80, 88, 104, 117, 162, 193, 176, 122, 99,
     49, 7,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0},
    {0,   0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0,   0,
     0,   0,  0,  0,  3,  4,  5,  5,  6,  8,  9,  11, 14,  17,  21,  22,  27,  32,  37,  41,
     45,  49, 52, 57, 63, 67, 70, 74, 79, 83, 89, 97, 103, 114, 132, 153, 178, 183, 158, 121,
     101, 66, 33, 9,  0,  0,  0,  0,  0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0,   0},
    {0,   0,   0,  0,  0,  0,  0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,
     0,   3,   4,  5,  6,  8,  9,  11, 11, 13, 16,  18,  22,  26,  33,  36,  41,  45,  50,  53,
     56,  61,  66, 70, 75, 80, 84, 87, 94, 99, 104, 113, 119, 129, 139, 151, 163, 173, 170, 155,
     130, 112, 80, 46, 9,  0,  0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0},
    {0,   0,   0,   0,  0,  0,  0,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   3,
     4,   5,   6,   6,  8,  10, 13, 17,  19,  23,  29,  33,  36,  39,  44,  49,  52,  57,  61,  66,
     69,  74,  80,  83, 87, 91, 97, 101, 105, 112, 116, 121, 128, 132, 139, 146, 153, 160, 163, 162,
     152, 137, 115, 98, 70, 36, 9,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0},
    {0,   0,   0,   0,   0,   0,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   3,   3,   3,   4,
     5,   7,   9,   11,  13,  16, 18,  21,  25,  30,  34,  37,  42,  47,  50,  54,  59,  64,  67,  72,
     77,  81,  85,  89,  94,  98, 101, 106, 111, 115, 119, 124, 129, 134, 138, 144, 148, 152, 156, 157,
     154, 147, 134, 117, 101, 78, 50,  20,  5,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0},
    {0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   3,   3,   4,   5,   6,
     7,   9,   11,  13,  15,  19,  23,  28,  33,  36,  40,  44,  49,  52,  56,  61,  65,  69,  72,  77,
     81,  85,  89,  94,  98,  101, 105, 109, 114, 117, 121, 126, 130, 133, 137, 142, 145, 148, 150, 152,
     152, 149, 144, 132, 116, 100, 76,  47,  14,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0},
    {0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   3,   4,   4,   5,   6,   7,   8,
     10,  11,  14,  17,  20,  24,  28,  33,  36,  39,  44,  49,  52,  55,  60,  65,  67,  71,  75,  80,
     83,  86,  91,  97,  99,  101, 107, 112, 115, 117, 122, 128, 130, 132, 137, 142, 145, 145, 148, 150,
     150, 147, 145, 138, 126, 107, 91,  67,  36,  9,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0},
    {0,   0,   0,   0,   0,   0,   3,   3,   0,   3,   3,   4,   6,   6,   7,   8,   9,   11,  10,  13,
     16,  22,  30,  31,  32,  33,  41,  45,  51,  52,  57,  59,  62,  65,  68,  72,  76,  80,  82,  86,
     90,  96,  99,  102, 106, 111, 112, 115, 120, 122, 124, 127, 129, 130, 133, 134, 136, 137, 139, 142,
     146, 145, 146, 144, 140, 131, 120, 104, 91,  73,  52,  28,  11,  3,   0,   0,   0,   0,   0,   0},
};

#define ESCAPED_BITS 26ull /* of an escape and what follows elsewhere */

/* Magnitudes of a code: 0 to 15, then 16 steps an octave. */
static uint64_t density_of(uint8_t code)
{
    return code < 16 ? code : (uint64_t)(16 + (code & 15)) << ((code >> 4) - 1);
}

/* The largest code that is not more; 1 at least for what is not 0. */
static uint8_t code_of(uint64_t density, int any)
{
    if (density < 16) {
        return (uint8_t)(density || !any ? density : 1);
    }
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(density) - 4;
    return (uint8_t)(octave > 14 ? 255 : (octave + 1) << 4 | (density >> octave & 15));
}

int tw_lossless_window(const tw_lossless_counts_t *counts)
{
    uint64_t inside = 0, most = 0;
    /* Of 60 quarters, those that symbols cover in every phase. */
    int best = -128, sizes = 2 * (TW_ENTROPY_ESCAPE - 1) - 3;
    for (int x = -128; x < 128; x++) {
        for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
            inside += counts[c].above[x + 128];
            inside -= x - sizes >= -128 ? counts[c].above[x - sizes + 128] : 0;
        }
        int bottom = x - sizes + 1;
        if (bottom >= -128 && bottom % 4 == 0 && inside > most) {
            most = inside;
            best = bottom;
        }
    }
    return best;
}

void tw_lossless_table_choose(const tw_lossless_counts_t *counts, int window, tw_lossless_table_t *table)
{
    uint64_t inside = 0, n = counts->n ? counts->n : 1;
    for (int bin = 0; bin < TW_LOSSLESS_BINS; bin++) {
        int above = bin - 3, at = above + window + 128;
        uint64_t count = at >= 0 && at < 256 ? counts->above[at] : 0, width = 0;
        for (int phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            width += (uint64_t)counts->phases[phase] * widths[(above + phase) & 3];
        }
        table->density[bin] = code_of(width ? (count << 24) / width : 0, count > 0);
        inside += count;
    }
    uint64_t escapes = counts->n - counts->zeros - inside;
    table->zeros = code_of(((uint64_t)counts->zeros << 16) / n, counts->zeros > 0);
    table->escapes = code_of((escapes << 16) / n, 1);
}

void tw_lossless_table_common(uint32_t row_class, int window, tw_lossless_table_t *table)
{
    memset(table, 0, sizeof(*table));
    for (int bin = 0; bin < TW_LOSSLESS_BINS; bin++) {
        int at = bin - 3 + window - COMMON_FIRST;
        table->density[bin] = at >= 0 && at < COMMON_BINS ? common[row_class][at] : 0;
    }
    table->escapes = 1;
}

/* log2(x) in 1/256, x >= 1. */
uint64_t tw_lossless_log2(uint64_t x)
{
    uint64_t whole = 63u - (uint32_t)__builtin_clzll(x), fraction = 0;
    uint64_t y = whole > 31 ? x >> (whole - 31) : x << (31 - whole); /* 1.0 is 2^31 */
    for (int bit = 0; bit < 8; bit++) {
        y = y * y >> 31;
        uint64_t more = y >> 32;
        y >>= more;
        fraction = fraction << 1 | more;
    }
    return whole << 8 | fraction;
}

/* What a symbol of this density takes, in 1/256 bits: one of none is escaped, and none has less than one in 1024. */
static uint64_t symbol_bits(uint64_t density, uint64_t sum)
{
    uint64_t least = sum >> TW_ENTROPY_FREQ_BITS, more = density > least ? density : least;
    return density ? tw_lossless_log2(sum) - tw_lossless_log2(more + 1) : ESCAPED_BITS << 8;
}

uint64_t tw_lossless_table_bits(const tw_lossless_counts_t *counts, int window,
                                const tw_lossless_table_t *table)
{
    uint64_t sum = 1 + density_of(table->zeros) + density_of(table->escapes), n = 0;
    for (int bin = 0; bin < TW_LOSSLESS_BINS; bin++) {
        sum += density_of(table->density[bin]);
    }
    uint64_t bits = counts->zeros * symbol_bits(density_of(table->zeros), sum);
    for (int bin = 0; bin < TW_LOSSLESS_BINS; bin++) {
        int at = bin - 3 + window + 128;
        uint64_t count = at >= 0 && at < 256 ? counts->above[at] : 0;
        bits += count ? count * symbol_bits(density_of(table->density[bin]), sum) : 0;
        n += count;
    }
    return bits + (counts->n - counts->zeros - n) * (ESCAPED_BITS << 8);
}

void tw_lossless_freq(const tw_lossless_table_t *table, uint32_t phase, uint16_t *freq)
{
    uint64_t weights[TW_ENTROPY_SYMBOLS] = {0};
    uint32_t present = 0;
    weights[0] = 64 * density_of(table->zeros);
    weights[TW_ENTROPY_ESCAPE] = 64 * density_of(table->escapes);
    for (uint32_t s = 1; s < TW_ENTROPY_ESCAPE; s++) {
        uint32_t quarter = 2 * (s - 1), bin = quarter + 3 - phase;
        weights[s] = density_of(table->density[bin]) * widths[quarter & 3] +
                     density_of(table->density[bin + 1]) * widths[(quarter + 1) & 3];
    }
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        present |= (uint32_t)(weights[s] > 0) << s;
    }
    tw_entropy_freq_choose(weights, present, freq);
}

/* 1: what is looked up for a class is not that of its table, which it now is said to be. */
static int is_new(tw_lossless_made_t *made, uint32_t row_class, const tw_lossless_table_t *table)
{
    int same = made->classes >> row_class & 1 && memcmp(&made->of[row_class], table, sizeof(*table)) == 0;
    made->of[row_class] = *table;
    made->classes |= (uint8_t)(1u << row_class);
    return !same;
}

void tw_lossless_model_encoder(const tw_lossless_table_t *tables, uint32_t classes,
                               tw_lossless_model_t *model)
{
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (!(classes >> c & 1) || !is_new(&model->encoder, c, &tables[c])) {
            continue;
        }
        for (uint32_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            uint32_t context = c * TW_LOSSLESS_PHASES + phase;
            tw_lossless_freq(&tables[c], phase, freq);
            tw_entropy_encode_table(freq, &model->encode[context * TW_ENTROPY_SYMBOLS]);
        }
    }
}

void tw_lossless_model_decoder(const tw_lossless_table_t *tables, uint32_t classes,
                               tw_lossless_model_t *model)
{
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (!(classes >> c & 1) || !is_new(&model->decoder, c, &tables[c])) {
            continue;
        }
        for (uint32_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            uint32_t context = c * TW_LOSSLESS_PHASES + phase;
            tw_lossless_freq(&tables[c], phase, freq);
            tw_entropy_decode_table(freq, &model->decode[context * TW_ENTROPY_FREQ_SUM]);
        }
    }
}
