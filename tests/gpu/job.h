/** A job of processes that go through the same cases together, and what became of each case.
 *
 *  A rank tells about itself in lines on stdout, here with the number of the case:
 *      @begin 3
 *      @ok 3
 *      @wrong 3 what is wrong
 *  All else that it writes is kept, and shown when it fails. */
#ifndef TW_TESTS_GPU_JOB_H
#define TW_TESTS_GPU_JOB_H

#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/children.h"

namespace tw::gpu
{

/** How long a rank may take before it counts as hanging. */
struct Limits {
    double start_sec = 120; /**< until its first case */
    double case_sec = 60;   /**< in a case, or between two */
    double end_sec = 30;    /**< from its last case to its end */
    double grace_sec = 10;  /**< for the others, once a rank has failed */
};

struct JobSpec {
    std::string name;               /**< "nccl 2x2" */
    std::vector<std::string> cases; /**< their names */
    std::vector<ChildSpec> ranks;
    Limits limits;
    int victim = -1; /**< this rank is to end by SIGKILL; it need not say anything */
};

struct Verdict {
    std::string name; /**< job and case */
    bool passed;
    std::string why; /**< of a failure; names ranks */
    double sec;      /**< since the verdict before it */
};

/** Run it. A verdict for each case, in order, and one for the end of the job; each is told to `progress` when
 *  it is known. Whoever hangs is killed. */
std::vector<Verdict> run_job(const JobSpec &spec, const std::function<void(const Verdict &)> &progress);

/** For a rank of a job over NCCL: a host of its own, whatever we call a node, as several ranks of a host may
 *  not share a GPU; and nothing of NCCL's between the ranks but sockets on the loopback device. */
std::map<std::string, std::string> nccl_env(int rank);

/** A rank's way through its cases, with its lines about them: `run` returns "" or what is wrong with one;
 *  false if anything is. It ends early where there is no going on. */
bool run_cases(size_t n_cases, const std::function<std::string(size_t)> &run, const bool &is_broken);

/** Find the job of that name; NULL: there is none. */
template <typename Job>
const Job *find_job(const std::vector<Job> &jobs, const std::string &name)
{
    for (const Job &job : jobs) {
        if (job.name == name) {
            return &job;
        }
    }
    return nullptr;
}

} // namespace tw::gpu

#endif
