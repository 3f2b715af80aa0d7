#include <ctime>

#include <gtest/gtest.h>

#include "core/core.h"

TEST(Clock, NeverGoesBack)
{
    uint64_t before = tw_time_ns();
    for (int i = 0; i < 100000; i++) {
        uint64_t now = tw_time_ns();
        ASSERT_GE(now, before);
        before = now;
    }
}

TEST(Clock, IsTheMonotonicClockInNanoseconds)
{
    auto monotonic_ns = [] {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
    };
    uint64_t before = monotonic_ns(), ours = tw_time_ns(), after = monotonic_ns();
    EXPECT_LE(before, ours);
    EXPECT_LE(ours, after);

    uint64_t low = tw_time_ns();
    double sec = tw_time_sec();
    uint64_t high = tw_time_ns();
    /* One part in 2^52 is lost on the way to double. */
    EXPECT_GE(sec, double(low) * 1e-9 * (1 - 1e-15));
    EXPECT_LE(sec, double(high) * 1e-9 * (1 + 1e-15));
}
