/* Gradients of biases on the emulated device beside the CPU's. */
#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/cuda.h"
#include "trainer/model/kernels.h"

namespace
{

using tw::Array;
using tw::Device;
using tw::Floats;
using tw::normal_values;

class CudaBias : public tw::DeviceFixture
{
};

/* Sums are made in another order than the CPU's. */
void check(tw_type_t type, size_t rows, size_t channels, size_t stride, size_t skew)
{
    const tw_cuda_rows_t shape = {type, rows, channels, stride};
    Array y(type, normal_values(rows * stride, 1), skew), dbias(TW_TYPE_FP32, normal_values(channels, 3));
    Floats sums = dbias.values();
    const Floats dy = y.values();
    Device<float> workspace(tw_cuda_bias_workspace_bytes(&shape) / sizeof(float), NAN);
    tw_kernels()->bias_backward(dy.data(), rows, channels, stride, sums.data());
    ASSERT_RUNS(
        tw_cuda_bias_backward(&shape, y.get(), static_cast<float *>(dbias.get()), workspace.data(), nullptr));
    dbias.expect_near(sums, tw::fp32_unit * double(rows + 1) * tw::largest(dy) * double(rows + 1), "dbias");
}

/* Rows around a slab's 64; rows that touch, and that do not; aligned ones and others. */
TEST_F(CudaBias, BesideTheCpu)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (size_t rows : {0, 1, 16, 17, 64, 65, 130}) {
            for (size_t channels : {1, 8, 31, 264}) {
                for (size_t gap : {0, 3, 8}) {
                    SCOPED_TRACE(std::string(tw_type_name(type)) + " (" + std::to_string(rows) + "," +
                                 std::to_string(channels) + "), gap " + std::to_string(gap));
                    check(type, rows, channels, channels + gap, gap == 3 ? 1 : 0);
                    if (HasFatalFailure()) {
                        return;
                    }
                }
            }
        }
    }
}

TEST_F(CudaBias, OtherTypesAreRefused)
{
    const tw_cuda_rows_t rows = {TW_TYPE_FP16, 1, 1, 1};
    expect_log("bias backwards: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_bias_backward(&rows, nullptr, nullptr, nullptr, nullptr), TW_ERR_INVALID);
}

} // namespace
