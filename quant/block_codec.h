/** Block codecs, bit-identical on every backend (CPU reference, CPU SIMD, CUDA).
 *
 *  A codec turns a segment (consecutive elements of ONE tensor) into blocks of short codes with one scale
 *  each.
 *
 *  Wire format of a segment of n elements (little-endian; all offsets from the segment's first byte):
 *    - the segment is cut into blocks of `block` elements (the last may be short), these into frames of 8;
 *    - a frame is 8 scales (bf16: 16 bytes, fp32: 32 bytes; the unused scales of a last short frame are 0),
 *      followed by the codes of its blocks, block after block; a full frame is a multiple of 16 bytes, so
 *      everything stays aligned;
 *    - 8 bits: one byte per element, two's complement (fp8: e4m3, below); 4 bits: element 2i in the low
 *      nibble of byte i, 2i+1 in the high one, two's complement; an odd last element leaves a zero high
 *      nibble; 2 bits: likewise, four elements a byte;
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
 *  matrix (Sylvester order, butterfly strides 1, 2, 4, 8, 16: (a, b) -> (a + b, a - b)) and then by 2^-2.5
 *  rounded to fp32; a shorter last group is left as it is. Self-inverse.
 *
 *  2 bits, for changes of weights: codes -1, 0 and 1 times half the largest magnitude. So zeros stay zeros
 *  beside an outlier, whose own error the next change corrects. Each element comes nearer to what it was or
 *  stays 0, and the largest one halves its error (from 2^-124 on): a contraction for n elements, ||C(x) -
 *  x||^2 <= (1 - 3 / (4 n)) ||x||^2. ||C(x) - x|| / ||x|| was measured on blocks of 64 with four kinds of
 *  codes: steps of amax / 1; steps of amax / 2; with a signed scale, -2 to 1 steps of amax / 2.5; without a
 *  zero, -3/2, -1/2, 1/2 and 3/2 steps of amax / 2.5:
 *    normal values                     0.71 / 0.44 / 0.36 / 0.35
 *    lognormal scales                  0.64 / 0.56 / 0.43 / 0.75
 *    lognormal scales, with Hadamard   0.68 / 0.43 / 0.36 / 0.33
 *    an outlier among zeros, at worst  0    / 0.50 / 0.20 / 1.64
 *
 *  fp8: codes are e4m3 (a sign, 4 bits of exponent, 3 of mantissa, no infinities), one byte an element, in
 *  steps of e4m3's smallest number, 2^-9: reach = qmax = 448 * 512. Rounded to nearest even, saturated at
 *  448; there is no stochastic rounding. A 0x7f or 0xff of a foreign encoder decodes as 480. Small numbers
 *  beside large ones keep 4 significant bits, down to 2^-14.8 of the largest, where int8 has steps.
 *
 *  Error bound, nearest-even, without Hadamard: |x - decode(x)| <= tw_quant_error_bound(codec, amax) per
 *  element, before rounding into the destination type; stochastic: twice that.
 *
 *  Source: block quantization as in ZeRO++ (arXiv 2306.10209) section 3.1; rotation as in SDP4Bit (arXiv
 *  2410.15526). */
#ifndef TW_QUANT_BLOCK_CODEC_H
#define TW_QUANT_BLOCK_CODEC_H

#include "quant/codec.h"

TW_C_BEGIN

#define TW_QUANT_FRAME_BLOCKS 8
#define TW_QUANT_ALIGN_BYTES 16

/** Elements and bytes of a full frame, and bytes of an encoded segment of n_elems (0 for 0; SIZE_MAX, which
 *  no memory has, for more than TW_MEMORY_BYTES_MAX). The codec must be valid, and one of TW_QUANT_BLOCKS. */
size_t tw_quant_frame_elems(const tw_quant_codec_t *codec);
size_t tw_quant_frame_bytes(const tw_quant_codec_t *codec);
size_t tw_quant_encoded_bytes(const tw_quant_codec_t *codec, size_t n_elems);

/** Largest |x - decode(x)| for nearest-even without Hadamard in a block whose largest magnitude is amax (fp32
 *  result of the scale's rounding included; 2^-126 at least). With Hadamard it bounds the error in the
 *  rotated domain: the 2-norm of a group's error is at most sqrt(32) times it. */
double tw_quant_error_bound(const tw_quant_codec_t *codec, double amax);

/** A codec bound to a backend. Several threads (host) or streams (device) may call one context at the same
 *  time. */
typedef struct tw_quant tw_quant_t;

typedef struct tw_quant_params {
    tw_quant_codec_t codec;
    tw_mem_t mem;        /**< the memory of all pointers in its calls */
    const char *backend; /**< NULL or "auto", "ref", "avx2", "avx512", "avx512bf16", "neon", "cuda" */
} tw_quant_params_t;

/** Make a context. TW_ERR_INVALID: a bad codec, or none of TW_QUANT_BLOCKS; TW_ERR_UNSUPPORTED: no such
 *  backend on this machine (logged with those there are). */
tw_status_t tw_quant_create(const tw_quant_params_t *params, tw_quant_t **out);
void tw_quant_destroy(tw_quant_t *quant);
const tw_quant_codec_t *tw_quant_codec_get(const tw_quant_t *quant);
const char *tw_quant_backend_name(const tw_quant_t *quant);
/** Blocks with NaN or Inf met by this context's encoding calls so far. On CUDA: synchronises with the
 *  device. */
uint64_t tw_quant_nonfinite_blocks(const tw_quant_t *quant);
/** List the names of the backends usable here for `mem`, best first; returns how many were written (at most
 *  `max`). */
size_t tw_quant_backends(tw_mem_t mem, const char **names, size_t max);

/* CUDA: a context belongs to the device that was current when it was made, which must be current in its
 * calls. A call enqueues and returns: it neither allocates nor waits, and may be captured into a graph, which
 * then owns the list of segments and all arguments (seed, step and factor too). Up to 444 segments are one
 * launch. Only reductions of more than 3990 inputs that do not lie at equal distances need a workspace:
 * tw_quant_reduce_workspace_bytes. */

/** Translate a cudaError_t into a status. Anything but success is logged with its name, its number and `what`
 *  was attempted: out of memory -> NO_MEMORY; no device, driver or kernel for it -> UNSUPPORTED; everything
 *  else -> CUDA. Only built with CUDA. */
tw_status_t tw_quant_cuda_status(int error, const char *what);

/** What all segments of a call share. */
typedef struct tw_quant_args {
    tw_type_t type;     /**< type of the plain side; TW_TYPE_BYTE or an unknown one is refused */
    uint64_t seed;      /**< stochastic rounding: key */
    uint32_t step;      /**< stochastic rounding: training step */
    float factor;       /**< reduce_*: factor of the sum (1 for a sum, 1/W for a mean); finite */
    tw_stream_t stream; /**< CUDA only: calls enqueue here and return */
    /** reduce_*, CUDA only: device memory, aligned to 8 bytes, in use until the stream has passed the call,
     *  and by a graph at each replay; NULL where tw_quant_reduce_workspace_bytes says 0. */
    void *workspace;
    size_t workspace_bytes;
    /** 1: a finite result of reduce_decode beyond `type` becomes its largest number instead of infinity */
    int saturate;
} tw_quant_args_t;

/** One segment of a call. Plain pointers must be aligned to elements, encoded ones need no alignment; 16
 *  bytes are faster. src and dst must not overlap except where said. All memory is the caller's, borrowed for
 *  the call (on CUDA, until the stream has passed it). n_elems 0 is allowed and does nothing. */
typedef struct tw_quant_segment {
    const void *src;
    const void *base; /**< encode_delta only */
    void *dst;
    size_t n_elems;
    uint32_t tensor;     /**< number of the tensor, for stochastic rounding */
    uint64_t first_elem; /**< index of the segment's first element in that tensor */
} tw_quant_segment_t;

/* All return TW_OK, TW_ERR_INVALID (type, NULL pointer, n_elems beyond TW_MEMORY_BYTES_MAX; logged) or
 * TW_ERR_CUDA. One pass over memory each. A GPU gives the same NaN as x86's arithmetic, too; but in a sum of
 * a reduction it is specified only which values are NaN, not their bits. */

/** Encode src, type[n], to dst. */
tw_status_t tw_quant_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments);
/** Decode src to dst, type[n]. */
tw_status_t tw_quant_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments);
/** Decode src and add it to dst, fp32[n]. args->type is ignored. */
tw_status_t tw_quant_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_segment_t *segments, size_t n_segments);
/** Encode src, fp32[n], less base, type[n], to dst; the difference is taken in fp32. */
tw_status_t tw_quant_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments);
/** src: encoded; dst: type[n], dst = round(dst + decoded), both in fp32. A finite sum saturates like a
 *  decoded value; infinities and NaN of dst stay. */
tw_status_t tw_quant_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments);

/** One segment of a reduction: K encoded inputs of the same n elements. Not for 2 bits, on either side:
 *  TW_ERR_UNSUPPORTED (logged), since those are for changes of weights. */
typedef struct tw_quant_reduce_segment {
    /** [n_srcs] encoded with the input codec; the array itself lives in host memory */
    const void *const *srcs;
    size_t n_srcs; /**< K >= 1, no upper limit */
    void *dst;
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem;
} tw_quant_reduce_segment_t;

/** Bytes of workspace that are enough for a reduction of these segments, whose pointers are not read; 0 on
 *  the host, and on CUDA unless a segment has more than 3990 inputs. A workspace that is too small is refused
 *  with TW_ERR_INVALID (logged). */
size_t tw_quant_reduce_workspace_bytes(const tw_quant_t *quant, const tw_quant_reduce_segment_t *segments,
                                       size_t n_segments);
/** dst: encoded with `out_quant`'s codec: encode(factor * (decode(src 0) + decode(src 1) + ...)), summed in
 *  fp32 in that order, starting from decode(src 0). The sum is taken before the input codec's rotation is
 *  undone, which is done once, before the factor; if both codecs rotate, it is not undone at all. out_quant
 *  may be in_quant; it counts the non-finite blocks. TW_ERR_INVALID also if the two do not live in the same
 *  memory. */
tw_status_t tw_quant_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments);
/** dst: type[n]: round(factor * (decode(src 0) + decode(src 1) + ...)), summed likewise. A sum that `type`
 *  cannot hold becomes infinite, as in IEEE 754: an overflow of gradients must show. A mean can overflow only
 *  by the codec's rounding, and so saturates (args->saturate). */
tw_status_t tw_quant_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments);

/** A step of AdamW (arXiv 1711.05101, algorithm 2), fused with the encode_delta that follows it in
 *  delta-hpZ. */
typedef struct tw_quant_adamw {
    double lr, beta1, beta2, eps, weight_decay; /**< finite; betas in [0, 1) */
    uint64_t step;                              /**< 1 for the first, for the bias corrections */
    tw_type_t grad_type;
    const float *grad_scale; /**< [1] in the context's memory, the factor of gradients; NULL: 1 */
} tw_quant_adamw_t;

typedef struct tw_quant_adamw_segment {
    const void *grad;      /**< grad_type[n] */
    float *master, *m, *v; /**< [n], updated in place; m and v start as zeros */
    const void *replica;   /**< args->type[n] */
    void *dst;             /**< encoded; NULL (host memory only): encode nothing, do not read replica */
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem;
} tw_quant_adamw_segment_t;

/** g = grad * grad_scale; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * (g * g); master =
 *  master * (1 - lr * weight_decay) - lr / (1 - beta1^step) * (m / (sqrt(v) / sqrt(1 - beta2^step) + eps)):
 *  each operation in fp32, the factors (the last one as a product with 1 / sqrt) rounded once from fp64. dst:
 *  encoded (master - replica). The same bits on every backend. A NaN gradient spoils m, v and master, where
 *  every NaN is 0x7fc00000: check gradients first. */
tw_status_t tw_quant_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                        const tw_quant_adamw_t *adamw,
                                        const tw_quant_adamw_segment_t *segments, size_t n_segments);

TW_C_END

#endif
