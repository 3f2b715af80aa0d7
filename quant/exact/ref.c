/* The oracle: a block, element by element. */
#include "quant/exact/value.h"

#include <string.h>

static int ref_usable(void)
{
    return 1;
}

/* What the model has for an element. */
typedef struct {
    uint32_t table, raw_bits, factor;
} context_t;

static context_t context_of(const tw_exact_model_t *model, uint16_t old_bits, uint8_t state)
{
    uint32_t row = model->rows[tw_exact_exponent(model->base, old_bits)];
    uint32_t table = row >> 4 * tw_exact_state_class(state) & 0xf;
    return (context_t){table, tw_exact_raw_bits(table), row >> 16};
}

static inline void encode_element(const tw_exact_model_t *model, const tw_exact_run_t *run, size_t i,
                                  tw_entropy_writer_t *writer)
{
    uint8_t state = run->state ? run->state[i] : 0;
    context_t context = context_of(model, run->old_values[i], state);
    int16_t change = tw_exact_change(run->old_values[i], run->new_values[i]);
    uint32_t z = tw_exact_zigzag(tw_exact_rest(change, state, context.factor));
    uint32_t symbol = z >> context.raw_bits, raw = z & ((1u << context.raw_bits) - 1);
    symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
    uint64_t entry = model->encode[context.table * TW_ENTROPY_SYMBOLS + symbol];
    if (entry >> 31 & 1) {
        raw = 0;
        *writer->escapes++ = run->new_values[i];
    }
    writer->check += tw_entropy_check(i, run->new_values[i]);
    uint32_t *lane = &writer->lanes[i % TW_ENTROPY_LANES];
    *lane = tw_entropy_push(*lane, entry, context.raw_bits, raw, &writer->words);
    if (run->state) {
        run->state[i] = tw_exact_state(change);
    }
}

static void ref_encode(const tw_exact_model_t *model, const tw_exact_run_t *run, size_t first,
                       tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer; /* which what is written can not change */
    for (size_t i = first; i < run->n; i++) {
        encode_element(model, run, i, &here);
    }
    *writer = here;
}

static inline int decode_element(const tw_exact_model_t *model, const tw_exact_run_t *run, size_t i,
                                 tw_entropy_reader_t *reader)
{
    uint16_t old_bits = run->old_values[i], new_bits;
    uint8_t state = run->state ? run->state[i] : 0;
    context_t context = context_of(model, old_bits, state);
    uint32_t *lane = &reader->lanes[i % TW_ENTROPY_LANES];
    uint32_t entry = model->decode[context.table * TW_ENTROPY_FREQ_SUM + *lane % TW_ENTROPY_FREQ_SUM];
    uint32_t x = (entry & 0x7ff) * (*lane >> TW_ENTROPY_FREQ_BITS) + (entry >> 11 & 0x3ff),
             symbol = entry >> 21;
    uint32_t z = symbol << context.raw_bits | (x & ((1u << context.raw_bits) - 1));
    x >>= context.raw_bits;
    if (!tw_entropy_refill(&x, &reader->words, reader->words_begin)) {
        return 0;
    }
    *lane = x;
    if (symbol == TW_ENTROPY_ESCAPE) {
        if (!tw_entropy_pop(&reader->escapes, reader->escapes_begin, &new_bits)) {
            return 0;
        }
    } else {
        int16_t rest = tw_exact_unzigzag((uint16_t)z);
        new_bits = tw_exact_changed(old_bits, tw_exact_unrest(rest, state, context.factor));
    }
    if (run->state) {
        run->state[i] = tw_exact_state(tw_exact_change(old_bits, new_bits));
    }
    run->new_values[i] = new_bits;
    reader->check += tw_entropy_check(i, new_bits);
    return 1;
}

static int ref_decode(const tw_exact_model_t *model, const tw_exact_run_t *run, size_t first,
                      tw_entropy_reader_t *reader)
{
    tw_entropy_reader_t here = *reader;
    for (size_t i = run->n; i-- > first;) {
        if (!decode_element(model, run, i, &here)) {
            return 0;
        }
    }
    *reader = here;
    return 1;
}

const tw_exact_backend_t tw_exact_ref = {
    .name = "ref",
    .usable = ref_usable,
    .encode = ref_encode,
    .decode = ref_decode,
};
