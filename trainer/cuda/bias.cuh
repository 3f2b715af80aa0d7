/** A bias: added to rows, and its gradient, the sums of columns. Bytes are all that counts: one operation an
 *  element. Registers below 40, no shared memory: eight blocks fill a multiprocessor.
 *
 *  Include device.cuh, or what stands for it in a test, before. */
#pragma once

#include "trainer/cuda/columns.cuh"
#include "trainer/cuda/cuda.h"

namespace tw_trainer_kernels
{

constexpr size_t bias_rows = 16; /* rows of a block: a thread reads its bias once for all of them */

struct BiasArgs {
    tw_cuda_rows_t rows;
    const void *bias, *dy;
    void *y;
    float *partial;
};

/** Kernel, y, bias -> y. Bytes a channel of a row: 2 accesses of bf16, 4. */
template <class T, uint32_t WIDTH>
struct BiasForward {
    static TW_DEVICE void run(const BiasArgs &a)
    {
        const size_t blocks = column_blocks(ceil_div(a.rows.channels, WIDTH));
        const size_t column = (blockIdx.x % blocks * threads + threadIdx.x) * WIDTH;
        const size_t first = blockIdx.x / blocks * bias_rows;
        const size_t end = first + bias_rows < a.rows.rows ? first + bias_rows : a.rows.rows;
        float bias[WIDTH], y[WIDTH];
        if (column >= a.rows.channels) {
            return;
        }
        load<T, WIDTH>(a.bias, column, bias);
        for (size_t row = first; row < end; row++) {
            load<T, WIDTH>(a.y, row * a.rows.stride + column, y);
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                y[i] += bias[i];
            }
            store<T, WIDTH>(y, a.y, row * a.rows.stride + column);
        }
    }
};

/** Kernel, dy -> the sums of a slab's rows: partial [slabs][C]. Bytes a channel of a row: 1 access of bf16,
 *  2. */
template <class T>
struct BiasSlabs {
    static TW_DEVICE void run(const BiasArgs &a)
    {
        const size_t channels = a.rows.channels, blocks = column_blocks(channels);
        const size_t column = blockIdx.x % blocks * threads + threadIdx.x, slab = blockIdx.x / blocks;
        const size_t last = (slab + 1) * slab_rows, end = last < a.rows.rows ? last : a.rows.rows;
        float sum = 0;
        if (column >= channels) {
            return;
        }
        for (size_t row = slab * slab_rows; row < end; row++) {
            sum += to_float(((const T *)a.dy)[row * a.rows.stride + column]);
        }
        a.partial[slab * channels + column] = sum;
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

template <class T, uint32_t WIDTH, class LAUNCHER>
tw_status_t launch_bias(const LAUNCHER &launcher, const BiasArgs &a)
{
    const size_t blocks = column_blocks(ceil_div(a.rows.channels, WIDTH));
    return launcher.template run<BiasForward<T, WIDTH>>((uint32_t)(blocks * ceil_div(a.rows.rows, bias_rows)),
                                                        "bias", a);
}

template <class LAUNCHER>
tw_status_t bias_forward(const LAUNCHER &launcher, const tw_cuda_rows_t *rows, const void *bias, void *y)
{
    const bool octets = in_octets((size_t)bias | (size_t)y, rows->channels | rows->stride);
    BiasArgs args = {};

    TW_TRY(check_type("bias", rows->type));
    args.rows = *rows;
    args.bias = bias;
    args.y = y;
    if (rows->rows * rows->channels == 0) {
        return TW_OK;
    }
    if (rows->type == TW_TYPE_FP32) {
        return octets ? launch_bias<float, octet_elems>(launcher, args)
                      : launch_bias<float, 1>(launcher, args);
    }
    return octets ? launch_bias<Bf16, octet_elems>(launcher, args) : launch_bias<Bf16, 1>(launcher, args);
}

template <class LAUNCHER>
tw_status_t bias_backward(const LAUNCHER &launcher, const tw_cuda_rows_t *rows, const void *dy, float *dbias,
                          float *workspace)
{
    const char *what = "bias backwards";
    const size_t slabs = slab_count(rows->rows), blocks = slabs * column_blocks(rows->channels);
    BiasArgs args = {};

    TW_TRY(check_type(what, rows->type));
    args.rows = *rows;
    args.dy = dy;
    args.partial = workspace;
    if (blocks == 0) {
        return TW_OK;
    }
    TW_TRY(rows->type == TW_TYPE_FP32 ? launcher.template run<BiasSlabs<float>>((uint32_t)blocks, what, args)
                                      : launcher.template run<BiasSlabs<Bf16>>((uint32_t)blocks, what, args));
    return add_slabs(launcher, what, {slabs, rows->channels, workspace, {dbias, NULL}});
}

} // namespace tw_trainer_kernels
