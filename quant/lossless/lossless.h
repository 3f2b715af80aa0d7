/** The lossless codec of floating-point tensors: its format and backends. Private to the folder and its
 *  white-box tests.
 *
 *  Read value.h (one element), ref.c (one block, the oracle), then scales.c (what an encoder finds in a
 *  tensor), model.h and prepare.c (the coder's tables), head.c (how scales and tables are sent), walk.c (the
 *  order of elements), codec.c (the public calls), and last lanes.h and symbols.h (ref.c again, 8 or 16
 *  elements at a time). tables.h has constants; tails.h chooses how an encoder sends tails.
 *
 *  An element has a head of 16 bits, like a bf16 (sign, 8 bits of exponent, 7 of mantissa), and a tail:
 *  nothing for bf16, the low 16 bits of fp32, the low 3 bits of fp16 (whose exponent has 5 bits). Its
 *  magnitude is (head & 0x7fff) >> 5: a logarithm in quarters of an octave, except that it is linear between
 *  powers of two.
 *
 *  A message is a list of pieces. A piece is a matrix, or a part of one that begins and ends anywhere. Each
 *  row has a scale and a class, which tells how far its elements are from their expectation; rows of zeros
 *  have neither. A column may have a scale. An element's expectation is its row's scale plus its column's.
 *  The coder codes 9 bits of a head relative to the expectation: the exponent and the first bit of the
 *  mantissa, that is half octaves. A "head of 9 bits" is only these. "The 7 bits" are the head's other bits;
 *  they are noise and sent as they are. So are tails, except those of fp32 numbers that had fewer bits once,
 *  or are sums of such numbers. Of these the number of zeros at the end is coded, under the head's octave,
 *  and the bits above the lowest one are sent as they are.
 *
 *  Message, little-endian, with no padding but what is named here:
 *    header:  u8 magic, u8 version, u8 type, u8 form;  u32 bytes of the message;  u32 n elements;  u32
 *           checksum of all that follows (plain), or of what is before the blocks (coded): the sum of (word +
 *           (index + 1) * CHECK_FACTOR)^2 over words of 16 bits, the last one filled with a zero byte
 *    plain:   type[n]
 *    coded:   u32 bytes before the blocks, from here on;  i8 window, in octaves;  u8 mask of the classes that
 *           have their own tables;  number of pieces, at most n / 512 + 1;  the pieces;  for each piece with
 *           the flag ZEROS a bit for each row (1: all zeros), in whole bytes;  the tables of the mask's
 *           classes; the lists of all pieces, as bits, the last byte filled with zeros: for each piece, as
 *           its flags say, scales of its rows that are not all zeros, their classes, scales of its columns;
 *           a zero byte if the number of bytes is odd;  an entry for each block;  the blocks
 *    number:  7 bits a byte, low first, the high bit set on all but the last; below 2^32
 *    piece:   u8 flags | class << 5;  number of elements;  number of elements in a row;  with the flag FIRST
 *           the number of the first element's index in its row, not 0 (without the flag it is 0);  i16 scale.
 *           Class and scale are those of all rows if rows do not have their own
 *    list:    of values minus a centre: the piece's scale for scales of rows, the piece's class for classes,
 *           0 for scales of columns. Only pieces of 16 rows or more have scales of columns; these are first
 *           divided by 1 << shift, which is 0 for 48 whole rows or more, 1 for 20 or more, else 2. The values
 *           0, -1, 1, -2 ... are sent as x = 0, 1, 2, 3 ... Bits, the lowest of a byte first: 4 bits k, at
 *           most 11; then for each 32 values (the last ones may be fewer): x >> k ones and a zero for each,
 *           or 12 ones if x >> k is 12 or more;  the low k bits of each;  the 13 bits of x >> k of each with
 *           12 ones
 *    table:   u8[63] densities, u8 zeros, u8 escapes: see model.h. Classes that are not in the mask have the
 *           tables there. After the tables, if TAILED: u8 number of tables of tails, at most 16;  u8[17]
 *           densities for each of them
 *    block of 65,536 elements of rows that are not all zeros (the last may be short): its entry is u32 words
 *           | escapes << 16, or RAW;  u32 checksum of its bytes, as above;  if TAILED u32 form of its tails.
 *           The block: the 7 bits, 28 bytes for 32 elements, without their first 64 bytes;  u16[words];
 *           u32[32] lanes;  u16[escapes]: first 16 bits for tails, then 9 bits for heads;  the tails.
 *           If RAW: u16[elements] heads;  the tails
 *    lanes:   lane i begins as START + bytes 2 i (low) and 2 i + 1 of those first 64 bytes, or 0 past their
 *           end
 *    7 bits:  byte k has the bits of element k, and as its high bit one of elements 28 to 31: bit k mod 7 of
 *           element 28 + k / 7. A last group of n < 32 has min(n, 28) bytes. If a block's number of these
 *           bytes is odd, a zero byte follows
 *    tails:   fp32: u16 each. fp16: for 32 elements u32[3], word k has bit k of each
 *           TAILED (only fp32): RAW: u16 each; or the number of tails that are not 0, at most one in LISTED:
 *           u16 index, u16 tail of each of them; or CODED, only if heads are: in the lanes, before all heads,
 *           for each 32 elements the bits above their lowest ones, then symbols: the number of zeros at the
 *           end, or an escape. Of m tables, table m - 16 + min(15, (the head's symbol + 1) / 2) is used, or
 *           the first
 *
 *  Why so: bits per element, for gradients of a GPT of 1.0 M parameters (AdamW, 600 steps), in bf16, in
 *  messages of 49,152 elements, 32 rows of each of four matrices:
 *    10.44 as above: scales and classes take 0.08 of it, lanes 0.024
 *    10.53 with each class's own table, lists in which 32 values have as many bits as the widest of them
 *        needs, lanes that begin empty, columns in quarters of an octave
 *    0.2 to 0.3 more with one class for all rows; 0.5 to 1 more without scales of columns
 *  Not better: a table for each phase; densities without widths (0.02 more each); scales of rows in half
 *  octaves (0.01 more); scales of columns that ignore elements far below the others (0.016 less, but bad if
 *  columns differ by more than two octaves).
 */
#pragma once

#include "quant/entropy/entropy.h"
#include "quant/quant.h"

TW_C_BEGIN

#define TW_LOSSLESS_MAGIC 0xd6
#define TW_LOSSLESS_VERSION 2
#define TW_LOSSLESS_PLAIN 0
#define TW_LOSSLESS_CODED 1
#define TW_LOSSLESS_TAILED 2 /**< coded fp32; blocks' entries tell how their tails are sent */
#define TW_LOSSLESS_ELEMS_MAX ((size_t)1 << 29)

#define TW_LOSSLESS_HEAD_BYTES 6
#define TW_LOSSLESS_BLOCK_ELEMS 65536
#define TW_LOSSLESS_CLASSES 8
#define TW_LOSSLESS_PHASES 4
#define TW_LOSSLESS_CONTEXTS (TW_LOSSLESS_CLASSES * TW_LOSSLESS_PHASES)
#define TW_LOSSLESS_BINS 63
#define TW_LOSSLESS_TABLE_BYTES (TW_LOSSLESS_BINS + 2)
#define TW_LOSSLESS_ROW_MIN 32     /**< fewest elements of a row */
#define TW_LOSSLESS_MATRIX_ROWS 16 /**< fewest whole rows of a piece whose columns have scales */
#define TW_LOSSLESS_CODED_MIN 256  /**< fewest elements of a message that is coded */
#define TW_LOSSLESS_SCALE_MAX 2047
#define TW_LOSSLESS_GROUP 32
#define TW_LOSSLESS_ZEROS_BIN 256
#define TW_LOSSLESS_SAMPLE_BINS 264
#define TW_LOSSLESS_RAW_BYTES 28 /**< bytes of the 7 bits of 32 elements */
#define TW_LOSSLESS_TAIL_CONTEXTS 16
#define TW_LOSSLESS_TAIL_SYMBOLS 17        /**< 0 to 16 zeros at the end of a tail */
#define TW_LOSSLESS_TAIL_OCTAVES 64        /**< octaves with their own counts in a sample */
#define TW_LOSSLESS_LISTED 128             /**< tails may be listed if at most one in 128 is not 0 */
#define TW_LOSSLESS_TAILS_CODED 0xfffffffe /**< value of an entry's `tails`: coded in lanes */
/** value of an entry's `tails`: sent as they are. Smaller values are the number of listed tails */
#define TW_LOSSLESS_TAILS_RAW 0xffffffff
/* The first elements of a block, in whole groups, that may have their 7 bits in lanes. */
#define TW_LOSSLESS_FIRST_ELEMS ((size_t)96)
#define TW_LOSSLESS_FIRST_BYTES (TW_LOSSLESS_FIRST_ELEMS / 32 * TW_LOSSLESS_RAW_BYTES)

/* A row's value for the coder: its scale + BIAS, and its class. BIAS keeps the sum with a column's scale from
 * being negative. An element's expectation has the same form. */
#define TW_LOSSLESS_BIAS 4096
#define TW_LOSSLESS_SCALE_MASK 0x1fff
#define TW_LOSSLESS_CLASS_SHIFT 13
#define TW_LOSSLESS_DEAD 0xffff /**< value of a row that is all zeros */

typedef struct tw_lossless_header {
    uint8_t magic, version, type, form;
    uint32_t bytes, n_elems, check;
} tw_lossless_header_t;

typedef struct tw_lossless_head {
    uint32_t bytes;
    int8_t window; /**< the window, in octaves */
    uint8_t own;   /**< mask of the classes whose own tables are sent */
} tw_lossless_head_t;

#define TW_LOSSLESS_FLAG_SCALES 1  /**< rows' scales are sent */
#define TW_LOSSLESS_FLAG_CLASSES 2 /**< rows' classes are sent */
#define TW_LOSSLESS_FLAG_COLUMNS 4
#define TW_LOSSLESS_FLAG_ZEROS 8  /**< some rows are all zeros */
#define TW_LOSSLESS_FLAG_FIRST 16 /**< the piece does not begin at a row's first element */
#define TW_LOSSLESS_FLAGS 31
#define TW_LOSSLESS_FLAG_BITS 5

typedef struct tw_lossless_piece {
    uint32_t n_elems, row_elems, first;
    int16_t scale;
    uint8_t row_class, flags;
} tw_lossless_piece_t;

/** A block's entry. `tails` is only sent if the message is TAILED. */
typedef struct tw_lossless_entry {
    uint32_t sizes, check, tails;
} tw_lossless_entry_t;

#ifndef __cplusplus
_Static_assert(sizeof(tw_lossless_header_t) == TW_QUANT_LOSSLESS_HEADER_BYTES, "part of the format");
#endif

/** A class's table, as it is sent. */
typedef struct tw_lossless_table {
    uint8_t density[TW_LOSSLESS_BINS], zeros, escapes;
} tw_lossless_table_t;

/** A table of tails, as it is sent. */
typedef struct tw_lossless_tail_table {
    uint8_t density[TW_LOSSLESS_TAIL_SYMBOLS];
} tw_lossless_tail_table_t;

/** How a message's tails are sent. */
typedef struct tw_lossless_tails {
    int tailed;        /**< 0: all tails are sent as they are; entries have no `tails` */
    uint32_t n_tables; /**< 0: none are coded */
    tw_lossless_tail_table_t tables[TW_LOSSLESS_TAIL_CONTEXTS];
} tw_lossless_tails_t;

/** The tables from which a model was made. If a class's table is unchanged, its model is not made again. */
typedef struct tw_lossless_made {
    uint8_t classes; /**< mask of the classes that have a model */
    tw_lossless_table_t of[TW_LOSSLESS_CLASSES];
} tw_lossless_made_t;

/** The coders' look-up tables. Zeroed at first. A message reads only the entries of its classes. */
typedef struct tw_lossless_model {
    tw_lossless_made_t encoder, decoder;
    uint64_t encode[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS];
    uint32_t decode[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_FREQ_SUM];
    /** contexts of tails 0 to tail_first use the first table */
    uint32_t tail_first;
    uint64_t encode_tails[TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_SYMBOLS];
    uint32_t decode_tails[TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_FREQ_SUM];
} tw_lossless_model_t;

/** All pieces of a message, all their rows and all their columns. Its memory grows as needed. */
typedef struct tw_lossless_shape {
    tw_lossless_piece_t *pieces; /**< [n_pieces] */
    uint16_t *rows;              /**< [n_rows], scale + BIAS | class << CLASS_SHIFT, or DEAD */
    int16_t *columns;            /**< [n_columns] scales, only of pieces with the flag COLUMNS */
    size_t n_pieces, n_rows, n_columns;
    size_t n_live; /**< elements of rows that are not DEAD */
    size_t pieces_room, rows_room, columns_room;
} tw_lossless_shape_t;

/** Consecutive elements of one row. */
typedef struct tw_lossless_run {
    const uint8_t *data; /**< address of the first one; NULL if the walk has no segments */
    size_t n;
    size_t row;             /**< index in `rows` */
    uint16_t value;         /**< the row's entry in `rows` */
    const int16_t *columns; /**< scales of these elements' columns; NULL: all 0 */
} tw_lossless_run_t;

/** A walk over all elements in order, in a shape and in the segments. Begin it with
 *  tw_lossless_walk_begin. */
typedef struct tw_lossless_walk {
    const tw_lossless_shape_t *shape;
    const tw_quant_lossless_segment_t *segment; /**< NULL: the walk has no segments */
    int encoding;
    size_t elem_bytes;
    size_t piece, row, columns; /**< indices of the piece, its current row and its first column */
    size_t in_piece, in_row, in_segment;
} tw_lossless_walk_t;

/** A backend: loops over heads, and the coder. `n` may be any number unless stated. */
typedef struct tw_lossless_backend {
    tw_backend_t is;
    /** Add the magnitudes of n <= 65536 heads to *sum and count those that are not 0 in *live. */
    void (*sum)(const uint16_t *heads, size_t n, uint64_t *sum, uint64_t *live);
    /** For each column i: if the magnitude is not 0, add magnitude - scale to sums[i] and 1 to live[i]. */
    void (*sum_columns)(const uint16_t *heads, size_t n, int32_t scale, int32_t *sums, uint32_t *live);
    /** For n <= 65536 heads, if the magnitude is not 0: add |magnitude - scale - columns[i]| to *sum and 1 to
     *  *live. columns may be NULL (all 0), also below. */
    void (*deviation)(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns, uint64_t *sum,
                      uint64_t *live);
    /** Set bins[i] = magnitude - scale - columns[i] + 128, clamped to 0 to 255; ZEROS_BIN if the 9 bits are
     *  0. */
    void (*bins)(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns, uint16_t *bins);
    /** Fold a list's values to the numbers from 0 on that are sent (tw_lossless_folded); returns their sum.
     *  folded may be values. */
    uint64_t (*fold)(const int16_t *values, size_t n, int32_t centre, uint32_t shift, uint16_t *folded);
    /** Count the bits of folded values in a list with this k. */
    uint64_t (*folded_bits)(const uint16_t *folded, size_t n, uint32_t k);
    /** Set expected[i] = value with columns[i] added to its scale. */
    void (*expect)(uint16_t value, const int16_t *columns, size_t n, uint16_t *expected);
    /** Code the heads of a block's n elements, forward; decode them, backward. decode writes heads of 9 bits,
     *  and returns 0 if words or escapes run out. */
    void (*encode)(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                   size_t n, tw_entropy_writer_t *writer);
    int (*decode)(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                  tw_entropy_reader_t *reader, uint16_t *heads);
    /** Code the tails of n elements, with their raw bits; decode them. decode_tails takes heads of 9 bits. */
    void (*encode_tails)(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                         const uint16_t *tails, size_t n, tw_entropy_writer_t *writer);
    int (*decode_tails)(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                        size_t n, tw_entropy_reader_t *reader, uint16_t *tails);
    /** Pack the 7 bits of n heads; may write 4 bytes past the end. Unpack them and join them to heads of 9
     *  bits; may read 4 bytes past the end. */
    void (*pack)(const uint16_t *heads, size_t n, uint8_t *raw);
    void (*unpack)(const uint8_t *raw, size_t n, uint16_t *heads);
    /** Split n elements of fp32 or fp16 into heads and tails (NULL: not wanted), and join them. A tail is a
     *  u16; fp16 uses three bits of it. */
    void (*split)(tw_type_t type, const void *src, size_t n, uint16_t *heads, uint16_t *tails);
    void (*join)(tw_type_t type, const uint16_t *heads, const uint16_t *tails, size_t n, void *dst);
    /** Count those of n tails that are not 0. */
    size_t (*count)(const uint16_t *tails, size_t n);
    /** Pack the three bits of n tails of fp16, as they are sent, and unpack them. */
    void (*pack_tails)(const uint16_t *tails, size_t n, uint8_t *planes);
    void (*unpack_tails)(const uint8_t *planes, size_t n, uint16_t *tails);
    /** tw_entropy_decode_table, for frequencies that sum to 1024. */
    void (*decode_table)(const uint16_t *freq, uint32_t *table);
    /** Sum tw_entropy_check over n 16-bit words; the first one has index `first`. */
    uint32_t (*check)(const uint8_t *words, size_t n, size_t first);
} tw_lossless_backend_t;

extern const tw_lossless_backend_t tw_lossless_ref;
#ifdef __x86_64__
extern const tw_lossless_backend_t tw_lossless_avx2, tw_lossless_avx512;
#elif defined(__aarch64__)
extern const tw_lossless_backend_t tw_lossless_neon;
#endif

struct tw_quant_lossless {
    const tw_lossless_backend_t *backend;
    tw_lossless_shape_t shape;
    tw_lossless_table_t tables[TW_LOSSLESS_CLASSES];
    int window;           /**< quarters of an octave by which scales are moved, a multiple of 4 */
    uint8_t classes, own; /**< masks: classes of rows; classes whose own tables are sent */
    tw_lossless_tails_t tails_are;
    tw_lossless_model_t model;
    int32_t *column_sums; /**< [column_room], scratch of scales.c */
    uint32_t *column_live;
    size_t column_room;
    /** [list_room] scratch of head.c and scales.c: values of a piece's rows or columns */
    int16_t *list;
    size_t list_room;
    /** Scratch of scales.c: counts of the sample. A class has four arrays, used in turn, so that a count does
     *  not wait for the previous one. */
    uint32_t sample[TW_LOSSLESS_CLASSES][4][TW_LOSSLESS_SAMPLE_BINS];
    uint32_t tail_sample[TW_LOSSLESS_TAIL_OCTAVES][TW_LOSSLESS_TAIL_SYMBOLS];
    /* One block. SIMD code may write up to 32 elements past its end. */
    uint16_t expected[TW_LOSSLESS_BLOCK_ELEMS + 32], heads[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t tails[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t words[2 * TW_LOSSLESS_BLOCK_ELEMS + 32], escapes[2 * TW_LOSSLESS_BLOCK_ELEMS];
    uint8_t body[TW_LOSSLESS_BLOCK_ELEMS * 4 + 128];
};

/* ---- walk.c -------------------------------------------------------------------------------------------- */

/** Make room in a shape; its content stays. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_lossless_reserve(tw_lossless_shape_t *shape, size_t n_pieces, size_t n_rows, size_t n_columns);
/** Make room for n numbers in the codec's list, whose content is lost. */
tw_status_t tw_lossless_reserve_list(tw_quant_lossless_t *codec, size_t n);
void tw_lossless_shape_cleanup(tw_lossless_shape_t *shape);
size_t tw_lossless_piece_rows(const tw_lossless_piece_t *piece);
/** The most pieces, rows and columns of a message of n elements; decoders refuse more. */
size_t tw_lossless_pieces_max(size_t n_elems);
size_t tw_lossless_rows_max(size_t n_elems);
size_t tw_lossless_columns_max(size_t n_elems);
/** Begin a walk. segments NULL: over the shape alone. encoding: 1: runs are in src, 0: in dst. */
tw_lossless_walk_t tw_lossless_walk_begin(const tw_lossless_shape_t *shape,
                                          const tw_quant_lossless_segment_t *segments, int encoding,
                                          size_t elem_bytes);
/** Take the next run of at most `most` (> 0) elements. Returns 0 at the end. */
int tw_lossless_walk_next(tw_lossless_walk_t *walk, size_t most, tw_lossless_run_t *run);
/** Skip at most `most` elements, of any rows, up to the end of the current piece or segment. Returns their
 *  number, 0 at the end. */
size_t tw_lossless_walk_skip(tw_lossless_walk_t *walk, size_t most);

/* ---- scales.c ------------------------------------------------------------------------------------------ */

/** Replace the shape's pieces by those of segments: one each, but consecutive segments without rows become
 *  one piece. TW_ERR_NO_MEMORY (logged). */
#define TW_LOSSLESS_PIECE_UNKNOWN 0x80 /**< flag of a piece without rows; not sent */
tw_status_t tw_lossless_make_pieces(tw_lossless_shape_t *shape, const tw_quant_lossless_segment_t *segments,
                                    size_t n_segments);
/** Fill codec->shape from segments: pieces, scales, classes. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_lossless_find_scales(tw_quant_lossless_t *codec, tw_type_t type,
                                    const tw_quant_lossless_segment_t *segments, size_t n_segments);
/** tw_lossless_find_scales; then choose the window, the tables, and how tails are sent. */
tw_status_t tw_lossless_analyse(tw_quant_lossless_t *codec, tw_type_t type,
                                const tw_quant_lossless_segment_t *segments, size_t n_segments);
/** Get the heads of n <= BLOCK_ELEMS elements at `data`: for bf16 `data` itself, else codec->heads. */
const uint16_t *tw_lossless_heads(tw_quant_lossless_t *codec, tw_type_t type, const uint8_t *data, size_t n);

/* ---- prepare.c ----------------------------------------------------------------------------------------- */

/** Make the look-up tables of the codec's classes, for its encoder and its decoder. */
void tw_lossless_model_encoder(tw_quant_lossless_t *codec);
void tw_lossless_model_decoder(tw_quant_lossless_t *codec);

/* ---- codec.c ------------------------------------------------------------------------------------------- */

extern const tw_backends_t tw_lossless_backends;
/** Check the type and segments of a call; *n_elems is their sum. TW_ERR_INVALID (logged). */
tw_status_t tw_lossless_check_call(const char *operation, tw_type_t type,
                                   const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                   int encoding, size_t *n_elems);
/** tw_lossless_check_call for an encoding call, which also checks that dst has room for the bound. */
tw_status_t tw_lossless_check_encode(const char *operation, const tw_quant_message_args_t *args,
                                     const void *dst, size_t dst_bytes, size_t *n_elems);

/** Copy all segments' elements to `at`. Returns their end. */
uint8_t *tw_lossless_copy_plain(const tw_quant_message_args_t *args, uint8_t *at);

/* ---- decode.c ------------------------------------------------------------------------------------------ */

/** Compare a header with a call that has src_bytes bytes and n_elems elements. TW_ERR_TRUNCATED,
 *  TW_ERR_FORMAT, TW_ERR_MISMATCH (logged). */
tw_status_t tw_lossless_check_header(const char *operation, const tw_lossless_header_t *header,
                                     size_t src_bytes, tw_type_t type, size_t n_elems);
tw_status_t tw_lossless_decode(tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                               tw_quant_sink_t sink, const void *src, size_t src_bytes);

/* ---- sink.c -------------------------------------------------------------------------------------------- */

/** Bytes of an element of dst, for this sink. */
size_t tw_lossless_sink_bytes(tw_type_t type, tw_quant_sink_t sink);
void tw_lossless_sink_values(tw_type_t type, tw_quant_sink_t sink, const void *values, size_t n,
                             uint8_t *dst);
/** Sink (store, or add, as `sink` says) n zeros. Adding turns -0 into 0. */
void tw_lossless_sink_zeros(tw_type_t type, tw_quant_sink_t sink, size_t n, uint8_t *dst);
/** Sink n elements from a message; `from` may have any alignment. Overwrites codec->body. */
void tw_lossless_sink_plain(tw_quant_lossless_t *codec, tw_type_t type, tw_quant_sink_t sink,
                            const uint8_t *from, size_t n, uint8_t *dst);
/** Sink all elements of a call, as tw_lossless_sink_plain does. */
void tw_lossless_sink_segments(tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                               tw_quant_sink_t sink, const uint8_t *from);

/* ---- head.c -------------------------------------------------------------------------------------------- */

/** Count the bits of a list of scales or classes. Overwrites codec->list, in which `values` may be. */
size_t tw_lossless_list_bits(const tw_quant_lossless_t *codec, const int16_t *values, size_t n,
                             int32_t centre, uint32_t shift);
/** Put the scales (or with `classes` 1 the classes) of n rows into codec->list, without rows of zeros.
 *  Returns their number. */
size_t tw_lossless_list_rows(const tw_quant_lossless_t *codec, const uint16_t *rows, size_t n, int classes);
/** Write the head, up to the entries, but not head.bytes. Returns its end, or NULL if it does not fit. */
uint8_t *tw_lossless_head_write(const tw_quant_lossless_t *codec, uint8_t *at, const uint8_t *end);
/** Read the head of a message of n_elems elements from `bytes` untrusted bytes: shape, tables, classes, and
 *  if tails_are.tailed the tables of tails. *taken is its size. TW_ERR_FORMAT (logged), TW_ERR_NO_MEMORY. */
tw_status_t tw_lossless_head_read(tw_quant_lossless_t *codec, const uint8_t *src, size_t bytes,
                                  size_t n_elems, size_t *taken);

TW_C_END
