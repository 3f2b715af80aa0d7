/* The shape of a model that weights come from. */
#include <cmath>
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
            R"({"model_type": "gpt2", "n_layer": 3, "n_head": 6, "n_embd": 96, "n_positions": 64,
                  "vocab_size": 301,
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
        sets.insert(sets.begin(), "model.init_from=" + folder_ + what);
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
    const char *others[][2] = {{"model_type", "\"bert\""},
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

/* As transformers 4 writes it; what is not there has transformers' defaults. */
constexpr const char *kQwen3 =
    R"("model_type": "qwen3", "hidden_act": "silu", "num_hidden_layers": 3, "num_attention_heads": 6,
       "hidden_size": 96, "intermediate_size": 200, "max_position_embeddings": 64, "vocab_size": 151936)";

TEST_F(Pretrained, AKeyOfLlamasHasTransformersDefaults)
{
    write(std::string("{") + kQwen3 + "}");
    ASSERT_EQ(TW_OK, resolve());
    expect_shape(3, 6, 1e-6);
    const tw_train_options_t &o = options_of(config_);
    EXPECT_EQ(4, o.family);
    EXPECT_EQ(200, o.n_inner);
    EXPECT_EQ(151936, o.vocab_size);
    EXPECT_EQ(6, o.n_kv_head);
    EXPECT_EQ(128, o.head_dim);
    EXPECT_EQ(10000, o.rope_theta);
    EXPECT_EQ(0, o.rope_type);
    EXPECT_FALSE(o.tied);
    EXPECT_EQ(0, o.window);
}

TEST_F(Pretrained, RotaryAnglesAreTaken)
{
    write(std::string("{") + kQwen3 +
          R"(, "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": true,
               "rope_theta": 1000000, "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16,
               "original_max_position_embeddings": 32, "mscale": 2.0, "mscale_all_dim": 1.0}})");
    ASSERT_EQ(TW_OK, resolve());
    expect_shape(3, 6, 1e-5);
    const tw_train_options_t &o = options_of(config_);
    EXPECT_EQ(2, o.n_kv_head);
    EXPECT_EQ(16, o.head_dim);
    EXPECT_TRUE(o.tied);
    EXPECT_EQ(1e6, o.rope_theta);
    EXPECT_EQ(3, o.rope_type);
    EXPECT_EQ(4, o.rope_factor);
    EXPECT_EQ(16, o.rope_fast);
    EXPECT_EQ(1, o.rope_slow);
    EXPECT_EQ(32, o.rope_positions);
    EXPECT_NEAR((0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1), o.rope_attention, 1e-12);
    write(std::string("{") + kQwen3 +
          R"(, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8,
               "low_freq_factor": 2, "high_freq_factor": 5.0, "original_max_position_embeddings": 16}})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(2, options_of(config_).rope_type);
    EXPECT_EQ(5e5, options_of(config_).rope_theta);
    EXPECT_EQ(8, options_of(config_).rope_factor);
    EXPECT_EQ(2, options_of(config_).rope_low);
    EXPECT_EQ(5, options_of(config_).rope_high);
    expect_log("model.rope_theta is 10000, but " + folder_ + "/config.json says 500000");
    EXPECT_EQ(TW_ERR_CONFIG, resolve({"model.rope_theta=1e4"}));
}

TEST_F(Pretrained, WindowsAreTaken)
{
    const std::string used = R"(, "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 2)";
    write(std::string("{") + kQwen3 + used + R"(, "layer_types": ["full_attention", "full_attention",
               "sliding_attention"]})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(9, options_of(config_).window);
    EXPECT_EQ(2, options_of(config_).window_from_layer);
    write(std::string("{") + kQwen3 + R"(, "use_sliding_window": false, "sliding_window": 9})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(0, options_of(config_).window);
    std::string mistral = kQwen3;
    mistral.replace(mistral.find("qwen3"), 5, "mistral");
    write("{" + mistral + R"(, "sliding_window": 7})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(7, options_of(config_).window);
    EXPECT_EQ(0, options_of(config_).window_from_layer);
    EXPECT_EQ(16, options_of(config_).head_dim);
    write("{" + mistral + R"(, "sliding_window": null})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(0, options_of(config_).window);
    write(std::string("{") + kQwen3 + used + R"(, "layer_types": ["sliding_attention", "full_attention",
               "sliding_attention"]})");
    expect_log("config.json: layer_types is ");
    EXPECT_EQ(TW_ERR_CONFIG, resolve());
}

TEST_F(Pretrained, BiasesOfAttention)
{
    write(std::string("{") + kQwen3 + R"(, "attention_bias": true})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(1, options_of(config_).attention_bias);
    write(std::string("{") + kQwen3 + R"(, "attention_bias": false})");
    ASSERT_EQ(TW_OK, resolve());
    EXPECT_EQ(0, options_of(config_).attention_bias);
    std::string mistral = kQwen3;
    mistral.replace(mistral.find("qwen3"), 5, "mistral");
    write("{" + mistral + R"(, "attention_bias": true})");
    expect_log("config.json: attention_bias is true; the model here has false");
    EXPECT_EQ(TW_ERR_CONFIG, resolve());
}

TEST_F(Pretrained, WhatNoModelOfTheFamilyHasIsRefused)
{
    const char *others[][2] = {{"hidden_act", "\"gelu\""},
                               {"mlp_bias", "true"},
                               {"partial_rotary_factor", "0.5"},
                               {"num_hidden_layers", "\"three\""},
                               {"rope_type", "\"longrope\""},
                               {"long_factor", "[1]"},
                               {"truncate", "false"}};
    for (const auto &other : others) {
        std::string pair = std::string("\"") + other[0] + "\": " + other[1], text = kQwen3;
        std::string name = other[0];
        if (name == "rope_type") {
            text += ", \"rope_scaling\": {" + pair + "}";
        } else if (name == "long_factor" || name == "truncate") {
            text += ", \"rope_scaling\": {\"rope_type\": \"yarn\", " + pair + "}";
        } else {
            text += ", " + pair; /* the later one counts */
        }
        write("{" + text + "}");
        expect_log("config.json: " + name + " is " + other[1]);
        EXPECT_EQ(TW_ERR_CONFIG, resolve()) << name;
    }
    write(R"({"model_type": "llama"})");
    expect_log("config.json: num_hidden_layers is missing");
    EXPECT_EQ(TW_ERR_CONFIG, resolve());
    expect_log("model.sliding_window is not there in model.family llama");
    EXPECT_EQ(TW_ERR_CONFIG, resolve({"model.init_from=", "model.sliding_window=9", "model.family=llama"}));
    expect_log("model.max_window_layers is not there in model.family mistral");
    EXPECT_EQ(TW_ERR_CONFIG,
              resolve({"model.init_from=", "model.max_window_layers=1", "model.family=mistral"}));
    expect_log("model.n_params makes the shape of a GPT-2");
    EXPECT_EQ(TW_ERR_CONFIG, resolve({"model.n_params=1e6", "model.family=llama"}));
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
