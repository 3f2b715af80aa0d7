#include "tests/gpu/ptx/streams.h"

#include <algorithm>
#include <ctime>
#include <set>

#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

namespace
{

std::set<Stream *> &streams()
{
    static auto *all = new std::set<Stream *>;
    return *all;
}

double seconds_now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Until the event was recorded n times. */
void drain_until(Stream *stream, const Event *event, unsigned long long n);

void do_first(Stream *stream)
{
    const Work work = std::move(stream->work.front());
    stream->work.pop_front();
    if (work.wait && work.wait->stream) {
        drain_until(work.wait->stream, work.wait.get(), work.n);
    }
    if (work.run) {
        work.run();
    }
    if (work.record) {
        work.record->done = std::max(work.record->done, work.n);
        work.record->when = seconds_now();
    }
}

void drain_until(Stream *stream, const Event *event, unsigned long long n)
{
    while (event->done < n && !stream->work.empty()) {
        do_first(stream);
    }
}

} // namespace

std::recursive_mutex &runtime_mutex()
{
    static auto *mutex = new std::recursive_mutex;
    return *mutex;
}

Stream *default_stream()
{
    static auto *stream = new Stream;
    return stream;
}

Stream *stream_create(bool blocking)
{
    auto *stream = new Stream;
    stream->blocking = blocking;
    streams().insert(stream);
    return stream;
}

bool stream_destroy(Stream *stream)
{
    if (streams().erase(stream) == 0) {
        return false;
    }
    stream_drain(stream); /* not freed: events may name it */
    return true;
}

void stream_push(Stream *stream, Work work)
{
    if (stream->capture) {
        if (work.run) {
            stream->capture->work.push_back(work.run);
        }
        return;
    }
    if (stream == default_stream()) {
        for (Stream *other : streams()) {
            if (other->blocking) {
                stream_drain(other);
            }
        }
    } else if (stream->blocking) {
        stream_drain(default_stream());
    }
    stream->work.push_back(std::move(work));
    if (!settings().lazy) {
        stream_drain(stream);
    }
}

void stream_drain(Stream *stream)
{
    while (!stream->work.empty()) {
        do_first(stream);
    }
}

void streams_drain_legacy()
{
    stream_drain(default_stream());
    for (Stream *stream : streams()) {
        if (stream->blocking) {
            stream_drain(stream);
        }
    }
}

void streams_drain_all()
{
    stream_drain(default_stream());
    for (Stream *stream : streams()) {
        stream_drain(stream);
    }
}

void event_drain(Event *event)
{
    if (event->stream) {
        drain_until(event->stream, event, event->recorded);
    }
}

void capture_end(const std::shared_ptr<Graph> &graph)
{
    default_stream()->capture = default_stream()->capture == graph ? nullptr : default_stream()->capture;
    for (Stream *stream : streams()) {
        stream->capture = stream->capture == graph ? nullptr : stream->capture;
    }
}

bool capture_global()
{
    return std::any_of(streams().begin(), streams().end(),
                       [](const Stream *s) { return s->capture && s->capture->global; });
}

} // namespace tw::ptx
