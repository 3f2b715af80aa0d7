#include "tests/collectives/gpu/sim.h"

#include <cstring>

#include <gtest/gtest.h>

#include "quant/quant.h"
#include "tests/collectives/gpu/sums_ref.h"

namespace tw
{

/* ---- devices ------------------------------------------------------------------------------------------- */

SimDevice::SimDevice(uint32_t seed) : handle{make_table(), this}, random(seed)
{
}

SimDevice::~SimDevice()
{
    EXPECT_EQ(n_allocated, 0) << "workspaces were not freed";
    EXPECT_EQ(n_events, 0) << "events were not destroyed";
}

SimDevice *SimDevice::of(const tw_gpu_device_t *table)
{
    return reinterpret_cast<const Handle *>(table)->device;
}

tw_stream_t SimDevice::new_stream()
{
    streams.push_back(std::make_unique<SimStream>());
    return streams.back().get();
}

void SimDevice::destroy_stream(tw_stream_t stream)
{
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i].get() == stream) {
            streams.erase(streams.begin() + (long)i);
            return;
        }
    }
    ADD_FAILURE() << "no such stream";
}

void SimDevice::push(tw_stream_t stream, SimItem item)
{
    if (capture == 0) { /* nobody launches the graphs */
        static_cast<SimStream *>(stream)->queue.push_back(std::move(item));
    }
}

void SimDevice::write_later(void *to, std::vector<char> bytes)
{
    writes.emplace_back(to, std::move(bytes));
}

bool SimDevice::is_own(const void *at, size_t bytes) const
{
    const char *first = static_cast<const char *>(at);
    auto after = own.upper_bound(first);
    if (after == own.begin()) {
        return false;
    }
    const auto &[start, size] = *std::prev(after);
    return first + bytes <= start + size;
}

bool SimDevice::step()
{
    if (streams.empty()) {
        return false;
    }
    SimStream &stream = *streams[random() % streams.size()];
    if (stream.queue.empty() || !stream.queue.front()()) {
        return false;
    }
    stream.queue.pop_front();
    return true;
}

size_t SimDevice::n_busy() const
{
    size_t n = 0;
    for (const auto &stream : streams) {
        n += !stream->queue.empty();
    }
    return n;
}

void SimDevice::add_memory(tw_gpu_device_t *table)
{
    table->alloc = [](const tw_gpu_device_t *d, size_t bytes, int pinned, void **out) {
        *out = tw_buffer_alloc(bytes);
        memset(*out, 0xff, bytes); /* NaN in every type and scale */
        of(d)->n_allocated++;
        of(d)->allocated_bytes += bytes;
        if (pinned) {
            of(d)->n_pinned++;
        } else {
            of(d)->own[static_cast<char *>(*out)] = bytes;
        }
        return TW_OK;
    };
    table->free = [](const tw_gpu_device_t *d, void *memory, int pinned) {
        EXPECT_EQ(of(d)->own.erase(static_cast<char *>(memory)), pinned ? 0u : 1u) << "freed as another kind";
        tw_buffer_free(memory);
        of(d)->n_allocated--;
    };
    table->fence = [](const tw_gpu_device_t *d) {
        for (auto &[to, bytes] : of(d)->writes) {
            memcpy(to, bytes.data(), bytes.size());
        }
        of(d)->writes.clear();
        of(d)->n_fences++;
        return TW_OK;
    };
}

void SimDevice::add_streams(tw_gpu_device_t *table)
{
    table->stream_create = [](const tw_gpu_device_t *d, tw_stream_t *out) {
        *out = of(d)->new_stream();
        return TW_OK;
    };
    table->stream_destroy = [](const tw_gpu_device_t *d, tw_stream_t stream) {
        of(d)->destroy_stream(stream);
    };
    table->stream_wait = [](const tw_gpu_device_t *d, tw_stream_t stream, tw_gpu_event_t event) {
        SimEvent *e = static_cast<SimEvent *>(event);
        uint64_t ticket = e->issued;
        of(d)->push(stream, [e, ticket] { return e->passed >= ticket; });
        return TW_OK;
    };
    table->capture_id = [](const tw_gpu_device_t *d, tw_stream_t, uint64_t *id) {
        *id = of(d)->capture;
        return TW_OK;
    };
}

void SimDevice::add_events(tw_gpu_device_t *table)
{
    table->event_create = [](const tw_gpu_device_t *d, tw_gpu_event_t *out) {
        *out = new SimEvent;
        of(d)->n_events++;
        return TW_OK;
    };
    table->event_destroy = [](const tw_gpu_device_t *d, tw_gpu_event_t event) {
        delete static_cast<SimEvent *>(event);
        of(d)->n_events--;
    };
    table->event_record = [](const tw_gpu_device_t *d, tw_gpu_event_t event, tw_stream_t stream) {
        SimEvent *e = static_cast<SimEvent *>(event);
        uint64_t ticket = ++e->issued;
        of(d)->push(stream, [e, ticket] {
            e->passed = ticket;
            return true;
        });
        return TW_OK;
    };
    table->event_query = [](const tw_gpu_device_t *d, tw_gpu_event_t event) {
        SimDevice *failing = of(d);
        if (failing->queries_left == 0) {
            return TW_ERR_CUDA;
        }
        failing->queries_left -= failing->queries_left > 0;
        SimEvent *e = static_cast<SimEvent *>(event);
        for (uint32_t i = of(d)->lazy ? of(d)->random() % 4 : 0; i > 0; i--) {
            of(d)->step();
        }
        return e->passed >= e->issued ? TW_OK : TW_IN_PROGRESS;
    };
}

void SimDevice::add_work(tw_gpu_device_t *table)
{
    table->copy = [](const tw_gpu_device_t *d, void *to, const void *from, size_t bytes, tw_stream_t stream) {
        of(d)->push(stream, [to, from, bytes] {
            memcpy(to, from, bytes);
            return true;
        });
        return TW_OK;
    };
    table->enqueue = [](const tw_gpu_device_t *d, tw_gpu_kernels_fn_t fn, const void *arg, size_t arg_bytes,
                        tw_stream_t stream) {
        auto copy = std::make_shared<std::vector<char>>((const char *)arg, (const char *)arg + arg_bytes);
        SimDevice *device = of(d);
        device->push(stream, [fn, copy, stream, device] {
            device->n_kernels++;
            EXPECT_EQ(fn(copy->data(), stream), TW_OK);
            return true;
        });
        return TW_OK;
    };
    table->sum = [](const tw_gpu_device_t *, const tw_gpu_sum_t *sum, tw_stream_t) {
        tw_gpu_sum_ref(sum);
        return TW_OK;
    };
}

tw_gpu_device_t SimDevice::make_table()
{
    tw_gpu_device_t t = {};
    t.mem = TW_MEM_HOST;
    t.wire = TW_MEM_CUDA;
    t.current = [](const tw_gpu_device_t *, int *index) {
        *index = 0;
        return TW_OK;
    };
    t.use = [](const tw_gpu_device_t *, int) { return TW_OK; };
    add_memory(&t);
    add_streams(&t);
    add_events(&t);
    add_work(&t);
    return t;
}

/* ---- the net ------------------------------------------------------------------------------------------- */

struct SimWire {
    tw_gpu_wire_t table;
    SimNet *net;
    SimDevice *device;
    int rank;
    bool in_group;
    tw_stream_t stream;
    std::vector<std::pair<int, SimNet::Message>> sends, receives;
    std::vector<SimNet::Native> natives;

    static SimWire *of(tw_gpu_wire_t *wire)
    {
        return reinterpret_cast<SimWire *>(wire);
    }

    void use(tw_stream_t on)
    {
        EXPECT_TRUE(in_group);
        EXPECT_TRUE(stream == nullptr || stream == on) << "one group, one stream";
        stream = on;
    }

    /** All of a group starts together when its stream gets there, and ends when all of it has. */
    void end()
    {
        auto open = std::make_shared<size_t>(sends.size() + receives.size() + natives.size());
        auto started = std::make_shared<bool>(false);
        SimNet *on = net;
        int me = rank;
        device->push(stream, [on, me, open, started, s = sends, r = receives, n = natives]() mutable {
            if (!*started) {
                for (auto &item : s) {
                    on->sends(me, item.first).push_back({item.second.from, nullptr, item.second.bytes, open});
                }
                for (auto &item : r) {
                    on->receives(item.first, me)
                        .push_back({nullptr, item.second.to, item.second.bytes, open});
                }
                for (auto &item : n) {
                    on->natives[(size_t)me].push_back({item.what, open});
                }
                *started = true;
            }
            return *open == 0;
        });
    }
};

SimNet::SimNet(int world, uint32_t seed)
    : errors((size_t)world, TW_OK), n_aborts((size_t)world), sent_bytes((size_t)(world * world)),
      world_(world), random(seed), sends_of((size_t)(world * world)), receives_of((size_t)(world * world)),
      natives((size_t)world)
{
}

std::deque<SimNet::Message> &SimNet::sends(int from, int to)
{
    return sends_of[(size_t)(from * world_ + to)];
}

std::deque<SimNet::Message> &SimNet::receives(int from, int to)
{
    return receives_of[(size_t)(from * world_ + to)];
}

bool SimNet::step_message()
{
    std::vector<size_t> ready;
    for (size_t i = 0; i < sends_of.size(); i++) {
        if (!sends_of[i].empty() && !receives_of[i].empty()) {
            ready.push_back(i);
        }
    }
    if (ready.empty()) {
        return false;
    }
    size_t pair = ready[random() % ready.size()];
    Message &send = sends_of[pair].front(), &receive = receives_of[pair].front();
    EXPECT_EQ(send.bytes, receive.bytes)
        << "from, to: " << pair / (size_t)world_ << " " << pair % (size_t)world_;
    memcpy(receive.to, send.from, std::min(send.bytes, receive.bytes));
    sent_bytes[pair] += send.bytes;
    --*send.open;
    --*receive.open;
    sends_of[pair].pop_front();
    receives_of[pair].pop_front();
    return true;
}

/* Sums in fp32 in rank order, rounded once. */
void SimNet::run_native(const std::vector<Native> &all)
{
    const tw_gpu_native_t &first = all[0].what;
    size_t elem = tw_type_bytes(first.type), world = all.size();
    size_t n = first.op == TW_COLL_ALLREDUCE ? first.n_elems : first.n_elems * world;
    std::vector<char> result(n * elem);
    if (first.op == TW_COLL_ALLGATHER) {
        for (size_t r = 0; r < world; r++) {
            memcpy(&result[r * first.n_elems * elem], all[r].what.src, first.n_elems * elem);
        }
    } else {
        std::vector<float> sum(n);
        float factor = first.reduction == TW_COLL_MEAN ? 1.0f / (float)world : 1.0f;
        for (const Native &native : all) {
            tw_convert_add_fp32(first.type, native.what.src, sum.data(), n);
        }
        tw_convert_from_fp32(first.type, sum.data(), factor, result.data(), n);
    }
    for (size_t r = 0; r < world; r++) {
        bool scatters = first.op == TW_COLL_REDUCE_SCATTER;
        size_t offset = scatters ? r * first.n_elems * elem : 0;
        EXPECT_EQ(all[r].what.n_elems, first.n_elems);
        memcpy(all[r].what.dst, &result[offset], (scatters ? first.n_elems : n) * elem);
    }
}

bool SimNet::step_native()
{
    std::vector<Native> all;
    for (const auto &queue : natives) {
        if (queue.empty()) {
            return false;
        }
        all.push_back(queue.front());
    }
    run_native(all);
    for (auto &queue : natives) {
        --*queue.front().open;
        queue.pop_front();
    }
    return true;
}

bool SimNet::step()
{
    return random() % 2 ? step_message() || step_native() : step_native() || step_message();
}

tw_gpu_wire_t *SimNet::new_wire(int rank, SimDevice *device)
{
    SimWire *wire = new SimWire{{}, this, device, rank, false, nullptr, {}, {}, {}};
    wire->table.begin = [](tw_gpu_wire_t *w) {
        SimWire *me = SimWire::of(w);
        EXPECT_FALSE(me->in_group);
        me->in_group = true;
        me->stream = nullptr;
        return TW_OK;
    };
    wire->table.send = [](tw_gpu_wire_t *w, int peer, const void *from, size_t bytes, tw_stream_t stream) {
        SimWire::of(w)->use(stream);
        SimWire::of(w)->sends.push_back({peer, {from, nullptr, bytes, nullptr}});
        return TW_OK;
    };
    wire->table.recv = [](tw_gpu_wire_t *w, int peer, void *to, size_t bytes, tw_stream_t stream) {
        SimWire::of(w)->use(stream);
        SimWire::of(w)->receives.push_back({peer, {nullptr, to, bytes, nullptr}});
        return TW_OK;
    };
    wire->table.native = [](tw_gpu_wire_t *w, const tw_gpu_native_t *native, tw_stream_t stream) {
        SimWire::of(w)->use(stream);
        SimWire::of(w)->natives.push_back({*native, nullptr});
        return TW_OK;
    };
    wire->table.end = [](tw_gpu_wire_t *w) {
        SimWire *me = SimWire::of(w);
        EXPECT_TRUE(me->in_group);
        me->in_group = false;
        me->net->n_groups++;
        if (me->stream != nullptr) {
            me->end();
        }
        me->sends.clear();
        me->receives.clear();
        me->natives.clear();
        return TW_OK;
    };
    wire->table.error = [](tw_gpu_wire_t *w) {
        return SimWire::of(w)->net->errors[(size_t)SimWire::of(w)->rank];
    };
    wire->table.abort = [](tw_gpu_wire_t *w) {
        SimWire::of(w)->net->n_aborts[(size_t)SimWire::of(w)->rank]++;
    };
    wire->table.destroy = [](tw_gpu_wire_t *w) {
        SimWire::of(w)->net->n_wires--;
        delete SimWire::of(w);
    };
    n_wires++;
    return &wire->table;
}

bool drain(SimNet &net, const std::vector<SimDevice *> &devices, uint32_t seed)
{
    std::mt19937 random(seed);
    for (int idle = 0; idle < 2000;) {
        size_t who = random() % (devices.size() + 1);
        bool moved = who == devices.size() ? net.step() : devices[who]->step();
        idle = moved ? 0 : idle + 1;
    }
    for (const SimDevice *device : devices) {
        if (device->n_busy() > 0) {
            return false;
        }
    }
    return true;
}

} // namespace tw
