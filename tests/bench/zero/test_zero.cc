/* The benchmark of feature sets as a user runs it: real processes on two nodes, a small model, a few
 * steps. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "tests/common/process.h"

namespace
{

using process::Result;

const char *const kTool = "bench/zero";

struct Row {
    double bytes, params, ratio, bits;
    bool ok, equal;
};

std::map<std::string, Row> rows_of(const std::string &path)
{
    std::map<std::string, Row> rows;
    std::istringstream lines(process::slurp(path));
    for (std::string line; std::getline(lines, line);) {
        json_t *row = json_loads(line.c_str(), 0, nullptr);
        auto number = [&](const char *key) { return json_number_value(json_object_get(row, key)); };
        rows[json_string_value(json_object_get(row, "set"))] = {
            number("inter_node_bytes_per_step"),
            number("params"),
            number("bytes_ratio"),
            number("delta_bits"),
            json_is_true(json_object_get(row, "ok")),
            json_is_true(json_object_get(row, "losses_equal"))};
        json_decref(row);
    }
    return rows;
}

class ZeroBench : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (process::run({"bench/cluster", "--nodes", "1", "--", "true"}).code != 0) {
            GTEST_SKIP() << "no cluster can be made here";
        }
        base_ = ::testing::TempDir() + "zero." + std::to_string(getpid());
        std::ofstream text(base_ + ".txt");
        std::mt19937 random(1);
        for (int i = 0; i < 60000; i++) {
            text << char('a' + random() % 20);
        }
    }
    void TearDown() override
    {
        for (const char *suffix : {".txt", ".json", ".steps"}) {
            unlink((base_ + suffix).c_str());
        }
    }
    Result run(const std::vector<std::string> &flags) const
    {
        std::vector<std::string> args = {kTool,           "--data",   base_ + ".txt", "--json",
                                         base_ + ".json", "--link",   "none",         "--params",
                                         "200K",          "--tokens", "256"};
        args.insert(args.end(), flags.begin(), flags.end());
        return process::run(args);
    }
    std::string base_;
};

/* By the formulas of hpz.h, with 2 % for what has one dimension, and norms and checks. */
TEST_F(ZeroBench, BytesAreAsPromisedAndTheLosslessDeltaIsLossless)
{
    Result result =
        run({"--steps", "3", "--sets", "zero3-hpz,delta4,delta2,delta,zero3", "--metrics", base_ + ".steps"});
    ASSERT_EQ(0, result.code) << result.out << result.err;
    std::map<std::string, Row> rows = rows_of(base_ + ".json");
    ASSERT_EQ(5U, rows.size());
    for (const auto &[set, row] : rows) {
        EXPECT_TRUE(row.ok) << set;
    }
    const Row &base = rows["zero3"], &exact = rows["delta"];
    EXPECT_NEAR(base.bytes / (6 * base.params), 1, 0.02);
    EXPECT_NEAR(rows["zero3-hpz"].ratio, 2.0 / 3, 0.02);
    EXPECT_NEAR(rows["delta4"].ratio, (4.125 + 4.125) / 48, 0.02);
    EXPECT_NEAR(rows["delta2"].ratio, (2.25 + 4.125) / 48, 0.02);
    EXPECT_NEAR(exact.ratio, (16 + exact.bits) / 48, 0.02);
    EXPECT_LT(exact.bits, 16);
    EXPECT_TRUE(exact.equal) << "losses bit for bit zero3's";
    EXPECT_TRUE(rows["zero3-hpz"].equal);
    EXPECT_FALSE(rows["delta2"].equal);
    std::string steps = process::slurp(base_ + ".steps");
    EXPECT_EQ(15, std::count(steps.begin(), steps.end(), '\n'));
}

TEST_F(ZeroBench, RoundsAndSeeds)
{
    Result result = run({"--steps", "1", "--sets", "zero3,delta8", "--rounds", "2", "--seeds", "2",
                         "--metrics", base_ + ".steps"});
    ASSERT_EQ(0, result.code) << result.out << result.err;
    EXPECT_NE(std::string::npos, result.out.find("# round 1 of 2, delta8")) << result.out;
    EXPECT_NE(std::string::npos, result.out.find("(2 seeds)")) << result.out;
    std::string steps = process::slurp(base_ + ".steps"), lines = process::slurp(base_ + ".json");
    EXPECT_EQ(8, std::count(steps.begin(), steps.end(), '\n')) << "of both sets, seeds and rounds";
    EXPECT_NE(std::string::npos, steps.find("\"round\":2")) << steps;
    EXPECT_EQ(4, std::count(lines.begin(), lines.end(), '\n'));
}

/* What is compared with nothing has a dash. */
TEST_F(ZeroBench, AFigureThatCannotExistIsADash)
{
    Result result = run({"--steps", "1", "--sets", "delta8", "--set", "optimizer.type=Muon"});
    ASSERT_EQ(0, result.code) << result.out << result.err;
    EXPECT_NE(std::string::npos, process::slurp(base_ + ".json").find("optimizer.type=Muon"));
    EXPECT_EQ(std::string::npos, result.out.find("nan")) << result.out;
    EXPECT_NE(std::string::npos, result.out.find(" - ")) << result.out;
}

TEST_F(ZeroBench, TheSmallestModelIsNamedOnce)
{
    Result result = run({"--steps", "1", "--sets", "zero3,delta8", "--params", "100"});
    EXPECT_EQ(1, result.code);
    const size_t at = result.err.find("--params: 100 is too small");
    ASSERT_NE(std::string::npos, at) << result.err;
    EXPECT_EQ(std::string::npos, result.err.find("--params:", at + 1)) << result.err;
    const std::string least = result.err.substr(result.err.find("at least ", at) + 9);
    EXPECT_EQ(0, run({"--steps", "1", "--sets", "zero3", "--params", least.substr(0, least.find(' '))}).code);
    const std::string fewer = std::to_string(std::stoll(least) - 1);
    EXPECT_EQ(1, run({"--steps", "1", "--sets", "zero3", "--params", fewer}).code);
}

TEST(ZeroFlags, MistakesAreNamed)
{
    struct {
        std::vector<std::string> args;
        const char *said;
    } cases[] = {
        {{kTool, "--sets", "zero3,zero9"}, "there is no 'zero9'"},
        {{kTool, "--params", "1T"}, "argument --params: invalid count value: '1T'"},
        {{kTool, "--steps", "0"}, "--steps: at least 1"},
        {{kTool, "--tokens", "5", "--nodes", "3"}, "--tokens: 5 is too small: at least 6, one for each rank"},
        {{kTool, "--link", "fast"}, "--link: 'fast'"},
        {{kTool, "zero3"}, "unrecognized arguments: zero3"},
    };
    for (const auto &one : cases) {
        Result result = process::run(one.args);
        EXPECT_EQ(2, result.code);
        EXPECT_NE(std::string::npos, result.err.find(one.said)) << result.err;
    }
}

} // namespace
