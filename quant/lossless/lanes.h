/** Codes a block as ref.c does, one vector of 32-bit elements at a time. Include one of entropy/vec_*.h
 *  first. ref.c codes the elements after the last whole group of 32. */
#pragma once

#include "quant/entropy/lanes.h"
#include "quant/lossless/loops.h"

/* ---- symbols ------------------------------------------------------------------------------------------- */

INLINE vec_t context_of(vec_t expected)
{
    return vec_or(vec_and(vec_shr(expected, TW_LOSSLESS_CLASS_SHIFT - 2), vec_set(0x1c)),
                  vec_and(expected, vec_set(3)));
}

INLINE vec_t bottom_of(vec_t expected)
{
    return vec_shr(vec_and(expected, vec_set(TW_LOSSLESS_SCALE_MASK & ~3)), 1);
}

static void lanes_encode(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                         size_t n, tw_entropy_writer_t *writer)
{
    encode_tables_t tables;
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words, *escaped = writer->escapes;
    size_t whole = n - n % TW_ENTROPY_LANES;
    make_tables(model, &tables);
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = 0; i < whole; i += TW_ENTROPY_LANES) {
        vec_t entries[VECTORS], reciprocals[VECTORS];
        look_up(&tables, heads + i, expected + i, entries, reciprocals);
        uint32_t escapes = 0;
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            escapes |= mask_bits(mask_sign(entries[v])) << (v * WIDTH);
            lanes[v] = push_symbol(lanes[v], entries[v], reciprocals[v], &words);
        }
        for (; __builtin_expect(escapes != 0, 0); escapes &= escapes - 1) {
            *escaped++ = (uint16_t)tw_lossless_coded(heads[i + (size_t)__builtin_ctz(escapes)]);
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    writer->escapes = escaped;
    tw_lossless_ref.encode(model, heads + whole, expected + whole, n - whole, writer);
}

/** Read the values of a group's escaped elements, from the highest lane down, and keep only the bits of
 *  `bits`. Returns 0 if escapes run out. */
static int take_escapes(uint16_t *values, uint32_t escapes, uint16_t bits, tw_entropy_reader_t *reader)
{
    while (escapes) {
        uint32_t lane = 31u - (uint32_t)__builtin_clz(escapes);
        if (!tw_entropy_pop(&reader->escapes, reader->escapes_begin, &values[lane])) {
            return 0;
        }
        values[lane] &= bits;
        escapes ^= 1u << lane;
    }
    return 1;
}

static int decode_groups(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                         tw_entropy_reader_t *reader, uint16_t *heads)
{
    vec_t lanes[VECTORS];
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > 0;) {
        i -= TW_ENTROPY_LANES;
        uint32_t escapes = 0;
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = i + v * WIDTH;
            vec_t expect = vec_load16(expected + at);
            vec_t slot = vec_and(lanes[v], vec_set(TW_ENTROPY_FREQ_SUM - 1));
            vec_t index = vec_or(vec_shl(context_of(expect), TW_ENTROPY_FREQ_BITS), slot);
            vec_t entry = vec_gather(model->decode, index), symbol = vec_shr(entry, 21);
            lanes[v] = take_symbol(lanes[v], entry);
            escapes |= mask_bits(mask_ge(symbol, vec_set(TW_ENTROPY_ESCAPE))) << (v * WIDTH);
            vec_t above = vec_sub(symbol, vec_set(1 + TW_LOSSLESS_BIAS / 2));
            vec_t coded = vec_and(vec_add(above, bottom_of(expect)), vec_set(0x1ff));
            vec_store16(heads + at, vec_zero_where(mask_ge(vec_set(0), symbol), coded));
        }
        if (!refill_all(lanes, &words, reader->words_begin) ||
            (__builtin_expect(escapes != 0, 0) && !take_escapes(heads + i, escapes, 0x1ff, reader))) {
            return 0;
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    return 1;
}

static int lanes_decode(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                        tw_entropy_reader_t *reader, uint16_t *heads)
{
    size_t whole = n - n % TW_ENTROPY_LANES;
    return tw_lossless_ref.decode(model, expected + whole, n - whole, reader, heads + whole) &&
           decode_groups(model, expected, whole, reader, heads);
}

/* ---- tails in lanes ------------------------------------------------------------------------------------ */

/** Compute the tails' contexts of a group. heads >> down are heads of 9 bits. */
INLINE void tail_contexts(const uint16_t *heads, int down, const uint16_t *expected, uint32_t first,
                          uint16_t *contexts)
{
    for (size_t i = 0; i < TW_ENTROPY_LANES; i += WIDTH16) {
        vec16_t coded = vec16_and(vec16_shr(vec16_load(heads + i), down), vec16_set(0x1ff));
        vec16_t symbols = symbols_of_coded(coded, vec16_load(expected + i));
        vec16_t octaves = vec16_min(vec16_shr(vec16_add(symbols, vec16_set(1)), 1),
                                    vec16_set(TW_LOSSLESS_TAIL_CONTEXTS - 1));
        vec16_store(contexts + i, vec16_sub(octaves, vec16_min(octaves, vec16_set(first))));
    }
}

/** The symbols of tails: the numbers of zeros at their ends. A one above the 16 bits ends the count for 0.
 *  The lowest one bit, converted to a float, has its place as the float's exponent. */
INLINE vec_t tail_symbols(vec_t tails)
{
    vec_t ended = vec_or(tails, vec_set(0x10000));
    return vec_sub(vec_shr(vec_float(vec_and(ended, vec_sub(vec_set(0), ended))), 23), vec_set(127));
}

INLINE vec_t tail_raw_bits(vec_t symbols)
{
    return vec_sub(vec_set(15), vec_min(symbols, vec_set(15)));
}

static void lanes_encode_tails(const tw_lossless_model_t *model, const uint16_t *heads,
                               const uint16_t *expected, const uint16_t *tails, size_t n,
                               tw_entropy_writer_t *writer)
{
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words, *escaped = writer->escapes;
    size_t whole = n - n % TW_ENTROPY_LANES;
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = 0; i < whole; i += TW_ENTROPY_LANES) {
        uint16_t contexts[TW_ENTROPY_LANES];
        vec_t entries[VECTORS], reciprocals[VECTORS];
        uint32_t escapes = 0;
        tail_contexts(heads + i, 6, expected + i, model->tail_first, contexts);
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t tail = vec_load16(tails + i + v * WIDTH), symbol = tail_symbols(tail);
            vec_t index = vec_or(vec_shl(vec_load16(contexts + v * WIDTH), 5), symbol);
            entries[v] = vec_gather_pair(model->encode_tails, index, &reciprocals[v]);
            mask_t escape = mask_sign(entries[v]);
            vec_t bits = vec_zero_where(escape, tail_raw_bits(symbol));
            vec_t raw = vec_zero_where(escape, vec_shrv(tail, vec_add(symbol, vec_set(1))));
            escapes |= mask_bits(escape) << (v * WIDTH);
            mask_t full = mask_ge(vec_shrv(lanes[v], vec_sub(vec_set(32), bits)), vec_set(1));
            lanes[v] = vec_or(vec_shlv(spill(lanes[v], full, &words), bits), raw);
        }
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            lanes[v] = push_symbol(lanes[v], entries[v], reciprocals[v], &words);
        }
        for (; __builtin_expect(escapes != 0, 0); escapes &= escapes - 1) {
            *escaped++ = tails[i + (size_t)__builtin_ctz(escapes)];
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    writer->escapes = escaped;
    tw_lossless_ref.encode_tails(model, heads + whole, expected + whole, tails + whole, n - whole, writer);
}

static int decode_tail_groups(const tw_lossless_model_t *model, const uint16_t *heads,
                              const uint16_t *expected, size_t n, tw_entropy_reader_t *reader,
                              uint16_t *tails)
{
    vec_t lanes[VECTORS];
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > 0;) {
        uint16_t contexts[TW_ENTROPY_LANES];
        vec_t symbols[VECTORS];
        uint32_t escapes = 0;
        i -= TW_ENTROPY_LANES;
        tail_contexts(heads + i, 0, expected + i, model->tail_first, contexts);
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t slot = vec_and(lanes[v], vec_set(TW_ENTROPY_FREQ_SUM - 1));
            vec_t index = vec_or(vec_shl(vec_load16(contexts + v * WIDTH), TW_ENTROPY_FREQ_BITS), slot);
            vec_t entry = vec_gather(model->decode_tails, index);
            symbols[v] = vec_shr(entry, 21);
            escapes |= mask_bits(mask_ge(symbols[v], vec_set(TW_ENTROPY_ESCAPE))) << (v * WIDTH);
            lanes[v] = take_symbol(lanes[v], entry);
        }
        if (!refill_all(lanes, &words, reader->words_begin)) {
            return 0;
        }
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t bits = tail_raw_bits(symbols[v]);
            vec_t raw = vec_andnot(vec_shlv(vec_set(~0u), bits), lanes[v]);
            vec_t tail = vec_shlv(vec_or(vec_shl(raw, 1), vec_set(1)), symbols[v]);
            vec_store16(tails + i + v * WIDTH, tail);
            lanes[v] = vec_shrv(lanes[v], bits);
        }
        if (!refill_all(lanes, &words, reader->words_begin) ||
            (__builtin_expect(escapes != 0, 0) && !take_escapes(tails + i, escapes, 0xffff, reader))) {
            return 0;
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    return 1;
}

static int lanes_decode_tails(const tw_lossless_model_t *model, const uint16_t *heads,
                              const uint16_t *expected, size_t n, tw_entropy_reader_t *reader,
                              uint16_t *tails)
{
    size_t whole = n - n % TW_ENTROPY_LANES;
    return tw_lossless_ref.decode_tails(model, heads + whole, expected + whole, n - whole, reader,
                                        tails + whole) &&
           decode_tail_groups(model, heads, expected, whole, reader, tails);
}

/* ---- checksums ----------------------------------------------------------------------------------------- */

static uint32_t lanes_check(const uint8_t *words, size_t n, size_t first)
{
    uint32_t positions[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++) {
        positions[i] = ((uint32_t)first + i + 1) * TW_ENTROPY_CHECK_FACTOR;
    }
    vec_t sum = vec_set(0), position;
    memcpy(&position, positions, sizeof(position));
    size_t whole = n - n % WIDTH;
    for (size_t i = 0; i < whole; i += WIDTH) {
        vec_t term = vec_add(vec_load16(words + 2 * i), position);
        sum = vec_add(sum, vec_mul(term, term));
        position = vec_add(position, vec_set(WIDTH * TW_ENTROPY_CHECK_FACTOR));
    }
    return total(sum) + loops_check(words + 2 * whole, n - whole, first + whole);
}

#define LANES                                                                    \
    LOOPS, .encode = lanes_encode, .check = lanes_check, .decode = lanes_decode, \
           .encode_tails = lanes_encode_tails, .decode_tails = lanes_decode_tails
