/** One rank of a job of processes (process_jobs.h). */
#ifndef TW_TESTS_GPU_RANK_H
#define TW_TESTS_GPU_RANK_H

#include <functional>

#include "collectives/collectives.h"
#include "tests/gpu/process_jobs.h"

namespace tw::gpu
{

/** What a rank needs of its GPU; tests have a simulated one. What fails is logged. */
class RankGpu
{
  public:
    virtual ~RankGpu() = default;
    /** A communicator over all ranks of the transport. */
    virtual tw_status_t create(bool over_nccl, tw_transport_t *transport, tw_coll_t **out) = 0;
    /** Where operations are enqueued. */
    virtual tw_stream_t stream() = 0;
    /** Memory on the GPU with these bytes in it; NULL if there is none. */
    virtual void *upload(const void *bytes, size_t n_bytes) = 0;
    virtual tw_status_t fill(void *memory, int byte, size_t n_bytes) = 0;
    virtual tw_status_t fetch(void *bytes, const void *memory, size_t n_bytes) = 0;
    virtual void release(void *memory) = 0;
    /** Capture what `post` enqueues on stream(), then replay it, `n_replays` times: before(), the graph until
     *  it has ended, after(). The first failure of anything ends it. */
    virtual tw_status_t replay(const std::function<tw_status_t()> &post, int n_replays,
                               const std::function<tw_status_t()> &before,
                               const std::function<tw_status_t()> &after) = 0;
};

/** Be the rank that the environment says: go through the job's cases and tell the parent, as job.h has it.
 *  Returns the exit status: 0, or 1 if something was wrong. */
int run_rank(const ProcessJob &job, RankGpu &gpu);

/** The CUDA device that is current; rank_cuda.cc, where there is CUDA. */
RankGpu &cuda_rank_gpu();

} // namespace tw::gpu

#endif
