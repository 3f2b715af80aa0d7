/** The few functions that kernels call of a GPU. Tests replace them to run the same kernels on a CPU, and
 *  with them threadIdx, blockIdx, gridDim, __syncthreads, __shared__ and atomicAdd of integers. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#define TW_DEVICE __device__ __forceinline__
#define TW_HOST_DEVICE __host__ __device__ __forceinline__
#define TW_UNROLL _Pragma("unroll")

#include "trainer/cuda/fragments.cuh"

/** Returns the value of the lane whose number differs in `mask`; all lanes of the warp take part. */
template <class T>
TW_DEVICE T tw_dev_exchange(T value, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

/** Returns a bit for each lane of the warp, set if its `yes` is true; all lanes take part. */
TW_DEVICE uint32_t tw_dev_ballot(bool yes)
{
    return __ballot_sync(0xffffffffu, yes);
}

TW_DEVICE uint32_t tw_dev_popc(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

/** Returns a * b + c, rounded once. Kernels are compiled without contraction, and ask for it here. */
TW_DEVICE float tw_dev_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

/** Returns e^x by the GPU's own instruction: 2 units in the last place, and one more for each unit of |x|; 0
 *  from -104 down, infinite from 89 up, NaN stays one. */
TW_DEVICE float tw_dev_exp(float x)
{
    return __expf(x);
}

/** Returns 2^x by the GPU's own instruction: 2 units in the last place; 0 from -150 down, NaN stays one. */
TW_DEVICE float tw_dev_exp2(float x)
{
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/** Loads 16 bytes, aligned to them, in one access. */
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

/** Begin to copy 4 or 16 bytes, aligned to them, from the GPU's memory to shared memory. The thread may read
 *  them after tw_dev_copy_wait, others after a further barrier. Before sm_80 they are copied at once. */
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

/** Waits until all copies that the thread has begun have ended. */
TW_DEVICE void tw_dev_copy_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/** Loads four squares of 8 x 8 elements of 2 bytes from shared memory; all lanes of the warp take part. Lane
 *  8 i + r gives the address of row r of square i, aligned to 16 bytes. Word i of lane 4 g + t: elements 2 t
 *  and 2 t + 1 of row g of square i; TRANSPOSED: of column g. PTX ISA, ldmatrix. */
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

/** Packs two bf16 into a word, to the nearest; NaN stays one. */
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

/** tw_dev_mma for GPUs without tensor cores. It is not inlined: the code would grow beyond what compiles. */
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

/** Computes c (16,8) += a (16,16) b (16,8): factors are bf16, sums fp32, in the layout of fragments.cuh; all
 *  lanes of the warp take part. Before sm_80 it does without tensor cores. */
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
