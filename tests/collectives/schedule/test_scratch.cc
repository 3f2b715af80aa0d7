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
            EXPECT_GE(tw_scratch_used_bytes(scratch), n);
            EXPECT_LE(tw_scratch_used_bytes(scratch), n + n / 4 + 1024);
            tw_scratch_put(scratch, buffer, n);
            EXPECT_EQ(tw_scratch_used_bytes(scratch), 0u);
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

TEST_F(Scratch, KeepsNoMoreThanItMay)
{
    tw_scratch_t *scratch;
    ASSERT_EQ(tw_scratch_create(0, &scratch), TW_OK);
    for (int i = 0; i < 3; i++) { /* a leak would show under a leak checker, a double free anywhere */
        void *buffer = tw_scratch_get(scratch, 1 << 16);
        ASSERT_NE(buffer, nullptr);
        tw_scratch_put(scratch, buffer, 1 << 16);
    }
    tw_scratch_destroy(scratch);
}

} // namespace
