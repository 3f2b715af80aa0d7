#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include "core/core.h"

namespace
{

constexpr size_t huge_from = size_t(4) << 20;
constexpr size_t huge_page = size_t(2) << 20;

size_t alignment_of(const void *p)
{
    auto address = reinterpret_cast<uintptr_t>(p);
    return size_t(address & -address);
}

} // namespace

TEST(Buffer, AlignedToCacheLines)
{
    for (size_t bytes :
         {size_t(0), size_t(1), size_t(63), size_t(64), size_t(65), size_t(4097), huge_from - 1}) {
        void *buffer = tw_buffer_alloc(bytes);
        ASSERT_NE(buffer, nullptr) << bytes;
        EXPECT_GE(alignment_of(buffer), size_t(TW_CACHE_LINE_BYTES)) << bytes;
        memset(buffer, 0xff, bytes);
        tw_buffer_free(buffer);
    }
}

TEST(Buffer, AlignedToHugePagesWhenLarge)
{
    /* Odd lengths: advice must not reach past the end. */
    for (size_t bytes : {huge_from, huge_from + 1, huge_from + huge_page - 1}) {
        void *buffer = tw_buffer_alloc(bytes);
        ASSERT_NE(buffer, nullptr) << bytes;
        EXPECT_GE(alignment_of(buffer), huge_page) << bytes;
        memset(buffer, 0xff, bytes);
        tw_buffer_free(buffer);
    }
}

/* Nothing else lies in them: the allocator has given away their last pages to the end. */
TEST(Buffer, LargeOnesHaveTheirPagesToThemselves)
{
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), from = TW_BUFFER_OWN_PAGES_FROM;
    for (size_t bytes : {from, from + 1, 3 * from + 5, huge_from + 1}) {
        void *buffer = tw_buffer_alloc(bytes);
        ASSERT_NE(buffer, nullptr) << bytes;
        EXPECT_GE(alignment_of(buffer), page) << bytes;
        EXPECT_GE(malloc_usable_size(buffer), (bytes + page - 1) / page * page) << bytes;
        tw_buffer_free(buffer);
    }
}

TEST(Buffer, ZeroMeansZeroAlsoInUsedMemory)
{
    for (size_t bytes : {size_t(0), size_t(1), size_t(1000), huge_from + 5}) {
        /* Leave dirt behind where the next allocation likely goes. */
        void *dirty = tw_buffer_alloc(bytes);
        ASSERT_NE(dirty, nullptr);
        memset(dirty, 0xa5, bytes);
        tw_buffer_free(dirty);

        auto *buffer = static_cast<unsigned char *>(tw_buffer_alloc_zero(bytes));
        ASSERT_NE(buffer, nullptr);
        size_t dirt = 0;
        for (size_t i = 0; i < bytes; i++) {
            dirt += buffer[i] != 0;
        }
        EXPECT_EQ(dirt, 0u) << bytes;
        tw_buffer_free(buffer);
    }
}

TEST(Buffer, TooMuchIsNull)
{
    EXPECT_EQ(tw_buffer_alloc(SIZE_MAX / 2), nullptr);
    EXPECT_EQ(tw_buffer_alloc_zero(SIZE_MAX - 100), nullptr);
    EXPECT_EQ(tw_buffer_alloc(SIZE_MAX), nullptr);
}

TEST(Buffer, FreeAcceptsNull)
{
    tw_buffer_free(nullptr);
}

TEST(Grow, ItemsStayWhileTheArrayGrows)
{
    int *items = nullptr;
    size_t max = 0, moves = 0;
    EXPECT_EQ(tw_grow(&items, &max, 0, sizeof(*items)), 1);
    EXPECT_EQ(items, nullptr) << "nothing is needed yet";
    for (int i = 0; i < 10000; i++) {
        const size_t before = max;
        ASSERT_EQ(tw_grow(&items, &max, (size_t)i + 1, sizeof(*items)), 1);
        ASSERT_GE(max, (size_t)i + 1);
        moves += max != before;
        items[i] = i;
    }
    EXPECT_LE(moves, 10U) << "it doubles";
    ASSERT_EQ(tw_grow(&items, &max, 1000000, sizeof(*items)), 1);
    EXPECT_EQ(max, 1000000U) << "all at once";
    for (int i = 0; i < 10000; i++) {
        ASSERT_EQ(items[i], i);
    }
    free(items);
}

TEST(Grow, OutOfMemoryChangesNothing)
{
    char *items = nullptr;
    size_t max = 0;
    ASSERT_EQ(tw_grow(&items, &max, 1, 1), 1);
    items[0] = 'x';
    char *const at = items;
    const size_t had = max;
    for (size_t n : {SIZE_MAX, SIZE_MAX / 2}) {
        EXPECT_EQ(tw_grow(&items, &max, n, 8), 0);
        EXPECT_EQ(tw_grow(&items, &max, n, 1), 0);
        EXPECT_EQ(items, at);
        EXPECT_EQ(max, had);
        EXPECT_EQ(items[0], 'x');
    }
    free(items);
}

TEST(Size, WhatDoesNotFitIsTheLargest)
{
    EXPECT_EQ(tw_size_add(3, 4), 7U);
    EXPECT_EQ(tw_size_add(SIZE_MAX - 4, 4), SIZE_MAX);
    EXPECT_EQ(tw_size_add(SIZE_MAX - 4, 3), SIZE_MAX - 1);
    EXPECT_EQ(tw_size_add(SIZE_MAX, 65), SIZE_MAX);
    EXPECT_EQ(tw_size_add(65, SIZE_MAX), SIZE_MAX);
    EXPECT_EQ(tw_size_mul(3, 4), 12U);
    EXPECT_EQ(tw_size_mul(SIZE_MAX, 0), 0U);
    EXPECT_EQ(tw_size_mul(0, SIZE_MAX), 0U);
    EXPECT_EQ(tw_size_mul(SIZE_MAX / 2, 2), SIZE_MAX - 1);
    EXPECT_EQ(tw_size_mul(SIZE_MAX / 2 + 1, 2), SIZE_MAX);
    EXPECT_EQ(tw_size_mul(2, SIZE_MAX / 2 + 1), SIZE_MAX);
    EXPECT_EQ(tw_size_mul(SIZE_MAX, SIZE_MAX), SIZE_MAX);
}
