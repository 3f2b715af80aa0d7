/* Products in plain C, which an emulated device multiplies by, and which GPU belongs to a rank. */
#include <cmath>
#include <random>

#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/trainer/device/plain.h"
#include "trainer/device/choose.h"
#include "trainer/device/products.h"

namespace
{

using Floats = std::vector<float>;

/* Small integers: sums are the same in any order. */
struct Matrix {
    size_t rows, cols, stride;
    Floats values;
    std::vector<uint16_t> bf16;

    Matrix(size_t n_rows, size_t n_cols, uint32_t seed)
        : rows(n_rows), cols(n_cols), stride(n_cols + 3), values(n_rows * stride), bf16(values.size())
    {
        std::mt19937 random(seed);
        for (float &value : values) {
            value = float(random() % 9) - 4;
        }
        tw_convert_from_fp32(TW_TYPE_BF16, values.data(), 1.0f, bf16.data(), bf16.size());
    }
    float at(size_t row, size_t col, bool transposed) const
    {
        return transposed ? values[col * stride + row] : values[row * stride + col];
    }
    const void *of(tw_type_t type) const
    {
        return type == TW_TYPE_FP32 ? (const void *)values.data() : bf16.data();
    }
    tw_device_factor_t factor(tw_type_t type, bool transposed) const
    {
        return {of(type), stride, transposed};
    }
};

class DeviceProducts : public tw::Fixture
{
};

TEST_F(DeviceProducts, AllForms)
{
    const size_t rows = 5, cols = 7, inner = 4;
    for (int form = 0; form < 128; form++) {
        const bool a_turned = form & 1, b_turned = form & 2, has_c = form & 4, has_bias = form & 8;
        const tw_type_t type = form & 16 ? TW_TYPE_FP32 : TW_TYPE_BF16;
        const tw_type_t factors = form & 32 ? TW_TYPE_FP32 : TW_TYPE_BF16;
        const bool is_scaled = form & 64;
        if (factors != type && (has_bias || factors == TW_TYPE_FP32)) {
            continue;
        }
        const Matrix a(a_turned ? inner : rows, a_turned ? rows : inner, 1);
        const Matrix b(b_turned ? cols : inner, b_turned ? inner : cols, 2);
        const Matrix c(rows, cols, 3), bias(1, cols, 4);
        std::vector<uint8_t> d(c.values.size() * tw_type_bytes(type), 0xee), before = d;
        tw_device_product_t product = {};
        product.a = a.factor(factors, a_turned);
        product.b = b.factor(factors, b_turned);
        product.factors = factors;
        product.scale = is_scaled ? 0.5f : 0;
        product.c_scale = is_scaled ? -2.0f : 0;
        product.c = has_c ? c.of(type) : nullptr;
        product.d = d.data();
        product.type = type;
        product.stride = c.stride;
        product.bias = has_bias ? bias.of(factors) : nullptr;
        product.rows = rows;
        product.cols = cols;
        product.inner = inner;
        ASSERT_EQ(tw_device_product_check(&product), TW_OK);
        tw::product_plain(&product);
        for (size_t row = 0; row < rows; row++) {
            for (size_t col = 0; col < c.stride; col++) {
                const size_t at = (row * c.stride + col) * tw_type_bytes(type);
                if (col >= cols) {
                    EXPECT_EQ(d[at], before[at]) << "beside the matrix";
                    continue;
                }
                float sum = 0;
                for (size_t i = 0; i < inner; i++) {
                    sum += a.at(row, i, a_turned) * b.at(i, col, b_turned);
                }
                sum = (is_scaled ? 0.5f : 1.0f) * sum;
                sum += has_c ? (is_scaled ? -2.0f : 1.0f) * c.at(row, col, false) : 0;
                sum += has_bias ? bias.at(0, col, false) : 0;
                float got;
                tw_convert_to_fp32(type, d.data() + at, &got, 1);
                EXPECT_EQ(got, sum) << "form " << form << " (" << row << "," << col << ")";
            }
        }
    }
}

TEST_F(DeviceProducts, TypesAreChecked)
{
    tw_device_product_t product = {};
    product.factors = TW_TYPE_BF16;
    product.type = TW_TYPE_FP32;
    EXPECT_EQ(tw_device_product_check(&product), TW_OK);
    product.bias = &product;
    expect_log("a product with a bias is of the bias's type");
    EXPECT_EQ(tw_device_product_check(&product), TW_ERR_INVALID);
    product.bias = nullptr;
    product.factors = TW_TYPE_FP32;
    product.type = TW_TYPE_BF16;
    expect_log("a product of fp32 factors is fp32");
    EXPECT_EQ(tw_device_product_check(&product), TW_ERR_INVALID);
}

/* Launchers show all GPUs to all ranks, or each its own. */
TEST_F(DeviceProducts, EveryRankHasAGpu)
{
    int index = -1;
    EXPECT_EQ(tw_device_gpu_choose(5, 3, 4, &index), TW_OK);
    EXPECT_EQ(index, 3);
    EXPECT_EQ(tw_device_gpu_choose(5, 3, 1, &index), TW_OK);
    EXPECT_EQ(index, 0);
    expect_log("rank 5: it is number 3 on its machine, but sees 2 GPUs");
    EXPECT_EQ(tw_device_gpu_choose(5, 3, 2, &index), TW_ERR_UNSUPPORTED);
}

TEST_F(DeviceProducts, AGpuWithoutKernelsIsRefused)
{
    const int archs[] = {80, 120};
    expect_log("rank 3: its GPU, Tesla T4, has compute capability 7.5; this program has kernels for 8.0, "
               "12.0: build it with --define=TW_CUDA_ARCHS=75");
    const tw_device_stranger_t gpu = {"Tesla T4", 7, 5, archs, 2};
    EXPECT_EQ(tw_device_gpu_refuse(3, &gpu), TW_ERR_UNSUPPORTED);
}

} // namespace
