/** Codecs of messages, and the lossless delta, on streams.
 *
 *  The same messages, bit for bit, for memory of a GPU: a call enqueues on a stream and returns, and how long
 *  the message is, or whether it could be decoded, stands in memory when the stream gets there. Any side may
 *  be a GPU's or the host's. For host memory the calls work at once and ignore the stream: a simulated GPU
 *  needs no other code. */
#ifndef TW_QUANT_STREAMS_H
#define TW_QUANT_STREAMS_H

#include "quant/delta_codec.h"
#include "quant/message_codec.h"

TW_C_BEGIN

/* ---- codecs of messages -------------------------------------------------------------------------------- */

/** A codec on one device, the one that was current when it was made and must be in its calls. Calls may come
 *  from any thread, one at a time; they may be in flight on several streams, each with a workspace of its
 *  own, and may be captured into a graph, which then owns the lists of segments. They allocate nothing on the
 *  device. */
typedef struct tw_quant_messages_stream tw_quant_messages_stream_t;

/** What became of a call, 8 bytes aligned to 8. Whole when the stream has passed the call. */
typedef struct tw_quant_outcome {
    uint32_t bytes; /**< of the message, header included; 0 if it could not be decoded */
    int32_t status; /**< a tw_status_t: TW_OK, or the verdict of the host's decoder; a GPU does not log it */
} tw_quant_outcome_t;

/** What calls on a stream share. Memory is the caller's, borrowed until the stream has passed the call. */
typedef struct tw_quant_stream_args {
    tw_stream_t stream;
    /** in the codec's memory, aligned to 256 bytes; not needed where its bytes are said to be 0 */
    void *workspace;
    size_t workspace_bytes;
    /** in the codec's memory; NULL: not wanted. Kernels and the collectives may read it */
    tw_quant_outcome_t *outcome;
    tw_quant_outcome_t *host; /**< in pinned host memory, written on the stream as well; NULL: not wanted */
} tw_quant_stream_args_t;

/** mem: where tensors, messages, workspaces and outcomes are. TW_ERR_INVALID: not a codec of messages;
 *  TW_ERR_UNSUPPORTED: CUDA memory without CUDA or without a GPU; TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_messages_stream_create(const tw_quant_codec_t *codec, tw_mem_t mem,
                                            tw_quant_messages_stream_t **out);
void tw_quant_messages_stream_destroy(tw_quant_messages_stream_t *codec);
const tw_quant_codec_t *tw_quant_messages_stream_codec(const tw_quant_messages_stream_t *codec);

/** Bytes of workspace that are enough to encode these segments, whose pointers are not read: about 5.2 an
 *  element of bf16, 7.2 of fp16 and fp32; of ecdq 6, and 8 of fp32. SIZE_MAX: the call would be refused. */
size_t tw_quant_messages_encode_workspace_bytes(tw_quant_messages_stream_t *codec,
                                                const tw_quant_message_args_t *args);
/** And to decode n_elems in n_segments segments: about 2.8 an element, of ecdq 4.8. */
size_t tw_quant_messages_decode_workspace_bytes(tw_quant_messages_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments);

/** Write all segments as one message, as tw_quant_messages_encode does. The list of segments may go when this
 *  returns. dst: aligned to 16 bytes, of dst_bytes, at least the bound. The outcome's status is TW_OK.
 *  TW_ERR_INVALID, before anything is enqueued: as tw_quant_messages_encode, a workspace too small, what is
 *  not aligned; TW_ERR_NO_MEMORY (of the host), TW_ERR_CUDA; logged. */
tw_status_t tw_quant_messages_stream_encode(tw_quant_messages_stream_t *codec,
                                            const tw_quant_stream_args_t *call,
                                            const tw_quant_message_args_t *args, void *dst, size_t dst_bytes);

/** A message that is read. Nothing outside of its bytes is. */
typedef struct tw_quant_message {
    const void *src;  /**< aligned to 16 bytes, any bytes */
    size_t src_bytes; /**< the message's; with at_most those that may be read: the bound is enough to know */
    int at_most;      /**< 1: the message says how many it has */
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

/* The messages of tw_quant_delta_encode, bit for bit, for replicas and states in memory of a GPU; otherwise
 * as above. */

/** A codec on one device; the same rules as for tw_quant_messages_stream_t. */
typedef struct tw_quant_delta_stream tw_quant_delta_stream_t;

/** mem: where values, states, messages, workspaces and outcomes are. TW_ERR_UNSUPPORTED: CUDA memory without
 *  CUDA or without a GPU; TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_delta_stream_create(tw_mem_t mem, tw_quant_delta_stream_t **out);
void tw_quant_delta_stream_destroy(tw_quant_delta_stream_t *codec);

/** Bytes of workspace that are enough to encode n_elems in n_segments segments: about 2 an element. SIZE_MAX:
 *  the call would be refused. And to decode them: next to nothing an element. codec NULL: one for memory of a
 *  GPU, which need not be there. */
size_t tw_quant_delta_encode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments);
size_t tw_quant_delta_decode_workspace_bytes(const tw_quant_delta_stream_t *codec, size_t n_elems,
                                             size_t n_segments);

/** Write the change of all segments as one message, as tw_quant_delta_encode does; states move on. The list
 *  of segments may go when this returns. dst: aligned to 16 bytes, of dst_bytes, at least the bound. The
 *  outcome's status is TW_OK. TW_ERR_INVALID, before anything is enqueued: as tw_quant_delta_encode, a
 *  workspace too small, what is not aligned; TW_ERR_NO_MEMORY (of the host), TW_ERR_CUDA; logged. */
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
