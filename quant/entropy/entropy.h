/** Entropy coding for the lossless delta, the lossless codec and ecdq. Private to quant.
 *
 *  32 interleaved rANS coders, called lanes (arXiv 1311.2540), code a block: element i is in lane i mod 32,
 *  so that vectors or a warp take 32 elements at a time. Encoding goes forward and writes 16-bit words, lane
 *  after lane within a group of 32. Decoding goes backward and takes words from the end. There are 32
 *  symbols. The last one is the escape; an escaped element's value is written elsewhere. A table has 1024
 *  slots; a symbol's frequency is the number of its slots. Symbols with frequency 0 are escaped.
 *
 *  vec_*.h define vector operations for each instruction set; lanes.h has a coder's steps in these
 *  operations. Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/arithmetic/float.h"
#include "quant/backends.h"

#include <string.h>

TW_C_BEGIN

#define TW_ENTROPY_LANES 32
#define TW_ENTROPY_LANES_BYTES (TW_ENTROPY_LANES * 4)
#define TW_ENTROPY_START 0x10000u /**< a lane's first state; between elements it is never less */
#define TW_ENTROPY_SYMBOLS 32
#define TW_ENTROPY_ESCAPE 31
#define TW_ENTROPY_FREQ_BITS 10
#define TW_ENTROPY_FREQ_SUM (1 << TW_ENTROPY_FREQ_BITS)
#define TW_ENTROPY_CHECK_FACTOR 0x9e3779b1u
#define TW_ENTROPY_RAW 0xffffffffu /**< `sizes` of a block that is sent raw */

/** A block's entry. All entries come before all blocks. */
typedef struct tw_entropy_entry {
    uint32_t sizes; /**< words | escapes << 16, or RAW */
    uint32_t check; /**< checksum: nothing else shows wrong raw bits */
} tw_entropy_entry_t;

#ifndef __cplusplus
_Static_assert(sizeof(tw_entropy_entry_t) == 8, "entries are part of the format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are written as they lie in memory");
#endif

/** The state of a block's encoder. An element takes at most one word and one escape. */
typedef struct tw_entropy_writer {
    uint32_t lanes[TW_ENTROPY_LANES];
    uint16_t *words, *escapes; /**< where the next ones go; SIMD code may write 16 words past the last */
    uint32_t check;            /**< checksum of the values so far, if the codec keeps one */
} tw_entropy_writer_t;

/** The state of a block's decoder, which goes backward. SIMD code may read 32 unused bytes after `words`. */
typedef struct tw_entropy_reader {
    uint32_t lanes[TW_ENTROPY_LANES];
    const uint8_t *words_begin, *words;     /**< bytes: a message may have an odd address */
    const uint8_t *escapes_begin, *escapes; /**< like `words`, points to the end of the next */
    uint32_t check;                         /**< checksum of the values so far, if the codec keeps one */
} tw_entropy_reader_t;

/** Whether all lanes are back in their first state, and no words or escapes are left. */
static inline int tw_entropy_came_back(const tw_entropy_reader_t *reader)
{
    uint32_t differ = 0;
    for (size_t lane = 0; lane < TW_ENTROPY_LANES; lane++) {
        differ |= reader->lanes[lane] ^ TW_ENTROPY_START;
    }
    return !differ && reader->words == reader->words_begin && reader->escapes == reader->escapes_begin;
}

/* ---- tables -------------------------------------------------------------------------------------------- */

/** Choose frequencies close to the shares of weights [SYMBOLS]; they sum to 1024. The escape and each symbol
 *  of the mask `present` get at least 1. Symbols that are not present must have weight 0, and get 0. */
TW_HD static inline void tw_entropy_freq_choose(const uint64_t *weights, uint32_t present, uint16_t *freq)
{
    uint64_t total = 0;
    uint32_t largest = 0;
    int32_t left = TW_ENTROPY_FREQ_SUM;
    present |= 1u << TW_ENTROPY_ESCAPE;
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        total += weights[s];
    }
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        uint64_t share = total ? (weights[s] * TW_ENTROPY_FREQ_SUM + total / 2) / total : 0;
        freq[s] = (uint16_t)(share || !(present >> s & 1) ? share : 1);
        left -= freq[s];
        largest = freq[s] > freq[largest] ? s : largest;
    }
    /* Each share is off by 1 at most, so |left| is 32 at most. The largest has 1/32 of the sum or more. */
    freq[largest] = (uint16_t)(freq[largest] + left);
}

/** Make an encoder's table [SYMBOLS]: freq | first slot << 11 | is escape << 31 | (2^32 - 1) / freq << 32. */
TW_HD static inline void tw_entropy_encode_table(const uint16_t *freq, uint64_t *table)
{
    uint32_t escape = freq[TW_ENTROPY_ESCAPE], first_slot = 0;
    uint32_t escape_entry = escape | (TW_ENTROPY_FREQ_SUM - escape) << 11 | 1u << 31;
    for (size_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        int escaped = s == TW_ENTROPY_ESCAPE || !freq[s];
        uint32_t reciprocal = 0xffffffffu / (escaped ? escape : freq[s]);
        table[s] = (escaped ? escape_entry : freq[s] | first_slot << 11) | (uint64_t)reciprocal << 32;
        first_slot += freq[s];
    }
}

/** Make a decoder's table [FREQ_SUM]: freq | slot within the symbol << 11 | symbol << 21. */
TW_HD static inline void tw_entropy_decode_table(const uint16_t *freq, uint32_t *table)
{
    for (uint32_t s = 0; s < TW_ENTROPY_SYMBOLS; s++) {
        for (uint32_t slot = 0; slot < freq[s]; slot++) {
            *table++ = freq[s] | slot << 11 | s << 21;
        }
    }
}

/* ---- checksums ----------------------------------------------------------------------------------------- */

/** The part of a checksum that the 16-bit value with index i adds. */
TW_HD static inline uint32_t tw_entropy_check(size_t i, uint16_t value)
{
    uint32_t term = value + ((uint32_t)i + 1) * TW_ENTROPY_CHECK_FACTOR;
    return term * term;
}

/* ---- one element, one lane ----------------------------------------------------------------------------- */

/** Put a symbol, by its entry of the encoder's table, into a lane that has room for it. */
TW_HD static inline uint32_t tw_entropy_put(uint32_t lane, uint64_t entry)
{
    uint32_t freq = (uint32_t)entry & 0x7ff, first_slot = (uint32_t)entry >> 11 & 0x3ff;
    /* The reciprocal is rounded down, so the quotient may be one too small. */
#ifdef __CUDA_ARCH__
    uint32_t quotient = __umulhi(lane, (uint32_t)(entry >> 32));
#else
    uint32_t quotient = (uint32_t)((uint64_t)lane * (entry >> 32) >> 32);
#endif
    uint32_t rest = lane - quotient * freq;
    uint32_t more = rest >= freq;
    return ((quotient + more) << TW_ENTROPY_FREQ_BITS) + first_slot + rest - more * freq;
}

/** Put raw bits (at most 6) and a symbol into a lane. A lane that would exceed 32 bits first gives a word. */
static inline uint32_t tw_entropy_push(uint32_t lane, uint64_t entry, uint32_t raw_bits, uint32_t raw,
                                       uint16_t **words)
{
    uint32_t freq = (uint32_t)entry & 0x7ff;
    uint32_t full = lane >> (32 - TW_ENTROPY_FREQ_BITS - raw_bits) >= freq;
    **words = (uint16_t)lane; /* no branch: it would be unpredictable */
    *words += full;
    lane = (lane >> 16 * full) << raw_bits | raw;
    return tw_entropy_put(lane, entry);
}

/** Like tw_entropy_push, with raw bits (at most 15) only. */
static inline uint32_t tw_entropy_push_raw(uint32_t lane, uint32_t bits, uint32_t raw, uint16_t **words)
{
    uint32_t full = (uint64_t)lane >> (32 - bits) != 0;
    **words = (uint16_t)lane;
    *words += full;
    return (lane >> 16 * full) << bits | raw;
}

/** If a lane is below its least state, give it the next word. Returns 0 if there is none. */
static inline int tw_entropy_refill(uint32_t *lane, const uint8_t **words, const uint8_t *begin)
{
    uint32_t short_of = *lane < TW_ENTROPY_START; /* no branch */
    uint16_t word;
    if ((size_t)(*words - begin) < 2 * short_of) {
        return 0;
    }
    *words -= 2 * short_of;
    memcpy(&word, *words, sizeof(word));
    *lane = *lane << 16 * short_of | (word & (0u - short_of));
    return 1;
}

/** Read the u16 before *at, and move *at to it. Returns 0 at the beginning. */
static inline int tw_entropy_pop(const uint8_t **at, const uint8_t *begin, uint16_t *value)
{
    if (*at == begin) {
        return 0;
    }
    *at -= sizeof(*value);
    memcpy(value, *at, sizeof(*value));
    return 1;
}

TW_C_END
