/* Conversions, exhaustively over the 16-bit types, against double arithmetic. */
#include <cmath>

#include <gtest/gtest.h>

#include "quant/arithmetic/float.h"

namespace
{

/* Value of a half word with `mantissa_bits` of mantissa, by the definition of the format; NaN for NaN. */
double half_value(uint16_t h, int mantissa_bits)
{
    const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (h & 0x7fff) >> mantissa_bits, mantissa = h & ((1 << mantissa_bits) - 1);
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa ? NAN : sign * INFINITY;
    }
    if (exponent == 0) {
        return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Half {
    const char *name;
    int mantissa_bits;
    float (*to_fp32)(uint16_t);
    uint16_t (*from_fp32)(float);
    uint16_t (*from_fp32_saturate)(float);
};

class QuantFloat : public testing::TestWithParam<Half>
{
};

bool is_nan(uint16_t h, int mantissa_bits)
{
    return std::isnan(half_value(h, mantissa_bits));
}

TEST_P(QuantFloat, WidensEveryValueExactly)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const double expected = half_value(uint16_t(h), GetParam().mantissa_bits);
        const float got = GetParam().to_fp32(uint16_t(h));
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(got)) << h;
            continue;
        }
        ASSERT_EQ(double(got), expected) << h;
        ASSERT_EQ(std::signbit(got), (h & 0x8000) != 0) << h;
    }
}

TEST_P(QuantFloat, NarrowsEveryValueBack)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const uint16_t got = GetParam().from_fp32(GetParam().to_fp32(uint16_t(h)));
        if (is_nan(uint16_t(h), GetParam().mantissa_bits)) {
            ASSERT_EQ(got, h | 1u << (GetParam().mantissa_bits - 1))
                << "NaN becomes quiet and keeps its payload";
        } else {
            ASSERT_EQ(got, h);
        }
    }
}

/* Between neighbours lo and hi: the midpoint goes to the even one, its fp32 neighbours to the nearer one. */
TEST_P(QuantFloat, RoundsToNearestEven)
{
    const uint32_t infinity = ((1u << (15 - GetParam().mantissa_bits)) - 1u) << GetParam().mantissa_bits;
    for (uint32_t sign = 0; sign < 0x10000; sign += 0x8000) {
        for (uint32_t lo = 0; lo + 1 < infinity; lo++) {
            const uint16_t h = uint16_t(sign | lo), next = uint16_t(h + 1), even = lo & 1 ? next : h;
            const double middle =
                (half_value(h, GetParam().mantissa_bits) + half_value(next, GetParam().mantissa_bits)) / 2;
            const float tie = float(middle);
            if (double(tie) == middle) { /* not so below fp32's smallest denormal */
                ASSERT_EQ(GetParam().from_fp32(tie), even) << h;
            }
            ASSERT_EQ(GetParam().from_fp32(std::nextafterf(tie, 0.0f)), h) << h;
            ASSERT_EQ(GetParam().from_fp32(std::nextafterf(tie, float(INFINITY) * (sign ? -1.0f : 1.0f))),
                      next)
                << h;
        }
    }
}

TEST_P(QuantFloat, OverflowIsInfinityOrSaturates)
{
    const uint16_t infinity =
                       uint16_t(((1u << (15 - GetParam().mantissa_bits)) - 1u) << GetParam().mantissa_bits),
                   largest = infinity - 1;
    const float top = GetParam().to_fp32(largest);
    /* Halfway to the value after the largest. */
    const float edge = float(half_value(largest, GetParam().mantissa_bits) +
                             (half_value(largest, GetParam().mantissa_bits) -
                              half_value(uint16_t(largest - 1), GetParam().mantissa_bits)) /
                                 2);
    EXPECT_EQ(GetParam().from_fp32(top), largest);
    EXPECT_EQ(GetParam().from_fp32(std::nextafterf(edge, 0)), largest);
    for (float x : {edge, std::nextafterf(edge, INFINITY), tw_float_of_bits(TW_FLOAT_MAX_BITS)}) {
        EXPECT_EQ(GetParam().from_fp32(x), infinity) << x;
        EXPECT_EQ(GetParam().from_fp32(-x), infinity | 0x8000) << x;
        EXPECT_EQ(GetParam().from_fp32_saturate(x), largest) << x;
        EXPECT_EQ(GetParam().from_fp32_saturate(-x), largest | 0x8000) << x;
    }
    EXPECT_EQ(GetParam().from_fp32_saturate(INFINITY), infinity);
    EXPECT_EQ(GetParam().from_fp32_saturate(-INFINITY), infinity | 0x8000);
    EXPECT_TRUE(is_nan(GetParam().from_fp32_saturate(NAN), GetParam().mantissa_bits));
}

TEST_P(QuantFloat, NanNeverBecomesInfinity)
{
    for (uint32_t payload = 1; payload < 0x800000; payload = payload * 2 + 1) {
        for (uint32_t sign : {0u, 0x80000000u}) {
            const float x = tw_float_of_bits(sign | TW_FLOAT_INF_BITS | payload);
            EXPECT_TRUE(is_nan(GetParam().from_fp32(x), GetParam().mantissa_bits)) << payload;
            const float lone = tw_float_of_bits(sign | TW_FLOAT_INF_BITS | (payload ^ payload >> 1));
            EXPECT_TRUE(is_nan(GetParam().from_fp32(lone), GetParam().mantissa_bits)) << payload;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Types, QuantFloat,
    testing::Values(Half{"bf16", 7, tw_float_from_bf16, tw_float_to_bf16, tw_float_to_bf16_saturate},
                    Half{"fp16", 10, tw_float_from_fp16, tw_float_to_fp16, tw_float_to_fp16_saturate}),
    [](const testing::TestParamInfo<Half> &half) { return half.param.name; });

} // namespace
