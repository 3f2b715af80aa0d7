/* The planner's program, for other people's clusters. */
#include <gtest/gtest.h>

#include <jansson.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/common/process.h"

namespace
{

constexpr const char *kPlan = "trainer/plan/main";

std::string file_of(const std::string &name, const std::string &text)
{
    std::string path = ::testing::TempDir() + name;
    std::ofstream(path) << text;
    return path;
}

/* A slow link; codecs are given, so that nothing is measured. */
std::string case_of(const std::string &link, const std::string &model)
{
    return R"({"name": "mine", )" + model + R"("nodes": 4, "gpus_per_node": 2, "link_bytes_per_sec": )" +
           link +
           R"(, "in_node_bytes_per_sec": 1e11, "micro_batch": 1, "sequence": 512, "flops": 5e13,
             "gpu_memory_bytes_per_sec": 1e12})";
}

process::Result plan(const std::vector<std::string> &flags)
{
    std::vector<std::string> argv = {kPlan};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return process::Child(argv).wait();
}

/* A slow link: what each set would make of it, and what else there is. */
TEST(PlanProgram, SaysWhatASetMakesOfASlowLink)
{
    auto result =
        plan({"--cluster", file_of("slow.json", case_of("1e6", R"("params": 1e7, "layers": 8, )"))});
    EXPECT_EQ(0, result.code) << result.err;
    for (const char *text : {"# mine: 4 nodes of 2 GPUs", "here, all of it predicted; codecs at the floors",
                             "\nzero3 ", "\nlossless ", "nothing of ours keeps the GPUs busy",
                             "# accumulation: ", "DiLoCo", "on plain is as fast as anything of ours"}) {
        EXPECT_NE(std::string::npos, result.out.find(text)) << text << "\n" << result.out;
    }
}

/* Its last lines name the fastest of the table's rows, and of those that lose nothing, whatever links and
 * codecs make the fastest. */
TEST(PlanProgram, NamesTheFastestThatLosesNothing)
{
    const std::set<std::string> lossy = {"zero3-qwz",       "zero3-qgz", "zeropp", "delta8",
                                         "delta4",          "fp8",       "delta2", "delta-g4",
                                         "delta-ecdq-half", "delta-ecdq"};
    const std::string json = ::testing::TempDir() + "rows.json";
    for (const std::vector<std::string> &flags :
         std::vector<std::vector<std::string>>{{},
                                               {"--nodes", "4", "--ranks-per-node", "1"},
                                               {"--delta-bits", "9"},
                                               {"--link", "10mbit"},
                                               {"--set", "bf16.enabled=n"},
                                               {"--set", "communication_data_type=fp32"}}) {
        std::vector<std::string> all = {"--params", "1M", "--json", json};
        all.insert(all.end(), flags.begin(), flags.end());
        auto result = plan(all);
        ASSERT_EQ(0, result.code) << result.err;
        std::string best, lossless;
        double best_sec = 1e9, lossless_sec = 1e9;
        std::ifstream file(json);
        for (std::string line; std::getline(file, line);) {
            json_t *row = json_loads(line.c_str(), 0, nullptr);
            const std::string name = json_string_value(json_object_get(row, "set"));
            const double sec = json_number_value(json_object_get(row, "step_sec"));
            EXPECT_EQ(lossy.count(name) == 0, json_is_true(json_object_get(row, "lossless"))) << name;
            if (sec < best_sec) {
                best = name;
                best_sec = sec;
            }
            if (lossy.count(name) == 0 && sec < lossless_sec) {
                lossless = name;
                lossless_sec = sec;
            }
            json_decref(row);
        }
        EXPECT_NE(std::string::npos, result.out.find("# switch on " + best + ": ")) << result.out;
        if (lossless != best) {
            EXPECT_NE(std::string::npos, result.out.find("with no change to any loss " + lossless + ": "))
                << result.out;
        }
    }
}

/* What the flags say where the case does not: the model, what a step is of it, and the GPU. */
TEST(PlanProgram, FlagsSayWhatACaseDoesNot)
{
    const std::string path = file_of("bare.json", R"({"name": "bare", "nodes": 2, "gpus_per_node": 2,
        "link_bytes_per_sec": 1e7, "codec_bytes_per_sec": {"int8": 1e9}})");
    const std::vector<std::string> flags = {"--cluster",      path,
                                            "--params",       "3M",
                                            "--set",          "train_micro_batch_size_per_gpu=3",
                                            "--set",          "thinwire.sequence_length=64",
                                            "--device-flops", "1e12"};
    auto result = plan(flags);
    EXPECT_EQ(0, result.code) << result.err;
    for (const char *text : {"# bare: 2 nodes of 2 GPUs", "# a GPU takes 1 x 3 sequences of 64 tokens a step",
                             "what memory it has is not said", "TW_WEIGHTS=delta TW_GRADS=lossless"}) {
        EXPECT_NE(std::string::npos, result.out.find(text)) << text << "\n" << result.out;
    }
    EXPECT_EQ(std::string::npos, result.out.find("too much")) << result.out;
    /* of codecs one is given: the others are measured, and none is free */
    const size_t delta = result.out.find("\ndelta2 ");
    ASSERT_NE(std::string::npos, delta);
    double codecs = 0;
    ASSERT_EQ(1, sscanf(result.out.c_str() + delta, " delta2 %*f %*f %*f %*f %lf", &codecs));
    EXPECT_GT(codecs, 0);
    result = plan({"--cluster", path, "--params", "3M"});
    EXPECT_EQ(1, result.code);
    EXPECT_NE(std::string::npos, result.err.find("fitted: must be there, or flops, or mfu and peak_flops, or "
                                                 "--device-flops given"))
        << result.err;
}

/* Rows that a GPU has no room for are marked, and none of them is the advice. */
TEST(PlanProgram, SaysWhatFitsAGpu)
{
    const std::string path = file_of("gpu.json", case_of("1e6", R"("params": 1e7, "layers": 8, )"));
    for (const char *room : {"200M", "1M"}) {
        auto result = plan({"--cluster", path, "--device-mem", room});
        EXPECT_EQ(0, result.code) << result.err;
        const size_t ddp = result.out.find("\nddp ");
        ASSERT_NE(std::string::npos, ddp) << result.out;
        const std::string row = result.out.substr(ddp + 1, result.out.find('\n', ddp + 1) - ddp - 1);
        EXPECT_NE(std::string::npos, row.find("too much memory")) << result.out;
        EXPECT_EQ(room[0] == '1',
                  result.out.find("nothing of ours fits into a GPU's 0.001") != std::string::npos)
            << result.out;
        EXPECT_EQ(room[0] == '2', result.out.find("a step costs") != std::string::npos) << result.out;
    }
}

/* A link that is looked for is found: where nodes are slow inside, no link makes plain faster, and from where
 * on that is so is said, not where the search ends. */
TEST(PlanProgram, PlainWaitsForItsLinkUpToSomeRate)
{
    for (const char *inside : {"1e6 ", "1e11", "1e14"}) {
        std::string text = case_of("1e6", R"("params": 1e7, "layers": 8, )");
        text.replace(text.find("1e11"), 4, inside);
        auto result = plan({"--cluster", file_of("link.json", text)});
        EXPECT_EQ(0, result.code) << result.err;
        const size_t from = result.out.find("# from ");
        ASSERT_NE(std::string::npos, from) << result.out;
        double rate = 0;
        ASSERT_EQ(1, sscanf(result.out.c_str() + from, "# from %lf Gb/s", &rate)) << result.out;
        EXPECT_GT(rate, 1e-3) << inside;
        EXPECT_LT(rate, 1e5) << inside; /* the search ends at 8e5 */
    }
}

/* On a machine without one. */
TEST(PlanProgram, SaysWhatLiesOnAGpu)
{
    const std::vector<std::string> flags = {"--params", "3M", "--set", "thinwire.device=cuda",
                                            "--device-mem"};
    for (const char *room : {"1G", "1M"}) {
        std::vector<std::string> all = flags;
        all.emplace_back(room);
        auto result = plan(all);
        EXPECT_EQ(0, result.code) << result.err;
        EXPECT_NE(std::string::npos, result.out.find(" on a GPU\n")) << result.out;
        EXPECT_EQ(room[1] == 'M', result.out.find("too much") != std::string::npos) << result.out;
    }
}

/* A fast one needs none of that. */
TEST(PlanProgram, SaysNothingOfOtherMethodsWhereLinksAreFast)
{
    auto result =
        plan({"--cluster", file_of("fast.json", case_of("1e12", R"("params": 1e7, "layers": 8, )"))});
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ(std::string::npos, result.out.find("DiLoCo")) << result.out;
    EXPECT_NE(std::string::npos, result.out.find("on plain is as fast")) << result.out;
}

TEST(PlanProgram, TakesTheModelOfItsConfiguration)
{
    std::string model =
        file_of("config.json", R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false})");
    auto result = plan({"--cluster", file_of("model.json", case_of("1e6", "")), "--model", model});
    EXPECT_EQ(0, result.code) << result.err;
    /* embedding and head of 256 words, 3 layers of 4 x 64 x 64 + 3 x 64 x 128 and two norms, one norm */
    double n_params = 2 * 256 * 64 + 3 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64;
    char text[64];
    snprintf(text, sizeof(text), "%.4g G parameters", n_params * 1e-9);
    EXPECT_NE(std::string::npos, result.out.find(text)) << text << "\n" << result.out;
}

TEST(PlanProgram, ErrorsNameWhatIsWrong)
{
    struct {
        std::vector<std::string> flags;
        const char *why;
        int code;
    } const wrong[] = {
        {{"--model", "x"}, "--model needs --cluster", 2},
        {{"--cluster", "/nowhere.json"}, "/nowhere.json", 1},
        {{"--cluster", file_of("none.json", R"({"cases": []})")}, "cases: there are none", 1},
        {{"--cluster", file_of("a.json", case_of("1e6", "")), "--model", "/nowhere"},
         "/nowhere/config.json",
         1},
        {{"--cluster", file_of("b.json", case_of("1e6", ""))},
         "params: must be there, or --model or --params given",
         1},
        {{"--cluster", file_of("c.json", case_of("1e6", R"("params": 1e7, "layers": 8, )")), "--case",
          "other"},
         "no case is called other",
         1},
    };
    for (const auto &w : wrong) {
        auto result = plan(w.flags);
        EXPECT_EQ(w.code, result.code) << w.why;
        EXPECT_NE(std::string::npos, result.err.find(w.why)) << result.err;
    }
}

/* Sets that fp32 weights do not go with are left out. */
TEST(PlanProgram, Fp32HasNoDeltas)
{
    auto result = plan({"--params", "1e6", "--set", "bf16.enabled=n"});
    EXPECT_EQ(0, result.code) << result.err;
    for (const char *set : {"\nddp ", "\nzero3 ", "\nzeropp ", "\nzero3-lossless "}) {
        EXPECT_NE(std::string::npos, result.out.find(set)) << set << "\n" << result.out;
    }
    for (const char *set : {"\ndelta", "\nlossless "}) {
        EXPECT_EQ(std::string::npos, result.out.find(set)) << set << "\n" << result.out;
    }
}

} // namespace
