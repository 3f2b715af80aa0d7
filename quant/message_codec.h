/** One interface to all codecs of form TW_QUANT_MESSAGE, which encode tensors as messages that state their
 *  length.
 *
 *  A codec's functions are in its row of the table (quant/message_ops.h). Every message is self-contained: a
 *  receiver needs only the codec's kind. */
#ifndef TW_QUANT_MESSAGE_CODEC_H
#define TW_QUANT_MESSAGE_CODEC_H

#include "quant/lossless_codec.h"

TW_C_BEGIN

/** A codec with its tables and scratch, 1.5 to 3 MB. Only one thread may use it at a time. */
typedef struct tw_quant_messages tw_quant_messages_t;

/** A piece of a message, for all codecs of messages. */
typedef tw_quant_lossless_segment_t tw_quant_message_segment_t;

/** Where decoded values go, and in which type. */
typedef enum tw_quant_sink {
    TW_QUANT_SINK_STORE,      /**< dst is type[n] */
    TW_QUANT_SINK_STORE_FP32, /**< dst is fp32[n] */
    TW_QUANT_SINK_ADD_FP32    /**< dst is fp32[n]; decoded values are added to it */
} tw_quant_sink_t;

/** The tensor, or tensors, of one message. */
typedef struct tw_quant_message_args {
    tw_type_t type;
    const tw_quant_message_segment_t *segments;
    size_t n_segments;
    uint64_t seed; /**< encode, only codecs that round at random: a different seed for each message */
} tw_quant_message_args_t;

/** Make a codec. backend: NULL or "auto", "ref", "avx2", "avx512", "neon". Errors, logged: TW_ERR_INVALID if
 *  the codec's form is not TW_QUANT_MESSAGE, TW_ERR_UNSUPPORTED if this machine cannot run that backend,
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_quant_messages_create(const tw_quant_codec_t *codec, const char *backend,
                                     tw_quant_messages_t **out);
void tw_quant_messages_destroy(tw_quant_messages_t *messages);
const tw_quant_codec_t *tw_quant_messages_codec(const tw_quant_messages_t *messages);
const char *tw_quant_messages_backend_name(const tw_quant_messages_t *messages);
/** List the names of the codec's backends that this machine can run, best first. Returns how many it wrote
 *  (at most `max`), or 0 if the codec's form is not TW_QUANT_MESSAGE. */
size_t tw_quant_messages_backends(const tw_quant_codec_t *codec, const char **names, size_t max);

/** Write all segments as one message into dst, and its length into *bytes. dst_bytes must be at least
 *  tw_quant_bound_bytes for the sum of all n_elems. Errors as in tw_quant_lossless_encode. */
tw_status_t tw_quant_messages_encode(tw_quant_messages_t *messages, const tw_quant_message_args_t *args,
                                     void *dst, size_t dst_bytes, size_t *bytes);
/** Decode a message of exactly src_bytes bytes, which need not be trusted. Errors as in
 *  tw_quant_lossless_decode. */
tw_status_t tw_quant_messages_decode(tw_quant_messages_t *messages, const tw_quant_message_args_t *args,
                                     tw_quant_sink_t sink, const void *src, size_t src_bytes);

TW_C_END

#endif
