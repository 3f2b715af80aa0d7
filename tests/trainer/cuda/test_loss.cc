/* Cross-entropy on the emulated device beside the CPU's, which has rows whole. */
#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/trainer/cuda/arrays.h"
#include "trainer/cuda/loss.h"
#include "trainer/model/kernels.h"

namespace
{

using tw::Array;
using tw::Device;
using tw::Floats;
using tw::normal_values;

struct Shape {
    tw_type_t type;
    size_t rows, words, piece, gap; /* words at a time; between rows */
};

/* Rows over words, in pieces of which each lies in its own array. */
struct Case {
    Shape s;
    Device<int32_t> targets;
    Floats logits; /* (N,V), as the type holds them */
    std::vector<Array> pieces;
    Device<float> max, sum, target;
    tw_cuda_loss_t loss;

    explicit Case(const Shape &shape, float deviation = 2)
        : s(shape), targets(s.rows),
          logits(Array(s.type, normal_values(s.rows * s.words, 1, 0, deviation)).values()), max(s.rows, NAN),
          sum(s.rows, NAN),
          target(s.rows, NAN), loss{s.rows, targets.data(), max.data(), sum.data(), target.data()}
    {
        for (size_t row = 0; row < s.rows; row++) {
            targets[row] = int32_t(row * 7919 % s.words);
        }
    }

    size_t width(size_t first) const
    {
        return std::min(s.piece, s.words - first);
    }
    tw_cuda_logits_t piece(size_t index)
    {
        const size_t first = index * s.piece;
        return {s.type, first, width(first), width(first) + s.gap, pieces[index].get()};
    }

    /* Takes all pieces into account. */
    void add()
    {
        for (size_t first = 0; first < s.words; first += s.piece) {
            const size_t stride = width(first) + s.gap;
            Floats part(s.rows * stride, 50.0f); /* what lies between rows does not count */
            for (size_t row = 0; row < s.rows; row++) {
                std::copy_n(&logits[row * s.words + first], width(first), &part[row * stride]);
            }
            pieces.emplace_back(s.type, part, s.gap % 8);
            const tw_cuda_logits_t piece_of = piece(first / s.piece);
            ASSERT_RUNS(tw_cuda_loss_add(&loss, &piece_of, nullptr));
        }
    }

    /* The gradient of all pieces (N,V), and what lies between rows as it was. */
    Floats backward(float scale)
    {
        Floats all(logits.size());
        for (size_t index = 0; index < pieces.size(); index++) {
            const tw_cuda_logits_t of = piece(index);
            EXPECT_EQ(tw::device_wait(tw_cuda_loss_backward(&loss, &of, scale, nullptr)), TW_OK);
            const Floats part = pieces[index].values();
            for (size_t i = 0; i < part.size(); i++) {
                if (i % of.stride < of.words) {
                    all[i / of.stride * s.words + of.first + i % of.stride] = part[i];
                } else {
                    EXPECT_EQ(part[i], 50.0f);
                }
            }
        }
        return all;
    }
};

void check(const Shape &s)
{
    constexpr float scale = 0.125f;
    Case c(s);
    Floats wanted = c.logits;
    std::vector<double> losses(s.rows);
    Device<double> sums(s.rows + 1, -1.0);
    double total = 0;
    for (size_t row = 0; row < s.rows; row++) {
        losses[row] =
            tw_kernels()->cross_entropy_row(&wanted[row * s.words], s.words, size_t(c.targets[row]), scale);
        total += losses[row];
    }
    c.add();
    const double bound = tw::fp32_unit * double(s.words + 40);
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, 1, sums.data(), nullptr));
    for (size_t row = 0; row < s.rows; row++) {
        ASSERT_NEAR(sums[row], losses[row], bound) << row;
    }
    ASSERT_EQ(sums[s.rows], -1.0);
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, s.rows, sums.data(), nullptr));
    ASSERT_NEAR(sums[0], total, bound * double(s.rows));
    const Floats got = c.backward(scale);
    for (size_t i = 0; i < got.size(); i++) {
        const double rounding = s.type == TW_TYPE_BF16 ? tw::bf16_unit * std::fabs(wanted[i]) : 0;
        ASSERT_NEAR(got[i], wanted[i], rounding + bound * scale) << i;
    }
}

class CudaLoss : public tw::DeviceFixture
{
};

/* Words around a block's 256 and 2048, in one piece and in several, some of one word. */
TEST_F(CudaLoss, BesideTheCpu)
{
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
        for (size_t words : {1, 2, 8, 255, 257, 2056, 2100}) {
            for (size_t piece : {words, size_t(8), size_t(300), size_t(1)}) {
                if (words / piece > 50) {
                    continue;
                }
                for (size_t gap : {0, 3, 8}) {
                    SCOPED_TRACE(std::string(tw_type_name(type)) + " V " + std::to_string(words) + " in " +
                                 std::to_string(piece) + ", gap " + std::to_string(gap));
                    check({type, 5, words, piece, gap});
                    if (HasFatalFailure()) {
                        return;
                    }
                }
            }
        }
    }
}

/* Sums of groups, and their order: the same bits again. */
TEST_F(CudaLoss, Groups)
{
    Case c({TW_TYPE_FP32, 600, 9, 9, 0});
    c.add();
    Device<double> whole(1), again(1), halves(2), rows(600);
    double sum[2] = {0, 0};
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, 600, whole.data(), nullptr));
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, 600, again.data(), nullptr));
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, 300, halves.data(), nullptr));
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, 1, rows.data(), nullptr));
    for (size_t i = 0; i < 600; i++) {
        sum[i / 300] += rows[i];
    }
    EXPECT_EQ(whole[0], again[0]);
    EXPECT_NEAR(halves[0], sum[0], 1e-12 * sum[0]);
    EXPECT_NEAR(halves[1], sum[1], 1e-12 * sum[1]);
    EXPECT_NEAR(whole[0], sum[0] + sum[1], 1e-12 * whole[0]);
}

/* Logits of thousands, a whole piece of -infinity, and what is no number. */
TEST_F(CudaLoss, SpecialValues)
{
    const size_t words = 600, piece = 300;
    Case c({TW_TYPE_FP32, 4, words, piece, 0}, 1000);
    std::fill_n(&c.logits[words], piece, -INFINITY); /* the first piece of row 1 */
    std::fill_n(&c.logits[words], 8, -INFINITY);
    c.targets[1] = 400;
    c.logits[2 * words + 17] = NAN;
    c.logits[3 * words + 500] = INFINITY;
    c.targets[3] = 1;
    Floats wanted = c.logits;
    double losses[4];
    Device<double> sums(4);
    for (size_t row = 0; row < 4; row++) {
        losses[row] = tw_kernels()->cross_entropy_row(&wanted[row * words], words, size_t(c.targets[row]), 1);
    }
    c.add();
    ASSERT_RUNS(tw_cuda_loss_sums(&c.loss, 1, sums.data(), nullptr));
    EXPECT_NEAR(sums[0], losses[0], 1e-5 * (1 + losses[0]));
    EXPECT_NEAR(sums[1], losses[1], 1e-5 * (1 + losses[1]));
    EXPECT_TRUE(std::isnan(sums[2]));
    EXPECT_FALSE(std::isfinite(sums[3]));
    const Floats d = c.backward(1);
    for (size_t i = 0; i < 2 * words; i++) {
        ASSERT_NEAR(d[i], wanted[i], 1e-5) << i;
    }
    EXPECT_TRUE(std::isnan(d[2 * words]));
    EXPECT_TRUE(std::isnan(d[3 * words + 500]));
}

TEST_F(CudaLoss, NonsenseIsRefused)
{
    const tw_cuda_loss_t loss = {6, nullptr, nullptr, nullptr, nullptr};
    const tw_cuda_logits_t piece = {TW_TYPE_FP16, 0, 1, 1, nullptr};
    expect_log("loss: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_loss_add(&loss, &piece, nullptr), TW_ERR_INVALID);
    expect_log("loss backwards: there is no kernel for fp16");
    EXPECT_EQ(tw_cuda_loss_backward(&loss, &piece, 1, nullptr), TW_ERR_INVALID);
    expect_log("loss: 6 rows are no whole groups of 4");
    EXPECT_EQ(tw_cuda_loss_sums(&loss, 4, nullptr, nullptr), TW_ERR_INVALID);
}

} // namespace
