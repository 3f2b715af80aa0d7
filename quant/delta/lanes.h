/** Codes a block as ref.c does, one vector of 32-bit elements at a time. Include one of entropy/vec_*.h
 *  first. ref.c codes the elements after the last whole group of 32. */
#pragma once

#include "quant/delta/value.h"
#include "quant/entropy/lanes.h"

INLINE vec_t sign16(vec_t x)
{
    return vec_sar(vec_shl(x, 16), 16);
}

INLINE vec_t low16(vec_t x)
{
    return vec_and(x, vec_set(0xffff));
}

INLINE vec_t order(vec_t bits)
{
    return vec_xor(bits, vec_and(vec_sub(vec_set(0), vec_shr(bits, 15)), vec_set(0x7fff)));
}

/** Negate x where `sign` is -1, in two's complement. */
INLINE vec_t lanes_turn(vec_t x, vec_t sign)
{
    return vec_sub(vec_xor(x, sign), sign);
}

/** tw_delta_state: the exponent and the first three bits of the fraction of |change| + 8 as a float. */
INLINE vec_t lanes_state_of(vec_t change)
{
    vec_t sign = vec_sar(change, 31), size = vec_add(lanes_turn(change, sign), vec_set(8));
    vec_t code = vec_sub(vec_shr(vec_float(size), 20), vec_set((127 + 3) << 3));
    return vec_or(code, vec_and(sign, vec_set(0x80)));
}

/* What the state and the old value predict about an element's change. */
typedef struct {
    vec_t sign, expected, table, raw_bits;
} belief_t;

INLINE belief_t believe(const tw_delta_model_t *model, vec_t old_bits, vec_t state, int second)
{
    belief_t belief = {.sign = vec_set(0), .expected = vec_set(0)};
    vec_t base = vec_set(model->base), exponent = vec_and(vec_shr(old_bits, 7), vec_set(0xff));
    vec_t row = vec_min(vec_sub(vec_max(exponent, base), base), vec_set(TW_DELTA_EXPONENTS - 1));
    vec_t code = vec_and(state, vec_set(0x7f)), entry = vec_lookup32(model->rows, row), tables = entry;
    if (second) {
        vec_t least = vec_min(code, vec_set(4));
        vec_t size_class = vec_sub(least, vec_shr(vec_add(least, vec_set(1)), 2));
        tables = vec_shrv(tables, vec_shl(size_class, 2));
    }
    belief.table = vec_and(tables, vec_set(0xf));
    belief.raw_bits =
        vec_min(vec_sub(vec_max(belief.table, vec_set(7)), vec_set(7)), vec_set(TW_DELTA_RAW_BITS_MAX));
    if (second) {
        vec_t size = vec_shlv(vec_or(vec_and(code, vec_set(7)), vec_set(8)), vec_shr(code, 3));
        vec_t product = vec_mul(low16(vec_sub(size, vec_set(8))), vec_shr(entry, 16));
        belief.expected = vec_shr(vec_add(product, vec_set(64)), 7);
        belief.sign = vec_sar(vec_shl(state, 24), 31);
    }
    return belief;
}

/** Push a vector of elements into its lanes. Returns the mask of lanes that took the escape. */
INLINE uint32_t lanes_push(const tw_delta_model_t *model, const belief_t *belief, vec_t z, vec_t *lanes,
                           uint16_t **words)
{
    vec_t raw_bits = belief->raw_bits;
    vec_t symbol = vec_min(vec_shrv(z, raw_bits), vec_set(TW_ENTROPY_ESCAPE));
    vec_t index = vec_or(vec_shl(belief->table, 5), symbol);
    vec_t reciprocal, entry = vec_gather_pair(model->encode, index, &reciprocal);
    vec_t freq = vec_and(entry, vec_set(0x7ff)), first_slot = vec_and(vec_shr(entry, 11), vec_set(0x3ff));
    mask_t escaped = mask_sign(entry);
    vec_t raw = vec_zero_where(escaped, vec_andnot(vec_shlv(vec_set(0xffffffff), raw_bits), z));
    vec_t limit_shift = vec_sub(vec_set(32 - TW_ENTROPY_FREQ_BITS), raw_bits), x = *lanes;
    mask_t full = mask_ge(vec_shrv(x, limit_shift), freq);
    x = vec_or(vec_shlv(spill(x, full, words), raw_bits), raw);
    *lanes = put_symbol(x, freq, first_slot, reciprocal);
    return mask_bits(escaped);
}

INLINE void encode_groups(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first, size_t n,
                          tw_entropy_writer_t *writer, int second)
{
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words, *escaped = writer->escapes;
    vec_t check = vec_set(0);
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = first; i < n; i += TW_ENTROPY_LANES) {
        uint32_t escapes = 0;
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = i + v * WIDTH;
            vec_t old_bits = vec_load16(run->old_values + at), new_bits = vec_load16(run->new_values + at);
            vec_t change = sign16(vec_sub(order(new_bits), order(old_bits)));
            check = vec_add(check, check_of(at, new_bits));
            vec_t state = second ? vec_load8(run->state + at) : vec_set(0);
            belief_t belief = believe(model, old_bits, state, second);
            vec_t rest = sign16(vec_sub(lanes_turn(change, belief.sign), belief.expected));
            vec_t z = low16(vec_xor(vec_shl(rest, 1), vec_sar(rest, 31)));
            escapes |= lanes_push(model, &belief, z, &lanes[v], &words) << (v * WIDTH);
            if (second) {
                vec_store8(run->state + at, lanes_state_of(change));
            }
        }
        for (; __builtin_expect(escapes != 0, 0); escapes &= escapes - 1) {
            *escaped++ = run->new_values[i + (size_t)__builtin_ctz(escapes)];
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    writer->escapes = escaped;
    writer->check += total(check);
}

static void lanes_encode(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                         tw_entropy_writer_t *writer)
{
    size_t n = run->n - run->n % TW_ENTROPY_LANES;
    if (run->state) {
        encode_groups(model, run, first, n, writer, 1);
    } else {
        encode_groups(model, run, first, n, writer, 0);
    }
    tw_delta_ref.encode(model, run, n, writer);
}

/** Take a vector of symbols, with their raw bits, out of its lanes into *z. The lanes are not yet
 *  renormalised. Returns the mask of escapes. */
INLINE mask_t lanes_take(const tw_delta_model_t *model, const belief_t *belief, vec_t *lanes, vec_t *z)
{
    vec_t slot = vec_and(*lanes, vec_set(TW_ENTROPY_FREQ_SUM - 1)), raw_bits = belief->raw_bits;
    vec_t entry = vec_gather(model->decode, vec_or(vec_shl(belief->table, TW_ENTROPY_FREQ_BITS), slot));
    vec_t symbol = vec_shr(entry, 21), x = take_symbol(*lanes, entry);
    *z = vec_or(vec_shlv(symbol, raw_bits), vec_andnot(vec_shlv(vec_set(0xffffffff), raw_bits), x));
    *lanes = vec_shrv(x, raw_bits);
    return mask_ge(symbol, vec_set(TW_ENTROPY_ESCAPE));
}

/** Read the new values of escaped elements of the group at `first`, from the highest lane down. Returns 0 if
 *  escapes run out. */
static int take_escapes(const uint16_t *old_values, const tw_delta_run_t *run, size_t first, uint32_t escapes,
                        tw_entropy_reader_t *reader)
{
    uint16_t *new_values = run->new_values + first;
    while (escapes) {
        uint32_t lane = 31u - (uint32_t)__builtin_clz(escapes);
        uint16_t new_bits;
        if (reader->escapes == reader->escapes_begin) {
            return 0;
        }
        reader->escapes -= sizeof(new_bits);
        memcpy(&new_bits, reader->escapes, sizeof(new_bits));
        if (run->state) {
            run->state[first + lane] = tw_delta_state(tw_delta_change(old_values[lane], new_bits));
        }
        /* The checksum has counted the wrong value that was there. */
        reader->check +=
            tw_entropy_check(first + lane, new_bits) - tw_entropy_check(first + lane, new_values[lane]);
        new_values[lane] = new_bits;
        escapes ^= 1u << lane;
    }
    return 1;
}

INLINE int decode_groups(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first, size_t n,
                         tw_entropy_reader_t *reader, int second)
{
    vec_t lanes[VECTORS], z[VECTORS], check = vec_set(0);
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > first;) {
        i -= TW_ENTROPY_LANES;
        uint32_t escapes = 0, n_words = 0;
        uint16_t old_values[TW_ENTROPY_LANES]; /* a copy: new values may overwrite them */
        mask_t wanting[VECTORS];
        belief_t belief[VECTORS];
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t state = second ? vec_load8(run->state + i + v * WIDTH) : vec_set(0);
            belief[v] = believe(model, vec_load16(run->old_values + i + v * WIDTH), state, second);
            escapes |= mask_bits(lanes_take(model, &belief[v], &lanes[v], &z[v])) << (v * WIDTH);
            wanting[v] = wanting_of(lanes[v]);
            n_words += (uint32_t)__builtin_popcount(mask_bits(wanting[v]));
        }
        if ((size_t)(words - reader->words_begin) < 2 * n_words) {
            return 0;
        }
        words -= 2 * n_words;
        const uint8_t *next = words;
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = i + v * WIDTH;
            lanes[v] = refill(lanes[v], wanting[v], &next);
            vec_t low_bit = vec_and(z[v], vec_set(1)), old_bits = vec_load16(run->old_values + at);
            vec_t rest = vec_xor(vec_shr(low16(z[v]), 1), vec_sub(vec_set(0), low_bit));
            vec_t change = sign16(lanes_turn(vec_add(rest, belief[v].expected), belief[v].sign));
            if (__builtin_expect(escapes != 0, 0)) {
                vec_store16(old_values + v * WIDTH, old_bits);
            }
            vec_t new_bits = order(low16(vec_add(order(old_bits), change)));
            check = vec_add(check, check_of(at, new_bits));
            vec_store16(run->new_values + at, new_bits);
            if (second) {
                vec_store8(run->state + at, lanes_state_of(change));
            }
        }
        if (__builtin_expect(escapes != 0, 0) && !take_escapes(old_values, run, i, escapes, reader)) {
            return 0;
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    reader->check += total(check);
    return 1;
}

#ifndef DECODE_SECOND
#define DECODE_SECOND(...) decode_groups(__VA_ARGS__, 1)
#else
static int DECODE_SECOND(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first, size_t n,
                         tw_entropy_reader_t *reader);
#endif

static int lanes_decode(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                        tw_entropy_reader_t *reader)
{
    size_t n = run->n - run->n % TW_ENTROPY_LANES;
    if (!tw_delta_ref.decode(model, run, n, reader)) {
        return 0;
    }
    return run->state ? DECODE_SECOND(model, run, first, n, reader)
                      : decode_groups(model, run, first, n, reader, 0);
}
