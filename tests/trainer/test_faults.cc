/* A rank that is killed, stopped or cut off in the middle of training: all others end in time, by themselves,
 * and name it. */
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

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

/** A process that is no child of ours: it has ended when its descriptor can be read, whoever reaps it. */
class Process
{
  public:
    explicit Process(pid_t pid) : pid_(pid), fd_(pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1)
    {
    }
    Process(const Process &) = delete;
    Process &operator=(const Process &) = delete;
    ~Process()
    {
        close(fd_);
    }
    pid_t pid() const
    {
        return pid_;
    }
    bool is_there() const
    {
        return fd_ >= 0;
    }
    bool has_ended() const
    {
        pollfd end = {fd_, POLLIN, 0};
        return poll(&end, 1, 0) == 1;
    }

  private:
    pid_t pid_;
    int fd_;
};

struct Fault {
    const char *name;
    int signal; /* 0: the link of its node goes down */
    int nodes, ranks_per_node, victim;
};

class TrainFault : public ::testing::TestWithParam<Fault>
{
  protected:
    using Clock = std::chrono::steady_clock;
    static constexpr double kPeerTimeoutSec = 5, kMoreSec = 5;

    std::vector<std::unique_ptr<Process>> ranks_;

    static int world()
    {
        return GetParam().nodes * GetParam().ranks_per_node;
    }
    /** Behind the link, if it is that which goes: all of its node's. */
    static bool is_victim(int rank)
    {
        int l = GetParam().ranks_per_node, victim = GetParam().victim;
        return GetParam().signal != 0 ? rank == victim : rank / l == victim / l;
    }
    static std::string text()
    {
        const char *folder = getenv("TEST_TMPDIR");
        std::string path =
            std::string(folder ? folder : "/tmp") + "/faults" + std::to_string(getpid()) + ".txt";
        std::ofstream file(path);
        for (int i = 0; i < 900; i++) {
            file << "And the waters prevailed exceedingly upon the earth; " << i * i << ".\n";
        }
        return path;
    }
    /** It would train for hours. */
    static process::Spec job()
    {
        process::Spec spec;
        spec.argv = {"trainer/train",
                     "--link",
                     "none",
                     "--nodes",
                     std::to_string(GetParam().nodes),
                     "--ranks-per-node",
                     std::to_string(GetParam().ranks_per_node),
                     "--data",
                     text()};
        for (const char *set : {"model.n_embd=32", "model.n_layer=2", "thinwire.sequence_length=16",
                                "thinwire.steps=1000000", "steps_per_print=1"}) {
            spec.argv.emplace_back("--set");
            spec.argv.emplace_back(set);
        }
        spec.env = {{"TW_CLUSTER_TEST_MARK", std::to_string(getpid())},
                    {"TW_LOG_LEVEL", "info"}, /* how each rank ended */
                    {"TW_PEER_TIMEOUT", std::to_string(kPeerTimeoutSec) + "s"}};
        return spec;
    }
    void find_ranks()
    {
        const std::string mark = "TW_CLUSTER_TEST_MARK=" + std::to_string(getpid());
        for (int r = 0; r < world(); r++) {
            ranks_.push_back(std::make_unique<Process>(find_rank(mark, "RANK=" + std::to_string(r))));
            ASSERT_TRUE(ranks_.back()->is_there()) << "rank " << r;
        }
    }
    void strike() const
    {
        pid_t victim = ranks_[(size_t)GetParam().victim]->pid();
        if (GetParam().signal != 0) {
            ASSERT_EQ(kill(victim, GetParam().signal), 0);
            return;
        }
        process::Result result = process::run(
            {"nsenter", "-t", std::to_string(victim), "-n", "ip", "link", "set", "eth0", "down"});
        ASSERT_EQ(result.code, 0) << result.err;
    }
    /** Whether all have ended that can: but a stopped one. */
    bool all_have_ended() const
    {
        for (int r = 0; r < world(); r++) {
            if (!ranks_[(size_t)r]->has_ended() && !(GetParam().signal == SIGSTOP && is_victim(r))) {
                return false;
            }
        }
        return true;
    }
    /** Seconds from the fault to the last one's end, or to when it is too late. */
    double strike_and_watch(process::Child *child)
    {
        Clock::time_point begin = Clock::now();
        double sec = 0;
        strike();
        while (!all_have_ended() && sec < 2 * (kPeerTimeoutSec + kMoreSec)) {
            process::listen({child}, 10);
            sec = std::chrono::duration<double>(Clock::now() - begin).count();
        }
        return sec;
    }
    /** Which of two links went nobody can know where there are two nodes: a rank at either end is named. */
    static bool may_name(int rank)
    {
        return is_victim(rank) || (GetParam().signal == 0 && GetParam().nodes == 2);
    }
    static std::string named_by(int rank, const std::string &log)
    {
        std::string names;
        for (int other = 0; other < world(); other++) {
            std::string who =
                other == rank ? ": this rank failed" : ": peer " + std::to_string(other) + " failed";
            if (log.find("rank " + std::to_string(rank) + who) != std::string::npos) {
                names += std::to_string(other);
            }
        }
        return names;
    }
    static void expect_named(const process::Result &result)
    {
        for (int r = 0; r < world(); r++) {
            if (is_victim(r)) {
                continue;
            }
            std::string names = named_by(r, result.err), by = "rank " + std::to_string(r) + " (node ";
            ASSERT_EQ(names.size(), 1U) << "rank " << r << ": " << names << "\n" << result.err;
            EXPECT_TRUE(may_name(names[0] - '0')) << "rank " << r << ": " << names << "\n" << result.err;
            size_t end = result.err.find(by);
            ASSERT_NE(end, std::string::npos) << result.err;
            EXPECT_EQ(result.err.find("exited with code 1", end), result.err.find("exited with code", end))
                << result.err;
            EXPECT_EQ(result.err.substr(end, 40).find("killed"), std::string::npos) << result.err;
        }
    }
};

/* The box would end what is left, but only TW_PEER_TIMEOUT + 5 s after the first end: a stopped rank, which
 * cannot end by itself, is still there when the others have ended. */
TEST_P(TrainFault, EndsAllOthersInTimeWhichNameIt)
{
    process::Child child(job());
    for (int i = 0; i < 600 && child.out().find("step 5/") == std::string::npos; i++) {
        process::listen({&child}, 100);
    }
    ASSERT_NE(child.out().find("step 5/"), std::string::npos) << child.err();
    ASSERT_NO_FATAL_FAILURE(find_ranks());
    double sec = strike_and_watch(&child);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_LE(sec, kPeerTimeoutSec + kMoreSec);
    RecordProperty("seconds", std::to_string(sec));
    if (GetParam().signal == SIGSTOP) {
        EXPECT_FALSE(ranks_[(size_t)GetParam().victim]->has_ended())
            << "the others ended because the box ended all";
        /* The box waits for it no longer. */
        ASSERT_EQ(kill(ranks_[(size_t)GetParam().victim]->pid(), SIGKILL), 0);
    }
    process::Result result = child.wait(60);
    EXPECT_TRUE(result.in_time);
    EXPECT_NE(result.code, 0);
    expect_named(result);
}

INSTANTIATE_TEST_SUITE_P(, TrainFault,
                         ::testing::Values(Fault{"Killed", SIGKILL, 3, 1, 1},
                                           Fault{"Stopped", SIGSTOP, 3, 1, 1}, Fault{"CutOff", 0, 3, 1, 1},
                                           Fault{"Killed", SIGKILL, 2, 2, 3},
                                           Fault{"Stopped", SIGSTOP, 2, 2, 3}, Fault{"CutOff", 0, 2, 2, 3},
                                           Fault{"RankZeroKilled", SIGKILL, 2, 2, 0},
                                           Fault{"RankZeroStopped", SIGSTOP, 3, 1, 0},
                                           Fault{"RankZeroCutOff", 0, 3, 1, 0}),
                         [](const auto &fault) {
                             return std::string(fault.param.name) + std::to_string(fault.param.nodes) + "x" +
                                    std::to_string(fault.param.ranks_per_node);
                         });
