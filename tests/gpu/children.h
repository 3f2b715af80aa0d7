/** Child processes that are listened to line by line, and never waited for without a limit. */
#ifndef TW_TESTS_GPU_CHILDREN_H
#define TW_TESTS_GPU_CHILDREN_H

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/common/process.h"

namespace tw::gpu
{

/** A program to start. */
struct ChildSpec {
    std::vector<std::string> argv;          /**< argv[0]: a path */
    std::map<std::string, std::string> env; /**< besides this process's own */
};

/** What happened. */
struct ChildEvent {
    enum Kind {
        line,   /**< `child` has written `text` to stdout or stderr */
        end,    /**< `child` is gone: `code` is its exit status, or 128 + the signal */
        silence /**< nothing until the time that was asked for, or nobody is left */
    } kind;
    size_t child;
    std::string text;
    int code;
};

/** The children die with this object, and with this process. They read nothing. */
class Children
{
  public:
    explicit Children(const std::vector<ChildSpec> &specs);

    /** The next thing that happens before `until_sec` (as tw_time_sec). A child's lines come before its
     *  end. */
    ChildEvent next(double until_sec);
    /** SIGKILL to all that live; their ends are still reported. */
    void kill_all();
    /** How many have not been reported as ended. */
    size_t n_left() const;

  private:
    struct Listened {
        std::unique_ptr<process::Child> process;
        size_t heard = 0; /**< bytes of its output that have become lines */
        bool is_over = false;
    };
    void listen_for(int timeout_ms);
    void take_lines(size_t i);

    std::vector<Listened> children_;
    std::deque<ChildEvent> events_;
    size_t n_left_;
};

} // namespace tw::gpu

#endif
