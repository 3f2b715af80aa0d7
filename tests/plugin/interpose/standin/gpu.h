/** A GPU of host memory: streams are threads, kernels are functions. For tests of what stands between a job
 *  and NCCL; a cudaStream_t is a Stream, a cudaEvent_t an Event. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_STANDIN_GPU_H
#define TW_TESTS_PLUGIN_INTERPOSE_STANDIN_GPU_H

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace standin
{

using Work = std::function<void()>;
/** Called when work is launched, in the order of launches: returns the work. */
using Launch = std::function<Work()>;

/** Things done one after another. While it is captured, launches are kept for a graph instead. */
class Stream
{
  public:
    Stream();
    ~Stream();
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    void launch(const Launch &launch);
    void push(const Work &work);
    /** Wait until all that was launched has ended. */
    void synchronize();
    void begin_capture();
    std::vector<Launch> end_capture();
    bool is_captured();
    bool is_idle();

    /** The stream of a handle; NULL is the default stream. */
    static Stream *of(void *handle);
    /** Wait for all streams of the process, as freeing memory does. */
    static void synchronize_all();

  private:
    void run();

    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> queue;
    std::vector<Launch> graph;
    bool captured = false, busy = false, ended = false;
    std::thread thread;
};

/** Waiting refers to the last time that it was recorded; nothing is waited for if it never was. What was
 *  launched with it may be under way when it goes. */
class Event
{
  public:
    void record(Stream *stream);
    void wait_on(Stream *stream);
    bool has_passed();
    uint64_t n_records();
    double sec(); /**< when it passed last */

  private:
    struct State {
        std::mutex lock;
        std::condition_variable changed;
        uint64_t issued = 0, passed = 0;
        double passed_sec = 0;
    };
    std::shared_ptr<State> state = std::make_shared<State>();
};

} // namespace standin

#endif
