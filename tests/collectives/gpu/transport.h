/** A transport that takes the memory of a simulated GPU, on top of one that does not. What it receives there
 *  is not to be seen before the device's next fence. */
#ifndef TW_TESTS_COLLECTIVES_GPU_TRANSPORT_H
#define TW_TESTS_COLLECTIVES_GPU_TRANSPORT_H

#include <functional>
#include <map>
#include <vector>

#include "tests/collectives/gpu/sim.h"
#include "transport/backend.h"

namespace tw
{

class GpuTransport
{
  public:
    /** Both are borrowed. */
    GpuTransport(tw_transport_t *inner, SimDevice *device);
    ~GpuTransport();
    GpuTransport(const GpuTransport &) = delete;
    GpuTransport &operator=(const GpuTransport &) = delete;
    tw_transport_t *get()
    {
        return &handle.base;
    }

    int n_messages = 0; /**< in the memory of the GPU */
    /** What comes to the GPU, before it is there; it may be made shorter. */
    std::function<void(std::vector<char> *message)> tamper;

  private:
    struct Handle {
        tw_transport_t base;
        GpuTransport *self;
    };
    struct Receive {
        void *to;
        std::vector<char> bytes;
    };
    static GpuTransport *of(const tw_transport_t *transport);
    static const tw_transport_ops_t *ops();
    tw_transport_message_t take(const tw_transport_message_t *message);
    tw_status_t receive(const tw_transport_message_t *message, tw_transport_request_t **request);
    tw_status_t test(tw_transport_request_t *request, size_t *bytes);

    Handle handle;
    tw_transport_t *inner;
    SimDevice *device;
    std::map<tw_transport_request_t *, Receive> receives; /**< into the GPU, under way */
};

} // namespace tw

#endif
