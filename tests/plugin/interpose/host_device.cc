/* What the interposer and the collectives ask of a GPU, answered by the stand-in: linked in front of what
 * asks CUDA. */
#include <cstdlib>
#include <cstring>
#include <memory>

#include "collectives/gpu/gpu.h"
#include "plugin/interpose/gpu.h"
#include "tests/collectives/gpu/sums_ref.h"
#include "tests/plugin/interpose/standin/gpu.h"

using standin::Event;
using standin::Stream;

namespace
{

struct Mark {
    Event event;
};

tw_gpu_device_t make_device()
{
    tw_gpu_device_t t = {};
    t.mem = TW_MEM_HOST;
    t.wire = TW_MEM_HOST;
    t.current = [](const tw_gpu_device_t *, int *index) {
        *index = 0;
        return TW_OK;
    };
    t.use = [](const tw_gpu_device_t *, int) { return TW_OK; };
    t.alloc = [](const tw_gpu_device_t *, size_t bytes, int, void **out) {
        *out = tw_buffer_alloc(bytes);
        memset(*out, 0xff, bytes); /* NaN in every type and scale */
        return TW_OK;
    };
    t.free = [](const tw_gpu_device_t *, void *memory, int) {
        Stream::synchronize_all();
        tw_buffer_free(memory);
    };
    t.stream_create = [](const tw_gpu_device_t *, tw_stream_t *out) {
        *out = new Stream;
        return TW_OK;
    };
    t.stream_destroy = [](const tw_gpu_device_t *, tw_stream_t stream) { delete Stream::of(stream); };
    t.stream_wait = [](const tw_gpu_device_t *, tw_stream_t stream, tw_gpu_event_t event) {
        static_cast<Event *>(event)->wait_on(Stream::of(stream));
        return TW_OK;
    };
    t.event_create = [](const tw_gpu_device_t *, tw_gpu_event_t *out) {
        *out = new Event;
        return TW_OK;
    };
    t.event_destroy = [](const tw_gpu_device_t *, tw_gpu_event_t event) {
        delete static_cast<Event *>(event);
    };
    t.event_record = [](const tw_gpu_device_t *, tw_gpu_event_t event, tw_stream_t stream) {
        static_cast<Event *>(event)->record(Stream::of(stream));
        return TW_OK;
    };
    t.copy = [](const tw_gpu_device_t *, void *to, const void *from, size_t bytes, tw_stream_t stream) {
        Stream::of(stream)->push([=] { memcpy(to, from, bytes); });
        return TW_OK;
    };
    t.event_query = [](const tw_gpu_device_t *, tw_gpu_event_t event) {
        return static_cast<Event *>(event)->has_passed() ? TW_OK : TW_IN_PROGRESS;
    };
    t.fence = [](const tw_gpu_device_t *) { return TW_OK; };
    t.capture_id = [](const tw_gpu_device_t *, tw_stream_t stream, uint64_t *id) {
        *id = Stream::of(stream)->is_captured();
        return TW_OK;
    };
    t.enqueue = [](const tw_gpu_device_t *, tw_gpu_kernels_fn_t fn, const void *arg, size_t arg_bytes,
                   tw_stream_t stream) {
        /* CUDA takes a launch's arguments with it, and so where the tensors are */
        auto copy = std::make_shared<std::vector<char>>((const char *)arg, (const char *)arg + arg_bytes);
        tw_gpu_call_t *call = (tw_gpu_call_t *)copy->data();
        size_t n_tensors = call->shape->request->args.n_segments;
        auto tensors =
            std::make_shared<std::vector<tw_grid_tensor_t>>(call->tensors, call->tensors + n_tensors);
        call->tensors = tensors->data();
        Stream::of(stream)->push([fn, copy, tensors, stream] {
            if (fn(copy->data(), stream) != TW_OK) {
                tw_error("a kernel of the stand-in has failed");
                abort();
            }
        });
        return TW_OK;
    };
    t.sum = [](const tw_gpu_device_t *, const tw_gpu_sum_t *sum, tw_stream_t) {
        tw_gpu_sum_ref(sum);
        return TW_OK;
    };
    return t;
}

} // namespace

extern "C" {

const tw_gpu_device_t *tw_gpu_device_cuda(void)
{
    static const tw_gpu_device_t device = make_device();
    return &device;
}

int tw_ip_gpu_works(void)
{
    return getenv("STANDIN_NO_GPU") == nullptr;
}

int tw_ip_gpu_device(void)
{
    return 7;
}

int tw_ip_gpu_captures(tw_stream_t stream)
{
    return Stream::of(stream)->is_captured();
}

tw_status_t tw_ip_gpu_record(void *event, tw_stream_t stream)
{
    static_cast<Event *>(event)->record(Stream::of(stream));
    return TW_OK;
}

tw_status_t tw_ip_gpu_mark_create(tw_ip_mark_t *out)
{
    *out = new Mark;
    return TW_OK;
}

void tw_ip_gpu_mark_destroy(tw_ip_mark_t mark)
{
    delete static_cast<Mark *>(mark);
}

tw_status_t tw_ip_gpu_mark_put(tw_ip_mark_t mark, tw_stream_t stream)
{
    static_cast<Mark *>(mark)->event.record(Stream::of(stream));
    return TW_OK;
}

tw_status_t tw_ip_gpu_mark_sec(tw_ip_mark_t from, tw_ip_mark_t to, double *sec)
{
    if (!static_cast<Mark *>(to)->event.has_passed()) {
        return TW_IN_PROGRESS;
    }
    *sec = static_cast<Mark *>(to)->event.sec() - static_cast<Mark *>(from)->event.sec();
    return TW_OK;
}
}
