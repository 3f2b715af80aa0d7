/* Copies words to device memory as kernel parameters, so that the caller may free its list at once, and a
 * captured graph has its own copy. Also the other calls of CUDA that entropy-coded messages need. */
#include "quant/cuda/words.cuh"

#include "quant/cuda/entropy_job.h"
#include "quant/cuda/job.h"

#include <cstring>

namespace
{

struct words_sent {
    uint64_t *to;
    uint32_t n;
    uint64_t words[TW_CUDA_WORDS_LARGE];
};

__global__ void fill_words(const __grid_constant__ words_sent sent)
{
    for (uint32_t i = threadIdx.x; i < sent.n; i += blockDim.x) {
        sent.to[i] = sent.words[i];
    }
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

} // namespace

tw_status_t tw_quant_cuda_words_fill(void *at, const void *words, size_t n, tw_stream_t stream)
{
    words_sent sent;
    for (size_t first = 0; first < n; first += TW_CUDA_WORDS_LARGE) {
        sent.to = (uint64_t *)at + first;
        sent.n = (uint32_t)(n - first < TW_CUDA_WORDS_LARGE ? n - first : TW_CUDA_WORDS_LARGE);
        memcpy(sent.words, (const uint64_t *)words + first, sent.n * sizeof(*sent.words));
        void *params[] = {&sent};
        TW_TRY(tw_quant_cuda_status(
            cudaLaunchKernel((const void *)fill_words, dim3(1), dim3(256), params, 0, (cudaStream_t)stream),
            "launch of fill_words"));
    }
    return TW_OK;
}

tw_status_t tw_quant_cuda_words_load()
{
    cudaFuncAttributes attributes;
    return tw_quant_cuda_status(cudaFuncGetAttributes(&attributes, (const void *)fill_words),
                                "loading of fill_words");
}

extern "C" tw_status_t tw_entropy_cuda_device_create(tw_entropy_cuda_device_t *device)
{
    int ordinal, n_multiprocessors;
    TW_TRY(tw_quant_cuda_status(cudaGetDevice(&ordinal), "cudaGetDevice"));
    TW_TRY(tw_quant_cuda_status(
        cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
        "cudaDeviceGetAttribute"));
    TW_TRY(tw_quant_cuda_words_load());
    *device = {(uint32_t)n_multiprocessors, NULL, tw_quant_cuda_words_fill, zero, copy};
    return TW_OK;
}
