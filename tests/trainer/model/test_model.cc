#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/common/fixture.h"
#include "trainer/model/model.h"

namespace
{

class Model : public tw::Fixture
{
  protected:
    void TearDown() override
    {
        tw_model_destroy(model_);
        tw::Fixture::TearDown();
    }
    void create(const tw_model_config_t &config)
    {
        tw_model_destroy(model_);
        model_ = nullptr;
        ASSERT_EQ(TW_OK, tw_model_create(&config, &model_));
    }
    tw_model_t *model_ = nullptr;
};

constexpr tw_model_config_t kSmall = {11, 5, 2, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};

TEST_F(Model, PresetsHaveThePublishedSizes)
{
    const struct {
        const char *name;
        size_t n_params;
    } published[] = {{"gpt2", 124439808},         {"gpt2-medium", 354823168},  {"gpt2-large", 774030080},
                     {"gpt2-xl", 1557611200},     {"llama2-7b", 6738415616},   {"llama3.1-8b", 8030261248},
                     {"llama3.2-1b", 1235814400}, {"mistral-7b", 7241732096},  {"qwen2.5-0.5b", 494032768},
                     {"qwen3-0.6b", 596049920},   {"llama3.2-3b", 3212749824}, {"qwen2.5-1.5b", 1543714304},
                     {"qwen2.5-7b", 7615616512},  {"qwen3-1.7b", 1720574976},  {"qwen3-4b", 4022468096},
                     {"qwen3-8b", 8190735360}};
    for (const auto &want : published) {
        tw_model_config_t config;
        ASSERT_EQ(TW_OK, tw_model_config_preset(want.name, &config));
        create(config);
        EXPECT_EQ(want.n_params, tw_model_n_params(model_)) << want.name;
    }
    tw_model_config_t unused;
    expect_log("no model 'gpt3'");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_model_config_preset("gpt3", &unused));
}

TEST_F(Model, TensorsAndUnits)
{
    create(kSmall);
    size_t n_tensors, n_params = 0, next = 0;
    const tw_model_tensor_t *tensors = tw_model_tensors(model_, &n_tensors);
    ASSERT_EQ(3u, tw_model_n_units(model_));
    std::set<std::string> names;
    for (size_t unit = 0; unit < 3; unit++) {
        const tw_model_unit_t *of = tw_model_unit_get(model_, unit);
        EXPECT_EQ(next, of->first_tensor);
        size_t n_elems = 0;
        for (size_t t = next; t < next + of->n_tensors; t++) {
            EXPECT_EQ(static_cast<int>(unit), tensors[t].unit);
            EXPECT_EQ(tensors[t].shape[0] * tensors[t].shape[1], tensors[t].n_elems);
            EXPECT_EQ(tensors[t].n_dims == 2, tensors[t].decay == 1);
            names.insert(tensors[t].name);
            n_elems += tensors[t].n_elems;
        }
        EXPECT_EQ(n_elems, of->n_elems);
        n_params += n_elems;
        next += of->n_tensors;
    }
    EXPECT_EQ(n_tensors, next);
    EXPECT_EQ(n_tensors, names.size());
    EXPECT_EQ(n_params, tw_model_n_params(model_));
    EXPECT_EQ(1u, names.count("transformer.h.1.mlp.c_proj.bias"));
    EXPECT_STREQ("transformer.wte.weight", tensors[0].name);
}

TEST_F(Model, InitialValuesDoNotDependOnTheCut)
{
    create(kSmall);
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model_, &n_tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        std::vector<float> whole(tensors[t].n_elems), part(tensors[t].n_elems, NAN);
        tw_model_init(model_, t, 0, whole.size(), 9, whole.data());
        for (size_t first = 0; first < part.size(); first += 5) {
            tw_model_init(model_, t, first, std::min<size_t>(5, part.size() - first), 9, &part[first]);
        }
        EXPECT_EQ(whole, part) << tensors[t].name;
    }
}

TEST_F(Model, InitialValuesAreNormalAndDiffer)
{
    create({256, 128, 8, 4, 128, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0});
    std::vector<float> wte(32768), other(32768), seeded(32768);
    tw_model_init(model_, 0, 0, wte.size(), 1, wte.data());
    tw_model_init(model_, 0, 0, seeded.size(), 2, seeded.data());
    tw_model_init(model_, 1, 0, 16384, 1, other.data());
    double sum = 0.0, squares = 0.0, with_seeded = 0.0, with_other = 0.0, beyond = 0.0;
    for (size_t i = 0; i < wte.size(); i++) {
        sum += wte[i];
        squares += static_cast<double>(wte[i]) * wte[i];
        with_seeded += static_cast<double>(wte[i]) * seeded[i];
        with_other += static_cast<double>(wte[i]) * other[i];
        beyond += std::fabs(wte[i]) > 0.04f;
    }
    double n = static_cast<double>(wte.size()), deviation = 1.0 / std::sqrt(n);
    EXPECT_NEAR(0.0, sum / n / 0.02, 4.0 * deviation);
    EXPECT_NEAR(1.0, squares / n / 4e-4, 4.0 * std::sqrt(2.0) * deviation);
    EXPECT_NEAR(0.0, with_seeded / n / 4e-4, 4.0 * deviation);
    EXPECT_NEAR(0.0, with_other / n / 4e-4, 4.0 * deviation);
    EXPECT_NEAR(0.0455, beyond / n, 0.005);
    size_t n_tensors;
    const tw_model_tensor_t *tensors = tw_model_tensors(model_, &n_tensors);
    EXPECT_NEAR(0.02 / 4.0, tensors[tw_model_unit_get(model_, 1)->first_tensor + 4].init_std, 1e-12);
}

TEST_F(Model, WhatIsNoModelIsRefused)
{
    const struct {
        tw_model_config_t config;
        const char *said;
    } wrong[] = {
        {{0, 5, 2, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "vocab_size is 0"},
        {{1048577, 5, 2, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "vocab_size is 1048577"},
        {{11, 0, 2, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "n_positions is 0"},
        {{11, 5, 0, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "n_layer is 0"},
        {{11, 5, 2, 0, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "n_head is 0"},
        {{11, 5, 2, 2, 0, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "n_embd is 0"},
        {{11, 5, 2, 4, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "does not divide"},
        {{11, 5, 2, 2, 6, NAN, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0}, "layer_norm_epsilon"},
        {{11, 5, 2, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_BF16, 1}, "fp32 weights need fp32 products"}};
    for (const auto &one : wrong) {
        expect_log(one.said);
        EXPECT_EQ(TW_ERR_INVALID, tw_model_create(&one.config, &model_)) << one.said;
    }
    create(kSmall);
    expect_log("no micro-batch of 0 sequences");
    EXPECT_EQ(TW_ERR_INVALID, tw_model_reserve(model_, 0, 5));
    expect_log("of 6 tokens");
    EXPECT_EQ(TW_ERR_INVALID, tw_model_reserve(model_, 1, 6));
    EXPECT_EQ(TW_OK, tw_model_reserve(model_, 1, 5));
    EXPECT_EQ(TW_OK, tw_model_reserve(model_, 3, 2));
}

TEST_F(Model, WhatIsNoLlamaIsRefused)
{
    tw_model_config_t good;
    ASSERT_EQ(TW_OK, tw_model_config_preset("llama3.2-1b", &good));
    const struct {
        void (*change)(tw_model_config_t *config);
        const char *said;
    } wrong[] = {
        {[](tw_model_config_t *c) { c->llama.n_kv_head = 0; }, "n_kv_head is 0"},
        {[](tw_model_config_t *c) { c->llama.n_kv_head = 33; }, "n_kv_head is 33, but must be from 1 to 32"},
        {[](tw_model_config_t *c) { c->llama.n_kv_head = 5; }, "n_kv_head 5 does not divide n_head 32"},
        {[](tw_model_config_t *c) { c->llama.head_dim = 0; }, "head_dim is 0"},
        {[](tw_model_config_t *c) { c->llama.head_dim = 63; }, "head_dim is 63, but channels turn in pairs"},
        {[](tw_model_config_t *c) { c->llama.n_inner = 0; }, "n_inner is 0"},
        {[](tw_model_config_t *c) { c->llama.rope.theta = 1.0; }, "rope_theta is 1"},
        {[](tw_model_config_t *c) { c->llama.rope.factor = 0.5; }, "rope_scaling.factor is 0.5"},
        {[](tw_model_config_t *c) { c->llama.rope.n_positions = 0; },
         "original_max_position_embeddings is 0"},
        {[](tw_model_config_t *c) { c->llama.rope.low_freq_factor = NAN; }, "low_freq_factor is nan"},
        {[](tw_model_config_t *c) { c->llama.rope.high_freq_factor = 1; }, "high_freq_factor is 1"},
        {[](tw_model_config_t *c) { c->llama.rope.type = TW_MODEL_ROPE_YARN; }, "beta_slow is 0"},
    };
    for (const auto &one : wrong) {
        tw_model_config_t config = good;
        one.change(&config);
        expect_log(one.said);
        EXPECT_EQ(TW_ERR_INVALID, tw_model_create(&config, &model_)) << one.said;
    }
    EXPECT_STREQ("qwen3", tw_model_family_name(TW_MODEL_QWEN3));
    EXPECT_EQ(nullptr, tw_model_family_name(TW_MODEL_FAMILY_COUNT));
}

/* 6 operations for each weight of a product and token, and of attention 12 for each channel and token that is
 * seen. */
TEST_F(Model, OperationsAreCounted)
{
    tw_model_config_t config;
    ASSERT_EQ(TW_OK, tw_model_config_preset("mistral-7b", &config));
    create(config);
    double c = 4096, block = c * (c + 2 * 1024) + c * c + 3 * c * 14336;
    for (double length : {1000.0, 4096.0}) {
        EXPECT_DOUBLE_EQ(32000 * c, tw_model_unit_products(model_, 0, (size_t)length));
        EXPECT_DOUBLE_EQ(block + c * length, tw_model_unit_products(model_, 5, (size_t)length));
    }
    EXPECT_DOUBLE_EQ(block + 2 * c * (4096 - 1024), tw_model_unit_products(model_, 1, 8192));
    EXPECT_DOUBLE_EQ(6 * 2 * 1000 * (32000 * c + 32 * (block + 1000 * c)),
                     tw_model_step_flops(model_, 2, 1000));
}

TEST_F(Model, AShapeForACount)
{
    for (size_t n_params : {1000000, 3000000, 10000000, 100000000}) {
        tw_model_config_t config = tw_model_config_for_params(n_params, 256, 256);
        create(config);
        double ratio = static_cast<double>(tw_model_n_params(model_)) / static_cast<double>(n_params);
        EXPECT_GT(ratio, 0.85) << n_params;
        EXPECT_LT(ratio, 1.15) << n_params;
        EXPECT_GE(config.n_embd, 128u);
    }
    EXPECT_EQ(1u, tw_model_config_for_params(1, 256, 16).n_layer);
}

/* Of vectors of length 1 come vectors of about length 1, whichever side they are multiplied from. */
TEST_F(Model, MatricesBecomeOrthogonal)
{
    constexpr tw_model_config_t config = {7, 4, 1, 1, 4, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw_model_t *model;
    ASSERT_EQ(TW_OK, tw_model_create(&config, &model));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const size_t shapes[][2] = {{4, 40}, {40, 4}, {30, 90}, {1, 7}, {7, 1}};
    for (const auto &shape : shapes) {
        size_t rows = shape[0], cols = shape[1], side = std::min(rows, cols), n = rows * cols;
        std::vector<float> x(n), scratch(tw_model_orthogonal_of(model, rows, cols).scratch_elems);
        for (float &value : x) {
            value = 100.0F * normal(random);
        }
        std::vector<float> before = x;
        ASSERT_EQ(TW_OK, tw_model_orthogonalize(model, rows, cols, x.data(), scratch.data(), nullptr));
        double along = 0.0;
        for (size_t i = 0; i < n; i++) {
            along += before[i] * x[i];
        }
        EXPECT_GT(along, 0.0);
        for (int trial = 0; trial < 50; trial++) {
            std::vector<double> from(side), to(n / side);
            double length = 0.0, image = 0.0;
            for (double &value : from) {
                value = normal(random);
                length += value * value;
            }
            for (size_t i = 0; i < n; i++) {
                size_t row = i / cols, col = i % cols;
                to[rows <= cols ? col : row] += from[rows <= cols ? row : col] * x[i];
            }
            for (double value : to) {
                image += value * value;
            }
            EXPECT_NEAR(1.0, std::sqrt(image / length), 0.4) << rows << " x " << cols;
        }
    }
    std::vector<float> zeros(12), scratch(tw_model_orthogonal_of(model, 3, 4).scratch_elems);
    ASSERT_EQ(TW_OK, tw_model_orthogonalize(model, 3, 4, zeros.data(), scratch.data(), nullptr));
    EXPECT_EQ(std::vector<float>(12), zeros);
    tw_model_destroy(model);
}

} // namespace
