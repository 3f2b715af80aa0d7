/* What the coders look up, made from the tables of classes. */
#include "quant/lossless/tails.h"

/** 1: what is looked up for a class is not that of its table, which it now is said to be. */
static int is_new(tw_lossless_made_t *made, uint32_t row_class, const tw_lossless_table_t *table)
{
    int same = made->classes >> row_class & 1 && memcmp(&made->of[row_class], table, sizeof(*table)) == 0;
    made->of[row_class] = *table;
    made->classes |= (uint8_t)(1u << row_class);
    return !same;
}

void tw_lossless_model_encoder(tw_quant_lossless_t *codec)
{
    tw_lossless_model_t *model = &codec->model;
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    model->tail_first = TW_LOSSLESS_TAIL_CONTEXTS - codec->tails_are.n_tables;
    for (uint32_t t = 0; t < codec->tails_are.n_tables; t++) {
        tw_lossless_tail_freq(&codec->tails_are.tables[t], freq);
        tw_entropy_encode_table(freq, &model->encode_tails[t * TW_ENTROPY_SYMBOLS]);
    }
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (!(codec->classes >> c & 1) || !is_new(&model->encoder, c, &codec->tables[c])) {
            continue;
        }
        for (uint32_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            uint32_t context = c * TW_LOSSLESS_PHASES + phase;
            tw_lossless_freq(&codec->tables[c], phase, freq);
            tw_entropy_encode_table(freq, &model->encode[context * TW_ENTROPY_SYMBOLS]);
        }
    }
}

void tw_lossless_model_decoder(tw_quant_lossless_t *codec)
{
    tw_lossless_model_t *model = &codec->model;
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    model->tail_first = TW_LOSSLESS_TAIL_CONTEXTS - codec->tails_are.n_tables;
    for (uint32_t t = 0; t < codec->tails_are.n_tables; t++) {
        tw_lossless_tail_freq(&codec->tails_are.tables[t], freq);
        codec->backend->decode_table(freq, &model->decode_tails[t * TW_ENTROPY_FREQ_SUM]);
    }
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (!(codec->classes >> c & 1) || !is_new(&model->decoder, c, &codec->tables[c])) {
            continue;
        }
        for (uint32_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            uint32_t context = c * TW_LOSSLESS_PHASES + phase;
            tw_lossless_freq(&codec->tables[c], phase, freq);
            codec->backend->decode_table(freq, &model->decode[context * TW_ENTROPY_FREQ_SUM]);
        }
    }
}
