/** Thinwire quant: block codecs, bit-identical on every backend (CPU reference, CPU SIMD, CUDA).
 *
 *  A codec turns a segment (consecutive elements of ONE tensor) into blocks of small integers with one scale
 *  each.
 *
 *  Wire format of a segment of n elements (little-endian; all offsets from the segment's first byte):
 *    - the segment is cut into blocks of `block` elements (the last may be short), and blocks into frames of
 *      8;
 *    - a frame is 8 scales (bf16: 16 bytes, fp32: 32 bytes; the unused scales of a last short frame are 0),
 *      followed by the codes of its blocks, block after block; a full frame is a multiple of 16 bytes, so
 *      everything stays aligned;
 *    - 8 bits: one two's-complement byte per element; 4 bits: element 2i in the low nibble of byte i, 2i+1 in
 *      the high one, two's complement; an odd last element leaves a zero high nibble; 2 bits: likewise, four
 *      elements a byte;
 *    - the whole is padded with zeros to a multiple of 16 bytes.
 *  A range of whole frames is itself a valid segment: that is how a segment is cut into chunks.
 *
 *  Arithmetic of a block, in fp32 without fused multiply-add, for qmax = 2^(bits-1) - 1:
 *    y = x, or the rotated x (below);  amax = max |y|
 *    scale = max(amax / reach, 2^-125), reach = qmax, but 2 for 2 bits (below), for a bf16 scale rounded UP
 *    to bf16 (so nothing clips); amax == 0: scale 0, codes 0
 *    inv = 1 / scale;  v = y * inv;  q = clamp(round(v), -qmax, qmax)
 *    round is nearest-even, or stochastic: floor(v) + (u < v - floor(v) ? 1 : 0), u = (w >> 8) * 2^-24 where
 *    w is word (e & 3) of Philox4x32-10 with key (seed lo, seed hi) and counter (e>>2 lo, e>>2 hi, tensor,
 *    step) for the element's index e in its tensor.
 *    decoded: z = q * scale, clamped to the finite fp32 range, rotated back, rounded to nearest even into the
 *    destination type; a finite value beyond the type's range saturates (the scale was rounded up: fp16's
 *    65504 may come back as more). A block that contains NaN or Inf (or, with Hadamard, whose amax exceeds
 *    2^122: rotating it back could overflow) gets a NaN scale (0x7fc0 or 0x7fc00000) and codes 0, and is
 *    counted. A block whose scale is not finite decodes to the type's quiet NaN (0x7fc00000, 0x7fc0, 0x7e00)
 *    throughout.
 *  Hadamard: every whole group of 32 consecutive elements of a block is multiplied by the 32x32 Hadamard
 *  matrix
 *    (Sylvester order, butterfly strides 1, 2, 4, 8, 16: (a, b) -> (a + b, a - b)) and then by 2^-2.5 rounded
 *    to fp32; a shorter last group is left as it is. Self-inverse.
 *
 *  2 bits, for changes of weights: codes -1, 0 and 1 times half the largest magnitude, so zeros stay zeros
 *  beside an outlier,
 *    which the next change mends. Each element comes nearer to what it was or stays 0, and the largest one
 *    halves its error (from 2^-124 on): a contraction, ||C(x) - x||^2 <= (1 - 3 / (4 n)) ||x||^2 for n
 *    elements. ||C(x) - x|| / ||x|| measured on blocks of 64, with steps of amax / 1, amax / 2 and, with a
 *    signed scale and codes -2 to 1, amax / 2.5; and without a zero (-3/2, -1/2, 1/2, 3/2 steps of amax /
 *    2.5): normal values 0.71 / 0.44 / 0.36 / 0.35; lognormal scales 0.64 / 0.56 / 0.43 / 0.75, with Hadamard
 *    0.68 / 0.43 / 0.36 / 0.33; one outlier among zeros, at worst 0 / 0.50 / 0.20 / 1.64.
 *
 *  Error bound, nearest-even, without Hadamard: |x - decode(x)| <= tw_quant_error_bound(codec, amax) per
 *  element, before rounding into the destination type; stochastic: twice that.
 *
 *  Source: block quantization as in ZeRO++ (arXiv 2306.10209) section 3.1; rotation as in SDP4Bit (arXiv
 *  2410.15526). */
#ifndef TW_QUANT_QUANT_H
#define TW_QUANT_QUANT_H

#include "core/core.h"

TW_C_BEGIN

typedef enum tw_quant_scale { TW_QUANT_SCALE_BF16 = 0, TW_QUANT_SCALE_FP32 = 1 } tw_quant_scale_t;
typedef enum tw_quant_round { TW_QUANT_ROUND_NEAREST = 0, TW_QUANT_ROUND_STOCHASTIC = 1 } tw_quant_round_t;

#define TW_QUANT_FRAME_BLOCKS 8
#define TW_QUANT_BLOCK_MIN 32
#define TW_QUANT_BLOCK_MAX 4096
#define TW_QUANT_HADAMARD_ELEMS 32
#define TW_QUANT_ALIGN_BYTES 16

/** What is sent: plain data, compare with tw_quant_codec_equal. */
typedef struct tw_quant_codec {
    int bits;               /**< 8, 4 or 2 */
    int block;              /**< elements per scale: 32 to 4096, a multiple of 32 */
    tw_quant_scale_t scale; /**< type of the stored scale */
    tw_quant_round_t round;
    int hadamard; /**< 0 or 1 */
    /** 1: nothing is lost, messages are as long as they come, and all else here is 0: for whoever takes a
     *  codec as data, such as the collectives; the calls for blocks below refuse it */
    int lossless;
} tw_quant_codec_t;

/** TW_OK, or TW_ERR_INVALID with a log line naming the field that is out of range. */
tw_status_t tw_quant_codec_check(const tw_quant_codec_t *codec);
int tw_quant_codec_equal(const tw_quant_codec_t *a, const tw_quant_codec_t *b);
/** Parse "lossless", or "int8", "int4", "int2", with options:
 *  "int4:block=128,hadamard,stochastic,scale=fp32". Default block: 2048 for int8, 128 for int4, 64 for int2.
 *  TW_ERR_INVALID, logged. */
tw_status_t tw_quant_codec_parse(const char *text, tw_quant_codec_t *codec);
/** The inverse of parse, into `buf`; returns buf. */
const char *tw_quant_codec_format(const tw_quant_codec_t *codec, char *buf, size_t buf_bytes);

/** Elements and bytes of a full frame, and bytes of an encoded segment of n_elems (0 for 0; SIZE_MAX, which
 *  no memory has, for more than TW_MEMORY_BYTES_MAX). The codec must be valid, and not lossless. */
size_t tw_quant_frame_elems(const tw_quant_codec_t *codec);
size_t tw_quant_frame_bytes(const tw_quant_codec_t *codec);
size_t tw_quant_encoded_bytes(const tw_quant_codec_t *codec, size_t n_elems);

/** Largest |x - decode(x)| for nearest-even without Hadamard in a block whose largest magnitude is amax (fp32
 *  result of the scale's rounding included; 2^-126 at least). With Hadamard it bounds the error in the
 *  rotated domain: the 2-norm of a group's error is at most sqrt(32) times it. */
double tw_quant_error_bound(const tw_quant_codec_t *codec, double amax);

/** A codec bound to a backend. Calls on one context may run concurrently from several threads (host) or
 *  streams (device). */
typedef struct tw_quant tw_quant_t;

typedef struct tw_quant_params {
    tw_quant_codec_t codec;
    tw_mem_t mem;        /**< memory that all pointers of the calls live in */
    const char *backend; /**< NULL or "auto", "ref", "avx2", "avx512", "cuda" */
} tw_quant_params_t;

/** TW_ERR_INVALID: bad codec, or the lossless one; TW_ERR_UNSUPPORTED: no such backend on this machine
 *  (logged with those there are). */
tw_status_t tw_quant_create(const tw_quant_params_t *params, tw_quant_t **out);
void tw_quant_destroy(tw_quant_t *quant);
const tw_quant_codec_t *tw_quant_codec_get(const tw_quant_t *quant);
const char *tw_quant_backend_name(const tw_quant_t *quant);
/** Blocks with NaN or Inf met by this context's encoding calls so far. On CUDA: synchronises with the
 *  device. */
uint64_t tw_quant_nonfinite_blocks(const tw_quant_t *quant);
/** Names of the backends usable here for `mem`, best first; returns how many were written (at most `max`). */
size_t tw_quant_backends(tw_mem_t mem, const char **names, size_t max);

/* CUDA: a context belongs to the device that was current when it was made, which must be current in its
 * calls. A call enqueues and returns: it neither allocates nor waits, and may be captured into a graph, which
 * then owns the list of segments and all arguments (seed, step and factor too). Up to 444 segments are one
 * launch. Only reductions of more than 3990 inputs that do not lie at equal distances need a workspace:
 * tw_quant_reduce_workspace_bytes. */

/** A cudaError_t as a status. Anything but success is logged with its name, number and `what` was attempted:
 *  out of memory -> NO_MEMORY; no device, driver or kernel for it -> UNSUPPORTED; everything else -> CUDA.
 *  Only built with CUDA. */
tw_status_t tw_quant_cuda_status(int error, const char *what);

/** What all segments of a call share. */
typedef struct tw_quant_args {
    tw_type_t type;     /**< of the plain side; TW_TYPE_BYTE or an unknown one is refused */
    uint64_t seed;      /**< stochastic rounding: key */
    uint32_t step;      /**< stochastic rounding: training step */
    float factor;       /**< reduce_*: the sum is multiplied by it (1 for a sum, 1/W for a mean); finite */
    tw_stream_t stream; /**< CUDA only: calls enqueue here and return */
    /** reduce_*, CUDA only: device memory, aligned to 8 bytes, in use until the stream has passed the call,
     *  and by a graph at each replay; NULL where tw_quant_reduce_workspace_bytes says 0. */
    void *workspace;
    size_t workspace_bytes;
    /** reduce_decode: 1: a finite result beyond `type` becomes its largest number, not infinite */
    int saturate;
} tw_quant_args_t;

/** One segment of a call. Plain pointers need only element alignment, encoded ones none; aligned to 16 bytes
 *  they are faster. src and dst must not overlap except where said. All memory is the caller's, borrowed for
 *  the call (on CUDA, until the stream has passed it). n_elems 0 is allowed and does nothing. */
typedef struct tw_quant_segment {
    const void *src;
    const void *base; /**< encode_delta only */
    void *dst;
    size_t n_elems;
    uint32_t tensor;     /**< stochastic rounding: which tensor */
    uint64_t first_elem; /**< index in that tensor of the segment's first element */
} tw_quant_segment_t;

/* All return TW_OK, TW_ERR_INVALID (type, NULL pointer, n_elems beyond TW_MEMORY_BYTES_MAX; logged) or
 * TW_ERR_CUDA. One pass over memory each. Which NaN a sum becomes is not specified (which values become NaN
 * is). */

/** src: type[n]; dst: encoded. */
tw_status_t tw_quant_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments);
/** src: encoded; dst: type[n]. */
tw_status_t tw_quant_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments);
/** src: encoded; dst: fp32[n], the decoded value is added to it. args->type is ignored. */
tw_status_t tw_quant_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_segment_t *segments, size_t n_segments);
/** src: fp32[n]; base: type[n]; dst: encoded (src - base), the difference taken in fp32. */
tw_status_t tw_quant_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments);
/** src: encoded; dst: type[n], dst = round(dst + decoded), both in fp32. A finite sum saturates like a
 *  decoded value; infinities and NaN of dst stay. */
tw_status_t tw_quant_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments);

/** One segment of a reduction: K encoded inputs of the same n elements. Not for 2 bits, on either side:
 *  TW_ERR_UNSUPPORTED (logged), since those are for changes of weights. */
typedef struct tw_quant_reduce_segment {
    const void *const
        *srcs;     /**< [n_srcs] encoded with the input codec; the array itself lives in host memory */
    size_t n_srcs; /**< K >= 1, no upper limit */
    void *dst;
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem;
} tw_quant_reduce_segment_t;

/** Bytes of workspace that are enough for a reduction of these segments, whose pointers are not read; 0 on
 *  the host, and on CUDA unless a segment has more than 3990 inputs. What is too small is refused with
 *  TW_ERR_INVALID (logged). */
size_t tw_quant_reduce_workspace_bytes(const tw_quant_t *quant, const tw_quant_reduce_segment_t *segments,
                                       size_t n_segments);
/** dst: encoded with `out_quant`'s codec: encode(factor * (decode(src 0) + decode(src 1) + ...)), summed in
 *  fp32 in that order, starting from decode(src 0). The sum is taken before the input codec's rotation is
 *  undone, which is done once, before the factor; when both codecs rotate, what is rotated stays so.
 *  out_quant may be in_quant; it counts the non-finite blocks. TW_ERR_INVALID also if the two do not live in
 *  the same memory. */
tw_status_t tw_quant_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments);
/** dst: type[n]: round(factor * (decode(src 0) + decode(src 1) + ...)), summed likewise. A sum that `type`
 *  cannot hold becomes infinite, as IEEE 754 says: an overflow of gradients must be seen. A mean cannot
 *  overflow but by the codec's rounding: it saturates (args->saturate). */
tw_status_t tw_quant_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments);

/** A step of AdamW (arXiv 1711.05101, algorithm 2), fused with the encode_delta that follows it in
 *  delta-hpZ. */
typedef struct tw_quant_adamw {
    double lr, beta1, beta2, eps, weight_decay; /**< finite; betas in [0, 1) */
    uint64_t step;                              /**< 1 for the first, for the bias corrections */
    tw_type_t grad_type;
    const float *grad_scale; /**< in the context's memory, [1]: gradients are multiplied by it; NULL: 1 */
} tw_quant_adamw_t;

typedef struct tw_quant_adamw_segment {
    const void *grad;      /**< grad_type[n] */
    float *master, *m, *v; /**< [n], updated in place; m and v start as zeros */
    const void *replica;   /**< args->type[n] */
    void *dst;             /**< encoded; NULL, of host memory only: nothing is, and replica is not read */
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem;
} tw_quant_adamw_segment_t;

/** g = grad * grad_scale;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * (g * g);
 *  master = master * (1 - lr * weight_decay) - lr / (1 - beta1^step) * (m / (sqrt(v) / sqrt(1 - beta2^step) +
 *  eps)): each operation in fp32, the factors (the last one as a product with 1 / sqrt) rounded once from
 *  fp64. dst: encoded (master - replica). The same bits on every backend. A NaN gradient spoils m, v and
 *  master: check first. */
tw_status_t tw_quant_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                        const tw_quant_adamw_t *adamw,
                                        const tw_quant_adamw_segment_t *segments, size_t n_segments);

/* ---- the lossless delta
 * ----------------------------------------------------------------------------------------------
 *
 * The change of bf16 weights from one step to the next, without loss: in units in the last place,
 * entropy-coded (rANS) under the old value's exponent and, as second context, under the previous step's
 * change, which both ends know. NaN, infinities, -0 and denormals come back bit for bit. The receiver needs
 * the old values, the message and the states.
 *
 * Format: quant/delta/delta.h; blocks of 65,536 elements decode independently; every backend gives the same
 * bytes. Worst case: tw_quant_delta_bound_bytes, plain plus 12 bytes a message, whatever the values.
 * Speed and bits: ./bazelw run //bench:delta.
 * Source: rANS as in arXiv 1311.2540. */

/** A codec with its tables and scratch, about 0.4 MB. Calls allocate nothing. One thread at a time. */
typedef struct tw_quant_delta tw_quant_delta_t;

/** A piece of a message: consecutive elements of a tensor. Pointers need element alignment; all memory is the
 *  caller's. The receiver may cut the same elements into other segments. */
typedef struct tw_quant_delta_segment {
    const void *base; /**< bf16[n] old values: the replica */
    const void *src;  /**< encode: bf16[n] new values */
    void *dst;        /**< decode: bf16[n] new values; may be base, otherwise must not overlap it */
    /** [n] the previous change of each element, one byte: zeros before the first message, then left to the
     *  codec, which reads and rewrites it at both ends. In all segments of all messages, or in none: NULL is
     *  one context less. */
    uint8_t *state;
    size_t n_elems;
} tw_quant_delta_segment_t;

/** backend: NULL or "auto", "ref", "avx2", "avx512". TW_ERR_UNSUPPORTED (no such backend here),
 *  TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_delta_create(const char *backend, tw_quant_delta_t **out);
void tw_quant_delta_destroy(tw_quant_delta_t *delta);
const char *tw_quant_delta_backend_name(const tw_quant_delta_t *delta);
/** Names of the backends usable here, best first; returns how many were written (at most `max`). */
size_t tw_quant_delta_backends(const char **names, size_t max);

/** Most bytes of a message of n_elems, which is plain plus 12: 12 + 2 * n_elems; SIZE_MAX for more than
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
 *  elements, or made with states where there are none here, or the other way round; TW_ERR_FORMAT: anything
 *  else that no encoder writes, which is also what comes of old values or states that differ from the
 *  encoder's, except where the new values were sent as they are: each block, and each message that is not
 *  coded, has a checksum of its new values. Logged. After an error that the message's blocks showed (FORMAT),
 *  dst and the states are spoilt: they need a full sync. */
tw_status_t tw_quant_delta_decode(tw_quant_delta_t *delta, const tw_quant_delta_segment_t *segments,
                                  size_t n_segments, const void *src, size_t src_bytes);

/* ---- the lossless codec
 * -------------------------------------------------------------------------------------------
 *
 * Tensors of floating-point numbers, bit for bit, without anything that both ends must know: exponents are
 * entropy-coded (rANS) under the scales of their row and column, signs and mantissas go as they are. NaN
 * payloads, infinities, -0 and denormals come back; rows of zeros take next to nothing. Gradients and weights
 * in bf16: 10.2 to 10.6 bits.
 *
 * Format: quant/lossless/lossless.h; blocks of 65,536 elements decode independently; every backend gives the
 * same bytes. Worst case: tw_quant_lossless_bound_bytes, plain plus 16 bytes a message, whatever the values.
 * Speed and bits: ./bazelw run //bench:lossless.
 * Source: rANS as in arXiv 1311.2540. */

/** A codec with its tables and scratch, about 1 MB. Calls allocate only for more rows and columns than any
 *  before had: 2 bytes a row of 64 elements or more, 10 a column. One thread at a time. */
typedef struct tw_quant_lossless tw_quant_lossless_t;

#define TW_QUANT_LOSSLESS_HEADER_BYTES 16

/** A piece of a message: consecutive elements of a tensor. Pointers need element alignment; all memory is the
 *  caller's. The receiver may cut the same elements into other segments, and need not know rows. */
typedef struct tw_quant_lossless_segment {
    const void *src; /**< encode: type[n] */
    void *dst;       /**< decode: type[n]; decode_fp32: fp32[n] */
    size_t n_elems;  /**< 0 is allowed */
    /** encode: elements of a row, the tensor's last dimension; 0: not known, or there is one only */
    size_t row_elems;
    uint64_t first_elem; /**< encode: index in the tensor of the first element: where in its row it is */
} tw_quant_lossless_segment_t;

/** backend: NULL or "auto", "ref", "avx2", "avx512". TW_ERR_UNSUPPORTED (no such backend here),
 *  TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_lossless_create(const char *backend, tw_quant_lossless_t **out);
void tw_quant_lossless_destroy(tw_quant_lossless_t *codec);
const char *tw_quant_lossless_backend_name(const tw_quant_lossless_t *codec);
/** Names of the backends usable here, best first; returns how many were written (at most `max`). */
size_t tw_quant_lossless_backends(const char **names, size_t max);

/** Most bytes of a message of n_elems, which is plain plus the header. */
size_t tw_quant_lossless_bound_bytes(tw_type_t type, size_t n_elems);

/** Write all segments as one message. dst has dst_bytes, at least the bound for the sum of n_elems (2^29 at
 *  most); *bytes is what the message takes.
 *  TW_ERR_INVALID, before anything is written: a NULL pointer, a dst too small, TW_TYPE_BYTE;
 *  TW_ERR_NO_MEMORY; logged. */
tw_status_t tw_quant_lossless_encode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     void *dst, size_t dst_bytes, size_t *bytes);

/** How long the message is that begins at src, of which src_bytes are there: HEADER_BYTES are enough.
 *  TW_ERR_TRUNCATED: fewer; TW_ERR_FORMAT: not a message; logged. A message of a peer may lie: *bytes may be
 *  anything up to 2^32 - 1. */
tw_status_t tw_quant_lossless_message_bytes(const void *src, size_t src_bytes, size_t *bytes);

/** Read a message of exactly src_bytes bytes (any bytes: nothing outside it is read) and make the values.
 *  TW_ERR_INVALID: as above; TW_ERR_TRUNCATED: shorter than it says; TW_ERR_MISMATCH: another number of
 *  elements, or another type; TW_ERR_FORMAT: anything else that no encoder writes, or that does not fit its
 *  checksums; TW_ERR_NO_MEMORY. Logged. After an error dst may hold anything. */
tw_status_t tw_quant_lossless_decode(tw_quant_lossless_t *codec, tw_type_t type,
                                     const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                     const void *src, size_t src_bytes);
/** The same in fp32: dst[i] = value, or with `add` dst[i] += value; the bits of tw_convert_to_fp32 and
 *  tw_convert_add_fp32. After an error dst may hold anything. */
tw_status_t tw_quant_lossless_decode_fp32(tw_quant_lossless_t *codec, tw_type_t type, int add,
                                          const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                          const void *src, size_t src_bytes);

/* ---- the lossless codec on streams
 * --------------------------------------------------------------------------------
 *
 * The same messages, bit for bit, for memory of a GPU: a call enqueues on a stream and returns, and how long
 * the message is, or whether it could be decoded, stands in memory when the stream gets there. Any side may
 * be a GPU's or the host's. For host memory the calls work at once and ignore the stream: a simulated GPU
 * needs no other code. */

/** A codec on one device, the one that was current when it was made and must be in its calls. Calls may come
 *  from any thread, one at a time; they may be in flight on several streams, each with a workspace of its
 *  own, and may be captured into a graph, which then owns the lists of segments. They allocate nothing on the
 *  device. */
typedef struct tw_quant_lossless_stream tw_quant_lossless_stream_t;

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

/** Likewise, and the type of the tensors. */
typedef struct tw_quant_lossless_args {
    tw_type_t type;
    tw_stream_t stream;
    /** in the codec's memory, aligned to 256 bytes; not needed where its bytes are said to be 0 */
    void *workspace;
    size_t workspace_bytes;
    /** in the codec's memory; NULL: not wanted. Kernels and the collectives may read it */
    tw_quant_outcome_t *outcome;
    tw_quant_outcome_t *host; /**< in pinned host memory, written on the stream as well; NULL: not wanted */
} tw_quant_lossless_args_t;

/** mem: where tensors, messages, workspaces and outcomes are. TW_ERR_UNSUPPORTED: CUDA memory without CUDA or
 *  without a GPU; TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_lossless_stream_create(tw_mem_t mem, tw_quant_lossless_stream_t **out);
void tw_quant_lossless_stream_destroy(tw_quant_lossless_stream_t *codec);

/** Bytes of workspace that are enough to encode these segments, whose pointers are not read: about 5.2 an
 *  element of bf16, 7.2 of fp16 and fp32. SIZE_MAX: the call would be refused. */
size_t tw_quant_lossless_encode_workspace_bytes(tw_quant_lossless_stream_t *codec, tw_type_t type,
                                                const tw_quant_lossless_segment_t *segments,
                                                size_t n_segments);
/** And to decode n_elems in n_segments segments: about 2.8 an element. */
size_t tw_quant_lossless_decode_workspace_bytes(tw_quant_lossless_stream_t *codec, tw_type_t type,
                                                size_t n_elems, size_t n_segments);

/** Write all segments as one message, as tw_quant_lossless_encode does. dst: aligned to 16 bytes, of
 *  dst_bytes, at least the bound. The outcome's status is TW_OK.
 *  TW_ERR_INVALID, before anything is enqueued: as tw_quant_lossless_encode, a workspace too small, what is
 *  not aligned; TW_ERR_NO_MEMORY (of the host), TW_ERR_CUDA; logged. */
tw_status_t tw_quant_lossless_stream_encode(tw_quant_lossless_stream_t *codec,
                                            const tw_quant_lossless_args_t *args,
                                            const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                            void *dst, size_t dst_bytes);

/** What becomes of decoded values. */
typedef enum tw_quant_sink {
    TW_QUANT_SINK_STORE,      /**< dst is type[n] */
    TW_QUANT_SINK_STORE_FP32, /**< dst is fp32[n] */
    TW_QUANT_SINK_ADD_FP32    /**< dst is fp32[n], values are added to it */
} tw_quant_sink_t;

/** Read a message, as tw_quant_lossless_decode and tw_quant_lossless_decode_fp32 do. src: aligned to 16
 *  bytes, any bytes. src_bytes: the message's; or with `at_most` those that may be read, of which the message
 *  says how many it has, so that the bound is enough to know. Nothing outside of them is read, nothing
 *  outside of the segments written. The outcome's status is what the host's decoder returns: TW_OK,
 *  TRUNCATED, MISMATCH or FORMAT; after an error dst may hold anything. On CUDA, which NaN a sum becomes is
 *  not specified. TW_ERR_INVALID, before anything is enqueued: as tw_quant_lossless_stream_encode;
 *  TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_lossless_stream_decode(tw_quant_lossless_stream_t *codec,
                                            const tw_quant_lossless_args_t *args, tw_quant_sink_t sink,
                                            const tw_quant_lossless_segment_t *segments, size_t n_segments,
                                            const void *src, size_t src_bytes, int at_most);

/* ---- the lossless delta on streams
 * -----------------------------------------------------------------------------------
 *
 * The messages of tw_quant_delta_encode, bit for bit, for replicas and states in memory of a GPU; otherwise
 * as the lossless codec on streams: what becomes of a call stands in its outcome, for host memory the calls
 * work at once. */

/** A codec on one device; the same rules as for tw_quant_lossless_stream_t. */
typedef struct tw_quant_delta_stream tw_quant_delta_stream_t;

/** mem: where values, states, messages, workspaces and outcomes are. TW_ERR_UNSUPPORTED: CUDA memory without
 *  CUDA or without a GPU; TW_ERR_NO_MEMORY, TW_ERR_CUDA; logged. */
tw_status_t tw_quant_delta_stream_create(tw_mem_t mem, tw_quant_delta_stream_t **out);
void tw_quant_delta_stream_destroy(tw_quant_delta_stream_t *codec);

/** Bytes of workspace that are enough to encode n_elems in n_segments segments: about 2 an element. SIZE_MAX:
 *  the call would be refused. And to decode them: next to nothing an element. */
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

/** Read a message and make the new values, as tw_quant_delta_decode does. src: aligned to 16 bytes, any
 *  bytes. src_bytes: the message's; or with `at_most` those that may be read, of which the message says how
 *  many it has. Nothing outside of them is read, nothing outside of the segments written.
 *  The outcome's status is what the host's decoder returns: TW_OK, TRUNCATED, MISMATCH or FORMAT. After
 *  FORMAT dst and the states are spoilt; they are as they were after the others.
 *  TW_ERR_INVALID, before anything is enqueued: as tw_quant_delta_stream_encode; TW_ERR_NO_MEMORY,
 *  TW_ERR_CUDA; logged. */
tw_status_t tw_quant_delta_stream_decode(tw_quant_delta_stream_t *codec, const tw_quant_stream_args_t *args,
                                         const tw_quant_delta_segment_t *segments, size_t n_segments,
                                         const void *src, size_t src_bytes, int at_most);

/* Plain conversions on the host, used wherever plain sums are taken; SIMD at run time, same bits as the
 * scalar rule. */

/** dst[i] = fp32(src[i]). */
void tw_convert_to_fp32(tw_type_t type, const void *src, float *dst, size_t n_elems);
/** dst[i] = type(src[i] * factor), nearest even, overflow to infinity as IEEE 754 says. */
void tw_convert_from_fp32(tw_type_t type, const float *src, float factor, void *dst, size_t n_elems);
/** acc[i] += fp32(src[i]). */
void tw_convert_add_fp32(tw_type_t type, const void *src, float *acc, size_t n_elems);
/** dst[i] = type(fp32(a[i]) + fp32(b[i])), nearest even; dst may be a or b. */
void tw_convert_add(tw_type_t type, const void *a, const void *b, void *dst, size_t n_elems);

TW_C_END

#endif
