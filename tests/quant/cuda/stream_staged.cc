/* The entropy codecs on streams, on the GPU that is there. */
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

#include "tests/quant/cuda/staged.h"
#include "tests/quant/cuda/stream_world.h"
#include "tests/quant/quant_data.h"

namespace tw
{
namespace
{

tw_status_t create(const tw_quant_codec_t *codec, tw_quant_messages_stream_t **out)
{
    return tw_quant_messages_stream_create(codec, TW_MEM_CUDA, out);
}

tw_status_t create_delta(tw_quant_delta_stream_t **out)
{
    return tw_quant_delta_stream_create(TW_MEM_CUDA, out);
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

void copy_on_device(void *to, const void *from, size_t bytes)
{
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), cudaSuccess);
}

double time_once(const std::function<void()> &work)
{
    cudaEvent_t start, stop;
    float ms = 0;
    EXPECT_EQ(cudaEventCreate(&start), cudaSuccess);
    EXPECT_EQ(cudaEventCreate(&stop), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(start, nullptr), cudaSuccess);
    work();
    EXPECT_EQ(cudaEventRecord(stop, nullptr), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(stop), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&ms, start, stop), cudaSuccess);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return double(ms) * 1e-3;
}

double time(double seconds, const std::function<void()> &before, const std::function<void()> &work)
{
    std::vector<double> samples;
    const double start = tw_time_sec();
    for (int warm_up = 0; warm_up < 3; warm_up++) {
        before();
        time_once(work);
    }
    while (samples.size() < 5 || tw_time_sec() - start < seconds) {
        before();
        samples.push_back(time_once(work));
    }
    return tw_median(samples.data(), samples.size());
}

} // namespace

const StreamWorld &stream_world()
{
    static const StreamWorld world = {staged::available(),
                                      false,
                                      extra_backends_take_every() > 1,
                                      create,
                                      create_delta,
                                      alloc,
                                      alloc_host,
                                      free_device,
                                      free_host,
                                      copy,
                                      copy_on_device,
                                      time};
    return world;
}

} // namespace tw
