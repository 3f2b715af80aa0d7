/* AdamW fused with encode_delta: against the formula in fp64, against encode_delta on its own, and alike on
 * all backends, in programs of their own the CUDA kernels on their emulator and on a GPU. */
#include <cmath>

#include "quant/arithmetic/float.h"
#include "tests/quant/host/twins.h"

namespace
{

using tw::Data;
using tw::Guarded;

/* What one step works on. */
struct State {
    std::vector<uint8_t> grad, master, m, v, replica, dst;
};

struct Case {
    tw_quant_codec_t codec;
    tw_type_t type, grad_type;
    size_t n, offset; /* offset of all pointers, in elements */
    bool scaled;
    Data data = Data::gauss;
};

tw_quant_adamw_t adamw_of(const Case &c, const float *grad_scale)
{
    return {0.001, 0.9, 0.95, 1e-8, 0.1, 3 + c.n % 5, c.grad_type, c.scaled ? grad_scale : nullptr};
}

State make_state(const Case &c)
{
    State s;
    s.grad = tw::make_data(c.grad_type, c.data, c.n, 1);
    s.master = tw::make_data(TW_TYPE_FP32, Data::gauss, c.n, 2);
    s.m = tw::make_data(TW_TYPE_FP32, Data::gauss, c.n, 3);
    s.v = tw::make_data(TW_TYPE_FP32, Data::gauss, c.n, 4);
    for (size_t i = 0; i < c.n; i++) {
        s.v[4 * i + 3] &= 0x7f; /* not negative */
    }
    s.replica = tw::make_data(c.type, Data::gauss, c.n, 2);
    s.dst.assign(tw_quant_encoded_bytes(&c.codec, c.n), 0xee);
    return s;
}

tw_quant_args_t args_of(const Case &c)
{
    return {c.type, 99 + c.n, 3, 1.0f, nullptr, nullptr, 0, 0};
}

State run(const Case &c, const std::string &backend, const State &before)
{
    const float grad_scale = 0.37f;
    const tw_quant_adamw_t adamw = adamw_of(c, &grad_scale);
    const tw_quant_args_t args = args_of(c);
    tw::Codec quant(c.codec, backend);
    Guarded grad(before.grad, c.offset * tw_type_bytes(c.grad_type)), master(before.master, c.offset * 4),
        m(before.m, c.offset * 4), v(before.v, c.offset * 4),
        replica(before.replica, c.offset * tw_type_bytes(c.type)), dst(before.dst, c.offset);
    const tw_quant_adamw_segment_t segment = {grad.data(),
                                              reinterpret_cast<float *>(master.data()),
                                              reinterpret_cast<float *>(m.data()),
                                              reinterpret_cast<float *>(v.data()),
                                              replica.data(),
                                              dst.data(),
                                              c.n,
                                              3,
                                              c.n + c.offset};
    EXPECT_EQ(tw_quant_adamw_encode_delta(quant, &args, &adamw, &segment, 1), TW_OK);
    EXPECT_TRUE(master.intact() && m.intact() && v.intact() && dst.intact()) << backend;
    return {grad.content(), master.content(), m.content(), v.content(), replica.content(), dst.content()};
}

using Adamw = tw::Fixture;

/* Every other backend against the reference. */
class AdamwTwins : public tw::Twins
{
  protected:
    void expect_alike(const Case &c)
    {
        const State before = make_state(c), expected = run(c, "ref", before);
        for (const std::string &twin : twins) {
            const State got = run(c, twin, before);
            EXPECT_TRUE(expected.master == got.master) << twin << " " << c.n;
            EXPECT_TRUE(expected.m == got.m) << twin << " " << c.n;
            EXPECT_TRUE(expected.v == got.v) << twin << " " << c.n;
            ASSERT_TRUE(expected.dst == got.dst) << twin << " " << c.codec << " n=" << c.n;
        }
    }
};

const tw_quant_codec_t int4 = {TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 1, 0};
const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};

/* Each fp32 operation may be off by half a unit in the last place of what it computes. */
TEST_F(Adamw, FollowsTheFormula)
{
    const Case c = {int4, TW_TYPE_BF16, TW_TYPE_FP32, 5000, 0, true};
    const State before = make_state(c), after = run(c, "ref", before);
    const float grad_scale = 0.37f;
    const tw_quant_adamw_t a = adamw_of(c, &grad_scale);
    const double ulp = 0x1p-24, correction1 = 1 - std::pow(a.beta1, double(a.step)),
                 correction2 = 1 - std::pow(a.beta2, double(a.step));
    for (size_t i = 0; i < c.n; i++) {
        const double g = tw::value_at(TW_TYPE_FP32, before.grad, i) * double(grad_scale);
        const double m1 = a.beta1 * tw::value_at(TW_TYPE_FP32, before.m, i), m2 = (1 - a.beta1) * g;
        const double v1 = a.beta2 * tw::value_at(TW_TYPE_FP32, before.v, i), v2 = (1 - a.beta2) * g * g;
        const double step = a.lr / correction1 * (m1 + m2) / (std::sqrt((v1 + v2) / correction2) + a.eps);
        const double keep = tw::value_at(TW_TYPE_FP32, before.master, i) * (1 - a.lr * a.weight_decay);
        const double m_error = 4 * ulp * (std::fabs(m1) + std::fabs(m2)); /* factor, gradient, product, sum */
        EXPECT_NEAR(tw::value_at(TW_TYPE_FP32, after.m, i), m1 + m2, m_error);
        EXPECT_NEAR(tw::value_at(TW_TYPE_FP32, after.v, i), v1 + v2, 6 * ulp * (v1 + v2));
        const double relative = m_error / (std::fabs(m1 + m2) + 1e-300) + 12 * ulp;
        EXPECT_NEAR(tw::value_at(TW_TYPE_FP32, after.master, i), keep - step,
                    3 * ulp * std::fabs(keep) + (relative + ulp) * std::fabs(step));
    }
}

TEST_F(Adamw, EncodesTheChange)
{
    const Case c = {int4, TW_TYPE_BF16, TW_TYPE_BF16, 3001, 0, false};
    const State before = make_state(c), after = run(c, "ref", before);
    tw::Codec quant(c.codec, "ref");
    const tw_quant_args_t args = args_of(c);
    std::vector<uint8_t> change(after.dst.size());
    const tw_quant_segment_t segment = {
        after.master.data(), after.replica.data(), change.data(), c.n, 3, c.n};
    ASSERT_EQ(tw_quant_encode_delta(quant, &args, &segment, 1), TW_OK);
    EXPECT_TRUE(change == after.dst);
}

/* Where nothing is to be encoded: masters and moments are the same. */
TEST_F(Adamw, WithoutAChangeTheStepIsTheSame)
{
    for (size_t n : {0u, 1u, 8191u, 8192u, 8193u, 30001u}) {
        const Case c = {int4, TW_TYPE_BF16, TW_TYPE_FP32, n, 0, true};
        const State before = make_state(c), after = run(c, "ref", before);
        const float grad_scale = 0.37f;
        const tw_quant_adamw_t adamw = adamw_of(c, &grad_scale);
        const tw_quant_args_t args = args_of(c);
        State own = before;
        tw::Codec quant(c.codec, "ref");
        const tw_quant_adamw_segment_t segment = {own.grad.data(),
                                                  reinterpret_cast<float *>(own.master.data()),
                                                  reinterpret_cast<float *>(own.m.data()),
                                                  reinterpret_cast<float *>(own.v.data()),
                                                  nullptr,
                                                  nullptr,
                                                  n,
                                                  3,
                                                  0};
        EXPECT_EQ(tw_quant_adamw_encode_delta(quant, &args, &adamw, &segment, 1), TW_OK);
        EXPECT_TRUE(own.master == after.master && own.m == after.m && own.v == after.v) << n;
    }
}

TEST_F(AdamwTwins, EverySizeAndType)
{
    size_t turn = 0;
    for (size_t n = 0; n < 5000; n += n < 70 ? 1 : 331, turn++) {
        ASSERT_NO_FATAL_FAILURE(expect_alike(
            {int4, types[turn % 3], types[turn / 3 % 3], n, turn % 5 ? 0 : turn, turn % 2 == 0}));
    }
}

TEST_F(AdamwTwins, EveryCodec)
{
    size_t turn = 0;
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 160, 2048, 4096})) {
        const size_t n = 2 * size_t(codec.block) + turn % 100;
        ASSERT_NO_FATAL_FAILURE(expect_alike({codec, types[turn % 3], types[turn / 3 % 3], n, 0, true}));
        turn++;
    }
}

TEST_F(AdamwTwins, MoreThanOneRange)
{
    expect_alike({{TW_QUANT_INT8, 4096, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_STOCHASTIC, 0, 0},
                  TW_TYPE_BF16,
                  TW_TYPE_BF16,
                  70001,
                  1,
                  true});
    expect_alike({{TW_QUANT_INT4, 32, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_STOCHASTIC, 0, 0},
                  TW_TYPE_BF16,
                  TW_TYPE_FP32,
                  20000,
                  0,
                  true});
}

TEST_F(AdamwTwins, NonFiniteGradients)
{
    for (Data data : {Data::nan, Data::infinity, Data::huge, Data::denormal, Data::zeros}) {
        ASSERT_NO_FATAL_FAILURE(expect_alike({int4, TW_TYPE_BF16, TW_TYPE_FP32, 2000, 0, true, data}));
    }
}

TEST_F(Adamw, RefusesBadParameters)
{
    const Case c = {int4, TW_TYPE_BF16, TW_TYPE_BF16, 0, 0, false};
    tw::Codec quant(c.codec, "ref");
    const tw_quant_args_t args = args_of(c);
    for (int what = 0; what < 7; what++) {
        tw_quant_adamw_t a = adamw_of(c, nullptr);
        if (what == 0) {
            a.step = 0;
        } else if (what == 1) {
            a.beta1 = 1.0;
        } else if (what == 2) {
            a.beta2 = -0.1;
        } else if (what == 3) {
            a.lr = std::nan("");
        } else if (what == 4) {
            a.eps = -1;
        } else if (what == 5) {
            a.weight_decay = INFINITY;
        } else {
            a.grad_type = TW_TYPE_BYTE;
        }
        expect_log("adamw_encode_delta");
        EXPECT_EQ(tw_quant_adamw_encode_delta(quant, &args, &a, nullptr, 0), TW_ERR_INVALID) << what;
    }
    const tw_quant_adamw_t a = adamw_of(c, nullptr);
    const tw_quant_adamw_segment_t segment = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, 0, 0};
    expect_log("NULL");
    EXPECT_EQ(tw_quant_adamw_encode_delta(quant, &args, &a, &segment, 1), TW_ERR_INVALID);
}

} // namespace
