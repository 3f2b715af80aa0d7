/** GPU instructions for the kernels of entropy-coded messages, besides those of device.cuh. */
#pragma once

#include "quant/cuda/device.cuh"

#include <cub/block/block_scan.cuh>

/** Returns a mask with a bit set for each lane whose `yes` is true. All lanes of the warp must call it. */
TW_DEVICE uint32_t tw_dev_ballot(bool yes)
{
    return __ballot_sync(0xffffffffu, yes);
}

TW_DEVICE uint32_t tw_dev_popc(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

/** Prefetch a cache line of global memory. */
TW_DEVICE void tw_dev_prefetch(const void *at)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

/** Count the ones below the lowest zero bit; there must be a zero. */
TW_DEVICE uint32_t tw_dev_ones(uint32_t bits)
{
    return (uint32_t)__ffs((int)~bits) - 1;
}

/** Returns the sum of the values of all earlier threads of the thread block (256 threads); *all is the sum of
 *  all threads. Begins and ends with a barrier. */
template <class T>
TW_DEVICE T tw_dev_block_scan(T value, T *all)
{
    using scan = cub::BlockScan<T, 256>;
    __shared__ typename scan::TempStorage storage;
    T before;
    __syncthreads();
    scan(storage).ExclusiveSum(value, before, *all);
    __syncthreads();
    return before;
}
