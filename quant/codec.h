/** Codecs as data: a codec's text, a codec's struct, and the table of all codecs.
 *
 *  Each kind of codec has a row in that table: its name, the form of its messages, what it needs, what it
 *  loses. Code that handles codecs reads rows and never compares kinds. docs/adding.md: how to add a
 *  codec. */
#ifndef TW_QUANT_CODEC_H
#define TW_QUANT_CODEC_H

#include "core/core.h"

TW_C_BEGIN

/** The rows of the table. Their order is not part of the interface. */
typedef enum tw_quant_kind {
    TW_QUANT_PLAIN, /**< elements are sent as they are */
    TW_QUANT_INT8,
    TW_QUANT_INT4,
    TW_QUANT_INT2,
    TW_QUANT_FP8,
    TW_QUANT_LOSSLESS, /**< see lossless_codec.h */
    TW_QUANT_DELTA,    /**< see delta_codec.h */
    TW_QUANT_ECDQ,     /**< dithered integers, entropy-coded: see message_codec.h, ecdq/ecdq.h */
    TW_QUANT_KINDS
} tw_quant_kind_t;

/** X(kind, name) for all codecs of TW_QUANT_BLOCKS. */
#define TW_QUANT_BLOCK_CODECS(X) \
    X(TW_QUANT_INT8, int8) X(TW_QUANT_INT4, int4) X(TW_QUANT_INT2, int2) X(TW_QUANT_FP8, fp8)
/** X(kind, name) for all codecs of TW_QUANT_MESSAGE. */
#define TW_QUANT_MESSAGE_CODECS(X) X(TW_QUANT_LOSSLESS, lossless) X(TW_QUANT_ECDQ, ecdq)

typedef enum tw_quant_scale { TW_QUANT_SCALE_BF16 = 0, TW_QUANT_SCALE_FP32 = 1 } tw_quant_scale_t;
typedef enum tw_quant_round { TW_QUANT_ROUND_NEAREST = 0, TW_QUANT_ROUND_STOCHASTIC = 1 } tw_quant_round_t;

#define TW_QUANT_BLOCK_MIN 32
#define TW_QUANT_BLOCK_MAX 4096
#define TW_QUANT_HADAMARD_ELEMS 32

/** A codec with its options: plain data. All zeros is "plain". Options that the kind does not have must be 0.
 *  Compare two with tw_quant_codec_equal. */
typedef struct tw_quant_codec {
    tw_quant_kind_t kind;
    int block;              /**< elements per scale: 32 to 4096, a multiple of 32 */
    tw_quant_scale_t scale; /**< type of the stored scale */
    tw_quant_round_t round;
    int hadamard; /**< 0 or 1 */
    /** ecdq: the step relative to elements' expected size, in quarters of an octave: -8 (1/4) to 8 (4) */
    int step;
} tw_quant_codec_t;

/* ---- the table ----------------------------------------------------------------------------------------- */

/** The form of a codec's messages. */
typedef enum tw_quant_form {
    TW_QUANT_AS_IS,   /**< the elements themselves */
    TW_QUANT_BLOCKS,  /**< the length follows from n_elems; messages can be cut between frames */
    TW_QUANT_MESSAGE, /**< each states its length (tw_quant_bound_bytes at most) and is self-contained */
    TW_QUANT_CHANGE   /**< like TW_QUANT_MESSAGE, but decoding needs the old values */
} tw_quant_form_t;

/** What decoding loses of the values. */
typedef enum tw_quant_loses {
    TW_QUANT_LOSES_NOTHING,
    TW_QUANT_LOSES_BOUNDED, /**< errors have a bound: tw_quant_error_bound */
    /** errors have a mean of 0; for blocks the bound is twice tw_quant_error_bound */
    TW_QUANT_LOSES_UNBIASED
} tw_quant_loses_t;

/** Options that a codec's text may have, and what its caller must give: bits of a mask. */
#define TW_QUANT_HAS_BLOCK 1u      /**< block=N, scale=bf16 or fp32 */
#define TW_QUANT_HAS_HADAMARD 2u   /**< the option hadamard */
#define TW_QUANT_HAS_STOCHASTIC 4u /**< options nearest and stochastic; stochastic needs a seed */
#define TW_QUANT_HAS_STEP 8u       /**< step=X, 0.25 to 4; the codec needs a seed */
#define TW_QUANT_NEEDS_OLD 16u     /**< both ends need the old values, and a byte of state for each element */

/** A row of the table: what all codecs of one kind have in common. */
typedef struct tw_quant_row {
    const char *name; /**< the codec's text begins with it */
    tw_quant_form_t form;
    unsigned has;   /**< mask of TW_QUANT_HAS_* and TW_QUANT_NEEDS_* */
    unsigned types; /**< mask: bit 1 << type (tw_type_t) for each type that the codec takes */
    int bits;       /**< bits of an element's code in a block; 0: the codec has no blocks */
    int block;      /**< elements of a block if the text has no block=N */
    /** [type] about how many bits an element takes in training; 0: the codec has blocks or is plain */
    double usual_bits[TW_TYPE_BYTE + 1];
    int loses_values; /**< 0: decoded values equal the encoded ones, bit for bit */
    int unbiased;     /**< 1: the codec always rounds at random */
    int sums;         /**< 1: encoded inputs can be summed, and a sum can be encoded */
    /** only for TW_QUANT_MESSAGE: the codec's functions, private to quant */
    const struct tw_quant_message_ops *messages;
} tw_quant_row_t;

const tw_quant_row_t *tw_quant_row_get(tw_quant_kind_t kind);
/** The form of a codec. NULL means plain. An unknown kind (tw_quant_codec_check refuses it) counts as
 *  plain. */
tw_quant_form_t tw_quant_form(const tw_quant_codec_t *codec);
tw_quant_loses_t tw_quant_loses(const tw_quant_codec_t *codec);

/* ---- texts --------------------------------------------------------------------------------------------- */

/** Check a codec. Returns TW_ERR_INVALID if a field is out of range, and logs the field's name. */
tw_status_t tw_quant_codec_check(const tw_quant_codec_t *codec);
int tw_quant_codec_equal(const tw_quant_codec_t *a, const tw_quant_codec_t *b);
/** Parse a codec's name and options, as in "int4:block=128,hadamard,stochastic,scale=fp32". Only codecs of
 *  TW_QUANT_BLOCKS and TW_QUANT_MESSAGE are accepted. Returns TW_ERR_INVALID (logged) for any other text. */
tw_status_t tw_quant_codec_parse(const char *text, tw_quant_codec_t *codec);
/** Like tw_quant_codec_parse, but accepts any codec, also "plain" and "delta". */
tw_status_t tw_quant_codec_parse_any(const char *text, tw_quant_codec_t *codec);
/** Write a codec as text into `buf`; returns buf. */
const char *tw_quant_codec_format(const tw_quant_codec_t *codec, char *buf, size_t buf_bytes);

/** The largest length of a message of n_elems, in bytes. For TW_QUANT_BLOCKS and plain it is the exact
 *  length. SIZE_MAX if a message cannot have so many elements. codec NULL means plain. */
size_t tw_quant_bound_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems);
/** About how many bytes a message of n_elems takes in training. Exact for TW_QUANT_BLOCKS and plain. */
double tw_quant_usual_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems);
/** About how many bits an element of a long message takes in training. */
double tw_quant_usual_bits(const tw_quant_codec_t *codec, tw_type_t type);

TW_C_END

#endif
