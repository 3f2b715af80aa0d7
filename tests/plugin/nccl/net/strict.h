/** What NCCL's thread may expect of a call that must not wait: it makes no system call that sleeps, and does
 *  not work for long. */
#ifndef TW_TESTS_PLUGIN_NCCL_NET_STRICT_H
#define TW_TESTS_PLUGIN_NCCL_NET_STRICT_H

#include <cmath>
#include <functional>

namespace strict
{

/** Run it on a thread of its own in which sleeping system calls (poll, select, epoll_wait and the like with a
 *  timeout, nanosleep, connect, accept) end the process with SIGSYS. What it throws, this throws. */
void without_sleep(const std::function<void()> &body);

/** Rounds of a test that measures: what the machine does beside it spoils one, not all. */
constexpr int rounds = 3;

/** Processor time of this thread that the longest of several calls took: of a round, and of the best
 *  round. */
class Longest
{
  public:
    /** Call, and return what it returns. */
    template <typename Call>
    auto operator()(const Call &call)
    {
        const double start = now_sec();
        auto result = call();
        const double took = now_sec() - start;
        sec_ = took > sec_ ? took : sec_;
        return result;
    }
    void end_round()
    {
        best_sec_ = sec_ < best_sec_ ? sec_ : best_sec_;
        sec_ = 0;
    }
    double best_sec() const
    {
        return best_sec_;
    }

  private:
    static double now_sec();
    double sec_ = 0, best_sec_ = HUGE_VAL;
};

/** Processor time of this thread for one copy of so many bytes, here and now: the measure. */
double copy_sec(unsigned long bytes);

} // namespace strict

#endif
