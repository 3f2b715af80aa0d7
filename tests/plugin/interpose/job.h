/** A job that knows nothing of this library: one rank of it, a process, with the scenarios that the test asks for by name. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_JOB_H
#define TW_TESTS_PLUGIN_INTERPOSE_JOB_H

#include <string>
#include <vector>

#include "plugin/interpose/nccl_calls.h"
#include "quant/quant.h"
#include "tests/plugin/interpose/standin/gpu.h"
#include "tests/plugin/interpose/standin/nccl.h"

namespace job
{

struct Job {
    int rank, world, per_node;
};

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

/** From RANK, WORLD_SIZE and PER_NODE. */
const Job &self();

using Scenario = void (*)();
/** By name; NULL: there is none. */
Scenario find(const std::string &name);

} // namespace job

#endif
