/* Nodes that have IPv6 addresses alone, also on their loopback device. Skips where no cluster in a box can be
 * made. */
#include <string>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

process::Result on_nodes(const std::string &script)
{
    return process::run(
        {"bench/cluster", "--ipv6", "--nodes", "3", "--link", "none", "--", "sh", "-c", script});
}

class Ipv6 : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        const process::Result result = on_nodes("true");
        if (result.code != 0) {
            GTEST_SKIP() << "no such cluster can be made here: " << result.err;
        }
    }
    static size_t count(const std::string &text, const std::string &what)
    {
        size_t n = 0;
        for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at++) {
            n++;
        }
        return n;
    }
};

/* The devices are found; open and sealed. MASTER_ADDR may stand in brackets. */
TEST_F(Ipv6, ARankReachesTheOthers)
{
    for (const char *setting : {"", "TW_NET_ENCRYPT=y MASTER_ADDR=[$MASTER_ADDR]"}) {
        const process::Result result =
            on_nodes("if ip -4 addr | grep -q inet; then echo IPv4; fi; env -u TW_NET_DEVICES " +
                     std::string(setting) + " tests/transport/rank_main contract");
        EXPECT_EQ(result.code, 0) << result.out << result.err;
        EXPECT_EQ(count(result.out, "ok\n"), 3u) << result.out;
        EXPECT_EQ(count(result.out, "tcp on eth0"), 3u) << result.out;
        EXPECT_EQ(result.out.find("IPv4"), std::string::npos) << result.out;
    }
}

/* By its address on this link, which means nothing without the link's name. */
TEST_F(Ipv6, LinkLocalAddresses)
{
    const process::Result result =
        on_nodes("ip addr flush dev eth0 && ip addr add fe80::$((RANK + 1))/64 dev eth0 nodad && "
                 "env -u TW_NET_DEVICES MASTER_ADDR=fe80::1%eth0 tests/transport/rank_main contract");
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_EQ(count(result.out, "ok\n"), 3u) << result.out;
    EXPECT_EQ(count(result.out, "tcp on eth0"), 3u) << result.out;
}

TEST_F(Ipv6, ARankThatDiesIsNamed)
{
    const process::Result result = on_nodes(
        "if [ $RANK = 1 ]; then exec timeout -s KILL 2 tests/transport/rank_main exchange_for_ever; fi; "
        "exec tests/transport/rank_main exchange_for_ever");
    EXPECT_EQ(result.code, 128 + 9) << result.out << result.err;
    EXPECT_EQ(count(result.out, "failed rank 1 "), 2u) << result.out;
    EXPECT_NE(result.err.find("peer 1 failed"), std::string::npos) << result.err;
}

/* Of what cannot be reached, the address is told in the form in which it is written. */
TEST_F(Ipv6, TheAddressIsNamed)
{
    const process::Result result =
        on_nodes("[ $RANK = 1 ] || exit 0; TW_JOIN_TIMEOUT=1 exec tests/transport/rank_main meet");
    EXPECT_NE(result.err.find("fd77::0:1 port 29501"), std::string::npos) << result.err;
}

} // namespace
