/** Launches kernels on a GPU. */
#ifndef TW_TRAINER_CUDA_LAUNCH_CUH
#define TW_TRAINER_CUDA_LAUNCH_CUH

#include "quant/quant.h"
#include "trainer/cuda/device.cuh"
#include "trainer/cuda/elements.cuh"

namespace tw_trainer_kernels
{

template <class KERNEL, class ARGS>
__global__ void __launch_bounds__(threads) kernel(const __grid_constant__ ARGS args)
{
    KERNEL::run(args);
}

struct Launcher {
    tw_stream_t stream;

    template <class KERNEL, class ARGS>
    tw_status_t run(uint32_t blocks, const char *what, const ARGS &args) const
    {
        void *params[] = {(void *)&args};
        return tw_quant_cuda_status(cudaLaunchKernel((const void *)kernel<KERNEL, ARGS>, dim3(blocks),
                                                     dim3(threads), params, 0, (cudaStream_t)stream),
                                    what);
    }
};

} // namespace tw_trainer_kernels

#endif
