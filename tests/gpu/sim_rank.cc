/* A rank of a job of processes, with a simulated GPU: sim_rank JOB [HOW], the rest from the environment. HOW,
 * to see that it is noticed: "flip" spoils a byte of a result, "hang" does not come back from an operation;
 * rank 1 does it. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "tests/collectives/gpu/sim.h"
#include "tests/gpu/rank.h"

namespace
{

class SimGpu final : public tw::gpu::RankGpu
{
  public:
    SimGpu(uint32_t seed, const std::string &how)
        : device(seed), stream_(device.new_stream()), spoils(how == "flip"), hangs(how == "hang")
    {
    }
    tw_status_t create(bool over_nccl, tw_transport_t *transport, tw_coll_t **out) override
    {
        const tw_coll_params_t params = tw::params_of(transport, nullptr);
        tw_coll_setup_t setup = {};
        setup.params = &params;
        setup.device = device.table();
        return over_nccl ? TW_ERR_UNSUPPORTED : tw_coll_create_with(&setup, out);
    }
    tw_stream_t stream() override
    {
        if (hangs) {
            pause();
        }
        return stream_;
    }
    void *upload(const void *bytes, size_t n_bytes) override
    {
        void *memory = malloc(n_bytes + 1);
        memcpy(memory, bytes, n_bytes);
        return memory;
    }
    tw_status_t fill(void *memory, int byte, size_t n_bytes) override
    {
        memset(memory, byte, n_bytes);
        return TW_OK;
    }
    tw_status_t fetch(void *bytes, const void *memory, size_t n_bytes) override
    {
        memcpy(bytes, memory, n_bytes);
        if (spoils && n_bytes > 0) {
            *(char *)bytes ^= 1;
        }
        spoils = false;
        return TW_OK;
    }
    void release(void *memory) override
    {
        free(memory);
    }
    tw_status_t replay(const std::function<tw_status_t()> &, int, const std::function<tw_status_t()> &,
                       const std::function<tw_status_t()> &) override
    {
        return TW_ERR_UNSUPPORTED;
    }

  private:
    tw::SimDevice device;
    tw_stream_t stream_;
    bool spoils, hangs;
};

} // namespace

int main(int argc, char **argv)
{
    const tw::gpu::ProcessJob *job = argc > 1 ? tw::gpu::find_process_job(argv[1]) : nullptr;
    const char *rank = getenv("RANK");
    if (job == nullptr || rank == nullptr) {
        fprintf(stderr, "usage: sim_rank JOB [flip|hang]\n");
        return 2;
    }
    SimGpu gpu((uint32_t)atoi(rank) + 1, argc > 2 && atoi(rank) == 1 ? argv[2] : "");
    return run_rank(*job, gpu);
}
