#include "quant/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace
{

float widen(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

/* By the type's definition: a sign, 4 bits of exponent with a bias of 7, 3 of mantissa. */
double value_of(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return code & 128 ? -size : size;
}

uint16_t rounded(float x, int exponent)
{
    uint16_t out;
    tw_quant_e4m3_round(&x, exponent, &out, 1);
    return out;
}

TEST(QuantE4m3, CodesAreWhatTheyStandForAndComeBack)
{
    for (int exponent : {TW_QUANT_E4M3_LEAST, -14, 0, 3, 100}) {
        for (int code = 0; code < 256; code++) {
            uint8_t given = (uint8_t)code, back;
            uint16_t value;
            tw_quant_e4m3_values(&given, exponent, &value, 1);
            tw_quant_e4m3_codes(&value, exponent, &back, 1);
            if ((code & 127) == 127) {
                EXPECT_TRUE(std::isnan(widen(value)));
                EXPECT_EQ(127, back);
                continue;
            }
            EXPECT_EQ(std::ldexp(value_of(code), exponent), widen(value)) << code;
            EXPECT_EQ(std::signbit(value_of(code)), std::signbit(widen(value))) << code;
            EXPECT_EQ(code, back) << exponent;
            EXPECT_EQ(value, rounded(widen(value), exponent)) << code;
        }
    }
}

TEST(QuantE4m3, TheNearestIsTaken)
{
    for (int i = -5000; i <= 5000; i++) {
        float x = 0.1F * (float)i;
        double best = INFINITY;
        for (int code = 0; code < 127; code++) {
            best = std::fmin(best, std::fabs(std::fabs((double)x) - value_of(code)));
        }
        EXPECT_EQ(best, std::fabs((double)widen(rounded(x, 0)) - (double)x)) << x;
    }
    EXPECT_EQ(1.0F, widen(rounded(1.0625F, 0))) << "a tie goes to even";
    EXPECT_EQ(1.25F, widen(rounded(1.1875F, 0)));
    EXPECT_EQ(448.0F, widen(rounded(1e30F, 0)));
    EXPECT_EQ(-448.0F, widen(rounded(-470.0F, 0)));
    for (float x : {NAN, INFINITY, -INFINITY}) {
        EXPECT_TRUE(std::isnan(widen(rounded(x, 0)))) << x;
    }
}

/* Rounded under a larger exponent than they were made with, old values are the codes of the nearest. */
TEST(QuantE4m3, AnotherExponentMakesTheNearestCodes)
{
    for (int code = 0; code < 127; code++) {
        uint8_t given = (uint8_t)code, under;
        uint16_t value;
        tw_quant_e4m3_values(&given, 0, &value, 1);
        tw_quant_e4m3_codes(&value, 1, &under, 1);
        uint16_t again = rounded(widen(value), 1);
        EXPECT_EQ(std::ldexp(value_of(under), 1), widen(again)) << code;
    }
}

TEST(QuantE4m3, TheExponentIsTheLeastThatFits)
{
    for (float amax : {448.0F, 448.1F, 1.0F, 0.02F, 0.0137F, 3e-20F, 1e20F}) {
        int exponent = tw_quant_e4m3_exponent(amax);
        EXPECT_LE((double)amax, std::ldexp(448.0, exponent)) << amax;
        EXPECT_GT((double)amax, std::ldexp(448.0, exponent - 1)) << amax;
    }
    EXPECT_EQ(0, tw_quant_e4m3_exponent(448));
    EXPECT_EQ(1, tw_quant_e4m3_exponent(449));
    EXPECT_EQ(TW_QUANT_E4M3_LEAST, tw_quant_e4m3_exponent(0));
    EXPECT_EQ(TW_QUANT_E4M3_LEAST, tw_quant_e4m3_exponent(1e-40F));
    EXPECT_EQ(TW_QUANT_E4M3_MOST, tw_quant_e4m3_exponent(INFINITY));
    EXPECT_LE(tw_quant_e4m3_exponent(3.4e38F), TW_QUANT_E4M3_MOST);
}

} // namespace
