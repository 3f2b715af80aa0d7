/* The program as a launcher starts it: the ranks find each other and train as in any other job. */
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>

#include <glob.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/common/process.h"
#include "tests/trainer/slurm.h"

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
            "thinwire.data=" + std::string(kProgram), /* any bytes will do */
            "--set",
            "thinwire.token_bytes=1"};
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

process::Spec slurm_task(int task)
{
    process::Spec spec;
    spec.argv = training();
    spec.env = slurm::task_env(task);
    return spec;
}

TEST(Launch, WhatSrunSets)
{
    std::vector<std::unique_ptr<process::Child>> tasks;
    for (int task = 0; task < slurm::n_tasks; task++) {
        tasks.push_back(std::make_unique<process::Child>(slurm_task(task)));
    }
    for (int task = 3; task > 0; task--) {
        process::Result result = tasks[(size_t)task]->wait(120);
        EXPECT_EQ(0, result.code) << result.err;
    }
    expect_trained(tasks[0]->wait(120), "4 ranks on 2 nodes");
}

/* Two nodes of two ranks, with words more for all and for the last, and what else the last one has. */
std::string errors_of(const std::vector<std::string> &more, const std::vector<std::string> &last, int code,
                      const std::function<void(process::Spec *)> &change_last = nullptr)
{
    std::vector<std::unique_ptr<process::Child>> tasks;
    std::string errors;
    for (int task = 0; task < slurm::n_tasks; task++) {
        process::Spec spec = slurm_task(task);
        spec.argv.insert(spec.argv.end(), more.begin(), more.end());
        if (task == 3) {
            spec.argv.insert(spec.argv.end(), last.begin(), last.end());
            if (change_last) {
                change_last(&spec);
            }
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

/* Before anything is taken: each machine's ranks together. */
TEST(Launch, WhatCannotFitDoesNotBegin)
{
    std::string errors = errors_of({"--set", "model.n_params=1e11"}, {}, 1);
    EXPECT_EQ(1, count(errors, "4 ranks will hold ")) << errors;
    EXPECT_EQ(1, count(errors, "the machine of rank 0 has ")) << errors;
    EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
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

/* A file that is older on one node: nothing is waited for that will not come. */
TEST(Launch, ATextThatDiffersIsNamed)
{
    std::string folder = ::testing::TempDir() + "launch." + std::to_string(getpid());
    std::string errors = errors_of({}, {"--set", "thinwire.checkpoint=" + folder}, 1);
    EXPECT_EQ(1, count(errors, "rank 3: thinwire.checkpoint is '" + folder + "', on rank 0 it is ''"))
        << errors;
    EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
}

TEST(Launch, AVariableThatDiffersIsNamed)
{
    const struct {
        const char *name, *value, *dflt;
    } cases[] = {{"TW_HPZ_CHECK_STEPS", "2", "100"}, {"TW_COLL_CHUNK", "64K", "0"}};
    for (const auto &one : cases) {
        std::string errors =
            errors_of({}, {}, 1, [&](process::Spec *spec) { spec->env[one.name] = one.value; });
        EXPECT_EQ(1, count(errors, std::string("rank 3: ") + one.name + " is '" + one.value +
                                       "', on rank 0 it is '" + one.dflt + "'"))
            << errors;
        EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
    }
}

/* A name that is another folder's on one node: copied there, and older, damaged, or another run's. */
TEST(Launch, ACheckpointThatDiffersIsNamed)
{
    char program[4096];
    ASSERT_NE(nullptr, realpath(kProgram, program));
    std::string folder = ::testing::TempDir() + "launch." + std::to_string(getpid()), path = program;
    auto command = [](const std::string &text) { return system(text.c_str()); };
    auto in = [&](const std::string &place) {
        return [&, place](process::Spec *spec) {
            spec->argv[0] = path;
            spec->before = [folder, place] { (void)!chdir((folder + place).c_str()); };
        };
    };
    ASSERT_EQ(0, command("mkdir -p " + folder + "/old " + folder + "/bad " + folder + "/other"));
    std::vector<std::string> sets = {"--set", "thinwire.data=" + path,
                                     "--set", "thinwire.checkpoint=" + folder + "/ck",
                                     "--set", "thinwire.checkpoint_every=2"};
    errors_of(sets, {}, 0);
    ASSERT_EQ(0, command("mv " + folder + "/ck " + folder + "/other"));
    errors_of(sets, {}, 0);
    ASSERT_EQ(0, command("cp -r " + folder + "/ck " + folder + "/old; cp -r " + folder + "/ck " + folder +
                         "/bad; rm -r " + folder + "/old/ck/step-00000004; rm " + folder +
                         "/bad/ck/step-00000004/shard-00001.safetensors"));
    for (const std::string place : {"/old", "/other", "/bad"}) {
        std::string errors;
        std::vector<std::unique_ptr<process::Child>> tasks;
        for (int task = 0; task < slurm::n_tasks; task++) {
            process::Spec spec = slurm_task(task);
            spec.argv.insert(spec.argv.end(), sets.begin(), sets.end());
            spec.argv.insert(spec.argv.end(), {"--set", "thinwire.resume=ck", "--set", "thinwire.steps=6"});
            in(task == 3 ? place : "")(&spec);
            tasks.push_back(std::make_unique<process::Child>(spec));
        }
        for (auto &task : tasks) {
            process::Result result = task->wait(120);
            EXPECT_EQ(place == "/bad" ? 0 : 1, result.code) << result.err;
            errors += result.err;
        }
        if (place == "/old") {
            EXPECT_EQ(1,
                      count(errors, "rank 3: thinwire.resume, the newest step there, is '2', on rank 0 it is "
                                    "'4'"))
                << errors;
            EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
        } else if (place == "/other") { /* of as many steps */
            EXPECT_EQ(1, count(errors, "rank 3: thinwire.resume, the manifest's checksum, is '")) << errors;
            EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
        } else { /* all go back to the step before */
            EXPECT_EQ(1, count(errors, "ck/step-00000004/shard-00001.safetensors: this shard is missing"))
                << errors;
            EXPECT_EQ(1, count(errors, "rank 0: rank 3 cannot resume, and says why itself")) << errors;
            EXPECT_EQ(2, count(errors, "thinwire error")) << errors;
            EXPECT_EQ(1, count(errors, "ck: step 4 is damaged: going back to the one before it")) << errors;
        }
    }
    EXPECT_EQ(0, command("rm -rf " + folder));
}

/* What one rank is refused for, or all, leaves the metrics of the run before as they are. */
TEST(Launch, ARefusedRunLeavesTheMetrics)
{
    std::string path = ::testing::TempDir() + "metrics." + std::to_string(getpid());
    std::ofstream(path) << "a line\n";
    errors_of({"--metrics", path}, {"--set", "thinwire.stebs=4"}, 1);
    EXPECT_EQ("a line\n", process::slurp(path));
    errors_of({"--metrics", path, "--set", "model.n_head=7"}, {}, 1);
    EXPECT_EQ("a line\n", process::slurp(path));
    std::string errors = errors_of({"--metrics", "/no/such/folder/file"}, {}, 1);
    EXPECT_EQ(1, count(errors, "/no/such/folder/file: cannot write")) << errors;
    EXPECT_EQ(1, count(errors, "thinwire error")) << errors;
    unlink(path.c_str());
}

} // namespace
