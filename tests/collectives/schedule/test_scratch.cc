/* Scratch memory. */
#include <cstring>
#include <vector>

#include "collectives/schedule/scratch.h"
#include "tests/common/fixture.h"

namespace
{

using Scratch = tw::Fixture;

TEST_F(Scratch, EverySizeIsUsableAndAligned)
{
    tw_scratch_t *scratch;
    ASSERT_EQ(tw_scratch_create(1 << 20, &scratch), TW_OK);
    for (size_t bytes = 0; bytes < 40000; bytes = bytes * 5 / 4 + 1) {
        for (size_t n : {bytes, bytes + 1}) {
            void *buffer = tw_scratch_get(scratch, n);
            ASSERT_NE(buffer, nullptr);
            EXPECT_EQ((uintptr_t)buffer % 64, 0u);
            std::memset(buffer, 1, n);
            EXPECT_EQ(tw_scratch_held_bytes(scratch), tw_scratch_class_bytes(n));
            EXPECT_GE(tw_scratch_class_bytes(n), n);
            EXPECT_LE(tw_scratch_class_bytes(n), n + n / 4 + 1024);
            tw_scratch_put(scratch, buffer, n);
            tw_scratch_trim(scratch);
            EXPECT_EQ(tw_scratch_held_bytes(scratch), 0u);
        }
    }
    EXPECT_GE(tw_scratch_peak_bytes(scratch), 30000u);
    tw_scratch_put(scratch, nullptr, 5);
    tw_scratch_destroy(scratch);
}

TEST_F(Scratch, HandsTheSameMemoryOutAgain)
{
    tw_scratch_t *scratch;
    ASSERT_EQ(tw_scratch_create(1 << 20, &scratch), TW_OK);
    void *first = tw_scratch_get(scratch, 5000);
    tw_scratch_put(scratch, first, 5000);
    EXPECT_EQ(tw_scratch_get(scratch, 5001), first);
    tw_scratch_put(scratch, first, 5001);
    tw_scratch_destroy(scratch);
    tw_scratch_destroy(nullptr);
}

/* Whatever the sizes are that come one after another, no more is held than the limit. */
TEST_F(Scratch, HoldsNoMoreThanItMay)
{
    constexpr size_t LIMIT = 1 << 18;
    tw_scratch_t *scratch;
    ASSERT_EQ(tw_scratch_create(LIMIT, &scratch), TW_OK);
    for (size_t bytes : {LIMIT / 4, LIMIT / 8, LIMIT / 2, LIMIT, (size_t)1000, LIMIT / 3, LIMIT / 2}) {
        void *buffers[2];
        size_t n = 2 * tw_scratch_class_bytes(bytes) <= LIMIT ? 2 : 1;
        for (size_t i = 0; i < n; i++) {
            buffers[i] = tw_scratch_get(scratch, bytes);
            ASSERT_NE(buffers[i], nullptr);
        }
        for (size_t i = 0; i < n; i++) {
            tw_scratch_put(scratch, buffers[i], bytes);
        }
        EXPECT_GT(tw_scratch_held_bytes(scratch), 0u) << bytes; /* kept for the next time */
    }
    EXPECT_LE(tw_scratch_peak_bytes(scratch), LIMIT);
    void *beyond[3];
    for (void *&buffer : beyond) { /* more than the limit, for once: it is not kept */
        buffer = tw_scratch_get(scratch, LIMIT / 2);
    }
    for (void *buffer : beyond) {
        tw_scratch_put(scratch, buffer, LIMIT / 2);
    }
    EXPECT_LE(tw_scratch_held_bytes(scratch), LIMIT);
    EXPECT_GE(tw_scratch_held_bytes(scratch), LIMIT / 2);
    tw_scratch_destroy(scratch);
}

/* Beyond the limit, only the oldest user gets what it needs. */
TEST_F(Scratch, ReservationsAreWithinTheLimit)
{
    tw_scratch_t *scratch;
    tw_scratch_user_t old = {}, young = {};
    ASSERT_EQ(tw_scratch_create(1000, &scratch), TW_OK);
    tw_scratch_enter(scratch, &old);
    tw_scratch_enter(scratch, &young);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 501, 1), 0);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 500, 0), 1);
    EXPECT_EQ(tw_scratch_reserve(scratch, &old, 501, 0), 0);
    EXPECT_EQ(tw_scratch_reserve(scratch, &old, 500, 0), 1);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 1, 1), 0);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 0, 0), 1);
    EXPECT_EQ(tw_scratch_reserve(scratch, &old, 5000, 1), 1);
    EXPECT_EQ(old.reserved_bytes, 5500u);
    tw_scratch_leave(scratch, &old);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 501, 0), 0);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 500, 0), 1); /* now the oldest */
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 5000, 1), 1);
    tw_scratch_release(scratch, &young, 5500);
    EXPECT_EQ(tw_scratch_reserve(scratch, &young, 500, 0), 1);
    tw_scratch_leave(scratch, &young);
    tw_scratch_destroy(scratch);
}

} // namespace
