/* The job from each launcher's variables, and what is said when they make no sense. */
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "tests/common/fixture.h"
#include "transport/transport.h"

namespace
{

using Vars = std::initializer_list<std::pair<const char *, const char *>>;

/* Starts without any launcher's variables, also when the test itself runs under one. */
class JobEnv : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        for (const char *name : {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "TORCHELASTIC_RESTART_COUNT",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "OMPI_MCA_orte_hnp_uri",
                                 "OMPI_MCA_ess_base_jobid",
                                 "OMPI_MCA_orte_precondition_transports",
                                 "PMIX_NAMESPACE",
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 "PMI_JOBID",
                                 "PMI_ID",
                                 "MPI_LOCALRANKID",
                                 "MPI_LOCALNRANKS",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_NODEID",
                                 "SLURM_STEP_TASKS_PER_NODE",
                                 "SLURM_STEP_NODELIST",
                                 "SLURM_NODELIST",
                                 "SLURM_JOB_NODELIST",
                                 "SLURM_LAUNCH_NODE_IPADDR",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEPID",
                                 "TW_JOB_TOKEN",
                                 "TW_RENDEZVOUS_PORT"}) {
            put(name, nullptr);
        }
    }
    void put(const char *name, const char *value)
    {
        set_env(name, value ? std::optional<std::string>(value) : std::nullopt);
    }
    tw_status_t read(Vars vars)
    {
        for (const auto &var : vars) {
            put(var.first, var.second);
        }
        return tw_job_from_env(&job);
    }
    void expect_ranks(int rank, int world, int local_rank, int local_world)
    {
        EXPECT_EQ(job.rank, rank);
        EXPECT_EQ(job.world, world);
        EXPECT_EQ(job.local_rank, local_rank);
        EXPECT_EQ(job.local_world, local_world);
    }
    tw_job_t job;
};

TEST_F(JobEnv, NoLauncherIsAJobOfOne)
{
    EXPECT_EQ(tw_job_launched(), 0);
    EXPECT_EQ(read({}), TW_OK);
    expect_ranks(0, 1, 0, 1);
    EXPECT_STREQ(job.launcher, "single");
}

TEST_F(JobEnv, Torchrun)
{
    EXPECT_EQ(read({{"RANK", "3"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "node7"},
                    {"MASTER_PORT", "29500"},
                    {"TW_JOB_TOKEN", "a secret"}}),
              TW_OK);
    EXPECT_EQ(tw_job_launched(), 1);
    expect_ranks(3, 8, 1, 2);
    EXPECT_STREQ(job.launcher, "torchrun");
    EXPECT_STREQ(job.master_addr, "node7");
    EXPECT_EQ(job.master_port, 29501);
    EXPECT_STREQ(job.token, "a secret");
}

TEST_F(JobEnv, AnIpv6AddressInBrackets)
{
    for (const char *host : {"[fd77::1]", "fd77::1"}) {
        EXPECT_EQ(read({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", host}, {"MASTER_PORT", "29500"}}),
                  TW_OK);
        EXPECT_STREQ(job.master_addr, "fd77::1");
    }
}

TEST_F(JobEnv, RendezvousPortWins)
{
    EXPECT_EQ(read({{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "::1"},
                    {"MASTER_PORT", "29500"},
                    {"TW_RENDEZVOUS_PORT", "4242"}}),
              TW_OK);
    EXPECT_EQ(job.master_port, 4242);
    expect_ranks(1, 2, -1, -1);
}

TEST_F(JobEnv, OpenMpiOnOneHost)
{
    EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                    {"OMPI_MCA_orte_hnp_uri", "1.0;tcp://192.0.2.2:46787"},
                    {"OMPI_MCA_ess_base_jobid", "567017473"}}),
              TW_OK);
    expect_ranks(1, 2, 1, 2);
    EXPECT_STREQ(job.launcher, "openmpi");
    EXPECT_STREQ(job.master_addr, "127.0.0.1");
    EXPECT_GE(job.master_port, 20000);
    EXPECT_LT(job.master_port, 32000);
}

TEST_F(JobEnv, OpenMpiOnSeveralHosts)
{
    EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "3"},
                    {"OMPI_COMM_WORLD_SIZE", "4"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                    {"OMPI_MCA_orte_hnp_uri", "1.0;tcp://192.0.2.2,10.1.1.1:46787"}}),
              TW_OK);
    EXPECT_STREQ(job.master_addr, "192.0.2.2");
    EXPECT_EQ(read({{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}), TW_OK);
    EXPECT_STREQ(job.master_addr, "head");
    EXPECT_EQ(job.master_port, 1235);
}

TEST_F(JobEnv, Pmi)
{
    EXPECT_EQ(
        read({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}}),
        TW_OK);
    expect_ranks(0, 3, 0, 3);
    EXPECT_STREQ(job.launcher, "pmi");
    EXPECT_STREQ(job.master_addr, "127.0.0.1");
    put("MPI_LOCALNRANKS", "1");
    expect_log("set MASTER_ADDR to its host");
    EXPECT_EQ(tw_job_from_env(&job), TW_ERR_CONFIG);
}

TEST_F(JobEnv, Slurm)
{
    EXPECT_EQ(read({{"SLURM_PROCID", "5"},
                    {"SLURM_NTASKS", "64"},
                    {"SLURM_STEP_NUM_TASKS", "6"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "2"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1,1"},
                    {"SLURM_STEP_NODELIST", "node[03-04,9]"},
                    {"SLURM_JOB_NODELIST", "other[1-8]"},
                    {"SLURM_JOB_ID", "77"},
                    {"SLURM_STEP_ID", "4"}}),
              TW_OK);
    expect_ranks(5, 6, 0, 1);
    EXPECT_STREQ(job.launcher, "slurm");
    EXPECT_STREQ(job.master_addr, "node03");
    const int port = job.master_port;
    const std::string token = job.token;
    EXPECT_NE(token.find("77.4"), std::string::npos);
    put("SLURM_STEP_ID", "5");
    EXPECT_EQ(tw_job_from_env(&job), TW_OK);
    EXPECT_NE(job.master_port, port);
    EXPECT_NE(job.token, token);

    put("SLURM_STEP_NODELIST", nullptr);
    EXPECT_EQ(tw_job_from_env(&job), TW_OK);
    EXPECT_STREQ(job.master_addr, "other1");
    put("SLURM_JOB_NODELIST", nullptr);
    put("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9");
    EXPECT_EQ(tw_job_from_env(&job), TW_OK);
    EXPECT_STREQ(job.master_addr, "10.0.0.9");
}

TEST_F(JobEnv, AnAllocationIsNoJob)
{
    EXPECT_EQ(read({{"SLURM_NTASKS", "64"}, {"SLURM_JOB_ID", "77"}}), TW_OK);
    EXPECT_STREQ(job.launcher, "single");
    /* what sbatch's script has, before any srun */
    EXPECT_EQ(read({{"SLURM_PROCID", "0"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "0"},
                    {"SLURM_NTASKS", "64"},
                    {"SLURM_JOB_ID", "77"}}),
              TW_OK);
    EXPECT_STREQ(job.launcher, "single");
    EXPECT_FALSE(tw_job_launched());
}

TEST_F(JobEnv, TheOuterLauncherGivesWay)
{
    EXPECT_EQ(read({{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "1"},
                    {"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
              TW_OK);
    EXPECT_STREQ(job.launcher, "openmpi");
    EXPECT_EQ(read({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "h"}}), TW_OK);
    EXPECT_STREQ(job.launcher, "torchrun");
}

TEST_F(JobEnv, ADerivedTokenIsTheJobsOwn)
{
    const Vars vars = {
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"TORCHELASTIC_RUN_ID", "run-a"}};
    EXPECT_EQ(read(vars), TW_OK);
    const std::string token = job.token;
    EXPECT_EQ(read({{"TORCHELASTIC_RESTART_COUNT", "1"}}), TW_OK);
    EXPECT_NE(job.token, token);
    EXPECT_EQ(read({{"TORCHELASTIC_RESTART_COUNT", nullptr}, {"TORCHELASTIC_RUN_ID", "run-b"}}), TW_OK);
    EXPECT_NE(job.token, token);
    expect_log("guards the rendezvous against accidents");
    EXPECT_EQ(read({{"TORCHELASTIC_RUN_ID", "run-a"}, {"RANK", "0"}}), TW_OK);
    EXPECT_EQ(job.token, token);
}

TEST_F(JobEnv, RefusesHalfASet)
{
    expect_log("WORLD_SIZE is not set");
    EXPECT_EQ(read({{"RANK", "0"}}), TW_ERR_CONFIG);
    expect_log("RANK is not set");
    EXPECT_EQ(read({{"RANK", nullptr}, {"WORLD_SIZE", "2"}}), TW_ERR_CONFIG);
    expect_log("MASTER_ADDR is not set");
    EXPECT_EQ(read({{"RANK", "0"}}), TW_ERR_CONFIG);
    EXPECT_EQ(read({{"WORLD_SIZE", "1"}}), TW_OK);
}

TEST_F(JobEnv, RefusesWhatMakesNoSense)
{
    const Vars good = {{"RANK", "1"},        {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
    const std::pair<const char *, const char *> bad[] = {
        {"RANK", "4"},
        {"RANK", "-1"},
        {"RANK", "one"},
        {"RANK", "1 "},
        {"WORLD_SIZE", "0"},
        {"WORLD_SIZE", "1e3"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "5"},
        {"MASTER_PORT", "0"},
        {"MASTER_PORT", "x"},
        {"MASTER_PORT", "65535"},
        {"WORLD_SIZE", "99999999999999999999"},
    };
    for (const auto &var : bad) {
        EXPECT_EQ(read(good), TW_OK);
        expect_log(var.first);
        EXPECT_EQ(read({var}), TW_ERR_CONFIG) << var.first << "=" << var.second;
    }
    EXPECT_EQ(read(good), TW_OK);
    expect_log("too long");
    EXPECT_EQ(read({{"MASTER_ADDR", std::string(256, 'h').c_str()}}), TW_ERR_CONFIG);
    expect_log("TW_JOB_TOKEN");
    EXPECT_EQ(read({{"MASTER_ADDR", "h"}, {"TW_JOB_TOKEN", std::string(256, 't').c_str()}}), TW_ERR_CONFIG);
    EXPECT_EQ(read({{"TW_JOB_TOKEN", std::string(255, 't').c_str()}}), TW_OK);
    EXPECT_EQ(strlen(job.token), 255u);
}

} // namespace
