/* What the coder believes of the elements of a class: chosen from a sample, and made into tables.
 *
 * A table says how dense a class's elements are by magnitude less expectation, in quarters of an octave: byte k is for k - 3
 * above the bottom. A symbol covers two quarters, and which two depends on the expectation's phase. Quarters are not
 * equally wide, as magnitudes are straight lines between powers of two: a symbol's weight is the sum of density times width. */
#include "quant/lossless/value.h"

/* log2(5/4), log2(6/5), log2(7/6), log2(8/7), in 1/256. */
static const uint8_t widths[4] = {82, 67, 57, 50};

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

void tw_lossless_model_encoder(const tw_lossless_table_t *tables, uint32_t classes,
                               tw_lossless_model_t *model)
{
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    for (uint32_t context = 0; context < TW_LOSSLESS_CONTEXTS; context++) {
        uint32_t row_class = context / TW_LOSSLESS_PHASES;
        if (classes >> row_class & 1) {
            tw_lossless_freq(&tables[row_class], context % TW_LOSSLESS_PHASES, freq);
            tw_entropy_encode_table(freq, &model->encode[context * TW_ENTROPY_SYMBOLS]);
        }
    }
}

void tw_lossless_model_decoder(const tw_lossless_table_t *tables, uint32_t classes,
                               tw_lossless_model_t *model)
{
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    for (uint32_t context = 0; context < TW_LOSSLESS_CONTEXTS; context++) {
        uint32_t row_class = context / TW_LOSSLESS_PHASES;
        if (classes >> row_class & 1) {
            tw_lossless_freq(&tables[row_class], context % TW_LOSSLESS_PHASES, freq);
            tw_entropy_decode_table(freq, &model->decode[context * TW_ENTROPY_FREQ_SUM]);
        }
    }
}
