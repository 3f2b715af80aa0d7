/* UCX where it is not, and what it says where it is. */
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/transport/ranks.h"
#include "transport/p2p.h"

namespace
{

constexpr double patience_sec = 50;

/* The program of a rank on a machine without UCX: it asks for a library that nobody has. */
class WithoutUcx : public testing::Test
{
  protected:
    void SetUp() override
    {
        std::string program = process::slurp(getenv("RANK_MAIN"));
        const std::string has = "libucp.so.0", lacks = "libucx.so.9";
        size_t n = 0;
        for (size_t at = program.find(has); at != std::string::npos; at = program.find(has, at + 1), n++) {
            program.replace(at, has.size(), lacks);
        }
        ASSERT_GE(n, 1u);
        path = testing::TempDir() + "/rank_main_without_ucx_" + std::to_string(getpid());
        std::ofstream(path, std::ios::binary) << program;
        std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    }
    void TearDown() override
    {
        unlink(path.c_str());
    }

    /* Two ranks, each alone on its node or both on one; who is not `without` has UCX. */
    std::vector<process::Result> run(bool shares_node, const Env &env, int without = -1) const
    {
        Ranks::Options options;
        options.arguments = {"contract"};
        options.env = env;
        options.rank_env = [=](int rank) {
            return shares_node ? Env{{"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", "2"}}
                               : Env{{"TW_NODE_ID", "node " + std::to_string(rank)},
                                     {"LOCAL_RANK", "0"},
                                     {"LOCAL_WORLD_SIZE", "1"}};
        };
        options.program = [=, this](int rank) {
            return without < 0 || rank == without ? path : std::string(getenv("RANK_MAIN"));
        };
        return Ranks(options).wait_all(patience_sec);
    }

    std::string path;
};

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

TEST_F(WithoutUcx, WhatGoesOverTcpNeedsNone)
{
    for (const process::Result &rank : run(false, {})) {
        EXPECT_EQ(rank.code, 0) << rank.out << rank.err;
        EXPECT_TRUE(has(rank.out, "ok")) << rank.out << rank.err;
        EXPECT_FALSE(has(rank.out, "UCX")) << rank.out;
    }
    for (const process::Result &rank : run(false, {}, 1)) {
        EXPECT_EQ(rank.code, 0) << rank.out << rank.err;
    }
}

TEST_F(WithoutUcx, WhoAsksForItIsTold)
{
    for (const process::Result &rank : run(true, {})) {
        EXPECT_EQ(rank.code, 2) << rank.out;
        EXPECT_TRUE(has(rank.err, "TW_NODE_TLS=posix,sysv,cma needs UCX (Debian: libucx0), which cannot be "
                                  "loaded: libucx.so.9: cannot open shared object file"))
            << rank.err;
    }
    for (const process::Result &rank : run(false, {{"TW_NET_TLS", "tcp,self"}})) {
        EXPECT_EQ(rank.code, 2) << rank.out;
        EXPECT_TRUE(has(rank.err, "TW_NET_TLS=tcp,self needs UCX (Debian: libucx0)")) << rank.err;
    }
}

/* All are told, and nobody waits. */
TEST_F(WithoutUcx, OneRankOfANode)
{
    const std::vector<process::Result> ranks = run(true, {}, 1);
    for (const process::Result &rank : ranks) {
        EXPECT_EQ(rank.code, 2) << rank.out << rank.err;
        EXPECT_TRUE(has(rank.err, "are on one node, and have UCX ")) << rank.err;
        EXPECT_TRUE(has(rank.err, " and none")) << rank.err;
    }
}

TEST_F(WithoutUcx, OneRankWithTransportsOfUcx)
{
    const std::vector<process::Result> ranks = run(false, {{"TW_NET_TLS", "tcp,self"}}, 0);
    EXPECT_TRUE(has(ranks[0].err, "TW_NET_TLS=tcp,self needs UCX")) << ranks[0].err;
    EXPECT_TRUE(has(ranks[1].err, "peer 0 failed: it could not start")) << ranks[1].err;
    EXPECT_EQ(ranks[0].code, 2);
    EXPECT_EQ(ranks[1].code, 2);
}

/* ---- what it says -------------------------------------------------------------------------------------- */

std::vector<process::Result> run_with_nonsense(const Env &env)
{
    Ranks::Options options;
    options.arguments = {"contract"};
    options.env = {{"TW_NODE_TLS", "posix,nonsense"}};
    options.env.insert(env.begin(), env.end());
    return Ranks(options).wait_all(patience_sec);
}

TEST(UcxLog, GoesToOurs)
{
    for (const process::Result &rank : run_with_nonsense({})) {
        EXPECT_TRUE(has(rank.err, "thinwire warn UCX: transport 'nonsense' is not available")) << rank.err;
        EXPECT_FALSE(has(rank.out + rank.err, "UCX  WARN")) << rank.out << rank.err;
    }
}

TEST(UcxLog, GoesToTheUsersFile)
{
    const std::string path = testing::TempDir() + "/ucx_log_" + std::to_string(getpid());
    for (const process::Result &rank : run_with_nonsense({{"UCX_LOG_FILE", path}})) {
        EXPECT_FALSE(has(rank.err, "UCX: transport")) << rank.err;
    }
    EXPECT_TRUE(has(process::slurp(path), "transport 'nonsense' is not available"));
    unlink(path.c_str());
}

/* Loading it leaves the process's signals to whoever has them. */
TEST(Ucx, LeavesSignalsAlone)
{
    struct sigaction own = {}, after = {};
    own.sa_handler = [](int) {};
    ASSERT_EQ(sigaction(SIGSEGV, &own, nullptr), 0);
    ASSERT_EQ(tw_p2p_ucx_is_there(), 1);
    ASSERT_EQ(sigaction(SIGSEGV, nullptr, &after), 0);
    EXPECT_EQ(after.sa_handler, own.sa_handler);
    EXPECT_EQ(tw_p2p_ucx_is_there(), 1);
}

} // namespace
