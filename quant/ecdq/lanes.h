/** Codes a block's symbols as ref.c does, one vector of lanes at a time. Include one of entropy/vec_*.h
 *  first. ref.c codes the elements after the last whole group of 32. */
#pragma once

#include "quant/arithmetic/philox.h"
#include "quant/ecdq/loops.h"
#include "quant/entropy/lanes.h"

#ifndef DITHER /* a backend defines all three, or none and gets these */
#define DITHER ecdq_lanes_dither
#define QUANTIZE loops_quantize
#define DEQUANTIZE loops_dequantize

/** Do ten rounds of Philox for a vector of counters. */
INLINE void philox_vec(vec_t counters, const uint32_t key[2], vec_t words[4])
{
    uint32_t key0 = key[0], key1 = key[1];
    words[0] = counters;
    words[1] = words[2] = words[3] = vec_set(0);
#pragma GCC unroll 10
    for (int round = 0; round < TW_PHILOX_ROUNDS; round++) {
        vec_t upper0, upper1, lower0 = vec_mul_wide(words[0], vec_set(TW_PHILOX_M0), &upper0);
        vec_t lower1 = vec_mul_wide(words[2], vec_set(TW_PHILOX_M1), &upper1);
        words[0] = vec_xor(vec_xor(upper1, words[1]), vec_set(key0));
        words[1] = lower1;
        words[2] = vec_xor(vec_xor(upper0, words[3]), vec_set(key1));
        words[3] = lower0;
        key0 += TW_PHILOX_W0;
        key1 += TW_PHILOX_W1;
    }
}

static void ecdq_lanes_dither(const uint32_t key[2], uint32_t group, size_t n_groups, uint16_t *halves)
{
    uint32_t places[TW_ECDQ_COUNTERS];
    for (uint32_t i = 0; i < TW_ECDQ_COUNTERS; i++) {
        places[i] = i;
    }
    for (size_t g = 0; g < n_groups; g++, halves += TW_ECDQ_DITHER_GROUP) {
        for (size_t i = 0; i < TW_ECDQ_COUNTERS; i += WIDTH) {
            vec_t counters, words[4];
            memcpy(&counters, places + i, sizeof(counters));
            counters = vec_add(counters, vec_set(TW_ECDQ_COUNTERS * (group + (uint32_t)g)));
            philox_vec(counters, key, words);
            for (size_t w = 0; w < 4; w++) {
                uint16_t *at = halves + 2 * TW_ECDQ_COUNTERS * w + i;
                vec_store16(at, words[w]);
                vec_store16(at + TW_ECDQ_COUNTERS, vec_shr(words[w], 16));
            }
        }
    }
}

#endif

static void ecdq_lanes_encode(const uint64_t *table, const uint8_t *symbols, size_t n,
                              tw_entropy_writer_t *writer)
{
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words;
    size_t whole = n - n % TW_ENTROPY_LANES;
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = 0; i < whole; i += TW_ENTROPY_LANES) {
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t reciprocal, entry = vec_gather_pair(table, vec_load8(symbols + i + v * WIDTH), &reciprocal);
            lanes[v] = push_symbol(lanes[v], entry, reciprocal, &words);
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    tw_ecdq_ref.encode(table, symbols + whole, n - whole, writer);
}

static int decode_groups(tw_ecdq_t *ecdq, size_t n, tw_entropy_reader_t *reader)
{
    vec_t lanes[VECTORS];
    const uint8_t *words = reader->words;
    const uint16_t *expected = ecdq->expected;
    uint8_t *symbols = ecdq->symbols;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > 0;) {
        i -= TW_ENTROPY_LANES;
#pragma GCC unroll 8
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = i + v * WIDTH;
            vec_t of_class =
                vec_shl(vec_shr(vec_load16(expected + at), TW_LOSSLESS_CLASS_SHIFT), TW_ENTROPY_FREQ_BITS);
            vec_t slot = vec_and(lanes[v], vec_set(TW_ENTROPY_FREQ_SUM - 1));
            vec_t entry = vec_gather(ecdq->decode_table, vec_or(of_class, slot));
            lanes[v] = take_symbol(lanes[v], entry);
            vec_store8(symbols + at, vec_shr(entry, 21));
        }
        if (!refill_all(lanes, &words, reader->words_begin)) {
            return 0;
        }
        /* Done here because it fills the time in which a group waits for the previous group's words. */
        DEQUANTIZE(symbols + i, expected + i, ecdq->halves + i, TW_ENTROPY_LANES, ecdq->values + i);
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    return 1;
}

static int ecdq_lanes_decode(tw_ecdq_t *ecdq, size_t n, tw_entropy_reader_t *reader)
{
    size_t whole = n - n % TW_ENTROPY_LANES;
    return tw_ecdq_decode_tail(ecdq, whole, n, reader) && decode_groups(ecdq, whole, reader);
}

#define LANES .dither = DITHER, .quantize = QUANTIZE, .encode = ecdq_lanes_encode, .decode = ecdq_lanes_decode
