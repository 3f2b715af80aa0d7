/* The engine's table of the CUDA runtime, beside a job's own use of it: what a poll leaves behind, and what
 * is done while the job captures a graph. */
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include "collectives/gpu/gpu.h"
#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

namespace
{

class Device : public testing::Test
{
  protected:
    void SetUp() override
    {
        settings().lazy = settings().last_error = true;
        clear_reports();
        ASSERT_EQ(device->stream_create(device, &stream), TW_OK);
        ASSERT_EQ(device->event_create(device, &event), TW_OK);
        ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
        ASSERT_EQ(cudaMemsetAsync(memory, 1, 64, (cudaStream_t)stream), cudaSuccess);
        ASSERT_EQ(device->event_record(device, event, stream), TW_OK);
    }
    void TearDown() override
    {
        device->event_destroy(device, event);
        device->stream_destroy(device, stream);
        EXPECT_EQ(cudaFree(memory), cudaSuccess);
        EXPECT_TRUE(report_counts().empty());
        clear_reports();
    }

    const tw_gpu_device_t *device = tw_gpu_device_cuda();
    tw_stream_t stream = nullptr;
    tw_gpu_event_t event = nullptr;
    void *memory = nullptr;
};

TEST_F(Device, APollLeavesNoError)
{
    char byte = 0;
    ASSERT_EQ(device->event_query(device, event), TW_IN_PROGRESS);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(&byte, memory, 1, cudaMemcpyDefault), cudaSuccess);
    while (device->event_query(device, event) == TW_IN_PROGRESS) {
    }
    EXPECT_EQ(cudaMemcpy(&byte, memory, 1, cudaMemcpyDefault), cudaSuccess);
    EXPECT_EQ(byte, 1);
}

/* In the global mode a job's capture forbids all threads what could get into it. */
TEST_F(Device, PollsAndAllocatesWhileAJobCaptures)
{
    cudaStream_t captured;
    cudaGraph_t graph;
    void *more = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(device->event_query(device, event), TW_IN_PROGRESS);
    for (int pinned : {0, 1}) {
        EXPECT_EQ(device->alloc(device, 64, pinned, &more), TW_OK);
        device->free(device, more, pinned);
    }
    EXPECT_TRUE(report_counts().empty());
    ASSERT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
    EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal) << "the job's mode is what it was";
    EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(captured), cudaSuccess);
}

} // namespace

} // namespace tw::ptx
