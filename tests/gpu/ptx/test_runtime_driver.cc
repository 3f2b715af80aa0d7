/* The interposer beside drivers that are too old for its kernels. It asks once: each case is a process. */
#include <gtest/gtest.h>

#include "plugin/interpose/gpu.h"
#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

namespace
{

/* Ends the process: 0 if GPUs can be used. */
void ask(long driver, long runtime)
{
    settings().driver = driver;
    settings().runtime = runtime;
    exit(tw_ip_gpu_works() ? 0 : 1);
}

TEST(Driver, OfTheSameVersion)
{
    EXPECT_EXIT(ask(13000, 13000), testing::ExitedWithCode(0), "");
}

TEST(Driver, OfAnotherMinorVersion)
{
    EXPECT_EXIT(ask(13000, 13020), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(ask(12010, 12090), testing::ExitedWithCode(0), "");
}

TEST(Driver, OfAnEarlierMajorVersion)
{
    EXPECT_EXIT(ask(12080, 13000), testing::ExitedWithCode(1),
                "nothing can be quantized here: built with CUDA 13.0, and the driver is for 12.8");
}

/* The driver would do for the toolkit, but refuses the kernels' parameters. */
TEST(Driver, BelowTheLeast)
{
    EXPECT_EXIT(ask(12000, 12090), testing::ExitedWithCode(1),
                "built with CUDA 12.9, and the driver is for 12.0 .12.1 is the least.");
}

} // namespace

} // namespace tw::ptx
