/* Two nodes with two network devices each: the bench's ends, as the only program here that uses the plugin's
 * table on a real cluster. */
#include <gtest/gtest.h>

#include <sstream>

#include "tests/common/process.h"

namespace
{

const char *const kCluster = "bench/cluster", *const kNet = "tests/plugin/nccl/bench/net";

process::Result run_cluster(const std::string &script)
{
    return process::run(
        {kCluster, "--nodes", "2", "--nics", "2", "--link", "none", "--", "sh", "-c", script});
}

/* What node 0 has sent through each of its devices, after messages of 1 MB over one of NCCL's connections. */
std::vector<double> sent(const std::string &env)
{
    const process::Result result =
        run_cluster("env -u TW_CLUSTER " + env + " " + kNet +
                    " --sizes 1M --connections 1 --link 1gbit --seconds 0.5 >/tmp/thinwire_net.$$ || exit 1; "
                    "grep -q ' NO$' /tmp/thinwire_net.$$ && exit 1; rm /tmp/thinwire_net.$$; "
                    "[ $RANK = 0 ] && cat /sys/class/net/eth0/statistics/tx_bytes "
                    "/sys/class/net/eth1/statistics/tx_bytes; true");
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<double> bytes;
    std::istringstream numbers(result.out);
    for (double number; numbers >> number;) {
        bytes.push_back(number);
    }
    return bytes;
}

class Cluster : public testing::Test
{
  protected:
    void SetUp() override
    {
        const process::Result result = run_cluster("true");
        if (result.code != 0) {
            GTEST_SKIP() << "no cluster can be made here: " << result.err;
        }
    }
};

TEST_F(Cluster, MergedDevicesShareEveryMessage)
{
    const std::vector<double> bytes = sent("TW_NET_MERGE=1");
    ASSERT_EQ(bytes.size(), 2u);
    const double all = bytes[0] + bytes[1];
    EXPECT_GT(all, 20e6);
    EXPECT_GT(bytes[0], all / 5);
    EXPECT_GT(bytes[1], all / 5);
}

TEST_F(Cluster, ASingleDeviceKeepsToItself)
{
    const std::vector<double> bytes = sent("TW_NET_DEVICES=eth1");
    ASSERT_EQ(bytes.size(), 2u);
    EXPECT_GT(bytes[1], 20e6);
    EXPECT_LT(bytes[0], bytes[1] / 20);
}

/* Nodes with IPv6 addresses alone: the device is found without being named, open and sealed. */
TEST_F(Cluster, Ipv6)
{
    const char *const settings[] = {"", "TW_JOB_TOKEN=of_both TW_NET_ENCRYPT=y",
                                    "NCCL_SOCKET_IFNAME==eth0 NCCL_SOCKET_FAMILY=AF_INET6"};
    for (const char *setting : settings) {
        const process::Result result = process::run(
            {kCluster, "--ipv6", "--nodes", "2", "--link", "none", "--", "sh", "-c",
             "if ip -4 addr | grep -q inet; then echo IPv4; fi; env -u TW_NET_DEVICES -u TW_JOB_TOKEN -u "
             "TW_CLUSTER " +
                 std::string(setting) + " " + kNet +
                 " --sizes 8,100K --connections 1,3 --link none --seconds 0.01 --iters 1 "
                 "--peer sealed,thinwire"});
        EXPECT_EQ(result.code, 0) << result.out << result.err;
        size_t n = 0;
        for (size_t at = 0; (at = result.out.find(" yes\n", at)) != std::string::npos; at++) {
            n++;
        }
        /* two sizes, connections, ways; three transports */
        EXPECT_EQ(n, 24u) << setting << ": " << result.out << result.err;
        EXPECT_EQ(result.out.find("IPv4"), std::string::npos) << result.out;
    }
}

} // namespace
