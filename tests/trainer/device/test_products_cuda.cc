/* Products on a GPU beside those in plain C. Factors are small integers, so that sums are exact in any order:
 * what is rounded once has the same bits. */
#include <random>

#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/trainer/device/cublas.h"
#include "tests/trainer/device/plain.h"
#include "trainer/device/products.h"

namespace
{

using Floats = std::vector<float>;

struct Shape {
    size_t rows, cols, inner;
    size_t gap;  /* between rows */
    size_t skew; /* elements, of all matrices */
};

/* As it is stored; what lies between its rows counts as well. */
struct Matrix {
    tw_type_t type;
    size_t stride, skew, n;
    tw::Device<uint8_t> memory;

    Matrix(tw_type_t of, size_t n_rows, size_t n_cols, const Shape &s, uint32_t seed)
        : type(of), stride(n_cols + s.gap), skew(s.skew), n(n_rows * stride),
          memory((n + skew) * tw_type_bytes(of))
    {
        std::mt19937 random(seed);
        Floats values(n);
        for (float &value : values) {
            value = float(random() % 9) - 4;
        }
        tw_convert_from_fp32(type, values.data(), 1.0f, at(), n);
    }
    void *at()
    {
        return memory.data() + skew * tw_type_bytes(type);
    }
    Floats values()
    {
        Floats wide(n);
        tw_convert_to_fp32(type, at(), wide.data(), n);
        return wide;
    }
};

class CudaProducts : public tw::CublasFixture
{
  protected:
    void SetUp() override
    {
        tw::CublasFixture::SetUp();
        if (!IsSkipped()) {
            ASSERT_EQ(tw_device_products_create(&products), TW_OK);
        }
    }
    void TearDown() override
    {
        if (products) {
            products->destroy(products);
        }
        tw::CublasFixture::TearDown();
    }

    void check(const Shape &s, int form)
    {
        const bool a_turned = form & 1, b_turned = form & 2, has_c = form & 4, has_bias = form & 8;
        const tw_type_t type = form & 16 ? TW_TYPE_FP32 : TW_TYPE_BF16;
        const tw_type_t factors = form & 32 ? TW_TYPE_FP32 : TW_TYPE_BF16;
        Matrix a(factors, a_turned ? s.inner : s.rows, a_turned ? s.rows : s.inner, s, 1);
        Matrix b(factors, b_turned ? s.cols : s.inner, b_turned ? s.inner : s.cols, s, 2);
        Matrix c(type, s.rows, s.cols, s, 3), bias(factors, 1, s.cols, s, 4);
        Matrix got(type, s.rows, s.cols, s, 5), wanted(type, s.rows, s.cols, s, 5);
        tw_device_product_t product = {};
        product.a = {a.at(), a.stride, a_turned};
        product.b = {b.at(), b.stride, b_turned};
        product.factors = factors;
        product.scale = form & 64 ? 0.5f : 0;
        product.c_scale = form & 64 ? -2.0f : 0;
        product.c = has_c ? c.at() : nullptr;
        product.type = type;
        product.stride = c.stride;
        product.bias = has_bias ? bias.at() : nullptr;
        product.rows = s.rows;
        product.cols = s.cols;
        product.inner = s.inner;
        product.d = got.at();
        ASSERT_RUNS(products->run(products, &product, nullptr));
        product.d = wanted.at();
        tw::product_plain(&product);
        EXPECT_EQ(got.values(), wanted.values()) << "form " << form;
        if (has_c) { /* in place */
            product.c = product.d = c.at();
            ASSERT_RUNS(products->run(products, &product, nullptr));
            const Floats sums = c.values(), of_plain = wanted.values();
            for (size_t i = 0; i < sums.size(); i++) {
                ASSERT_TRUE(i % c.stride >= s.cols || sums[i] == of_plain[i]) << "form " << form << " " << i;
            }
        }
    }

    tw_device_products_t *products = nullptr;
};

/* Odd sizes and strides, as of GPT-2's 50257 words; one row; sums so long that they are made in parts. */
TEST_F(CudaProducts, AllFormsBesidePlainC)
{
    for (const Shape &s :
         {Shape{5, 7, 4, 3, 0}, Shape{64, 96, 32, 0, 0}, Shape{33, 257, 300, 0, 0}, Shape{1, 1031, 64, 0, 0},
          Shape{24, 40, 16, 8, 8}, Shape{24, 40, 16, 0, 1}, Shape{64, 64, 4096, 0, 0}}) {
        for (int form = 0; form < 128; form++) {
            if ((form & 48) == 32 || ((form & 48) == 16 && form & 8)) {
                continue; /* no such product */
            }
            SCOPED_TRACE("(" + std::to_string(s.rows) + "," + std::to_string(s.inner) + ") x (" +
                         std::to_string(s.inner) + "," + std::to_string(s.cols) + "), gap " +
                         std::to_string(s.gap) + ", skew " + std::to_string(s.skew));
            check(s, form);
            ASSERT_FALSE(HasFatalFailure());
        }
    }
}

/* As TF32 1 + 2^-12 is 1. */
TEST_F(CudaProducts, Fp32KeepsAllItsBits)
{
    tw::Device<float> factors(64 * 64), sums(64 * 64);
    for (size_t i = 0; i < 64 * 64; i++) {
        factors.data()[i] = i / 64 == i % 64 ? 1.0f + 0x1p-12f : 0.0f;
    }
    tw_device_product_t product = {};
    product.a = {factors.data(), 64, 0};
    product.b = {factors.data(), 64, 1};
    product.d = sums.data();
    product.stride = product.rows = product.cols = product.inner = 64;
    ASSERT_RUNS(products->run(products, &product, nullptr));
    EXPECT_EQ(sums.data()[0], (1.0f + 0x1p-12f) * (1.0f + 0x1p-12f));
}

TEST_F(CudaProducts, TypesAreChecked)
{
    tw_device_product_t product = {};
    product.factors = TW_TYPE_BF16;
    product.type = TW_TYPE_FP32;
    product.bias = &product;
    expect_log("a product with a bias is of the bias's type");
    EXPECT_EQ(products->run(products, &product, nullptr), TW_ERR_INVALID);
}

} // namespace
