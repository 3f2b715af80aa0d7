#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "quant/arithmetic/float.h"
#include "safetensors/safetensors.h"
#include "tests/common/fixture.h"
#include "tests/trainer/model/network.h"

namespace
{

/* As reference.py has it. */
constexpr tw_model_config_t kReference = {31, 13, 2, 3, 24, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
constexpr size_t kBatch = 2, kLength = 11;

using tw::norm;
using tw::random_tokens;

class Gpt2 : public tw::Fixture
{
};

class Gpt2AndPyTorch : public Gpt2
{
  protected:
    void SetUp() override
    {
        Gpt2::SetUp();
        ASSERT_EQ(TW_OK, tw_safetensors_open("tests/trainer/model/reference.safetensors", &file_));
        network_ = std::make_unique<tw::Network>(kReference, kBatch, kLength);
        for (size_t t = 0; t < network_->n_tensors; t++) {
            const tw_model_tensor_t &tensor = network_->tensors[t];
            const tw_safetensors_tensor_t *weight = find(tensor.name);
            ASSERT_EQ(tensor.n_dims, weight->n_dims) << tensor.name;
            ASSERT_EQ(tensor.shape[0], weight->dims[0]) << tensor.name;
            ASSERT_EQ(tensor.n_elems, weight->n_elems) << tensor.name;
            std::memcpy(network_->weights[t].data(), weight->data, weight->bytes);
        }
        tokens_ = integers("tokens");
        targets_ = integers("targets");
    }
    void TearDown() override
    {
        network_.reset();
        tw_safetensors_close(file_);
        Gpt2::TearDown();
    }
    const tw_safetensors_tensor_t *find(const std::string &name)
    {
        const tw_safetensors_tensor_t *found = tw_safetensors_find(file_, name.c_str());
        EXPECT_NE(nullptr, found) << name;
        return found;
    }
    std::vector<int32_t> integers(const std::string &name)
    {
        std::vector<int32_t> values(kBatch * kLength);
        std::memcpy(values.data(), find(name)->data, values.size() * sizeof(int32_t));
        return values;
    }
    std::vector<float> floats(const std::string &name)
    {
        std::vector<float> values(find(name)->n_elems);
        std::memcpy(values.data(), find(name)->data, values.size() * sizeof(float));
        return values;
    }

    tw_safetensors_t *file_ = nullptr;
    std::unique_ptr<tw::Network> network_;
    std::vector<int32_t> tokens_, targets_;
};

TEST_F(Gpt2AndPyTorch, LossesAreEqual)
{
    double want = floats("loss")[0];
    EXPECT_NEAR(want, network_->evaluate(tokens_, targets_), 1e-6 * want);
    EXPECT_NEAR(want, network_->train(tokens_, targets_), 1e-6 * want);
}

/* Every element of every tensor, within a small part of the tensor's largest: fp32 against fp64. */
TEST_F(Gpt2AndPyTorch, GradientsAreEqual)
{
    network_->train(tokens_, targets_);
    for (size_t t = 0; t < network_->n_tensors; t++) {
        std::string name = network_->tensors[t].name;
        std::vector<float> want = floats("grad." + name);
        double largest = 0.0;
        for (float value : want) {
            largest = std::max(largest, static_cast<double>(std::fabs(value)));
        }
        ASSERT_GT(largest, 1e-4) << name;
        for (size_t i = 0; i < want.size(); i++) {
            ASSERT_NEAR(want[i], network_->grads[t][i], 1e-5 * largest) << name << " " << i;
        }
    }
}

TEST_F(Gpt2AndPyTorch, Fp32WeightsGiveTheSame)
{
    tw_model_config_t config = kReference;
    config.fp32_weights = 1;
    tw::Network network(config, kBatch, kLength);
    network.weights = network_->weights;
    network.widen();
    double want = floats("loss")[0];
    EXPECT_NEAR(want, network.train(tokens_, targets_), 1e-6 * want);
    network_->train(tokens_, targets_);
    EXPECT_EQ(network_->grads, network.grads);
}

TEST_F(Gpt2, Fp32Weights)
{
    tw::expect_fp32_weights_agree({31, 80, 2, 2, 12, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, 2, 70);
}

TEST_F(Gpt2, GradientsThatAreNotWanted)
{
    for (tw_type_t products : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        tw::expect_gradients_can_be_left_out({31, 16, 2, 2, 12, 1e-5, TW_MODEL_GPT2, {}, products, 0}, 2, 9);
    }
}

/* With a length above the tile of attention and several chunks of logits' rows would be too slow here:
 * test_kernels.cc. */
TEST_F(Gpt2, GradientsAgreeWithDifferences)
{
    constexpr tw_model_config_t config = {19, 9, 2, 2, 12, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network network(config, 3, 7);
    network.init(5);
    tw::scatter(&network);
    tw::expect_gradients_agree_with_differences(&network, random_tokens(21, 19, 1), random_tokens(21, 19, 2));
}

TEST_F(Gpt2, ProductsOfBf16AgreeWithThoseOfFp32)
{
    tw::expect_bf16_products_agree({50, 80, 2, 2, 32, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, 2, 70);
}

TEST_F(Gpt2, RecomputingGivesTheSameBits)
{
    constexpr tw_model_config_t config = {50, 80, 3, 2, 16, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network kept(config, 2, 70), again(config, 2, 70);
    kept.init(1);
    again.init(1);
    auto tokens = random_tokens(140, 50, 1), targets = random_tokens(140, 50, 2);
    double loss = kept.train(tokens, targets);
    EXPECT_EQ(loss, again.train(tokens, targets, 1.0f, true));
    EXPECT_EQ(loss, kept.evaluate(tokens, targets));
    EXPECT_EQ(kept.grads, again.grads);
}

/* Two micro-batches of half the scale add up to about what one batch of both gives. */
TEST_F(Gpt2, GradientsAddUp)
{
    constexpr tw_model_config_t config = {50, 16, 2, 2, 16, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network whole(config, 2, 9), halves(config, 1, 9);
    whole.init(1);
    halves.init(1);
    auto tokens = random_tokens(18, 50, 1), targets = random_tokens(18, 50, 2);
    double want = whole.train(tokens, targets), got = 0.0;
    for (int half = 0; half < 2; half++) {
        std::vector<int32_t> x(tokens.begin() + 9 * half, tokens.begin() + 9 * half + 9);
        std::vector<int32_t> y(targets.begin() + 9 * half, targets.begin() + 9 * half + 9);
        got += 0.5 * halves.train(x, y, 0.5f);
    }
    EXPECT_NEAR(want, got, 1e-6 * want);
    for (size_t t = 0; t < whole.n_tensors; t++) {
        double bound = 1e-5 * norm(whole.grads[t]) + 1e-9;
        for (size_t i = 0; i < whole.grads[t].size(); i++) {
            ASSERT_NEAR(whole.grads[t][i], halves.grads[t][i], bound) << whole.tensors[t].name;
        }
    }
}

/* A vocabulary so large that the logits are made some rows at a time. */
TEST_F(Gpt2, ChunksOfLogitsChangeNothing)
{
    constexpr tw_model_config_t config = {65536, 100, 1, 1, 4, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network many(config, 1, 100), few(config, 1, 5);
    many.init(1);
    few.init(1);
    auto tokens = random_tokens(100, 65536, 1), targets = random_tokens(100, 65536, 2);
    double loss = many.evaluate(tokens, targets);
    EXPECT_NEAR(std::log(65536.0), loss, 0.01);
    EXPECT_EQ(loss, many.train(tokens, targets));
    std::vector<int32_t> first(tokens.begin(), tokens.begin() + 5);
    double sum = 0.0;
    for (int32_t target = 0; target < 3; target++) {
        sum += std::exp(-few.evaluate(first, std::vector<int32_t>(5, target)));
    }
    EXPECT_NEAR(3.0 / 65536.0, sum, 0.1 / 65536.0);
}

TEST_F(Gpt2, LogitsGiveTheLoss)
{
    for (tw_type_t products : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        tw::expect_logits_give_the_loss({31, 8, 2, 2, 12, 1e-5, TW_MODEL_GPT2, {}, products, 0});
    }
}

TEST_F(Gpt2, DocumentsAreApart)
{
    tw::expect_documents_are_apart({31, 160, 2, 2, 12, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, 1);
}

TEST_F(Gpt2, TokensOutsideTheVocabularyAreRefused)
{
    constexpr tw_model_config_t config = {7, 4, 1, 1, 4, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network network(config, 1, 3);
    std::vector<const void *> root;
    for (size_t t = 0; t < 4; t++) {
        root.push_back(network.weights[t].data());
    }
    std::vector<float> x(12);
    double loss;
    int32_t high[] = {0, 6, 7}, negative[] = {0, -2, 3}; /* -1: there is none */
    expect_log("token 2 of sequence 0 is 7");
    EXPECT_EQ(TW_ERR_INVALID, tw_model_embed_forward(network.model, root.data(), high, x.data()));
    expect_log("target 1 of sequence 0 is -2");
    EXPECT_EQ(TW_ERR_INVALID,
              tw_model_head(network.model, root.data(), x.data(), negative, 1.0f, &loss, nullptr, nullptr));
}

TEST_F(Gpt2, NanWeightsGiveANanLoss)
{
    constexpr tw_model_config_t config = {7, 4, 1, 1, 4, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network network(config, 1, 3);
    network.init(1);
    network.weights[network.find("transformer.h.0.mlp.c_fc.weight")][5] = 0x7fc0;
    EXPECT_TRUE(std::isnan(network.evaluate({1, 2, 3}, {2, 3, 4})));
}

/* It learns: plain descent on one batch. */
TEST_F(Gpt2, DescentLowersTheLoss)
{
    constexpr tw_model_config_t config = {16, 8, 1, 2, 16, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw::Network network(config, 2, 8);
    network.init(3);
    auto tokens = random_tokens(16, 16, 1), targets = random_tokens(16, 16, 2);
    double first = network.evaluate(tokens, targets), last = first;
    for (int step = 0; step < 60; step++) {
        last = network.train(tokens, targets);
        for (size_t t = 0; t < network.n_tensors; t++) {
            for (size_t i = 0; i < network.grads[t].size(); i++) {
                float weight = tw_float_from_bf16(network.weights[t][i]) - 0.5f * network.grads[t][i];
                network.weights[t][i] = tw_float_to_bf16(weight);
                network.grads[t][i] = 0.0f;
            }
        }
    }
    EXPECT_NEAR(std::log(16.0), first, 0.1);
    EXPECT_LT(last, 0.5 * first);
}

} // namespace
