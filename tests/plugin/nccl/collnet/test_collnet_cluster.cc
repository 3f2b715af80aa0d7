/* Three nodes: the bench's ranks drive the plugin's table as NCCL does, in windows that do not divide the
 * tensor. */
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "tests/common/process.h"

namespace
{

/* What follows a key in a line of JSON. */
double number_after(const std::string &line, const std::string &key)
{
    const size_t at = line.find("\"" + key + "\":");
    return at == std::string::npos ? -1 : strtod(line.c_str() + at + key.size() + 3, nullptr);
}

std::vector<std::string> lines_of(const std::string &path)
{
    std::vector<std::string> lines(1);
    for (char c : process::slurp(path)) {
        if (c == '\n') {
            lines.emplace_back();
        } else {
            lines.back() += c;
        }
    }
    lines.pop_back();
    return lines;
}

bool can_make_cluster(std::string *why)
{
    const process::Result able =
        process::run({"bench/cluster", "--nodes", "2", "--link", "none", "--", "true"});
    *why = able.err;
    return able.code == 0;
}

TEST(Cluster, AllReducesAreRightAndLossyWhereAskedFor)
{
    std::string why;
    if (!can_make_cluster(&why)) {
        GTEST_SKIP() << "no cluster can be made here: " << why;
    }
    char json[] = "/tmp/tw-collnet-XXXXXX";
    ASSERT_EQ(close(mkstemp(json)), 0);
    const process::Result result =
        process::run({"tests/plugin/nccl/bench/collnet", "--nodes", "3", "--link", "none", "--bytes",
                      "3000002", "--window", "256K", "--in-flight", "5", "--iters", "2", "--json", json});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    const std::vector<std::string> lines = lines_of(json);
    remove(json);
    ASSERT_EQ(lines.size(), 12u) << result.out << result.err;
    for (const std::string &line : lines) {
        const bool is_plain =
            line.find("\"plain\"") != std::string::npos || line.find("\"lossless\"") != std::string::npos;
        const bool is_coarse =
            line.find("\"int4\"") != std::string::npos || line.find("\"ecdq\"") != std::string::npos;
        EXPECT_NE(line.find("\"ok\":true"), std::string::npos) << line;
        EXPECT_GT(number_after(line, "us_median"), 0) << line;
        EXPECT_GT(number_after(line, "rel_rmse"), is_plain ? 0 : is_coarse ? 5e-2 : 5e-3) << line;
        EXPECT_LT(number_after(line, "rel_rmse"), is_plain ? 5e-3 : is_coarse ? 4e-1 : 6e-2) << line;
    }
}

/* A launcher's job may have more ranks than the bench's own cluster: it has room for 16. */
TEST(Cluster, MoreRanksThanThereIsRoomForAreRefused)
{
    std::string why;
    if (!can_make_cluster(&why)) {
        GTEST_SKIP() << "no cluster can be made here: " << why;
    }
    const process::Result result =
        process::run({"bench/cluster", "--nodes", "1", "--ranks-per-node", "17", "--link", "none", "--",
                      "tests/plugin/nccl/bench/collnet", "--bytes", "2", "--iters", "1"});
    EXPECT_EQ(result.code, 1) << result.out << result.err;
    EXPECT_NE(result.err.find("collnet: 17 ranks, at most 16 can be"), std::string::npos)
        << result.out << result.err;
}

} // namespace
