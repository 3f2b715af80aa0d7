/* Norms on the emulated device beside the CPU's. Sums are made in another order, so results differ by what
 * rounding does: bounds are multiples of an fp32's unit in the last place and of the numbers added. */
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "core/core.h"
#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/cuda.h"
#include "trainer/model/kernels.h"

namespace
{

using tw::Array;
using tw::Device;
using tw::Floats;
using tw::largest;
using tw::normal_values;

constexpr double unit = tw::fp32_unit;
constexpr float epsilon = 1e-5f;

void expect_near(const Device<float> &got, const Floats &wanted, double bound, const char *what)
{
    Array(TW_TYPE_FP32, tw::on_cpu(got)).expect_near(wanted, bound, what);
}

struct Shape {
    tw_type_t type;
    size_t rows, channels, skew;
    bool centred;
};

/* Both directions of one shape. */
void check(const Shape &s)
{
    const size_t n = s.rows * s.channels, c = s.channels;
    Array x(s.type, normal_values(n, 1, 0.5f), s.skew), gamma(s.type, normal_values(c, 2, 1), 0);
    Array beta(s.type, normal_values(c, 3, 0), 0), dy(s.type, normal_values(n, 4, 0), s.skew);
    Array y(s.type, Floats(n), 0);
    Device<float> mean(s.rows), rstd(s.rows);
    Floats on_cpu_mean(s.rows), on_cpu_rstd(s.rows), wanted(n);
    const Floats wide_x = x.values(), wide_gamma = gamma.values(), wide_dy = dy.values();
    const Floats wide_beta = beta.values();
    const tw_model_norm_t on_cpu = {wide_x.data(),
                                    wide_gamma.data(),
                                    s.centred ? wide_beta.data() : nullptr,
                                    s.rows,
                                    c,
                                    epsilon,
                                    {on_cpu_mean.data(), on_cpu_rstd.data()}};
    tw_cuda_norm_t norm = {};
    norm.type = s.type;
    norm.rows = s.rows;
    norm.channels = c;
    norm.epsilon = epsilon;
    norm.x = x.get();
    norm.gamma = gamma.get();
    norm.beta = s.centred ? beta.get() : nullptr;
    norm.mean = s.centred ? mean.data() : nullptr;
    norm.rstd = rstd.data();
    ASSERT_RUNS(tw_cuda_norm_forward(&norm, y.get(), nullptr));
    tw_kernels()->norm_forward(&on_cpu, wanted.data());
    const double rounding = unit * double(c + 8), most_x = largest(wide_x) + 1;
    const double most_rstd = largest(on_cpu_rstd), most_normed = 2 * most_x * most_rstd;
    /* the variance is off by its rounding times the largest square, and so is what is divided by its root */
    const double scale = 1 + rounding * most_x * most_x * most_rstd * most_rstd;
    expect_near(mean, on_cpu_mean, rounding * most_x, "mean");
    expect_near(rstd, on_cpu_rstd, (scale - 1 + rounding) * most_rstd, "rstd");
    const double of_normed = (scale - 1 + rounding) * most_normed + rounding * most_x * most_rstd;
    y.expect_near(wanted, of_normed * (largest(wide_gamma) + 1), "y");

    for (int accumulate : {0, 1}) {
        Array dx(s.type, normal_values(n, 5, 0), s.skew);
        Device<float> dgamma(c, 0.25f), dbeta(c, 0.5f);
        Floats on_cpu_dgamma(c, 0.25f), on_cpu_dbeta(c, 0.5f), on_cpu_dx = dx.values();
        Device<float> workspace(tw_cuda_norm_workspace_bytes(&norm) / sizeof(float), NAN);
        tw_cuda_norm_gradients_t gradients = {};
        gradients.dy = dy.get();
        gradients.dx = dx.get();
        gradients.accumulate = accumulate;
        gradients.dgamma = dgamma.data();
        gradients.dbeta = s.centred ? dbeta.data() : nullptr;
        gradients.workspace = workspace.data();
        ASSERT_RUNS(tw_cuda_norm_backward(&norm, &gradients, nullptr));
        const tw_model_norm_gradients_t to = {on_cpu_dx.data(), on_cpu_dgamma.data(), on_cpu_dbeta.data(),
                                              accumulate};
        tw_kernels()->norm_backward(&on_cpu, wide_dy.data(), &to);
        const double most_g = largest(wide_dy) * largest(wide_gamma) + 1;
        const double of_sums = unit * double(s.rows + 8), most_dy = largest(wide_dy) * double(s.rows);
        dx.expect_near(on_cpu_dx, 4 * most_g * most_rstd * (of_normed + rounding) * (1 + most_normed), "dx");
        expect_near(dgamma, on_cpu_dgamma, most_dy * (of_sums * most_normed + of_normed), "dgamma");
        expect_near(dbeta, on_cpu_dbeta, most_dy * of_sums, "dbeta");
    }
}

class CudaNorm : public tw::DeviceFixture
{
};

/* Rows around a block's eight and a slab's 64, channels around octets and warps. */
TEST_F(CudaNorm, BesideTheCpu)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (bool centred : {false, true}) {
            for (size_t rows : {0, 1, 8, 9, 65, 130}) {
                for (size_t channels : {8, 24, 31, 256, 264, 300}) {
                    const Shape shape = {type, rows, channels, rows % 2 ? (size_t)1 : (size_t)0, centred};
                    SCOPED_TRACE(std::string(tw_type_name(type)) + (centred ? " layer" : " rms") + " (" +
                                 std::to_string(rows) + "," + std::to_string(channels) + ")");
                    check(shape);
                    if (HasFatalFailure()) {
                        return;
                    }
                }
            }
        }
    }
}

/* dx may be where dy was. */
TEST_F(CudaNorm, InPlace)
{
    const size_t rows = 9, c = 264;
    Array x(TW_TYPE_BF16, normal_values(rows * c, 1, 0), 0), gamma(TW_TYPE_BF16, normal_values(c, 2, 1), 0);
    const Floats of_dy = normal_values(rows * c, 4, 0);
    Device<float> rstd(rows, 1.5f), dgammas[2];
    Floats results[2];
    for (int in_place = 0; in_place < 2; in_place++) {
        Array dy(TW_TYPE_BF16, of_dy, 0), dx(TW_TYPE_BF16, Floats(rows * c), 0);
        Device<float> dgamma(c), workspace(c);
        tw_cuda_norm_t norm = {};
        norm.type = TW_TYPE_BF16;
        norm.rows = rows;
        norm.channels = c;
        norm.x = x.get();
        norm.gamma = gamma.get();
        norm.rstd = rstd.data();
        tw_cuda_norm_gradients_t gradients = {};
        gradients.dy = dy.get();
        gradients.dx = in_place ? dy.get() : dx.get();
        gradients.dgamma = dgamma.data();
        gradients.workspace = workspace.data();
        ASSERT_RUNS(tw_cuda_norm_backward(&norm, &gradients, nullptr));
        results[in_place] = in_place ? dy.values() : dx.values();
        dgammas[in_place] = dgamma;
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(dgammas[0], dgammas[1]);
}

TEST_F(CudaNorm, NonsenseIsRefused)
{
    tw_cuda_norm_t norm = {};
    norm.type = TW_TYPE_FP16;
    expect_log("norm: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_norm_forward(&norm, nullptr, nullptr), TW_ERR_INVALID);
    float mean;
    norm.type = TW_TYPE_FP32;
    norm.rows = 1;
    norm.mean = &mean;
    expect_log("a layer norm has beta and mean");
    EXPECT_EQ(tw_cuda_norm_forward(&norm, nullptr, nullptr), TW_ERR_INVALID);
}

} // namespace
