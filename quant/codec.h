/** Codecs as data: a codec as text and as a struct, and the table of all codecs.
 *
 *  A codec is a row of that table: its text, its messages, what it needs, what it loses. Code that handles a
 *  codec asks its row, and never which codec it is. docs/adding.md says how to add one. */
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
    TW_QUANT_ECDQ,     /**< dithered integers, entropy-coded; message_codec.h, quant/ecdq/ecdq.h */
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

/** A codec with its options: plain data, compare with tw_quant_codec_equal. Zeroed: plain. Of codecs without
 *  options only the kind counts. */
typedef struct tw_quant_codec {
    tw_quant_kind_t kind;
    int block;              /**< elements per scale: 32 to 4096, a multiple of 32 */
    tw_quant_scale_t scale; /**< type of the stored scale */
    tw_quant_round_t round;
    int hadamard; /**< 0 or 1 */
    /** ecdq: the step relative to an element's expected size, in quarters of an octave, from -8 (1/4) to 8
     *  (4) */
    int step;
} tw_quant_codec_t;

/* ---- the table ----------------------------------------------------------------------------------------- */

/** The form of its messages. */
typedef enum tw_quant_form {
    TW_QUANT_AS_IS,   /**< the elements themselves */
    TW_QUANT_BLOCKS,  /**< length follows from the elements' number; can be cut at frames */
    TW_QUANT_MESSAGE, /**< each message says its own length, which has a bound, and is self-contained */
    TW_QUANT_CHANGE   /**< likewise, but reading a message needs the old values */
} tw_quant_form_t;

/** What it loses of the values. */
typedef enum tw_quant_loses {
    TW_QUANT_LOSES_NOTHING,
    TW_QUANT_LOSES_BOUNDED, /**< errors have a bound: tw_quant_error_bound */
    TW_QUANT_LOSES_UNBIASED /**< errors have a mean of 0, and a bound, for blocks twice that one */
} tw_quant_loses_t;

/** Options of a codec's text, and what its caller must give: bits of a mask. */
#define TW_QUANT_HAS_BLOCK 1u      /**< block=N, scale=bf16 or fp32 */
#define TW_QUANT_HAS_HADAMARD 2u   /**< hadamard */
#define TW_QUANT_HAS_STOCHASTIC 4u /**< nearest, stochastic; stochastic needs a seed */
#define TW_QUANT_HAS_STEP 8u       /**< step=X, 0.25 to 4; it needs a seed */
#define TW_QUANT_NEEDS_OLD 16u     /**< both ends need the old values, and a byte of state for each element */

/** A codec, whatever its options. */
typedef struct tw_quant_row {
    const char *name; /**< the beginning of its text */
    tw_quant_form_t form;
    unsigned has;   /**< TW_QUANT_HAS_, TW_QUANT_NEEDS_ */
    unsigned types; /**< 1 << tw_type_t of each type that the codec takes */
    int bits;       /**< bits of an element in a block, without its scale; 0: the codec has no blocks */
    int block;      /**< elements of a block, if the text does not say */
    double usual_bits[TW_TYPE_BYTE + 1]; /**< bits of an element, by type, about, in training; 0: blocks */
    int loses_values;                    /**< 0: decoded values are those that were sent, bit for bit */
    int unbiased;                        /**< 1: the codec always rounds at random */
    int sums;                            /**< 1: encoded inputs can be summed, and sums encoded */
    const struct tw_quant_message_ops *messages; /**< TW_QUANT_MESSAGE: functions, inside quant */
} tw_quant_row_t;

const tw_quant_row_t *tw_quant_row_get(tw_quant_kind_t kind);
/** The form of a codec; NULL: plain. An unknown kind counts as plain, until tw_quant_codec_check refuses
 *  it. */
tw_quant_form_t tw_quant_form(const tw_quant_codec_t *codec);
tw_quant_loses_t tw_quant_loses(const tw_quant_codec_t *codec);

/* ---- texts --------------------------------------------------------------------------------------------- */

/** Check a codec. TW_ERR_INVALID, with a log line naming the field that is out of range. */
tw_status_t tw_quant_codec_check(const tw_quant_codec_t *codec);
int tw_quant_codec_equal(const tw_quant_codec_t *a, const tw_quant_codec_t *b);
/** Parse the name of a codec whose messages are self-contained (TW_QUANT_BLOCKS, TW_QUANT_MESSAGE), with
 *  options: "int4:block=128,hadamard,stochastic,scale=fp32". TW_ERR_INVALID, logged. */
tw_status_t tw_quant_codec_parse(const char *text, tw_quant_codec_t *codec);
/** Parse the name of any codec, "plain" and "delta" too, as tw_quant_codec_parse does. */
tw_status_t tw_quant_codec_parse_any(const char *text, tw_quant_codec_t *codec);
/** Write a codec as text into `buf`; returns buf. */
const char *tw_quant_codec_format(const tw_quant_codec_t *codec, char *buf, size_t buf_bytes);

/** Most bytes of a message of n_elems; for TW_QUANT_BLOCKS and plain, exactly its bytes. SIZE_MAX: it does
 *  not fit. codec NULL: plain. */
size_t tw_quant_bound_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems);
/** About how many bytes a message of n_elems takes in training; for TW_QUANT_BLOCKS and plain, exactly its
 *  bytes. */
double tw_quant_usual_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems);
/** About how many bits an element of a long message takes, likewise. */
double tw_quant_usual_bits(const tw_quant_codec_t *codec, tw_type_t type);

TW_C_END

#endif
