#include <gtest/gtest.h>

#include <vector>

#include "tests/common/fixture.h"
#include "trainer/model/linear.h"

namespace
{

using Products = tw::Fixture;

TEST_F(Products, TheInstalledOnesAreRight)
{
    EXPECT_EQ(TW_OK, tw_products_check(tw_product_run));
}

TEST_F(Products, PlainOnesAreRight)
{
    EXPECT_EQ(TW_OK, tw_products_check([](tw_products_t *, const tw_product_t *p) { tw_product_plain(p); }));
}

TEST_F(Products, OneWrongElementIsSeen)
{
    expect_log("multiplies matrices wrong on this processor");
    EXPECT_EQ(TW_ERR_INTERNAL, tw_products_check([](tw_products_t *products, const tw_product_t *p) {
                  tw_product_run(products, p);
                  p->c[p->c_stride * (p->rows - 1) + p->cols - 1] *= 1.0f + 0x1p-16f;
              }));
}

TEST_F(Products, AWrongFormIsSeen)
{
    expect_log("wrong");
    EXPECT_EQ(TW_ERR_INTERNAL, tw_products_check([](tw_products_t *products, const tw_product_t *p) {
                  tw_product_t other = *p;
                  other.beta = 0.0f; /* forgets what was there */
                  tw_product_run(products, &other);
              }));
}

TEST_F(Products, WrongOnesOfBf16AreSeen)
{
    if (!tw_products_have_bf16()) {
        GTEST_SKIP() << "this processor has no products of bf16";
    }
    expect_log("wrong");
    EXPECT_EQ(TW_ERR_INTERNAL, tw_products_check([](tw_products_t *products, const tw_product_t *p) {
                  tw_product_run(products, p);
                  p->c[0] *= p->a.type == TW_TYPE_BF16 ? 1.0f + 0x1p-16f : 1.0f;
              }));
}

/* y = x w, worked out by hand, in both types and with either way to store w. */
class Layer : public ::testing::TestWithParam<std::tuple<tw_type_t, int>>
{
};

TEST_P(Layer, ForwardAndBackward)
{
    auto [type, is_out_in] = GetParam();
    tw_products_t *products = nullptr;
    ASSERT_EQ(TW_OK, tw_products_create(&products));
    std::vector<float> x = {1, 2, 3, 4, 5, 6}, wide(6); /* (2,3) */
    std::vector<float> w = {1, 0, 0, 1, 2, -1};         /* (3,2) */
    if (is_out_in) {
        w = {1, 0, 2, 0, 1, -1};
    }
    std::vector<uint16_t> w16(6), narrow(6), narrow_d(6);
    tw_kernels()->narrow(w.data(), 6, w16.data());
    const tw_compute_t compute = {&products,    1,           tw_kernels(),  nullptr,        type,
                                  TW_TYPE_BF16, wide.data(), narrow.data(), narrow_d.data()};
    const tw_layer_t layer = {2, 3, 2, 2, is_out_in};
    tw_matrix_t x_factor = tw_factor(&compute, x.data(), 6, 3, narrow.data());
    std::vector<float> y = {10, 20, 10, 20}, dy = {1, -1, 2, 0};
    tw_layer_forward(&compute, layer, x_factor, w16.data(), 0.0f, y.data());
    EXPECT_EQ((std::vector<float>{7, -1, 16, -1}), y);
    tw_layer_forward(&compute, layer, x_factor, w16.data(), 1.0f, y.data());
    EXPECT_EQ((std::vector<float>{14, -2, 32, -2}), y);

    std::vector<float> dw(6, 1), dx(6, 7);
    tw_matrix_t dy_factor = tw_factor(&compute, dy.data(), 4, 2, narrow_d.data());
    tw_layer_backward_weight(&compute, layer, x_factor, dy_factor, dw.data());
    EXPECT_EQ(is_out_in ? (std::vector<float>{10, 13, 16, 0, -1, -2})
                        : (std::vector<float>{10, 0, 13, -1, 16, -2}),
              dw);
    tw_layer_backward_input(&compute, layer, dy_factor, w16.data(), 0.0f, dx.data());
    EXPECT_EQ((std::vector<float>{1, -1, 3, 2, 0, 4}), dx);
    tw_products_destroy(products);
}

INSTANTIATE_TEST_SUITE_P(Products, Layer,
                         ::testing::Combine(::testing::Values(TW_TYPE_FP32, TW_TYPE_BF16),
                                            ::testing::Values(0, 1)));

} // namespace
