/* The entropy codecs on streams, on the GPU that is there. */
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

#include "tests/quant/cuda/staged.h"
#include "tests/quant/cuda/stream_world.h"

namespace tw
{
namespace
{

tw_status_t create(tw_quant_lossless_stream_t **out)
{
    return tw_quant_lossless_stream_create(TW_MEM_CUDA, out);
}

tw_status_t create_exact(tw_quant_exact_stream_t **out)
{
    return tw_quant_exact_stream_create(TW_MEM_CUDA, out);
}

void *alloc(size_t bytes)
{
    void *memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

void *alloc_host(size_t bytes)
{
    void *memory = nullptr;
    EXPECT_EQ(cudaMallocHost(&memory, bytes), cudaSuccess);
    return memory;
}

void free_device(void *memory)
{
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

void free_host(void *memory)
{
    EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
}

void copy(void *to, const void *from, size_t bytes)
{
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), cudaSuccess);
}

} // namespace

const StreamWorld &stream_world()
{
    static const StreamWorld world = {staged::available(), false,       create,    create_exact, alloc,
                                      alloc_host,          free_device, free_host, copy};
    return world;
}

} // namespace tw
