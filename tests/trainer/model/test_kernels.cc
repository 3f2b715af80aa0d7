/* exp, layer norm, RMS norm, GELU, SwiGLU, softmax and attention, each against its definition in fp64,
 * backwards against differences of it. */
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "trainer/model/attention.h"
#include "trainer/model/exp.h"

namespace
{

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats random_floats(size_t n, uint32_t seed, float deviation = 1.0f)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, deviation);
    Floats values(n);
    for (float &value : values) {
        value = normal(random);
    }
    return values;
}

/* Gradient of sum(weights * f(x)) by x, by central differences in fp64. */
Doubles difference(const std::function<Doubles(const Doubles &)> &f, const Floats &x, const Floats &weights)
{
    Doubles at(x.begin(), x.end()), gradient(x.size());
    auto value = [&] {
        Doubles y = f(at);
        double sum = 0.0;
        for (size_t i = 0; i < y.size(); i++) {
            sum += y[i] * weights[i];
        }
        return sum;
    };
    const double h = 1e-5;
    for (size_t i = 0; i < x.size(); i++) {
        at[i] = x[i] + h;
        double up = value();
        at[i] = x[i] - h;
        gradient[i] = (up - value()) / (2.0 * h);
        at[i] = x[i];
    }
    return gradient;
}

void expect_near(const Doubles &want, const Floats &got, double bound)
{
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); i++) {
        ASSERT_NEAR(want[i], got[i], bound * (1.0 + std::fabs(want[i]))) << i;
    }
}

TEST(Exp, IsNearTheLibrarysAndKeepsItsEnds)
{
    for (double x = -87.0; x < 88.0; x += 0.00321) {
        float at = static_cast<float>(x);
        double want = std::exp(static_cast<double>(at));
        ASSERT_NEAR(want, tw_exp(at), 2.5 * 0x1p-23 * want) << x;
    }
    EXPECT_EQ(1.0f, tw_exp(0.0f));
    EXPECT_LT(tw_exp(-std::numeric_limits<float>::infinity()), 2e-38f);
    EXPECT_EQ(tw_exp(88.0f), tw_exp(std::numeric_limits<float>::infinity()));
    EXPECT_TRUE(std::isnan(tw_exp(std::numeric_limits<float>::quiet_NaN())));
}

Doubles layernorm(const Doubles &x, const Doubles &gamma, const Doubles &beta, size_t c)
{
    Doubles y(x.size());
    for (size_t row = 0; row < x.size() / c; row++) {
        double mean = 0.0, variance = 0.0;
        for (size_t i = 0; i < c; i++) {
            mean += x[row * c + i] / static_cast<double>(c);
        }
        for (size_t i = 0; i < c; i++) {
            variance += std::pow(x[row * c + i] - mean, 2) / static_cast<double>(c);
        }
        for (size_t i = 0; i < c; i++) {
            y[row * c + i] = (x[row * c + i] - mean) / std::sqrt(variance + 1e-5) * gamma[i] + beta[i];
        }
    }
    return y;
}

class LayerNorm : public ::testing::TestWithParam<size_t>
{
  protected:
    static constexpr size_t kRows = 3;
    void SetUp() override
    {
        tw_kernels()->norm_forward(&norm_, y_.data());
    }
    size_t c_ = GetParam();
    Floats x_ = random_floats(kRows * c_, 1), gamma_ = random_floats(c_, 2), beta_ = random_floats(c_, 3);
    Floats y_ = Floats(kRows * c_), mean_ = Floats(kRows), rstd_ = Floats(kRows);
    const tw_model_norm_t norm_ = {
        x_.data(), gamma_.data(), beta_.data(), kRows, c_, 1e-5, {mean_.data(), rstd_.data()}};
    Doubles xd_{x_.begin(), x_.end()}, gd_{gamma_.begin(), gamma_.end()}, bd_{beta_.begin(), beta_.end()};
};

TEST_P(LayerNorm, ForwardAndAgain)
{
    expect_near(layernorm(xd_, gd_, bd_, c_), y_, 1e-5);
    Floats again(y_.size());
    tw_kernels()->norm_apply(&norm_, again.data());
    EXPECT_EQ(y_, again);
}

TEST_P(LayerNorm, Backward)
{
    Floats dy = random_floats(kRows * c_, 4), dx(kRows * c_), dgamma(c_), dbeta(c_);
    const tw_model_norm_gradients_t to = {dx.data(), dgamma.data(), dbeta.data(), 0};
    tw_kernels()->norm_backward(&norm_, dy.data(), &to);
    double bound = c_ == 1 ? 1e-2 : 1e-4; /* of one channel the variance is 0 and 1 / deviation large */
    expect_near(difference([&](const Doubles &x) { return layernorm(x, gd_, bd_, c_); }, x_, dy), dx, bound);
    expect_near(difference([&](const Doubles &g) { return layernorm(xd_, g, bd_, c_); }, gamma_, dy), dgamma,
                1e-4);
    expect_near(difference([&](const Doubles &b) { return layernorm(xd_, gd_, b, c_); }, beta_, dy), dbeta,
                1e-4);
    Floats twice = dx, unused(c_);
    const tw_model_norm_gradients_t to_twice = {twice.data(), unused.data(), unused.data(), 1};
    tw_kernels()->norm_backward(&norm_, dy.data(), &to_twice);
    for (size_t i = 0; i < dx.size(); i++) {
        EXPECT_FLOAT_EQ(2.0f * dx[i], twice[i]);
    }
}

INSTANTIATE_TEST_SUITE_P(Channels, LayerNorm, ::testing::Values(1, 2, 7, 8, 9, 32));

Doubles gelu(const Doubles &x)
{
    Doubles y;
    for (double v : x) {
        y.push_back(0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v))));
    }
    return y;
}

TEST(Gelu, ForwardAndBackward)
{
    Floats x = random_floats(41, 1, 2.0f), dy = random_floats(41, 2), y(41);
    x[0] = 0.0f;
    x[1] = -40.0f;
    x[2] = 40.0f;
    tw_kernels()->gelu_forward(x.data(), x.size(), y.data());
    expect_near(gelu(Doubles(x.begin(), x.end())), y, 1e-6);
    Floats d = dy;
    tw_kernels()->gelu_backward(x.data(), x.size(), d.data());
    expect_near(difference(gelu, x, dy), d, 1e-5);
    tw_kernels()->gelu_forward(x.data(), 0, y.data());
}

TEST(CrossEntropy, IsItsDefinitionAndLeavesItsGradient)
{
    for (size_t v : {1, 2, 9, 1000}) {
        Floats logits = random_floats(v, 7, 5.0f), gradient = logits;
        size_t target = v / 2;
        auto loss = [&](const Doubles &l) {
            double sum = 0.0;
            for (double value : l) {
                sum += std::exp(value - l[target]);
            }
            return Doubles{std::log(sum)};
        };
        double got = tw_kernels()->cross_entropy_row(gradient.data(), v, target, 0.5f);
        EXPECT_NEAR(loss(Doubles(logits.begin(), logits.end()))[0], got, 1e-5) << v;
        expect_near(difference(loss, logits, {0.5f}), gradient, 1e-5);
    }
}

TEST(Softmax, LargeLogitsDoNotOverflow)
{
    Floats row = {1e30f, 1e30f, -1e30f};
    tw_kernels()->softmax_row(row.data(), 3);
    EXPECT_FLOAT_EQ(0.5f, row[0]);
    EXPECT_FLOAT_EQ(0.5f, row[1]);
    EXPECT_LT(row[2], 1e-37f);
}

Doubles rmsnorm(const Doubles &x, const Doubles &gamma, size_t c)
{
    Doubles y(x.size());
    for (size_t row = 0; row < x.size() / c; row++) {
        double squares = 0.0;
        for (size_t i = 0; i < c; i++) {
            squares += x[row * c + i] * x[row * c + i] / static_cast<double>(c);
        }
        for (size_t i = 0; i < c; i++) {
            y[row * c + i] = x[row * c + i] / std::sqrt(squares + 1e-3) * gamma[i];
        }
    }
    return y;
}

TEST(RmsNorm, ForwardAgainAndBackward)
{
    for (size_t c : {1, 2, 15, 64}) {
        const size_t n = 3;
        Floats x = random_floats(n * c, 1), gamma = random_floats(c, 2), dy = random_floats(n * c, 3);
        Floats rstd(n), y(n * c), again(n * c), dx(n * c), dgamma(c, 0.0f);
        Doubles xd(x.begin(), x.end()), gd(gamma.begin(), gamma.end());
        const tw_model_norm_t norm = {x.data(), gamma.data(), nullptr, n, c, 1e-3, {nullptr, rstd.data()}};
        const auto backward = [&](const Floats &by, int accumulate, Floats *into, Floats *by_gamma) {
            const tw_model_norm_gradients_t to = {into->data(), by_gamma->data(), nullptr, accumulate};
            tw_kernels()->norm_backward(&norm, by.data(), &to);
        };
        tw_kernels()->norm_forward(&norm, y.data());
        expect_near(rmsnorm(xd, gd, c), y, 1e-5);
        tw_kernels()->norm_apply(&norm, again.data());
        EXPECT_EQ(y, again);
        backward(dy, 0, &dx, &dgamma);
        double bound = c == 1 ? 1e-2 : 1e-4; /* of one channel it hardly depends on x */
        expect_near(difference([&](const Doubles &at) { return rmsnorm(at, gd, c); }, x, dy), dx, bound);
        expect_near(difference([&](const Doubles &at) { return rmsnorm(xd, at, c); }, gamma, dy), dgamma,
                    1e-4);
        Floats in_place = dy, sum = dy, unused(c);
        backward(in_place, 0, &in_place, &unused);
        EXPECT_EQ(dx, in_place);
        backward(dy, 1, &sum, &unused);
        for (size_t i = 0; i < n * c; i++) {
            EXPECT_FLOAT_EQ(dy[i] + dx[i], sum[i]);
        }
    }
}

TEST(SwiGlu, ForwardAndBackward)
{
    const size_t n = 33;
    Floats gate = random_floats(n, 1, 3.0f), up = random_floats(n, 2), dy = random_floats(n, 3);
    gate[0] = 0.0f;
    gate[1] = -80.0f;
    gate[2] = 80.0f;
    auto swiglu = [&](const Doubles &g, const Doubles &u) {
        Doubles y(n);
        for (size_t i = 0; i < n; i++) {
            y[i] = g[i] / (1.0 + std::exp(-g[i])) * u[i];
        }
        return y;
    };
    Doubles gd(gate.begin(), gate.end()), ud(up.begin(), up.end());
    Floats y(n), d_gate(n), d_up = dy;
    tw_kernels()->swiglu_forward(gate.data(), up.data(), n, y.data());
    expect_near(swiglu(gd, ud), y, 1e-5);
    tw_kernels()->swiglu_backward(gate.data(), up.data(), n, d_up.data(), d_gate.data());
    expect_near(difference([&](const Doubles &at) { return swiglu(at, ud); }, gate, dy), d_gate, 1e-4);
    expect_near(difference([&](const Doubles &at) { return swiglu(gd, at); }, up, dy), d_up, 1e-4);
}

size_t qkv_width(const tw_attention_shape_t &shape)
{
    return (shape.heads + 2 * shape.kv_heads) * shape.width;
}

/* (B,T,(H+2K)D) -> (B,T,HD) */
Doubles attention(const tw_attention_shape_t &shape, const Doubles &qkv)
{
    size_t width = shape.width, c = shape.heads * width, t = shape.seq_len, stride = qkv_width(shape);
    Doubles y(shape.batch * t * c, 0.0);
    auto at = [&](size_t b, size_t row, size_t first_head, size_t h, size_t i) {
        return qkv[(b * t + row) * stride + (first_head + h) * width + i];
    };
    for (size_t b = 0; b < shape.batch; b++) {
        for (size_t h = 0; h < shape.heads; h++) {
            size_t shared = h * shape.kv_heads / shape.heads;
            for (size_t row = 0; row < t; row++) {
                Doubles weight(row + 1, 0.0);
                double sum = 0.0;
                for (size_t col = 0; col <= row; col++) {
                    if (shape.window > 0 && col + shape.window <= row) {
                        continue;
                    }
                    double dot = 0.0;
                    for (size_t i = 0; i < width; i++) {
                        dot += at(b, row, 0, h, i) * at(b, col, shape.heads, shared, i);
                    }
                    weight[col] = std::exp(dot / std::sqrt(static_cast<double>(width)));
                    sum += weight[col];
                }
                for (size_t col = 0; col <= row; col++) {
                    for (size_t i = 0; i < width; i++) {
                        y[(b * t + row) * c + h * width + i] +=
                            weight[col] / sum * at(b, col, shape.heads + shape.kv_heads, shared, i);
                    }
                }
            }
        }
    }
    return y;
}

class Attention : public ::testing::TestWithParam<tw_attention_shape_t>
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(TW_OK, tw_products_create(&products));
        compute.products = &products;
        compute.kernels = tw_kernels();
    }
    void TearDown() override
    {
        tw_products_destroy(products);
    }

    tw_products_t *products = nullptr;

    tw_compute_t compute = {}; /* fp32 */
};

TEST_P(Attention, Forward)
{
    tw_attention_shape_t shape = GetParam();
    size_t n = shape.batch * shape.seq_len;
    Floats qkv = random_floats(n * qkv_width(shape), 1), y(n * shape.heads * shape.width, NAN);
    Floats scratch(tw_attention_scratch_elems(shape.seq_len), NAN);
    tw_attention_forward(&compute, &shape, qkv.data(), scratch.data(), y.data());
    expect_near(attention(shape, Doubles(qkv.begin(), qkv.end())), y, 1e-5);
}

/* All of the gradient in small shapes; along four directions in those of several tiles. */
TEST_P(Attention, Backward)
{
    tw_attention_shape_t shape = GetParam();
    size_t n = shape.batch * shape.seq_len;
    Floats qkv = random_floats(n * qkv_width(shape), 1);
    Floats dy = random_floats(n * shape.heads * shape.width, 2);
    Floats scratch(tw_attention_scratch_elems(shape.seq_len), NAN), dqkv(qkv.size(), NAN);
    tw_attention_backward(&compute, &shape, qkv.data(), dy.data(), scratch.data(), dqkv.data());
    auto f = [&](const Doubles &x) { return attention(shape, x); };
    if (shape.seq_len < 20) {
        expect_near(difference(f, qkv, dy), dqkv, 1e-4);
        return;
    }
    for (uint32_t seed = 3; seed < 7; seed++) {
        Floats direction = random_floats(qkv.size(), seed);
        auto along = [&](const Doubles &s) {
            Doubles x(qkv.begin(), qkv.end());
            for (size_t i = 0; i < x.size(); i++) {
                x[i] += s[0] * direction[i];
            }
            return f(x);
        };
        double got = 0.0, size = 0.0;
        for (size_t i = 0; i < dqkv.size(); i++) {
            got += static_cast<double>(dqkv[i]) * direction[i];
            size += static_cast<double>(dqkv[i]) * dqkv[i];
        }
        EXPECT_NEAR(difference(along, {0.0f}, dy)[0], got, 1e-4 * std::sqrt(size));
    }
}

/* batch, length, heads, those of k and v, width, window */
INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    ::testing::Values(
        tw_attention_shape_t{1, 1, 1, 1, 1, 0, nullptr}, tw_attention_shape_t{2, 5, 3, 3, 2, 0, nullptr},
        tw_attention_shape_t{1, 9, 1, 1, 4, 0, nullptr}, tw_attention_shape_t{1, 63, 1, 1, 2, 0, nullptr},
        tw_attention_shape_t{1, 64, 1, 1, 2, 0, nullptr}, tw_attention_shape_t{1, 65, 2, 2, 2, 0, nullptr},
        tw_attention_shape_t{2, 130, 1, 1, 3, 0, nullptr}, tw_attention_shape_t{2, 5, 6, 2, 2, 0, nullptr},
        tw_attention_shape_t{1, 7, 4, 1, 2, 3, nullptr}, tw_attention_shape_t{2, 6, 2, 2, 2, 1, nullptr},
        tw_attention_shape_t{1, 6, 2, 1, 2, 6, nullptr}, tw_attention_shape_t{1, 6, 2, 1, 2, 9, nullptr},
        tw_attention_shape_t{1, 130, 2, 1, 2, 64, nullptr},
        tw_attention_shape_t{1, 130, 2, 1, 2, 65, nullptr},
        tw_attention_shape_t{1, 130, 2, 1, 2, 2, nullptr}));

/* Numbers from -2 to 2. Unlike those of a normal distribution, no C library computes them, so they are the
 * same on every processor. */
Floats even_floats(size_t n, uint32_t seed)
{
    std::mt19937 random(seed);
    Floats values(n);
    for (float &value : values) {
        value = (float)((int32_t)(random() >> 8) - (1 << 23)) * 0x1p-22f;
    }
    return values;
}

/* All that a set computes of n elements, in rows of c. */
Floats everything(const tw_kernel_set_t *kernels, size_t n, size_t c)
{
    Floats x = even_floats(n * c, 1), dy = even_floats(n * c, 2), gamma = even_floats(c, 3);
    Floats beta = even_floats(c, 4), mean(n), rstd(n), all;
    x[0] = 100.0f; /* beyond where exp is cut */
    auto keep = [&](const Floats &values) { all.insert(all.end(), values.begin(), values.end()); };
    const tw_model_norm_t layer = {
        x.data(), gamma.data(), beta.data(), n, c, 1e-5, {mean.data(), rstd.data()}};
    const tw_model_norm_t rms = {x.data(), gamma.data(), nullptr, n, c, 1e-5, {nullptr, rstd.data()}};
    Floats y(n * c), dx = dy, d_gamma = gamma, d_beta = beta;
    tw_model_norm_gradients_t to = {dx.data(), d_gamma.data(), d_beta.data(), 1};
    kernels->norm_forward(&layer, y.data());
    kernels->norm_backward(&layer, dy.data(), &to);
    for (const Floats *part : {&y, &mean, &rstd, &dx, &d_gamma, &d_beta}) {
        keep(*part);
    }
    kernels->norm_apply(&layer, y.data());
    keep(y);
    to.accumulate = 0;
    kernels->norm_forward(&rms, y.data());
    kernels->norm_backward(&rms, dy.data(), &to);
    for (const Floats *part : {&y, &rstd, &dx, &d_gamma}) {
        keep(*part);
    }
    kernels->norm_apply(&rms, y.data());
    keep(y);
    dx = dy;
    kernels->gelu_forward(x.data(), n * c, y.data());
    kernels->gelu_backward(x.data(), n * c, dx.data());
    keep(y);
    keep(dx);
    dx = dy;
    Floats d_gate(n * c);
    kernels->swiglu_forward(x.data(), dy.data(), n * c, y.data());
    kernels->swiglu_backward(x.data(), y.data(), n * c, dx.data(), d_gate.data());
    for (const Floats *part : {&y, &dx, &d_gate}) {
        keep(*part);
    }
    Floats p = x, dp = dy;
    kernels->softmax_row(p.data(), n * c);
    kernels->softmax_row_backward(p.data(), n * c, 0.3f, dp.data());
    keep(p);
    keep(dp);
    p = x;
    keep({(float)kernels->cross_entropy_row(p.data(), n * c, 0, 0.7f)});
    keep(p);
    kernels->bias_forward(beta.data(), n, c, c, 1, y.data());
    kernels->bias_backward(dy.data(), n, c, c, d_beta.data());
    keep(y);
    keep(d_beta);
    kernels->narrow_in_place(y.data(), n * c);
    keep(y);
    Floats angles = even_floats(c, 5);
    kernels->rope_turn(x.data(), c, angles.data(), beta.data());
    kernels->rope_turn_backward(dy.data(), c, angles.data(), beta.data());
    keep(x);
    keep(dy);
    return all;
}

TEST(Kernels, AllInstructionSetsGiveTheSameBits)
{
    for (size_t c : {1, 2, 3, 15, 16, 17, 31, 33, 100, 128}) {
        Floats plain = everything(tw_kernels_get(0), 3, c);
        for (size_t set = 1; tw_kernels_get(set); set++) {
            Floats other = everything(tw_kernels_get(set), 3, c);
            ASSERT_EQ(plain.size(), other.size());
            for (size_t i = 0; i < plain.size(); i++) {
                ASSERT_EQ(0, memcmp(&plain[i], &other[i], sizeof(float)))
                    << "set " << set << ", c " << c << ", " << i;
            }
        }
    }
    EXPECT_EQ(nullptr, tw_kernels_get(3));
}

/* The hash was computed on an x86-64; aarch64 has to give it, too. */
TEST(Kernels, AllProcessorsGiveTheSameBits)
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t c : {1, 17, 128}) {
        for (float value : everything(tw_kernels(), 3, c)) {
            uint32_t bits;
            memcpy(&bits, &value, sizeof(bits));
            hash = (hash ^ bits) * 0x100000001b3;
        }
    }
    EXPECT_EQ(0x99e61bbbd93de74u, hash);
}

TEST(Kernels, NarrowsToTheNearest)
{
    const Floats x = {1.0f,
                      -2.5f,
                      1.00390625f /* a tie, down */,
                      1.01171875f /* a tie, up */,
                      1.00391f,
                      0.0f,
                      -0.0f,
                      3.4e38f,
                      INFINITY,
                      -INFINITY,
                      1e-40f};
    const std::vector<uint16_t> want = {0x3f80, 0xc020, 0x3f80, 0x3f82, 0x3f81, 0,
                                        0x8000, 0x7f80, 0x7f80, 0xff80, 1};
    std::vector<uint16_t> got(x.size());
    tw_kernels()->narrow(x.data(), x.size(), got.data());
    EXPECT_EQ(want, got);
    const float nan = std::nanf("1");
    tw_kernels()->narrow(&nan, 1, got.data());
    EXPECT_GT(got[0] & 0x7fff, 0x7f80);
}

TEST(Kernels, NarrowsInPlace)
{
    for (size_t n : {1, 511, 512, 513, 2000}) {
        Floats x = random_floats(n, 1);
        std::vector<uint16_t> want(n);
        tw_kernels()->narrow(x.data(), n, want.data());
        tw_kernels()->narrow_in_place(x.data(), n);
        EXPECT_EQ(0, memcmp(want.data(), x.data(), n * sizeof(uint16_t))) << n;
    }
}

} // namespace
