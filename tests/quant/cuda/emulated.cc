/* A backend of host memory that runs the CUDA kernels on the emulator: test_quant_twins compares it with the
 * reference. */
#include "tests/quant/cuda/emulator.h"

#include <algorithm>

#include "quant/cuda/select.cuh"
#include "tests/quant/cuda/emulated.h"
#include "tests/quant/quant_data.h"

namespace
{

tw::emulated::Launches counts;
uint32_t multiprocessors;
std::vector<tw::emulated::Range> ranges;

/* Does this block of a launch work on one of the ranges? */
bool is_wanted(const tw_cuda_args_t &args, uint32_t block)
{
    const uint64_t first = uint64_t(block) * args.tiling.tile_elems, end = first + args.tiling.tile_elems;
    return ranges.empty() || std::any_of(ranges.begin(), ranges.end(), [&](const tw::emulated::Range &r) {
               return r.first < end && first < r.end;
           });
}

struct Runner {
    template <class KERNEL>
    static tw_status_t run(const tw_cuda_job_t *job, uint32_t grid)
    {
        if (job->params.args.tiling.threads > uint32_t(KERNEL::threads_max)) {
            tw::emulator::fail("more threads than the kernel is built for");
        }
        counts.launches++;
        counts.grid = grid;
        counts.threads = job->params.args.tiling.threads;
        const tw_cuda_args_t &args = job->params.args;
        if (!ranges.empty() && (args.n_segments != 1 || grid != args.n_tiles)) {
            tw::emulator::fail("parts are for one segment, and a block for each tile");
        }
        tw::emulator::launch(
            grid, args.tiling.threads, [job] { KERNEL::run(job->params.args, job->params.words); },
            [&args](uint32_t block) { return is_wanted(args, block); });
        return TW_OK;
    }
};

tw_status_t run(const tw_cuda_job_t *job, uint32_t grid)
{
    switch (job->op) {
    case TW_CUDA_ENCODE:
        return tw_kernel_select<Runner, tw_kernel_encode_plain>(job, grid);
    case TW_CUDA_ENCODE_DELTA:
        return tw_kernel_select<Runner, tw_kernel_encode_delta>(job, grid);
    case TW_CUDA_ADAMW:
        return tw_kernel_select<Runner, tw_kernel_encode_adamw>(job, grid);
    case TW_CUDA_REDUCE_ENCODE:
        return tw_kernel_select_reduce_encode<Runner>(job, grid);
    case TW_CUDA_DECODE:
        return tw_kernel_select<Runner, tw_kernel_decode_store>(job, grid);
    case TW_CUDA_DECODE_APPLY:
        return tw_kernel_select<Runner, tw_kernel_decode_apply>(job, grid);
    case TW_CUDA_REDUCE_DECODE:
        return tw_kernel_select<Runner, tw_kernel_reduce_decode, tw_kernel_sums>(job, grid);
    }
    return TW_ERR_INTERNAL;
}

tw_status_t table_fill(uint64_t *table, const void *const *pointers, size_t n, tw_stream_t)
{
    counts.tables++;
    memcpy(table, pointers, n * sizeof(uint64_t));
    return TW_OK;
}

/* What quant->impl points to. */
struct Device {
    tw_cuda_device_t device;
    unsigned long long nonfinite;
};

tw_status_t create(tw_quant_t *quant)
{
    static unsigned turn = 0;
    const uint32_t turns[] = {1, 2, 132};
    const uint32_t n = multiprocessors ? multiprocessors : turns[turn++ % 3];
    Device *device = new Device{{n, nullptr, run, table_fill}, 0};
    device->device.nonfinite = &device->nonfinite;
    quant->impl = device;
    return TW_OK;
}

void destroy(tw_quant_t *quant)
{
    delete static_cast<Device *>(quant->impl);
}

uint64_t nonfinite_blocks(const tw_quant_t *quant)
{
    return static_cast<const Device *>(quant->impl)->nonfinite;
}

int usable()
{
    return 1;
}

} // namespace

namespace tw
{

const tw_quant_backend_t emulated::backend = {
    "cuda_emulated",
    TW_MEM_HOST,
    usable,
    create,
    destroy,
    nonfinite_blocks,
    tw_cuda_encode,
    tw_cuda_decode,
    tw_cuda_reduce_encode,
    tw_cuda_reduce_decode,
    tw_cuda_adamw_encode_delta,
    tw_cuda_reduce_workspace_bytes,
    nullptr,
};

emulated::Launches emulated::launches()
{
    return counts;
}

void emulated::set_ranges(const std::vector<Range> &wanted)
{
    ranges = wanted;
}

void emulated::set_multiprocessors(uint32_t n)
{
    multiprocessors = n;
}

std::optional<std::vector<const tw_quant_backend_t *>> extra_backends()
{
    return std::vector<const tw_quant_backend_t *>{&emulated::backend};
}

size_t extra_backends_take_every()
{
    return 13;
}

} // namespace tw
