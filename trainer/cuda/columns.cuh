/** Sums each column of a matrix over its rows, by two kernels with the same bits on every GPU. The caller's
 *  kernel sums slabs (TW_CUDA_SLAB_ROWS consecutive rows). The kernel here adds the slabs' sums in order,
 *  with a thread for each column.
 *  Include device.cuh, or a test's replacement, first. */
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

/** Arguments of AddSlabs. partial is [number of sums][slabs][channels]. */
struct SlabArgs {
    size_t slabs, channels;
    const float *partial;
    float *sums[2]; /* [channels] each; slabs' sums are added to them; the second may be NULL */
};

/** Kernel: adds the slabs' sums. Bytes per sum: 4, for 1 operation. A thread has `batch` loads in flight. */
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
