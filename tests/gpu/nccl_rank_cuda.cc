/* nccl_rank JOB: a program that calls NCCL, with a GPU; the rest from the environment. */
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime_api.h>

#include "tests/gpu/nccl_rank.h"

namespace
{

class CudaDevice final : public tw::gpu::NcclDevice
{
  public:
    CudaDevice()
    {
        (void)check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    }
    cudaStream_t stream() override
    {
        return stream_;
    }
    bool synchronize() override
    {
        return check(cudaStreamSynchronize(stream_), "the stream");
    }
    /* Copies from memory that is not pinned may still be under way when the call returns. */
    void *upload(const void *bytes, size_t n_bytes) override
    {
        void *memory = nullptr;
        if (check(cudaMalloc(&memory, n_bytes), "memory") &&
            check(cudaMemcpy(memory, bytes, n_bytes, cudaMemcpyHostToDevice), "copying the input") &&
            check(cudaStreamSynchronize(cudaStreamLegacy), "copying the input")) {
            return memory;
        }
        release(memory);
        return nullptr;
    }
    bool fetch(void *bytes, const void *memory, size_t n_bytes) override
    {
        return check(cudaMemcpy(bytes, memory, n_bytes, cudaMemcpyDeviceToHost), "copying the result");
    }
    void release(void *memory) override
    {
        (void)check(cudaFree(memory), "cudaFree");
    }

  private:
    static bool check(cudaError_t error, const char *what)
    {
        if (error != cudaSuccess) {
            printf("%s: %s\n", what, cudaGetErrorString(error));
        }
        return error == cudaSuccess;
    }
    cudaStream_t stream_ = nullptr;
};

} // namespace

int main(int argc, char **argv)
{
    const tw::gpu::PluginJob *job = argc > 1 ? tw::gpu::find_plugin_job(argv[1]) : nullptr;
    if (job == nullptr || getenv("RANK") == nullptr || getenv("NCCL_RANK_FOLDER") == nullptr) {
        fprintf(stderr, "usage: nccl_rank JOB, as gpu_check starts it\n");
        return 2;
    }
    CudaDevice device;
    return run_nccl_rank(*job, device);
}
