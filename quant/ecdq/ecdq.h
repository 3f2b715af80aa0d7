/** The codec of dithered integers, inside: what a message is made of. Private to the room and its white-box
 *  tests.
 *
 *  An element is divided by its step and rounded, after a random number between -1/2 and 1/2 was added that
 *  the receiver subtracts again (subtractive dither). So the error has a mean of 0 whatever the value, never
 *  exceeds half a step, and errors of several ranks average out. The integers are entropy-coded: of a
 *  Gaussian with a step of its standard deviation they take 2.1 bits.
 *  Source: Ziv, "On universal quantization" (1985); Zamir, Feder, "On universal quantization by randomized
 *  uniform/lattice quantizers" (1992).
 *
 *  An element's step is what its row and column are expected to hold, times a constant of the row's class,
 *  times the codec's `step`. Scales of rows and columns, and classes, are the lossless codec's
 *  (quant/lossless), found and sent as there; they are means of logarithms, and the class's constant makes
 *  standard deviations of them, about. All these are quarters of an octave, so that a sum of them, moved to
 *  the place of a float's exponent, is the step.
 *
 *  Read value.h (one element), loops.h, ref.c (a block's lanes, the oracle), codec.c, decode.c, and
 *  last lanes.h (ref.c again, 8 or 16 lanes at a time).
 *
 *  Message, little-endian, without padding but for what is named:
 *    header:  as the lossless codec's, with another magic. The checksum is of all that follows (plain), or of
 *           what is before the blocks
 *    plain:   type[n]: few elements, or such that do not get shorter
 *    coded:   u32 bytes before the blocks, from here on;  u64 key of the dither;  i8 step, in quarters of an
 *           octave;  u8 0;  the lossless codec's head of a message without tables and tails, for a window of
 *           0;  an entry for each block;  the blocks
 *    block of 65,536 elements of rows that are not all zeros (the last may be short): entry u32 words |
 *           escapes << 16, or RAW, and u32 checksum of its bytes;  RAW: type[n], and nothing else;  u8 mask
 *           of classes that it has, u8 0;  of each u8 first symbol, u8 number of symbols, u16[number]
 *           frequencies;  u16[words];  u32[32] lanes;  u16[escapes]
 *    symbols: integer + 15, of integers from -15 to 15. An escape is listed, in order: i16 integer, or
 *           -32768 and the element in fp32 (NaN, infinity, what is out of reach), low half first
 *    dither:  of element i, counted over all blocks, with g = i / 128 and r = i % 128: half r / 16 % 2 (0:
 *           the low one) of word r / 32 of Philox4x32-10 for the key and the counter (16 g + i % 16, 0, 0,
 *           0);  u = (half + 1/2) / 65536 - 1/2 */
#pragma once

#include "quant/lossless/value.h"
#include "quant/message_ops.h"

TW_C_BEGIN

#define TW_ECDQ_MAGIC 0xd7
#define TW_ECDQ_VERSION 1
#define TW_ECDQ_PLAIN 0
#define TW_ECDQ_CODED 1

#define TW_ECDQ_REACH 15 /**< integers with symbols: -15 to 15 */
#define TW_ECDQ_RAW (-32768)
#define TW_ECDQ_WIDE_MAX 32767 /**< listed integers are smaller than this */
#define TW_ECDQ_STEP_MIN (-8)  /**< in quarters of an octave: steps from 1/4 to 4 */
#define TW_ECDQ_STEP_MAX 8
#define TW_ECDQ_SYMBOLS (TW_LOSSLESS_CLASSES * TW_ENTROPY_SYMBOLS)
#define TW_ECDQ_COUNTERS 16 /**< counters that make the dither of a group */
#define TW_ECDQ_DITHER_GROUP (8 * TW_ECDQ_COUNTERS)
#define TW_ECDQ_TABLES_MAX (2 + TW_LOSSLESS_CLASSES * (2 + 2 * (TW_ENTROPY_SYMBOLS - 1)))

/** What is before the lossless codec's head. */
typedef struct tw_ecdq_head {
    uint32_t bytes;
    uint32_t key[2];
    int8_t step;
    uint8_t zero;
} tw_ecdq_head_t;
#define TW_ECDQ_HEAD_BYTES 14

struct tw_ecdq;

/** A backend: loops over a block's elements, and the coder. An encoder's symbols are class << 5 | symbol. */
typedef struct tw_ecdq_backend {
    tw_backend_t is;
    /** Make the dither of whole groups, from this one on. */
    void (*dither)(const uint32_t key[2], uint32_t group, size_t n_groups, uint16_t *halves);
    /** Make the integers of n elements, TW_ECDQ_RAW for those that have none, and their symbols. */
    void (*quantize)(const float *values, const uint16_t *expected, const uint16_t *halves, size_t n,
                     int16_t *integers, uint8_t *symbols);
    /** Code a block's symbols into lanes, forward. */
    void (*encode)(const uint64_t *table, const uint8_t *symbols, size_t n, tw_entropy_writer_t *writer);
    /** Decode a block's n elements, backward: the codec's symbols, without classes, and values, which are
     *  right but for escapes. 0 when words run out. */
    int (*decode)(struct tw_ecdq *ecdq, size_t n, tw_entropy_reader_t *reader);
} tw_ecdq_backend_t;

extern const tw_ecdq_backend_t tw_ecdq_ref;
#ifdef __x86_64__
extern const tw_ecdq_backend_t tw_ecdq_avx2, tw_ecdq_avx512;
#elif defined(__aarch64__)
extern const tw_ecdq_backend_t tw_ecdq_neon;
#endif

/** Decode elements from `first` to before `end`, as a backend's decode does: those of no whole group. */
int tw_ecdq_decode_tail(struct tw_ecdq *ecdq, size_t first, size_t end, tw_entropy_reader_t *reader);

/** A codec. */
typedef struct tw_ecdq {
    const tw_ecdq_backend_t *backend;
    int step;
    tw_quant_lossless_t *scales; /**< the lossless codec, which finds, sends and reads scales */
    uint64_t encode_table[TW_ECDQ_SYMBOLS];
    uint32_t decode_table[TW_LOSSLESS_CLASSES * TW_ENTROPY_FREQ_SUM];
    /* A block. Vectors may write up to 32 elements more. */
    float values[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t expected[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t halves[TW_LOSSLESS_BLOCK_ELEMS + TW_ECDQ_DITHER_GROUP];
    int16_t integers[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint8_t symbols[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t words[TW_LOSSLESS_BLOCK_ELEMS + 32], escapes[3 * TW_LOSSLESS_BLOCK_ELEMS];
} tw_ecdq_t;

/* ---- decode.c ------------------------------------------------------------------------------------------ */

/** Turn the scales of all rows that are not zeros into steps, for a codec's step. */
void tw_ecdq_move_rows(tw_lossless_shape_t *shape, int step);
/** Make the dither of a message's block. */
void tw_ecdq_dither(tw_ecdq_t *ecdq, const uint32_t key[2], size_t block, size_t n);
tw_status_t tw_ecdq_decode(void *coder, const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                           const void *src, size_t src_bytes);

TW_C_END
