/** GPUs and NCCL, simulated on the CPU, as hostile as their rules allow: whatever is enqueued runs only when
 *  the test says so, one step of any stream that may go on after another, in an order drawn from a seed. A
 *  missing wait shows as a wrong result in some order. */
#ifndef TW_TESTS_COLLECTIVES_GPU_SIM_H
#define TW_TESTS_COLLECTIVES_GPU_SIM_H

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "collectives/gpu/gpu.h"

namespace tw
{

/** All GPUs of a simulation step as one; or one of them alone, on a thread of its own. */
class Sim;

struct SimEvent {
    uint64_t issued = 0, passed = 0;
};

/** What a stream does next: returns true when it is over. */
using SimItem = std::function<bool()>;

struct SimStream {
    std::deque<SimItem> queue;
};

class SimDevice
{
  public:
    explicit SimDevice(uint32_t seed);
    ~SimDevice();
    SimDevice(const SimDevice &) = delete;
    SimDevice &operator=(const SimDevice &) = delete;

    const tw_gpu_device_t *table() const
    {
        return &handle.table;
    }
    tw_stream_t new_stream();
    void destroy_stream(tw_stream_t stream);
    void push(tw_stream_t stream, SimItem item);
    /** Try a random stream; true if it moved. */
    bool step();
    /** Streams with something left to do. */
    size_t n_busy() const;

    uint64_t capture = 0; /**< what capture_id says */
    bool lazy = true;     /**< queries move it a little, as time passes */
    int n_allocated = 0, n_events = 0, n_kernels = 0;
    int n_pinned = 0, n_fences = 0;
    int queries_left = -1; /**< of events, until they say TW_ERR_CUDA; -1: they never do */
    size_t allocated_bytes = 0;

    /** A transport writes to the memory of this device: not there before the next fence. */
    void write_later(void *to, std::vector<char> bytes);
    /** Whether it is memory of this device, not pinned host memory. */
    bool is_own(const void *at, size_t bytes) const;

  private:
    struct Handle {
        tw_gpu_device_t table;
        SimDevice *device;
    };
    static SimDevice *of(const tw_gpu_device_t *table);
    static void add_memory(tw_gpu_device_t *table);
    static void add_streams(tw_gpu_device_t *table);
    static void add_events(tw_gpu_device_t *table);
    static void add_work(tw_gpu_device_t *table);
    static tw_gpu_device_t make_table();

    Handle handle;
    std::mt19937 random;
    std::vector<std::unique_ptr<SimStream>> streams;
    std::map<const char *, size_t> own; /**< device memory: start, bytes */
    std::vector<std::pair<void *, std::vector<char>>> writes;
};

/** What connects simulated ranks: messages match in order between two ranks. */
class SimNet
{
  public:
    SimNet(int world, uint32_t seed);
    /** A wire for one rank; it destroys itself when told to. */
    tw_gpu_wire_t *new_wire(int rank, SimDevice *device);
    /** Copy one matched message, or run one native collective that all ranks are in; true if there was
     *  one. */
    bool step();
    int world() const
    {
        return world_;
    }

    std::vector<tw_status_t> errors;  /**< [world] what `error` says */
    std::vector<int> n_aborts;        /**< [world] */
    std::vector<uint64_t> sent_bytes; /**< [world * world] from, to */
    int n_wires = 0, n_groups = 0;

  private:
    friend struct SimWire;
    struct Message {
        const void *from;
        void *to;
        size_t bytes;
        std::shared_ptr<size_t> open; /**< messages of its group that have not ended */
    };
    struct Native {
        tw_gpu_native_t what;
        std::shared_ptr<size_t> open;
    };
    std::deque<Message> &sends(int from, int to);
    std::deque<Message> &receives(int from, int to);
    bool step_message();
    bool step_native();
    void run_native(const std::vector<Native> &all);

    int world_;
    std::mt19937 random;
    std::vector<std::deque<Message>> sends_of, receives_of;
    std::vector<std::deque<Native>> natives;
};

/** Until nothing moves any more: true if everything has ended. */
bool drain(SimNet &net, const std::vector<SimDevice *> &devices, uint32_t seed);

} // namespace tw

#endif
