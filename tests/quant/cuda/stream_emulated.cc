/* The entropy codecs' kernels on an emulated device. */
#include "tests/quant/cuda/emulator.h"

#include "quant/cuda/delta_select.cuh"
#include "quant/cuda/lossless_select.cuh"
#include "tests/quant/cuda/stream_world.h"

namespace tw
{
namespace
{

template <class JOB>
struct Runner {
    const JOB *job;
    uint32_t grid, threads;

    template <class KERNEL>
    tw_status_t run() const
    {
        /* Kernels have a copy of their own, as on a device. */
        const JOB copy = *job;
        emulator::launch(
            grid, threads, [&copy] { KERNEL::run(copy); }, [](uint32_t) { return true; });
        return TW_OK;
    }
};

tw_status_t run_lossless(uint32_t kernel, const void *params, uint32_t grid, uint32_t threads, tw_stream_t)
{
    const tw_lossless_cuda_job_t *job = static_cast<const tw_lossless_cuda_job_t *>(params);
    return tw_lossless_select(Runner<tw_lossless_cuda_job_t>{job, grid, threads},
                              tw_lossless_cuda_kernel_t(kernel), job->type);
}

tw_status_t run_delta(uint32_t kernel, const void *params, uint32_t grid, uint32_t threads, tw_stream_t)
{
    const tw_delta_cuda_job_t *job = static_cast<const tw_delta_cuda_job_t *>(params);
    return tw_delta_select(Runner<tw_delta_cuda_job_t>{job, grid, threads}, tw_delta_cuda_kernel_t(kernel));
}

tw_status_t fill(void *at, const void *words, size_t n, tw_stream_t)
{
    memcpy(at, words, n * sizeof(uint64_t));
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

tw_status_t create(const tw_quant_codec_t *codec, tw_quant_messages_stream_t **out)
{
    const tw_entropy_cuda_device_t device = {1, run_lossless, fill, zero, copy_to_host};
    return tw_messages_stream_create_on(&device, codec, out);
}

tw_status_t create_delta(tw_quant_delta_stream_t **out)
{
    const tw_entropy_cuda_device_t device = {1, run_delta, fill, zero, copy_to_host};
    return tw_delta_stream_create_on(&device, out);
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

const StreamWorld &stream_world()
{
    static const StreamWorld world = {true,  true, false, create, create_delta, alloc,
                                      alloc, free, free,  copy,   copy,         nullptr};
    return world;
}

} // namespace tw
