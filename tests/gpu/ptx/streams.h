/** Streams, events and graphs of the stand-in for the CUDA runtime. */
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tw::ptx
{

/** Held by every call of the runtime. */
std::recursive_mutex &runtime_mutex();

struct Event;
struct Stream;

struct Graph {
    std::vector<std::function<void()>> work;
    bool global = false; /**< captured in the global mode */
};

/** What a stream has to do: some work, or to wait until an event was recorded n times, or to record it so. */
struct Work {
    std::function<void()> run;
    std::shared_ptr<Event> wait, record;
    unsigned long long n = 0;
};

struct Event {
    unsigned long long recorded = 0, done = 0;
    double when = 0; /**< seconds */
    int polls = 0;   /**< since it was recorded */
    std::shared_ptr<Graph> graph;
    Stream *stream = nullptr;

    bool ready() const
    {
        return done >= recorded;
    }
};

struct Stream {
    std::deque<Work> work;
    bool blocking = true; /**< waits for the legacy default stream, and that for it */
    std::shared_ptr<Graph> capture;
};

Stream *stream_create(bool blocking);
bool stream_destroy(Stream *stream);
Stream *default_stream();

/** Append; it runs at once unless PTX_LAZY is set. Of a capture it goes into the graph. */
void stream_push(Stream *stream, Work work);
/** All that a stream has to do. */
void stream_drain(Stream *stream);
/** What CUDA's calls on the legacy default stream wait for. */
void streams_drain_legacy();
void streams_drain_all();
/** Until an event's last record. */
void event_drain(Event *event);
/** The end of a capture: no stream is in it any more. */
void capture_end(const std::shared_ptr<Graph> &graph);
/** Does a capture in the global mode go on anywhere? */
bool capture_global();

} // namespace tw::ptx
