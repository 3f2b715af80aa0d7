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
    tw_norm_add(&norm, values.data(), values.size());
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
    EXPECT_EQ(tw_norm_value(&none), 0);
    tw_norm_t zeros = norm_of({0, 0x8000});
    EXPECT_EQ(tw_norm_value(&zeros), 0);
    tw_norm_t five = norm_of({bf16(3), bf16(-4)});
    EXPECT_EQ(tw_norm_value(&five), 5);
    for (uint16_t value :
         {bf16(1.5f), bf16(-3e38f), bf16(1e-38f), (uint16_t)1, (uint16_t)0x807f, (uint16_t)0x0080}) {
        tw_norm_t one = norm_of({value});
        EXPECT_EQ(tw_norm_value(&one), std::fabs(as_double(value))) << value;
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
    EXPECT_NEAR(tw_norm_value(&norm) / std::sqrt(sum), 1, 1e-12);
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
    double one = tw_norm_value(&norm);
    for (int i = 0; i < 10; i++) {
        tw_norm_t copy = sum;
        tw_norm_merge(&sum, &copy);
    }
    EXPECT_DOUBLE_EQ(tw_norm_value(&sum), one * 32);
}

TEST(TrainNorm, NonFiniteIsCounted)
{
    tw_norm_t norm = norm_of({bf16(1), 0x7f80, 0xff80, 0x7fc0});
    EXPECT_EQ(norm.n_nonfinite, 3u);
    EXPECT_TRUE(std::isnan(tw_norm_value(&norm)));
}
