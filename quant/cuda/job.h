/** What a kernel is given, and how operations on segments become launches. No CUDA needed: the tests run the same jobs on
 *  an emulated device. Compiles as C11, C++17 and CUDA. */
#ifndef TW_QUANT_CUDA_JOB_H
#define TW_QUANT_CUDA_JOB_H

#include "quant/arithmetic/adamw.h"
#include "quant/backend.h"
#include "quant/cuda/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- parameters of a launch --------------------------------------------------------------------------------------
 * Everything travels by value, as kernel parameters: nothing is allocated, copied or waited for, and a captured graph
 * owns it. After the arguments comes an array of 64-bit words: the segments, then the lists of pointers that they refer
 * to. Kernels exist for two sizes of it, because a launch costs more with more parameters. */

typedef struct tw_qp_args {
    tw_qp_codec_t in, out; /**< of encoded inputs and of the output; the same where there is only one */
    tw_qp_tiling_t tiling; /**< in blocks of `out` */
    uint64_t n_tiles;
    uint32_t n_segments;
    uint32_t undo;   /**< rotate after decoding */
    uint32_t rotate; /**< rotate before encoding */
    uint32_t step;
    uint64_t seed;
    float factor;
    uint32_t grad_type;      /**< AdamW */
    const float *grad_scale; /**< AdamW, or NULL */
    tw_adamw_factors_t adamw;
    unsigned long long *nonfinite; /**< counter of blocks */
} tw_qp_args_t;

typedef enum tw_qp_inputs {
    TW_QP_STRIDED, /**< input k is src + k * stride */
    TW_QP_LISTED,  /**< input k is words[list + k] */
    TW_QP_TABLE    /**< input k is ((const uint64_t *)base)[k], in device memory */
} tw_qp_inputs_t;

typedef struct tw_qp_segment {
    uint64_t first_tile; /**< among the launch's tiles; segments without elements are left out */
    uint64_t n_elems, first_elem;
    const uint8_t *src, *base;
    uint8_t *dst;
    int64_t stride;
    uint32_t list, inputs; /**< AdamW: words[list..] are master, m and v */
    uint32_t n_srcs, tensor;
} tw_qp_segment_t;

#define TW_QP_SEGMENT_WORDS (sizeof(tw_qp_segment_t) / 8)
#define TW_QP_WORDS_SMALL 100
#define TW_QP_WORDS_LARGE 4000 /**< parameters are limited to 32764 bytes since CUDA 12.1 (Volta and later) */

/** The segment that a tile belongs to: the last one with first_tile <= tile, known not to come before `from`. */
TW_HD static inline uint32_t tw_qp_find(const tw_qp_segment_t *segments, uint32_t n_segments, uint32_t from,
                                        uint64_t tile)
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

/* ---- jobs ------------------------------------------------------------------------------------------------------- */

typedef enum tw_qj_op {
    TW_QJ_ENCODE,
    TW_QJ_DELTA_ENCODE,
    TW_QJ_ADAMW,
    TW_QJ_REDUCE_ENCODE,
    TW_QJ_DECODE,
    TW_QJ_DECODE_APPLY,
    TW_QJ_REDUCE_DECODE
} tw_qj_op_t;

/** One launch. */
typedef struct tw_qj_job {
    tw_qj_op_t op;
    tw_type_t type; /**< of the plain side */
    tw_stream_t stream;
    int load_only;  /**< do not launch, make the launch possible during a capture */
    size_t n_words; /**< of params.words that are used */
    struct {
        tw_qp_args_t args;
        uint64_t words[TW_QP_WORDS_LARGE];
    } params;
} tw_qj_job_t;

/** A GPU, or what stands in for one. quant->impl of a context that lives on one points to it. */
typedef struct tw_qj_device {
    uint32_t n_multiprocessors;
    unsigned long long *nonfinite; /**< in the device's memory */
    /** Enqueue a launch of `grid` blocks of args.tiling.threads threads. */
    tw_status_t (*run)(const tw_qj_job_t *job, uint32_t grid);
    /** Enqueue on `stream`: table[i] = pointers[i], in the device's memory; the list itself is not needed afterwards. Only
     *  for more inputs than the parameters of a launch can hold. */
    tw_status_t (*table_fill)(uint64_t *table, const void *const *pointers, size_t n, tw_stream_t stream);
} tw_qj_device_t;

/* The operations of a backend. */
tw_status_t tw_qj_encode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                         size_t n_segments);
tw_status_t tw_qj_decode(tw_quant_t *quant, const tw_quant_args_t *args, const tw_quant_segment_t *segments,
                         size_t n_segments);
tw_status_t tw_qj_decode_add(tw_quant_t *quant, const tw_quant_args_t *args,
                             const tw_quant_segment_t *segments, size_t n_segments);
tw_status_t tw_qj_delta_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                               const tw_quant_segment_t *segments, size_t n_segments);
tw_status_t tw_qj_decode_apply(tw_quant_t *quant, const tw_quant_args_t *args,
                               const tw_quant_segment_t *segments, size_t n_segments);
size_t tw_qj_reduce_workspace_bytes(const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_qj_reduce_encode(tw_quant_t *in_quant, tw_quant_t *out_quant, const tw_quant_args_t *args,
                                const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_qj_reduce_decode(tw_quant_t *quant, const tw_quant_args_t *args,
                                const tw_quant_reduce_segment_t *segments, size_t n_segments);
tw_status_t tw_qj_adamw_delta_encode(tw_quant_t *quant, const tw_quant_args_t *args,
                                     const tw_quant_adamw_t *adamw, const tw_quant_adamw_segment_t *segments,
                                     size_t n_segments);

#ifdef __cplusplus
}
#endif

#endif
