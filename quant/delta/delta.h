/** The codec of the lossless delta: its format and backends. Private to the folder and its white-box tests.
 *
 *  Read value.h (one element), ref.c (one block, the oracle), then model.h and model.c (the coder's tables),
 *  codec.c (create and destroy), walk.h (the order of elements), encode.c and decode.c (messages), and last
 *  lanes.h (ref.c again, 8 or 16 elements at a time) and narrow.c (elements of 8 bits).
 *
 *  Message, little-endian, without padding (n elements; the segments' elements one after the other):
 *    u8 magic, u8 version, u8 flags, u8 zero, u32 bytes of the message
 *    plain (flag CODED not set):  u32 a checksum, as a block's but over the whole message;  u16[n] new values
 *    coded:  u32 n;  u8 base;  with the second context (states) u8[32] factors;  contexts / 2 bytes: a table
 *            for each context, the even one in the low nibble;  16 tables;  the blocks' entries;  the blocks
 *    table:  u8 number of frequencies (at most 31); each frequency 7 bits a byte, low first, the high bit set
 *            on all bytes but the last. The escape's frequency is 1024 - their sum, at least 1
 *    block of 65,536 elements (the last may be short): its entry is u32 words | escapes << 16, or RAW, and
 *            u32 a checksum of its new values: the sum of (value + (index in the block + 1) * CHECK_FACTOR)^2
 *            coded: u16[words], u32[32] lanes, u16[escapes];  RAW: u16[elements] new values
 *
 *  An element's change d is its distance in the order of bf16 values. The previous change p predicts it as
 *  |p| * factor / 128 in p's direction; the rest is zigzagged into z. An element's context is the old value's
 *  exponent, clamped to 32 exponents from `base` on, and the class of |p|: 0, 1, 2 to 3, 4 or more. A context
 *  uses one of 16 tables, one per octave of mean z. A table has k raw low bits; the symbol is z >> k, or 31,
 *  the escape: then the new value is among the escapes. Symbols and raw bits go into 32 rANS coders, called
 *  lanes (arXiv 1311.2540), element i into lane i mod 32, so that a warp can decode a block.
 *
 *  Why so: bits per parameter of a GPT (0.82 M parameters, AdamW, warm-up to 6e-4 at step 100, cosine to step
 *  600), at steps 20 / 100 / 300 / 600, one message:
 *    2.88 / 3.83 / 3.18 / 1.26   without the second context; the entropy given exponent and tensor is 2.72 /
 *                                3.65 / 3.05
 *    2.01 / 3.27 / 2.66 / 1.15   with it; the entropy given exponent and state is 1.76 / 3.00 / 2.42
 *  Not better: statistics for each tensor (0.2 % less entropy, and 32 bytes a tensor), tables from a fixed
 *  geometric family (4 % more bits), 32 half-octave tables (1 % less, but the decoder's no longer fit the
 *  first cache), 8 sizes of the previous change (0.4 % less), one factor for all exponents (7 % more at step
 *  600), an average of several changes (worse from step 100 on), blocks of 32,768 (0.016 bits more: the
 *  lanes). The previous message's tables would save 300 bytes and make messages depend on each other.
 *
 *  Message of 8 bits: u8 magic, u8 version, u16 zero, u32 bytes of the message, u32 n, u32 a checksum of the
 *  new elements; then chunks of 262,144 elements (the last may be short). A chunk is
 *    a message as above, of changes. An element's old value is (magnitude / 4 + 2) * 128. Its new value is
 *    the old value plus the element's change, in an order where -0 is between 0 and the least negative
 *    element. To the codec that is a bf16 whose exponent is the upper 5 bits of the element's magnitude
 *    (e5m2's whole exponent, or e4m3's with a bit of its mantissa), and a change in units in the last place;
 *    or RANKED, u8[32] a list of the 32 values that the upper 5 bits of magnitudes can have, the most
 *    frequent ones first, and a message as above of the elements themselves: old values are 256; z has the
 *    upper 5 bits' place in that list, then the magnitude's lower 2 bits, then the sign;
 *    or RAW, u8[elements] the new elements.
 *
 *  Why so: the weights of //bench:weights after a step at 1e-5 / 1e-4 / 6e-4 take 0.07 / 0.29 / 0.88 bits in
 *  e4m3 and 0.05 / 0.19 / 0.58 in e5m2; the entropy given those 5 bits is 0.05 / 0.26 / 0.84 and 0.03 / 0.16
 *  / 0.55. Without that context it would be 0.09 / 0.40 / 1.18 in e4m3. A second context would save 1 % at
 *  1e-4 and 5 % at 6e-4, and cost as much memory as the weights. RANKED, the weights take 6.64 and 5.66 bits;
 *  the entropy is 6.58 and 5.59.
 */
#pragma once

#include "quant/entropy/entropy.h"
#include "quant/quant.h"

TW_C_BEGIN

#define TW_DELTA_MAGIC 0xd5
#define TW_DELTA_VERSION 3
#define TW_DELTA_FLAG_CODED 1
#define TW_DELTA_FLAG_SECOND 2 /**< 1: coded with the second context, the states */

#define TW_DELTA8_MAGIC 0xd8
#define TW_DELTA8_VERSION 1
#define TW_DELTA8_RAW 0    /**< first byte of a raw chunk; a chunk of changes begins with MAGIC */
#define TW_DELTA8_RANKED 1 /**< first byte of a chunk of the elements themselves */
#define TW_DELTA8_CLASSES 32

#define TW_DELTA_BLOCK_ELEMS 65536
#define TW_DELTA8_CHUNK_ELEMS ((size_t)4 * TW_DELTA_BLOCK_ELEMS)
#define TW_DELTA_ELEMS_MAX ((size_t)1 << 30)
/** Fewest elements of a coded message. In a shorter one the model would take more bytes than coding saves. */
#define TW_DELTA_CODED_MIN 1024

#define TW_DELTA_EXPONENTS 32
#define TW_DELTA_SIZES 4 /**< number of classes of the previous change's size */
#define TW_DELTA_CONTEXTS (TW_DELTA_EXPONENTS * TW_DELTA_SIZES)
#define TW_DELTA_TABLES 16
/** Most raw bits of a symbol. With 6, a lane is renormalised with one 16-bit word at most. */
#define TW_DELTA_RAW_BITS_MAX 6

typedef struct tw_delta_header {
    uint8_t magic, version, flags, zero;
    uint32_t bytes;
} tw_delta_header_t;

typedef struct tw_delta8_header {
    uint8_t magic, version;
    uint16_t zero;
    uint32_t bytes, n_elems, check;
} tw_delta8_header_t;

#ifndef __cplusplus
_Static_assert(sizeof(tw_delta8_header_t) == 16, "the header is part of the format");
_Static_assert(sizeof(tw_delta_header_t) == 8, "the header is part of the format");
_Static_assert(TW_DELTA_RAW_BITS_MAX + TW_ENTROPY_FREQ_BITS <= 16, "one word renormalises a lane");
#endif

/** The part of a model that is sent in messages. */
typedef struct tw_delta_stats {
    uint8_t base;                       /**< the lowest of the 32 exponents */
    uint8_t factor[TW_DELTA_EXPONENTS]; /**< factors of the prediction, in 1/128; 0 without states */
    uint8_t table[TW_DELTA_CONTEXTS];   /**< index of the table, by context: exponent * SIZES + size */
    /** each table sums to FREQ_SUM; symbols with frequency 0 are escaped */
    uint16_t freq[TW_DELTA_TABLES][TW_ENTROPY_SYMBOLS];
} tw_delta_stats_t;

/** The coders' look-up tables, made from the statistics. */
typedef struct tw_delta_model {
    uint32_t base;
    /** by exponent: indices of its contexts' tables, 4 bits each, | factor << 16 */
    uint32_t rows[TW_DELTA_EXPONENTS];
    /** freq | first slot << 11 | is escape << 31; in the upper half (2^32 - 1) / freq */
    uint64_t encode[TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS];
    /** For the portable coder: factor | raw bits << 8 | table * SYMBOLS << 16. */
    uint32_t contexts[TW_DELTA_CONTEXTS];
    uint32_t decode[TW_DELTA_TABLES * TW_ENTROPY_FREQ_SUM]; /**< freq | slot in symbol << 11 | symbol << 21 */
} tw_delta_model_t;

/** The most elements in the sample for the statistics. */
#define TW_DELTA_SAMPLE_MAX 32768
typedef struct tw_delta_sample {
    size_t n;
    uint16_t old_values[TW_DELTA_SAMPLE_MAX], new_values[TW_DELTA_SAMPLE_MAX];
    uint8_t states[TW_DELTA_SAMPLE_MAX]; /**< zeros without the second context */
    /* Scratch for choosing the statistics. */
    uint8_t contexts[TW_DELTA_SAMPLE_MAX];
    uint16_t z[TW_DELTA_SAMPLE_MAX];
} tw_delta_sample_t;

/** A run of elements; state is NULL without the second context. */
typedef struct tw_delta_run {
    const uint16_t *old_values;
    uint16_t *new_values; /**< read to encode, written to decode; may be old_values */
    uint8_t *state;
    size_t n;
} tw_delta_run_t;

/** A backend. `run` is a block. A call codes its elements from `first`, a multiple of 32, to the end. */
typedef struct tw_delta_backend {
    tw_backend_t is;
    void (*encode)(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                   tw_entropy_writer_t *writer);
    /** Returns 0 if words or escapes run out. */
    int (*decode)(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first,
                  tw_entropy_reader_t *reader);
} tw_delta_backend_t;

extern const tw_delta_backend_t tw_delta_ref;
#ifdef __x86_64__
extern const tw_delta_backend_t tw_delta_avx2, tw_delta_avx512;
#elif defined(__aarch64__)
extern const tw_delta_backend_t tw_delta_neon;
#endif

/** Check a call's segments, sum up their elements, and set *second if they have states. TW_ERR_INVALID. */
tw_status_t tw_delta_check_call(const char *operation, const tw_quant_delta_segment_t *segments,
                                size_t n_segments, int encoding, size_t *n_elems, int *second);

/** Choose factors, contexts and tables for a sample of at least one element. */
void tw_delta_stats_choose(tw_delta_sample_t *sample, int second, tw_delta_stats_t *stats);
/** Write the statistics to dst, STATS_BYTES_MAX at most. Returns their size. */
size_t tw_delta_stats_write(const tw_delta_stats_t *stats, int second, uint8_t *dst);
/** Read the statistics from at most `bytes` untrusted bytes. Returns how many bytes they took, or 0 (without
 *  a log line) if they are invalid. */
size_t tw_delta_stats_read(tw_delta_stats_t *stats, int second, const uint8_t *src, size_t bytes);
#define TW_DELTA_STATS_BYTES_MAX \
    (1 + TW_DELTA_EXPONENTS + TW_DELTA_CONTEXTS / 2 + TW_DELTA_TABLES * (1 + 2 * (TW_ENTROPY_SYMBOLS - 1)))
/** Make the model's tables for encoding, or for decoding. */
void tw_delta_model_encoder(const tw_delta_stats_t *stats, tw_delta_model_t *model);
void tw_delta_model_decoder(const tw_delta_stats_t *stats, tw_delta_model_t *model);

TW_C_END
