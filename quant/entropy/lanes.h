/** The steps of a coder, for one vector of lanes at a time. Include one of vec_*.h first: it defines WIDTH,
 *  vec_t, mask_t and the operations. */
#pragma once

#include "quant/entropy/entropy.h"

#define VECTORS (TW_ENTROPY_LANES / WIDTH)
#define INLINE static inline __attribute__((always_inline))

/** The sum of a vector's elements. */
INLINE uint32_t total(vec_t x)
{
    uint32_t parts[WIDTH], sum = 0;
    memcpy(parts, &x, sizeof(x));
    for (size_t i = 0; i < WIDTH; i++) {
        sum += parts[i];
    }
    return sum;
}

/** The part of a checksum that a vector of 16-bit values adds; the first one has index `at`. */
INLINE vec_t check_of(size_t at, vec_t values)
{
    uint32_t steps[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++) {
        steps[i] = (i + 1) * TW_ENTROPY_CHECK_FACTOR;
    }
    vec_t position;
    memcpy(&position, steps, sizeof(position));
    vec_t term = vec_add(values, vec_add(position, vec_set((uint32_t)at * TW_ENTROPY_CHECK_FACTOR)));
    return vec_mul(term, term);
}

/** Move a word from each full lane to *words. */
INLINE vec_t spill(vec_t lanes, mask_t full, uint16_t **words)
{
    *words = vec_store_words(*words, lanes, full);
    return vec_select(full, vec_shr(lanes, 16), lanes);
}

/** Put a symbol into each lane. The reciprocal is rounded down, so the quotient may be one too small. */
INLINE vec_t put_symbol(vec_t lanes, vec_t freq, vec_t first_slot, vec_t reciprocal)
{
    vec_t quotient = vec_mul_high(lanes, reciprocal), rest = vec_sub(lanes, vec_mul(quotient, freq));
    vec_t fix = vec_sub(vec_set(TW_ENTROPY_FREQ_SUM), freq);
    vec_t x = vec_add(vec_add(vec_shl(quotient, TW_ENTROPY_FREQ_BITS), first_slot), rest);
    return vec_select(mask_ge(rest, freq), vec_add(x, fix), x);
}

/** Push symbols into lanes, by their entries of the encoder's table. reciprocal: the entries' upper
 *  halves. */
INLINE vec_t push_symbol(vec_t lanes, vec_t entry, vec_t reciprocal, uint16_t **words)
{
    vec_t freq = vec_and(entry, vec_set(0x7ff)), first_slot = vec_and(vec_shr(entry, 11), vec_set(0x3ff));
    mask_t full = mask_ge(vec_shr(lanes, 32 - TW_ENTROPY_FREQ_BITS), freq);
    return put_symbol(spill(lanes, full, words), freq, first_slot, reciprocal);
}

/** Remove a symbol from each lane, by its entry of the decoder's table. */
INLINE vec_t take_symbol(vec_t lanes, vec_t entry)
{
    return vec_add(vec_mul(vec_and(entry, vec_set(0x7ff)), vec_shr(lanes, TW_ENTROPY_FREQ_BITS)),
                   vec_and(vec_shr(entry, 11), vec_set(0x3ff)));
}

/** The lanes below their least state, which need a word. */
INLINE mask_t wanting_of(vec_t lanes)
{
    return mask_ge(vec_set(TW_ENTROPY_START - 1), lanes);
}

/** Give words from *next on to the lanes of `wanting`, and move *next past them. */
INLINE vec_t refill(vec_t lanes, mask_t wanting, const uint8_t **next)
{
    vec_t word = vec_load_words(*next, wanting);
    *next += 2 * (size_t)__builtin_popcount(mask_bits(wanting));
    return vec_select(wanting, vec_or(vec_shl(lanes, 16), word), lanes);
}

/** Give words to all lanes that need one. Returns 0 if there are too few words. */
INLINE int refill_all(vec_t *lanes, const uint8_t **words, const uint8_t *begin)
{
    mask_t wanting[VECTORS];
    uint32_t n_words = 0;
#pragma GCC unroll 8
    for (size_t v = 0; v < VECTORS; v++) {
        wanting[v] = wanting_of(lanes[v]);
        n_words += (uint32_t)__builtin_popcount(mask_bits(wanting[v]));
    }
    if ((size_t)(*words - begin) < 2 * n_words) {
        return 0;
    }
    *words -= 2 * n_words;
    const uint8_t *next = *words;
#pragma GCC unroll 8
    for (size_t v = 0; v < VECTORS; v++) {
        lanes[v] = refill(lanes[v], wanting[v], &next);
    }
    return 1;
}
