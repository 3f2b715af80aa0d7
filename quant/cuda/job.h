/** The host side of the CUDA backend: parameters of kernels, and how operations on segments become launches.
 *  It needs no CUDA: the tests run the same jobs on an emulated device. Compiles as C11, C++17 and CUDA.
 *
 *  This folder's files for block codecs, their prefixes and contents, in the order of reading:
 *    tiling.h, job.[ch]    tw_cuda_    what the host decides: tiles, parameters, launches
 *    strip.h, plain.h      tw_strip_   arithmetic on the 16 elements that a thread holds; runs on a CPU too
 *    device.cuh            tw_dev_     the few GPU instructions that kernels need
 *    view, source, kernels tw_kernel_  the kernels: a thread's view of a tile, what is encoded, the bodies
 *    select, launch, .cu               from a job to its kernel; the table of operations */
#pragma once

#include "quant/arithmetic/adamw.h"
#include "quant/backend.h"
#include "quant/cuda/tiling.h"

TW_C_BEGIN

/* ---- parameters of a launch ---------------------------------------------------------------------------- */

/* All arguments are passed by value, as kernel parameters. So nothing is allocated, copied to the device or
 * waited for, and a captured graph has its own copy. After the arguments comes an array of 64-bit words: the
 * segments, then their lists of pointers. Kernels exist for two sizes of this array, because a launch with
 * more parameters costs more. */

typedef struct tw_cuda_args {
    /** codecs of the encoded inputs and of the output; equal if a call has one codec */
    tw_cuda_codec_t in, out;
    tw_cuda_tiling_t tiling; /**< in blocks of `out` */
    uint64_t n_tiles;
    uint32_t n_segments;
    uint32_t undo;     /**< 1: undo the rotation after decoding */
    uint32_t rotate;   /**< 1: rotate before encoding */
    uint32_t saturate; /**< reduce_decode: 1: saturate instead of becoming infinite */
    uint32_t step;
    uint64_t seed;
    float factor;
    uint32_t grad_type;      /**< AdamW only */
    const float *grad_scale; /**< AdamW only; may be NULL */
    tw_adamw_factors_t adamw;
    unsigned long long *nonfinite; /**< where non-finite blocks are counted */
} tw_cuda_args_t;

typedef enum tw_cuda_inputs {
    TW_CUDA_STRIDED, /**< input k is src + k * stride */
    TW_CUDA_LISTED,  /**< input k is words[list + k] */
    TW_CUDA_TABLE    /**< input k is ((const uint64_t *)base)[k], in device memory */
} tw_cuda_inputs_t;

typedef struct tw_cuda_segment {
    /** index of its first tile in the launch; a launch has no segments without elements */
    uint64_t first_tile;
    uint64_t n_elems, first_elem;
    const uint8_t *src, *base;
    uint8_t *dst;
    int64_t stride;
    uint32_t list, inputs; /**< AdamW: words[list..] are the addresses of master, m and v */
    uint32_t n_srcs, tensor;
} tw_cuda_segment_t;

#define TW_CUDA_SEGMENT_WORDS (sizeof(tw_cuda_segment_t) / 8)
#define TW_CUDA_WORDS_SMALL 100
/** Fits the limit of kernel parameters, 32764 bytes (CUDA 12.1, Volta and later). */
#define TW_CUDA_WORDS_LARGE 4000

/** Find the segment of a tile: the last one with first_tile <= tile. It must not be before index `from`. */
TW_HD static inline uint32_t tw_cuda_segment_find(const tw_cuda_segment_t *segments, uint32_t n_segments,
                                                  uint32_t from, uint64_t tile)
{
    uint32_t low = from, high = n_segments;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (segments[middle].first_tile <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- jobs ---------------------------------------------------------------------------------------------- */

typedef enum tw_cuda_op {
    TW_CUDA_ENCODE,
    TW_CUDA_ENCODE_DELTA,
    TW_CUDA_ADAMW,
    TW_CUDA_REDUCE_ENCODE,
    TW_CUDA_DECODE,
    TW_CUDA_DECODE_APPLY,
    TW_CUDA_REDUCE_DECODE
} tw_cuda_op_t;

/** One launch of a kernel. */
typedef struct tw_cuda_job {
    tw_cuda_op_t op;
    tw_type_t type; /**< type of the unencoded elements */
    tw_stream_t stream;
    int load_only;  /**< 1: only load the kernel, so that it can be launched in a capture */
    size_t n_words; /**< number of params.words in use */
    struct {
        tw_cuda_args_t args;
        uint64_t words[TW_CUDA_WORDS_LARGE];
    } params;
} tw_cuda_job_t;

/** A GPU, or the tests' emulation of one. A context's quant->impl points to it. */
typedef struct tw_cuda_device {
    uint32_t n_multiprocessors;
    unsigned long long *nonfinite; /**< counter in the device's memory */
    /** Enqueue a launch of `grid` blocks of args.tiling.threads threads. */
    tw_status_t (*run)(const tw_cuda_job_t *job, uint32_t grid);
    /** Enqueue on `stream`: table[i] = pointers[i], in device memory. The caller may free `pointers` when
     *  this returns. Only for more inputs than fit in a launch's parameters. */
    tw_status_t (*table_fill)(uint64_t *table, const void *const *pointers, size_t n, tw_stream_t stream);
} tw_cuda_device_t;

/** The operations of tw_quant_backend_t. */
tw_status_t tw_cuda_encode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                           size_t n_segments, int delta);
tw_status_t tw_cuda_decode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                           size_t n_segments, int apply);
size_t tw_cuda_reduce_workspace_bytes(const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_cuda_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                  const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_cuda_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                  const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_cuda_adamw_encode_delta(tw_quant_t *quant, const tw_quant_args_t *args,
                                       const tw_quant_adamw_t *adamw,
                                       const tw_quant_adamw_segment_t *segments, size_t n_segments);

TW_C_END
