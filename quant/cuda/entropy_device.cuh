/** What the kernels of entropy-coded messages use of a GPU besides device.cuh. */
#pragma once

#include "quant/cuda/device.cuh"

#include <cub/block/block_scan.cuh>

/** A mask with a bit for each lane of the warp that says yes; all take part. */
TW_DEVICE uint32_t tw_dev_ballot(bool yes)
{
    return __ballot_sync(0xffffffffu, yes);
}

TW_DEVICE uint32_t tw_dev_popc(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

/** Prefetch a line of global memory that will be read. */
TW_DEVICE void tw_dev_prefetch(const void *at)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

/** Count the ones below the lowest zero; there must be one. */
TW_DEVICE uint32_t tw_dev_ones(uint32_t bits)
{
    return (uint32_t)__ffs((int)~bits) - 1;
}

/** The sum of the values of all threads before this one, and of all threads, in a thread block of 256. Begins
 *  and ends with a barrier. */
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
