/** The GPU instructions that kernels use, apart from threadIdx, blockIdx, gridDim, __syncthreads, __shared__
 *  and atomics. Tests replace this file to run the same kernels on a CPU. */
#pragma once

#include <cub/version.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda_runtime.h>
#include <stdint.h>

#define TW_DEVICE __device__ __forceinline__
#define TW_UNROLL _Pragma("unroll")

/** Returns the value of the lane whose number is this one's xor `mask`. The whole warp must call it. */
template <class T>
TW_DEVICE T tw_dev_exchange(T value, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

#if CUB_VERSION >= 300000
using tw_dev_maximum = ::cuda::maximum<>;
#else
using tw_dev_maximum = cub::Max;
#endif

/** Returns, in all lanes, the largest value in the thread's group of 2^lane_steps neighbouring lanes. A whole
 *  warp uses CUB: one instruction from sm_80 on. Narrower groups use exchanges: their width depends on the
 *  codec's block at run time, but is a template parameter of CUB. */
TW_DEVICE uint32_t tw_dev_group_max(uint32_t value, uint32_t lane_steps)
{
    if (lane_steps == 5) {
        cub::WarpReduce<uint32_t>::TempStorage none; /* empty: CUB reduces in registers */
        return __shfl_sync(0xffffffffu, cub::WarpReduce<uint32_t>(none).Reduce(value, tw_dev_maximum()), 0);
    }
    TW_UNROLL
    for (uint32_t s = 0; s < 4; s++) {
        if (s >= lane_steps) {
            break;
        }
        value = max(value, tw_dev_exchange(value, 1u << s));
    }
    return value;
}

/** Returns the sum over the warp in lane 0; other lanes get anything. */
TW_DEVICE uint32_t tw_dev_warp_sum(uint32_t value)
{
    cub::WarpReduce<uint32_t>::TempStorage none;
    return cub::WarpReduce<uint32_t>(none).Sum(value);
}

/** Returns the pointer, and makes the compiler keep it in a register instead of computing it at each use. */
TW_DEVICE uint8_t *tw_dev_keep(uint8_t *pointer)
{
    asm("" : "+l"(pointer));
    return pointer;
}

/** The object of type T at an address of global memory. The compiler must be told that the memory is global,
 *  because kernels get addresses as integers. */
template <class T>
TW_DEVICE T &tw_dev_global(const void *at)
{
    T *object = (T *)at;
    __builtin_assume(__isGlobal(object));
    return *object;
}

/** Load BYTES (4, 8 or 16) in one access, aligned to BYTES. No one may write there during the kernel. */
template <int BYTES>
TW_DEVICE void tw_dev_load(const void *from, uint32_t *words)
{
    if constexpr (BYTES == 16) {
        uint4 v = __ldg((const uint4 *)from);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (BYTES == 8) {
        uint2 v = __ldg((const uint2 *)from);
        words[0] = v.x, words[1] = v.y;
    } else {
        words[0] = __ldg((const unsigned int *)from);
    }
}

/** Load 16 bytes from memory that this thread writes later. */
TW_DEVICE void tw_dev_load_mutable(const void *from, uint32_t *words)
{
    uint4 v = tw_dev_global<const uint4>(from);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

template <int BYTES>
TW_DEVICE void tw_dev_store(void *to, const uint32_t *words)
{
    if constexpr (BYTES == 16) {
        tw_dev_global<uint4>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else if constexpr (BYTES == 8) {
        tw_dev_global<uint2>(to) = make_uint2(words[0], words[1]);
    } else {
        tw_dev_global<uint32_t>(to) = words[0];
    }
}

/** Load one element of BYTES (1, 2 or 4), aligned to BYTES. */
template <int BYTES>
TW_DEVICE uint32_t tw_dev_load_element(const void *from)
{
    if constexpr (BYTES == 4) {
        return tw_dev_global<const uint32_t>(from);
    } else if constexpr (BYTES == 2) {
        return tw_dev_global<const uint16_t>(from);
    } else {
        return tw_dev_global<const uint8_t>(from);
    }
}

template <int BYTES>
TW_DEVICE void tw_dev_store_element(void *to, uint32_t value)
{
    if constexpr (BYTES == 4) {
        tw_dev_global<uint32_t>(to) = value;
    } else if constexpr (BYTES == 2) {
        tw_dev_global<uint16_t>(to) = (uint16_t)value;
    } else {
        tw_dev_global<uint8_t>(to) = (uint8_t)value;
    }
}
