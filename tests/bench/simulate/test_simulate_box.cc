/* The simulator beside real processes. How near its times are depends on the machine. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/common/process.h"
#include "tests/common/terminal.h"

namespace
{

const char *const kBox = "tests/bench/simulate_box";

TEST(SimulateBox, ShowsBothForEveryOperation)
{
    if (process::run({"bench/cluster", "--nodes", "1", "--", "true"}).code != 0) {
        GTEST_SKIP() << "no cluster can be made here";
    }
    const std::string json = ::testing::TempDir() + "box." + std::to_string(getpid());
    process::Result result =
        process::run({kBox, "--nodes", "2", "--ranks-per-node", "2", "--link", "1gbit", "--bytes", "256K",
                      "--times", "1", "--algo", "ring", "--json", json});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("of 3 simulated within 10 % of the box"), std::string::npos) << result.out;
    std::istringstream lines(process::slurp(json));
    std::string seen;
    for (std::string line; std::getline(lines, line);) {
        json_t *row = json_loads(line.c_str(), 0, nullptr);
        auto number = [&](const char *key) { return json_number_value(json_object_get(row, key)); };
        seen += json_string_value(json_object_get(row, "op")) + std::string(" ");
        EXPECT_STREQ(json_string_value(json_object_get(row, "algorithm")), "ring");
        EXPECT_EQ(number("ranks"), 4);
        EXPECT_GT(number("sec"), 0);
        /* two nodes at 1 Gb/s: half of it passes, or all of it twice half */
        EXPECT_GE(number("simulated_sec"), 131072 * 8 / 1e9);
        EXPECT_NEAR(number("ratio"), number("simulated_sec") / number("sec"), 1e-6 * number("ratio"));
        json_decref(row);
    }
    EXPECT_EQ(seen, "allgather reduce_scatter allreduce ");
}

TEST(SimulateBox, AnAlgorithmThatIsNotThereIsAnError)
{
    if (process::run({"bench/cluster", "--nodes", "1", "--", "true"}).code != 0) {
        GTEST_SKIP() << "no cluster can be made here";
    }
    process::Result result =
        process::run({kBox, "--nodes", "2", "--ranks-per-node", "1", "--bytes", "64K", "--algo", "wring"});
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("--algo wring"), std::string::npos) << result.err;
}

TEST(SimulateBox, ALinkThatIsTooSlowIsAnError)
{
    process::Result result = process::run({kBox, "--link", "5"});
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("--link"), std::string::npos) << result.err;
}

/* What takes seconds says how far it is, on a terminal; in the end nothing of that stands there. */
TEST(Simulate, SaysHowFarItIs)
{
    const Terminal terminal(60);
    process::Spec spec;
    spec.argv = {"tests/bench/simulate",
                 "--nodes",
                 "16",
                 "--ranks-per-node",
                 "8",
                 "--algo",
                 "ring",
                 "--bytes",
                 "256M"};
    spec.before = [&terminal] { dup2(terminal.fd(), STDERR_FILENO); };
    const process::Result result = process::Child(spec).wait();
    EXPECT_EQ(result.code, 0) << result.out;
    const std::string text = terminal.text();
    EXPECT_NE(text.find("\rring on 16 nodes: "), std::string::npos) << text;
    ASSERT_GT(text.size(), 4u);
    EXPECT_EQ(text.substr(text.size() - 4), "\r\033[K") << text;
    EXPECT_EQ(result.out.find("16 nodes: "), std::string::npos) << result.out;
}

} // namespace
