/* What the coders believe of a message: chosen from a sample, written, read back without trust, made into tables. */
#include "quant/exact/value.h"

#include <string.h>

#define MEAN_Z_MAX 2047 /* a larger z counts as this: outliers must not choose a table */
#define SIZE_MAX_COUNTED 1023

/* ---- choosing --------------------------------------------------------------------------------------------------- */

/* The window of exponents that most of the sample is in; of equals the highest. */
static uint8_t choose_base(const tw_exact_sample_t *sample)
{
    size_t counts[256] = {0}, inside = 0, most = 0, base = 0;
    for (size_t i = 0; i < sample->n; i++) {
        counts[sample->old_values[i] >> 7 & 0xff]++;
    }
    for (size_t exponent = 0; exponent < 256; exponent++) {
        inside += counts[exponent];
        if (exponent >= TW_EXACT_EXPONENTS) {
            inside -= counts[exponent - TW_EXACT_EXPONENTS];
        }
        if (exponent >= TW_EXACT_EXPONENTS - 1 && inside >= most) {
            most = inside;
            base = exponent - (TW_EXACT_EXPONENTS - 1);
        }
    }
    return (uint8_t)base;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* For each exponent, the mean ratio of a change to the previous one, weighted by the latter's size. A change counts
 * as 0 to 2 of it: what lies outside is not predicted. */
static void choose_factors(const tw_exact_sample_t *sample, tw_exact_stats_t *stats)
{
    int64_t sums[TW_EXACT_EXPONENTS] = {0}, sizes[TW_EXACT_EXPONENTS] = {0};
    for (size_t i = 0; i < sample->n; i++) {
        uint8_t state = sample->states[i];
        int64_t size = clamp(tw_exact_state_size(state), 0, SIZE_MAX_COUNTED);
        int64_t change = tw_exact_change(sample->old_values[i], sample->new_values[i]);
        uint32_t row = tw_exact_exponent(stats->base, sample->old_values[i]);
        sums[row] += clamp(state & 0x80 ? -change : change, 0, 2 * size);
        sizes[row] += size;
    }
    for (size_t row = 0; row < TW_EXACT_EXPONENTS; row++) {
        int64_t factor = sizes[row] ? (128 * sums[row] + sizes[row] / 2) / sizes[row] : 0;
        stats->factor[row] = (uint8_t)clamp(factor, 0, 255);
    }
}

/* What the coder will see of each element, but for the tables. */
static void find_contexts(tw_exact_sample_t *sample, const tw_exact_stats_t *stats)
{
    for (size_t i = 0; i < sample->n; i++) {
        uint8_t state = sample->states[i];
        uint32_t row = tw_exact_exponent(stats->base, sample->old_values[i]);
        int16_t change = tw_exact_change(sample->old_values[i], sample->new_values[i]);
        sample->contexts[i] = (uint8_t)(row * TW_EXACT_SIZES + tw_exact_state_class(state));
        sample->z[i] = tw_exact_zigzag(tw_exact_rest(change, state, stats->factor[row]));
    }
}

/* One table an octave of mean z. A context that the sample lacks gets the table of the exponent below it. */
static void choose_tables(const tw_exact_sample_t *sample, tw_exact_stats_t *stats)
{
    uint64_t sums[TW_EXACT_CONTEXTS] = {0}, counts[TW_EXACT_CONTEXTS] = {0};
    for (size_t i = 0; i < sample->n; i++) {
        sums[sample->contexts[i]] += sample->z[i] < MEAN_Z_MAX ? sample->z[i] : MEAN_Z_MAX;
        counts[sample->contexts[i]]++;
    }
    for (size_t context = 0; context < TW_EXACT_CONTEXTS; context++) {
        if (counts[context]) {
            uint64_t mean64 = sums[context] * 64 / counts[context];
            int octave = 63 - __builtin_clzll(mean64 | 1);
            stats->table[context] = (uint8_t)clamp(octave, 0, TW_EXACT_TABLES - 1);
        } else {
            stats->table[context] = context < TW_EXACT_SIZES ? 0 : stats->table[context - TW_EXACT_SIZES];
        }
    }
}

/* Counts as frequencies of at least 1 up to the last symbol met; rarer ones are escaped, as is what comes later. */
static void choose_freq(const uint64_t *counts, uint16_t *freq)
{
    uint32_t present = 0;
    for (uint32_t s = 0; s < TW_ENTROPY_ESCAPE; s++) {
        present = counts[s] ? (2u << s) - 1 : present;
    }
    tw_entropy_freq_choose(counts, present, freq);
}

static void choose_freqs(const tw_exact_sample_t *sample, tw_exact_stats_t *stats)
{
    uint64_t counts[TW_EXACT_TABLES][TW_ENTROPY_SYMBOLS] = {{0}};
    for (size_t i = 0; i < sample->n; i++) {
        uint32_t table = stats->table[sample->contexts[i]];
        uint32_t symbol = (uint32_t)sample->z[i] >> tw_exact_raw_bits(table);
        counts[table][symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE]++;
    }
    for (size_t table = 0; table < TW_EXACT_TABLES; table++) {
        choose_freq(counts[table], stats->freq[table]);
    }
}

void tw_exact_stats_choose(tw_exact_sample_t *sample, int second, tw_exact_stats_t *stats)
{
    memset(stats, 0, sizeof(*stats));
    stats->base = choose_base(sample);
    if (second) {
        choose_factors(sample, stats);
    }
    find_contexts(sample, stats);
    choose_tables(sample, stats);
    choose_freqs(sample, stats);
}

/* ---- on the wire ------------------------------------------------------------------------------------------------ */

/* Contexts that travel: without the second one, every exponent's first. */
static size_t context_stride(int second)
{
    return second ? 1 : TW_EXACT_SIZES;
}

static uint8_t *write_freq(const uint16_t *freq, uint8_t *at)
{
    uint8_t n = 0;
    for (uint8_t s = 0; s < TW_ENTROPY_ESCAPE; s++) {
        n = freq[s] ? (uint8_t)(s + 1) : n;
    }
    *at++ = n;
    for (uint8_t s = 0; s < n; s++) {
        if (freq[s] > 0x7f) {
            *at++ = (uint8_t)(freq[s] | 0x80);
            *at++ = (uint8_t)(freq[s] >> 7);
        } else {
            *at++ = (uint8_t)freq[s];
        }
    }
    return at;
}

size_t tw_exact_stats_write(const tw_exact_stats_t *stats, int second, uint8_t *dst)
{
    uint8_t *at = dst;
    *at++ = stats->base;
    if (second) {
        memcpy(at, stats->factor, sizeof(stats->factor));
        at += sizeof(stats->factor);
    }
    size_t stride = context_stride(second);
    for (size_t c = 0; c < TW_EXACT_CONTEXTS; c += 2 * stride) {
        *at++ = (uint8_t)(stats->table[c] | stats->table[c + stride] << 4);
    }
    for (size_t table = 0; table < TW_EXACT_TABLES; table++) {
        at = write_freq(stats->freq[table], at);
    }
    return (size_t)(at - dst);
}

/* Bytes not yet read. */
typedef struct {
    const uint8_t *at, *end;
} source_t;

/* The next byte, or 0 and a source that has ended too early. */
static uint8_t read_byte(source_t *source, int *ended)
{
    if (source->at == source->end) {
        *ended = 1;
        return 0;
    }
    return *source->at++;
}

static int read_freq(source_t *source, uint16_t *freq)
{
    int ended = 0;
    uint32_t sum = 0, n = read_byte(source, &ended);
    if (n > TW_ENTROPY_ESCAPE) {
        return 0;
    }
    memset(freq, 0, TW_ENTROPY_SYMBOLS * sizeof(*freq));
    for (uint32_t s = 0; s < n; s++) {
        uint32_t low = read_byte(source, &ended);
        uint32_t value = low & 0x80 ? (low & 0x7f) | (uint32_t)read_byte(source, &ended) << 7 : low;
        sum += value;
        if (ended || value >= TW_ENTROPY_FREQ_SUM || sum >= TW_ENTROPY_FREQ_SUM) {
            return 0;
        }
        freq[s] = (uint16_t)value;
    }
    freq[TW_ENTROPY_ESCAPE] = (uint16_t)(TW_ENTROPY_FREQ_SUM - sum);
    return !ended;
}

size_t tw_exact_stats_read(tw_exact_stats_t *stats, int second, const uint8_t *src, size_t bytes)
{
    source_t source = {src, src + bytes};
    int ended = 0;
    memset(stats, 0, sizeof(*stats));
    stats->base = read_byte(&source, &ended);
    for (size_t row = 0; second && row < TW_EXACT_EXPONENTS; row++) {
        stats->factor[row] = read_byte(&source, &ended);
    }
    size_t stride = context_stride(second);
    for (size_t c = 0; c < TW_EXACT_CONTEXTS; c += 2 * stride) {
        uint8_t two = read_byte(&source, &ended);
        stats->table[c] = two & 0xf;
        stats->table[c + stride] = two >> 4;
    }
    for (size_t table = 0; table < TW_EXACT_TABLES; table++) {
        if (!read_freq(&source, stats->freq[table])) {
            return 0;
        }
    }
    return ended ? 0 : (size_t)(source.at - src);
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void fill_lookups(const tw_exact_stats_t *stats, tw_exact_lookups_t *lookups)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t exponent = tw_exact_exponent(stats->base, (uint16_t)(i << 7));
        lookups->exponents[i] = (uint8_t)(exponent * TW_EXACT_SIZES);
        lookups->states[i] = tw_exact_state_class((uint8_t)i) | tw_exact_state_size((uint8_t)i) << 2;
    }
    for (int change = -TW_EXACT_SMALL; change < TW_EXACT_SMALL; change++) {
        lookups->small[change + TW_EXACT_SMALL] = tw_exact_state((int16_t)change);
    }
    for (uint32_t c = 0; c < TW_EXACT_CONTEXTS; c++) {
        uint32_t table = stats->table[c];
        lookups->contexts[c] = stats->factor[c / TW_EXACT_SIZES] | tw_exact_raw_bits(table) << 8 |
                               table * TW_ENTROPY_SYMBOLS << 16;
    }
}

static void fill_rows(const tw_exact_stats_t *stats, tw_exact_model_t *model)
{
    model->base = stats->base;
    for (size_t row = 0; row < TW_EXACT_EXPONENTS; row++) {
        model->rows[row] = (uint32_t)stats->factor[row] << 16;
        for (size_t size = 0; size < TW_EXACT_SIZES; size++) {
            model->rows[row] |= (uint32_t)stats->table[row * TW_EXACT_SIZES + size] << 4 * size;
        }
    }
    fill_lookups(stats, &model->lookups);
}

void tw_exact_model_encoder(const tw_exact_stats_t *stats, tw_exact_model_t *model)
{
    fill_rows(stats, model);
    for (size_t table = 0; table < TW_EXACT_TABLES; table++) {
        tw_entropy_encode_table(stats->freq[table], &model->encode[table * TW_ENTROPY_SYMBOLS]);
    }
}

void tw_exact_model_decoder(const tw_exact_stats_t *stats, tw_exact_model_t *model)
{
    fill_rows(stats, model);
    for (size_t table = 0; table < TW_EXACT_TABLES; table++) {
        tw_entropy_decode_table(stats->freq[table], &model->decode[table * TW_ENTROPY_FREQ_SUM]);
    }
}
