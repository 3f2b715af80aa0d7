#include "tests/trainer/device/emulated.h"

#include "tests/trainer/device/plain.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tw
{

namespace
{

constexpr size_t arena_bytes = size_t(1) << 28, alignment = 256;

thread_local EmulatedDevice *current_device = nullptr;

/* An argument until its call: what a pointer to a description points to is copied. */
template <class A, class = void>
struct Held {
    A value;
    A get()
    {
        return value;
    }
};

template <class T>
struct Held<const T *, std::enable_if_t<std::is_class_v<T>>> {
    T value;
    Held(const T *of) : value(*of)
    {
    }
    const T *get()
    {
        return &value;
    }
};

/* A kernel's launch, enqueued. */
template <class FN, FN fn>
struct Later;

template <class... A, tw_status_t (*fn)(A...)>
struct Later<tw_status_t (*)(A...), fn> {
    static tw_status_t run(A... args)
    {
        EmulatedDevice *device = EmulatedDevice::current();
        const tw_stream_t stream = std::get<sizeof...(A) - 1>(std::make_tuple(args...));
        device->n_kernels++;
        if (!device->may_launch()) {
            return TW_ERR_CUDA;
        }
        device->push(stream, [held = std::make_tuple(Held<A>{args}...)]() mutable {
            std::lock_guard<std::mutex> lock(EmulatedDevice::kernel_mutex());
            std::apply([](auto &...each) { EXPECT_EQ(fn(each.get()...), TW_OK); }, held);
            return true;
        });
        return TW_OK;
    }
};

const tw_device_kernels_t kernels = {
#define KERNEL(name) &Later<decltype(&tw_cuda_##name), &tw_cuda_##name>::run,
    TW_DEVICE_KERNELS(KERNEL)
#undef KERNEL
};

tw_status_t multiply(tw_device_products_t *, const tw_device_product_t *product, tw_stream_t stream)
{
    TW_TRY(tw_device_product_check(product));
    EmulatedDevice::current()->n_products++;
    EmulatedDevice::current()->push(stream, [p = *product] {
        tw::product_plain(&p);
        return true;
    });
    return TW_OK;
}

} // namespace

EmulatedDevice *EmulatedDevice::current()
{
    return current_device;
}

std::mutex &EmulatedDevice::kernel_mutex()
{
    static std::mutex mutex;
    return mutex;
}

EmulatedDevice::EmulatedDevice(uint32_t seed) : handle_(), gpu_(), random_(seed)
{
    arena_ = static_cast<uint8_t *>(
        mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    EXPECT_NE(arena_, MAP_FAILED);
    handle_.device = this;
    handle_.products.run = multiply;
    handle_.table.products = &handle_.products;
    handle_.table.kernels = &kernels;
    add_memory();
    add_streams();
    add_work();
    add_groups();
}

EmulatedDevice::~EmulatedDevice()
{
    EXPECT_EQ(allocated_bytes, 0u);
    EXPECT_EQ(pinned_bytes, 0u);
    EXPECT_EQ(n_pins, 0);
    EXPECT_EQ(n_streams, 0);
    EXPECT_EQ(n_events, 0);
    munmap(arena_, arena_bytes);
    current_device = nullptr;
}

bool EmulatedDevice::may_launch()
{
    if (launches_left == 0) {
        tw_error("emulated: a launch failed");
        has_failed_ = true;
    }
    launches_left -= launches_left >= 0;
    return !has_failed_;
}

/* ---- streams ------------------------------------------------------------------------------------------- */

/* The next operation of a stream, which alone sees the device's memory. */
bool EmulatedDevice::step(Stream *stream)
{
    if (stream->queue.empty()) {
        return false;
    }
    std::function<bool()> item = std::move(stream->queue.front());
    mprotect(arena_, used_, PROT_READ | PROT_WRITE);
    const bool is_over = item();
    mprotect(arena_, used_, PROT_NONE);
    if (is_over) {
        stream->queue.pop_front();
    } else {
        stream->queue.front() = std::move(item);
    }
    return is_over;
}

bool EmulatedDevice::step_any()
{
    const Lock lock(mutex_);
    const size_t n = std::max<size_t>(streams_.size(), 1);
    favourite_ = random_() % 64 == 0 ? random_() % n : favourite_ % n; /* one is far ahead for a while */
    const size_t first = random_() % 8 == 0 ? random_() % n : favourite_;
    for (size_t i = 0; i < streams_.size(); i++) {
        if (step(streams_[(first + i) % streams_.size()].get())) {
            return true;
        }
    }
    return false;
}

void EmulatedDevice::push(tw_stream_t stream, std::function<bool()> item)
{
    const Lock lock(mutex_);
    static_cast<Stream *>(stream)->queue.push_back(std::move(item));
    while (random_() % 4 == 0 && step_any()) {
    }
}

void EmulatedDevice::run_all()
{
    while (step_any()) {
    }
}

void EmulatedDevice::add_streams()
{
    tw_device_t *t = &handle_.table;
    t->stream_create = [](tw_device_t *device, tw_stream_t *out) {
        const Lock lock(of(device)->mutex_);
        of(device)->streams_.push_back(std::make_unique<Stream>());
        of(device)->n_streams++;
        *out = of(device)->streams_.back().get();
        return TW_OK;
    };
    t->stream_destroy = [](tw_device_t *device, tw_stream_t) {
        const Lock lock(of(device)->mutex_);
        of(device)->run_all();
        of(device)->n_streams--;
    };
    t->stream_wait = [](tw_device_t *device, tw_stream_t stream, tw_device_event_t event) {
        const Lock lock(of(device)->mutex_);
        const auto *waited = static_cast<Event *>(event);
        of(device)->n_waits++;
        of(device)->push(stream, [waited, n = waited->issued] { return waited->passed >= n; });
        return TW_OK;
    };
    t->event_create = [](tw_device_t *device, tw_device_event_t *out) {
        const Lock lock(of(device)->mutex_);
        of(device)->n_events++;
        *out = new Event;
        return TW_OK;
    };
    t->event_destroy = [](tw_device_t *device, tw_device_event_t event) {
        const Lock lock(of(device)->mutex_);
        of(device)->run_all();
        of(device)->n_events--;
        delete static_cast<Event *>(event);
    };
    t->event_record = [](tw_device_t *device, tw_device_event_t event, tw_stream_t stream) {
        const Lock lock(of(device)->mutex_);
        auto *recorded = static_cast<Event *>(event);
        of(device)->n_records++;
        recorded->bytes_out = std::exchange(static_cast<Stream *>(stream)->bytes_out, 0);
        recorded->n_kernels = of(device)->n_kernels;
        of(device)->push(stream, [recorded, n = ++recorded->issued] {
            recorded->passed = n;
            return true;
        });
        return TW_OK;
    };
    t->event_wait = [](tw_device_t *device, tw_device_event_t event) {
        const Lock lock(of(device)->mutex_);
        auto *waited = static_cast<Event *>(event);
        const uint64_t n = waited->issued;
        const bool has_failed = of(device)->has_failed_;
        if (has_failed && !of(device)->is_noted_) {
            tw_error("emulated: an earlier operation failed");
        }
        if (waited->bytes_out > 0) {
            const int behind = of(device)->n_kernels - waited->n_kernels;
            of(device)->arrivals.push_back({std::exchange(waited->bytes_out, 0), behind});
        }
        while (waited->passed < n) {
            if (!of(device)->step_any()) {
                ADD_FAILURE() << "an event that never comes";
                abort();
            }
        }
        return has_failed ? TW_ERR_CUDA : TW_OK;
    };
}

/* Time passes while somebody asks. */
tw_status_t EmulatedDevice::query(void *event)
{
    const Lock lock(mutex_);
    const auto *asked = static_cast<const Event *>(event);
    for (uint32_t i = random_() % 4; i > 0; i--) {
        step_any();
    }
    return asked->passed >= asked->issued ? TW_OK : TW_IN_PROGRESS;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Never given out twice while anything is allocated; what is new holds no zeros. */
void *EmulatedDevice::take(size_t bytes)
{
    const size_t size = (bytes + alignment - 1) / alignment * alignment;
    if (used_ + size > arena_bytes || allocated_bytes + bytes > room_bytes) {
        tw_error("emulated: out of memory");
        return nullptr;
    }
    uint8_t *at = arena_ + used_;
    used_ += size;
    mprotect(arena_, used_, PROT_READ | PROT_WRITE);
    memset(at, 0xff, size);
    mprotect(arena_, used_, PROT_NONE);
    blocks_.emplace_back(at, bytes);
    allocated_bytes += bytes;
    most_bytes = std::max(most_bytes, allocated_bytes);
    return at;
}

void EmulatedDevice::add_memory()
{
    tw_device_t *t = &handle_.table;
    t->use = [](tw_device_t *device) {
        current_device = of(device);
        return TW_OK;
    };
    t->alloc = [](tw_device_t *device, size_t bytes, int pinned, void **out) {
        const Lock lock(of(device)->mutex_);
        if (!pinned) {
            *out = of(device)->take(bytes);
            return *out ? TW_OK : TW_ERR_NO_MEMORY;
        }
        *out = memset(malloc(bytes), 0xff, bytes);
        of(device)->blocks_.emplace_back(*out, bytes);
        of(device)->pinned_bytes += bytes;
        return TW_OK;
    };
    t->free = [](tw_device_t *device, void *memory, int pinned) {
        const Lock lock(of(device)->mutex_);
        auto &blocks = of(device)->blocks_;
        of(device)->run_all();
        auto found = std::find_if(blocks.begin(), blocks.end(), [&](auto &b) { return b.first == memory; });
        if (found == blocks.end()) {
            ADD_FAILURE() << "freed, but never taken";
            return;
        }
        (pinned ? of(device)->pinned_bytes : of(device)->allocated_bytes) -= found->second;
        blocks.erase(found);
        if (pinned) {
            free(memory);
        }
        if (of(device)->allocated_bytes == 0) {
            of(device)->used_ = 0;
        }
    };
    t->pin = [](tw_device_t *device, void *start, size_t bytes) {
        const auto first = reinterpret_cast<uintptr_t>(start);
        const auto page = size_t(sysconf(_SC_PAGESIZE));
        EXPECT_TRUE(first % page == 0 && bytes % page == 0) << "pages that others have something in";
        for (const auto &pin : of(device)->pins_) {
            EXPECT_TRUE(first + bytes <= pin.first || first >= pin.first + pin.second) << "pinned twice";
        }
        of(device)->pins_.emplace_back(first, bytes);
        of(device)->most_pins = std::max(of(device)->most_pins, ++of(device)->n_pins);
        return 1;
    };
    t->unpin = [](tw_device_t *device, void *start) {
        auto &pins = of(device)->pins_;
        const auto first = reinterpret_cast<uintptr_t>(start);
        auto found = std::find_if(pins.begin(), pins.end(), [&](auto &pin) { return pin.first == first; });
        ASSERT_NE(found, pins.end());
        pins.erase(found);
        of(device)->n_pins--;
    };
    t->note_failure = [](tw_device_t *device) { of(device)->is_noted_ = true; };
    t->destroy = [](tw_device_t *) {};
}

void EmulatedDevice::add_work()
{
    tw_device_t *t = &handle_.table;
    t->copy = [](tw_device_t *device, void *to, const void *from, size_t bytes, tw_stream_t stream) {
        const Lock lock(of(device)->mutex_);
        of(device)->n_copies++;
        if (of(device)->copies_left == 0) {
            tw_error("emulated: a copy failed");
            return TW_ERR_CUDA;
        }
        of(device)->copies_left -= of(device)->copies_left > 0;
        const auto is_there = [=](const void *at) {
            const auto *begin = of(device)->arena_;
            return at >= begin && at < begin + arena_bytes;
        };
        const bool is_out = !is_there(to);
        static_cast<Stream *>(stream)->bytes_out = is_out ? bytes : 0;
        of(device)->bytes_out += is_out ? bytes : 0;
        of(device)->bytes_in += !is_out && !is_there(from) ? bytes : 0;
        const bool is_spoilt = is_out && bytes == of(device)->spoilt_bytes;
        of(device)->spoilt_bytes = is_spoilt ? 0 : of(device)->spoilt_bytes;
        of(device)->push(stream, [=] {
            memcpy(to, from, bytes);
            const uint16_t infinite = 0x7f80;
            memcpy(to, &infinite, is_spoilt ? sizeof(infinite) : 0);
            return true;
        });
        return TW_OK;
    };
    t->zero = [](tw_device_t *device, void *at, size_t bytes, tw_stream_t stream) {
        of(device)->push(stream, [=] {
            memset(at, 0, bytes);
            return true;
        });
        return TW_OK;
    };
}

} // namespace tw
