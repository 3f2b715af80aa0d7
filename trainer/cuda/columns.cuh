/** Sums each column of a matrix over its rows. Two kernels do it, so that the bits are the same on every GPU:
 *  the caller's kernel makes the sums of slabs of rows; then the one here adds up the slabs in order, with a
 *  thread for each column.
 *
 *  Include device.cuh, or what stands for it in a test, before. */
#pragma once

#include "trainer/cuda/cuda.h"
#include "trainer/cuda/elements.cuh"

namespace tw_trainer_kernels
{

constexpr size_t slab_rows = TW_CUDA_SLAB_ROWS;

TW_HOST_DEVICE size_t column_blocks(size_t channels)
{
    return ceil_div(channels, threads);
}

TW_HOST_DEVICE size_t slab_count(size_t rows)
{
    return ceil_div(rows, slab_rows);
}

/** partial is [sums][slabs][channels]. */
struct SlabArgs {
    size_t slabs, channels;
    const float *partial;
    float *sums[2]; /* (channels) to which the slabs are added; the second may be NULL */
};

/** Kernel: adds up the slabs. Bytes: 4 a channel of a slab; 1 operation. A thread has 8 loads under way. */
struct AddSlabs {
    static constexpr size_t batch = 8;

    static TW_DEVICE float add_up(const float *partial, size_t slabs, size_t channels)
    {
        float sum = 0;
        for (size_t first = 0; first < slabs; first += batch) {
            float values[batch];
            TW_UNROLL
            for (size_t i = 0; i < batch; i++) {
                values[i] = first + i < slabs ? partial[(first + i) * channels] : 0;
            }
            TW_UNROLL
            for (size_t i = 0; i < batch; i++) {
                sum += values[i];
            }
        }
        return sum;
    }

    static TW_DEVICE void run(const SlabArgs &a)
    {
        const size_t column = (size_t)blockIdx.x * threads + threadIdx.x;
        if (column >= a.channels) {
            return;
        }
        a.sums[0][column] += add_up(a.partial + column, a.slabs, a.channels);
        if (a.sums[1]) {
            a.sums[1][column] += add_up(a.partial + a.slabs * a.channels + column, a.slabs, a.channels);
        }
    }
};

template <class LAUNCHER>
tw_status_t add_slabs(const LAUNCHER &launcher, const char *what, const SlabArgs &args)
{
    return launcher.template run<AddSlabs>((uint32_t)column_blocks(args.channels), what, args);
}

} // namespace tw_trainer_kernels
