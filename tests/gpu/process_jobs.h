/** What processes that share a GPU do together: jobs, each with its cases, over NCCL and over UCX. */
#ifndef TW_TESTS_GPU_PROCESS_JOBS_H
#define TW_TESTS_GPU_PROCESS_JOBS_H

#include <string>
#include <vector>

#include "tests/collectives/quantized/quantized.h"
#include "tests/gpu/job.h"

namespace tw::gpu
{

struct ProcessCase {
    enum Kind {
        compare, /**< bit for bit what the CPU gets */
        native,  /**< NCCL's own sums, in its order: within a bound */
        graph,   /**< run once, captured, replayed twice: each time what the CPU gets */
        death    /**< the victim is killed in an operation; the others hear of it, and it ends */
    } kind;
    std::string name;
    Case c;
};

struct ProcessJob {
    std::string name;
    bool over_nccl;
    std::vector<int> grid; /**< ranks of each node */
    std::vector<ProcessCase> cases;
    int victim = -1;
};

const std::vector<ProcessJob> &process_jobs();
/** NULL: there is none of that name. */
const ProcessJob *find_process_job(const std::string &name);

/** The same as processes: `argv` once per rank, with the variables of a launcher for the rendezvous on this
 *  machine, and for NCCL a host of its own for each, as several ranks of a host may not share a GPU. */
JobSpec spec_of(const ProcessJob &job, const std::vector<std::string> &argv);

} // namespace tw::gpu

#endif
