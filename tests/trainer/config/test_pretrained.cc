/* The shape of a model that weights come from. */
#include <cstdlib>
#include <fstream>

#include <unistd.h>

#include "tests/trainer/config/config.h"

namespace
{

using tw::options_of;

class Pretrained : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "pretrained." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_).c_str()));
        write(
            R"({"model_type": "gpt2", "n_layer": 3, "n_head": 6, "n_embd": 96, "n_positions": 64, "vocab_size": 301,
                  "layer_norm_epsilon": 1e-06, "activation_function": "gelu_new", "n_inner": null})");
    }
    void TearDown() override
    {
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    void write(const std::string &text) const
    {
        std::ofstream(folder_ + "/config.json") << text;
    }
    /* With more keys, and the weights in `folder_` + what. */
    tw_status_t resolve(std::vector<std::string> sets = {}, const std::string &what = "")
    {
        std::vector<const char *> pointers;
        sets.push_back("model.init_from=" + folder_ + what);
        for (const auto &set : sets) {
            pointers.push_back(set.c_str());
        }
        config_ = tw::config_of("{}", pointers);
        return config_ ? tw_train_config_resolve(config_.get(), 2, 1) : TW_ERR_INTERNAL;
    }
    void expect_shape(int64_t n_layer, int64_t n_head, double epsilon) const
    {
        const tw_train_options_t &o = options_of(config_);
        EXPECT_EQ(n_layer, o.n_layer);
        EXPECT_EQ(n_head, o.n_head);
        EXPECT_EQ(epsilon, o.layer_norm_epsilon);
    }

    std::string folder_;
    tw::Config config_;
};

TEST_F(Pretrained, ItsConfigurationGivesTheShape)
{
    for (const char *what : {"", "/", "/model.safetensors", "/model.safetensors.index.json"}) {
        ASSERT_EQ(TW_OK, resolve({}, what)) << what;
        expect_shape(3, 6, 1e-6);
        EXPECT_EQ(96, options_of(config_).n_embd);
        EXPECT_EQ(64, options_of(config_).n_positions);
        EXPECT_EQ(301, options_of(config_).vocab_size);
    }
    EXPECT_EQ(TW_OK, resolve({"model.n_layer=3", "model.layer_norm_epsilon=0.000001"}));
}

/* As the published models have it: the network here trains otherwise. */
TEST_F(Pretrained, DropoutIsSaid)
{
    write(
        R"({"model_type": "gpt2", "n_layer": 2, "attn_pdrop": 0.1, "embd_pdrop": 0.0, "resid_pdrop": 0.1})");
    ASSERT_EQ(TW_OK, resolve());
    expect_log("attn_pdrop of " + folder_ + "/config.json, resid_pdrop of " + folder_ +
               "/config.json mean nothing here: the model here has no dropout");
    tw_train_config_say(config_.get());
}

TEST_F(Pretrained, KeysThatSayOtherwiseAreRefused)
{
    expect_log("model.n_head is 4, but " + folder_ + "/config.json says 6");
    EXPECT_EQ(TW_ERR_CONFIG, resolve({"model.n_head=4"}));
    expect_log("model.layer_norm_epsilon is 1e-5, but " + folder_ + "/config.json says 1e-06");
    EXPECT_EQ(TW_ERR_CONFIG, resolve({"model.layer_norm_epsilon=0.00001"}));
}

TEST_F(Pretrained, WhatIsNoSuchModelIsRefused)
{
    const char *others[][2] = {{"model_type", "\"llama\""},
                               {"activation_function", "\"relu\""},
                               {"scale_attn_weights", "false"},
                               {"scale_attn_by_inverse_layer_idx", "true"},
                               {"n_inner", "100"}};
    for (const auto &other : others) {
        std::string pair = std::string("\"") + other[0] + "\": " + other[1];
        write(std::string("{") + (std::string(other[0]) == "model_type" ? "" : "\"model_type\": \"gpt2\", ") +
              pair + ", \"n_embd\": 96}");
        expect_log(std::string("config.json: ") + other[0] + " is " + other[1]);
        EXPECT_EQ(TW_ERR_CONFIG, resolve());
    }
    write("{\"model_type\": ");
    expect_log("config.json:1:");
    EXPECT_EQ(TW_ERR_CONFIG, resolve());
    write(R"({"model_type": "gpt2", "n_layer": 0})");
    expect_log("model.n_layer=0: expected a whole number");
    EXPECT_EQ(TW_ERR_CONFIG, resolve());
}

TEST_F(Pretrained, WithoutItTheKeysGiveTheShape)
{
    write(R"({"train_batch_size": 4})"); /* somebody else's */
    EXPECT_EQ(TW_OK, resolve());
    expect_shape(4, 4, 1e-5);
    EXPECT_EQ(TW_OK, resolve({}, "/no/such/file"));
    expect_shape(4, 4, 1e-5);
}

} // namespace
