#include "bench/collectives/netdev.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"

namespace
{

using NetdevTest = tw::Fixture;

constexpr const char *kText = "Inter-|   Receive                                                |  Transmit\n"
                              " face |bytes    packets errs drop fifo frame compressed multicast|bytes    "
                              "packets errs drop fifo colls carrier "
                              "compressed\n"
                              "    lo:     123       4    0    0    0     0          0         0      123    "
                              "   4    0    0    0     0       0    0\n"
                              "xeth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
                              "  eth0:1015328   15011    1    2    3     4          5         6 570775943  "
                              "370288    7    8    9    10       11   "
                              "12\n"
                              "  cut: 1 2 3\n";

TEST_F(NetdevTest, FindsTheRightColumnsOfTheRightLine)
{
    tw_netdev_counters_t counters;
    ASSERT_EQ(TW_OK, tw_netdev_parse(kText, "eth0", &counters));
    EXPECT_EQ(1015328u, counters.rx_bytes);
    EXPECT_EQ(15011u, counters.rx_packets);
    EXPECT_EQ(570775943u, counters.tx_bytes);
    EXPECT_EQ(370288u, counters.tx_packets);
    EXPECT_EQ(TW_OK, tw_netdev_parse(kText, "lo", &counters));
    EXPECT_EQ(123u, counters.tx_bytes);
    EXPECT_EQ(TW_OK, tw_netdev_parse(kText, "lo,xeth0", &counters));
    EXPECT_EQ(124u, counters.rx_bytes);
    EXPECT_EQ(4u + 2, counters.rx_packets);
    EXPECT_EQ(123u + 9, counters.tx_bytes);
    EXPECT_EQ(4u + 10, counters.tx_packets);
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_netdev_parse(kText, "lo,eth1", &counters));
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_netdev_parse(kText, "eth", &counters));
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_netdev_parse("", "eth0", &counters));
    EXPECT_EQ(TW_ERR_FORMAT, tw_netdev_parse(kText, "cut", &counters));
}

TEST_F(NetdevTest, LoopbackCountsWhatIsSent)
{
    tw_netdev_counters_t before, after;
    ASSERT_EQ(TW_OK, tw_netdev_read("lo", &before));
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(9);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    char payload[4096] = {};
    ASSERT_EQ(
        static_cast<ssize_t>(sizeof(payload)),
        sendto(fd, payload, sizeof(payload), 0, reinterpret_cast<sockaddr *>(&address), sizeof(address)));
    close(fd);
    ASSERT_EQ(TW_OK, tw_netdev_read("lo", &after));
    EXPECT_GE(after.tx_bytes - before.tx_bytes, sizeof(payload));
    EXPECT_GE(after.tx_packets - before.tx_packets, 1u);
    expect_log("nosuch0");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_netdev_read("nosuch0", &after));
}

TEST_F(NetdevTest, ClaimsFitWithinHeadersAndAcknowledgements)
{
    constexpr uint64_t kSent = 100000000;
    tw_netdev_claim_t claim = {kSent, 400, 10};
    auto fits = [&](uint64_t tx, uint64_t rx_bytes, uint64_t rx_packets) {
        tw_netdev_counters_t delta = {rx_bytes, rx_packets, tx, 0};
        return tw_netdev_fits(&delta, &claim);
    };
    EXPECT_FALSE(fits(kSent - 1, 0, 0)) << "less than was counted has left";
    EXPECT_TRUE(fits(kSent, 0, 0));
    const uint64_t most = kSent + kSent / 10 + 400 * 300 + 10 * 2048;
    EXPECT_TRUE(fits(most, 0, 0));
    EXPECT_FALSE(fits(most + 2, 0, 0)) << "more than headers explain";
    EXPECT_TRUE(fits(most + 66 * 1000, 0, 1000)) << "one acknowledgement for each packet";
    EXPECT_TRUE(fits(most + 66 * 1000, 2 * 1514 * 1000, 0)) << "or for every second frame of a joined one";
    EXPECT_FALSE(fits(2 * kSent, kSent, kSent / 1514)) << "twice the bytes are never headers";
}

TEST_F(NetdevTest, ASmallClaimMeansSomething)
{
    tw_netdev_claim_t claim = {49152, 6, 1};
    tw_netdev_counters_t delta = {49152, 40, 49152 * 2, 40};
    EXPECT_FALSE(tw_netdev_fits(&delta, &claim));
}

} // namespace
