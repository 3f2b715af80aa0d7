/* Heads of q and k on the emulated device beside the CPU's kernels. A turn has the CPU's bits; sums of norms
 * are made in another order. */
#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/embedding.h"
#include "trainer/model/kernels.h"

namespace
{

using tw::Array;
using tw::Device;
using tw::Floats;
using tw::largest;
using tw::normal_values;

constexpr float epsilon = 1e-5f;

struct Shape {
    tw_type_t type;
    size_t rows, heads, width, gap;
    bool has_norm, has_turn;
};

constexpr size_t seq_len = 5;

/* A case: the same on both sides. */
struct Case {
    Shape s;
    size_t stride, n;
    Array x, d, gamma;
    Device<float> cosines, sines, dgamma;

    explicit Case(const Shape &shape)
        : s(shape), stride(s.heads * s.width + s.gap), n(s.rows * stride),
          x(s.type, normal_values(n, 1), s.gap % 8), d(s.type, normal_values(n, 2), s.gap % 8),
          gamma(s.type, normal_values(s.width, 3, 1, 0.3f)), cosines(seq_len * s.width / 2),
          sines(cosines.size()), dgamma(s.width, 0.25f)
    {
        for (size_t i = 0; i < cosines.size(); i++) {
            cosines[i] = std::cos(float(i));
            sines[i] = std::sin(float(i));
        }
    }

    tw_cuda_heads_t describe()
    {
        return {s.type,
                s.rows,
                seq_len,
                s.heads,
                s.width,
                s.has_norm ? gamma.get() : nullptr,
                epsilon,
                s.has_turn ? cosines.data() : nullptr,
                s.has_turn ? sines.data() : nullptr,
                x.get(),
                stride};
    }

    const float *angles(const Device<float> &table, size_t row) const
    {
        return table.data() + row % seq_len * (s.width / 2);
    }

    Floats forward_on_cpu() const
    {
        Floats y = x.values();
        const Floats wide = gamma.values();
        for (size_t i = 0; i < s.rows * s.heads; i++) {
            const size_t row = i / s.heads;
            float *at = y.data() + row * stride + i % s.heads * s.width;
            if (s.has_norm) {
                tw_kernels()->rmsnorm_row(at, wide.data(), s.width, epsilon, at);
            }
            if (s.has_turn) {
                tw_kernels()->rope_turn(at, s.width, angles(cosines, row), angles(sines, row));
            }
        }
        return y;
    }

    Floats backward_on_cpu(Floats *by_gamma) const
    {
        Floats by_x = d.values(), normed(s.width);
        const Floats wide = gamma.values(), wide_x = x.values();
        for (size_t i = 0; i < s.rows * s.heads; i++) {
            const size_t row = i / s.heads, at = row * stride + i % s.heads * s.width;
            float *by = by_x.data() + at;
            if (s.has_turn) {
                tw_kernels()->rope_turn_backward(by, s.width, angles(cosines, row), angles(sines, row));
            }
            if (s.has_norm) {
                const float *of_x = wide_x.data() + at;
                float rstd = tw_kernels()->rmsnorm_row(of_x, wide.data(), s.width, epsilon, normed.data());
                const tw_model_norm_t norm = {of_x,    wide.data(), nullptr,         1,
                                              s.width, epsilon,     {nullptr, &rstd}};
                const tw_model_norm_gradients_t to = {by, by_gamma->data(), nullptr, 0};
                tw_kernels()->norm_backward(&norm, by, &to);
            }
        }
        return by_x;
    }

    /* The smallest root of a mean of squares: what is divided by. */
    double smallest_root() const
    {
        const Floats wide = x.values();
        double least = 1;
        for (size_t i = 0; i < s.rows * s.heads; i++) {
            const float *at = wide.data() + i / s.heads * stride + i % s.heads * s.width;
            double sum = 0;
            for (size_t c = 0; c < s.width; c++) {
                sum += double(at[c]) * at[c];
            }
            least = std::min(least, std::sqrt(sum / double(s.width) + epsilon));
        }
        return least;
    }
};

void check(const Shape &s)
{
    Case c(s);
    const tw_cuda_heads_t heads = c.describe();
    Array y(s.type, c.x.values(), s.gap % 8);
    ASSERT_RUNS(tw_cuda_heads_forward(&heads, y.get(), c.stride, nullptr));
    const double unit = tw::fp32_unit * double(s.width + 8), root = c.smallest_root();
    const double bound = s.has_norm ? 8 * unit * largest(c.x.values()) / root : 0;
    if (s.has_norm) {
        y.expect_near(c.forward_on_cpu(), bound, "y");
    } else {
        y.expect(c.forward_on_cpu(), "y");
    }

    Floats by_gamma = tw::on_cpu(c.dgamma);
    Device<float> workspace(tw_cuda_heads_workspace_bytes(&heads) / sizeof(float), NAN);
    const Floats by_x = c.backward_on_cpu(&by_gamma);
    const double most_d = 2 * largest(c.d.values()) * largest(c.gamma.values());
    ASSERT_RUNS(tw_cuda_heads_backward(&heads, c.d.get(), c.stride, s.has_norm ? c.dgamma.data() : nullptr,
                                       workspace.data(), nullptr));
    if (!s.has_norm) {
        c.d.expect(by_x, "d");
        return;
    }
    c.d.expect_near(by_x, most_d / root * (unit + bound * largest(c.x.values()) / root), "d");
    const double sums = double(s.rows * s.heads);
    Array(TW_TYPE_FP32, tw::on_cpu(c.dgamma))
        .expect_near(by_gamma,
                     sums * most_d * (bound + tw::fp32_unit * (sums + 8) * largest(c.x.values()) / root),
                     "dgamma");

    ASSERT_RUNS(tw_cuda_heads_forward(&heads, c.x.get(), c.stride, nullptr));
    EXPECT_EQ(c.x.values(), y.values()) << "in place";
}

class CudaHeads : public tw::DeviceFixture
{
};

/* Widths around a warp's lanes and pairs; one head, and more heads than a block has warps. */
TEST_F(CudaHeads, BesideTheCpu)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (size_t width : {2, 6, 64, 80, 256}) {
            for (size_t rows : {0, 1, 23}) {
                for (int what : {1, 2, 3}) {
                    const Shape shape = {type,
                                         rows,
                                         rows == 23 ? size_t(3) : size_t(1),
                                         width,
                                         rows % 2 ? size_t(3) : size_t(0),
                                         (what & 1) != 0,
                                         (what & 2) != 0};
                    SCOPED_TRACE(std::string(tw_type_name(type)) + " rows " + std::to_string(rows) +
                                 " width " + std::to_string(width) + " what " + std::to_string(what));
                    check(shape);
                    if (HasFatalFailure()) {
                        return;
                    }
                }
            }
        }
    }
}

TEST_F(CudaHeads, OddWidthWithoutTurn)
{
    check({TW_TYPE_FP32, 9, 2, 31, 0, true, false});
    check({TW_TYPE_BF16, 9, 2, 1, 0, true, false});
}

/* More heads than one turn of all blocks. */
TEST_F(CudaHeads, ManyTurns)
{
    check({TW_TYPE_BF16, 1500, 6, 4, 0, true, true});
}

TEST_F(CudaHeads, NonsenseIsRefused)
{
    Case c({TW_TYPE_FP32, 1, 1, 2, 0, false, true});
    tw_cuda_heads_t heads = c.describe();
    heads.width = 3;
    expect_log("heads: a width of 3; it is 1 to 256, and even where heads are turned");
    EXPECT_EQ(tw_cuda_heads_forward(&heads, nullptr, 0, nullptr), TW_ERR_INVALID);
    heads.width = 258;
    expect_log("heads: a width of 258");
    EXPECT_EQ(tw_cuda_heads_backward(&heads, nullptr, 0, nullptr, nullptr, nullptr), TW_ERR_INVALID);
    heads.type = TW_TYPE_FP16;
    expect_log("heads: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_heads_forward(&heads, nullptr, 0, nullptr), TW_ERR_INVALID);
}

} // namespace
