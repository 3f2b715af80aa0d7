/** Launches of the kernels of entropy-coded messages on a GPU. */
#pragma once

#include "quant/cuda/entropy_device.cuh"

#include "quant/cuda/entropy_job.h"

template <class KERNEL, class JOB>
__global__ void __launch_bounds__(TW_ENTROPY_CUDA_THREADS) tw_entropy_kernel(const __grid_constant__ JOB job)
{
    KERNEL::run(job);
}

/** Launches a kernel. Grid 0 only loads it: loading at the first launch could wait for the device. */
template <class JOB>
struct tw_entropy_runner {
    const JOB *job;
    uint32_t grid, threads;
    cudaStream_t stream;

    template <class KERNEL>
    tw_status_t run() const
    {
        const void *kernel = (const void *)tw_entropy_kernel<KERNEL, JOB>;
        if (grid == 0) {
            cudaFuncAttributes attributes;
            return tw_quant_cuda_status(cudaFuncGetAttributes(&attributes, kernel),
                                        "loading of a kernel of entropy-coded messages");
        }
        void *params[] = {(void *)job};
        return tw_quant_cuda_status(cudaLaunchKernel(kernel, dim3(grid), dim3(threads), params, 0, stream),
                                    "launch of a kernel of entropy-coded messages");
    }
};
