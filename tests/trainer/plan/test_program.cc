/* The planner's program, for other people's clusters. */
#include <gtest/gtest.h>

#include <fstream>
#include <string>

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
        {{"--cluster", file_of("b.json", case_of("1e6", ""))}, "params: must be there, or --model given", 1},
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
