/** The codec of dithered integers (ecdq): its format and backends. Private to the folder and its white-box
 *  tests.
 *
 *  An element is divided by its step, a random number between -1/2 and 1/2 is added, and the sum is rounded
 *  to an integer. The receiver subtracts the same random number (subtractive dither). So the error has a mean
 *  of 0 for any value, never exceeds half a step, and errors of several ranks average out. The integers are
 *  entropy-coded: 2.1 bits for Gaussian values, if the step is their standard deviation.
 *  Source: Ziv, "On universal quantization" (1985); Zamir, Feder, "On universal quantization by randomized
 *  uniform/lattice quantizers" (1992).
 *
 *  An element's step is the size expected from the scales of its row and column, times a constant of the
 *  row's class, times the codec's `step`. Scales and classes are computed and sent as in the lossless codec
 *  (quant/lossless). Scales are means of logarithms; the class's constant turns them into standard
 *  deviations, approximately. All four are kept as logarithms, in quarters of an octave. Their sum, shifted
 *  to a float's exponent, is the step.
 *
 *  Read value.h (one element), loops.h, ref.c (a block's lanes, the oracle), codec.c, decode.c, and
 *  last lanes.h (ref.c again, 8 or 16 lanes at a time).
 *
 *  Message, little-endian, with no padding but what is named here:
 *    header:  as the lossless codec's, with another magic. The checksum covers all that follows (plain), or
 *           all before the blocks (coded)
 *    plain:   type[n], if there are few elements, or if coding does not make them shorter
 *    coded:   u32 bytes before the blocks, from here on;  u64 key of the dither;  i8 step, in quarters of an
 *           octave;  u8 0;  the lossless codec's head of a message without tables and tails, for a window of
 *           0;  an entry for each block;  the blocks
 *    block of 65,536 elements of rows that are not all zeros (the last may be short): its entry is u32 words
 *           | escapes << 16, or RAW, and u32 checksum of its bytes. A RAW block is type[n]. Else: u8 mask of
 *           classes in it, u8 0;  for each class u8 first symbol, u8 number of symbols, u16[number]
 *           frequencies;  u16[words];  u32[32] lanes;  u16[escapes]
 *    symbols: integer + 15, for integers from -15 to 15. Other elements are escapes, listed in order: i16
 *           integer, or -32768 and the element in fp32, low half first (NaN, infinity, larger integers)
 *    dither:  for element i, counted over all blocks, with g = i / 128 and r = i % 128: word r / 32 of
 *           Philox4x32-10 for the key and the counter (16 g + i % 16, 0, 0, 0); half r / 16 % 2 of that word
 *           (0: the low half);  u = (half + 1/2) / 65536 - 1/2 */
#pragma once

#include "quant/lossless/value.h"
#include "quant/message_ops.h"

TW_C_BEGIN

#define TW_ECDQ_MAGIC 0xd7
#define TW_ECDQ_VERSION 1
#define TW_ECDQ_PLAIN 0
#define TW_ECDQ_CODED 1

#define TW_ECDQ_REACH 15 /**< integers from -15 to 15 have symbols */
#define TW_ECDQ_RAW (-32768)
#define TW_ECDQ_WIDE_MAX 32767 /**< listed integers are smaller than this */
#define TW_ECDQ_STEP_MIN (-8)  /**< in quarters of an octave: steps from 1/4 to 4 */
#define TW_ECDQ_STEP_MAX 8
#define TW_ECDQ_SYMBOLS (TW_LOSSLESS_CLASSES * TW_ENTROPY_SYMBOLS)
#define TW_ECDQ_COUNTERS 16 /**< counters that make the dither of a group */
#define TW_ECDQ_DITHER_GROUP (8 * TW_ECDQ_COUNTERS)
#define TW_ECDQ_TABLES_MAX (2 + TW_LOSSLESS_CLASSES * (2 + 2 * (TW_ENTROPY_SYMBOLS - 1)))

/** The part of a coded message before the lossless codec's head. */
typedef struct tw_ecdq_head {
    uint32_t bytes;
    uint32_t key[2];
    int8_t step;
    uint8_t zero;
} tw_ecdq_head_t;
#define TW_ECDQ_HEAD_BYTES 14

struct tw_ecdq;

/** A backend: loops over a block's elements, and the coder. Encoders' symbols are class << 5 | symbol. */
typedef struct tw_ecdq_backend {
    tw_backend_t is;
    /** Make the dither of n_groups groups, from `group` on. */
    void (*dither)(const uint32_t key[2], uint32_t group, size_t n_groups, uint16_t *halves);
    /** Make the integers and symbols of n elements. An element without an integer gets TW_ECDQ_RAW. */
    void (*quantize)(const float *values, const uint16_t *expected, const uint16_t *halves, size_t n,
                     int16_t *integers, uint8_t *symbols);
    /** Code a block's symbols in lanes, from the first to the last. */
    void (*encode)(const uint64_t *table, const uint8_t *symbols, size_t n, tw_entropy_writer_t *writer);
    /** Decode a block's n elements from the last to the first, into ecdq's symbols (without classes) and
     *  values. Values of escapes are wrong and replaced later. Returns 0 if words run out. */
    int (*decode)(struct tw_ecdq *ecdq, size_t n, tw_entropy_reader_t *reader);
} tw_ecdq_backend_t;

extern const tw_ecdq_backend_t tw_ecdq_ref;
#ifdef __x86_64__
extern const tw_ecdq_backend_t tw_ecdq_avx2, tw_ecdq_avx512;
#elif defined(__aarch64__)
extern const tw_ecdq_backend_t tw_ecdq_neon;
#endif

/** Like a backend's decode, for elements `first` to `end` - 1: those after the last whole group of 32. */
int tw_ecdq_decode_tail(struct tw_ecdq *ecdq, size_t first, size_t end, tw_entropy_reader_t *reader);

/** A codec. */
typedef struct tw_ecdq {
    const tw_ecdq_backend_t *backend;
    int step;
    tw_quant_lossless_t *scales; /**< the lossless codec: computes, sends and reads scales */
    uint64_t encode_table[TW_ECDQ_SYMBOLS];
    uint32_t decode_table[TW_LOSSLESS_CLASSES * TW_ENTROPY_FREQ_SUM];
    /* One block. SIMD code may write up to 32 elements past its end. */
    float values[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t expected[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t halves[TW_LOSSLESS_BLOCK_ELEMS + TW_ECDQ_DITHER_GROUP];
    int16_t integers[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint8_t symbols[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t words[TW_LOSSLESS_BLOCK_ELEMS + 32], escapes[3 * TW_LOSSLESS_BLOCK_ELEMS];
} tw_ecdq_t;

/* ---- decode.c ------------------------------------------------------------------------------------------ */

/** Turn the scales of all rows but zero rows into steps: add the class's constant and the codec's step. */
void tw_ecdq_move_rows(tw_lossless_shape_t *shape, int step);
/** Make the dither of a block's n elements, in ecdq->halves. */
void tw_ecdq_dither(tw_ecdq_t *ecdq, const uint32_t key[2], size_t block, size_t n);
tw_status_t tw_ecdq_decode(void *coder, const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                           const void *src, size_t src_bytes);

TW_C_END
