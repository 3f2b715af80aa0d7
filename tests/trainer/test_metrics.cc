/* The script that hands metrics on, with stand-ins for TensorBoard and Weights & Biases that write down what
 * they are asked. */
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

const char *const kLines = "{\"run\": \"a\", \"step\": 1, \"loss\": 5.5, \"tokens\": 100, "
                           "\"step_sec\": 0.5}\n"
                           "{\"run\": \"a\", \"step\": 2, \"loss\": 4.5}\n"
                           "{\"run\": \"a\", \"step\": 2, \"sample\": \"In the beginning\"}\n"
                           "{\"run\": \"a\", \"st\n"
                           "{\"run\": \"a\", \"step\": 2, \"loss\": 4.25}\n"
                           "{\"run\": \"a\", \"step\": 3, \"los";

const char *const kTensorBoard = R"(
class SummaryWriter:
    def __init__(self, folder, purge_step): self.say("open", folder, purge_step)
    def say(self, *words): print(*words)
    def add_scalar(self, key, value, step): self.say(key, value, step)
    def add_text(self, key, text, step): self.say(key, text, step)
    def flush(self): pass
    def close(self): self.say("close")
)";

const char *const kWandb = R"(
def init(**words): print("init", words["project"], words["id"], words["resume"])
def define_metric(*words, **more): pass
def log(values): print("log", sorted(values.items()))
def finish(): print("finish")
)";

class MetricsScript : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        folder_ = ::testing::TempDir() + "metrics." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_ + "/modules/torch").c_str()));
        std::ofstream(folder_ + "/lines") << kLines;
        std::ofstream(folder_ + "/modules/torch/__init__.py") << "raise ImportError\n"; /* as if not there */
    }
    void TearDown() override
    {
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
    }
    process::Result run(const std::string &option, const std::string &value) const
    {
        return process::run({"env", "PYTHONPATH=" + folder_ + "/modules", "python3", "trainer/metrics.py",
                             folder_ + "/lines", option, value});
    }

    std::string folder_;
};

TEST_F(MetricsScript, TensorBoardGetsEachStepOnce)
{
    std::ofstream(folder_ + "/modules/tensorboardX.py") << kTensorBoard;
    process::Result result = run("--tensorboard", "out");
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ("open out/a 1\nloss 5.5 1\ntokens 100 1\nstep_sec 0.5 1\ntokens_per_sec 200.0 1\nloss 4.5 2\n"
              "sample In the beginning 2\n"
              "close\nopen out/a 2\nloss 4.25 2\nclose\n",
              result.out);
}

TEST_F(MetricsScript, WandbGetsTheRunById)
{
    std::ofstream(folder_ + "/modules/wandb.py") << kWandb;
    process::Result result = run("--wandb", "mine");
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ("init mine a allow\n"
              "log [('loss', 5.5), ('step', 1), ('step_sec', 0.5), ('tokens', 100), "
              "('tokens_per_sec', 200.0)]\n"
              "log [('loss', 4.5), ('step', 2)]\nlog [('sample', 'In the beginning'), ('step', 2)]\nlog "
              "[('loss', 4.25), ('step', 2)]\nfinish\n",
              result.out);
}

TEST_F(MetricsScript, WhatIsMissingIsSaid)
{
    process::Result result = run("--wandb", "mine");
    if (result.code != 0) { /* it may be installed */
        EXPECT_NE(std::string::npos, result.err.find("metrics: --wandb needs the package wandb"))
            << result.err;
    }
    std::ofstream(folder_ + "/modules/tensorboardX.py") << "raise ImportError\n";
    result = run("--tensorboard", "out");
    EXPECT_EQ(1, result.code);
    EXPECT_EQ("metrics: --tensorboard needs torch with tensorboard, or tensorboardX\n", result.err);
}

} // namespace
