/* How many threads a rank computes with: what the system says, and what ranks share. */
#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/common/fixture.h"

#include "trainer/cores.h"

namespace
{

class Cores : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "cores." + std::to_string(getpid());
        ASSERT_EQ(0, system(("rm -rf " + folder_ + "; mkdir -p " + folder_ + "/a/b").c_str()));
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
    void siblings(int processor, const std::string &list) const
    {
        std::string at = "cpu" + std::to_string(processor) + "/topology";
        ASSERT_EQ(0, system(("mkdir -p " + folder_ + "/" + at).c_str()));
        write(at + "/thread_siblings_list", list + "\n");
    }
    std::string folder_;
};

tw_cores_place_t place(uint64_t machine, uint64_t mask, int n_cores, int asked = 0)
{
    tw_cores_place_t out = {};
    out.machine = machine;
    out.mask[0] = mask;
    out.n_cores = n_cores;
    out.asked = asked;
    return out;
}

TEST_F(Cores, ProcessorsOfACoreCountOnce)
{
    for (int i = 0; i < 4; i++) {
        siblings(i, std::to_string(i % 2) + "," + std::to_string(i % 2 + 2));
    }
    for (int i = 4; i < 8; i++) {
        siblings(i, i < 6 ? "4-5" : "6-7");
    }
    uint64_t mask[TW_CORES_MASK_WORDS] = {0xff};
    EXPECT_EQ(4, tw_cores_count(mask, folder_.c_str()));
    mask[0] = 0x8; /* the second of its core alone */
    EXPECT_EQ(1, tw_cores_count(mask, folder_.c_str()));
    mask[0] = 0xa0;
    EXPECT_EQ(2, tw_cores_count(mask, folder_.c_str()));
    mask[0] = 0xf00; /* nothing is said of them */
    EXPECT_EQ(4, tw_cores_count(mask, folder_.c_str()));
    mask[0] = 0;
    mask[TW_CORES_MASK_WORDS - 1] = UINT64_C(1) << 63;
    EXPECT_EQ(1, tw_cores_count(mask, folder_.c_str()));
}

TEST_F(Cores, ListsThatAreNoneAreNothing)
{
    uint64_t mask[TW_CORES_MASK_WORDS] = {3};
    for (const char *list : {"", "x", "0-", "-1", "99999999999999999999", ",", "1-0", "0-x"}) {
        siblings(1, list);
        int n = tw_cores_count(mask, folder_.c_str());
        EXPECT_TRUE(n == 1 || n == 2) << list;
    }
}

TEST_F(Cores, ControlGroupsBoundThem)
{
    EXPECT_EQ(INT_MAX, tw_cores_quota(folder_.c_str(), "/a/b"));
    write("a/b/cpu.max", "max 100000\n");
    EXPECT_EQ(INT_MAX, tw_cores_quota(folder_.c_str(), "/a/b"));
    write("a/cpu.max", "250000 100000\n");
    EXPECT_EQ(3, tw_cores_quota(folder_.c_str(), "/a/b"));
    write("a/b/cpu.max", "20000 100000\n");
    EXPECT_EQ(1, tw_cores_quota(folder_.c_str(), "/a/b"));
    EXPECT_EQ(3, tw_cores_quota(folder_.c_str(), "/a"));
    write("a/b/cpu.max", "nonsense");
    EXPECT_EQ(3, tw_cores_quota(folder_.c_str(), "/a/b"));
    EXPECT_EQ(INT_MAX, tw_cores_quota(folder_.c_str(), ""));
}

TEST_F(Cores, RanksShareThem)
{
    /* two that may run anywhere on a machine of 8, one with two cores of its own on the next */
    std::vector<tw_cores_place_t> all = {place(1, 0xff, 8), place(1, 0xff, 8), place(2, 0x3, 2)};
    EXPECT_EQ(4, tw_cores_share(all.data(), 3, 0));
    EXPECT_EQ(4, tw_cores_share(all.data(), 3, 1));
    EXPECT_EQ(2, tw_cores_share(all.data(), 3, 2));
    /* bound by a launcher */
    all = {place(1, 0x0f, 4), place(1, 0xf0, 4)};
    EXPECT_EQ(4, tw_cores_share(all.data(), 2, 0));
    /* more ranks than cores */
    all.assign(5, place(1, 0x3, 2));
    EXPECT_EQ(1, tw_cores_share(all.data(), 5, 4));
    /* whoever asks gets it */
    all[4].asked = 7;
    EXPECT_EQ(7, tw_cores_share(all.data(), 5, 4));
    EXPECT_EQ(1, tw_cores_share(all.data(), 5, 0));
    all = {place(1, 0x1, 0)};
    EXPECT_EQ(1, tw_cores_share(all.data(), 1, 0));
}

/* A bound of a control group is shared by those in it, and by no others on the machine. */
TEST_F(Cores, RanksShareWhatTheirGroupMayUse)
{
    auto in_group = [](tw_cores_place_t of, uint64_t group, int quota) {
        of.group = group;
        of.quota = quota;
        return of;
    };
    /* two containers on a machine of 16, two ranks in the first */
    const tw_cores_place_t anywhere = place(1, 0xffff, 16);
    std::vector<tw_cores_place_t> all = {in_group(anywhere, 1, 4), in_group(anywhere, 1, 4),
                                         in_group(anywhere, 2, 3)};
    EXPECT_EQ(2, tw_cores_share(all.data(), 3, 0));
    EXPECT_EQ(2, tw_cores_share(all.data(), 3, 1));
    EXPECT_EQ(3, tw_cores_share(all.data(), 3, 2));
    /* each with cores of its own, and a bound of both together */
    all = {in_group(place(1, 0x0f, 4), 1, 6), in_group(place(1, 0xf0, 4), 1, 6)};
    EXPECT_EQ(3, tw_cores_share(all.data(), 2, 0));
    all = {in_group(place(1, 0x0f, 4), 1, 1), in_group(place(1, 0xf0, 4), 1, 1)};
    EXPECT_EQ(1, tw_cores_share(all.data(), 2, 0));
    /* more than there are */
    all = {in_group(place(1, 0x0f, 4), 1, 100)};
    EXPECT_EQ(4, tw_cores_share(all.data(), 1, 0));
}

} // namespace
