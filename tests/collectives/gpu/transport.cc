#include "tests/collectives/gpu/transport.h"

#include <gtest/gtest.h>

namespace tw
{

GpuTransport::GpuTransport(tw_transport_t *inner_transport, SimDevice *the_device)
    : handle{{}, this}, inner(inner_transport), device(the_device)
{
    const int world = tw_transport_world(inner);
    std::vector<uint64_t> nodes;
    for (int r = 0; r < world; r++) {
        nodes.push_back((uint64_t)tw_transport_node_of(inner, r));
    }
    EXPECT_EQ(tw_transport_base_init(&handle.base, ops(), tw_transport_rank(inner), world, nodes.data()),
              TW_OK);
    handle.base.takes[TW_MEM_CUDA] = 1;
}

GpuTransport::~GpuTransport()
{
    EXPECT_TRUE(receives.empty()) << "receives were left behind";
    tw_transport_base_cleanup(&handle.base);
}

GpuTransport *GpuTransport::of(const tw_transport_t *transport)
{
    return reinterpret_cast<const Handle *>(transport)->self;
}

/** The same message in host memory; what says that it is on the GPU must be. */
tw_transport_message_t GpuTransport::take(const tw_transport_message_t *message)
{
    tw_transport_message_t plain = *message;
    EXPECT_EQ(message->mem == TW_MEM_CUDA, device->is_own(message->buffer, message->bytes));
    n_messages += message->mem == TW_MEM_CUDA;
    plain.mem = TW_MEM_HOST;
    return plain;
}

tw_status_t GpuTransport::receive(const tw_transport_message_t *message, tw_transport_request_t **request)
{
    tw_transport_message_t plain = take(message);
    Receive landing = {message->buffer, std::vector<char>(message->bytes)};
    if (message->mem == TW_MEM_CUDA) {
        plain.buffer = landing.bytes.data();
    }
    tw_status_t status = tw_transport_message_recv(inner, &plain, request);
    if (status == TW_OK && message->mem == TW_MEM_CUDA) {
        receives.emplace(*request, std::move(landing));
    }
    return status;
}

tw_status_t GpuTransport::test(tw_transport_request_t *request, size_t *bytes)
{
    tw_status_t status = tw_transport_test_bytes(inner, request, bytes);
    auto found = receives.find(request);
    if (status == TW_IN_PROGRESS || found == receives.end()) {
        return status;
    }
    if (status == TW_OK) {
        found->second.bytes.resize(*bytes);
        if (tamper) {
            tamper(&found->second.bytes);
            *bytes = found->second.bytes.size();
        }
        device->write_later(found->second.to, std::move(found->second.bytes));
    }
    receives.erase(found);
    return status;
}

const tw_transport_ops_t *GpuTransport::ops()
{
    static const tw_transport_ops_t all = [] {
        tw_transport_ops_t o = {};
        o.name = "gpu";
        o.send_post = [](tw_transport_t *t, const tw_transport_message_t *m, tw_transport_request_t **r) {
            const tw_transport_message_t plain = of(t)->take(m);
            return tw_transport_message_send(of(t)->inner, &plain, r);
        };
        o.recv_post = [](tw_transport_t *t, const tw_transport_message_t *m, tw_transport_request_t **r) {
            return of(t)->receive(m, r);
        };
        o.test = [](tw_transport_t *t, tw_transport_request_t *r, size_t *n) { return of(t)->test(r, n); };
        o.cancel = [](tw_transport_t *t, tw_transport_request_t *r) {
            tw_transport_cancel(of(t)->inner, r);
            of(t)->receives.erase(r);
        };
        o.progress = [](tw_transport_t *t) { return tw_transport_progress(of(t)->inner); };
        o.sleep = [](tw_transport_t *t, double sec) { return tw_transport_sleep(of(t)->inner, sec); };
        o.abort = [](tw_transport_t *t, const char *why) { tw_transport_abort(of(t)->inner, why); };
        o.failed_rank = [](const tw_transport_t *t) { return tw_transport_failed_rank(of(t)->inner); };
        return o;
    }();
    return &all;
}

} // namespace tw
