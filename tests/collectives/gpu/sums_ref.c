#include "tests/collectives/gpu/sums_ref.h"

#include <math.h>
#include <string.h>

#include "quant/quant.h"

#define BATCH 1024 /**< elements at a time */

static void sum_batch(const tw_gpu_sum_t *sum, const char *src, char *dst, size_t n)
{
    float acc[BATCH];

    tw_convert_to_fp32(sum->in, src, acc, n);
    for (int k = 1; k < sum->n_inputs; k++) {
        tw_convert_add_fp32(sum->in, src + (size_t)k * sum->stride, acc, n);
    }
    for (size_t i = 0; i < n; i++) {
        float x = acc[i] * sum->factor;
        acc[i] = isfinite(x) && fabsf(x) > sum->limit ? copysignf(sum->limit, x) : x;
    }
    tw_convert_from_fp32(sum->out, acc, 1.0f, dst, n);
}

void tw_gpu_sum_ref(const tw_gpu_sum_t *sum)
{
    size_t in_bytes = tw_type_bytes(sum->in), out_bytes = tw_type_bytes(sum->out);

    for (size_t s = 0; s < sum->n_segments; s++) {
        const tw_gpu_sum_segment_t *segment = &sum->segments[s];
        const char *src = segment->src;
        char *dst = segment->dst;
        if (tw_gpu_sum_is_copy(sum)) {
            memcpy(dst, src, segment->n_elems * in_bytes);
            continue;
        }
        for (size_t first = 0; first < segment->n_elems; first += BATCH) {
            size_t left = segment->n_elems - first;
            sum_batch(sum, src + first * in_bytes, dst + first * out_bytes, left < BATCH ? left : BATCH);
        }
    }
}
