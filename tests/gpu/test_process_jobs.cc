/* The jobs of processes that gpu_check runs on a GPU, on simulated ones: over UCX as they are, over NCCL
 * their operations. */
#include <set>

#include "tests/collectives/gpu/world.h"
#include "tests/common/fixture.h"
#include "tests/gpu/process_jobs.h"

namespace
{

using tw::gpu::find_process_job;
using tw::gpu::JobSpec;
using tw::gpu::process_jobs;
using tw::gpu::ProcessCase;
using tw::gpu::ProcessJob;
using tw::gpu::Verdict;

class ProcessJobs : public tw::Fixture
{
  protected:
    static std::vector<Verdict> run(const ProcessJob &job, const std::vector<std::string> &how = {},
                                    double case_sec = 60)
    {
        std::vector<std::string> argv = {"tests/gpu/sim_rank", job.name};
        argv.insert(argv.end(), how.begin(), how.end());
        JobSpec spec = spec_of(job, argv);
        spec.limits.case_sec = case_sec;
        return run_job(spec, [](const Verdict &) {});
    }
};

TEST_F(ProcessJobs, WhatThereIs)
{
    std::set<std::string> names, ops;
    size_t n_deaths[2] = {}, n_graphs = 0;
    for (const ProcessJob &job : process_jobs()) {
        std::set<std::string> cases;
        EXPECT_TRUE(names.insert(job.name).second) << job.name;
        EXPECT_EQ(find_process_job(job.name), &job);
        for (const ProcessCase &each : job.cases) {
            EXPECT_TRUE(cases.insert(each.name).second) << each.name;
            EXPECT_EQ(job.victim >= 0, each.kind == ProcessCase::death) << job.name;
            n_deaths[job.over_nccl] += each.kind == ProcessCase::death;
            n_graphs += each.kind == ProcessCase::graph;
            EXPECT_TRUE(job.over_nccl || each.kind == ProcessCase::compare ||
                        each.kind == ProcessCase::death);
        }
    }
    EXPECT_EQ(find_process_job("ucx"), nullptr);
    EXPECT_EQ(n_deaths[0], 2u);
    EXPECT_EQ(n_deaths[1], 2u);
    EXPECT_EQ(n_graphs, 6u);
}

/* Ours are two nodes of two ranks; to NCCL every rank is a host. */
TEST_F(ProcessJobs, RanksAndHosts)
{
    const JobSpec spec = spec_of(*find_process_job("nccl 2+2"), {"program"});
    std::set<std::string> hosts, nodes, ports;
    ASSERT_EQ(spec.ranks.size(), 4u);
    for (size_t r = 0; r < 4; r++) {
        std::map<std::string, std::string> env = spec.ranks[r].env;
        EXPECT_EQ(env["RANK"], std::to_string(r));
        EXPECT_EQ(env["LOCAL_RANK"], std::to_string(r % 2));
        EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "2");
        hosts.insert(env["NCCL_HOSTID"]);
        nodes.insert(env["TW_NODE_ID"]);
        ports.insert(env["TW_RENDEZVOUS_PORT"] + env["TW_JOB_TOKEN"]);
    }
    EXPECT_EQ(hosts.size(), 4u);
    EXPECT_EQ(nodes.size(), 2u);
    EXPECT_EQ(ports.size(), 1u);
    EXPECT_EQ(spec_of(*find_process_job("ucx 2+2"), {"program"}).ranks[0].env.count("NCCL_HOSTID"), 0u);
}

TEST_F(ProcessJobs, OverUcx)
{
    for (const ProcessJob &job : process_jobs()) {
        if (job.over_nccl) {
            continue;
        }
        for (const Verdict &verdict : run(job)) {
            EXPECT_TRUE(verdict.passed) << verdict.name << "\n" << verdict.why;
        }
    }
}

TEST_F(ProcessJobs, AWrongByteIsNoticed)
{
    const std::vector<Verdict> verdicts = run(*find_process_job("ucx 1+1+1"), {"flip"});
    EXPECT_FALSE(verdicts[0].passed);
    EXPECT_EQ(verdicts[0].why.find("rank 1: segment 0, byte 0 of "), 0u) << verdicts[0].why;
    for (size_t i = 1; i < verdicts.size(); i++) {
        EXPECT_TRUE(verdicts[i].passed) << verdicts[i].name << "\n" << verdicts[i].why;
    }
}

TEST_F(ProcessJobs, AHangIsNoticed)
{
    const std::vector<Verdict> verdicts = run(*find_process_job("ucx 1+1+1"), {"hang"}, 2);
    EXPECT_FALSE(verdicts[0].passed);
    EXPECT_NE(verdicts[0].why.find("rank 1 hangs"), std::string::npos) << verdicts[0].why;
    EXPECT_FALSE(verdicts[1].passed);
}

/* What is captured is what is run here. */
TEST_F(ProcessJobs, OperationsOverNccl)
{
    set_env("TW_COLL_CHUNK", "8K");
    for (const ProcessJob &job : process_jobs()) {
        if (!job.over_nccl || job.victim >= 0) {
            continue;
        }
        tw::World world(tw::nodes_of(job.grid));
        tw::GpuWorld gpu(tw::nodes_of(job.grid));
        for (const ProcessCase &each : job.cases) {
            tw::Case c = each.c;
            const std::vector<tw::RankBuffers> got = gpu.run(c);
            EXPECT_EQ(gpu.plan(0).algo, c.algo);
            EXPECT_EQ(gpu.plan(0).quantized, !c.codec.empty());
            c.algo = c.algo == "native" ? "direct" : c.algo;
            if (each.kind != ProcessCase::native) {
                expect_same(c, got, run_case(world, c));
            }
        }
    }
}

} // namespace
