/* A run that is left alone: a rank of it is killed, or asked to end, and the same command goes on from the
 * last checkpoint, with the losses of a run that nothing happened to. */
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <map>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/common/process.h"
#include "tests/trainer/slurm.h"

namespace
{

using Words = std::vector<std::string>;

constexpr int kPipeBytes = 4096; /* the metrics of a few steps */
constexpr int kSteps = 60;       /* of metrics more than the pipe holds: no run gets to its end unread */
constexpr int kStrikeStep = 25;  /* after it the checkpoint of step 10 is there, whatever the disk does */

/* The process on this machine that has both in its environment; 0: none. */
pid_t find_rank(const std::string &mark, int rank)
{
    pid_t found = 0;
    DIR *folder = opendir("/proc");
    std::string one = std::string(1, '\0') + mark + '\0';
    std::string other = std::string(1, '\0') + "RANK=" + std::to_string(rank) + '\0';
    for (dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        std::string process = std::string("/proc/") + entry->d_name;
        std::string environment = std::string(1, '\0') + process::slurp(process + "/environ");
        if (environment.find(one) != std::string::npos && environment.find(other) != std::string::npos &&
            process::slurp(process + "/comm") == "train\n") {
            found = (pid_t)atoi(entry->d_name);
        }
    }
    closedir(folder);
    return found;
}

/** The metrics that a run writes, read from a pipe: rank 0 gets no further than what is read. */
class Metrics
{
  public:
    explicit Metrics(std::string path) : path_(std::move(path))
    {
        EXPECT_EQ(0, mkfifo(path_.c_str(), 0600));
        fd_ = open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
        EXPECT_EQ(kPipeBytes, fcntl(fd_, F_SETPIPE_SZ, kPipeBytes));
    }
    Metrics(const Metrics &) = delete;
    Metrics &operator=(const Metrics &) = delete;
    ~Metrics()
    {
        close(fd_);
    }
    const std::string &path() const
    {
        return path_;
    }
    /** The losses so far, as they are written, by step; of a step that was done twice the later one. */
    const std::map<int, std::string> &losses()
    {
        char buffer[512];
        for (ssize_t n; (n = read(fd_, buffer, sizeof(buffer))) > 0;) {
            text_.append(buffer, (size_t)n);
            for (size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
                take(text_.substr(0, end));
            }
            if (!losses_.empty() && losses_.rbegin()->first < most_) {
                break; /* no more than a little at a time */
            }
        }
        return losses_;
    }
    size_t n_lines() const
    {
        return n_lines_;
    }

  private:
    static std::string value(const std::string &line, const std::string &key)
    {
        size_t at = line.find("\"" + key + "\":");
        return at == std::string::npos
                   ? ""
                   : line.substr(at + key.size() + 3, line.find(',', at) - at - key.size() - 3);
    }
    void take(const std::string &line)
    {
        int step = atoi(value(line, "step").c_str());
        losses_[step] = value(line, "loss");
        n_lines_++;
    }

    std::string path_, text_;
    int fd_ = -1, most_ = kStrikeStep;
    size_t n_lines_ = 0;
    std::map<int, std::string> losses_;
};

class Restart : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        folder_ = ::testing::TempDir() + "restart." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
    }
    void TearDown() override
    {
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
    }
    /* By name: its checkpoints lie there. */
    process::Spec job(const Words &launcher, const std::string &name, const Metrics &metrics) const
    {
        process::Spec spec;
        spec.argv = launcher;
        spec.env = {{"TW_CLUSTER_TEST_MARK", name + std::to_string(getpid())}, {"TW_PEER_TIMEOUT", "10s"}};
        for (const std::string &word :
             {std::string("--metrics"), metrics.path(), std::string("--link"), std::string("none")}) {
            spec.argv.push_back(word);
        }
        for (const std::string &set :
             {std::string("model.n_embd=32"), std::string("model.n_layer=2"),
              std::string("thinwire.sequence_length=16"), std::string("train_batch_size=4"),
              "thinwire.steps=" + std::to_string(kSteps), std::string("thinwire.data=trainer/train"),
              std::string("thinwire.token_bytes=1"), std::string("thinwire.checkpoint_every=10"),
              std::string("thinwire.resume=auto"), "thinwire.checkpoint=" + folder_ + "/" + name}) {
            spec.argv.emplace_back("--set");
            spec.argv.push_back(set);
        }
        return spec;
    }
    /* Until a step's metrics are there; then nothing more is read. */
    static void run_to(process::Child *child, Metrics *metrics, int step)
    {
        for (int i = 0; i < 6000 && !metrics->losses().count(step); i++) {
            process::listen({child}, 10);
        }
        ASSERT_TRUE(metrics->losses().count(step)) << child->err();
    }
    static process::Result run_to_end(process::Child *child, Metrics *metrics)
    {
        for (int i = 0; i < 12000 && child->pid() > 0; i++) {
            (void)metrics->losses();
            process::listen({child}, 5);
        }
        (void)metrics->losses();
        return child->wait(1);
    }
    static void strike(const std::string &name, int rank, int signal)
    {
        pid_t victim = find_rank("TW_CLUSTER_TEST_MARK=" + name + std::to_string(getpid()), rank);
        ASSERT_GT(victim, 0);
        ASSERT_EQ(0, kill(victim, signal));
    }
    std::map<int, std::string> undisturbed(const Words &launcher)
    {
        Metrics metrics(folder_ + "/whole.metrics");
        process::Child child(job(launcher, "whole", metrics));
        process::Result result = run_to_end(&child, &metrics);
        EXPECT_EQ(0, result.code) << result.err;
        std::map<int, std::string> losses = metrics.losses();
        EXPECT_EQ((size_t)kSteps, losses.size());
        return losses;
    }
    /* The same command twice: what happened between the two is not to be seen in the losses. */
    void expect_goes_on(const std::function<void(const process::Child &)> &end, int want_code)
    {
        const Words box = {"trainer/train", "--nodes", "2", "--ranks-per-node", "1"};
        Metrics metrics(folder_ + "/metrics");
        {
            process::Child child(job(box, "run", metrics));
            ASSERT_NO_FATAL_FAILURE(run_to(&child, &metrics, kStrikeStep));
            ASSERT_NO_FATAL_FAILURE(end(child));
            process::Result result = run_to_end(&child, &metrics);
            EXPECT_EQ(want_code, result.code) << result.err;
        }
        EXPECT_LT(metrics.losses().size(), (size_t)kSteps);
        process::Child again(job(box, "run", metrics));
        process::Result result = run_to_end(&again, &metrics);
        EXPECT_EQ(0, result.code) << result.err;
        EXPECT_NE(std::string::npos, result.out.find("# goes on from step ")) << result.out;
        EXPECT_EQ(undisturbed(box), metrics.losses());
    }

    std::string folder_;
};

TEST_F(Restart, AfterARankIsKilled)
{
    expect_goes_on([](const process::Child &) { strike("run", 1, SIGKILL); }, 128 + SIGKILL);
}

/* With a checkpoint of the very step: none is done twice. */
TEST_F(Restart, AfterARankIsAskedToEnd)
{
    expect_goes_on([](const process::Child &) { strike("run", 1, SIGTERM); }, 75);
}

/* What timeout and docker stop send. */
TEST_F(Restart, AfterTheBoxIsAskedToEnd)
{
    expect_goes_on([](const process::Child &box) { kill(box.pid(), SIGTERM); }, 75);
}

TEST_F(Restart, AfterCtrlC)
{
    expect_goes_on([](const process::Child &box) { kill(-box.pid(), SIGINT); }, 75);
}

TEST_F(Restart, AfterTheTerminalIsGone)
{
    expect_goes_on([](const process::Child &box) { kill(-box.pid(), SIGHUP); }, 75);
}

/* oneDNN may use the stack's register for other things while it multiplies: a handler on that stack would
 * write over them. So: signals all the time while a step computes. The losses are as without any. */
TEST_F(Restart, SignalsWhileItMultiplies)
{
    auto larger = [this](const std::string &name, const Metrics &metrics) {
        process::Spec spec = job({"trainer/train", "--nodes", "1", "--ranks-per-node", "1"}, name, metrics);
        for (const char *set : {"model.n_embd=128", "model.n_layer=4", "thinwire.sequence_length=128",
                                "train_batch_size=8", "thinwire.steps=6"}) {
            spec.argv.insert(spec.argv.end(), {"--set", set});
        }
        return spec;
    };
    Metrics whole(folder_ + "/whole.metrics"), metrics(folder_ + "/metrics");
    process::Child undisturbed(larger("whole", whole));
    ASSERT_EQ(0, run_to_end(&undisturbed, &whole).code);
    process::Child child(larger("run", metrics));
    ASSERT_NO_FATAL_FAILURE(run_to(&child, &metrics, 1));
    const pid_t victim = find_rank("TW_CLUSTER_TEST_MARK=run" + std::to_string(getpid()), 0);
    ASSERT_GT(victim, 0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (std::chrono::steady_clock::now() < end && kill(victim, SIGTERM) == 0) {
        usleep(20);
    }
    process::Result result = run_to_end(&child, &metrics);
    EXPECT_EQ(75, result.code) << result.err;
    for (const auto &[step, loss] : metrics.losses()) {
        EXPECT_EQ(whole.losses().at(step), loss) << "step " << step;
    }
}

/** The tasks of a job as Slurm starts them on two nodes of two, and the signals that it sends. A job that is
 *  requeued has its id again, and a count. */
class Slurm
{
  public:
    Slurm(const process::Spec &one, int restarts)
    {
        for (int task = 0; task < slurm::n_tasks; task++) {
            process::Spec spec = one;
            spec.env.merge(slurm::task_env(task));
            if (restarts > 0) {
                spec.env["SLURM_RESTART_COUNT"] = std::to_string(restarts);
            }
            tasks_.push_back(std::make_unique<process::Child>(spec));
        }
    }
    process::Child *first() const
    {
        return tasks_[0].get();
    }
    process::Child *last() const
    {
        return tasks_.back().get();
    }
    void signal(const std::vector<int> &numbers) const
    {
        for (int number : numbers) {
            for (const auto &task : tasks_) {
                task->signal(number);
            }
        }
    }
    /* The tasks' exit codes; *of_first: what the first one has said. */
    std::vector<int> end(Metrics *metrics, process::Result *of_first)
    {
        std::vector<process::Child *> all;
        for (const auto &task : tasks_) {
            all.push_back(task.get());
        }
        for (int i = 0; i < 12000 && all[0]->pid() > 0; i++) {
            (void)metrics->losses();
            process::listen(all, 5);
        }
        (void)metrics->losses();
        std::vector<int> codes;
        for (process::Child *task : all) {
            process::Result result = task->wait(60);
            codes.push_back(result.code);
            *of_first = task == all[0] ? result : *of_first;
        }
        return codes;
    }

  private:
    std::vector<std::unique_ptr<process::Child>> tasks_;
};

/* Preempted, with time for a checkpoint: all tasks get SIGCONT and SIGTERM, and what srun passes on besides.
 * The job is requeued: the same command, the same job id. */
TEST_F(Restart, SlurmRequeuesIt)
{
    Metrics metrics(folder_ + "/metrics");
    const process::Spec spec = job({"trainer/train"}, "run", metrics);
    process::Result result;
    {
        Slurm tasks(spec, 0);
        ASSERT_NO_FATAL_FAILURE(run_to(tasks.first(), &metrics, kStrikeStep));
        tasks.signal({SIGCONT, SIGTERM, SIGCONT, SIGTERM});
        EXPECT_EQ(std::vector<int>(4, 75), tasks.end(&metrics, &result)) << result.err;
    }
    size_t n_lines = metrics.n_lines();
    EXPECT_LT(n_lines, (size_t)kSteps);
    Slurm again(spec, 1);
    EXPECT_EQ(std::vector<int>(4, 0), again.end(&metrics, &result)) << result.err;
    EXPECT_NE(std::string::npos, result.out.find("# goes on from step " + std::to_string(n_lines)))
        << result.out;
    EXPECT_EQ((size_t)kSteps, metrics.n_lines()); /* no step was done twice */
    EXPECT_EQ(undisturbed({"trainer/train", "--nodes", "2", "--ranks-per-node", "2"}), metrics.losses());
}

/* Without time for one: it goes on from the last checkpoint there is. */
TEST_F(Restart, SlurmKillsIt)
{
    Metrics metrics(folder_ + "/metrics");
    const process::Spec spec = job({"trainer/train"}, "run", metrics);
    process::Result result;
    {
        Slurm tasks(spec, 0);
        ASSERT_NO_FATAL_FAILURE(run_to(tasks.first(), &metrics, kStrikeStep));
        tasks.signal({SIGCONT, SIGTERM, SIGKILL});
        EXPECT_EQ(std::vector<int>(4, 128 + SIGKILL), tasks.end(&metrics, &result)) << result.err;
    }
    Slurm again(spec, 1);
    EXPECT_EQ(std::vector<int>(4, 0), again.end(&metrics, &result)) << result.err;
    EXPECT_NE(std::string::npos, result.out.find("# goes on from step ")) << result.out;
    EXPECT_EQ(undisturbed({"trainer/train", "--nodes", "2", "--ranks-per-node", "2"}), metrics.losses());
}

/* Somebody who asks again later does not want to wait: here for a rank that has been stopped. */
TEST_F(Restart, AskedAgainItEndsAtOnce)
{
    Metrics metrics(folder_ + "/metrics");
    process::Spec spec = job({"trainer/train"}, "run", metrics);
    spec.env["TW_PEER_TIMEOUT"] = "600s";
    Slurm tasks(spec, 0);
    ASSERT_NO_FATAL_FAILURE(run_to(tasks.first(), &metrics, kStrikeStep));
    tasks.last()->signal(SIGSTOP);
    tasks.first()->signal(SIGTERM);
    sleep(5);
    tasks.first()->signal(SIGTERM);
    EXPECT_EQ(128 + SIGTERM, tasks.first()->wait(60).code);
}

/* A line that a killed process has left half of stays one of its own. */
TEST_F(Restart, HalfALineOfMetricsIsEnded)
{
    std::string path = folder_ + "/lines";
    auto train = [&](const std::string &steps) {
        process::Result result = process::run({"trainer/train",
                                               "--nodes",
                                               "1",
                                               "--ranks-per-node",
                                               "1",
                                               "--link",
                                               "none",
                                               "--metrics",
                                               path,
                                               "--set",
                                               "model.n_embd=32",
                                               "--set",
                                               "thinwire.sequence_length=16",
                                               "--set",
                                               "thinwire.data=trainer/train",
                                               "--set",
                                               "thinwire.token_bytes=1",
                                               "--set",
                                               "thinwire.checkpoint=" + folder_ + "/half",
                                               "--set",
                                               "thinwire.resume=auto",
                                               "--set",
                                               "thinwire.peak_flops=1e12",
                                               "--set",
                                               "thinwire.steps=" + steps});
        EXPECT_EQ(0, result.code) << result.err;
        for (const char *what : {" tokens/s  MFU ", " s left, ends "}) {
            EXPECT_NE(std::string::npos, result.out.find(what)) << result.out;
        }
    };
    train("1");
    ASSERT_EQ(0, system(("printf '{\"step\": 2, \"lo' >> " + path).c_str()));
    train("2");
    std::string text = process::slurp(path);
    EXPECT_NE(std::string::npos, text.find("{\"step\": 2, \"lo\n{")) << text;
    EXPECT_NE(std::string::npos, text.find("\"mfu\":")) << text;
}

/* In PATH, or in the interpreter's folder that the PyTorch tests use. */
std::string find_torchrun()
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    std::string folder = cache ? cache : std::string(home ? home : "/root") + "/.cache", found;
    glob_t paths;
    if (process::run({"sh", "-c", "command -v torchrun"}).code == 0) {
        return "torchrun";
    }
    if (glob((folder + "/thinwire/torch-*/venv/bin/torchrun").c_str(), 0, nullptr, &paths) == 0) {
        found = paths.gl_pathv[0];
        globfree(&paths);
    }
    return found;
}

/* It ends all ranks and starts them again, by itself. */
TEST_F(Restart, TorchrunStartsItAgain)
{
    std::string torchrun = find_torchrun();
    if (torchrun.empty()) {
        GTEST_SKIP() << "no torchrun here";
    }
    const Words launcher = {torchrun,
                            "--nproc-per-node",
                            "2",
                            "--max-restarts",
                            "1",
                            "--master-port",
                            std::to_string(process::free_port()),
                            "--no-python",
                            "trainer/train"};
    Metrics metrics(folder_ + "/metrics");
    process::Child child(job(launcher, "run", metrics));
    ASSERT_NO_FATAL_FAILURE(run_to(&child, &metrics, kStrikeStep));
    ASSERT_NO_FATAL_FAILURE(strike("run", 1, SIGKILL));
    process::Result result = run_to_end(&child, &metrics);
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_NE(std::string::npos, result.out.find("# goes on from step ")) << result.out;
    EXPECT_EQ(undisturbed({"trainer/train", "--nodes", "1", "--ranks-per-node", "2"}), metrics.losses());
}

} // namespace
