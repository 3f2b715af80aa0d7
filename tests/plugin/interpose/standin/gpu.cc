#include "tests/plugin/interpose/standin/gpu.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace standin
{

/* Of all streams. */
static std::mutex all_lock;
static std::set<Stream *> all;

Stream::Stream() : thread([this] { run(); })
{
    std::lock_guard<std::mutex> hold(all_lock);
    all.insert(this);
}

Stream::~Stream()
{
    synchronize();
    {
        std::lock_guard<std::mutex> hold(all_lock);
        all.erase(this);
    }
    {
        std::lock_guard<std::mutex> hold(lock);
        ended = true;
    }
    changed.notify_all();
    thread.join();
}

/* It stays until the process ends: its thread may be in a call that never does. */
Stream *Stream::of(void *handle)
{
    static Stream *standard = new Stream;
    return handle != nullptr ? static_cast<Stream *>(handle) : standard;
}

bool Stream::is_idle()
{
    std::lock_guard<std::mutex> hold(lock);
    return queue.empty() && !busy;
}

void Stream::synchronize_all()
{
    for (bool idle = false; !idle;) {
        {
            std::lock_guard<std::mutex> hold(all_lock);
            idle = std::all_of(all.begin(), all.end(), [](Stream *stream) { return stream->is_idle(); });
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(idle ? 0 : 1));
    }
}

void Stream::run()
{
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
        changed.wait(hold, [this] { return ended || !queue.empty(); });
        if (queue.empty()) {
            return;
        }
        Work work = std::move(queue.front());
        queue.pop_front();
        busy = true;
        hold.unlock();
        work();
        hold.lock();
        busy = false;
        changed.notify_all();
    }
}

void Stream::launch(const Launch &launch)
{
    std::lock_guard<std::mutex> hold(lock);
    if (captured) {
        graph.push_back(launch);
        return;
    }
    queue.push_back(launch());
    changed.notify_all();
}

void Stream::push(const Work &work)
{
    launch([work] { return work; });
}

void Stream::synchronize()
{
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [this] { return queue.empty() && !busy; });
}

void Stream::begin_capture()
{
    std::lock_guard<std::mutex> hold(lock);
    captured = true;
}

std::vector<Launch> Stream::end_capture()
{
    std::lock_guard<std::mutex> hold(lock);
    captured = false;
    return std::move(graph);
}

bool Stream::is_captured()
{
    std::lock_guard<std::mutex> hold(lock);
    return captured;
}

void Event::record(Stream *stream)
{
    stream->launch([s = state] {
        std::lock_guard<std::mutex> hold(s->lock);
        uint64_t ticket = ++s->issued;
        return [s, ticket] {
            std::lock_guard<std::mutex> holding(s->lock);
            s->passed = ticket;
            s->passed_sec =
                std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
            s->changed.notify_all();
        };
    });
}

void Event::wait_on(Stream *stream)
{
    stream->launch([s = state] {
        std::lock_guard<std::mutex> hold(s->lock);
        uint64_t ticket = s->issued;
        return [s, ticket] {
            std::unique_lock<std::mutex> waiting(s->lock);
            s->changed.wait(waiting, [&] { return s->passed >= ticket; });
        };
    });
}

bool Event::has_passed()
{
    std::lock_guard<std::mutex> hold(state->lock);
    return state->passed == state->issued;
}

uint64_t Event::n_records()
{
    std::lock_guard<std::mutex> hold(state->lock);
    return state->issued;
}

double Event::sec()
{
    std::lock_guard<std::mutex> hold(state->lock);
    return state->passed_sec;
}

} // namespace standin
