/* A rank that is killed, stopped or cut off in the middle of training: all others end, and name it. */
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/common/process.h"

/* The process on this machine that has both in its environment; 0: none, or it is dead. */
static pid_t find_rank(const std::string &mark, const std::string &rank)
{
    pid_t found = 0;
    DIR *folder = opendir("/proc");
    for (dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        std::string environment =
            std::string(1, '\0') + process::slurp(std::string("/proc/") + entry->d_name + "/environ");
        std::string one('\0' + mark + '\0'), other('\0' + rank + '\0');
        if (environment.find(one) != std::string::npos && environment.find(other) != std::string::npos) {
            found = (pid_t)atoi(entry->d_name);
        }
    }
    closedir(folder);
    return found;
}

struct Fault {
    const char *name;
    int signal; /* 0: the link goes down */
};

class TrainFault : public ::testing::TestWithParam<Fault>
{
  protected:
    const std::string mark_ = "TW_CLUSTER_TEST_MARK=" + std::to_string(getpid());
    static constexpr int kVictim = 1;

    pid_t rank(int number) const
    {
        return find_rank(mark_, "RANK=" + std::to_string(number));
    }
    static std::string text()
    {
        const char *folder = getenv("TEST_TMPDIR");
        std::string path = std::string(folder ? folder : "/tmp") + "/faults.txt";
        std::ofstream file(path);
        for (int i = 0; i < 900; i++) {
            file << "And the waters prevailed exceedingly upon the earth; " << i * i << ".\n";
        }
        return path;
    }
    /** Three nodes that would train for hours. */
    static process::Spec job()
    {
        process::Spec spec;
        spec.argv = {"trainer/train",    "--link", "none",   "--nodes", "3",
                     "--ranks-per-node", "1",      "--data", text()};
        for (const char *set : {"model.n_embd=32", "model.n_layer=2", "thinwire.sequence_length=16",
                                "thinwire.steps=1000000", "steps_per_print=1"}) {
            spec.argv.emplace_back("--set");
            spec.argv.emplace_back(set);
        }
        spec.env = {{"TW_CLUSTER_TEST_MARK", std::to_string(getpid())}, {"TW_PEER_TIMEOUT", "2s"}};
        return spec;
    }
    static void strike(pid_t victim)
    {
        if (GetParam().signal != 0) {
            ASSERT_EQ(kill(victim, GetParam().signal), 0);
            return;
        }
        process::Result result = process::run(
            {"nsenter", "-t", std::to_string(victim), "-n", "ip", "link", "set", "eth0", "down"});
        ASSERT_EQ(result.code, 0) << result.err;
    }
};

/* The box ends what is left TW_PEER_TIMEOUT + 5 s after the first end: here it must find nothing to end but a stopped rank,
 * which cannot end by itself. */
TEST_P(TrainFault, EndsAllOthersWhichNameIt)
{
    process::Child child(job());
    for (int i = 0; i < 600 && child.out().find("step 5/") == std::string::npos; i++) {
        process::listen({&child}, 100);
    }
    ASSERT_NE(child.out().find("step 5/"), std::string::npos) << child.err();
    pid_t victim = rank(kVictim);
    ASSERT_GT(victim, 0);
    ASSERT_NO_FATAL_FAILURE(strike(victim));
    for (int i = 0; i < 300 && (rank(0) > 0 || rank(2) > 0); i++) {
        process::listen({&child}, 100);
    }
    EXPECT_EQ(rank(0), 0);
    EXPECT_EQ(rank(2), 0);
    if (GetParam().signal == SIGSTOP) {
        EXPECT_EQ(rank(kVictim), victim) << "the others ended because the box ended all";
    }
    process::Result result = child.wait(60);
    EXPECT_TRUE(result.in_time);
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("rank 0: peer 1 failed"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("rank 2: peer 1 failed"), std::string::npos) << result.err;
}

INSTANTIATE_TEST_SUITE_P(, TrainFault,
                         ::testing::Values(Fault{"Killed", SIGKILL}, Fault{"Stopped", SIGSTOP},
                                           Fault{"CutOff", 0}),
                         [](const auto &fault) { return std::string(fault.param.name); });
