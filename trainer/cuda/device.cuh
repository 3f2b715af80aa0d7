/** The few GPU functions that kernels call. Tests replace this file, and threadIdx, blockIdx, gridDim,
 *  __syncthreads, __shared__ and atomicAdd of integers, to run the same kernels on a CPU. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#define TW_DEVICE __device__ __forceinline__
#define TW_HOST_DEVICE __host__ __device__ __forceinline__
#define TW_UNROLL _Pragma("unroll")

#include "trainer/cuda/fragments.cuh"

/** Returns `value` of the lane whose number is this lane's xor `mask`. All lanes of the warp call it. */
template <class T>
TW_DEVICE T tw_dev_exchange(T value, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

/** Returns a bit for each lane of the warp, set if the lane's `yes` is true. All lanes call it. */
TW_DEVICE uint32_t tw_dev_ballot(bool yes)
{
    return __ballot_sync(0xffffffffu, yes);
}

TW_DEVICE uint32_t tw_dev_popc(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

/** Returns a * b + c, rounded once. The compiler may not fuse operations by itself in kernels. */
TW_DEVICE float tw_dev_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

/** Returns e^x by the GPU's instruction, with an error of 2 + |x| units in the last place. It is 0 for x <=
 *  -104, infinite for x >= 89. NaN stays NaN. */
TW_DEVICE float tw_dev_exp(float x)
{
    return __expf(x);
}

/** Returns 2^x by the GPU's instruction, with an error of 2 units in the last place; 0 for x <= -150. */
TW_DEVICE float tw_dev_exp2(float x)
{
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** Loads 16 bytes, aligned to 16 bytes, in one access. Other threads may write this memory in the kernel. */
TW_DEVICE void tw_dev_load_mutable(const void *from, uint32_t *words)
{
    uint4 v = *(const uint4 *)from;
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

template <int BYTES>
TW_DEVICE void tw_dev_store(void *to, const uint32_t *words)
{
    static_assert(BYTES == 16 || BYTES == 4, "whole accesses");
    if (BYTES == 4) {
        *(uint32_t *)to = words[0];
    } else {
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/* ---- shared memory ------------------------------------------------------------------------------------- */

/** Begin to copy BYTES (4 or 16, aligned to that) from global to shared memory. The thread may read them
 *  after tw_dev_copy_wait; other threads also need a barrier. Before sm_80 they are copied at once. */
template <int BYTES>
TW_DEVICE void tw_dev_copy_begin(void *to, const void *from)
{
    static_assert(BYTES == 16 || BYTES == 4, "whole accesses");
#if __CUDA_ARCH__ >= 800
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (BYTES == 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    }
#else
    uint32_t words[BYTES / 4];
    memcpy(words, __builtin_assume_aligned(from, BYTES), BYTES);
    tw_dev_store<BYTES>(to, words);
#endif
}

/** Waits until all copies that this thread has begun are complete. */
TW_DEVICE void tw_dev_copy_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/** Loads four squares of 8 x 8 elements of 2 bytes from shared memory. All lanes of the warp call it. Lane
 *  8 i + r passes the address of row r of square i, aligned to 16 bytes. Lane 4 g + t gets in words[i]
 *  elements 2 t and 2 t + 1 of row g (TRANSPOSED: of column g) of square i. See PTX ISA, ldmatrix. */
template <bool TRANSPOSED>
TW_DEVICE void tw_dev_load_squares(const void *row, uint32_t *words)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at)
                     : "memory");
    }
}

/* ---- tensor cores -------------------------------------------------------------------------------------- */

/** Rounds two numbers to the nearest bf16 and packs them into a word. NaN stays NaN. */
TW_DEVICE uint32_t tw_dev_pack(float low, float high)
{
#if __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return (uint32_t)tw_trainer_kernels::bf16_bits(low) | (uint32_t)tw_trainer_kernels::bf16_bits(high) << 16;
#endif
}

/** tw_dev_mma for GPUs without bf16 tensor cores. Inlined, the code would grow too large to compile. */
template <int WORDS>
__device__ __noinline__ float4 tw_dev_mma_by_lanes(uint4 a, uint2 b, float4 sum)
{
    static_assert(WORDS == 6, "of a and b");
    const uint32_t words[WORDS] = {a.x, a.y, a.z, a.w, b.x, b.y};
    float c[] = {sum.x, sum.y, sum.z, sum.w};
    tw_trainer_kernels::multiply_fragments(threadIdx.x % 32, c, [&](uint32_t lane, uint32_t i) {
        return __shfl_sync(0xffffffffu, words[i], (int)lane);
    });
    return make_float4(c[0], c[1], c[2], c[3]);
}

/** Computes c (16,8) += a (16,16) b (16,8) with bf16 factors and fp32 sums, in the layout of fragments.cuh.
 *  All lanes of the warp call it. Before sm_80 no tensor cores are used. */
TW_DEVICE void tw_dev_mma(const uint32_t *a, const uint32_t *b, float *c)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const float4 sum = tw_dev_mma_by_lanes<6>(make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b[0], b[1]),
                                              make_float4(c[0], c[1], c[2], c[3]));
    c[0] = sum.x, c[1] = sum.y, c[2] = sum.z, c[3] = sum.w;
#endif
}
