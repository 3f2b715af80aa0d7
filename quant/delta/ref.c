/* The reference backend: codes a block, element by element. */
#include "quant/delta/value.h"

#include <string.h>

static int ref_usable(void)
{
    return 1;
}

#define INLINE static inline __attribute__((always_inline))

/* The number of elements in a batch. */
#define BATCH ((size_t)256)

/* tw_delta_state_size and tw_delta_state as compilers can vectorise them: a state is a float's upper bits. */
#define STATE_BITS 20
#define STATE_BIAS ((127 + 3) << 3)

INLINE int32_t size_of(uint8_t state)
{
    uint32_t bits = ((state & 0x7fu) + STATE_BIAS) << STATE_BITS;
    float size;
    memcpy(&size, &bits, sizeof(size));
    return (uint16_t)((int32_t)size - 8);
}

INLINE uint8_t ref_state_of(int16_t change)
{
    int32_t wide = change;
    float size = (float)((wide < 0 ? -wide : wide) + 8);
    uint32_t bits;
    memcpy(&bits, &size, sizeof(bits));
    return (uint8_t)(((bits >> STATE_BITS) - STATE_BIAS) | (wide < 0 ? 0x80 : 0));
}

/* A batch: some elements of a block. All work that does not depend on the coder's state is in separate loops,
 * which compilers vectorise; only the coder's steps are one by one. Functions are inlined and the batch's
 * address does not escape, so compilers know that writing the caller's states, which are bytes, does not
 * change the batch. */
typedef struct {
    uint16_t *new_values;
    uint8_t *states;
    size_t first, n;         /* index in the block */
    uint32_t entries[BATCH]; /* model->contexts of the element's context */
    uint16_t order[BATCH];   /* tw_delta_order of the old value */
    int16_t signs[BATCH];    /* -1 if the previous change was negative, else 0 */
    int16_t expected[BATCH];
    int16_t changes[BATCH];
    uint16_t z[BATCH];
} batch_t;

/** Begin a batch: set entries, order, signs and expected of its elements. */
INLINE void batch_begin(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first, size_t n,
                        batch_t *batch)
{
    int16_t base = (int16_t)model->base;
    uint16_t contexts[BATCH];
    batch->new_values = run->new_values + first;
    batch->states = run->state ? run->state + first : NULL;
    batch->first = first;
    batch->n = n;
    for (size_t i = 0; i < n; i++) {
        uint16_t old_bits = run->old_values[first + i];
        int16_t above = (int16_t)((old_bits >> 7 & 0xff) - base);
        above = above > 0 ? above : 0;
        above = above < TW_DELTA_EXPONENTS ? above : TW_DELTA_EXPONENTS - 1;
        contexts[i] = (uint16_t)(above * TW_DELTA_SIZES);
        batch->order[i] = tw_delta_order(old_bits);
    }
    uint8_t states[BATCH]; /* a copy, so that compilers know that nothing else aliases it */
    for (size_t i = 0; batch->states && i < n; i++) {
        states[i] = batch->states[i];
    }
    for (size_t i = 0; batch->states && i < n; i++) {
        uint16_t code = states[i] & 0x7f, least = code < 4 ? code : 4;
        contexts[i] = (uint16_t)(contexts[i] + least - (least > 2));
        batch->signs[i] = (int16_t)(-(states[i] >> 7));
    }
    for (size_t i = 0; i < n; i++) {
        batch->entries[i] = model->contexts[contexts[i]];
    }
    for (size_t i = 0; batch->states && i < n; i++) {
        uint32_t factor = batch->entries[i] & 0xff;
        batch->expected[i] = (int16_t)(((uint32_t)size_of(states[i]) * factor + 64) >> 7);
    }
}

/** Store the states of a batch's changes. */
INLINE void batch_end(const batch_t *batch)
{
    uint8_t states[BATCH];
    for (size_t i = 0; batch->states && i < batch->n; i++) {
        states[i] = ref_state_of(batch->changes[i]);
    }
    for (size_t i = 0; batch->states && i < batch->n; i++) {
        batch->states[i] = states[i];
    }
}

/** The part of the block's checksum that the batch's new values add. */
INLINE uint32_t batch_check(const batch_t *batch)
{
    uint32_t check = 0, position = ((uint32_t)batch->first + 1) * TW_ENTROPY_CHECK_FACTOR;
    for (size_t i = 0; i < batch->n; i++) {
        uint32_t term = batch->new_values[i] + position + (uint32_t)i * TW_ENTROPY_CHECK_FACTOR;
        check += term * term;
    }
    return check;
}

INLINE void encode_element(const uint64_t *tables, const batch_t *batch, size_t i,
                           tw_entropy_writer_t *writer)
{
    uint32_t context = batch->entries[i], raw_bits = context >> 8 & 0xff, z = batch->z[i];
    uint32_t symbol = z >> raw_bits, raw = z & ((1u << raw_bits) - 1);
    symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
    uint64_t entry = tables[(context >> 16) + symbol];
    if (entry >> 31 & 1) {
        *writer->escapes++ = batch->new_values[i];
        raw = 0;
    }
    uint32_t *lane = &writer->lanes[i % TW_ENTROPY_LANES];
    *lane = tw_entropy_push(*lane, entry, raw_bits, raw, &writer->words);
}

/** Compute a batch's changes and z, which is coded: the change, with states minus the expected change. */
INLINE void find_changes(batch_t *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        batch->changes[i] = (int16_t)(tw_delta_order(batch->new_values[i]) - batch->order[i]);
    }
    for (size_t i = 0; !batch->states && i < batch->n; i++) {
        batch->z[i] = tw_delta_zigzag(batch->changes[i]);
    }
    for (size_t i = 0; batch->states && i < batch->n; i++) {
        int16_t sign = batch->signs[i], turned = (int16_t)((batch->changes[i] ^ sign) - sign);
        batch->z[i] = tw_delta_zigzag((int16_t)(turned - batch->expected[i]));
    }
}

/** Batches begin at multiples of 32, because `first` and BATCH are multiples of 32. */
static void ref_encode(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                       tw_entropy_writer_t *writer)
{
    tw_entropy_writer_t here = *writer; /* a copy: compilers know that writing the output cannot change it */
    batch_t batch;
    for (size_t at = first; at < run->n; at += batch.n) {
        batch_begin(model, run, at, run->n - at < BATCH ? run->n - at : BATCH, &batch);
        find_changes(&batch);
        for (size_t i = 0; i < batch.n; i++) {
            encode_element(model->encode, &batch, i, &here);
        }
        batch_end(&batch);
        here.check += batch_check(&batch);
    }
    *writer = here;
}

/** Decode z of element i. For an escaped element z is computed from the new value among the escapes. */
INLINE int decode_element(const uint32_t *tables, batch_t *batch, size_t i, tw_entropy_reader_t *reader)
{
    uint32_t context = batch->entries[i], raw_bits = context >> 8 & 0xff;
    uint32_t *lane = &reader->lanes[i % TW_ENTROPY_LANES];
    const uint32_t *table = tables + (size_t)(context >> 16) * (TW_ENTROPY_FREQ_SUM / TW_ENTROPY_SYMBOLS);
    uint32_t entry = table[*lane % TW_ENTROPY_FREQ_SUM], symbol = entry >> 21;
    uint32_t x = (entry & 0x7ff) * (*lane >> TW_ENTROPY_FREQ_BITS) + (entry >> 11 & 0x3ff);
    uint32_t z = symbol << raw_bits | (x & ((1u << raw_bits) - 1));
    x >>= raw_bits;
    if (!tw_entropy_refill(&x, &reader->words, reader->words_begin)) {
        return 0;
    }
    *lane = x;
    if (symbol == TW_ENTROPY_ESCAPE) {
        uint16_t new_bits;
        if (!tw_entropy_pop(&reader->escapes, reader->escapes_begin, &new_bits)) {
            return 0;
        }
        /* the z that would have been coded without the escape */
        int16_t change = (int16_t)(tw_delta_order(new_bits) - batch->order[i]), sign = batch->signs[i];
        int16_t turned = (int16_t)((change ^ sign) - sign);
        z = tw_delta_zigzag((int16_t)(turned - batch->expected[i]));
    }
    batch->z[i] = (uint16_t)z;
    return 1;
}

INLINE int decode_batch(const tw_delta_model_t *model, batch_t *batch, tw_entropy_reader_t *reader)
{
    int good = 1;
    for (size_t i = 0; !batch->states && i < batch->n; i++) {
        batch->signs[i] = batch->expected[i] = 0;
    }
    for (size_t i = batch->n; good && i-- > 0;) {
        good = decode_element(model->decode, batch, i, reader);
    }
    for (size_t i = 0; i < batch->n; i++) {
        int16_t sign = batch->signs[i];
        int16_t turned = (int16_t)(tw_delta_unzigzag(batch->z[i]) + batch->expected[i]);
        batch->changes[i] = (int16_t)((turned ^ sign) - sign);
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
        size_t left = (end - first) % BATCH; /* the last batch, which comes first, may be short */
        batch_begin(model, run, end - (left ? left : BATCH), left ? left : BATCH, &batch);
        good = decode_batch(model, &batch, &here);
        batch_end(&batch);
        here.check += batch_check(&batch);
    }
    *reader = here;
    return good;
}

const tw_delta_backend_t tw_delta_ref = {
    .is = {"ref", TW_MEM_HOST, ref_usable},
    .encode = ref_encode,
    .decode = ref_decode,
};
