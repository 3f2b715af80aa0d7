/** The lossless delta.
 *
 *  It encodes how bf16 weights change from one step to the next. A change is a number of units in the last
 *  place. It is entropy-coded (rANS) under two contexts that both ends know: the old value's exponent and the
 *  element's previous change. NaN, infinities, -0 and denormals come back bit for bit. The receiver needs the
 *  message, the old values and the states (a byte for each element).
 *
 *  Format: quant/delta/delta.h; blocks of 65,536 elements decode independently; every backend gives the same
 *  bytes. The largest message is 12 bytes longer than the elements (tw_quant_delta_bound_bytes).
 *  To measure speed and bits: ./bazelw run //bench:codecs.
 *  Source: rANS as in arXiv 1311.2540. */
#ifndef TW_QUANT_DELTA_CODEC_H
#define TW_QUANT_DELTA_CODEC_H

#include "core/core.h"

TW_C_BEGIN

/** A codec with its tables and scratch, about 0.4 MB. Calls allocate nothing. One thread at a time may
 *  call. */
typedef struct tw_quant_delta tw_quant_delta_t;

/** A piece of a message: consecutive elements of a tensor. Pointers must be aligned to an element; all memory
 *  is the caller's. Sender and receiver may cut the same elements into different segments. */
typedef struct tw_quant_delta_segment {
    const void *base; /**< bf16[n] old values: the replica */
    const void *src;  /**< encode: bf16[n] new values */
    void *dst;        /**< decode: bf16[n] new values; may be base, otherwise must not overlap it */
    /** [n] the previous change of each element, in one byte. The caller fills it with zeros before the first
     *  message; afterwards only the codec reads and writes it, at both ends. Either all segments of all
     *  messages have a state, or none (NULL). Without it messages are longer. */
    uint8_t *state;
    size_t n_elems;
} tw_quant_delta_segment_t;

/** Make a codec. backend: NULL or "auto", "ref", "avx2", "avx512", "neon". Errors, logged: TW_ERR_UNSUPPORTED
 *  if this machine cannot run that backend, TW_ERR_NO_MEMORY. */
tw_status_t tw_quant_delta_create(const char *backend, tw_quant_delta_t **out);
void tw_quant_delta_destroy(tw_quant_delta_t *delta);
const char *tw_quant_delta_backend_name(const tw_quant_delta_t *delta);
/** List names of the backends that this machine can run, best first. Returns their number (`max` at most). */
size_t tw_quant_delta_backends(const char **names, size_t max);

/** The largest length of a message of n_elems, in bytes: 12 + 2 * n_elems. SIZE_MAX if n_elems exceeds
 *  TW_MEMORY_BYTES_MAX. */
size_t tw_quant_delta_bound_bytes(size_t n_elems);

/** Write the change of all segments as one message into dst, and its length into *bytes. dst_bytes must be at
 *  least the bound for the sum of all n_elems, at most 2^30.
 *  Returns TW_ERR_INVALID (logged) and writes nothing if a pointer is NULL, dst is too small, or only some
 *  segments have a state. */
tw_status_t tw_quant_delta_encode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, void *dst, size_t dst_bytes, size_t *bytes);

/** Decode a message of exactly src_bytes bytes into the new values. The message need not be trusted: nothing
 *  outside it is read. Errors, all logged: TW_ERR_INVALID as in tw_quant_delta_encode; TW_ERR_TRUNCATED if
 *  the message is longer than src_bytes; TW_ERR_MISMATCH if its number of elements differs, or only one end
 *  has states; TW_ERR_FORMAT for anything else that an encoder does not write. Blocks have checksums of their
 *  new values. So TW_ERR_FORMAT also shows that old values or states differ from the encoder's, except where
 *  a message or a block holds the new values themselves. After TW_ERR_FORMAT dst and the states may be wrong:
 *  the caller must send all values anew. */
tw_status_t tw_quant_delta_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, const void *src, size_t src_bytes);

/* ---- 8 bits -------------------------------------------------------------------------------------------- */

/** The delta of elements of one byte, whose top bit is a sign and the rest a magnitude: e4m3 and e5m2, finite
 *  or not. Other bytes come back too, but messages may be longer. base, src and dst of segments are bytes;
 *  state is NULL. If base is NULL there are no old elements, and a message encodes the new elements
 *  themselves. Host memory only. The first call allocates 2 MB of scratch, or returns TW_ERR_NO_MEMORY. */

/** The most bytes of a message of n_elems: n_elems, plus 16, plus 1 for each 262,144 elements. */
size_t tw_quant_delta8_bound_bytes(size_t n_elems);
/** Like tw_quant_delta_encode, for at most 2^31 elements. TW_ERR_INVALID also if a segment has a state. */
tw_status_t tw_quant_delta8_encode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                   size_t n_segments, void *dst, size_t dst_bytes, size_t *bytes);
/** Like tw_quant_delta_decode. Every message has a checksum of all its new elements. */
tw_status_t tw_quant_delta8_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                   size_t n_segments, const void *src, size_t src_bytes);

TW_C_END

#endif
