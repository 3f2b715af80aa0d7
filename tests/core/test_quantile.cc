#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/core.h"

TEST(Quantile, MedianIsTheMiddleOrTheMeanOfTheTwoInTheMiddle)
{
    std::vector<double> one = {7}, two = {3, 1}, odd = {5, -1, 2}, even = {8, 1, 4, 2};
    EXPECT_EQ(tw_median(one.data(), 1), 7);
    EXPECT_EQ(tw_median(two.data(), 2), 2);
    EXPECT_EQ(tw_median(odd.data(), 3), 2);
    EXPECT_EQ(tw_median(even.data(), 4), 3);
}

TEST(Quantile, SortsTheValues)
{
    std::vector<double> values = {4, 1, 1, INFINITY, -2, 0.5};
    tw_median(values.data(), values.size());
    EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
    EXPECT_EQ(values.front(), -2);
    EXPECT_EQ(values.back(), INFINITY);
}

/* Value i of 0, 10, 20, ... is the quantile i / (n - 1); between two values it is linear. */
TEST(Quantile, IsLinearBetweenTheValues)
{
    for (size_t n : {2, 5, 9}) {
        std::vector<double> values(n);
        for (size_t i = 0; i < n; i++) {
            values[n - 1 - i] = 10 * double(i);
        }
        for (double share : {0.0, 0.125, 0.25, 0.5, 0.75, 1.0}) {
            EXPECT_EQ(tw_quantile(values.data(), n, share), 10 * share * double(n - 1)) << n << " " << share;
        }
    }
}

TEST(Quantile, AnInfiniteNeighbourDoesNotDisturbAnExactPosition)
{
    std::vector<double> values = {INFINITY, 1, 2};
    EXPECT_EQ(tw_median(values.data(), 3), 2);
    EXPECT_EQ(tw_quantile(values.data(), 3, 1), INFINITY);
}

TEST(Quantile, OfNothingIsNan)
{
    EXPECT_TRUE(std::isnan(tw_median(nullptr, 0)));
}
