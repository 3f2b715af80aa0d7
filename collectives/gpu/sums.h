/** Sums and copies of plain tensors on a GPU. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Input k of a segment is at src + k * stride. Pointers must be aligned to their elements. It is faster if
 *  pointers and the stride are multiples of 16 bytes. */
typedef struct tw_gpu_sum_segment {
    const void *src;
    void *dst;
    size_t n_elems;
} tw_gpu_sum_segment_t;

/** dst[n] = round(factor * (input 0 + input 1 + ...)), summed in fp32 in that order. src and dst must not
 *  overlap. The bits are those of the CPU, also for NaN and infinities. Only if several different NaN are
 *  added, the result may be any of them. */
typedef struct tw_gpu_sum {
    /** a float type; TW_TYPE_BYTE for a copy, which has one input, out of the same type, and factor 1 */
    tw_type_t in;
    tw_type_t out; /**< fp32 or the type of the inputs; numbers that it cannot hold become infinite */
    int n_inputs;  /**< >= 1 */
    size_t stride; /**< bytes from one input to the next */
    float factor;
    float limit; /**< limit to which finite results are clipped before rounding; INFINITY: none */
    const tw_gpu_sum_segment_t *segments;
    size_t n_segments;
} tw_gpu_sum_t;

/** Returns 1 if the sum has one input and changes nothing, so that it is copied bit by bit. */
static inline int tw_gpu_sum_is_copy(const tw_gpu_sum_t *sum)
{
    return sum->n_inputs == 1 && sum->in == sum->out && sum->factor == 1.0f;
}

/** Enqueue on `stream`. TW_ERR_CUDA (logged). Only in builds with CUDA. */
tw_status_t tw_gpu_sum_cuda(const tw_gpu_sum_t *sum, tw_stream_t stream);

TW_C_END
