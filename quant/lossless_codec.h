/** The lossless codec.
 *
 *  It encodes tensors of floating-point numbers, bit for bit, and both ends need no other knowledge:
 *  exponents are entropy-coded (rANS) under the scales of their row and column, signs and mantissas are sent
 *  as they are. NaN payloads, infinities, -0 and denormals come back; rows of zeros take next to nothing.
 *  Gradients and weights in bf16: 10.2 to 10.6 bits; in fp32 16 more, but numbers that were bf16 before take
 *  what bf16 takes, sums of 2, 4, 8 of them 2.6, 4.0, 5.4 more, numbers that were fp16 3 more, integers
 *  likewise.
 *
 *  Format: quant/lossless/lossless.h; blocks of 65,536 elements decode independently; every backend gives the
 *  same bytes. Worst case: tw_quant_lossless_bound_bytes, plain plus 16 bytes a message, whatever the values.
 *  Speed and bits: ./bazelw run //bench:codecs.
 *  Source: rANS as in arXiv 1311.2540. */
#ifndef TW_QUANT_LOSSLESS_CODEC_H
#define TW_QUANT_LOSSLESS_CODEC_H

#include "quant/codec.h"

TW_C_BEGIN

/** A codec with its tables and scratch, about 1.5 MB. Calls allocate memory only for more rows and columns
 *  than in any call before: 2 bytes a row of 64 elements or more, 10 a column. One thread at a time. */
typedef struct tw_quant_lossless tw_quant_lossless_t;

#define TW_QUANT_LOSSLESS_HEADER_BYTES 16

/** A piece of a message: consecutive elements of a tensor. Pointers need element alignment; all memory is the
 *  caller's. The receiver may cut the same elements into other segments, and need not know rows. */
typedef struct tw_quant_lossless_segment {
    const void *src; /**< encode: type[n] */
    void *dst;       /**< decode: type[n]; decode_fp32: fp32[n] */
    size_t n_elems;  /**< 0 is allowed */
    /** encode: elements in a row, the tensor's last dimension; 0: not known, or there is only one
     *  dimension */
    size_t row_elems;
    /** encode: index in the tensor of the first element, which gives its place in its row */
    uint64_t first_elem;
} tw_quant_lossless_segment_t;

/** Make a codec. backend: NULL or "auto", "ref", "avx2", "avx512", "neon". TW_ERR_UNSUPPORTED (no such
 *  backend here), TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_lossless_create(const char *backend, tw_quant_lossless_t **out);
void tw_quant_lossless_destroy(tw_quant_lossless_t *codec);
const char *tw_quant_lossless_backend_name(const tw_quant_lossless_t *codec);
/** List the names of the backends usable here, best first; returns how many were written (at most `max`). */
size_t tw_quant_lossless_backends(const char **names, size_t max);

/** Most bytes of a message of n_elems, those of a plain one with its header; SIZE_MAX: it does not fit. */
size_t tw_quant_lossless_bound_bytes(tw_type_t type, size_t n_elems);

/** About how many bits an element of gradients takes in training; weights take 0.2 more. In fp32 they count
 *  as noise to the last bit: nobody knows beforehand whether there is less to send. */
static inline double tw_quant_lossless_usual_bits(tw_type_t type)
{
    return tw_quant_row_get(TW_QUANT_LOSSLESS)->usual_bits[type];
}

/** Write all segments as one message. dst has dst_bytes, at least the bound for the sum of n_elems (2^29 at
 *  most); *bytes is what the message takes.
 *  TW_ERR_INVALID, before anything is written: a NULL pointer, a dst too small, TW_TYPE_BYTE;
 *  TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_lossless_encode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     void *dst, size_t dst_bytes, size_t *bytes);

/** Read the length of the message that begins at src, of which src_bytes are there: HEADER_BYTES are enough.
 *  TW_ERR_TRUNCATED: there are fewer; TW_ERR_FORMAT: not a message; logged. A peer's message may lie: *bytes
 *  may be anything up to 2^32 - 1. */
tw_status_t tw_quant_lossless_message_bytes(const void *src, size_t src_bytes, size_t *bytes);

/** Read a message of exactly src_bytes bytes (any bytes: nothing outside it is read) and make the values.
 *  TW_ERR_INVALID: as above; TW_ERR_TRUNCATED: shorter than it says; TW_ERR_MISMATCH: another number of
 *  elements, or another type; TW_ERR_FORMAT: anything else that no encoder writes, or that does not fit its
 *  checksums; TW_ERR_NO_MEMORY. Logged. After an error dst may hold anything. */
tw_status_t tw_quant_lossless_decode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     const void *src, size_t src_bytes);

TW_C_END

#endif
