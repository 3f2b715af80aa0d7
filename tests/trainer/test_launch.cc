/* The program as a launcher starts it: the ranks find each other and train as in any other job. */
#include <cstdlib>
#include <memory>

#include <glob.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

const char *const kProgram = "trainer/train";

std::vector<std::string> training()
{
    return {kProgram,
            "--set",
            "model.n_embd=32",
            "--set",
            "model.n_layer=2",
            "--set",
            "thinwire.sequence_length=16",
            "--set",
            "thinwire.steps=4",
            "--set",
            "train_batch_size=8",
            "--set",
            "thinwire.data=" + std::string(kProgram)}; /* any bytes will do */
}

std::vector<std::string> under(std::vector<std::string> launcher)
{
    for (const std::string &word : training()) {
        launcher.push_back(word);
    }
    return launcher;
}

void expect_trained(const process::Result &result, const std::string &shape)
{
    EXPECT_EQ(0, result.code) << result.out << result.err;
    EXPECT_NE(std::string::npos, result.out.find("# " + shape)) << result.out;
    EXPECT_NE(std::string::npos, result.out.find("# bytes as planned, replicas equal")) << result.out;
}

bool has(const std::string &program)
{
    return process::run({"sh", "-c", "command -v " + program}).code == 0;
}

/* In PATH, or in the interpreter's folder that the PyTorch tests use. */
std::string find_torchrun()
{
    std::string found = has("torchrun") ? "torchrun" : "";
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    std::string folder = cache ? cache : std::string(home ? home : "/root") + "/.cache";
    glob_t paths;
    if (found.empty() &&
        glob((folder + "/thinwire/torch-*/venv/bin/torchrun").c_str(), 0, nullptr, &paths) == 0) {
        found = paths.gl_pathv[0];
        globfree(&paths);
    }
    return found;
}

TEST(Launch, Mpirun)
{
    if (!has("mpirun")) {
        GTEST_SKIP() << "no mpirun here";
    }
    for (const char *n : {"2", "4"}) {
        expect_trained(process::run(under({"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", n})),
                       std::string(n) + " ranks on 1 nodes");
    }
}

TEST(Launch, Torchrun)
{
    std::string torchrun = find_torchrun();
    if (torchrun.empty()) {
        GTEST_SKIP() << "no torchrun here";
    }
    for (const char *n : {"2", "4"}) {
        std::string port = std::to_string(process::free_port());
        expect_trained(
            process::run(under({torchrun, "--nproc-per-node", n, "--master-port", port, "--no-python"})),
            std::string(n) + " ranks on 1 nodes");
    }
}

/* What srun sets, for each of the tasks of two nodes. */
process::Spec slurm_task(int task)
{
    process::Spec spec;
    spec.argv = training();
    spec.env = {{"SLURM_JOB_ID", std::to_string(getpid())},
                {"SLURM_STEP_ID", "0"},
                {"SLURM_NTASKS", "4"},
                {"SLURM_STEP_NUM_TASKS", "4"},
                {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                {"SLURM_STEP_NODELIST", "localhost,other"},
                {"SLURM_PROCID", std::to_string(task)},
                {"SLURM_LOCALID", std::to_string(task % 2)},
                {"SLURM_NODEID", std::to_string(task / 2)},
                {"TW_NODE_ID", std::to_string(task / 2)}, /* they are one machine */
                {"TW_NET_DEVICES", "lo"}};
    return spec;
}

TEST(Launch, WhatSrunSets)
{
    std::vector<std::unique_ptr<process::Child>> tasks;
    for (int task = 0; task < 4; task++) {
        tasks.push_back(std::make_unique<process::Child>(slurm_task(task)));
    }
    for (int task = 3; task > 0; task--) {
        process::Result result = tasks[(size_t)task]->wait(120);
        EXPECT_EQ(0, result.code) << result.err;
    }
    expect_trained(tasks[0]->wait(120), "4 ranks on 2 nodes");
}

/* Two nodes of two ranks, with words more for all and for the last. */
std::string errors_of(const std::vector<std::string> &more, const std::vector<std::string> &last, int code)
{
    std::vector<std::unique_ptr<process::Child>> tasks;
    std::string errors;
    for (int task = 0; task < 4; task++) {
        process::Spec spec = slurm_task(task);
        spec.argv.insert(spec.argv.end(), more.begin(), more.end());
        if (task == 3) {
            spec.argv.insert(spec.argv.end(), last.begin(), last.end());
        }
        tasks.push_back(std::make_unique<process::Child>(spec));
    }
    for (auto &task : tasks) {
        process::Result result = task->wait(120);
        EXPECT_EQ(code, result.code) << result.err;
        errors += result.err;
    }
    return errors;
}

int count(const std::string &text, const std::string &word)
{
    int n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        n++;
    }
    return n;
}

TEST(Launch, AnErrorOfAllRanksIsReadOnce)
{
    for (const char *set : {"thinwire.stebs=4", "thinwire.data=/nowhere/text", "model.n_head=7"}) {
        std::string errors = errors_of({"--set", set}, {}, 1);
        EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
    }
}

/* As of a file that is missing on its node. */
TEST(Launch, AnErrorOfOneRankIsNotLost)
{
    std::string errors = errors_of({}, {"--set", "thinwire.data=/nowhere/text"}, 1);
    EXPECT_EQ(1, count(errors, "/nowhere/text")) << errors;
    EXPECT_EQ(1, count(errors, "rank 0: rank 3 cannot begin, and says why itself")) << errors;
    EXPECT_EQ(2, count(errors, "thinwire error")) << errors;
    errors = errors_of({"--set", "thinwire.data=/nowhere/text"}, {"--set", "thinwire.data=/nowhere/else"}, 1);
    EXPECT_EQ(1, count(errors, "/nowhere/text")) << errors;
    EXPECT_EQ(1, count(errors, "/nowhere/else")) << errors;
}

} // namespace
