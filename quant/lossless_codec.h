/** The lossless codec.
 *
 *  It encodes tensors of floating-point numbers, bit for bit. A receiver needs nothing but the message.
 *  Exponents are entropy-coded (rANS) under the scales of their row and column; signs and mantissas are sent
 *  as they are. NaN payloads, infinities, -0 and denormals come back; rows of zeros take next to nothing.
 *  Gradients and weights take 10.2 to 10.6 bits per element in bf16, and 16 bits more in fp32. fp32 numbers
 *  with zeros at the end take less: those that were bf16 before take no more than bf16; sums of 2, 4 or 8
 *  such numbers take 2.6, 4.0 or 5.4 bits more; those that were fp16 3 bits more. Integers also take less.
 *
 *  Format: quant/lossless/lossless.h; blocks of 65,536 elements decode independently; every backend gives the
 *  same bytes. The largest message is 16 bytes longer than the elements (tw_quant_lossless_bound_bytes). To
 *  measure speed and bits: ./bazelw run //bench:codecs.
 *  Source: rANS as in arXiv 1311.2540. */
#ifndef TW_QUANT_LOSSLESS_CODEC_H
#define TW_QUANT_LOSSLESS_CODEC_H

#include "quant/codec.h"

TW_C_BEGIN

/** A codec with its tables and scratch, about 1.5 MB. A call allocates memory only if its tensor has more
 *  rows or columns than any before: 2 bytes a row (of 64 elements or more), 10 bytes a column. Only one
 *  thread may use it at a time. */
typedef struct tw_quant_lossless tw_quant_lossless_t;

#define TW_QUANT_LOSSLESS_HEADER_BYTES 16

/** A piece of a message: consecutive elements of a tensor. Pointers must be aligned to an element; all memory
 *  is the caller's. The receiver may cut the same elements into other segments, without knowing rows. */
typedef struct tw_quant_lossless_segment {
    const void *src; /**< encode: type[n] */
    void *dst;       /**< decode: type[n]; with a sink of fp32 (message_codec.h): fp32[n] */
    size_t n_elems;  /**< 0 is allowed */
    /** encode: elements in a row, the tensor's last dimension; 0 if unknown, or if it has one dimension */
    size_t row_elems;
    /** encode: index of the first element in the tensor; it tells which column that element is in */
    uint64_t first_elem;
} tw_quant_lossless_segment_t;

/** Make a codec. backend: NULL or "auto", "ref", "avx2", "avx512", "neon". Errors, logged: TW_ERR_UNSUPPORTED
 *  if this machine cannot run that backend, TW_ERR_NO_MEMORY. */
tw_status_t tw_quant_lossless_create(const char *backend, tw_quant_lossless_t **out);
void tw_quant_lossless_destroy(tw_quant_lossless_t *codec);
const char *tw_quant_lossless_backend_name(const tw_quant_lossless_t *codec);
/** List names of the backends that this machine can run, best first. Returns their number (`max` at most). */
size_t tw_quant_lossless_backends(const char **names, size_t max);

/** The most bytes of a message of n_elems: a header and the elements. SIZE_MAX if n_elems is too large. */
size_t tw_quant_lossless_bound_bytes(tw_type_t type, size_t n_elems);

/** About how many bits an element of gradients takes in training; weights take 0.2 more. For fp32 it assumes
 *  that mantissas are noise to the last bit; only encoding shows if they are. */
static inline double tw_quant_lossless_usual_bits(tw_type_t type)
{
    return tw_quant_row_get(TW_QUANT_LOSSLESS)->usual_bits[type];
}

/** Write all segments as one message into dst, and its length into *bytes. dst_bytes must be at least the
 *  bound for the sum of all n_elems, at most 2^29.
 *  Errors, logged: TW_ERR_INVALID for a NULL pointer, a dst that is too small, or TW_TYPE_BYTE; nothing is
 *  written then. TW_ERR_NO_MEMORY. */
tw_status_t tw_quant_lossless_encode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     void *dst, size_t dst_bytes, size_t *bytes);

/** Read the length of the message at src into *bytes. src_bytes bytes of the message are at src;
 *  TW_QUANT_LOSSLESS_HEADER_BYTES are enough. Errors, logged: TW_ERR_TRUNCATED if there are fewer,
 *  TW_ERR_FORMAT if this is not a message. The length is the peer's and not checked: it may be anything up to
 *  2^32 - 1. */
tw_status_t tw_quant_lossless_message_bytes(const void *src, size_t src_bytes, size_t *bytes);

/** Decode a message of exactly src_bytes bytes. The message need not be trusted: nothing outside it is read.
 *  Errors, all logged: TW_ERR_INVALID as in tw_quant_lossless_encode; TW_ERR_TRUNCATED if the message is
 *  longer than src_bytes; TW_ERR_MISMATCH if its number of elements or its type differs; TW_ERR_FORMAT for a
 *  wrong checksum, or anything else that an encoder does not write; TW_ERR_NO_MEMORY. After an error dst may
 *  hold anything. */
tw_status_t tw_quant_lossless_decode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     const void *src, size_t src_bytes);

TW_C_END

#endif
