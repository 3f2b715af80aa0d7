#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "quant/delta/value.h"

namespace
{

float value_of(uint16_t bits)
{
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &wide, sizeof(x));
    return x;
}

TEST(DeltaValue, OrderIsThatOfTheValuesAndItsOwnInverse)
{
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        ASSERT_EQ(tw_delta_order(tw_delta_order(uint16_t(bits))), bits);
    }
    for (uint32_t bits = 0; bits < 0xff7f; bits++) {
        const auto a = uint16_t(bits - 0x8000 + 0x80), b = uint16_t(a + 1);
        const float x = value_of(tw_delta_order(a)), y = value_of(tw_delta_order(b));
        if (int16_t(a) < int16_t(b) && !std::isnan(x) && !std::isnan(y)) {
            ASSERT_LE(x, y) << bits;
        }
    }
    EXPECT_NE(tw_delta_order(0x0000), tw_delta_order(0x8000));
    EXPECT_EQ(tw_delta_change(0x8000, 0x0000), 1) << "from -0 to +0";
}

TEST(DeltaValue, AChangeComesBack)
{
    for (uint32_t a = 0; a < 0x10000; a += 37) {
        for (uint32_t b = 0; b < 0x10000; b += 41) {
            ASSERT_EQ(tw_delta_changed(uint16_t(a), tw_delta_change(uint16_t(a), uint16_t(b))), b);
        }
    }
}

TEST(DeltaValue, ZigzagPutsSmallChangesFirst)
{
    const int16_t first[] = {0, -1, 1, -2, 2};
    for (uint16_t z = 0; z < 5; z++) {
        EXPECT_EQ(tw_delta_unzigzag(z), first[z]);
    }
    for (int x = -32768; x < 32768; x++) {
        ASSERT_EQ(tw_delta_unzigzag(tw_delta_zigzag(int16_t(x))), x);
    }
}

/* Three bits after the leading one of |change| + 8: off by less than an eighth of that. */
TEST(DeltaValue, AStateIsNearTheChange)
{
    for (int x = -32768; x < 32768; x++) {
        const uint8_t state = tw_delta_state(int16_t(x));
        const int size = x < 0 ? -x : x, known = int(tw_delta_state_size(state));
        ASSERT_EQ(state >> 7, x < 0) << x;
        ASSERT_LE(known, size) << x;
        ASSERT_LE(8 * (size - known), size + 7) << x;
        ASSERT_EQ(tw_delta_state_class(state), size == 0 ? 0 : size == 1 ? 1 : size < 4 ? 2 : 3) << x;
    }
    EXPECT_EQ(tw_delta_state(0), 0);
}

TEST(DeltaValue, WhatIsLeftOfAChangeComesBackWhateverTheState)
{
    for (int state = 0; state < 256; state++) {
        for (int x = -32768; x < 32768; x += 97) {
            for (uint32_t factor : {0u, 1u, 100u, 128u, 255u}) {
                const int16_t rest = tw_delta_rest(int16_t(x), uint8_t(state), factor);
                ASSERT_EQ(tw_delta_unrest(rest, uint8_t(state), factor), x);
            }
        }
    }
    EXPECT_EQ(tw_delta_rest(-5, tw_delta_state(-5), 128), 0) << "fully predicted";
    EXPECT_EQ(tw_delta_rest(-5, tw_delta_state(5), 128), -10);
}

TEST(DeltaValue, ExponentsOutsideTheWindowAreClamped)
{
    EXPECT_EQ(tw_delta_exponent(100, uint16_t(99 << 7)), 0u);
    EXPECT_EQ(tw_delta_exponent(100, uint16_t(0x8000 | 101 << 7)), 1u);
    EXPECT_EQ(tw_delta_exponent(100, uint16_t(131 << 7)), 31u);
    EXPECT_EQ(tw_delta_exponent(100, uint16_t(255 << 7)), 31u);
}

TEST(DeltaValue, RawBitsFollowTheOctave)
{
    for (uint32_t table = 0; table < TW_DELTA_TABLES; table++) {
        EXPECT_LE(tw_delta_raw_bits(table), uint32_t(TW_DELTA_RAW_BITS_MAX));
    }
    EXPECT_EQ(tw_delta_raw_bits(7), 0u);
    EXPECT_EQ(tw_delta_raw_bits(8), 1u);
}

} // namespace
