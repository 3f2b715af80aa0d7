/** A GPU for a model on a device, emulated as hostile as the rules allow: what is enqueued runs later, one
 *  operation of any stream that may go on after another, in an order drawn from a seed, and nobody but these
 *  operations can touch the device's memory. A missing wait shows as a wrong result in some order; who reads
 *  the device's memory directly ends the program. Any thread may call, as a communicator's does. Kernels are
 *  those of trainer/cuda on the emulated device, products are in plain C. */
#ifndef TW_TESTS_TRAINER_DEVICE_EMULATED_H
#define TW_TESTS_TRAINER_DEVICE_EMULATED_H

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "collectives/gpu/device.h"
#include "quant/cuda/delta_job.h"
#include "trainer/device/table.h"

namespace tw
{

class EmulatedDevice
{
  public:
    explicit EmulatedDevice(uint32_t seed);
    /** All memory must have been freed. */
    ~EmulatedDevice();
    EmulatedDevice(const EmulatedDevice &) = delete;
    EmulatedDevice &operator=(const EmulatedDevice &) = delete;

    tw_device_t *table()
    {
        return &handle_.table;
    }
    /** The same, as a communicator sees it. */
    const tw_gpu_device_t *gpu() const
    {
        return &gpu_.table;
    }
    /** What this thread's calls are for. */
    static EmulatedDevice *current();
    static EmulatedDevice *of(tw_device_t *table)
    {
        return reinterpret_cast<Handle *>(table)->device;
    }
    static EmulatedDevice *of(const tw_gpu_device_t *table)
    {
        return reinterpret_cast<const GpuHandle *>(table)->device;
    }
    /** The emulated thread block is the process's only one. */
    static std::mutex &kernel_mutex();

    /** Enqueue; false: it cannot go on yet. */
    void push(tw_stream_t stream, std::function<bool()> item);
    /** The next launch does not fail. */
    bool may_launch();

    size_t allocated_bytes = 0, most_bytes = 0, pinned_bytes = 0; /**< as asked for; pinned: of the host */
    size_t room_bytes = SIZE_MAX;                                 /**< more is out of memory */
    int n_pins = 0, most_pins = 0, n_streams = 0, n_events = 0, n_copies = 0, n_kernels = 0, n_products = 0;
    int n_records = 0, n_waits = 0;     /* of events, and of streams for one */
    size_t bytes_out = 0, bytes_in = 0; /**< copied to the host, and from it, in all */
    size_t spoilt_bytes = 0; /**< the next copy out of so many brings an infinite bf16 first; 0: none does */
    int copies_left = -1;    /**< until one fails; -1: none does */
    /** Launches until one fails; -1: none does. From then on whoever waits hears of it, and it is logged,
     *  unless somebody has said that it was. */
    int launches_left = -1;
    bool has_no_groups = false;
    /** Copies out that the host has waited for: how much came, and how many kernels had been enqueued behind
     *  it when the host began to wait. */
    struct Arrival {
        size_t bytes;
        int kernels_behind;
    };
    std::vector<Arrival> arrivals;

  private:
    struct Stream {
        std::deque<std::function<bool()>> queue;
        size_t bytes_out = 0; /* of the last copy out, until an event is recorded behind it */
    };
    struct Event {
        uint64_t issued = 0, passed = 0;
        size_t bytes_out = 0; /* that it stands behind */
        int n_kernels = 0;    /* that had been enqueued before it */
    };
    struct Handle {
        tw_device_t table;
        tw_device_products_t products;
        EmulatedDevice *device;
    };
    bool has_failed_ = false, is_noted_ = false; /* a launch; it is known */
    std::vector<std::pair<uintptr_t, size_t>> pins_;
    struct GpuHandle {
        tw_gpu_device_t table;
        EmulatedDevice *device;
    };
    using Lock = std::lock_guard<std::recursive_mutex>;
    void add_memory();
    void add_streams();
    void add_work();
    void add_groups();
    tw_status_t query(void *event);
    bool step(Stream *stream);
    bool step_any();
    void run_all();
    void *take(size_t bytes);

    Handle handle_;
    GpuHandle gpu_;
    std::recursive_mutex mutex_;
    std::mt19937 random_;
    std::vector<std::unique_ptr<Stream>> streams_;
    uint8_t *arena_;
    size_t used_ = 0, favourite_ = 0;
    std::vector<std::pair<void *, size_t>> blocks_;
};

} // namespace tw

#endif
