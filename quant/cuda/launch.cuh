/** Kernels, their launches, and the translation of CUDA's errors. */
#pragma once

#include "quant/cuda/select.cuh"

#include <cstddef>

template <class KERNEL, int WORDS>
__global__ void __launch_bounds__(KERNEL::threads_max, KERNEL::blocks_min)
    tw_quant_kernel(const __grid_constant__ tw_kernel_launch<WORDS> launch)
{
    KERNEL::run(launch.args, launch.words);
}

/** The RUNNER that launches on a GPU. For a job with load_only it only loads the kernel. Without that, the
 *  first launch would load it and could wait for the device, which is not allowed during a capture. */
struct tw_kernel_runner {
    template <class KERNEL>
    static tw_status_t run(const tw_cuda_job_t *job, uint32_t grid)
    {
        if (!job->load_only) {
            return job->n_words <= TW_CUDA_WORDS_SMALL ? launch<KERNEL, TW_CUDA_WORDS_SMALL>(job, grid)
                                                       : launch<KERNEL, TW_CUDA_WORDS_LARGE>(job, grid);
        }
        tw_status_t status = load<KERNEL, TW_CUDA_WORDS_SMALL>();
        return status == TW_OK ? load<KERNEL, TW_CUDA_WORDS_LARGE>() : status;
    }

    template <class KERNEL, int WORDS>
    static tw_status_t launch(const tw_cuda_job_t *job, uint32_t grid)
    {
        static_assert(sizeof(tw_kernel_launch<WORDS>) <= 32764 &&
                          sizeof(tw_kernel_launch<WORDS>) <= sizeof(job->params),
                      "more parameters than a kernel may have");
        static_assert(offsetof(tw_kernel_launch<WORDS>, words) == sizeof(tw_cuda_args_t),
                      "params begins like tw_kernel_launch");
        void *params[] = {(void *)&job->params};
        return tw_quant_cuda_status(cudaLaunchKernel((const void *)tw_quant_kernel<KERNEL, WORDS>, dim3(grid),
                                                     dim3(job->params.args.tiling.threads), params, 0,
                                                     (cudaStream_t)job->stream),
                                    "launch of a quant kernel");
    }

    template <class KERNEL, int WORDS>
    static tw_status_t load()
    {
        cudaFuncAttributes attributes;
        return tw_quant_cuda_status(
            cudaFuncGetAttributes(&attributes, (const void *)tw_quant_kernel<KERNEL, WORDS>),
            "loading of a quant kernel");
    }
};

/** Each function is in its own file, so that files are compiled in parallel. */
tw_status_t tw_quant_cuda_run_encode(const tw_cuda_job_t *job, uint32_t grid);
tw_status_t tw_quant_cuda_run_decode(const tw_cuda_job_t *job, uint32_t grid);
tw_status_t tw_quant_cuda_run_reduce(const tw_cuda_job_t *job, uint32_t grid);
tw_status_t tw_quant_cuda_run_adamw(const tw_cuda_job_t *job, uint32_t grid);
