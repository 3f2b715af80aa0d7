/* The oracle: a block, element by element. */
#include "quant/delta/value.h"

#include <string.h>

static int ref_usable(void)
{
    return 1;
}

#define INLINE static inline __attribute__((always_inline))

#define BATCH \
    ((size_t)256) /* elements of which loops, that a compiler makes vectors of, take what has no state */

/* As tw_delta_state_size and tw_delta_state, in steps that vectors have: a state is the top of a float. */
#define STATE_BITS 20
#define STATE_BIAS ((127 + 3) << 3)

INLINE int32_t size_of(uint8_t state)
{
    uint32_t bits = ((state & 0x7fu) + STATE_BIAS) << STATE_BITS;
    float size;
    memcpy(&size, &bits, sizeof(size));
    return (int32_t)size - 8;
}

INLINE uint8_t state_of(int16_t change)
{
    int32_t wide = change;
    float size = (float)((wide < 0 ? -wide : wide) + 8);
    uint32_t bits;
    memcpy(&bits, &size, sizeof(bits));
    return (uint8_t)(((bits >> STATE_BITS) - STATE_BIAS) | (wide < 0 ? 0x80 : 0));
}

/* A batch of a block. Its functions are inlined and its address goes nowhere: then compilers know that what
 * is written to states, bytes of the caller's, can not change it. */
typedef struct {
    const uint32_t *entries; /* the model's, of contexts */
    uint16_t *new_values;
    uint8_t *states;
    size_t first, n;          /* index in the block */
    uint16_t contexts[BATCH]; /* of each element: by its exponent, and its state */
    uint16_t order[BATCH];    /* tw_delta_order of old values */
    int16_t changes[BATCH];
    int16_t signs[BATCH]; /* of previous changes: -1 where they were negative */
    int32_t sizes[BATCH];
} batch_t;

INLINE void batch_begin(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first, size_t n,
                        batch_t *batch)
{
    int16_t base = (int16_t)model->base;
    batch->entries = model->contexts;
    batch->new_values = run->new_values + first;
    batch->states = run->state ? run->state + first : NULL;
    batch->first = first;
    batch->n = n;
    for (size_t i = 0; i < n; i++) {
        uint16_t old_bits = run->old_values[first + i];
        int16_t above = (int16_t)((old_bits >> 7 & 0xff) - base);
        above = above > 0 ? above : 0;
        above = above < TW_DELTA_EXPONENTS ? above : TW_DELTA_EXPONENTS - 1;
        batch->contexts[i] = (uint16_t)(above * TW_DELTA_SIZES);
        batch->order[i] = tw_delta_order(old_bits);
    }
    uint8_t states[BATCH]; /* nothing else can be where these are */
    for (size_t i = 0; batch->states && i < n; i++) {
        states[i] = batch->states[i];
    }
    for (size_t i = 0; batch->states && i < n; i++) {
        uint16_t code = states[i] & 0x7f, least = code < 4 ? code : 4;
        batch->contexts[i] = (uint16_t)(batch->contexts[i] + least - (least > 2));
        batch->signs[i] = (int16_t)(-(states[i] >> 7));
        batch->sizes[i] = size_of(states[i]);
    }
}

/* The states move on. */
INLINE void batch_end(const batch_t *batch)
{
    uint8_t states[BATCH];
    for (size_t i = 0; batch->states && i < batch->n; i++) {
        states[i] = state_of(batch->changes[i]);
    }
    for (size_t i = 0; batch->states && i < batch->n; i++) {
        batch->states[i] = states[i];
    }
}

/* What the new values add to the checksum. */
INLINE uint32_t batch_check(const batch_t *batch)
{
    uint32_t check = 0, position = ((uint32_t)batch->first + 1) * TW_ENTROPY_CHECK_FACTOR;
    for (size_t i = 0; i < batch->n; i++) {
        uint32_t term = batch->new_values[i] + position + (uint32_t)i * TW_ENTROPY_CHECK_FACTOR;
        check += term * term;
    }
    return check;
}

/* What the model has for an element, and the previous change says of it. */
typedef struct {
    uint32_t table, raw_bits; /* table: times its SYMBOLS */
    int32_t sign, expected;   /* sign -1: it was negative */
} context_t;

INLINE context_t context_of(const batch_t *batch, size_t i, int second)
{
    uint32_t entry = batch->entries[batch->contexts[i]];
    context_t context = {.table = entry >> 16, .raw_bits = entry >> 8 & 0xff};
    if (second) {
        context.sign = batch->signs[i];
        context.expected = (int32_t)(((uint32_t)batch->sizes[i] * (entry & 0xff) + 64) >> 7);
    }
    return context;
}

INLINE void encode_element(const uint64_t *table, const batch_t *batch, size_t i, int second,
                           tw_entropy_writer_t *writer)
{
    context_t context = context_of(batch, i, second);
    int16_t rest = (int16_t)((batch->changes[i] ^ context.sign) - context.sign - context.expected);
    uint32_t z = tw_delta_zigzag(rest), symbol = z >> context.raw_bits;
    symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
    uint64_t entry = table[context.table + symbol];
    uint32_t raw = z & ((1u << context.raw_bits) - 1);
    if (entry >> 31 & 1) {
        *writer->escapes++ = batch->new_values[i];
        raw = 0;
    }
    uint32_t *lane = &writer->lanes[i % TW_ENTROPY_LANES];
    *lane = tw_entropy_push(*lane, entry, context.raw_bits, raw, &writer->words);
}

/* `first`, where a block begins to be coded, is a multiple of 32: so are batches. */
static void ref_encode(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                       tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer; /* which what is written can not change */
    batch_t batch;
    for (size_t at = first; at < run->n; at += batch.n) {
        batch_begin(model, run, at, run->n - at < BATCH ? run->n - at : BATCH, &batch);
        for (size_t i = 0; i < batch.n; i++) {
            batch.changes[i] = (int16_t)(tw_delta_order(batch.new_values[i]) - batch.order[i]);
        }
        for (size_t i = 0; batch.states && i < batch.n; i++) {
            encode_element(model->encode, &batch, i, 1, &here);
        }
        for (size_t i = 0; !batch.states && i < batch.n; i++) {
            encode_element(model->encode, &batch, i, 0, &here);
        }
        batch_end(&batch);
        here.check += batch_check(&batch);
    }
    *writer = here;
}

INLINE int decode_element(const uint32_t *table, batch_t *batch, size_t i, int second,
                          tw_entropy_reader_t *reader)
{
    context_t context = context_of(batch, i, second);
    uint32_t *lane = &reader->lanes[i % TW_ENTROPY_LANES];
    uint32_t entry =
        table[context.table * (TW_ENTROPY_FREQ_SUM / TW_ENTROPY_SYMBOLS) + *lane % TW_ENTROPY_FREQ_SUM];
    uint32_t x = (entry & 0x7ff) * (*lane >> TW_ENTROPY_FREQ_BITS) + (entry >> 11 & 0x3ff);
    uint32_t symbol = entry >> 21, z = symbol << context.raw_bits | (x & ((1u << context.raw_bits) - 1));
    x >>= context.raw_bits;
    if (!tw_entropy_refill(&x, &reader->words, reader->words_begin)) {
        return 0;
    }
    *lane = x;
    int32_t turned = tw_delta_unzigzag((uint16_t)z) + context.expected;
    int16_t change = (int16_t)((turned ^ context.sign) - context.sign);
    if (symbol == TW_ENTROPY_ESCAPE) {
        uint16_t new_bits;
        if (!tw_entropy_pop(&reader->escapes, reader->escapes_begin, &new_bits)) {
            return 0;
        }
        change = (int16_t)(tw_delta_order(new_bits) - batch->order[i]);
    }
    batch->changes[i] = change;
    return 1;
}

INLINE int decode_batch(const tw_delta_model_t *model, batch_t *batch, tw_entropy_reader_t *reader)
{
    int good = 1;
    for (size_t i = batch->n; batch->states && good && i-- > 0;) {
        good = decode_element(model->decode, batch, i, 1, reader);
    }
    for (size_t i = batch->n; !batch->states && good && i-- > 0;) {
        good = decode_element(model->decode, batch, i, 0, reader);
    }
    for (size_t i = 0; i < batch->n; i++) {
        batch->new_values[i] = tw_delta_order((uint16_t)(batch->order[i] + batch->changes[i]));
    }
    return good;
}

static int ref_decode(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                      tw_entropy_reader_t *reader)
{
    tw_entropy_reader_t here = *reader;
    batch_t batch;
    int good = 1;
    for (size_t end = run->n; good && end > first; end -= batch.n) {
        size_t left = (end - first) % BATCH; /* the last batch is the short one */
        batch_begin(model, run, end - (left ? left : BATCH), left ? left : BATCH, &batch);
        good = decode_batch(model, &batch, &here);
        batch_end(&batch);
        here.check += batch_check(&batch);
    }
    *reader = here;
    return good;
}

const tw_delta_backend_t tw_delta_ref = {
    .name = "ref",
    .usable = ref_usable,
    .encode = ref_encode,
    .decode = ref_decode,
};
