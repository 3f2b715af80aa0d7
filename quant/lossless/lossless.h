/** The lossless codec of floating-point tensors, inside: what a message is made of. Private to the room and
 *  its white-box tests.
 *
 *  Read value.h (one element), ref.c (one block, the oracle), then scales.c (what an encoder makes of a
 *  tensor), model.h and prepare.c (the coder's tables), head.c (what is sent of both), walk.c (which elements
 *  come next), codec.c (the public calls) and last lanes.h and symbols.h (ref.c again, 8 or 16 elements at a
 *  time). tables.h has constants, tails.h what an encoder makes of tails.
 *
 *  An element is a head of 16 bits as a bf16 has it (sign, 8 bits of exponent, 7 of mantissa) and a tail:
 *  nothing for bf16, the low 16 bits of fp32, the low 3 bits of fp16, whose exponent has 5 bits. Magnitudes
 *  are counted in quarters of an octave: (head & 0x7fff) >> 5, which is a logarithm but for straight lines
 *  between powers of two. A message is a list of pieces, which are matrices, or parts of them that begin and
 *  end anywhere. A row of a piece has a scale and a class (how far its elements are from what is expected of
 *  them); rows of zeros have nothing else. A column may have a scale. What is expected of an element is the
 *  sum of the two. Coded is where between powers of two and their halves it lies (9 bits), relative to that;
 *  the other 7 bits of the head are noise and go as they are. So is the tail, but for that of fp32 numbers
 *  that were fewer bits once, or are sums of such: of these the zeros at its end are coded, under the octave
 *  in which the head lies, what is above the lowest one goes as it is.
 *
 *  Message, little-endian, without padding but for what is named:
 *    header:  u8 magic, u8 version, u8 type, u8 form;  u32 bytes of the message;  u32 n elements;  u32
 *           checksum of what follows (plain: of all; coded: of what is before the blocks), the sum of (word +
 *           (index + 1) * CHECK_FACTOR)^2 over words of 16 bits, the last one filled with a zero byte
 *    plain:   type[n]
 *    coded:   u32 bytes before the blocks, from here on;  i8 window, in octaves;  u8 mask of classes with
 *           tables of their own; number of pieces, n / 512 + 1 at most;  the pieces;  of each piece with the
 *           flag ZEROS a bit for each row (1: all zeros), whole bytes;  the tables of the mask's classes;
 *           the lists of all pieces, bits, the last byte filled with zeros:  of each piece, as its flags say,
 *           scales of its rows that are not all zeros, their classes, scales of its columns; a zero byte
 *           where the number of bytes is odd;  an entry for each block;  the blocks
 *    number:  7 bits a byte, low first, the high bit set on all but the last; below 2^32
 *    piece:   u8 flags | class << 5;  number of elements;  number of elements in a row;  with the flag FIRST
 *           the number of the first one's index in its row (otherwise 0, here not);  i16 scale.  Class and
 *           scale are those of rows that have none of their own
 *    list:    of values less a centre: of scales of rows the piece's scale, of classes the piece's class, of
 *           columns, where there are 16 rows at least, 0.  Scales of columns are first divided by 1 << shift:
 *           0 for 48 whole rows or more, 1 for 20, otherwise 2.  0, -1, 1, -2 ... are sent as x = 0, 1, 2, 3
 *           ...  Bits, the lowest of a byte first: 4 bits k, at most 11;  for each 32 values (the last may be
 *           fewer): of each x >> k ones and a zero, or 12 ones for 12 or more;  of each the low k bits;  of
 *           each with 12 ones the 13 bits of x >> k
 *    table:   u8[63] densities, u8 zeros, u8 escapes, see model.h, which has the tables of classes that are
 *           not in the mask.  Tailed: behind all of them u8 number of tables of tails, 16 at most;  u8[17]
 *           densities each
 *    block of 65,536 elements of rows that are not all zeros (the last may be short): entry u32 words |
 *           escapes << 16, or RAW, and u32 checksum of its bytes, as above; tailed: and u32 how its tails are
 *           coded: the 7 bits, 28 bytes for 32 elements, but for their first 64 bytes; u16[words]; u32[32]
 *           lanes; u16[escapes]: of tails 16 bits, then of heads 9 bits each; the tails
 *           RAW: u16[elements] heads; the tails
 *    lanes:   begin as START + the next two of those first 64 bytes, low first; 0 where there are fewer
 *    7 bits:  byte k has those of element k, and in its high bit one of elements 28 to 31: bit k mod 7 of
 *           element 28 + k / 7. A last group of n < 32: min(n, 28) bytes; an odd number of them in a block is
 *           followed by a zero byte
 *    tails:   fp32: u16 each. fp16: for 32 elements u32[3], word k has bit k of each
 *           tailed (fp32 alone): RAW, u16 each; or as many as are not 0, one in LISTED at most: u16 index,
 *           u16 tail of each; or CODED, if heads are: in the lanes, before all heads, for each 32 elements
 *           what is above their lowest ones, then the symbols: zeros at the end, or an escape. The table is
 *           the last but 15 - min(15, (the head's symbol + 1) / 2), or the first
 *
 *  Why so: bits an element of the gradients of a GPT of 1.0 M parameters (AdamW, 600 steps), in bf16, in
 *  messages of 49,152 elements, 32 rows of each of four matrices:
 *    10.44 as above: scales and classes take 0.08 of it, lanes 0.024
 *    10.53 with a table of its own for each class, lists in which 32 values have as many bits as the widest
 *        of them needs, lanes that begin with nothing, columns in quarters
 *    0.2 to 0.3 more with one class for all rows; 0.5 to 1 more without scales of columns
 *  Not better: a table for each phase, densities without widths (0.02 more each), scales of rows in half
 *  octaves (0.01 more), columns' scales that no element pulls down far (0.016 less, but bad where columns
 *  differ by more than two octaves).
 */
#pragma once

#include "quant/entropy/entropy.h"
#include "quant/quant.h"

TW_C_BEGIN

#define TW_LOSSLESS_MAGIC 0xd6
#define TW_LOSSLESS_VERSION 2
#define TW_LOSSLESS_PLAIN 0
#define TW_LOSSLESS_CODED 1
#define TW_LOSSLESS_TAILED 2 /**< coded, of fp32, with some tails not sent as they are */
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
#define TW_LOSSLESS_RAW_BYTES 28 /**< bytes of 32 elements' 7 bits */
#define TW_LOSSLESS_TAIL_CONTEXTS 16
#define TW_LOSSLESS_TAIL_SYMBOLS 17        /**< counts of zeros at the end of 16 bits */
#define TW_LOSSLESS_TAIL_OCTAVES 64        /**< octaves that are counted separately in a sample */
#define TW_LOSSLESS_LISTED 128             /**< at most one of so many tails may be listed */
#define TW_LOSSLESS_TAILS_CODED 0xfffffffe /**< an entry's `tails`: they are coded in lanes */
/** an entry's `tails`: they are sent as they are; a smaller value is the number of listed ones */
#define TW_LOSSLESS_TAILS_RAW 0xffffffff
/* Elements that may have their 7 bits in lanes, in whole groups. */
#define TW_LOSSLESS_FIRST_ELEMS ((size_t)96)
#define TW_LOSSLESS_FIRST_BYTES (TW_LOSSLESS_FIRST_ELEMS / 32 * TW_LOSSLESS_RAW_BYTES)

/* A row in the form that the coder needs: its scale, biased so that it is never negative with a column's
 * added, and its class. An element's expectation has the same form. */
#define TW_LOSSLESS_BIAS 4096
#define TW_LOSSLESS_SCALE_MASK 0x1fff
#define TW_LOSSLESS_CLASS_SHIFT 13
#define TW_LOSSLESS_DEAD 0xffff /**< a row that is all zeros */

typedef struct tw_lossless_header {
    uint8_t magic, version, type, form;
    uint32_t bytes, n_elems, check;
} tw_lossless_header_t;

typedef struct tw_lossless_head {
    uint32_t bytes;
    int8_t window; /**< the window, in octaves */
    uint8_t own;   /**< mask of the classes that have tables of their own */
} tw_lossless_head_t;

#define TW_LOSSLESS_FLAG_SCALES 1  /**< rows have scales of their own */
#define TW_LOSSLESS_FLAG_CLASSES 2 /**< rows have classes of their own */
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

/** A block's entry, before the blocks; it has `tails` if the message is TAILED. */
typedef struct tw_lossless_entry {
    uint32_t sizes, check, tails;
} tw_lossless_entry_t;

#ifndef __cplusplus
_Static_assert(sizeof(tw_lossless_header_t) == TW_QUANT_LOSSLESS_HEADER_BYTES, "part of the format");
#endif

/** A class's table in the form that is sent. */
typedef struct tw_lossless_table {
    uint8_t density[TW_LOSSLESS_BINS], zeros, escapes;
} tw_lossless_table_t;

/** A table of tails in the form that is sent. */
typedef struct tw_lossless_tail_table {
    uint8_t density[TW_LOSSLESS_TAIL_SYMBOLS];
} tw_lossless_tail_table_t;

/** An encoder's choice for a message's tails. */
typedef struct tw_lossless_tails {
    int tailed;        /**< 0: all tails are sent as they are, and nothing else is noted */
    uint32_t n_tables; /**< 0: none are coded */
    tw_lossless_tail_table_t tables[TW_LOSSLESS_TAIL_CONTEXTS];
} tw_lossless_tails_t;

/** The tables from which a model was made: a class whose table has not changed is not made again. */
typedef struct tw_lossless_made {
    uint8_t classes; /**< mask of the classes that were ever made */
    tw_lossless_table_t of[TW_LOSSLESS_CLASSES];
} tw_lossless_made_t;

/** What the coders look up. Zeroed at first; entries of classes that a message lacks are not read. */
typedef struct tw_lossless_model {
    tw_lossless_made_t encoder, decoder;
    uint64_t encode[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_SYMBOLS];
    uint32_t decode[TW_LOSSLESS_CONTEXTS * TW_ENTROPY_FREQ_SUM];
    /** contexts of tails up to this one, the lowest, have the first table */
    uint32_t tail_first;
    uint64_t encode_tails[TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_SYMBOLS];
    uint32_t decode_tails[TW_LOSSLESS_TAIL_CONTEXTS * TW_ENTROPY_FREQ_SUM];
} tw_lossless_model_t;

/** What a message has: pieces, and their rows and columns one after the other. Its memory grows as needed. */
typedef struct tw_lossless_shape {
    tw_lossless_piece_t *pieces; /**< [n_pieces] */
    uint16_t *rows;              /**< [n_rows], scale + BIAS | class << CLASS_SHIFT, or DEAD */
    int16_t *columns;            /**< [n_columns], of pieces with the flag COLUMNS */
    size_t n_pieces, n_rows, n_columns;
    size_t n_live; /**< elements of rows that are not DEAD */
    size_t pieces_room, rows_room, columns_room;
} tw_lossless_shape_t;

/** Contiguous elements of the same row. */
typedef struct tw_lossless_run {
    const uint8_t *data; /**< address of the first one; NULL when the walk is over the shape alone */
    size_t n;
    size_t row;             /**< index in `rows` */
    uint16_t value;         /**< the row in the form that the coder needs, or DEAD */
    const int16_t *columns; /**< scales of these elements' columns; NULL: 0 */
} tw_lossless_run_t;

/** A walk over all elements: over a shape, and the segments where they lie. Make it with
 *  tw_lossless_walk_begin. */
typedef struct tw_lossless_walk {
    const tw_lossless_shape_t *shape;
    const tw_quant_lossless_segment_t *segment; /**< NULL: the walk has no segments */
    int encoding;
    size_t elem_bytes;
    size_t piece, row, columns; /**< the indices of the piece, of its current row and of its first column */
    size_t in_piece, in_row, in_segment;
} tw_lossless_walk_t;

/** A backend: loops over heads, and the coder. `n` may be any number unless stated. */
typedef struct tw_lossless_backend {
    tw_backend_t is;
    /** Add the magnitudes of n <= 65536 heads to *sum and count those that are not 0 in *live. */
    void (*sum)(const uint16_t *heads, size_t n, uint64_t *sum, uint64_t *live);
    /** The same for each column: what is above `scale`, and 1 in `live`; magnitudes of 0 count for
     *  neither. */
    void (*sum_columns)(const uint16_t *heads, size_t n, int32_t scale, int32_t *sums, uint32_t *live);
    /** Add |magnitude - scale - columns[i]| of n <= 65536 heads to *sum and count in *live, where magnitudes
     *  are not 0; columns may be NULL. */
    void (*deviation)(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns, uint64_t *sum,
                      uint64_t *live);
    /** Set bins[i] = magnitude - scale - columns[i] + 128, clamped to 0 to 255; ZEROS_BIN for heads that are
     *  coded as 0. */
    void (*bins)(const uint16_t *heads, size_t n, int32_t scale, const int16_t *columns, uint16_t *bins);
    /** Make a list's values in the form that is sent (tw_lossless_folded), which may overwrite them; returns
     *  their sum. */
    uint64_t (*fold)(const int16_t *values, size_t n, int32_t centre, uint32_t shift, uint16_t *folded);
    /** Count the bits of a list's values in that form, if k low bits of each are sent as they are. */
    uint64_t (*folded_bits)(const uint16_t *folded, size_t n, uint32_t k);
    /** Set expected[i] = value, with columns[i], if not NULL, added to its scale. */
    void (*expect)(uint16_t value, const int16_t *columns, size_t n, uint16_t *expected);
    /** Code a block's symbols: its n elements forward; or backward, when it returns 0 if words or escapes run
     *  out, and heads hold 9 bits. */
    void (*encode)(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                   size_t n, tw_entropy_writer_t *writer);
    int (*decode)(const tw_lossless_model_t *model, const uint16_t *expected, size_t n,
                  tw_entropy_reader_t *reader, uint16_t *heads);
    /** Code the symbols and raw bits of n tails, forward; or backward, when heads hold 9 bits. */
    void (*encode_tails)(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                         const uint16_t *tails, size_t n, tw_entropy_writer_t *writer);
    int (*decode_tails)(const tw_lossless_model_t *model, const uint16_t *heads, const uint16_t *expected,
                        size_t n, tw_entropy_reader_t *reader, uint16_t *tails);
    /** Pack the 7 bits of n heads; writes up to 4 bytes more. Unpack them into heads that hold 9 bits; reads
     *  up to 4 more. */
    void (*pack)(const uint16_t *heads, size_t n, uint8_t *raw);
    void (*unpack)(const uint8_t *raw, size_t n, uint16_t *heads);
    /** Split n elements of a type with tails into heads and, if not NULL, tails; and join them. Tails are
     *  u16, for fp16 with three bits each. */
    void (*split)(tw_type_t type, const void *src, size_t n, uint16_t *heads, uint16_t *tails);
    void (*join)(tw_type_t type, const uint16_t *heads, const uint16_t *tails, size_t n, void *dst);
    /** Count those of n tails that are not 0. */
    size_t (*count)(const uint16_t *tails, size_t n);
    /** Pack the three bits of n tails of fp16 into the form that is sent, and unpack them. */
    void (*pack_tails)(const uint16_t *tails, size_t n, uint8_t *planes);
    void (*unpack_tails)(const uint8_t *planes, size_t n, uint16_t *tails);
    /** The same as tw_entropy_decode_table, for frequencies that sum to 1024. */
    void (*decode_table)(const uint16_t *freq, uint32_t *table);
    /** Sum tw_entropy_check over 16-bit words, of which the first has this index. */
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
    int window;           /**< by how much all scales were moved, a multiple of 4 */
    uint8_t classes, own; /**< masks: of the rows' classes, and of those with tables of their own */
    tw_lossless_tails_t tails_are;
    tw_lossless_model_t model;
    int32_t *column_sums; /**< [column_room], scratch of scales.c */
    uint32_t *column_live;
    size_t column_room;
    /** [list_room] scratch of head.c and scales.c: of the rows of a piece, or of its columns */
    int16_t *list;
    size_t list_room;
    /** Scratch of scales.c: counts of the sample. Each class has four arrays, for every fourth element, so
     *  that no count waits for the one before. */
    uint32_t sample[TW_LOSSLESS_CLASSES][4][TW_LOSSLESS_SAMPLE_BINS];
    uint32_t tail_sample[TW_LOSSLESS_TAIL_OCTAVES][TW_LOSSLESS_TAIL_SYMBOLS];
    /* A block. Vectors may write up to 32 elements more. */
    uint16_t expected[TW_LOSSLESS_BLOCK_ELEMS + 32], heads[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t tails[TW_LOSSLESS_BLOCK_ELEMS + 32];
    uint16_t words[2 * TW_LOSSLESS_BLOCK_ELEMS + 32], escapes[2 * TW_LOSSLESS_BLOCK_ELEMS];
    uint8_t body[TW_LOSSLESS_BLOCK_ELEMS * 4 + 128];
};

/* ---- walk.c -------------------------------------------------------------------------------------------- */

/** Make room in a shape, keeping what is there. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_lossless_reserve(tw_lossless_shape_t *shape, size_t n_pieces, size_t n_rows, size_t n_columns);
/** Make room for n numbers in the codec's list, whose content is lost. */
tw_status_t tw_lossless_reserve_list(tw_quant_lossless_t *codec, size_t n);
void tw_lossless_shape_cleanup(tw_lossless_shape_t *shape);
size_t tw_lossless_piece_rows(const tw_lossless_piece_t *piece);
/** Limits of pieces, rows and columns in a message of n elements: more are refused. */
size_t tw_lossless_pieces_max(size_t n_elems);
size_t tw_lossless_rows_max(size_t n_elems);
size_t tw_lossless_columns_max(size_t n_elems);
/** Begin a walk. segments NULL: a walk over the shape alone. */
tw_lossless_walk_t tw_lossless_walk_begin(const tw_lossless_shape_t *shape,
                                          const tw_quant_lossless_segment_t *segments, int encoding,
                                          size_t elem_bytes);
/** Take the next elements, at most `most` (> 0); 0 at the end. */
int tw_lossless_walk_next(tw_lossless_walk_t *walk, size_t most, tw_lossless_run_t *run);
/** Skip at most `most` elements of the walk's piece and segment, of any rows; returns their number, 0 at the
 *  end. */
size_t tw_lossless_walk_skip(tw_lossless_walk_t *walk, size_t most);

/* ---- scales.c ------------------------------------------------------------------------------------------ */

/** Make pieces of segments, in a shape whose old ones are dropped; consecutive segments without rows become
 *  one. TW_ERR_NO_MEMORY (logged). */
#define TW_LOSSLESS_PIECE_UNKNOWN 0x80 /**< a flag of pieces without rows; not sent */
tw_status_t tw_lossless_make_pieces(tw_lossless_shape_t *shape, const tw_quant_lossless_segment_t *segments,
                                    size_t n_segments);
/** Fill the shape for segments of a type: pieces, scales of rows and columns, classes. TW_ERR_NO_MEMORY
 *  (logged). */
tw_status_t tw_lossless_find_scales(tw_quant_lossless_t *codec, tw_type_t type,
                                    const tw_quant_lossless_segment_t *segments, size_t n_segments);
/** The same, and choose the window, the tables, and what is done with tails. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_lossless_analyse(tw_quant_lossless_t *codec, tw_type_t type,
                                const tw_quant_lossless_segment_t *segments, size_t n_segments);
/** Get the heads of a run of the analysed type; they are in scratch if they are not in memory. n <=
 *  BLOCK_ELEMS. */
const uint16_t *tw_lossless_heads(tw_quant_lossless_t *codec, tw_type_t type, const uint8_t *data, size_t n);

/* ---- prepare.c ----------------------------------------------------------------------------------------- */

/** Make what the coders of the codec's classes look up, from their tables. */
void tw_lossless_model_encoder(tw_quant_lossless_t *codec);
void tw_lossless_model_decoder(tw_quant_lossless_t *codec);

/* ---- codec.c ------------------------------------------------------------------------------------------- */

extern const tw_backends_t tw_lossless_backends;
/** Check the type and segments of a call, which hold n_elems together. TW_ERR_INVALID (logged). */
tw_status_t tw_lossless_check_call(const char *operation, tw_type_t type,
                                   const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                   int encoding, size_t *n_elems);
/** The same for encoding; also check that there is room for the bound. */
tw_status_t tw_lossless_check_encode(const char *operation, const tw_quant_message_args_t *args,
                                     const void *dst, size_t dst_bytes, size_t *n_elems);

/** Copy all elements to `at`, segment after segment; returns where they end. */
uint8_t *tw_lossless_copy_plain(const tw_quant_message_args_t *args, uint8_t *at);

/* ---- decode.c ------------------------------------------------------------------------------------------ */

/** Compare a header with a call that has src_bytes bytes and n_elems elements. TW_ERR_TRUNCATED,
 *  TW_ERR_FORMAT, TW_ERR_MISMATCH (logged). */
tw_status_t tw_lossless_check_header(const char *operation, const tw_lossless_header_t *header,
                                     size_t src_bytes, tw_type_t type, size_t n_elems);
tw_status_t tw_lossless_decode(tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                               tw_quant_sink_t sink, const void *src, size_t src_bytes);

/* ---- sink.c -------------------------------------------------------------------------------------------- */

/** Bytes of an element in the sink. */
size_t tw_lossless_sink_bytes(tw_type_t type, tw_quant_sink_t sink);
void tw_lossless_sink_values(tw_type_t type, tw_quant_sink_t sink, const void *values, size_t n,
                             uint8_t *dst);
/** Sink n zeros. Adding them turns -0 into 0. */
void tw_lossless_sink_zeros(tw_type_t type, tw_quant_sink_t sink, size_t n, uint8_t *dst);
/** Sink n elements of a message, at any address. Overwrites the codec's body. */
void tw_lossless_sink_plain(tw_quant_lossless_t *codec, tw_type_t type, tw_quant_sink_t sink,
                            const uint8_t *from, size_t n, uint8_t *dst);
/** Sink all elements of a call, likewise. */
void tw_lossless_sink_segments(tw_quant_lossless_t *codec, const tw_quant_message_args_t *args,
                               tw_quant_sink_t sink, const uint8_t *from);

/* ---- head.c -------------------------------------------------------------------------------------------- */

/** Count the bits of a list of scales, or classes. Its values may be in the codec's list, which is
 *  overwritten. */
size_t tw_lossless_list_bits(const tw_quant_lossless_t *codec, const int16_t *values, size_t n,
                             int32_t centre, uint32_t shift);
/** Put the scales, or classes, of those of n rows that are not all zeros into the codec's list; returns their
 *  number. */
size_t tw_lossless_list_rows(const tw_quant_lossless_t *codec, const uint16_t *rows, size_t n, int classes);
/** Write the head, up to the entries; head.bytes is not yet filled in; NULL if it does not fit. */
uint8_t *tw_lossless_head_write(const tw_quant_lossless_t *codec, uint8_t *at, const uint8_t *end);
/** Read the head from `bytes` untrusted bytes, for n_elems elements: shape, tables, classes; and of tails if
 *  tails_are.tailed. TW_ERR_FORMAT (logged) or TW_ERR_NO_MEMORY; *taken: its bytes. */
tw_status_t tw_lossless_head_read(tw_quant_lossless_t *codec, const uint8_t *src, size_t bytes,
                                  size_t n_elems, size_t *taken);

TW_C_END
