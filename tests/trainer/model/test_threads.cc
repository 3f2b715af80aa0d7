/* A model computes the same bits with any number of threads. */
#include <array>
#include <tuple>
#include <vector>

#include "tests/common/fixture.h"
#include "tests/trainer/model/network.h"
#include "trainer/model/spread.h"

namespace
{

constexpr size_t kBatch = 2, kLength = 160;

tw_model_config_t config_of(tw_model_family_t family, tw_type_t products)
{
    /* wide enough for several ranges and pieces of nearly everything, and no multiple of anything */
    tw_model_config_t config = {300, kLength, 2, 4, 136, 1e-5, family, {}, products, 0};
    if (family != TW_MODEL_GPT2) {
        config.llama.n_kv_head = 2;
        config.llama.head_dim = 34;
        config.llama.n_inner = 350;
        config.llama.rope.theta = 10000.0;
        config.llama.has_head = 1;
    }
    return config;
}

using Kind = std::tuple<tw_model_family_t, tw_type_t>;

class Threads : public tw::Fixture, public ::testing::WithParamInterface<Kind>
{
};

TEST_P(Threads, GiveTheSameBits)
{
    auto [family, products] = GetParam();
    tw_model_config_t config = config_of(family, products);
    std::vector<int32_t> tokens = tw::random_tokens(kBatch * kLength, config.vocab_size, 1),
                         targets = tw::random_tokens(kBatch * kLength, config.vocab_size, 2);
    double loss = 0.0;
    std::vector<std::vector<float>> grads;
    for (int n_threads : {1, 2, 3, 7}) {
        tw::Network network(config, kBatch, kLength, n_threads);
        network.init(1);
        tw::scatter(&network);
        double own = network.train(tokens, targets, 0.5f, n_threads == 3);
        if (n_threads == 1) {
            loss = own;
            grads = network.grads;
        }
        EXPECT_EQ(loss, own) << n_threads;
        EXPECT_EQ(loss, network.evaluate(tokens, targets)) << n_threads;
        for (size_t t = 0; t < network.n_tensors; t++) {
            EXPECT_EQ(grads[t], network.grads[t]) << n_threads << " " << network.tensors[t].name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(, Threads,
                         ::testing::Combine(::testing::Values(TW_MODEL_GPT2, TW_MODEL_LLAMA, TW_MODEL_QWEN2,
                                                              TW_MODEL_QWEN3),
                                            ::testing::Values(TW_TYPE_FP32, TW_TYPE_BF16)));

TEST(Pieces, CoverAProduct)
{
    for (auto [rows, cols, inner] : std::vector<std::array<size_t, 3>>{{1, 1, 1},
                                                                       {64, 64, 64},
                                                                       {512, 768, 768},
                                                                       {513, 50257, 768},
                                                                       {50257, 768, 512},
                                                                       {4096, 100, 4096}}) {
        tw_product_t product = {};
        product.rows = rows;
        product.cols = cols;
        product.inner = inner;
        tw_pieces_t pieces = tw_product_pieces(&product);
        EXPECT_GE(pieces.n_rows * pieces.rows, rows);
        EXPECT_LT((pieces.n_rows - 1) * pieces.rows, rows);
        EXPECT_GE(pieces.n_cols * pieces.cols, cols);
        EXPECT_LT((pieces.n_cols - 1) * pieces.cols, cols);
        EXPECT_EQ(rows * cols * inner > 100000000, pieces.n_rows * pieces.n_cols > 1);
        EXPECT_LE(pieces.n_rows * pieces.n_cols, 16u);
    }
}

/* In parts of matrices, with each kind of transposition; what lies beside the result stays. */
TEST(Pieces, MakeTheProduct)
{
    const size_t rows = 301, cols = 523, inner = 130, stride = 530;
    std::vector<float> a(stride * stride), b(stride * stride), whole(rows * stride, 3.0f);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = static_cast<float>(i % 17) - 8.0f;
        b[i] = static_cast<float>(i % 13) - 6.0f;
    }
    tw_products_t *products[3] = {};
    for (tw_products_t *&one : products) {
        ASSERT_EQ(TW_OK, tw_products_create(&one));
    }
    tw_compute_t compute = {};
    ASSERT_EQ(TW_OK, tw_pool_create(3, &compute.pool));
    compute.products = products;
    for (int form = 0; form < 4; form++) {
        std::vector<float> cut = whole, plain = whole;
        tw_product_t product = {{a.data(), stride, form & 1, TW_TYPE_FP32},
                                {b.data(), stride, form >> 1, TW_TYPE_FP32},
                                plain.data(),
                                stride,
                                rows,
                                cols,
                                inner,
                                0.5f,
                                form == 3 ? 1.0f : 0.0f};
        tw_pieces_t pieces = tw_product_pieces(&product);
        EXPECT_GT(pieces.n_rows * pieces.n_cols, 3u);
        tw_product_plain(&product);
        product.c = cut.data();
        tw_spread_product(&compute, &product);
        EXPECT_EQ(plain, cut) << form; /* small integers: exact in whatever order */
    }
    tw_pool_destroy(compute.pool);
    for (tw_products_t *one : products) {
        tw_products_destroy(one);
    }
}

class ModelPool : public tw::Fixture
{
};

TEST_F(ModelPool, IsChosenBeforeMemoryIsReserved)
{
    tw_model_config_t config = config_of(TW_MODEL_GPT2, TW_TYPE_FP32);
    tw_model_t *model = nullptr;
    tw_pool_t *pool = nullptr;
    ASSERT_EQ(TW_OK, tw_model_create(&config, &model));
    ASSERT_EQ(TW_OK, tw_pool_create(2, &pool));
    EXPECT_EQ(nullptr, tw_model_pool(model));
    size_t alone = tw_model_sizes_get(model, 1, 8).scratch_bytes;
    EXPECT_EQ(TW_OK, tw_model_set_pool(model, pool));
    EXPECT_EQ(pool, tw_model_pool(model));
    EXPECT_GT(tw_model_sizes_get(model, 1, 8).scratch_bytes, alone);
    EXPECT_EQ(TW_OK, tw_model_reserve(model, 1, 8));
    expect_log("its threads are chosen before memory is reserved");
    EXPECT_EQ(TW_ERR_INVALID, tw_model_set_pool(model, nullptr));
    tw_model_destroy(model);
    tw_pool_destroy(pool);
}

} // namespace
