/* Scale, rounding and rotation of one block. */
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "quant/arithmetic/block.h"

namespace
{

/* Magnitudes from the smallest denormal to the largest finite fp32, every exponent, with random mantissas. */
std::vector<float> magnitudes()
{
    std::mt19937 random(7);
    std::vector<float> all = {tw_float_of_bits(1), tw_float_of_bits(TW_FLOAT_MAX_BITS), 65504.0f, 1.0f};
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        all.push_back(tw_float_of_bits(exponent << 23 | (exponent == 0)));
        for (int i = 0; i < 20; i++) {
            all.push_back(tw_float_of_bits(exponent << 23 | (uint32_t(random()) >> 9) | 1));
        }
    }
    return all;
}

TEST(QuantBlock, ScaleIsNormalAndDoesNotClip)
{
    for (float amax : magnitudes()) {
        for (tw_quant_kind_t kind : {TW_QUANT_INT8, TW_QUANT_INT4, TW_QUANT_INT2}) {
            const int qmax = tw_block_qmax(kind), reach = tw_block_reach(kind);
            for (tw_quant_scale_t type : {TW_QUANT_SCALE_BF16, TW_QUANT_SCALE_FP32}) {
                const float scale = tw_block_scale(amax, reach, type);
                ASSERT_GE(scale, 0x1p-125f);
                if (kind == TW_QUANT_INT2) {
                    ASSERT_LE(scale, 0x1p127f);
                } else {
                    ASSERT_LT(scale, 0x1p126f);
                    ASSERT_GE(tw_block_inverse(scale), 0x1p-126f) << "a normal number";
                }
                ASSERT_LE(tw_block_inverse(scale), 0x1p125f);
                /* Nothing clips but to one step of 2 bits: the division's own rounding aside. */
                ASSERT_GE(double(scale) * reach, double(amax) * (1 - 0x1p-24));
                const double ideal = std::fmax(double(amax) / reach, 0x1p-125);
                const double step = type == TW_QUANT_SCALE_BF16 ? 0x1p-7 : 0x1p-24;
                ASSERT_LE(double(scale), ideal * (1 + 0x1p-24) * (1 + step));
                if (type == TW_QUANT_SCALE_BF16) {
                    ASSERT_EQ(tw_float_bits(scale) & 0xffffu, 0u);
                }
                /* The largest magnitude uses the whole grid, both signs alike. */
                const int q = tw_block_round_nearest(tw_float_mul(amax, tw_block_inverse(scale)), qmax);
                ASSERT_EQ(tw_block_round_nearest(tw_float_mul(-amax, tw_block_inverse(scale)), qmax), -q);
                if (amax >= 0x1p-117f) {
                    ASSERT_GE(q, qmax == 127 ? 126 : qmax);
                }
            }
        }
    }
}

TEST(QuantBlock, ZeroScaleGivesZeroCodes)
{
    EXPECT_EQ(tw_block_scale(0.0f, 7, TW_QUANT_SCALE_BF16), 0.0f);
    EXPECT_EQ(tw_block_inverse(0.0f), 0.0f);
}

TEST(QuantBlock, NearestIsNearestEven)
{
    for (int k = -127; k < 127; k++) {
        EXPECT_EQ(tw_block_round_nearest(float(k), 127), k);
        EXPECT_EQ(tw_block_round_nearest(float(k) + 0.5f, 127), k % 2 == 0 ? k : k + 1);
        EXPECT_EQ(tw_block_round_nearest(std::nextafterf(float(k) + 0.5f, -1000.0f), 127), k);
        EXPECT_EQ(tw_block_round_nearest(std::nextafterf(float(k) + 0.5f, 1000.0f), 127), k + 1);
    }
    EXPECT_EQ(tw_block_round_nearest(127.9f, 127), 127);
    EXPECT_EQ(tw_block_round_nearest(-127.9f, 127), -127);
    EXPECT_EQ(tw_block_round_nearest(7.6f, 7), 7);
    EXPECT_EQ(tw_block_round_nearest(-7.6f, 7), -7);
}

/* Against all numbers that e4m3 has, in steps of the smallest. */
TEST(QuantBlock, Fp8IsTheNearestOfAllE4m3)
{
    std::vector<double> values;
    for (int code = 0; code < 0x80; code++) {
        const int exponent = code >> 3, mantissa = code & 7;
        const double value = exponent == 0 ? mantissa : std::ldexp(8 + mantissa, exponent - 1);
        EXPECT_EQ(tw_block_fp8_value(code), float(value));
        EXPECT_EQ(tw_block_fp8_value(code - 128), -float(value));
        values.push_back(value);
    }
    for (int code = 0; code < 0x7e; code++) {
        const float low = float(values[size_t(code)]), high = float(values[size_t(code) + 1]);
        const float middle = (low + high) / 2;
        EXPECT_EQ(tw_block_fp8_nearest(low), code);
        EXPECT_EQ(tw_block_fp8_nearest(std::nextafterf(middle, 0.0f)), code);
        EXPECT_EQ(tw_block_fp8_nearest(middle), code % 2 == 0 ? code : code + 1);
        EXPECT_EQ(tw_block_fp8_nearest(std::nextafterf(middle, 1e9f)), code + 1);
        EXPECT_EQ(tw_block_fp8_nearest(-std::nextafterf(middle, 1e9f)), code + 1 - 128);
    }
    EXPECT_EQ(tw_block_fp8_nearest(500 * 512.0f), 0x7e) << "saturated";
    EXPECT_EQ(tw_block_fp8_nearest(-500 * 512.0f), 0x7e - 128);
    EXPECT_EQ(tw_block_fp8_nearest(-0.0f), 0) << "zeros have no sign";
}

/* The fraction f is rounded up by the uniform numbers below it, exactly. */
TEST(QuantBlock, StochasticRoundsUpWithTheFractionAsProbability)
{
    const float below_one = tw_block_uniform(0xffffffffu);
    EXPECT_EQ(tw_block_uniform(0xff), 0.0f);
    EXPECT_LT(below_one, 1.0f);
    for (int k = -127; k <= 127; k++) {
        EXPECT_EQ(tw_block_round_stochastic(float(k), 0.0f, 127), k) << "integers stay";
        EXPECT_EQ(tw_block_round_stochastic(float(k), below_one, 127), k);
    }
    for (int k = -7; k < 7; k++) {
        for (float f : {0.25f, 0.5f, 0.8125f}) {
            EXPECT_EQ(tw_block_round_stochastic(float(k) + f, std::nextafterf(f, 0.0f), 7), k + 1);
            EXPECT_EQ(tw_block_round_stochastic(float(k) + f, f, 7), k);
        }
    }
    EXPECT_EQ(tw_block_round_stochastic(7.25f, 0.0f, 7), 7);
    EXPECT_EQ(tw_block_round_stochastic(-7.25f, below_one, 7), -7);
}

TEST(QuantBlock, DequantizeStaysFinite)
{
    const float scale = tw_block_scale(tw_float_of_bits(TW_FLOAT_MAX_BITS), 127, TW_QUANT_SCALE_BF16);
    EXPECT_TRUE(std::isinf(127 * scale)) << "else this tests nothing";
    EXPECT_EQ(tw_block_dequantize(127, scale), tw_float_of_bits(TW_FLOAT_MAX_BITS));
    EXPECT_EQ(tw_block_dequantize(-127, scale), -tw_float_of_bits(TW_FLOAT_MAX_BITS));
    EXPECT_TRUE(tw_block_may_overflow(scale, TW_QUANT_INT8, 0, TW_TYPE_FP32));
}

/* A block that is said not to overflow does not, whatever its codes. */
TEST(QuantBlock, MayOverflowMissesNothing)
{
    for (float scale : magnitudes()) {
        for (tw_quant_kind_t kind : {TW_QUANT_INT8, TW_QUANT_INT4}) {
            const double lowest = double(tw_block_qmax_foreign(kind)) * double(scale);
            for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
                if (!tw_block_may_overflow(scale, kind, 0, type)) {
                    ASSERT_LE(lowest, double(tw_float_type_max(type)));
                }
                if (!tw_block_may_overflow(scale, kind, 1, type)) {
                    ASSERT_LE(lowest * std::sqrt(32.0), double(tw_float_type_max(type)));
                }
            }
        }
    }
}

TEST(QuantBlock, HadamardIsTheSylvesterMatrix)
{
    for (int column = 0; column < 32; column++) {
        float y[32] = {0};
        y[column] = 1.0f;
        tw_block_hadamard32(y);
        for (int row = 0; row < 32; row++) {
            const float sign = __builtin_parity(unsigned(row & column)) ? -1.0f : 1.0f;
            ASSERT_EQ(y[row], sign * float(std::pow(2.0, -2.5))) << row << "," << column;
        }
    }
}

/* Each of the 5 stages and the norm round once: relative to the group's 2-norm, 6 * 2^-24 at most; twice that
 * for two. */
TEST(QuantBlock, HadamardIsSelfInverse)
{
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int trial = 0; trial < 1000; trial++) {
        float x[32], y[32];
        double norm = 0, error = 0;
        for (int i = 0; i < 32; i++) {
            x[i] = y[i] = normal(random) * (i == trial % 32 ? 200.0f : 1.0f);
        }
        tw_block_hadamard32(y);
        tw_block_hadamard32(y);
        for (int i = 0; i < 32; i++) {
            norm += double(x[i]) * x[i];
            error += (double(y[i]) - x[i]) * (double(y[i]) - x[i]);
        }
        /* and the norm itself is 2^-2.5 to 2^-25 only */
        ASSERT_LE(std::sqrt(error), 14 * 0x1p-24 * std::sqrt(norm));
    }
}

TEST(QuantBlock, NonfiniteIsSeenInTheMaximum)
{
    EXPECT_FALSE(tw_block_amax_is_nonfinite(TW_FLOAT_MAX_BITS, 0));
    for (float bad : {INFINITY, -INFINITY, NAN, -NAN}) {
        EXPECT_TRUE(tw_block_amax_is_nonfinite(tw_float_abs_bits(bad), 0));
        EXPECT_TRUE(tw_block_amax_is_nonfinite(tw_float_abs_bits(bad), 1));
        EXPECT_GT(tw_float_abs_bits(bad), tw_float_abs_bits(-tw_float_of_bits(TW_FLOAT_MAX_BITS)));
    }
    EXPECT_FALSE(tw_block_amax_is_nonfinite(tw_float_bits(0x1p122f), 1));
    EXPECT_TRUE(tw_block_amax_is_nonfinite(tw_float_bits(0x1p122f) + 1, 1));
}

} // namespace
