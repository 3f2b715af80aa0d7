#include "trainer/engine/norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static double as_double(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

static tw_norm_t norm_of(const std::vector<uint16_t> &values)
{
    tw_norm_t norm = {};
    tw_norm_add(&norm, TW_TYPE_BF16, values.data(), values.size());
    return norm;
}

/* Any finite bits at all. */
static std::vector<uint16_t> any_values(size_t n)
{
    std::mt19937 random(7);
    std::vector<uint16_t> values;
    while (values.size() < n) {
        uint16_t value = (uint16_t)random();
        if ((value & 0x7f80) != 0x7f80) {
            values.push_back(value);
        }
    }
    return values;
}

TEST(TrainNorm, OfFewValuesIsExact)
{
    tw_norm_t none = {};
    EXPECT_EQ(tw_norm_value(&none, TW_TYPE_BF16), 0);
    tw_norm_t zeros = norm_of({0, 0x8000});
    EXPECT_EQ(tw_norm_value(&zeros, TW_TYPE_BF16), 0);
    tw_norm_t five = norm_of({bf16(3), bf16(-4)});
    EXPECT_EQ(tw_norm_value(&five, TW_TYPE_BF16), 5);
    for (uint16_t value :
         {bf16(1.5f), bf16(-3e38f), bf16(1e-38f), (uint16_t)1, (uint16_t)0x807f, (uint16_t)0x0080}) {
        tw_norm_t one = norm_of({value});
        EXPECT_EQ(tw_norm_value(&one, TW_TYPE_BF16), std::fabs(as_double(value))) << value;
    }
}

TEST(TrainNorm, AgreesWithFp64)
{
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<uint16_t> values;
    double sum = 0;
    for (size_t i = 0; i < 100001; i++) {
        values.push_back(bf16(normal(random)));
        sum += as_double(values.back()) * as_double(values.back());
    }
    tw_norm_t norm = norm_of(values);
    EXPECT_NEAR(tw_norm_value(&norm, TW_TYPE_BF16) / std::sqrt(sum), 1, 1e-12);
}

TEST(TrainNorm, DoesNotDependOnOrderNorOnCuts)
{
    std::vector<uint16_t> values = any_values(5000);
    tw_norm_t whole = norm_of(values);
    for (size_t n_parts : {2u, 3u, 7u, 64u}) {
        std::shuffle(values.begin(), values.end(), std::mt19937((unsigned)n_parts));
        tw_norm_t sum = {};
        for (size_t part = 0; part < n_parts; part++) {
            size_t first = values.size() * part / n_parts, end = values.size() * (part + 1) / n_parts;
            tw_norm_t piece = norm_of({values.begin() + (long)first, values.begin() + (long)end});
            tw_norm_merge(&sum, &piece);
        }
        EXPECT_EQ(memcmp(&sum, &whole, sizeof(sum)), 0) << n_parts;
    }
}

TEST(TrainNorm, CarriesThroughAllLimbs)
{
    tw_norm_t norm = norm_of({0x7f7f, 0x7f7f, 0x7f7f}), sum = norm;
    double one = tw_norm_value(&norm, TW_TYPE_BF16);
    for (int i = 0; i < 10; i++) {
        tw_norm_t copy = sum;
        tw_norm_merge(&sum, &copy);
    }
    EXPECT_DOUBLE_EQ(tw_norm_value(&sum, TW_TYPE_BF16), one * 32);
}

TEST(TrainNorm, NonFiniteIsCounted)
{
    tw_norm_t norm = norm_of({bf16(1), 0x7f80, 0xff80, 0x7fc0});
    EXPECT_EQ(norm.n_nonfinite, 3u);
    EXPECT_TRUE(std::isnan(tw_norm_value(&norm, TW_TYPE_BF16)));
}

static tw_norm_t norm_of_fp32(const std::vector<float> &values)
{
    tw_norm_t norm = {};
    tw_norm_add(&norm, TW_TYPE_FP32, values.data(), values.size());
    return norm;
}

TEST(TrainNorm, OfFewValuesInFp32IsExact)
{
    tw_norm_t none = {};
    EXPECT_EQ(tw_norm_value(&none, TW_TYPE_FP32), 0);
    tw_norm_t five = norm_of_fp32({3, -4});
    EXPECT_EQ(tw_norm_value(&five, TW_TYPE_FP32), 5);
    for (float value :
         {1.5f, -3.4028235e38f, 1e-38f, 1.4e-45f, -1.1754942e-38f, 1.1754944e-38f, 0x1.fffffep0f}) {
        tw_norm_t one = norm_of_fp32({value});
        EXPECT_EQ(tw_norm_value(&one, TW_TYPE_FP32), std::fabs((double)value)) << value;
    }
}

/* More than a bin has room for at a time. */
TEST(TrainNorm, OfManyValuesInFp32)
{
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> values;
    double sum = 0;
    for (size_t i = 0; i < 200001; i++) {
        values.push_back(i % 2 == 0 ? 0x1.fffffep0f : normal(random));
        sum += (double)values.back() * values.back();
    }
    tw_norm_t whole = norm_of_fp32(values), cut = {};
    EXPECT_NEAR(tw_norm_value(&whole, TW_TYPE_FP32) / std::sqrt(sum), 1, 1e-12);
    for (size_t first = 0; first < values.size(); first += 70001) {
        size_t end = std::min(values.size(), first + 70001);
        tw_norm_t piece = norm_of_fp32({values.begin() + (long)first, values.begin() + (long)end});
        tw_norm_merge(&cut, &piece);
    }
    EXPECT_EQ(memcmp(&cut, &whole, sizeof(cut)), 0);
    tw_norm_t bad = norm_of_fp32({1, INFINITY, -INFINITY, NAN});
    EXPECT_EQ(bad.n_nonfinite, 3u);
}
