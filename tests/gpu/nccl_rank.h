/** One rank of a job that calls NCCL (plugin_jobs.h), on whatever NCCL calls a GPU. */
#ifndef TW_TESTS_GPU_NCCL_RANK_H
#define TW_TESTS_GPU_NCCL_RANK_H

#include <cstddef>

#include "tests/gpu/plugin_jobs.h"

namespace tw::gpu
{

/** Memory that NCCL can use, and a stream. What fails is logged. */
class NcclDevice
{
  public:
    virtual ~NcclDevice() = default;
    virtual cudaStream_t stream() = 0;
    /** Wait for all that the stream has. */
    virtual bool synchronize() = 0;
    /** Memory with these bytes in it; NULL if there is none. */
    virtual void *upload(const void *bytes, size_t n_bytes) = 0;
    virtual bool fetch(void *bytes, const void *memory, size_t n_bytes) = 0;
    virtual void release(void *memory) = 0;
};

/** Be the rank that the environment says: go through the job's cases and tell the parent, as job.h has it.
 *  Returns the exit status: 0, or 1 if something was wrong. */
int run_nccl_rank(const PluginJob &job, NcclDevice &device);

} // namespace tw::gpu

#endif
