/* The program: its flags, and a cluster in a box. */
#include <cstdlib>
#include <fstream>
#include <jansson.h>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/common/process.h"

static const char *const program = "trainer/train";

static std::string temporary(const std::string &name)
{
    const char *folder = getenv("TEST_TMPDIR");
    return std::string(folder ? folder : "/tmp") + "/" + name;
}

static std::string text_file()
{
    std::string path = temporary("text.txt");
    std::ofstream file(path);
    for (int i = 0; i < 900; i++) {
        file << "And the waters prevailed exceedingly upon the earth; " << i * i << ".\n";
    }
    return path;
}

static std::vector<std::string> command(const std::vector<std::string> &more)
{
    std::vector<std::string> argv = {program,
                                     "--link",
                                     "none",
                                     "--data",
                                     text_file(),
                                     "--set",
                                     "model.n_embd=32",
                                     "--set",
                                     "model.n_layer=2",
                                     "--set",
                                     "thinwire.sequence_length=16"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
}

TEST(Train, PrintsItsConfiguration)
{
    for (const char *name : {"delta", "delta4", "gpt2-small", "lossless", "zero3", "zeropp"}) {
        process::Result result = process::run(
            {program, "--config", std::string("trainer/configs/") + name + ".json", "--print-config"});
        EXPECT_EQ(result.code, 0) << result.err;
        EXPECT_NE(result.out.find("zero_optimization.stage"), std::string::npos);
    }
}

/* Where there is no GPU, that is said once, before any rank is started. */
TEST(Train, NoGpuIsAnError)
{
    if (access("/dev/nvidiactl", F_OK) == 0) {
        GTEST_SKIP() << "there is a GPU";
    }
    process::Result result = process::run(command({"--device", "cuda"}));
    EXPECT_NE(result.code, 0);
    const std::string words = "thinwire.device is cuda, but ";
    const size_t at = result.err.find(words);
    ASSERT_NE(at, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(words, at + 1), std::string::npos) << result.err;
    result = process::run(command({"--device", "tpu"}));
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("thinwire.device"), std::string::npos) << result.err;
}

TEST(Train, WhatIsPrintedIsInForce)
{
    std::string config = temporary("auto.json");
    std::ofstream(config) << R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 3,
                                 "comms_logger": {"enabled": true}, "zero_optimization": {"stage": 3}})";
    process::Result result = process::run({program, "--config", config, "--nodes", "3", "--ranks-per-node",
                                           "2", "--set", "thinwire.delta_bits=4", "--print-config"});
    ASSERT_EQ(result.code, 0) << result.err;
    auto line = [&](const std::string &key) {
        size_t at = result.out.find("\n" + key + " ");
        return at == std::string::npos ? ""
                                       : result.out.substr(at + 1, result.out.find('\n', at + 1) - at - 1);
    };
    EXPECT_NE(("\n" + result.out).find("\ntrain_batch_size "), std::string::npos);
    EXPECT_NE(result.out.substr(0, result.out.find('\n')).find(" 18 "), std::string::npos) << result.out;
    EXPECT_NE(line("thinwire.hpz").find("follows"), std::string::npos) << line("thinwire.hpz");
    EXPECT_NE(line("thinwire.delta_bits").find("command line"), std::string::npos);
    EXPECT_NE(line("zero_optimization.stage").find("file"), std::string::npos);
    EXPECT_NE(line("thinwire.seed").find("default"), std::string::npos);
    EXPECT_NE(result.err.find("auto comes to train_batch_size 18"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("comms_logger means nothing here"), std::string::npos) << result.err;

    process::Result fp16 = process::run({program, "--set", "fp16.enabled=true", "--print-config"});
    EXPECT_EQ(fp16.code, 1);
    EXPECT_NE(fp16.err.find("fp16 needs loss scaling"), std::string::npos) << fp16.err;
}

static size_t count(const std::string &text, const std::string &what)
{
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        n++;
    }
    return n;
}

TEST(Train, AJobSaysWhatItIgnoresOnce)
{
    process::Result result = process::run(command(
        {"--set", "thinwire.steps=1", "--set", "comms_logger.enabled=y", "--set", "gradient_clipping=auto"}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count(result.err, "comms_logger.enabled means nothing here"), 1U) << result.err;
    EXPECT_EQ(count(result.err, "--set: auto comes to gradient_clipping 1.0;"), 1U) << result.err;
}

TEST(Train, WrongFlagsAndKeysEndIt)
{
    EXPECT_EQ(process::run({program, "--nodes", "none"}).code, 2);
    process::Result result = process::run({program, "--set", "thinwire.stepps=1", "--print-config"});
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.err.find("did you mean thinwire.steps?"), std::string::npos) << result.err;
}

TEST(Train, WhatIsWrongIsSaidOnceBeforeThereIsACluster)
{
    const struct {
        std::vector<std::string> flags;
        const char *said;
    } cases[] = {
        {{"--set", "train_batch_size=5"},
         "train_batch_size 5 is not train_micro_batch_size_per_gpu (any) x gradient_accumulation_steps (any) "
         "x 4"},
        {{"--data", "/no/such/text"}, "/no/such/text: cannot open it"},
        {{"--set", "model.vocab_size=9"}, "has tokens up to 255, but the model knows 9"},
        {{"--set", "model.n_positions=8"}, "thinwire.sequence_length is 16, but the model has 8 positions"},
        {{"--metrics", "/no/such/folder/file"}, "/no/such/folder/file: cannot write"},
        {{"--set", "model.n_params=1e11"}, "GB at least"},
        {{"--data", "/dev/null"}, "/dev/null: not a regular file"},
    };
    for (const auto &one : cases) {
        process::Result result = process::run(command(one.flags));
        EXPECT_EQ(result.code, 1);
        EXPECT_EQ(count(result.err, one.said), 1U) << result.err;
        EXPECT_EQ(count(result.err, " error "), 1U) << result.err;
    }
}

/* To the console, a line for each, and to the metrics after the step's line. */
TEST(Train, SamplesText)
{
    std::string metrics = temporary("sampled.jsonl");
    process::Result result =
        process::run(command({"--set", "thinwire.steps=4", "--set", "thinwire.sample_steps=2", "--set",
                              "thinwire.sample_lines=2", "--set", "thinwire.sample_tokens=9", "--set",
                              "thinwire.sample_prompt=And\nthe", "--metrics", metrics}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count(result.out, "\n# step 2, sampled: And\\nthe"), 2U) << result.out;
    EXPECT_EQ(count(result.out, "\n# step 4, sampled: And\\nthe"), 2U) << result.out;
    std::istringstream lines(process::slurp(metrics));
    std::string order;
    for (std::string line; std::getline(lines, line);) {
        json_t *json = json_loads(line.c_str(), 0, nullptr);
        ASSERT_NE(json, nullptr) << line;
        const char *text = json_string_value(json_object_get(json, "sample"));
        order += std::to_string(json_integer_value(json_object_get(json, "step"))) + (text ? "s" : "");
        EXPECT_EQ(text ? std::string(text).rfind("And\nthe", 0) : 0, 0U) << line;
        json_decref(json);
    }
    EXPECT_EQ(order, "122s2s344s4s");
}

/* Without steps they follow what the metrics have. */
TEST(Train, SamplesTextWithoutSteps)
{
    std::string metrics = temporary("sampled.alone.jsonl");
    std::ofstream(metrics) << "{}\n";
    process::Result result = process::run(
        command({"--set", "thinwire.steps=0", "--set", "thinwire.sample_steps=1", "--set",
                 "thinwire.sample_lines=1", "--set", "thinwire.sample_tokens=4", "--metrics", metrics}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(count(result.out, "# step 0, sampled: "), 1U) << result.out;
    std::string lines = process::slurp(metrics);
    EXPECT_EQ(lines.rfind("{}\n{", 0), 0U) << lines;
    EXPECT_EQ(count(lines, "\"sample\":"), 1U) << lines;
}

TEST(Train, NoStepsAreNoFailure)
{
    process::Result result = process::run(command({"--set", "thinwire.steps=0"}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("# validation "), std::string::npos) << result.out; /* of weights as drawn */
}

TEST(Train, TrainsInAClusterAndWritesMetrics)
{
    std::string metrics = temporary("metrics.jsonl");
    process::Result result =
        process::run(command({"--nodes", "2", "--ranks-per-node", "2", "--set", "thinwire.steps=6", "--set",
                              "thinwire.threads=3", "--metrics", metrics}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("# bytes as planned, replicas equal"), std::string::npos) << result.out;
    EXPECT_EQ(result.out.rfind("# 4 ranks on 2 nodes, each computes with 3 threads\n", 0), 0u) << result.out;
    std::istringstream lines(process::slurp(metrics));
    std::string line;
    double last = 0, exchange_sec = 0, progress_sec = 0;
    int n_lines = 0;
    for (; std::getline(lines, line); n_lines++) {
        json_t *json = json_loads(line.c_str(), 0, nullptr);
        ASSERT_NE(json, nullptr) << line;
        for (const char *key :
             {"step", "loss", "lr", "grad_norm", "tokens", "step_sec", "wait_sec", "threads",
              "compute_processor_sec", "progress_processor_sec", "update_processor_sec",
              "exchange_processor_sec", "inter_node_bytes", "in_node_bytes"}) {
            EXPECT_TRUE(json_is_number(json_object_get(json, key))) << key;
        }
        EXPECT_GT(json_number_value(json_object_get(json, "compute_processor_sec")), 0);
        EXPECT_GE(json_number_value(json_object_get(json, "exchange_processor_sec")), 0);
        exchange_sec += json_number_value(json_object_get(json, "exchange_processor_sec"));
        progress_sec += json_number_value(json_object_get(json, "progress_processor_sec"));
        EXPECT_EQ(json_integer_value(json_object_get(json, "step")), n_lines + 1);
        EXPECT_EQ(json_object_get(json, "val_loss") != nullptr, n_lines == 5);
        /* the first step's weights were there before it */
        EXPECT_EQ(json_object_get(json, "delta_bits") != nullptr, n_lines > 0);
        double loss = json_number_value(json_object_get(json, "loss"));
        EXPECT_LT(n_lines > 0 ? loss - last : 0, 0.5);
        last = loss;
        json_decref(json);
    }
    EXPECT_EQ(n_lines, 6);
    /* of all steps: the kernel counts a running thread's time at its ticks, and an exchange is shorter */
    EXPECT_GT(exchange_sec, 0);
    EXPECT_GT(progress_sec, exchange_sec);
}

/* A run that goes on adds its steps; a new one begins the file anew. Each step says whose it is. */
TEST(Train, MetricsGoOnWithTheRun)
{
    std::string metrics = temporary("on.jsonl"), folder = temporary("on");
    auto train = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"--nodes", "1", "--ranks-per-node", "1", "--metrics", metrics, "--set",
                                 "scheduler.params.total_num_steps=9"});
        process::Result result = process::run(command(more));
        EXPECT_EQ(result.code, 0) << result.err;
        return result.out;
    };
    auto runs = [&] {
        std::vector<std::string> found;
        std::istringstream lines(process::slurp(metrics));
        for (std::string line; std::getline(lines, line);) {
            json_t *json = json_loads(line.c_str(), 0, nullptr);
            EXPECT_EQ(json_integer_value(json_object_get(json, "step")), (json_int_t)found.size() + 1);
            found.emplace_back(json_string_value(json_object_get(json, "run")));
            json_decref(json);
        }
        return found;
    };
    std::string checkpoint = "thinwire.checkpoint=" + folder, resume = "thinwire.resume=" + folder;
    train({"--set", "thinwire.steps=2", "--set", checkpoint});
    std::string out = train(
        {"--set", "thinwire.steps=3", "--set", checkpoint, "--set", resume, "--set", "thinwire.val_share=0"});
    std::vector<std::string> first = runs();
    ASSERT_EQ(first.size(), 3U);
    EXPECT_EQ(first[0], first[2]);
    EXPECT_NE(out.find("# goes on from step 2 of run " + first[0]), std::string::npos) << out;
    EXPECT_NE(out.find(", no validation;"), std::string::npos) << out;
    train({"--set", "thinwire.steps=2"});
    ASSERT_EQ(runs().size(), 2U);
    EXPECT_NE(runs()[0], first[0]);
}
