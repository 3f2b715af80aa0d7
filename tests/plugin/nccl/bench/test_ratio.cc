/* The median of rounds' ratios, and how sure it is. */
#include "tests/plugin/nccl/bench/ratio.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace
{

net_ratio_t of_numbers(int n)
{
    std::vector<double> ratios((size_t)n);
    for (int i = 0; i < n; i++) {
        ratios[(size_t)i] = i + 1;
    }
    std::shuffle(ratios.begin(), ratios.end(), std::minstd_rand(7));
    return net_ratio_of(ratios.data(), n);
}

/* Places in tables of the sign test: for 1 to n the ends are the places themselves. */
TEST(NetRatio, TheIntervalIsThatOfTheTables)
{
    const struct {
        int n;
        double median, low;
    } rows[] = {{1, 1, 1},   {2, 1.5, 1},    {5, 3, 1},      {6, 3.5, 1},    {8, 4.5, 1},
                {9, 5, 2},   {10, 5.5, 2},   {12, 6.5, 3},   {15, 8, 4},     {20, 10.5, 6},
                {25, 13, 8}, {30, 15.5, 10}, {50, 25.5, 18}, {100, 50.5, 40}};
    for (const auto &row : rows) {
        const net_ratio_t ratio = of_numbers(row.n);
        EXPECT_EQ(ratio.median, row.median) << row.n;
        EXPECT_EQ(ratio.low, row.low) << row.n;
        EXPECT_EQ(ratio.high, row.n + 1 - row.low) << row.n;
    }
}

/* A skewed distribution with a known median: of many intervals at least 95 in 100 have it. */
TEST(NetRatio, TheTrueMedianLiesWithin)
{
    constexpr int n = 25, n_times = 2000;
    std::mt19937 random(1);
    std::exponential_distribution<double> time(1.0);
    int n_within = 0;
    for (int i = 0; i < n_times; i++) {
        std::vector<double> ratios(n);
        for (double &ratio : ratios) {
            ratio = time(random);
        }
        const net_ratio_t ratio = net_ratio_of(ratios.data(), n);
        n_within += ratio.low <= M_LN2 && M_LN2 <= ratio.high;
    }
    EXPECT_GE(n_within, n_times * 95 / 100);
    EXPECT_LT(n_within, n_times) << "as narrow as can be";
}

} // namespace
