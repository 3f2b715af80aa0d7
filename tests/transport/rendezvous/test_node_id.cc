#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/rendezvous/node_id.h"

namespace
{

TEST(NodeId, TheSameHereAndNow)
{
    EXPECT_EQ(tw_node_id(""), tw_node_id(""));
    EXPECT_EQ(tw_shm_id(5), tw_shm_id(5));
    EXPECT_NE(tw_shm_id(5), tw_shm_id(6));
}

/* Hosts of one name are told apart by their boots. */
TEST(NodeId, AnotherBootIsAnotherNode)
{
    const std::string path = ::testing::TempDir() + "boot_id." + std::to_string(getpid());
    std::ofstream(path) << "another boot\n";
    const uint64_t here = tw_node_id("");
    const pid_t child = fork();
    if (child == 0) {
        const char *boot_id = "/proc/sys/kernel/random/boot_id";
        if (unshare(CLONE_NEWNS) || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
            mount(path.c_str(), boot_id, nullptr, MS_BIND, nullptr)) {
            _exit(2); /* it may not */
        }
        _exit(tw_node_id("") == here);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    unlink(path.c_str());
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) {
        GTEST_SKIP() << "needs to be root";
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(NodeId, ANameOfItsOwn)
{
    EXPECT_EQ(tw_node_id("a"), tw_node_id("a"));
    EXPECT_NE(tw_node_id("a"), tw_node_id("b"));
    EXPECT_NE(tw_node_id("a"), tw_node_id(""));
}

} // namespace
