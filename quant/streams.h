/** Codecs of messages and the lossless delta in GPU memory, on streams.
 *
 *  A call enqueues on a stream and returns. When the stream has passed the call, an outcome in memory has the
 *  message's length and whether decoding succeeded. Messages have the same bits as those of the host's
 *  codecs: one end may be a GPU and the other a host. For host memory the calls work at once and ignore the
 *  stream, so that code written for GPUs can run without one. */
#ifndef TW_QUANT_STREAMS_H
#define TW_QUANT_STREAMS_H

#include "quant/delta_codec.h"
#include "quant/message_codec.h"

TW_C_BEGIN

/* ---- codecs of messages -------------------------------------------------------------------------------- */

/** A codec on one device: the device that is current when it is made must be current in its calls. Any thread
 *  may call, one at a time. Calls may be in flight on several streams if each has its own workspace. They may
 *  be captured into a graph, which then has a copy of the list of segments. They allocate no device
 *  memory. */
typedef struct tw_quant_messages_stream tw_quant_messages_stream_t;

/** The outcome of a call, 8 bytes aligned to 8. It is valid when the stream has passed the call. */
typedef struct tw_quant_outcome {
    uint32_t bytes; /**< the message's length, with its header; 0 if it could not be decoded */
    int32_t status; /**< a tw_status_t: TW_OK, or the error of the host's decoder, which a GPU does not log */
} tw_quant_outcome_t;

/** Arguments of all calls. Memory is the caller's, borrowed until the stream has passed the call. */
typedef struct tw_quant_stream_args {
    tw_stream_t stream;
    /** of the codec's kind of memory, aligned to 256 bytes; may be NULL if 0 bytes are enough (see below) */
    void *workspace;
    size_t workspace_bytes;
    /** of the codec's kind of memory, for kernels and collectives to read; NULL: not wanted */
    tw_quant_outcome_t *outcome;
    tw_quant_outcome_t *host; /**< in pinned host memory, written on the stream as well; NULL: not wanted */
} tw_quant_stream_args_t;

/** Make a codec. mem: the memory of tensors, messages, workspaces and outcomes. Errors, logged:
 *  TW_ERR_INVALID if the codec's form is not TW_QUANT_MESSAGE, TW_ERR_UNSUPPORTED for CUDA memory without
 *  CUDA or a GPU, TW_ERR_NO_MEMORY, TW_ERR_CUDA. */
tw_status_t tw_quant_messages_stream_create(const tw_quant_codec_t *codec, tw_mem_t mem,
                                            tw_quant_messages_stream_t **out);
void tw_quant_messages_stream_destroy(tw_quant_messages_stream_t *codec);
const tw_quant_codec_t *tw_quant_messages_stream_codec(const tw_quant_messages_stream_t *codec);

/** Bytes of workspace that are enough to encode these segments (their pointers are not read). For lossless
 *  about 5.2 bytes per element of bf16, 7.2 of fp16 or fp32; for ecdq 6, or 8 of fp32. SIZE_MAX: the call
 *  would fail. */
size_t tw_quant_messages_encode_workspace_bytes(tw_quant_messages_stream_t *codec,
                                                const tw_quant_message_args_t *args);
/** Bytes of workspace that are enough to decode n_elems in n_segments segments: about 2.8 bytes per element,
 *  for ecdq 4.8. */
size_t tw_quant_messages_decode_workspace_bytes(tw_quant_messages_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments);

/** Write all segments as one message, as tw_quant_messages_encode does. The list of segments may be freed
 *  when this returns. dst must be aligned to 16 bytes; dst_bytes must be at least the bound. The outcome's
 *  status is TW_OK. Errors, logged: TW_ERR_INVALID as in tw_quant_messages_encode, or if the workspace is too
 *  small or a pointer is not aligned, and nothing is enqueued; TW_ERR_NO_MEMORY (of the host),
 *  TW_ERR_CUDA. */
tw_status_t tw_quant_messages_stream_encode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, void *dst, size_t dst_bytes);

/** A message to read; nothing outside its bytes is read. */
typedef struct tw_quant_message {
    const void *src; /**< aligned to 16 bytes; untrusted */
    /** the message's length; with at_most 1, the number of bytes that may be read, for example the bound */
    size_t src_bytes;
    int at_most; /**< 1: the message's length is unknown here; its header has it */
} tw_quant_message_t;

/** Read a message, as tw_quant_messages_decode does. Nothing outside of the segments is written. The
 *  outcome's status is what the host's decoder returns: TW_OK, TRUNCATED, MISMATCH or FORMAT; after an error
 *  dst may hold anything. Errors of the call itself are as in tw_quant_messages_stream_encode. */
tw_status_t tw_quant_messages_stream_decode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, tw_quant_sink_t sink,
                                            tw_quant_message_t message);

/* ---- the lossless delta -------------------------------------------------------------------------------- */

/* The lossless delta for replicas and states in GPU memory. Its messages have the same bits as those of
 * tw_quant_delta_encode. The rules above hold. */

/** A codec on one device, with the rules of tw_quant_messages_stream_t. */
typedef struct tw_quant_delta_stream tw_quant_delta_stream_t;

/** Make a codec. mem: the memory of values, states, messages, workspaces and outcomes. Errors, logged:
 *  TW_ERR_UNSUPPORTED for CUDA memory without CUDA or a GPU, TW_ERR_NO_MEMORY, TW_ERR_CUDA. */
tw_status_t tw_quant_delta_stream_create(tw_mem_t mem, tw_quant_delta_stream_t **out);
void tw_quant_delta_stream_destroy(tw_quant_delta_stream_t *codec);

/** Bytes of workspace that are enough to encode n_elems in n_segments segments, about 2 per element, and to
 *  decode them, almost none per element. SIZE_MAX if the call would fail. codec NULL stands for a codec for
 *  GPU memory, even if there is no GPU. */
size_t tw_quant_delta_encode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments);
size_t tw_quant_delta_decode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments);

/** Write the change of all segments as one message, as tw_quant_delta_encode does; states are updated. All
 *  else is as in tw_quant_messages_stream_encode. The call returns TW_ERR_INVALID also where
 *  tw_quant_delta_encode does. */
tw_status_t tw_quant_delta_stream_encode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         void *dst, size_t dst_bytes);

/** Read a message into the new values, as tw_quant_delta_decode does. Nothing outside of the segments is
 *  written.
 *  The outcome's status is what the host's decoder returns: TW_OK, TRUNCATED, MISMATCH or FORMAT. After
 *  FORMAT dst and the states may be wrong; after the other errors they are unchanged.
 *  Errors of the call itself are as in tw_quant_delta_stream_encode. */
tw_status_t tw_quant_delta_stream_decode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         tw_quant_message_t message);

TW_C_END

#endif
