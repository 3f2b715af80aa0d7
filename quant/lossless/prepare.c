/* Makes the coders' look-up tables from the tables of classes and of tails. */
#include "quant/lossless/tails.h"

/** Makes the look-up table of one context: of tails if of_tails is 1, else of a class and a phase. */
typedef void (*prepare_fn_t)(tw_quant_lossless_t *codec, int of_tails, uint32_t context,
                             const uint16_t freq[TW_ENTROPY_SYMBOLS]);

static void prepare_encoder(tw_quant_lossless_t *codec, int of_tails, uint32_t context, const uint16_t *freq)
{
    uint64_t *entries = of_tails ? codec->model.encode_tails : codec->model.encode;
    tw_entropy_encode_table(freq, &entries[context * TW_ENTROPY_SYMBOLS]);
}

static void prepare_decoder(tw_quant_lossless_t *codec, int of_tails, uint32_t context, const uint16_t *freq)
{
    uint32_t *entries = of_tails ? codec->model.decode_tails : codec->model.decode;
    codec->backend->decode_table(freq, &entries[context * TW_ENTROPY_FREQ_SUM]);
}

/** Returns 1 if the class's look-up table was made from another table, and records `table` as the new one. */
static int is_new(tw_lossless_made_t *made, uint32_t row_class, const tw_lossless_table_t *table)
{
    int same = made->classes >> row_class & 1 && memcmp(&made->of[row_class], table, sizeof(*table)) == 0;
    made->of[row_class] = *table;
    made->classes |= (uint8_t)(1u << row_class);
    return !same;
}

static void lossless_prepare(tw_quant_lossless_t *codec, tw_lossless_made_t *made, prepare_fn_t make)
{
    uint16_t freq[TW_ENTROPY_SYMBOLS];
    codec->model.tail_first = TW_LOSSLESS_TAIL_CONTEXTS - codec->tails_are.n_tables;
    for (uint32_t t = 0; t < codec->tails_are.n_tables; t++) {
        tw_lossless_tail_freq(&codec->tails_are.tables[t], freq);
        make(codec, 1, t, freq);
    }
    for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        if (!(codec->classes >> c & 1) || !is_new(made, c, &codec->tables[c])) {
            continue;
        }
        for (uint32_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            tw_lossless_freq(&codec->tables[c], phase, freq);
            make(codec, 0, c * TW_LOSSLESS_PHASES + phase, freq);
        }
    }
}

void tw_lossless_model_encoder(tw_quant_lossless_t *codec)
{
    lossless_prepare(codec, &codec->model.encoder, prepare_encoder);
}

void tw_lossless_model_decoder(tw_quant_lossless_t *codec)
{
    lossless_prepare(codec, &codec->model.decoder, prepare_decoder);
}
