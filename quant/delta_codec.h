/** The lossless delta.
 *
 *  It encodes the change of bf16 weights from one step to the next: in units in the last place, entropy-coded
 *  (rANS) under two contexts that both ends know, the old value's exponent and the previous step's change.
 *  NaN, infinities, -0 and denormals come back bit for bit. The receiver needs the old values, the message
 *  and the states.
 *
 *  Format: quant/delta/delta.h; blocks of 65,536 elements decode independently; every backend gives the same
 *  bytes. Worst case: tw_quant_delta_bound_bytes, plain plus 12 bytes a message, whatever the values.
 *  Speed and bits: ./bazelw run //bench:codecs.
 *  Source: rANS as in arXiv 1311.2540. */
#ifndef TW_QUANT_DELTA_CODEC_H
#define TW_QUANT_DELTA_CODEC_H

#include "core/core.h"

TW_C_BEGIN

/** A codec with its tables and scratch, about 0.4 MB. Calls allocate nothing. One thread at a time. */
typedef struct tw_quant_delta tw_quant_delta_t;

/** A piece of a message: consecutive elements of a tensor. Pointers need element alignment; all memory is the
 *  caller's. The receiver may cut the same elements into other segments. */
typedef struct tw_quant_delta_segment {
    const void *base; /**< bf16[n] old values: the replica */
    const void *src;  /**< encode: bf16[n] new values */
    void *dst;        /**< decode: bf16[n] new values; may be base, otherwise must not overlap it */
    /** [n], the previous change of each element, in one byte. Zeros before the first message; after that only
     *  the codec reads and rewrites it, at both ends. Either all segments of all messages have it, or none
     *  (NULL), and messages are longer. */
    uint8_t *state;
    size_t n_elems;
} tw_quant_delta_segment_t;

/** Make a codec. backend: NULL or "auto", "ref", "avx2", "avx512", "neon". TW_ERR_UNSUPPORTED (no such
 *  backend here), TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_delta_create(const char *backend, tw_quant_delta_t **out);
void tw_quant_delta_destroy(tw_quant_delta_t *delta);
const char *tw_quant_delta_backend_name(const tw_quant_delta_t *delta);
/** List the names of the backends usable here, best first; returns how many were written (at most `max`). */
size_t tw_quant_delta_backends(const char **names, size_t max);

/** Most bytes of a message of n_elems, those of a plain one: 12 + 2 * n_elems; SIZE_MAX for more than
 *  TW_MEMORY_BYTES_MAX. */
size_t tw_quant_delta_bound_bytes(size_t n_elems);

/** Write the change of all segments as one message. dst has dst_bytes, at least the bound for the sum of
 *  n_elems (2^30 at most); *bytes is what the message takes.
 *  TW_ERR_INVALID, logged, before anything is written: a NULL pointer, a dst too small, a state in some
 *  segments only. */
tw_status_t tw_quant_delta_encode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, void *dst, size_t dst_bytes, size_t *bytes);

/** Read a message of exactly src_bytes bytes (any bytes: nothing outside it is read) and make the new values.
 *  TW_ERR_INVALID: as above; TW_ERR_TRUNCATED: shorter than it says; TW_ERR_MISMATCH: another number of
 *  elements, or only one end has states; TW_ERR_FORMAT: anything else that no encoder writes. Old values or
 *  states that differ from the encoder's give TW_ERR_FORMAT, too, except where new values were sent as they
 *  are: each block, and each message that is not coded, has a checksum of its new values. Logged. After
 *  TW_ERR_FORMAT, which a block may have caused, dst and the states are spoilt: they need a full sync. */
tw_status_t tw_quant_delta_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, const void *src, size_t src_bytes);

/* ---- 8 bits -------------------------------------------------------------------------------------------- */

/** The same for elements of one byte, a sign and then a magnitude: e4m3 and e5m2, finite or not. Any other
 *  bytes come back, too, in messages that may be longer. base, src and dst of segments are bytes, state is
 *  NULL; base NULL: there are no old elements, and a message has the new ones themselves. Host memory only.
 *  The first call makes another 2 MB of scratch, or returns TW_ERR_NO_MEMORY. */

/** Most bytes of a message of n_elems: plain, plus 16, plus one for each 262,144 elements. */
size_t tw_quant_delta8_bound_bytes(size_t n_elems);
/** As tw_quant_delta_encode, of 2^31 elements at most. TW_ERR_INVALID, too: a segment with a state. */
tw_status_t tw_quant_delta8_encode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                   size_t n_segments, void *dst, size_t dst_bytes, size_t *bytes);
/** As tw_quant_delta_decode. Every message has a checksum of all its new elements. */
tw_status_t tw_quant_delta8_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                   size_t n_segments, const void *src, size_t src_bytes);

TW_C_END

#endif
