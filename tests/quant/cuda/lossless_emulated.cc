/* The lossless codec's kernels on an emulated device. */
#include "tests/quant/cuda/emulator.h"

#include "quant/cuda/lossless_select.cuh"
#include "tests/quant/cuda/lossless_world.h"

namespace tw
{
namespace
{

struct Runner {
    const tw_lossless_cuda_job_t *job;
    uint32_t grid, threads;

    template <class KERNEL>
    tw_status_t run() const
    {
        /* Kernels have a copy of their own, as on a device. */
        const tw_lossless_cuda_job_t copy = *job;
        emulator::launch(
            grid, threads, [&copy] { KERNEL::run(copy); }, [](uint32_t) { return true; });
        return TW_OK;
    }
};

tw_status_t run(tw_lossless_cuda_kernel_t kernel, const tw_lossless_cuda_job_t *job, uint32_t grid,
                uint32_t threads, tw_stream_t)
{
    return tw_lossless_select(Runner{job, grid, threads}, kernel, job->type);
}

tw_status_t fill(void *at, const uint64_t *words, size_t n, tw_stream_t)
{
    memcpy(at, words, n * sizeof(*words));
    return TW_OK;
}

tw_status_t zero(void *at, size_t bytes, tw_stream_t)
{
    memset(at, 0, bytes);
    return TW_OK;
}

tw_status_t copy_to_host(void *host, const void *from, size_t bytes, tw_stream_t)
{
    memcpy(host, from, bytes);
    return TW_OK;
}

tw_status_t create(tw_quant_lossless_stream_t **out)
{
    const tw_lossless_cuda_device_t device = {1, run, fill, zero, copy_to_host};
    return tw_lossless_stream_create_on(&device, out);
}

void *alloc(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

void copy(void *to, const void *from, size_t bytes)
{
    if (bytes) { /* else either may be NULL */
        memcpy(to, from, bytes);
    }
}

} // namespace

const LosslessWorld &lossless_world()
{
    static const LosslessWorld world = {true, true, create, alloc, alloc, free, free, copy};
    return world;
}

} // namespace tw
