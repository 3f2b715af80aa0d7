/** Codecs of messages, and the lossless delta, on streams.
 *
 *  The same messages, bit for bit, for memory of a GPU: a call enqueues on a stream and returns; the
 *  message's length, or whether it could be decoded, is in memory when the stream gets there. Either side may
 *  be a GPU's or the host's. For host memory the calls work at once and ignore the stream: a simulated GPU
 *  needs no other code. */
#ifndef TW_QUANT_STREAMS_H
#define TW_QUANT_STREAMS_H

#include "quant/delta_codec.h"
#include "quant/message_codec.h"

TW_C_BEGIN

/* ---- codecs of messages -------------------------------------------------------------------------------- */

/** A codec on one device: the device that is current when it is made must be current in its calls. Calls may
 *  come from any thread, one at a time; they may be in flight on several streams, each with its own
 *  workspace, and may be captured into a graph, which then owns the lists of segments. They allocate nothing
 *  on the device. */
typedef struct tw_quant_messages_stream tw_quant_messages_stream_t;

/** The outcome of a call, 8 bytes aligned to 8. It is complete when the stream has passed the call. */
typedef struct tw_quant_outcome {
    uint32_t bytes; /**< the message's bytes, with its header; 0 if it could not be decoded */
    int32_t status; /**< a tw_status_t: TW_OK, or the error of the host's decoder, which a GPU does not log */
} tw_quant_outcome_t;

/** What calls on a stream share. Memory is the caller's, borrowed until the stream has passed the call. */
typedef struct tw_quant_stream_args {
    tw_stream_t stream;
    /** memory of the codec's kind, aligned to 256 bytes; not needed if 0 bytes are said to be enough */
    void *workspace;
    size_t workspace_bytes;
    /** memory of the codec's kind; NULL: not wanted. Kernels, and the collectives, may read it */
    tw_quant_outcome_t *outcome;
    tw_quant_outcome_t *host; /**< in pinned host memory, written on the stream as well; NULL: not wanted */
} tw_quant_stream_args_t;

/** Make a codec. mem: the memory of tensors, messages, workspaces and outcomes. TW_ERR_INVALID: not a codec
 *  of messages; TW_ERR_UNSUPPORTED: CUDA memory without CUDA or without a GPU; TW_ERR_NO_MEMORY, TW_ERR_CUDA;
 *  logged. */
tw_status_t tw_quant_messages_stream_create(const tw_quant_codec_t *codec, tw_mem_t mem,
                                            tw_quant_messages_stream_t **out);
void tw_quant_messages_stream_destroy(tw_quant_messages_stream_t *codec);
const tw_quant_codec_t *tw_quant_messages_stream_codec(const tw_quant_messages_stream_t *codec);

/** Bytes of workspace that are enough to encode these segments, whose pointers are not read: about 5.2 an
 *  element of bf16, 7.2 of fp16 and fp32; of ecdq 6, and 8 of fp32. SIZE_MAX: the call would be refused. */
size_t tw_quant_messages_encode_workspace_bytes(tw_quant_messages_stream_t *codec,
                                                const tw_quant_message_args_t *args);
/** Bytes of workspace that are enough to decode n_elems in n_segments segments: about 2.8 an element, for
 *  ecdq 4.8. */
size_t tw_quant_messages_decode_workspace_bytes(tw_quant_messages_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments);

/** Write all segments as one message, as tw_quant_messages_encode does. The list of segments may go when this
 *  returns. dst: aligned to 16 bytes, of dst_bytes, at least the bound. The outcome's status is TW_OK.
 *  TW_ERR_INVALID, before anything is enqueued: as tw_quant_messages_encode; also if the workspace is too
 *  small, or anything is not aligned; TW_ERR_NO_MEMORY (of the host), TW_ERR_CUDA; logged. */
tw_status_t tw_quant_messages_stream_encode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, void *dst, size_t dst_bytes);

/** A message to read; nothing outside its bytes is read. */
typedef struct tw_quant_message {
    const void *src; /**< aligned to 16 bytes, any bytes */
    /** the message's bytes; with at_most, how many may be read: the bound is always enough */
    size_t src_bytes;
    int at_most; /**< 1: the message itself says how many bytes it has */
} tw_quant_message_t;

/** Read a message, as tw_quant_messages_decode does. Nothing outside of the segments is written. The
 *  outcome's status is what the host's decoder returns: TW_OK, TRUNCATED, MISMATCH or FORMAT; after an error
 *  dst may hold anything. TW_ERR_INVALID, before anything is enqueued: as tw_quant_messages_stream_encode;
 *  TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_messages_stream_decode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                                            tw_quant_message_t message);

/* ---- the lossless delta -------------------------------------------------------------------------------- */

/* The lossless delta writes the messages of tw_quant_delta_encode, bit for bit, for replicas and states
 * in memory of a GPU, by the rules above. */

/** A codec on one device; the same rules as for tw_quant_messages_stream_t. */
typedef struct tw_quant_delta_stream tw_quant_delta_stream_t;

/** Make a codec. mem: the memory of values, states, messages, workspaces and outcomes. TW_ERR_UNSUPPORTED:
 *  CUDA memory without CUDA or without a GPU; TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_delta_stream_create(tw_mem_t mem, tw_quant_delta_stream_t **out);
void tw_quant_delta_stream_destroy(tw_quant_delta_stream_t *codec);

/** Bytes of workspace that are enough to encode n_elems in n_segments segments, about 2 an element; and to
 *  decode them, next to nothing an element. SIZE_MAX: the call would be refused. codec NULL: one for GPU
 *  memory, even if there is no GPU. */
size_t tw_quant_delta_encode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments);
size_t tw_quant_delta_decode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments);

/** Write the change of all segments as one message, as tw_quant_delta_encode does; states are updated. The
 *  list of segments may go when this returns. dst: aligned to 16 bytes, of dst_bytes, at least the bound. The
 *  outcome's status is TW_OK. TW_ERR_INVALID, before anything is enqueued: as tw_quant_delta_encode; also if
 *  the workspace is too small, or anything is not aligned; TW_ERR_NO_MEMORY (of the host), TW_ERR_CUDA;
 *  logged. */
tw_status_t tw_quant_delta_stream_encode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         void *dst, size_t dst_bytes);

/** Read a message and make the new values, as tw_quant_delta_decode does. Nothing outside of the segments is
 *  written.
 *  The outcome's status is what the host's decoder returns: TW_OK, TRUNCATED, MISMATCH or FORMAT. After
 *  FORMAT dst and the states are spoilt; they are as they were after the others.
 *  TW_ERR_INVALID, before anything is enqueued: as tw_quant_delta_stream_encode; TW_ERR_NO_MEMORY,
 *  TW_ERR_CUDA; logged. */
tw_status_t tw_quant_delta_stream_decode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         tw_quant_message_t message);

TW_C_END

#endif
