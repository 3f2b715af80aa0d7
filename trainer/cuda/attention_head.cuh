/** Part of attention.cuh: the arguments of its kernels, and access to one head of one sequence. */
#pragma once

#include <math.h>

#include "trainer/cuda/attention_args.h"
#include "trainer/cuda/elements.cuh"

namespace tw_trainer_kernels
{

struct AttentionArgs {
    tw_cuda_attention_t attention;
    tw_cuda_attention_gradients_t gradients;
    void *y;
    size_t y_stride;
    float factor; /* factor of scores: 1 / sqrt(D) */
    bool aligned; /* 1: all rows are aligned to 16 bytes */
};

/** Rows of one head. Row t begins at `at` + t * stride elements. */
struct Rows {
    const void *at;
    size_t stride;
};

/** One head of one sequence. */
template <class T>
struct AttentionHead {
    const AttentionArgs &a;
    size_t batch, head, kv_head;
    uint32_t seq_len, width, window;

    TW_DEVICE AttentionHead(const AttentionArgs &args, size_t b, size_t h)
        : a(args), batch(b), head(h), kv_head(h / (args.attention.heads / args.attention.kv_heads)),
          seq_len((uint32_t)args.attention.seq_len), width((uint32_t)args.attention.width),
          window((uint32_t)args.attention.window)
    {
    }

    TW_DEVICE Rows rows(const void *array, size_t stride, size_t which) const
    {
        return {(const T *)array + batch * seq_len * stride + which * width, stride};
    }
    TW_DEVICE Rows q() const
    {
        return rows(a.attention.q, a.attention.q_stride, head);
    }
    TW_DEVICE Rows k() const
    {
        return rows(a.attention.k, a.attention.k_stride, kv_head);
    }
    TW_DEVICE Rows v() const
    {
        return rows(a.attention.v, a.attention.v_stride, kv_head);
    }
    TW_DEVICE Rows dy() const
    {
        return rows(a.gradients.dy, a.gradients.dy_stride, head);
    }
    /** Return a row's index in an array (B,H,T). */
    TW_DEVICE size_t statistic(uint32_t row) const
    {
        return (batch * a.attention.heads + head) * seq_len + row;
    }

    /** Return the first key that a query attends to if its document begins at `by_document`. */
    TW_DEVICE uint32_t first_seen_of(uint32_t query, uint32_t by_document) const
    {
        const uint32_t by_window = window && query >= window ? query - window + 1 : 0;
        return by_window > by_document ? by_window : by_document;
    }
    TW_DEVICE uint32_t first_seen(uint32_t query) const
    {
        const int32_t *starts = a.attention.starts;
        return first_seen_of(query, starts ? (uint32_t)starts[batch * seq_len + query] : 0);
    }
    TW_DEVICE bool sees(uint32_t query, uint32_t key) const
    {
        return query < seq_len && key <= query && key >= first_seen(query);
    }
};

/** Loads eight columns of a row from `column` on. Elements outside the matrix are 0. */
template <class T>
TW_DEVICE void load_inside(Rows rows, uint32_t row, uint32_t n_rows, uint32_t column, uint32_t width,
                           bool aligned, float *values)
{
    const T *at = (const T *)rows.at + row * rows.stride + column;
    if (row < n_rows && aligned && column + octet_elems <= width) {
        load_octet(at, values);
        return;
    }
    TW_UNROLL
    for (uint32_t i = 0; i < octet_elems; i++) {
        values[i] = row < n_rows && column + i < width ? to_float(at[i]) : 0;
    }
}

/** Combines the values of LANES neighbouring lanes; each gets the result. LANES is a power of two. */
template <uint32_t LANES, class FN>
TW_DEVICE float combine_lanes(float value, FN fn)
{
    TW_UNROLL
    for (uint32_t mask = 1; mask < LANES; mask *= 2) {
        value = fn(value, tw_dev_exchange(value, mask));
    }
    return value;
}

struct Larger {
    TW_DEVICE float operator()(float a, float b) const
    {
        return a > b ? a : b; /* a NaN may be lost here, but its exponential makes the sum NaN */
    }
};

struct Plus {
    TW_DEVICE float operator()(float a, float b) const
    {
        return a + b;
    }
};

/** Kernel: y, dy -> workspace (B,H,T), the dot product of y and dy over a head, which equals the sum of P *
 *  dP over a row of scores. A warp takes a head of a token. It reads 4 bytes (2 bf16) per multiply-add. */
template <class T>
struct AttentionDots {
    static TW_DEVICE void run(const AttentionArgs &a)
    {
        const size_t index = first_row(), rows = a.attention.batch * a.attention.seq_len;
        const size_t row = index / a.attention.heads, head = index % a.attention.heads;
        const size_t b = row / a.attention.seq_len, t = row % a.attention.seq_len;
        if (row >= rows) {
            return;
        }
        const T *y = (const T *)a.gradients.y + row * a.gradients.y_stride + head * a.attention.width;
        const T *dy = (const T *)a.gradients.dy + row * a.gradients.dy_stride + head * a.attention.width;
        float sum = 0;
        for (size_t c = threadIdx.x % warp_lanes; c < a.attention.width; c += warp_lanes) {
            sum += to_float(y[c]) * to_float(dy[c]);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % warp_lanes == 0) {
            a.gradients.workspace[(b * a.attention.heads + head) * a.attention.seq_len + t] = sum;
        }
    }
};

} // namespace tw_trainer_kernels
