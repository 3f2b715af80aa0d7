/** A job that knows nothing of this library: one rank of it, a process, with the scenarios that the test asks
 *  for by name. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_JOB_H
#define TW_TESTS_PLUGIN_INTERPOSE_JOB_H

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plugin/interpose/nccl_calls.h"
#include "quant/quant.h"
#include "tests/plugin/interpose/standin/gpu.h"
#include "tests/plugin/interpose/standin/nccl.h"

namespace job
{

/* ---- the rank ------------------------------------------------------------------------------------------ */

struct Job {
    int rank, world, per_node;
};

/** This rank, as RANK, WORLD_SIZE and PER_NODE say. */
const Job &self();
/** Ends the job with a line that says where and why. */
[[noreturn]] void fail(const char *file, int line, const char *condition, const std::string &why);

#define CHECK_THAT(condition, why)                          \
    do {                                                    \
        if (!(condition)) {                                 \
            job::fail(__FILE__, __LINE__, #condition, why); \
        }                                                   \
    } while (0)
#define CHECK(condition) CHECK_THAT(condition, "")
#define OK(call) CHECK((call) == ncclSuccess)

/** Make an id on rank 0, and give it to all ranks. */
ncclUniqueId share_id();
/** A communicator of all ranks. */
ncclComm_t join(ncclConfig_t *config = nullptr);
cudaStream_t handle(standin::Stream &stream);
/** How many calls of it reached NCCL itself since this was last asked. */
int reached(const char *name);
/** What the library in front of NCCL offers itself; NULL: there is none. */
void *find_in_library(const char *name);

/* ---- values -------------------------------------------------------------------------------------------- */

/** Of a shard: 192 KiB of bf16, less than the job's TW_INTERPOSE_MIN_BYTES; all of them are more. */
constexpr size_t COUNT = 96 << 10;

/** A rank's tensor; no two ranks have the same. */
std::vector<char> tensor(int rank, size_t count, ncclDataType_t type);
/** Shards of ranks one after another, each encoded and decoded; codec "": as they are. */
std::vector<char> gathered(const std::vector<int> &ranks, size_t count, ncclDataType_t type,
                           const char *codec);
std::vector<int> all_ranks();

/* ---- calls that must be right -------------------------------------------------------------------------- */

using Gather = std::function<ncclResult_t(const void *from, void *to, cudaStream_t stream)>;

Gather all_gather(ncclComm_t comm, size_t count, ncclDataType_t type);
/** An all-gather by this call between these ranks: whole, every bit right, and its source as it was. */
void expect_gather(const Gather &call, const std::vector<int> &ranks, size_t count, ncclDataType_t type,
                   const char *codec, bool in_place);
/** Between all ranks, in the bounds of the codec; op multiplies the sum with `factor`. */
void expect_scatter(ncclComm_t comm, size_t count, ncclDataType_t type, ncclRedOp_t op, float factor,
                    const char *codec, bool in_place);
/** The same, and the same bits on all ranks. */
void expect_allreduce(ncclComm_t comm, size_t count, ncclDataType_t type, ncclRedOp_t op, float factor,
                      const char *codec, bool in_place);

/* ---- scenarios ----------------------------------------------------------------------------------------- */

using Scenario = void (*)();
using Scenarios = std::map<std::string, Scenario>;
Scenarios calls_scenarios();
Scenarios comms_scenarios();
Scenarios loading_scenarios();

} // namespace job

#endif
