/** The gradient of a bias: sums of columns. Memory bandwidth is the limit, with one operation an element.
 *  Fewer than 40 registers and no shared memory: eight blocks fill a multiprocessor. Include device.cuh, or a
 *  test's replacement, first. */
#pragma once

#include "trainer/cuda/columns.cuh"
#include "trainer/cuda/cuda.h"

namespace tw_trainer_kernels
{

struct BiasArgs {
    tw_cuda_rows_t rows;
    const void *dy;
    float *partial;
};

/** Kernel: dy -> partial [slabs][C], the sums of each slab's rows. Bytes per element: 2 (1 bf16). */
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
