/* A function of this program takes another's place. */
#include "tests/plugin/nccl/bench/nccl_library.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace
{

volatile int n_calls;

__attribute__((noinline)) int fails(int *device)
{
    for (int i = 0; i < 3; i++) { /* long enough for what is written over it */
        n_calls = n_calls + 1;
    }
    *device = -1;
    return 35;
}

__attribute__((noinline)) int works(int *device)
{
    *device = 0;
    return 0;
}

TEST(NcclLibrary, ReplacesAFunction)
{
#ifndef __x86_64__
    GTEST_SKIP() << "the jump is one of x86-64";
#endif
    int (*volatile call)(int *) = fails;
    int device = 7;
    EXPECT_EQ(call(&device), 35);
    EXPECT_EQ(device, -1);
    ASSERT_TRUE(nccl_library_replace((void *)(uintptr_t)fails, (const void *)(uintptr_t)works));
    EXPECT_EQ(call(&device), 0);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(n_calls, 3);
}

} // namespace
