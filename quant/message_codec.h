/** Codecs of TW_QUANT_MESSAGE, whichever they are: tensors as messages that say their length.
 *
 *  The functions of such a codec are in its row of the table (quant/message_ops.h). Every message is
 *  self-contained: a receiver needs only the codec's kind. */
#ifndef TW_QUANT_MESSAGE_CODEC_H
#define TW_QUANT_MESSAGE_CODEC_H

#include "quant/lossless_codec.h"

TW_C_BEGIN

/** A codec with its tables and scratch, 1.5 to 3 MB. One thread at a time. */
typedef struct tw_quant_messages tw_quant_messages_t;

/** A piece of a message, for all codecs of messages. */
typedef tw_quant_lossless_segment_t tw_quant_message_segment_t;

/** What is done with decoded values. */
typedef enum tw_quant_sink {
    TW_QUANT_SINK_STORE,      /**< dst is type[n] */
    TW_QUANT_SINK_STORE_FP32, /**< dst is fp32[n] */
    TW_QUANT_SINK_ADD_FP32    /**< dst is fp32[n], values are added to it */
} tw_quant_sink_t;

/** The tensor, or tensors, of one message. */
typedef struct tw_quant_message_args {
    tw_type_t type;
    const tw_quant_message_segment_t *segments;
    size_t n_segments;
    uint64_t seed; /**< encode, for a codec that rounds at random: another one for every message */
} tw_quant_message_args_t;

/** Make a codec. backend: NULL or "auto", "ref", "avx2", "avx512", "neon". TW_ERR_INVALID: the codec's
 *  form is another one; TW_ERR_UNSUPPORTED (no such backend here), TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_messages_create(const tw_quant_codec_t *codec, const char *backend,
                                     tw_quant_messages_t **out);
void tw_quant_messages_destroy(tw_quant_messages_t *messages);
const tw_quant_codec_t *tw_quant_messages_codec(const tw_quant_messages_t *messages);
const char *tw_quant_messages_backend_name(const tw_quant_messages_t *messages);
/** List the names of the codec's backends that are usable here, best first; returns how many were written (at
 *  most `max`). 0: the codec has another form. */
size_t tw_quant_messages_backends(const tw_quant_codec_t *codec, const char **names, size_t max);

/** Write all segments as one message. dst has dst_bytes, at least tw_quant_bound_bytes for the sum of
 *  n_elems; *bytes is what the message takes. Errors as in tw_quant_lossless_encode. */
tw_status_t tw_quant_messages_encode(tw_quant_messages_t *messages, const tw_quant_message_args_t *args,
                                     void *dst, size_t dst_bytes, size_t *bytes);
/** Read a message of exactly src_bytes bytes, which may be any bytes. Errors as in
 *  tw_quant_lossless_decode. */
tw_status_t tw_quant_messages_decode(tw_quant_messages_t *messages, const tw_quant_message_args_t *args,
                                     tw_quant_sink_t sink, const void *src, size_t src_bytes);

TW_C_END

#endif
