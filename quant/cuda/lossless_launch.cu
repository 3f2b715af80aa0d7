/* The lossless codec's kernels on a GPU. */
#include "quant/cuda/lossless_device.cuh"

#include "quant/cuda/lossless_select.cuh"

#include <cstring>

namespace
{

template <class KERNEL>
__global__ void __launch_bounds__(TW_LOSSLESS_CUDA_THREADS)
    lossless_kernel(const __grid_constant__ tw_lossless_cuda_job_t job)
{
    KERNEL::run(job);
}

/* Launches, or without a grid loads: a module that is loaded by the first launch may wait for the device. */
struct runner {
    const tw_lossless_cuda_job_t *job;
    uint32_t grid, threads;
    cudaStream_t stream;

    template <class KERNEL>
    tw_status_t run() const
    {
        const void *kernel = (const void *)lossless_kernel<KERNEL>;
        if (grid == 0) {
            cudaFuncAttributes attributes;
            return tw_quant_cuda_status(cudaFuncGetAttributes(&attributes, kernel),
                                        "loading of a lossless kernel");
        }
        void *params[] = {(void *)job};
        return tw_quant_cuda_status(cudaLaunchKernel(kernel, dim3(grid), dim3(threads), params, 0, stream),
                                    "launch of a lossless kernel");
    }
};

tw_status_t run(tw_lossless_cuda_kernel_t kernel, const tw_lossless_cuda_job_t *job, uint32_t grid,
                uint32_t threads, tw_stream_t stream)
{
    return tw_lossless_select(runner{job, grid, threads, (cudaStream_t)stream}, kernel, job->type);
}

/* Words travel as kernel parameters: the caller's list may be gone when the stream gets here, and a captured graph keeps
 * what it was given. */
const size_t words_max = 4000;

struct words_part {
    uint64_t *to;
    uint32_t n;
    uint64_t words[words_max];
};

__global__ void lossless_fill(const __grid_constant__ words_part part)
{
    for (uint32_t i = threadIdx.x; i < part.n; i += blockDim.x) {
        part.to[i] = part.words[i];
    }
}

tw_status_t fill(void *at, const uint64_t *words, size_t n, tw_stream_t stream)
{
    words_part part;
    for (size_t first = 0; first < n; first += words_max) {
        part.to = (uint64_t *)at + first;
        part.n = (uint32_t)(n - first < words_max ? n - first : words_max);
        memcpy(part.words, words + first, part.n * sizeof(*words));
        void *params[] = {&part};
        TW_TRY(tw_quant_cuda_status(cudaLaunchKernel((const void *)lossless_fill, dim3(1), dim3(256), params,
                                                     0, (cudaStream_t)stream),
                                    "launch of lossless_fill"));
    }
    return TW_OK;
}

tw_status_t zero(void *at, size_t bytes, tw_stream_t stream)
{
    return tw_quant_cuda_status(cudaMemsetAsync(at, 0, bytes, (cudaStream_t)stream), "cudaMemsetAsync");
}

tw_status_t copy(void *host, const void *from, size_t bytes, tw_stream_t stream)
{
    return tw_quant_cuda_status(
        cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream), "cudaMemcpyAsync");
}

tw_status_t load_kernels()
{
    cudaFuncAttributes attributes;
    TW_TRY(tw_quant_cuda_status(cudaFuncGetAttributes(&attributes, (const void *)lossless_fill),
                                "loading of lossless_fill"));
    const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};
    for (tw_type_t type : types) {
        for (int kernel = 0; kernel < TW_LOSSLESS_CUDA_KERNELS; kernel++) {
            tw_status_t status =
                tw_lossless_select(runner{NULL, 0, 0, NULL}, (tw_lossless_cuda_kernel_t)kernel, type);
            if (status != TW_OK) {
                return status;
            }
        }
    }
    return TW_OK;
}

} // namespace

extern "C" tw_status_t tw_lossless_cuda_device_create(tw_lossless_cuda_device_t *device)
{
    int ordinal, n_multiprocessors;
    TW_TRY(tw_quant_cuda_status(cudaGetDevice(&ordinal), "cudaGetDevice"));
    TW_TRY(tw_quant_cuda_status(
        cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
        "cudaDeviceGetAttribute"));
    TW_TRY(load_kernels());
    *device = {(uint32_t)n_multiprocessors, run, fill, zero, copy};
    return TW_OK;
}
