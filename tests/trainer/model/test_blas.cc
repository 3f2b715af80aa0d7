#include <gtest/gtest.h>

#include <vector>

#include "tests/common/fixture.h"
#include "trainer/model/blas.h"

namespace
{

using Blas = tw::Fixture;

TEST_F(Blas, TheInstalledOneIsRight)
{
    EXPECT_EQ(TW_OK, tw_blas_prepare());
}

TEST_F(Blas, OneWrongElementIsSeen)
{
    expect_log("OpenBLAS multiplies matrices wrong on this processor");
    EXPECT_EQ(TW_ERR_INTERNAL, tw_blas_check([](const tw_blas_product_t *product) {
                  tw_blas_multiply(product);
                  product->c[product->c_stride * (product->rows - 1) + product->cols - 1] *= 1.0f + 0x1p-16f;
              }));
}

TEST_F(Blas, AWrongFormIsSeen)
{
    expect_log("wrong");
    EXPECT_EQ(TW_ERR_INTERNAL, tw_blas_check([](const tw_blas_product_t *product) {
                  tw_blas_product_t other = *product;
                  other.beta = 0.0f; /* forgets what was there */
                  tw_blas_multiply(&other);
              }));
}

/* y = x w + b, worked out by hand. */
TEST_F(Blas, LinearForwardAndBackward)
{
    std::vector<float> x = {1, 2, 3, 4, 5, 6};  /* (2,3) */
    std::vector<float> w = {1, 0, 0, 1, 2, -1}; /* (3,2) */
    std::vector<float> b = {10, 20}, y(4), dy = {1, -1, 2, 0};
    tw_linear_forward(x.data(), w.data(), b.data(), 2, 3, 2, 0, y.data());
    EXPECT_EQ((std::vector<float>{17, 19, 26, 19}), y);
    tw_linear_forward(x.data(), w.data(), b.data(), 2, 3, 2, 1, y.data());
    EXPECT_EQ((std::vector<float>{34, 38, 52, 38}), y);

    std::vector<float> dw(6, 1), db(2, 1), dx(6, 7);
    tw_linear_backward_weights(x.data(), dy.data(), 2, 3, 2, dw.data(), db.data());
    EXPECT_EQ((std::vector<float>{10, 0, 13, -1, 16, -2}), dw);
    EXPECT_EQ((std::vector<float>{4, 0}), db);
    tw_linear_backward_input(dy.data(), w.data(), 2, 3, 2, dx.data());
    EXPECT_EQ((std::vector<float>{1, -1, 3, 2, 0, 4}), dx);
}

} // namespace
