/** A block's symbols, one vector of lanes at a time: the same steps as ref.c. entropy/vec_avx2.h or
 *  entropy/vec_avx512.h comes first. What is left after whole groups of 32 is ref.c's. */
#ifndef TW_QUANT_ECDQ_LANES_H
#define TW_QUANT_ECDQ_LANES_H

#include "quant/ecdq/loops.h"
#include "quant/entropy/lanes.h"

static void ecdq_lanes_encode(const uint64_t *table, const uint8_t *symbols, size_t n,
                              tw_entropy_writer_t *writer)
{
    vec_t lanes[VECTORS];
    uint16_t *words = writer->words;
    size_t whole = n - n % TW_ENTROPY_LANES;
    memcpy(lanes, writer->lanes, sizeof(lanes));
    for (size_t i = 0; i < whole; i += TW_ENTROPY_LANES) {
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            vec_t reciprocal, entry = vec_gather_pair(table, vec_load8(symbols + i + v * WIDTH), &reciprocal);
            lanes[v] = push_symbol(lanes[v], entry, reciprocal, &words);
        }
    }
    memcpy(writer->lanes, lanes, sizeof(lanes));
    writer->words = words;
    tw_ecdq_ref.encode(table, symbols + whole, n - whole, writer);
}

static int decode_groups(const uint32_t *table, const uint16_t *expected, size_t n,
                         tw_entropy_reader_t *reader, uint8_t *symbols)
{
    vec_t lanes[VECTORS];
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > 0;) {
        i -= TW_ENTROPY_LANES;
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; v++) {
            size_t at = i + v * WIDTH;
            vec_t of_class =
                vec_shl(vec_shr(vec_load16(expected + at), TW_LOSSLESS_CLASS_SHIFT), TW_ENTROPY_FREQ_BITS);
            vec_t slot = vec_and(lanes[v], vec_set(TW_ENTROPY_FREQ_SUM - 1));
            vec_t entry = vec_gather(table, vec_or(of_class, slot));
            lanes[v] = take_symbol(lanes[v], entry);
            vec_store8(symbols + at, vec_shr(entry, 21));
        }
        if (!refill_all(lanes, &words, reader->words_begin)) {
            return 0;
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    return 1;
}

static int ecdq_lanes_decode(const uint32_t *table, const uint16_t *expected, size_t n,
                             tw_entropy_reader_t *reader, uint8_t *symbols)
{
    size_t whole = n - n % TW_ENTROPY_LANES;
    return tw_ecdq_ref.decode(table, expected + whole, n - whole, reader, symbols + whole) &&
           decode_groups(table, expected, whole, reader, symbols);
}

#define LANES LOOPS, .encode = ecdq_lanes_encode, .decode = ecdq_lanes_decode

#endif
