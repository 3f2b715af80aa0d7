#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "trainer/data/order.h"

namespace
{

std::vector<uint64_t> order(uint64_t seed, uint64_t epoch, uint64_t n)
{
    std::vector<uint64_t> places;
    for (uint64_t i = 0; i < n; i++) {
        places.push_back(tw_data_order(seed, epoch, n, i));
    }
    return places;
}

TEST(Order, IsAPermutation)
{
    for (uint64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097}) {
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            std::vector<int> seen(n, 0);
            for (uint64_t place : order(7, epoch, n)) {
                ASSERT_LT(place, n);
                seen[place]++;
            }
            EXPECT_EQ(std::vector<int>(n, 1), seen) << n;
        }
    }
}

TEST(Order, DiffersBySeedAndEpoch)
{
    EXPECT_EQ(order(1, 0, 1000), order(1, 0, 1000));
    EXPECT_NE(order(1, 0, 1000), order(1, 1, 1000));
    EXPECT_NE(order(1, 0, 1000), order(2, 0, 1000));
}

/* Neighbours, and places and what lies there, have nothing to do with each other: rank correlation within 4
 * deviations. */
TEST(Order, LooksShuffled)
{
    const uint64_t n = 3000;
    auto places = order(3, 0, n);
    double mean = (n - 1) / 2.0, of_place = 0.0, of_neighbour = 0.0, variance = (n * n - 1.0) / 12.0;
    for (uint64_t i = 0; i + 1 < n; i++) {
        double x = static_cast<double>(places[i]) - mean;
        of_place += x * (static_cast<double>(i) - mean);
        of_neighbour += x * (static_cast<double>(places[i + 1]) - mean);
    }
    double bound = 4.0 / std::sqrt(static_cast<double>(n));
    EXPECT_NEAR(0.0, of_place / (n * variance), bound);
    EXPECT_NEAR(0.0, of_neighbour / (n * variance), bound);
}

TEST(Order, LargeCounts)
{
    const uint64_t n = (static_cast<uint64_t>(1) << 62) + 12345;
    EXPECT_LT(tw_data_order(1, 2, n, n - 1), n);
    EXPECT_NE(tw_data_order(1, 2, n, 5), tw_data_order(1, 2, n, 6));
}

} // namespace
