/* The campaign as a user runs it: real processes, few faults, a fixed seed. */
#include <gtest/gtest.h>
#include <jansson.h>

#include <sstream>

#include "tests/common/process.h"

namespace
{

using process::Result;

const char *const kTool = "tests/faults/faults";

bool cluster_can_be_made()
{
    return process::run({"bench/cluster", "--nodes", "1", "--", "true"}).code == 0;
}

TEST(Faults, AFewOfEachEndInTimeAndAreNamed)
{
    if (!cluster_can_be_made()) {
        GTEST_SKIP() << "no cluster can be made here";
    }
    constexpr int kRuns = 6;
    std::string path = ::testing::TempDir() + "faults." + std::to_string(getpid()) + ".json";
    Result result = process::run({kTool, "-n", std::to_string(kRuns), "--seed", "11", "--json", path});
    EXPECT_EQ(0, result.code) << result.out << result.err;
    EXPECT_NE(std::string::npos,
              result.out.find("6 runs, 0 not ok: 0 hangs, 0 wrong names, 0 wrong results, 0 leftovers"))
        << result.out;
    std::istringstream lines(process::slurp(path));
    int n = 0;
    for (std::string line; std::getline(lines, line); n++) {
        json_t *run = json_loads(line.c_str(), 0, nullptr);
        ASSERT_NE(nullptr, run) << line;
        for (const char *key : {"kind", "phase", "victims", "named_by", "hang_sec", "ok"}) {
            EXPECT_NE(nullptr, json_object_get(run, key)) << key << " " << line;
        }
        const char *survivor;
        json_t *named, *victims = json_object_get(run, "victims");
        json_object_foreach(json_object_get(run, "named_by"), survivor, named)
        {
            EXPECT_TRUE(json_is_integer(named) || json_is_array(named)) << line;
        }
        EXPECT_GE(json_array_size(victims), 1u) << line;
        json_decref(run);
    }
    EXPECT_EQ(kRuns, n);
    unlink(path.c_str());
}

TEST(Faults, MistakesAreNamed)
{
    struct {
        std::vector<std::string> args;
        const char *said;
    } cases[] = {
        {{kTool, "-n", "0"}, "--n: '0'"},
        {{kTool, "--seed", "-1"}, "--seed: '-1'"},
        {{kTool, "--nodes", "1", "--ranks-per-node", "1"}, "a job of 2 to 64 ranks"},
        {{kTool, "stray"}, "'stray'"},
    };
    for (const auto &c : cases) {
        Result result = process::run(c.args);
        EXPECT_EQ(2, result.code) << c.said;
        EXPECT_NE(std::string::npos, result.err.find(c.said)) << result.err;
    }
}

} // namespace
