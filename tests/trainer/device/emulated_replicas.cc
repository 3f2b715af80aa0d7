/* What replicas on an emulated device need: the codec of changes, and communicators over its memory. */
#include <cstring>

#include <gtest/gtest.h>

#include "collectives/gpu/gpu.h"
#include "collectives/shared.h"
#include "tests/collectives/gpu/sums_ref.h"
#include "tests/quant/cuda/emulator.h"
#include "tests/trainer/device/emulated.h"

#include "quant/cuda/delta_select.cuh"

namespace tw
{

namespace
{

/* ---- the codec ----------------------------------------------------------------------------------------- */

struct Runner {
    tw_delta_cuda_job_t job;
    uint32_t grid, threads;

    template <class KERNEL>
    tw_status_t run() const
    {
        const tw_delta_cuda_job_t *copy = &job;
        emulator::launch(
            grid, threads, [copy] { KERNEL::run(*copy); }, [](uint32_t) { return true; });
        return TW_OK;
    }
};

tw_status_t run_delta(uint32_t kernel, const void *job, uint32_t grid, uint32_t threads, tw_stream_t stream)
{
    const Runner runner = {*static_cast<const tw_delta_cuda_job_t *>(job), grid, threads};
    EmulatedDevice::current()->push(stream, [runner, kernel] {
        const std::lock_guard<std::mutex> lock(EmulatedDevice::kernel_mutex());
        EXPECT_EQ(tw_delta_select(runner, tw_delta_cuda_kernel_t(kernel)), TW_OK);
        return true;
    });
    return TW_OK;
}

tw_status_t fill(void *at, const void *words, size_t n, tw_stream_t stream)
{
    const auto *first = static_cast<const uint64_t *>(words);
    EmulatedDevice::current()->push(stream, [at, held = std::vector<uint64_t>(first, first + n)] {
        memcpy(at, held.data(), held.size() * sizeof(uint64_t));
        return true;
    });
    return TW_OK;
}

tw_status_t zero(void *at, size_t bytes, tw_stream_t stream)
{
    tw_device_t *device = EmulatedDevice::current()->table();
    return device->zero(device, at, bytes, stream);
}

tw_status_t copy_to_host(void *host, const void *from, size_t bytes, tw_stream_t stream)
{
    tw_device_t *device = EmulatedDevice::current()->table();
    return device->copy(device, host, from, bytes, stream);
}

tw_status_t create_delta(tw_device_t *, tw_quant_delta_stream_t **out)
{
    const tw_entropy_cuda_device_t device = {1, run_delta, fill, zero, copy_to_host};
    return tw_delta_stream_create_on(&device, out);
}

/* ---- communicators ------------------------------------------------------------------------------------- */

struct Creation {
    tw_coll_setup_t setup;
    tw_coll_t **out;
};

tw_status_t create_here(void *arg)
{
    const auto *creation = static_cast<const Creation *>(arg);
    return tw_coll_create_with(&creation->setup, creation->out);
}

tw_status_t create_group(tw_device_t *device, tw_coll_t *parent, const int *ranks, int n_ranks,
                         tw_coll_t **out)
{
    EmulatedDevice *own = EmulatedDevice::of(device);
    std::vector<int> peers;
    for (int i = 0; i < n_ranks; i++) {
        peers.push_back(parent->topo.peer[ranks[i]]);
    }
    if (own->has_no_groups) {
        tw_error("emulated: there are no communicators over GPU memory");
        return TW_ERR_UNSUPPORTED;
    }
    tw_coll_params_t params = parent->params;
    params.ranks = peers.data();
    params.n_ranks = n_ranks;
    params.id = 0;
    params.mem = TW_MEM_CUDA;
    tw_progress_t *progress = nullptr;
    EXPECT_EQ(tw_progress_get(params.transport, &progress), TW_OK);
    Creation creation = {};
    creation.setup.params = &params;
    creation.setup.device = own->gpu();
    creation.setup.progress = progress;
    creation.out = out;
    const tw_status_t status = tw_progress_call(progress, create_here, &creation);
    if (status != TW_OK) {
        tw_progress_put(progress);
    }
    return status;
}

} // namespace

/* ---- the device as communicators see it: the same streams, events and memory --------------------------- */

static tw_device_t *table_of(const tw_gpu_device_t *device)
{
    return EmulatedDevice::of(device)->table();
}

void EmulatedDevice::add_groups()
{
    tw_gpu_device_t *t = &gpu_.table;
    gpu_.device = this;
    handle_.table.delta_create = create_delta;
    handle_.table.group = create_group;
    t->mem = TW_MEM_HOST; /* codecs are the host's */
    t->wire = TW_MEM_CUDA;
    t->current = [](const tw_gpu_device_t *, int *index) {
        *index = 0;
        return TW_OK;
    };
    t->use = [](const tw_gpu_device_t *d, int) { return table_of(d)->use(table_of(d)); };
    t->alloc = [](const tw_gpu_device_t *d, size_t bytes, int pinned, void **out) {
        return table_of(d)->alloc(table_of(d), bytes, pinned, out);
    };
    t->free = [](const tw_gpu_device_t *d, void *memory, int pinned) {
        table_of(d)->free(table_of(d), memory, pinned);
    };
    t->event_create = [](const tw_gpu_device_t *d, tw_gpu_event_t *out) {
        return table_of(d)->event_create(table_of(d), out);
    };
    t->event_destroy = [](const tw_gpu_device_t *d, tw_gpu_event_t event) {
        table_of(d)->event_destroy(table_of(d), event);
    };
    t->event_record = [](const tw_gpu_device_t *d, tw_gpu_event_t event, tw_stream_t stream) {
        return table_of(d)->event_record(table_of(d), event, stream);
    };
    t->event_query = [](const tw_gpu_device_t *d, tw_gpu_event_t event) { return of(d)->query(event); };
    t->capture_id = [](const tw_gpu_device_t *, tw_stream_t, uint64_t *id) {
        *id = 0;
        return TW_OK;
    };
    t->enqueue = [](const tw_gpu_device_t *d, tw_gpu_kernels_fn_t fn, const void *arg, size_t arg_bytes,
                    tw_stream_t stream) {
        const auto *first = static_cast<const char *>(arg);
        of(d)->push(stream, [fn, stream, held = std::vector<char>(first, first + arg_bytes)] {
            EXPECT_EQ(fn(held.data(), stream), TW_OK);
            return true;
        });
        return TW_OK;
    };
    t->sum = [](const tw_gpu_device_t *, const tw_gpu_sum_t *sum, tw_stream_t) {
        tw_gpu_sum_ref(sum);
        return TW_OK;
    };
}

} // namespace tw
