/* The Llama family against PyTorch and against differences: llama2 has heads alike, llama3 a head_dim of its
 * own and Llama 3's rope, mistral a window, qwen2 biases, YaRN and a window in its second layer, qwen3 norms
 * of heads, biased biases and targets that are not learned. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "quant/arithmetic/float.h"
#include "safetensors/safetensors.h"
#include "tests/common/fixture.h"
#include "tests/trainer/model/network.h"
#include "trainer/model/kernels.h"
#include "trainer/model/rope.h"

namespace
{

using tw::random_tokens;

constexpr size_t kBatch = 2, kLength = 11;

/* As llama_reference.py has them. */
tw_model_config_t config_of(const std::string &name)
{
    tw_model_config_t config = {23, 160, 2, 2, 12, 1e-6, TW_MODEL_LLAMA, {}, TW_TYPE_FP32, 0};
    tw_model_llama_t *llama = &config.llama;
    llama->n_kv_head = 1;
    llama->head_dim = 6;
    llama->n_inner = 20;
    llama->rope.theta = 10000.0;
    llama->has_head = 1;
    if (name == "llama2") {
        llama->n_kv_head = 2;
        config.layer_norm_epsilon = 1e-5;
    } else if (name == "llama3") {
        config.n_head = 4;
        llama->n_kv_head = 2;
        llama->head_dim = 8;
        llama->has_head = 0;
        llama->rope = {50.0, TW_MODEL_ROPE_LLAMA3, 4.0, 8, 1.0, 4.0, 0, 0, 0};
    } else if (name == "mistral") {
        config.family = TW_MODEL_MISTRAL;
        llama->window = 4;
    } else if (name == "qwen2") {
        config.family = TW_MODEL_QWEN2;
        llama->head_dim = 12;
        llama->rope = {30.0, TW_MODEL_ROPE_YARN, 4.0, 40, 0, 0, 4.0, 1.0, 0};
        llama->window = 5;
        llama->window_from_layer = 1;
    } else if (name == "biased") {
        llama->attention_bias = 1;
    } else {
        config.family = TW_MODEL_QWEN3;
        config.n_head = 6;
        llama->n_kv_head = 2;
        llama->head_dim = 4;
        llama->has_head = 0;
    }
    return config;
}

class Llama : public tw::Fixture, public ::testing::WithParamInterface<const char *>
{
  protected:
    void TearDown() override
    {
        for (tw_safetensors_t *file : files_) {
            tw_safetensors_close(file);
        }
        tw::Fixture::TearDown();
    }
    void open(const std::string &name)
    {
        std::string path = std::string("tests/trainer/model/llama/") + GetParam() + "/" + name;
        files_.push_back(nullptr);
        ASSERT_EQ(TW_OK, tw_safetensors_open(path.c_str(), &files_.back()));
    }
    const tw_safetensors_tensor_t *find(const std::string &name)
    {
        for (tw_safetensors_t *file : files_) {
            if (const tw_safetensors_tensor_t *found = tw_safetensors_find(file, name.c_str())) {
                return found;
            }
        }
        ADD_FAILURE() << "no tensor " << name;
        return nullptr;
    }
    template <typename T>
    std::vector<T> values(const std::string &name)
    {
        const tw_safetensors_tensor_t *found = find(name);
        std::vector<T> out(found->bytes / sizeof(T));
        std::memcpy(out.data(), found->data, found->bytes);
        return out;
    }

    tw_model_config_t config_ = config_of(GetParam());
    std::vector<tw_safetensors_t *> files_;
};

INSTANTIATE_TEST_SUITE_P(, Llama,
                         ::testing::Values("llama2", "llama3", "mistral", "qwen2", "qwen3", "biased"),
                         [](const auto &name) { return std::string(name.param); });

TEST_P(Llama, ProductsOfBf16AgreeWithThoseOfFp32)
{
    tw::expect_bf16_products_agree(config_, kBatch, 70);
}

TEST_P(Llama, LogitsGiveTheLoss)
{
    tw::expect_logits_give_the_loss(config_);
}

TEST_P(Llama, DocumentsAreApart)
{
    tw::expect_documents_are_apart(config_, -1);
}

TEST_P(Llama, GradientsOfDocumentsAgreeWithDifferences)
{
    const std::vector<int32_t> starts = {0, 0, 0, 3, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0};
    tw::Network network(config_, 2, 7);
    network.init(5);
    tw::scatter(&network);
    for (uint16_t &weight : network.weights[0]) { /* the first norm bends less there */
        weight = tw_float_to_bf16(8.0f * tw_float_from_bf16(weight));
    }
    tw_model_set_documents(network.model, starts.data());
    tw::expect_gradients_agree_with_differences(&network, random_tokens(14, 23, 1), random_tokens(14, 23, 2));
}

/* Every element of every tensor, within a small part of the tensor's largest. */
TEST_P(Llama, LossAndGradientsArePyTorchs)
{
    open("expected.safetensors");
    open(config_.family == TW_MODEL_MISTRAL ? "model-00001-of-00002.safetensors" : "model.safetensors");
    if (config_.family == TW_MODEL_MISTRAL) {
        open("model-00002-of-00002.safetensors");
    }
    tw::Network network(config_, kBatch, kLength);
    for (size_t t = 0; t < network.n_tensors; t++) {
        const tw_model_tensor_t &tensor = network.tensors[t];
        const tw_safetensors_tensor_t *weight = find(tensor.name);
        ASSERT_EQ(tensor.n_dims, weight->n_dims) << tensor.name;
        ASSERT_EQ(tensor.shape[0], weight->dims[0]) << tensor.name;
        ASSERT_EQ(tensor.n_elems, weight->n_elems) << tensor.name;
        network.weights[t] = values<uint16_t>(tensor.name);
    }
    auto tokens = values<int32_t>("tokens"), targets = values<int32_t>("targets");
    double want = values<float>("loss")[0];
    EXPECT_NEAR(want, network.evaluate(tokens, targets), 2e-6 * want);
    EXPECT_NEAR(want, network.train(tokens, targets), 2e-6 * want);
    for (size_t t = 0; t < network.n_tensors; t++) {
        std::string name = network.tensors[t].name;
        std::vector<float> gradient = values<float>("grad." + name);
        double largest = 0.0;
        for (float value : gradient) {
            largest = std::max(largest, static_cast<double>(std::fabs(value)));
        }
        ASSERT_GT(largest, 1e-4) << name;
        for (size_t i = 0; i < gradient.size(); i++) {
            ASSERT_NEAR(gradient[i], network.grads[t][i], 3e-5 * largest) << name << " " << i;
        }
    }
}

TEST_P(Llama, Fp32Weights)
{
    tw::expect_fp32_weights_agree(config_, kBatch, kLength);
}

TEST_P(Llama, GradientsThatAreNotWanted)
{
    tw::expect_gradients_can_be_left_out(config_, kBatch, kLength);
}

TEST_P(Llama, AnglesAreTransformers)
{
    open("expected.safetensors");
    std::vector<float> want = values<float>("angles");
    ASSERT_EQ(config_.llama.head_dim / 2, want.size());
    for (size_t pair = 0; pair < want.size(); pair++) {
        EXPECT_NEAR(want[pair], tw_rope_frequency(&config_.llama.rope, config_.llama.head_dim, pair),
                    1e-6 * want[pair])
            << pair;
    }
}

TEST_P(Llama, GradientsAgreeWithDifferences)
{
    tw::Network network(config_, 3, 7);
    network.init(5);
    tw::scatter(&network);
    for (uint16_t &weight : network.weights[0]) { /* the first norm bends less there */
        weight = tw_float_to_bf16(8.0f * tw_float_from_bf16(weight));
    }
    tw::expect_gradients_agree_with_differences(&network, random_tokens(21, 23, 1), random_tokens(21, 23, 2));
}

TEST_P(Llama, RecomputingGivesTheSameBits)
{
    tw::Network kept(config_, 2, 70), again(config_, 2, 70);
    kept.init(1);
    again.init(1);
    auto tokens = random_tokens(140, 23, 1), targets = random_tokens(140, 23, 2);
    double loss = kept.train(tokens, targets);
    EXPECT_EQ(loss, again.train(tokens, targets, 1.0f, true));
    EXPECT_EQ(loss, kept.evaluate(tokens, targets));
    EXPECT_EQ(kept.grads, again.grads);
}

/* What a sequence's losses are does not depend on those beside it, nor on what follows a token. */
TEST_P(Llama, TokensSeeWhatIsBeforeThemOnly)
{
    tw::Network network(config_, 1, 12);
    network.init(1);
    tw::scatter(&network);
    auto tokens = random_tokens(12, 23, 1), targets = random_tokens(12, 23, 2);
    auto first_half = [&](const std::vector<int32_t> &x) {
        double sum = 0.0;
        for (int32_t other = 0; other < 2; other++) { /* the difference that the first six targets make */
            auto y = targets;
            std::transform(y.begin(), y.begin() + 6, y.begin(), [&](int32_t t) { return (t + other) % 23; });
            sum += (other ? 1.0 : -1.0) * network.evaluate(x, y);
        }
        return sum;
    };
    auto later = tokens, earlier = tokens;
    later[6] = (later[6] + 1) % 23;
    earlier[0] = (earlier[0] + 1) % 23;
    EXPECT_NEAR(first_half(tokens), first_half(later), 1e-7);
    EXPECT_GT(std::fabs(first_half(tokens) - first_half(earlier)), 1e-5);
}

TEST(Rope, TurnsBackAndKeepsLengths)
{
    const tw_model_rope_t rope = {100.0, TW_MODEL_ROPE_DEFAULT, 0, 0, 0, 0, 0, 0, 0};
    constexpr size_t width = 6, length = 9, pairs = width / 2;
    std::vector<float> cosines(length * pairs), sines(length * pairs);
    tw_rope_table(&rope, width, length, cosines.data(), sines.data());
    EXPECT_EQ(1.0f, cosines[0]);
    EXPECT_FLOAT_EQ(std::cos(8.0f), cosines[8 * pairs]);
    EXPECT_FLOAT_EQ(std::sin(8.0f * std::pow(100.0f, -4.0f / 6.0f)), sines[8 * pairs + 2]);
    std::vector<float> x = {1, 2, 3, 4, 5, 6}, turned = x;
    tw_kernels()->rope_turn(turned.data(), width, cosines.data() + 8 * pairs, sines.data() + 8 * pairs);
    EXPECT_NEAR(tw::norm(x), tw::norm(turned), 1e-6 * tw::norm(x));
    EXPECT_FLOAT_EQ(1 * std::cos(8.0f) - 4 * std::sin(8.0f), turned[0]);
    tw_kernels()->rope_turn_backward(turned.data(), width, cosines.data() + 8 * pairs,
                                     sines.data() + 8 * pairs);
    for (size_t i = 0; i < width; i++) {
        EXPECT_NEAR(x[i], turned[i], 1e-5);
    }
    const tw_model_rope_t yarn = {100.0, TW_MODEL_ROPE_YARN, 4.0, 8, 0, 0, 32, 1, 0};
    EXPECT_NEAR(0.1 * std::log(4.0) + 1.0, tw_rope_attention_factor(&yarn), 1e-12);
    EXPECT_EQ(1.0, tw_rope_attention_factor(&rope));
}

} // namespace
