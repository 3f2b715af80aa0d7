#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/core.h"
#include "tests/common/fixture.h"

using Counters = tw::Fixture;

TEST_F(Counters, AddGetReset)
{
    std::string first = "sent_bytes";
    const char *names[] = {first.c_str(), "messages"};
    tw_counters_t *counters = nullptr;
    ASSERT_EQ(tw_counters_create(names, 2, &counters), TW_OK);
    /* The names are copies. */
    first[0] = 'X';
    ASSERT_EQ(tw_counters_count(counters), 2u);
    EXPECT_STREQ(tw_counters_name(counters, 0), "sent_bytes");
    EXPECT_STREQ(tw_counters_name(counters, 1), "messages");

    EXPECT_EQ(tw_counters_get(counters, 0), 0u);
    tw_counters_add(counters, 0, 5);
    tw_counters_add(counters, 0, uint64_t(1) << 40);
    tw_counters_add(counters, 1, 0);
    EXPECT_EQ(tw_counters_get(counters, 0), (uint64_t(1) << 40) + 5);
    EXPECT_EQ(tw_counters_get(counters, 1), 0u);

    tw_counters_reset(counters);
    EXPECT_EQ(tw_counters_get(counters, 0), 0u);
    tw_counters_destroy(counters);
}

TEST_F(Counters, NoneAtAll)
{
    tw_counters_t *counters = nullptr;
    ASSERT_EQ(tw_counters_create(nullptr, 0, &counters), TW_OK);
    EXPECT_EQ(tw_counters_count(counters), 0u);
    tw_counters_reset(counters);
    tw_counters_destroy(counters);
    tw_counters_destroy(nullptr);
}

TEST_F(Counters, NamesAreNeeded)
{
    expect_log("a name is missing");
    tw_counters_t *counters = nullptr;
    EXPECT_EQ(tw_counters_create(nullptr, 1, &counters), TW_ERR_INVALID);
    const char *names[] = {"a", nullptr};
    EXPECT_EQ(tw_counters_create(names, 2, &counters), TW_ERR_INVALID);
    EXPECT_EQ(counters, nullptr);
}

TEST_F(Counters, ManyThreadsLoseNothing)
{
    const char *names[] = {"a", "b"};
    tw_counters_t *counters = nullptr;
    ASSERT_EQ(tw_counters_create(names, 2, &counters), TW_OK);
    const uint64_t n_threads = 8, n_rounds = 20000;
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < n_threads; ++t) {
        threads.emplace_back([&] {
            for (uint64_t i = 0; i < n_rounds; ++i) {
                tw_counters_add(counters, 0, 1);
                tw_counters_add(counters, 1, i);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT_EQ(tw_counters_get(counters, 0), n_threads * n_rounds);
    EXPECT_EQ(tw_counters_get(counters, 1), n_threads * (n_rounds * (n_rounds - 1) / 2));
    tw_counters_destroy(counters);
}
