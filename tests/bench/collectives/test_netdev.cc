#include "bench/collectives/netdev.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

using NetdevTest = tw::Fixture;

/* The columns of /proc/net/dev: bytes and packets, then six others, of either way. */
TEST_F(NetdevTest, CountsWhatTheKernelsOwnTableSays)
{
    tw_netdev_counters_t before, after;
    ASSERT_EQ(TW_OK, tw_netdev_read("lo", &before));
    std::ifstream table("/proc/self/net/dev");
    std::string line;
    while (std::getline(table, line) && line.find("lo:") == std::string::npos) {
    }
    std::istringstream numbers(line.substr(line.find(':') + 1));
    std::vector<uint64_t> columns{std::istream_iterator<uint64_t>(numbers), {}};
    ASSERT_EQ(columns.size(), 16u) << line;
    ASSERT_EQ(TW_OK, tw_netdev_read("lo", &after));
    auto between = [](uint64_t low, uint64_t value, uint64_t high) { return low <= value && value <= high; };
    EXPECT_TRUE(between(before.rx_bytes, columns[0], after.rx_bytes));
    EXPECT_TRUE(between(before.rx_packets, columns[1], after.rx_packets));
    EXPECT_TRUE(between(before.tx_bytes, columns[8], after.tx_bytes));
    EXPECT_TRUE(between(before.tx_packets, columns[9], after.tx_packets));
}

TEST_F(NetdevTest, AddsUpAListAndNamesWhatIsNotThere)
{
    tw_netdev_counters_t one, twice;
    ASSERT_EQ(TW_OK, tw_netdev_read("lo", &one));
    ASSERT_EQ(TW_OK, tw_netdev_read("lo,lo", &twice));
    EXPECT_GE(twice.rx_bytes, 2 * one.rx_bytes);
    EXPECT_GE(twice.tx_packets, 2 * one.tx_packets);
    expect_log("/sys/class/net/nosuch0/");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_netdev_read("lo,nosuch0", &twice));
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
