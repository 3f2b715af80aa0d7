/* Jobs of several processes with the interposer in front of a stand-in for NCCL. */
#include <filesystem>
#include <memory>
#include <regex>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/common/process.h"
#include "tests/plugin/interpose/preload.h"

namespace
{

/* Of the command line. */
std::string library, net_plugin, extension;
std::map<std::string, std::string> programs;

struct JobRun {
    std::string scenario;
    int world = 2, per_node = 1;
    std::map<std::string, std::string> env = {};
    std::string program = "job";
    bool preload = true;
    std::map<std::string, std::string> env_of_rank_1 = {};
    int rank_without = -1; /**< one that has none of `preload` and TW_INTERPOSE */
};

class Interpose : public testing::Test
{
  protected:
    void SetUp() override
    {
        char path[] = "/tmp/tw-interpose-XXXXXX";
        ASSERT_NE(mkdtemp(path), nullptr);
        dir = path;
    }
    void TearDown() override
    {
        std::filesystem::remove_all(dir);
    }

    /** What all ranks have said on stderr; each has ended well. */
    std::vector<std::string> run(const JobRun &what)
    {
        std::vector<std::unique_ptr<process::Child>> ranks;
        std::string folder = dir + "/" + std::to_string(n_runs++);
        port = process::free_port();
        std::filesystem::create_directory(folder);
        for (int r = 0; r < what.world; r++) {
            ranks.push_back(std::make_unique<process::Child>(spec_of(what, r, folder)));
        }
        std::vector<std::string> said;
        for (auto &rank : ranks) {
            process::Result result = rank->wait(90);
            EXPECT_EQ(result.code, 0) << what.program << " " << what.scenario << ": " << result.err;
            EXPECT_EQ(result.out, "ok\n") << what.program << " " << what.scenario << ": " << result.err;
            said.push_back(result.err);
        }
        return said;
    }

    process::Spec spec_of(const JobRun &what, int rank, const std::string &folder) const
    {
        process::Spec spec;
        spec.argv = {programs[what.program], what.scenario};
        spec.env = {{"RANK", std::to_string(rank)},
                    {"WORLD_SIZE", std::to_string(what.world)},
                    {"PER_NODE", std::to_string(what.per_node)},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", std::to_string(port)},
                    {"TW_NODE_ID", "node " + std::to_string(rank / what.per_node)},
                    {"STANDIN_DIR", folder},
                    {"TW_INTERPOSE_GATHERS", "int8"},
                    {"TW_INTERPOSE_SUMS", "int4"},
                    {"TW_INTERPOSE_MIN_BYTES", "256K"}};
        if (what.preload && rank != what.rank_without) {
            spec.env["LD_PRELOAD"] = preload_with(library);
        }
        for (const auto &all : {what.env, rank == 1 ? what.env_of_rank_1 : what.env}) {
            for (const auto &[name, value] : all) {
                spec.env[name] = value;
            }
        }
        if (rank == what.rank_without) {
            spec.env.erase("TW_INTERPOSE");
        }
        return spec;
    }

    std::string dir;
    int n_runs = 0, port = 1;
};

size_t count(const std::string &text, const std::string &what)
{
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        n++;
    }
    return n;
}

/** The numbers that follow some words, added up. */
uint64_t sum_of(const std::string &text, const std::string &words)
{
    uint64_t sum = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
        sum += strtoull(text.c_str() + at + words.size(), nullptr, 10);
    }
    return sum;
}

std::map<std::string, std::string> plugin_env()
{
    return {{"EXTENSION", extension},
            {"STANDIN_NET_PLUGIN", net_plugin},
            {"LD_LIBRARY_PATH", std::filesystem::path(library).parent_path()},
            {"TW_INTERPOSE", "1"}};
}

/* ---- calls --------------------------------------------------------------------------------------------- */

TEST_F(Interpose, GathersAndReductions)
{
    for (auto [world, per_node] : {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2), std::pair(3, 2)}) {
        run({"gathers", world, per_node});
        run({"reductions", world, per_node});
    }
}

TEST_F(Interpose, LeftAlone)
{
    for (const std::string &said : run({"left_alone"})) {
        EXPECT_EQ(count(said, "all-gather: 2 calls left alone: smaller than TW_INTERPOSE_MIN_BYTES"), 1u)
            << said;
        EXPECT_EQ(count(said, "all-gather: 2 calls left alone: neither bf16, fp16 nor fp32"), 1u) << said;
        EXPECT_EQ(count(said, "all-gather: 1 calls left alone: arguments that NCCL refuses"), 1u) << said;
        EXPECT_EQ(count(said, "reduce-scatter: 1 calls left alone: smaller than TW_INTERPOSE_MIN_BYTES"), 1u)
            << said;
        EXPECT_EQ(count(said, "reduce-scatter: 1 calls left alone: neither a sum nor a mean"), 1u) << said;
        EXPECT_EQ(count(said, "reduce-scatter: 1 calls left alone: its factor is"), 1u) << said;
        EXPECT_EQ(count(said, "all-reduce: 1 calls left alone: smaller than TW_INTERPOSE_MIN_BYTES"), 1u)
            << said;
        EXPECT_EQ(count(said, "all-reduce: 1 calls left alone: neither bf16"), 1u) << said;
        EXPECT_EQ(count(said, "all-reduce: 1 calls left alone: neither a sum"), 1u) << said;
        EXPECT_EQ(count(said, "all-reduce: 1 calls left alone: its factor is"), 1u) << said;
        EXPECT_EQ(count(said, "all-reduce: 1 calls left alone: arguments"), 1u) << said;
        EXPECT_EQ(count(said, "all-to-all: 1 calls left alone: all-to-all"), 1u) << said;
        EXPECT_EQ(count(said, "quantized"), 0u) << said;
    }
}

TEST_F(Interpose, ReportsTheBytesThatNcclSends)
{
    for (auto [world, per_node] : {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2)}) {
        for (const std::string &said : run({"bytes", world, per_node})) {
            EXPECT_EQ(count(said, "calls quantized"), 2u) << said;
            EXPECT_GT(sum_of(said, "sent "), 0u) << said;
            EXPECT_EQ(sum_of(said, "sent "), sum_of(said, "between nodes before, ")) << said;
            EXPECT_EQ(count(said, "(3 timed)"), 2u) << said;
        }
    }
}

/* Two nodes of one rank: a ring's bytes are the whole tensor's but the own shard's. */
TEST_F(Interpose, ReportsTheBytesOfARing)
{
    std::string said =
        run({"plain", 2, 1, {{"TW_INTERPOSE_GATHERS", "int8"}, {"TW_INTERPOSE_MIN_BYTES", "1G"}}})[0];
    EXPECT_EQ(count(said, "quantized"), 0u) << said;
    said = run({"gathers"})[0];
    EXPECT_NE(said.find("all-gather: 6 calls quantized, 1572864 bytes between nodes before"),
              std::string::npos)
        << said;
}

/* One value in 128 is 100 times as large as the others: how many of those are 0 then, as docs/nccl.md
 * says. */
TEST_F(Interpose, SumsBesideAnOutlier)
{
    const struct {
        const char *codec;
        uint64_t least, most;
    } codecs[] = {{"int4", 88, 94}, {"int4:block=32,hadamard", 1, 6}, {"int8:block=128,hadamard", 0, 2}};
    for (const auto &one : codecs) {
        for (const std::string &said : run({"outlier", 2, 1, {{"TW_INTERPOSE_SUMS", one.codec}}})) {
            EXPECT_EQ(count(said, "reduce-scatter: 1 calls quantized"), 1u) << said;
            EXPECT_EQ(count(said, "% of the others are 0"), 1u) << said;
            EXPECT_GE(sum_of(said, "beside an outlier "), one.least) << said;
            EXPECT_LE(sum_of(said, "beside an outlier "), one.most) << said;
        }
    }
}

TEST_F(Interpose, Groups)
{
    run({"groups", 2, 1});
    run({"groups", 4, 2});
    run({"groups_that_fail"});
}

TEST_F(Interpose, Configurations)
{
    for (const std::string &said : run({"configs"})) {
        EXPECT_EQ(count(said, "calls left alone: the call itself asks for plain"), 3u) << said;
    }
}

TEST_F(Interpose, Captured)
{
    for (const std::string &said : run({"captured"})) {
        EXPECT_EQ(count(said, "all-gather: 2 calls left alone: captured into a graph"), 1u) << said;
    }
}

TEST_F(Interpose, PolicyAtRunTime)
{
    run({"policy_at_run_time"});
}

TEST_F(Interpose, Streams)
{
    run({"streams", 3, 1});
}

/* ---- the policy ---------------------------------------------------------------------------------------- */

TEST_F(Interpose, PlainUnlessAsked)
{
    using Env = std::map<std::string, std::string>;
    for (const Env &env :
         {Env{{"TW_INTERPOSE_GATHERS", "plain"}}, Env{{"TW_INTERPOSE_GATHERS", "exact"}},
          Env{{"TW_INTERPOSE_GATHERS", ""}}, Env{{"TW_INTERPOSE_GATHERS", "int5"}},
          Env{{"TW_INTERPOSE_MIN_BYTES", "many"}}, Env{{"TW_INTERPOSE_SUMS", "int4:block=7"}}}) {
        std::string said = run({"plain", 2, 1, env})[0];
        bool is_wrong = env.begin()->second != "exact" && env.begin()->second != "plain";
        EXPECT_EQ(said.find("nothing is quantized") != std::string::npos, is_wrong) << said;
    }
    run({"plain", 2, 1, {}, "job", false});
}

/* TW_WEIGHTS and TW_GRADS are PyTorch's: who says them and not ours is told. */
TEST_F(Interpose, PyTorchsVariablesAreNotOurs)
{
    for (bool is_ours_set : {false, true}) {
        const std::map<std::string, std::string> env = {{"TW_WEIGHTS", "int4"},
                                                        {"TW_GRADS", "int4"},
                                                        {"TW_INTERPOSE_GATHERS", is_ours_set ? "plain" : ""},
                                                        {"TW_INTERPOSE_SUMS", is_ours_set ? "plain" : ""}};
        for (const std::string &said : run({"plain", 2, 1, env})) {
            EXPECT_EQ(count(said, "TW_WEIGHTS is for PyTorch's FSDP and DDP; the interposer reads "
                                  "TW_INTERPOSE_GATHERS"),
                      is_ours_set ? 0u : 1u)
                << said;
            EXPECT_EQ(count(said, "TW_GRADS is for PyTorch's FSDP and DDP; the interposer reads "
                                  "TW_INTERPOSE_SUMS"),
                      is_ours_set ? 0u : 1u)
                << said;
        }
    }
}

TEST_F(Interpose, RanksWithDifferentPolicies)
{
    std::vector<std::string> all =
        run({"left_to_nccl", 3, 1, {}, "job", true, {{"TW_INTERPOSE_SUMS", "int8"}}});
    for (const std::string &said : all) {
        EXPECT_EQ(count(said, "ranks 0 and 1 differ in the interposer's version"), &said == &all[0]) << said;
    }
    run({"left_to_nccl", 3, 1, {}, "job", true, {{"TW_INTERPOSE_GATHERS", "plain"}}});
    run({"left_to_nccl", 3, 1, {}, "job", true, {{"TW_INTERPOSE_MIN_BYTES", "1G"}}});
}

/* ---- a rank that lacks something ----------------------------------------------------------------------- */

/* NCCL does all of it, and no value is wrong: nobody sends anything that the job does not. */
TEST_F(Interpose, ARankWithoutTheLibrary)
{
    for (int without : {0, 1, 2}) {
        JobRun what = {"left_to_nccl", 3, 1};
        what.rank_without = without;
        std::vector<std::string> said = run(what);
        std::string all = said[0] + said[1] + said[2];
        std::string why =
            without == 0 ? "the process that made its id has no interposer"
                         : "between these ranks: rank " + std::to_string(without) + ": no interposer there";
        EXPECT_EQ(count(all, why), without == 0 ? 2u : 1u) << all;
        EXPECT_EQ(said[(size_t)without], "");
    }
}

TEST_F(Interpose, ARankWhoseDriverIsTooOld)
{
    for (const char *scenario : {"left_to_nccl", "unused"}) {
        JobRun what = {scenario, 3, 1, {}, "job", true, {{"STANDIN_NO_GPU", "1"}}};
        std::vector<std::string> said = run(what);
        EXPECT_EQ(count(said[0] + said[1] + said[2], "rank 1 cannot do it"), what.scenario != "unused");
    }
}

/* NCCL_COMM_ID: each rank makes the id by itself. */
TEST_F(Interpose, AnIdThatIsNotHandedOn)
{
    run({"left_to_nccl", 2, 1, {{"NCCL_COMM_ID", "127.0.0.1:12345"}}});
}

TEST_F(Interpose, CommunicatorsThatAreNotUsedMakeNoCalls)
{
    run({"unused", 3, 1});
}

TEST_F(Interpose, ReportsAsItGoes)
{
    std::string said = run({"gathers", 2, 1, {{"TW_REPORT_SEC", "1us"}}})[0];
    EXPECT_GE(count(said, "calls quantized"), 6u) << said;
}

/* ---- communicators ------------------------------------------------------------------------------------- */

TEST_F(Interpose, Communicators)
{
    run({"split", 4, 2});
    run({"shrink_and_grow", 3, 1});
    run({"other_ways"});
    run({"non_blocking"});
    run({"again_and_again"});
    run({"threads"});
    run({"split_later", 3, 1});
    run({"in_background", 3, 1});
}

TEST_F(Interpose, AHandleThatWasMovedBeforeNcclWasAsked)
{
    for (const std::string &said : run({"in_background_unasked"})) {
        EXPECT_EQ(count(said, "the job has not asked ncclCommGetAsyncError"), 1u) << said;
    }
}

/* As NCCL does, until an error, and without a bound in time. */
TEST_F(Interpose, WaitsForALateRank)
{
    std::vector<std::string> said = run({"late_rank"});
    EXPECT_EQ(count(said[0], "not all ranks of the communicator have come to its first call yet"), 1u)
        << said[0];
    /* a meeting that was given up keeps what a stream may still touch */
    run({"rank_never_comes", 2, 1, {{"LSAN_OPTIONS", "detect_leaks=0"}}});
}

TEST_F(Interpose, InsideANode)
{
    for (const std::string &said : run({"plain", 2, 2})) {
        EXPECT_EQ(said, "") << "a job of one node has nothing to hear";
    }
}

TEST_F(Interpose, OneProcess)
{
    std::string said = run({"one_process", 1, 1})[0];
    EXPECT_NE(said.find("are one process: each needs its own"), std::string::npos) << said;
    said = run({"one_thread", 2, 1})[0];
    EXPECT_NE(said.find("ranks 0 and 1 are one process"), std::string::npos) << said;
}

TEST_F(Interpose, EndsOfCommunicators)
{
    run({"rank_leaves", 3, 1});
    run({"abort_while_waiting"});
    /* a meeting that was given up keeps what a stream may still touch */
    run({"abort_in_mid_call", 2, 1, {{"LSAN_OPTIONS", "detect_leaks=0"}}});
    run({"revoked"});
}

TEST_F(Interpose, Failures)
{
    run({"meeting_fails"});
    run({"making_fails"});
}

TEST_F(Interpose, SaysOnceWhatGoesPastTheNetPlugin)
{
    for (const std::string &said : run({"bypasses"})) {
        EXPECT_EQ(count(said, "registers memory windows (ncclCommWindowRegister)"), 1u) << said;
        EXPECT_EQ(count(said, "kernels of the job communicate by themselves (ncclDevCommCreate)"), 1u)
            << said;
        EXPECT_EQ(count(said, "writes into other ranks' memory (ncclPutSignal"), 1u) << said;
    }
    EXPECT_EQ(count(run({"gathers"})[0], "past the net plugin"), 0u);
}

/* NCCL tells its net plugin nothing of it. */
TEST_F(Interpose, WhatNcclSealsThePluginSeals)
{
    std::map<std::string, std::string> env = plugin_env();
    env.erase("TW_INTERPOSE");
    for (const std::string &said : run({"sealed", 2, 1, env})) {
        EXPECT_EQ(count(said, "net: what is sent is sealed, as ncclSetEncryption asks"), 1u) << said;
        EXPECT_EQ(count(said, "a secret of"), 0u) << said;
    }
}

TEST_F(Interpose, Forks)
{
    for (const std::string &said : run({"forks"})) {
        EXPECT_EQ(count(said, "calls quantized"), 1u) << "a forked child reports nothing: " << said;
    }
}

/* ---- redirected ---------------------------------------------------------------------------------------- */

const std::vector<std::string> all_scenarios = {"gathers", "reductions", "left_alone",   "groups",
                                                "configs", "other_ways", "non_blocking", "rank_leaves"};

TEST_F(Interpose, RedirectedPrograms)
{
    for (const auto &[program, path] : programs) {
        std::map<std::string, std::string> env = {{"REDIRECT", library}};
        for (const std::string &scenario : all_scenarios) {
            run({scenario, 3, 1, env, program, false});
        }
    }
}

/* Preloaded already: there is nothing to change. */
TEST_F(Interpose, RedirectedTwice)
{
    process::Spec spec = spec_of({"gathers", 1, 1, {{"REDIRECT", library}}}, 0, dir);
    process::Result result = process::Child(spec).wait(60);
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.err.find("0 places"), std::string::npos) << result.err;
}

/* A library that a job opens later on. */
TEST_F(Interpose, LoadedLater)
{
    const std::map<std::string, std::string> env = {{"EXTENSION", extension}};
    run({"loaded_later", 2, 1, env});
    run({"joins_later", 2, 1, env});
    for (const auto &[program, path] : programs) {
        run({"loaded_later", 2, 1, {{"EXTENSION", extension}, {"REDIRECT", library}}, program, false});
    }
}

TEST_F(Interpose, RedirectionThatIsRefused)
{
    std::map<std::string, std::string> env = {{"EXTENSION", extension}, {"LIBRARY", library}};
    for (const char *object : {"program", "extension"}) {
        env["REFUSED"] = object;
        for (const std::string &said : run({"refused", 2, 1, env, "job", false})) {
            EXPECT_EQ(count(said, "the calls of this job cannot be redirected"), 1u) << said;
            EXPECT_EQ(count(said, "(Operation not permitted); nothing is quantized"), 1u) << said;
            EXPECT_EQ(count(said, "calls quantized"), 0u) << said;
        }
    }
    for (const std::string &said : run({"refused_later", 2, 1, env, "job", false})) {
        EXPECT_EQ(count(said, "objects that were loaded later cannot be redirected"), 1u) << said;
        EXPECT_EQ(count(said, "all-gather: 1 calls quantized"), 1u) << said;
    }
}

/* As PyTorch's job has it: nothing but variables. */
TEST_F(Interpose, OpenedByTheNetPlugin)
{
    const std::map<std::string, std::string> env = plugin_env();
    for (const auto &[program, path] : programs) {
        for (const std::string &said : run({"gathers", 2, 1, env, program, false})) {
            EXPECT_EQ(count(said, "calls of NCCL redirected"), 1u) << said;
            EXPECT_EQ(count(said, "calls quantized"), 1u) << said;
        }
        run({"reductions", 2, 1, env, program, false});
        run({"split", 4, 2, env, program, false});
        run({"loaded_later", 2, 1, env, program, false});
        for (const std::string &said : run({"joins_later", 2, 1, env, program, false})) {
            EXPECT_EQ(count(said, "redirected, of objects that were loaded later"), 1u) << said;
        }
    }
}

TEST_F(Interpose, NotOpenedByTheNetPlugin)
{
    std::map<std::string, std::string> env = {{"STANDIN_NET_PLUGIN", net_plugin}};
    std::string said = run({"plain", 2, 1, env, "job", false})[0];
    EXPECT_EQ(said.find("TW_INTERPOSE"), std::string::npos) << "nobody has asked: " << said;
    env["TW_INTERPOSE"] = "1";
    for (const char *value : {"1", "perhaps"}) { /* there is no library; that is no answer */
        env["TW_INTERPOSE"] = value;
        process::Result result = process::Child(spec_of({"plain", 1, 1, env, "job", false}, 0, dir)).wait(60);
        EXPECT_NE(result.code, 0);
        EXPECT_NE(result.err.find("TW_INTERPOSE is set and cannot be done here"), std::string::npos)
            << result.err;
        EXPECT_NE(result.err.find("the net plugin does not begin"), std::string::npos) << result.err;
        EXPECT_EQ(count(result.err, "] NCCL WARN thinwire: TW_INTERPOSE is set and cannot"), 1u)
            << "NCCL's log shows nothing unless it is asked: " << result.err;
    }
}

/* A program that finds NCCL's functions by itself: there is nothing to change. */
TEST_F(Interpose, NothingToRedirect)
{
    std::map<std::string, std::string> env = plugin_env();
    env["LD_PRELOAD"] = preload_with(library);
    for (const std::string &said : run({"gathers", 2, 1, env, "job", false})) {
        EXPECT_EQ(count(said, "calls quantized"), 1u) << said;
        EXPECT_EQ(count(said, "redirected"), 0u) << said;
    }
}

/* TW_INTERPOSE was not exported on one rank. */
TEST_F(Interpose, ARankThatTheNetPluginDoesNotRedirect)
{
    for (int without : {0, 1, 2}) {
        JobRun what = {"left_to_nccl", 3, 1, plugin_env(), "job", false};
        what.env["TW_JOIN_TIMEOUT"] = "2s";
        what.rank_without = without;
        std::vector<std::string> said = run(what);
        std::string all = said[0] + said[1] + said[2];
        std::string why =
            without == 0 ? "that of rank 0 is not reached"
                         : "between these ranks: rank " + std::to_string(without) + ": no interposer there";
        EXPECT_EQ(count(all, why), without == 0 ? 2u : 1u) << all;
    }
}

/* It was exported on one rank alone: that one says so where NCCL's log shows nothing, and what it left. */
TEST_F(Interpose, ARankAloneIsRedirected)
{
    JobRun what = {"left_to_nccl", 3, 1, {}, "job", false, {}};
    what.env = plugin_env();
    what.env.erase("TW_INTERPOSE");
    what.env["TW_JOIN_TIMEOUT"] = "2s";
    what.env_of_rank_1["TW_INTERPOSE"] = "1";
    std::vector<std::string> said = run(what);
    EXPECT_EQ(count(said[1], "] NCCL INFO thinwire: nothing is quantized between ranks that NCCL had"), 1u)
        << said[1];
    EXPECT_EQ(count(said[1], "] NCCL INFO thinwire: rank 1: all-gather: 2 calls left alone: not all ranks"),
              1u)
        << said[1];
}

/* No launcher's variables: what was made before the interposer came is left alone, on all ranks. */
TEST_F(Interpose, RedirectedWithoutALauncher)
{
    JobRun what = {"left_to_nccl", 2, 1, plugin_env(), "job", false};
    what.env["MASTER_ADDR"] = "";
    for (const std::string &said : run(what)) {
        EXPECT_EQ(count(said,
                        "] NCCL INFO thinwire: communicators that were made before the interposer came are "
                        "left alone: "),
                  1u)
            << said;
        EXPECT_EQ(count(said, "LD_PRELOAD needs none"), 1u) << said;
        EXPECT_EQ(count(said, ": all-gather: 2 calls left alone: not all ranks have the interposer"), 1u)
            << said;
    }
}

/* ---- what is said -------------------------------------------------------------------------------------- */

/** Lines that do not begin as one of NCCL's on stderr, but for what sanitizers may say. */
std::vector<std::string> lines_of_another_form(const std::string &said)
{
    static const std::regex form("[^ ]+:[0-9]+:[0-9]+ \\[7\\] NCCL (INFO|WARN) thinwire: .+");
    std::vector<std::string> others;
    std::istringstream lines(said);
    for (std::string line; std::getline(lines, line);) {
        if (!std::regex_match(line, form)) {
            others.push_back(line);
        }
    }
    return others;
}

TEST_F(Interpose, LinesOnStderrAreInNcclsForm)
{
    for (const std::string &said : run({"plain", 2, 1, {{"TW_INTERPOSE_MIN_BYTES", "many"}}})) {
        EXPECT_EQ(count(said, "[7] NCCL WARN thinwire: nccl: nothing is quantized"), 1u) << said;
        EXPECT_TRUE(lines_of_another_form(said).empty()) << said;
    }
    for (const std::string &said : run({"gathers"})) {
        EXPECT_EQ(count(said, "[7] NCCL INFO thinwire: rank "), 2u) << said;
        EXPECT_TRUE(lines_of_another_form(said).empty()) << said;
    }
}

/* A report is for everybody to see: NCCL's log has it where that shows such lines. */
TEST_F(Interpose, LinesGoToNcclsLogWhereThereIsOne)
{
    std::map<std::string, std::string> env = plugin_env();
    for (bool preload : {false, true}) {
        env["TW_INTERPOSE"] = preload ? "0" : "1";
        env["NCCL_DEBUG"] = "info";
        for (const std::string &said : run({"gathers", 2, 1, env, "job", preload})) {
            EXPECT_EQ(count(said, "log of NCCL: thinwire: rank "), 2u) << said;
            EXPECT_EQ(count(said, "] NCCL "), 0u) << said;
        }
        env["NCCL_DEBUG"] = "WARN";
        for (const std::string &said : run({"gathers", 2, 1, env, "job", preload})) {
            EXPECT_EQ(count(said, "log of NCCL: thinwire: rank "), 0u) << said;
            EXPECT_EQ(count(said, "[7] NCCL INFO thinwire: rank "), 2u) << said;
        }
    }
    env = plugin_env();
    env["MASTER_ADDR"] = "";
    env["NCCL_DEBUG"] = "INFO";
    for (const std::string &said : run({"left_to_nccl", 2, 1, env, "job", false})) {
        EXPECT_EQ(count(said, "log of NCCL: thinwire: communicators that were made before"), 1u) << said;
        EXPECT_EQ(count(said, "] NCCL "), 0u) << said;
    }
}

/* By the interposer or by the plugin, which are two libraries of one process. */
TEST_F(Interpose, AMisspeltVariableIsNamedOnce)
{
    std::map<std::string, std::string> misspelt = {{"TW_INTERPOSE_MIN_BITES", "1M"}}, env = plugin_env();
    const std::string words =
        "config: unknown variable TW_INTERPOSE_MIN_BITES; did you mean TW_INTERPOSE_MIN_BYTES?";
    for (const std::string &said : run({"gathers", 2, 1, misspelt})) {
        EXPECT_EQ(count(said, "NCCL WARN thinwire: " + words), 1u) << said;
    }
    env.merge(misspelt);
    env["NCCL_DEBUG"] = "warn";
    for (const std::string &said : run({"gathers", 2, 1, env, "job", false})) {
        EXPECT_EQ(count(said, "log of NCCL: thinwire: " + words), 1u) << said;
        EXPECT_EQ(count(said, words), 1u) << said;
    }
    for (const std::string &said : run({"gathers", 2, 1, env})) {
        EXPECT_EQ(count(said, words), 1u) << said;
    }
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc < 5) {
        fprintf(stderr, "usage: test_interpose LIBRARY NET_PLUGIN EXTENSION JOB...\n");
        return 2;
    }
    library = std::filesystem::absolute(argv[1]);
    net_plugin = std::filesystem::absolute(argv[2]);
    extension = std::filesystem::absolute(argv[3]);
    for (int i = 4; i < argc; i++) {
        std::filesystem::path path = std::filesystem::absolute(argv[i]);
        programs[path.filename()] = path;
    }
    return RUN_ALL_TESTS();
}
