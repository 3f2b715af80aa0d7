/** The few things that the kernels ask of a GPU, so that tests can run the same kernels on a CPU: besides
 *  these, threadIdx, blockIdx, gridDim, __syncthreads, __shared__ and atomicAdd of integers. */
#ifndef TW_TRAINER_CUDA_DEVICE_CUH
#define TW_TRAINER_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#define TW_DEVICE __device__ __forceinline__
#define TW_HOST_DEVICE __host__ __device__ __forceinline__
#define TW_UNROLL _Pragma("unroll")

/** The value of the lane whose number differs in `mask`; all lanes of the warp take part. */
template <class T>
TW_DEVICE T tw_dev_exchange(T value, uint32_t mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

/** A bit for each lane of the warp that says yes; all lanes take part. */
TW_DEVICE uint32_t tw_dev_ballot(bool yes)
{
    return __ballot_sync(0xffffffffu, yes);
}

TW_DEVICE uint32_t tw_dev_popc(uint32_t bits)
{
    return (uint32_t)__popc(bits);
}

/** a * b + c, rounded once: what is compiled without contraction says where it wants one. */
TW_DEVICE float tw_dev_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

/** e^x by the GPU's own instruction: 2 units in the last place, and one more for each unit of |x|; 0 from
 *  -104 down, infinite from 89 up, NaN stays one. */
TW_DEVICE float tw_dev_exp(float x)
{
    return __expf(x);
}

/** One access of 16 bytes, aligned to them. */
TW_DEVICE void tw_dev_load_mutable(const void *from, uint32_t *words)
{
    uint4 v = *(const uint4 *)from;
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

template <int BYTES>
TW_DEVICE void tw_dev_store(void *to, const uint32_t *words)
{
    static_assert(BYTES == 16, "whole accesses");
    *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
}

#endif
