/* The oracle: a block, element by element. */
#include "quant/exact/value.h"

#include <string.h>

static int ref_usable(void)
{
    return 1;
}

#define INLINE static inline __attribute__((always_inline))

/* A block, where nothing that is written can change it: compilers keep it in registers. */
typedef struct {
    const uint16_t *old_values;
    uint16_t *new_values;
    uint8_t *states;
    const tw_exact_lookups_t *lookups;
} block_t;

/* What the model has for an element, and the previous change says of it. */
typedef struct {
    uint32_t table, raw_bits; /* table: times its SYMBOLS */
    int32_t sign, expected;   /* sign -1: it was negative */
} context_t;

INLINE context_t context_of(const tw_exact_lookups_t *lookups, uint16_t old_bits, uint8_t state)
{
    uint32_t before = lookups->states[state];
    uint32_t entry = lookups->contexts[lookups->exponents[old_bits >> 7 & 0xff] + (before & 3)];
    uint32_t expected = ((before >> 2) * (entry & 0xff) + 64) >> 7;
    return (context_t){entry >> 16, entry >> 8 & 0xff, -(state >> 7), (int32_t)expected};
}

/* The state of a change: most are small. */
INLINE uint8_t state_of(const tw_exact_lookups_t *lookups, int16_t change)
{
    uint32_t at = (uint32_t)(change + TW_EXACT_SMALL);
    return at < 2 * TW_EXACT_SMALL ? lookups->small[at] : tw_exact_state(change);
}

INLINE void encode_element(const uint64_t *table, const block_t *block, size_t i, int second,
                           tw_entropy_writer_t *writer)
{
    uint16_t old_bits = block->old_values[i], new_bits = block->new_values[i];
    context_t context = context_of(block->lookups, old_bits, second ? block->states[i] : 0);
    int16_t change = tw_exact_change(old_bits, new_bits);
    int16_t rest = (int16_t)((change ^ context.sign) - context.sign - context.expected);
    uint32_t z = tw_exact_zigzag(rest), symbol = z >> context.raw_bits;
    symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
    uint64_t entry = table[context.table + symbol];
    uint32_t escaped = entry >> 31 & 1, raw = z & ((1u << context.raw_bits) - 1) & (escaped - 1);
    *writer->escapes = new_bits; /* no branch */
    writer->escapes += escaped;
    writer->check += tw_entropy_check(i, new_bits);
    uint32_t *lane = &writer->lanes[i % TW_ENTROPY_LANES];
    *lane = tw_entropy_push(*lane, entry, context.raw_bits, raw, &writer->words);
    if (second) {
        block->states[i] = state_of(block->lookups, change);
    }
}

static void ref_encode(const tw_exact_model_t *model, const tw_exact_run_t *run, size_t first,
                       tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer; /* which what is written can not change */
    const block_t block = {run->old_values, run->new_values, run->state, &model->lookups};
    size_t n = run->n;
    for (size_t i = first; block.states && i < n; i++) {
        encode_element(model->encode, &block, i, 1, &here);
    }
    for (size_t i = first; !block.states && i < n; i++) {
        encode_element(model->encode, &block, i, 0, &here);
    }
    *writer = here;
}

INLINE int decode_element(const uint32_t *table, const block_t *block, size_t i, int second,
                          tw_entropy_reader_t *reader)
{
    uint16_t old_bits = block->old_values[i];
    context_t context = context_of(block->lookups, old_bits, second ? block->states[i] : 0);
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
    int32_t turned = tw_exact_unzigzag((uint16_t)z) + context.expected;
    int16_t change = (int16_t)((turned ^ context.sign) - context.sign);
    uint16_t new_bits = tw_exact_changed(old_bits, change);
    if (symbol == TW_ENTROPY_ESCAPE) {
        if (!tw_entropy_pop(&reader->escapes, reader->escapes_begin, &new_bits)) {
            return 0;
        }
        change = tw_exact_change(old_bits, new_bits);
    }
    if (second) {
        block->states[i] = state_of(block->lookups, change);
    }
    block->new_values[i] = new_bits;
    reader->check += tw_entropy_check(i, new_bits);
    return 1;
}

static int ref_decode(const tw_exact_model_t *model, const tw_exact_run_t *run, size_t first,
                      tw_entropy_reader_t *reader)
{
    tw_entropy_reader_t here = *reader;
    const block_t block = {run->old_values, run->new_values, run->state, &model->lookups};
    int good = 1;
    for (size_t i = run->n; block.states && good && i-- > first;) {
        good = decode_element(model->decode, &block, i, 1, &here);
    }
    for (size_t i = run->n; !block.states && good && i-- > first;) {
        good = decode_element(model->decode, &block, i, 0, &here);
    }
    *reader = here;
    return good;
}

const tw_exact_backend_t tw_exact_ref = {
    .name = "ref",
    .usable = ref_usable,
    .encode = ref_encode,
    .decode = ref_decode,
};
