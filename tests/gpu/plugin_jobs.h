/** What programs that call NCCL do on a GPU with the plugin and the interposer loaded: jobs of processes,
 *  each with its cases. The program (nccl_rank.h) knows nothing of Thinwire; variables turn it on. */
#ifndef TW_TESTS_GPU_PLUGIN_JOBS_H
#define TW_TESTS_GPU_PLUGIN_JOBS_H

#include <map>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/gpu/job.h"

namespace tw::gpu
{

struct PluginCase {
    enum Kind {
        gather,
        scatter, /**< reduce-scatter */
        all_reduce,
        broadcast, /**< from the last rank */
        reduce,    /**< to rank 0 */
        exchange,  /**< all to all, of sends and receives in a group */
        ring,      /**< to the next rank, from the one before */
        child,     /**< an all-reduce on a communicator split off: of the even ranks, and of the odd ones */
        again,     /**< one on a new communicator, made after the old one has gone */
        logged,    /**< NCCL's log has the job's lines */
        death      /**< the victim is killed in an all-reduce; the others hear of it, and can abort */
    } kind;
    std::string name;
    size_t count = 1000; /**< elements; of a shard, or for one rank */
    ncclDataType_t type = ncclFloat32;
    ncclRedOp_t op = ncclSum;
    bool in_place = false;
    std::string codec = {}; /**< that the result must show; "": plain */
};

struct PluginJob {
    std::string name;
    int world;
    std::map<std::string, std::string> env; /**< what turns it on; "NAME": "" takes one away */
    std::vector<std::string> logged;
    std::vector<PluginCase> cases;
    int victim = -1;
};

const std::vector<PluginJob> &plugin_jobs();
/** NULL: there is none of that name. */
const PluginJob *find_plugin_job(const std::string &name);
/** The same as processes, which meet in `folder`, where NCCL's log goes, too. */
JobSpec plugin_spec_of(const PluginJob &job, const std::vector<std::string> &argv, const std::string &folder);

} // namespace tw::gpu

#endif
