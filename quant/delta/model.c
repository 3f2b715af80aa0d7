/* The coders' model of a message: chooses it from a sample, writes and reads it, makes tables of it. */
#include "quant/delta/model.h"

#include <string.h>

/** Choose the window of exponents that covers most elements of the sample; of equal ones the highest. */
static uint8_t choose_base(const tw_delta_sample_t *sample)
{
    size_t counts[256] = {0}, inside = 0, most = 0, base = 0;
    for (size_t i = 0; i < sample->n; i++) {
        counts[sample->old_values[i] >> 7 & 0xff]++;
    }
    for (size_t exponent = 0; exponent < 256; exponent++) {
        inside += counts[exponent];
        if (exponent >= TW_DELTA_EXPONENTS) {
            inside -= counts[exponent - TW_DELTA_EXPONENTS];
        }
        if (exponent >= TW_DELTA_EXPONENTS - 1 && inside >= most) {
            most = inside;
            base = exponent - (TW_DELTA_EXPONENTS - 1);
        }
    }
    return (uint8_t)base;
}

static void choose_factors(const tw_delta_sample_t *sample, tw_delta_stats_t *stats)
{
    uint32_t parts[TW_DELTA_EXPONENTS] = {0}, sizes[TW_DELTA_EXPONENTS] = {0};
    for (size_t i = 0; i < sample->n; i++) {
        int16_t change = tw_delta_change(sample->old_values[i], sample->new_values[i]);
        uint32_t row = tw_delta_exponent(stats->base, sample->old_values[i]);
        parts[row] += tw_delta_sample_part(change, sample->states[i]);
        sizes[row] += tw_delta_sample_size(sample->states[i]);
    }
    for (size_t row = 0; row < TW_DELTA_EXPONENTS; row++) {
        stats->factor[row] = tw_delta_factor_of(parts[row], sizes[row]);
    }
}

static void find_contexts(tw_delta_sample_t *sample, const tw_delta_stats_t *stats)
{
    for (size_t i = 0; i < sample->n; i++) {
        uint8_t state = sample->states[i];
        uint32_t row = tw_delta_exponent(stats->base, sample->old_values[i]);
        int16_t change = tw_delta_change(sample->old_values[i], sample->new_values[i]);
        sample->contexts[i] = (uint8_t)(row * TW_DELTA_SIZES + tw_delta_state_class(state));
        sample->z[i] = tw_delta_zigzag(tw_delta_rest(change, state, stats->factor[row]));
    }
}

/** Choose a table for each context. A context that the sample lacks gets the next lower exponent's. */
static void choose_tables(const tw_delta_sample_t *sample, tw_delta_stats_t *stats)
{
    uint32_t sums[TW_DELTA_CONTEXTS] = {0}, counts[TW_DELTA_CONTEXTS] = {0};
    for (size_t i = 0; i < sample->n; i++) {
        sums[sample->contexts[i]] += sample->z[i] < TW_DELTA_MEAN_Z_MAX ? sample->z[i] : TW_DELTA_MEAN_Z_MAX;
        counts[sample->contexts[i]]++;
    }
    for (size_t c = 0; c < TW_DELTA_CONTEXTS; c++) {
        uint8_t below = c < TW_DELTA_SIZES ? 0 : stats->table[c - TW_DELTA_SIZES];
        stats->table[c] = counts[c] ? tw_delta_table_of(sums[c], counts[c]) : below;
    }
}

static void choose_freqs(const tw_delta_sample_t *sample, tw_delta_stats_t *stats)
{
    uint32_t counts[TW_DELTA_TABLES][TW_ENTROPY_SYMBOLS] = {{0}};
    for (size_t i = 0; i < sample->n; i++) {
        uint32_t table = stats->table[sample->contexts[i]];
        uint32_t symbol = (uint32_t)sample->z[i] >> tw_delta_raw_bits(table);
        counts[table][symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE]++;
    }
    for (size_t table = 0; table < TW_DELTA_TABLES; table++) {
        tw_delta_freq_of(counts[table], stats->freq[table]);
    }
}

void tw_delta_stats_choose(tw_delta_sample_t *sample, int second, tw_delta_stats_t *stats)
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

size_t tw_delta_stats_write(const tw_delta_stats_t *stats, int second, uint8_t *dst)
{
    uint8_t *at = tw_delta_contexts_write(stats, second, dst);
    for (size_t table = 0; table < TW_DELTA_TABLES; table++) {
        at = tw_delta_freq_write(stats->freq[table], at);
    }
    return (size_t)(at - dst);
}

size_t tw_delta_stats_read(tw_delta_stats_t *stats, int second, const uint8_t *src, size_t bytes)
{
    tw_delta_source_t source = {src, src + bytes, 0};
    memset(stats, 0, sizeof(*stats));
    tw_delta_contexts_read(stats, second, &source);
    for (size_t table = 0; table < TW_DELTA_TABLES; table++) {
        if (!tw_delta_freq_read(&source, stats->freq[table])) {
            return 0;
        }
    }
    return (size_t)(source.at - src);
}

static void fill_rows(const tw_delta_stats_t *stats, tw_delta_model_t *model)
{
    model->base = stats->base;
    for (uint32_t row = 0; row < TW_DELTA_EXPONENTS; row++) {
        model->rows[row] = tw_delta_row_of(stats, row);
    }
    for (uint32_t c = 0; c < TW_DELTA_CONTEXTS; c++) {
        uint32_t table = stats->table[c];
        model->contexts[c] = stats->factor[c / TW_DELTA_SIZES] | tw_delta_raw_bits(table) << 8 |
                             table * TW_ENTROPY_SYMBOLS << 16;
    }
}

void tw_delta_model_encoder(const tw_delta_stats_t *stats, tw_delta_model_t *model)
{
    fill_rows(stats, model);
    for (size_t table = 0; table < TW_DELTA_TABLES; table++) {
        tw_entropy_encode_table(stats->freq[table], &model->encode[table * TW_ENTROPY_SYMBOLS]);
    }
}

void tw_delta_model_decoder(const tw_delta_stats_t *stats, tw_delta_model_t *model)
{
    fill_rows(stats, model);
    for (size_t table = 0; table < TW_DELTA_TABLES; table++) {
        tw_entropy_decode_table(stats->freq[table], &model->decode[table * TW_ENTROPY_FREQ_SUM]);
    }
}
