/* The programs that gpu_check runs under NCCL with our plugin, here on a stand-in for NCCL: over it there is
 * neither a log nor a collnet, but the interposer is the product's, but for the GPU. */
#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "tests/gpu/plugin_jobs.h"
#include "tests/plugin/interpose/preload.h"

namespace
{

using tw::gpu::find_plugin_job;
using tw::gpu::JobSpec;
using tw::gpu::plugin_jobs;
using tw::gpu::PluginCase;
using tw::gpu::PluginJob;
using tw::gpu::Verdict;

/* Of the command line. */
std::string interposer, net_plugin;

class PluginJobs : public testing::Test
{
  protected:
    void SetUp() override
    {
        char path[] = "/tmp/tw-plugin-jobs-XXXXXX";
        ASSERT_NE(mkdtemp(path), nullptr);
        folder = path;
    }
    void TearDown() override
    {
        std::filesystem::remove_all(folder);
    }
    std::vector<Verdict> run(PluginJob job, const std::vector<std::string> &how = {})
    {
        std::vector<std::string> argv = {"tests/gpu/sim_nccl_rank", job.name};
        argv.insert(argv.end(), how.begin(), how.end());
        const std::string own = folder + "/" + std::to_string(n_runs++);
        std::filesystem::create_directory(own);
        job.env["STANDIN_DIR"] = own;
        if (job.env.count("LD_PRELOAD") != 0) {
            job.env["LD_PRELOAD"] = preload_with(interposer);
        }
        if (job.env.count("TW_INTERPOSE") != 0) {
            job.env["STANDIN_NET_PLUGIN"] = net_plugin;
            job.env["LD_LIBRARY_PATH"] = std::filesystem::path(interposer).parent_path();
        }
        return run_job(plugin_spec_of(job, argv, own), [](const Verdict &) {});
    }
    static void expect_passed(const PluginJob &job, const std::vector<Verdict> &verdicts)
    {
        ASSERT_EQ(verdicts.size(), job.cases.size() + 1);
        for (size_t i = 0; i < verdicts.size(); i++) {
            const bool needs_log = i < job.cases.size() && job.cases[i].kind == PluginCase::logged;
            EXPECT_TRUE(verdicts[i].passed || needs_log || i == job.cases.size()) << verdicts[i].name << "\n"
                                                                                  << verdicts[i].why;
        }
    }
    std::string folder;
    int n_runs = 0;
};

TEST_F(PluginJobs, WhatThereIs)
{
    std::set<std::string> names;
    std::set<PluginCase::Kind> kinds;
    for (const PluginJob &job : plugin_jobs()) {
        std::set<std::string> cases;
        EXPECT_TRUE(names.insert(job.name).second) << job.name;
        EXPECT_EQ(find_plugin_job(job.name), &job);
        for (const PluginCase &each : job.cases) {
            EXPECT_TRUE(cases.insert(each.name).second) << job.name << ": " << each.name;
            EXPECT_EQ(job.victim >= 0, each.kind == PluginCase::death) << job.name;
            kinds.insert(each.kind);
        }
    }
    EXPECT_EQ(find_plugin_job("net"), nullptr);
    EXPECT_EQ(kinds.size(), (size_t)PluginCase::death + 1);
}

TEST_F(PluginJobs, EachRankIsAHost)
{
    std::set<std::string> hosts;
    JobSpec spec = plugin_spec_of(*find_plugin_job("net 4"), {"program"}, "/folder");
    ASSERT_EQ(spec.ranks.size(), 4u);
    for (auto &rank : spec.ranks) {
        hosts.insert(rank.env["NCCL_HOSTID"]);
        EXPECT_EQ(rank.env["NCCL_NET"], "Thinwire");
        EXPECT_EQ(rank.env.count("NCCL_TUNER_PLUGIN"), 0u) << "the net plugin's library has it";
    }
    EXPECT_EQ(hosts.size(), 4u);
}

TEST_F(PluginJobs, PlainOperations)
{
    const PluginJob &job = *find_plugin_job("net 4");
    expect_passed(job, run(job));
}

TEST_F(PluginJobs, UnderTheInterposer)
{
    for (const char *name : {"interposer 2, preloaded", "interposer 4, by the net plugin"}) {
        const PluginJob &job = *find_plugin_job(name);
        expect_passed(job, run(job));
    }
}

TEST_F(PluginJobs, ARankThatIsKilled)
{
    const PluginJob &job = *find_plugin_job("net 3, one killed");
    expect_passed(job, run(job));
}

TEST_F(PluginJobs, AWrongByteIsNoticed)
{
    const std::vector<Verdict> verdicts = run(*find_plugin_job("net 3, 4 streams"), {"flip"});
    EXPECT_FALSE(verdicts[0].passed);
    EXPECT_NE(verdicts[0].why.find("rank 1: element 0 of 3145728: "), std::string::npos) << verdicts[0].why;
    EXPECT_TRUE(verdicts[1].passed) << verdicts[1].why;
}

/* Without the interposer everything is plain, and without NCCL's log the plugin is not there. */
TEST_F(PluginJobs, WhatIsNotLoadedIsNoticed)
{
    PluginJob job = *find_plugin_job("interposer 4, by the net plugin");
    job.env.erase("TW_INTERPOSE");
    const std::vector<Verdict> verdicts = run(job);
    for (size_t i = 0; i < job.cases.size(); i++) {
        const PluginCase &each = job.cases[i];
        const bool shows = each.kind == PluginCase::gather || each.type == ncclFloat32;
        EXPECT_EQ(verdicts[i].passed, each.kind != PluginCase::logged && (each.codec.empty() || !shows))
            << each.name;
    }
    EXPECT_NE(verdicts[0].why.find(", not "), std::string::npos) << verdicts[0].why;
    EXPECT_NE(verdicts[4].why.find("nothing was encoded"), std::string::npos) << verdicts[3].why;
    EXPECT_NE(verdicts[8].why.find("no 'NET plugin Thinwire'"), std::string::npos) << verdicts[8].why;
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: test_plugin_jobs INTERPOSER NET_PLUGIN\n");
        return 2;
    }
    interposer = std::filesystem::absolute(argv[1]);
    net_plugin = std::filesystem::absolute(argv[2]);
    return RUN_ALL_TESTS();
}
