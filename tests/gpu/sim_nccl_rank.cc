/* nccl_rank on the stand-in for NCCL and its GPU of host memory: sim_nccl_rank JOB [HOW]. HOW, to see that it
 * is noticed: "flip" spoils a byte of a result; rank 1 does it. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/nccl_rank.h"
#include "tests/plugin/interpose/standin/gpu.h"

namespace
{

class SimDevice final : public tw::gpu::NcclDevice
{
  public:
    explicit SimDevice(bool flips) : spoils(flips)
    {
    }
    cudaStream_t stream() override
    {
        return (cudaStream_t)&stream_;
    }
    bool synchronize() override
    {
        stream_.synchronize();
        return true;
    }
    void *upload(const void *bytes, size_t n_bytes) override
    {
        void *memory = malloc(n_bytes);
        memcpy(memory, bytes, n_bytes);
        return memory;
    }
    bool fetch(void *bytes, const void *memory, size_t n_bytes) override
    {
        memcpy(bytes, memory, n_bytes);
        if (spoils) {
            *(char *)bytes ^= 1;
        }
        spoils = false;
        return true;
    }
    void release(void *memory) override
    {
        free(memory);
    }

  private:
    standin::Stream stream_;
    bool spoils;
};

} // namespace

int main(int argc, char **argv)
{
    const tw::gpu::PluginJob *job = argc > 1 ? tw::gpu::find_plugin_job(argv[1]) : nullptr;
    const char *rank = getenv("RANK");
    if (job == nullptr || rank == nullptr || getenv("NCCL_RANK_FOLDER") == nullptr) {
        fprintf(stderr, "usage: sim_nccl_rank JOB [flip]\n");
        return 2;
    }
    SimDevice device(argc > 2 && atoi(rank) == 1);
    return run_nccl_rank(*job, device);
}
