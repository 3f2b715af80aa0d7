/** Block codecs, bit-identical on every backend (CPU reference, CPU SIMD, CUDA).
 *
 *  A codec turns a segment (consecutive elements of ONE tensor) into blocks. A block is one scale and a short
 *  code for each element.
 *
 *  Wire format of a segment of n elements (little-endian; all offsets from the segment's first byte):
 *    - the segment is cut into blocks of `block` elements (the last may be short), and the blocks into frames
 *      of 8;
 *    - a frame is 8 scales (bf16: 16 bytes, fp32: 32 bytes; the unused scales of a last short frame are 0),
 *      followed by the codes of its blocks, block after block; a full frame is a multiple of 16 bytes, so
 *      everything stays aligned;
 *    - codes are in two's complement (fp8: e4m3, below). 8 bits: one byte per element. 4 bits: element 2i is
 *      the low nibble of byte i, element 2i+1 the high one. 2 bits: four elements a byte, the first in the
 *      lowest bits. Unused bits of a block's last byte are 0;
 *    - the segment is padded with zeros to a multiple of 16 bytes.
 *  Whole frames are themselves a valid segment, so an encoded segment can be cut into chunks between frames.
 *
 *  Arithmetic of a block, in fp32 without fused multiply-add, for qmax = 2^(bits-1) - 1:
 *    y = x, or the rotated x (below);  amax = max |y|
 *    scale = max(amax / reach, 2^-125), where reach is qmax, but 2 for 2 bits (below). A bf16 scale is
 *    rounded UP to bf16, so that nothing clips. If amax == 0, scale and codes are 0.
 *    inv = 1 / scale;  v = y * inv;  q = clamp(round(v), -qmax, qmax)
 *    round is nearest-even, or stochastic: floor(v) + (u < v - floor(v) ? 1 : 0). Here u = (w >> 8) * 2^-24;
 *    w is word (e & 3) of Philox4x32-10 with key (seed lo, seed hi) and counter (e>>2 lo, e>>2 hi, tensor,
 *    step), where e is the element's index in its tensor.
 *    decoded: z = q * scale, clamped to the finite fp32 range, rotated back, rounded to nearest even into the
 *    destination type. Finite values beyond the type's range saturate: as scales are rounded up, fp16's 65504
 *    may decode to more. A block is non-finite if it contains NaN or Inf, or with Hadamard if amax exceeds
 *    2^122 (undoing the rotation could overflow). It gets a NaN scale (0x7fc0 or 0x7fc00000) and codes 0, and
 *    is counted. If a scale is not finite, all its elements decode to the type's quiet NaN (0x7fc00000,
 *    0x7fc0 or 0x7e00).
 *  Hadamard: every whole group of 32 consecutive elements of a block is multiplied by the 32x32 Hadamard
 *  matrix (Sylvester order, butterfly strides 1, 2, 4, 8, 16: (a, b) -> (a + b, a - b)) and then by 2^-2.5
 *  rounded to fp32; a shorter last group is left as it is. Applying it twice gives the input back.
 *
 *  2 bits, for changes of weights: codes are -1, 0 and 1 times half the largest magnitude. Zeros stay zeros
 *  beside an outlier; the outlier's error is corrected by the next change. No element's error is larger than
 *  the element itself, and the largest element's error is half of it (from 2^-124 on). So C(x), the decoded x
 *  of n elements, is a contraction: ||C(x) - x||^2 <= (1 - 3 / (4 n)) ||x||^2. The table has ||C(x) - x|| /
 *  ||x|| on blocks of 64, for four sets of codes. Its columns: steps of amax / 1; steps of amax / 2 (these
 *  codes); -2 to 1 steps of amax / 2.5, with a signed scale; -3/2, -1/2, 1/2 and 3/2 steps of amax / 2.5,
 *  without a zero.
 *    normal values                     0.71 / 0.44 / 0.36 / 0.35
 *    lognormal scales                  0.64 / 0.56 / 0.43 / 0.75
 *    lognormal scales, with Hadamard   0.68 / 0.43 / 0.36 / 0.33
 *    an outlier among zeros, at worst  0    / 0.50 / 0.20 / 1.64
 *
 *  fp8: codes are e4m3 (a sign, 4 bits of exponent, 3 of mantissa, no infinities), one byte an element, in
 *  steps of e4m3's smallest number, 2^-9: reach = qmax = 448 * 512. Rounded to nearest even, saturated at
 *  448; there is no stochastic rounding. Our encoder never writes 0x7f or 0xff; they decode as 480. Unlike
 *  int8, fp8 keeps 4 significant bits of numbers that are small beside the largest one, down to 2^-14.8 of
 *  it.
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

/** The elements and the size of a full frame, and the size of an encoded segment. The last is 0 for 0
 *  elements, and SIZE_MAX for more than TW_MEMORY_BYTES_MAX. The codec must be valid and of form
 *  TW_QUANT_BLOCKS. */
size_t tw_quant_frame_elems(const tw_quant_codec_t *codec);
size_t tw_quant_frame_bytes(const tw_quant_codec_t *codec);
size_t tw_quant_encoded_bytes(const tw_quant_codec_t *codec, size_t n_elems);

/** Largest |x - decode(x)|, rounding to nearest without Hadamard, in a block whose largest magnitude is amax.
 *  Errors of fp32 arithmetic and of the scale's rounding are included. With Hadamard it bounds the errors of
 *  rotated values: the 2-norm of the error of a group of 32 is at most sqrt(32) times this. */
double tw_quant_error_bound(const tw_quant_codec_t *codec, double amax);

/** A codec bound to a backend. Several threads (host) or streams (device) may call one context at the same
 *  time. */
typedef struct tw_quant tw_quant_t;

typedef struct tw_quant_params {
    tw_quant_codec_t codec;
    tw_mem_t mem;        /**< where all pointers of its calls point to: host or CUDA memory */
    const char *backend; /**< NULL or "auto", "ref", "avx2", "avx512", "avx512bf16", "neon", "cuda" */
} tw_quant_params_t;

/** Make a context. TW_ERR_INVALID: a bad codec, or its form is not TW_QUANT_BLOCKS. TW_ERR_UNSUPPORTED: this
 *  machine cannot run that backend (logged with the names of the backends that it can). */
tw_status_t tw_quant_create(const tw_quant_params_t *params, tw_quant_t **out);
void tw_quant_destroy(tw_quant_t *quant);
const tw_quant_codec_t *tw_quant_codec_get(const tw_quant_t *quant);
const char *tw_quant_backend_name(const tw_quant_t *quant);
/** The number of non-finite blocks that this context has encoded. On CUDA it synchronizes with the device. */
uint64_t tw_quant_nonfinite_blocks(const tw_quant_t *quant);
/** List the names of the backends that this machine can run for `mem`, best first. Returns how many names it
 *  wrote (at most `max`). */
size_t tw_quant_backends(tw_mem_t mem, const char **names, size_t max);

/* CUDA: a context belongs to the device that was current when it was made, and that device must be current in
 * its calls. A call enqueues and returns: it neither allocates nor waits. It may be captured into a graph;
 * the graph then has copies of the list of segments and of all arguments (seed, step and factor too). Up to
 * 444 segments are one launch. A reduction needs a workspace (tw_quant_reduce_workspace_bytes) only if it has
 * more than 3990 inputs and their addresses are not at equal distances. */

/** Translate a cudaError_t into a status, and log any error with its name, its number and `what`, the call
 *  that failed. Out of memory: TW_ERR_NO_MEMORY. No device, driver or kernel for the device:
 *  TW_ERR_UNSUPPORTED. All others: TW_ERR_CUDA. Only built with CUDA. */
tw_status_t tw_quant_cuda_status(int error, const char *what);

/** The arguments that all segments of a call share. */
typedef struct tw_quant_args {
    tw_type_t type;     /**< type of the unencoded elements: fp32, bf16 or fp16 */
    uint64_t seed;      /**< stochastic rounding: key */
    uint32_t step;      /**< stochastic rounding: training step */
    float factor;       /**< reduce_*: the sum is multiplied by it (1 for a sum, 1/W for a mean); finite */
    tw_stream_t stream; /**< CUDA only: calls enqueue here and return */
    /** reduce_*, CUDA only: device memory, aligned to 8 bytes. It is in use until the stream has passed the
     *  call, and at each replay of a graph. NULL if tw_quant_reduce_workspace_bytes returns 0. */
    void *workspace;
    size_t workspace_bytes;
    /** 1: a finite result of reduce_decode beyond the range of `type` becomes its largest number */
    int saturate;
} tw_quant_args_t;

/** One segment of a call. Pointers to unencoded elements must be aligned to an element; pointers to encoded
 *  bytes need no alignment. Aligned to 16 bytes both are faster. src and dst must not overlap. All memory is
 *  the caller's, borrowed for the call (on CUDA, until the stream has passed it). A segment of 0 elements is
 *  allowed. */
typedef struct tw_quant_segment {
    const void *src;
    const void *base; /**< encode_delta only */
    void *dst;
    size_t n_elems;
    uint32_t tensor;     /**< number of the tensor, for stochastic rounding */
    uint64_t first_elem; /**< index of the segment's first element in that tensor */
} tw_quant_segment_t;

/* Each call below passes over memory once. It returns TW_OK, TW_ERR_CUDA, or TW_ERR_INVALID for a bad type, a
 * NULL pointer or n_elems beyond TW_MEMORY_BYTES_MAX (logged). A GPU gives NaN the same bits as x86 does,
 * except in the sum of a reduction: there only the places of NaN are specified, not their bits. */

/** Encode src, type[n], to dst. */
tw_status_t tw_quant_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments);
/** Decode src to dst, type[n]. */
tw_status_t tw_quant_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                            const tw_quant_segment_t *segments, size_t n_segments);
/** Decode src and add it to dst, fp32[n]. args->type is ignored. */
tw_status_t tw_quant_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_segment_t *segments, size_t n_segments);
/** Encode src - base to dst. src is fp32[n], base is type[n]; they are subtracted in fp32. */
tw_status_t tw_quant_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments);
/** Decode src and add it to dst, type[n]. The sum is taken in fp32 and rounded to `type`. A finite sum
 *  saturates as in tw_quant_decode; infinities and NaN of dst stay. */
tw_status_t tw_quant_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_segment_t *segments, size_t n_segments);

/** One segment of a reduction: K encoded inputs of the same n elements. Inputs and output must not have 2
 *  bits, which are for changes of weights: TW_ERR_UNSUPPORTED (logged). */
typedef struct tw_quant_reduce_segment {
    /** [n_srcs] inputs, encoded with the input codec; the array itself is in host memory */
    const void *const *srcs;
    size_t n_srcs; /**< K >= 1, no upper limit */
    void *dst;
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem;
} tw_quant_reduce_segment_t;

/** Returns the bytes of workspace that a reduction of these segments needs: 0 on the host, and on CUDA unless
 *  a segment has more than 3990 inputs. The segments' pointers are not read. A reduction with a smaller
 *  workspace returns TW_ERR_INVALID (logged). */
size_t tw_quant_reduce_workspace_bytes(const tw_quant_t *quant, const tw_quant_reduce_segment_t *segments,
                                       size_t n_segments);
/** dst: encoded with out_quant's codec: encode(factor * (decode(src 0) + decode(src 1) + ...)), summed in
 *  fp32 in that order. The input codec's rotation is undone once, after the sum and before the factor; if
 *  both codecs rotate, it is not undone at all. out_quant counts the non-finite blocks; it may be in_quant.
 *  Returns TW_ERR_INVALID also if the two contexts are for different kinds of memory. */
tw_status_t tw_quant_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments);
/** dst: type[n]: round(factor * (decode(src 0) + decode(src 1) + ...)), summed in fp32 in that order. A sum
 *  beyond the range of `type` becomes infinite, as in IEEE 754: an overflow of gradients must show. A mean
 *  can overflow only through the codec's rounding, so callers set args->saturate for it. */
tw_status_t tw_quant_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                   const tw_quant_reduce_segment_t *segments, size_t n_segments);

/** A step of AdamW (arXiv 1711.05101, algorithm 2), fused with the encode_delta that follows it. */
typedef struct tw_quant_adamw {
    double lr, beta1, beta2, eps, weight_decay; /**< betas in [0, 1), the others in [0, 1e30) */
    uint64_t step;                              /**< 1 for the first, for the bias corrections */
    tw_type_t grad_type;
    const float *grad_scale; /**< [1] in the context's memory: gradients are multiplied by it; NULL: 1 */
} tw_quant_adamw_t;

typedef struct tw_quant_adamw_segment {
    const void *grad;      /**< grad_type[n] */
    float *master, *m, *v; /**< [n], updated in place; m and v start as zeros */
    const void *replica;   /**< args->type[n] */
    /** encoded master - replica; NULL (host memory only): do not encode, do not read replica */
    void *dst;
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem;
} tw_quant_adamw_segment_t;

/** g = grad * grad_scale; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * (g * g); master =
 *  master * (1 - lr * weight_decay) - lr / (1 - beta1^step) * (m / (sqrt(v) / sqrt(1 - beta2^step) + eps)).
 *  Each operation is in fp32. Factors made of lr, betas and step, such as 1 / sqrt(1 - beta2^step), are
 *  computed in fp64 and rounded once. dst: encoded (master - replica). Every backend gives the same bits. A
 *  NaN gradient makes m, v and master NaN (0x7fc00000), so check gradients first. */
tw_status_t tw_quant_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                        const tw_quant_adamw_t *adamw,
                                        const tw_quant_adamw_segment_t *segments, size_t n_segments);

TW_C_END

#endif
