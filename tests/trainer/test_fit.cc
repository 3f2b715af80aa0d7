/* What there is of memory, as the system writes it, and whether a run fits into it. */
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include <unistd.h>

#include "tests/common/fixture.h"

#include "trainer/fit.h"

namespace
{

constexpr double kMiB = 1024.0 * 1024.0;

class Fit : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "fit." + std::to_string(getpid());
        ASSERT_EQ(0, system(("mkdir -p " + folder_ + "/self " + folder_ + "/cgroup/a/b").c_str()));
    }
    void TearDown() override
    {
        EXPECT_EQ(0, system(("rm -rf " + folder_).c_str()));
        tw::Fixture::TearDown();
    }
    void write(const std::string &name, const std::string &text) const
    {
        std::ofstream(folder_ + "/" + name) << text;
    }
    tw_room_t group() const
    {
        return tw_room_of_group(folder_.c_str(), (folder_ + "/cgroup").c_str());
    }
    std::string folder_;
};

TEST_F(Fit, TheMachineSaysWhatItHas)
{
    tw_room_t none = tw_room_of_machine(folder_.c_str());
    EXPECT_TRUE(std::isinf(none.total) && std::isinf(none.available));
    write("meminfo", "MemTotal:       2048 kB\nMemFree:         3 kB\nMemAvailable:   1024 kB\n"
                     "SwapCached:   7 kB\nSwapTotal:      1024 kB\nSwapFree:        512 kB\n");
    tw_room_t room = tw_room_of_machine(folder_.c_str());
    EXPECT_EQ(3 * kMiB, room.total);
    EXPECT_EQ(1.5 * kMiB, room.available);
    tw_room_t here = tw_room_of_machine("/proc");
    EXPECT_GT(here.total, 64 * kMiB);
    EXPECT_LE(here.available, here.total);
}

/* A group is bounded by those that it is in, too. */
TEST_F(Fit, TheControlGroupSaysWhatItHas)
{
    EXPECT_TRUE(std::isinf(group().total));
    write("self/cgroup", "5:memory:/old\n0::/a/b\n");
    EXPECT_TRUE(std::isinf(group().total));
    write("cgroup/a/b/memory.max", "max\n");
    write("cgroup/a/memory.max", "8388608\n");
    write("cgroup/a/memory.stat", "anon 1048576\nfile 7340032\n");
    EXPECT_EQ(8 * kMiB, group().total);
    EXPECT_EQ(7 * kMiB, group().available);
    write("cgroup/a/b/memory.max", "4194304\n");
    EXPECT_EQ(4 * kMiB, group().total);
    EXPECT_EQ(4 * kMiB, group().available);
    write("cgroup/memory.max", "2097152\n");
    write("self/cgroup", "0::/\n");
    EXPECT_EQ(2 * kMiB, group().total);
}

TEST_F(Fit, WhatCannotFitIsRefusedAndWhatMayNotIsSaid)
{
    const tw_room_t room = {10e9, 5e9};
    const tw_need_t small = {1e9, 1.2e9}, tight = {2e9, 2.6e9}, large = {3e9, 4e9};
    EXPECT_EQ(TW_OK, tw_fit_check("it", &room, &small, 4, 1));
    EXPECT_EQ(TW_OK, tw_fit_check("it", &room, &tight, 4, 0));
    expect_log("4 ranks will hold about 10.40 GB, but of the memory of it only 5.00 GB are free");
    EXPECT_EQ(TW_OK, tw_fit_check("it", &room, &tight, 4, 1));
    expect_log("4 ranks will hold 12.00 GB at least, 3.00 each, but it has 10.00 GB");
    EXPECT_EQ(TW_ERR_CONFIG, tw_fit_check("it", &room, &large, 4, 1));
}

} // namespace
