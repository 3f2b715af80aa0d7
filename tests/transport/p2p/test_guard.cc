/* Who gets through to a listening socket: connections from several addresses of the loopback device. */
#include <cstring>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "transport/p2p/guard.h"
#include "transport/rendezvous/socket.h"

namespace
{

using Address = std::vector<uint8_t>;

Address address_of(const char *text)
{
    Address address(TW_GUARD_ADDRESS_BYTES);
    if (inet_pton(AF_INET6, text, address.data()) == 1) {
        return address;
    }
    address[10] = address[11] = 0xff;
    EXPECT_EQ(inet_pton(AF_INET, text, &address[12]), 1) << text;
    return address;
}

class Guard : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        before = tw_socket_listen("127.0.0.1", 0);
        tw_guard_init(&guard);
        open("localhost");
    }
    void TearDown() override
    {
        tw_guard_cleanup(&guard);
        close(listener);
        close(before);
        tw::Fixture::TearDown();
    }
    /* The socket that UCX would have made, and its worker's address. */
    void open(const char *host)
    {
        listener = tw_socket_listen(host, 0);
        port = tw_socket_port(listener);
        const uint16_t wire = htons((uint16_t)port);
        blob = {1, 2, 3, 0, 0, 7};
        memcpy(&blob[3], &wire, sizeof(wire));
    }
    bool find()
    {
        return tw_guard_close(&guard, blob.data(), blob.size()) == TW_OK;
    }
    tw_status_t admit(const std::vector<const char *> &texts)
    {
        std::vector<uint8_t> all;
        for (const char *text : texts) {
            const Address address = address_of(text);
            all.insert(all.end(), address.begin(), address.end());
        }
        return tw_guard_admit(&guard, all.data(), texts.size());
    }
    /* A connection from there, or -1. What is dropped is sent again after a second, so a short wait tells. */
    int dial(const char *from)
    {
        const bool v6 = strchr(from, ':');
        sockaddr_in6 own6 = {}, to6 = {};
        sockaddr_in own = {}, to = {};
        own6.sin6_family = to6.sin6_family = AF_INET6;
        own.sin_family = to.sin_family = AF_INET;
        to.sin_port = to6.sin6_port = htons((uint16_t)port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to6.sin6_addr = in6addr_loopback;
        inet_pton(AF_INET, from, &own.sin_addr);
        inet_pton(AF_INET6, from, &own6.sin6_addr);
        const int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        EXPECT_EQ(bind(fd, v6 ? (sockaddr *)&own6 : (sockaddr *)&own, v6 ? sizeof(own6) : sizeof(own)), 0);
        (void)connect(fd, v6 ? (sockaddr *)&to6 : (sockaddr *)&to, v6 ? sizeof(to6) : sizeof(to));
        pollfd ready = {fd, POLLOUT, 0};
        if (poll(&ready, 1, 300) == 1 && !(ready.revents & POLLERR)) {
            return fd;
        }
        close(fd);
        return -1;
    }
    bool lets_in(const char *from)
    {
        const int fd = dial(from);
        if (fd >= 0) {
            close(fd);
        }
        return fd >= 0;
    }
    tw_guard_t guard;
    int before, listener, port;
    std::vector<uint8_t> blob;
};

TEST_F(Guard, LetsInTheAddressesOfTheList)
{
    EXPECT_TRUE(lets_in("127.0.0.2"));
    ASSERT_TRUE(find());
    EXPECT_EQ(guard.listener, listener);
    EXPECT_FALSE(lets_in("127.0.0.2"));
    ASSERT_EQ(admit({"127.0.0.2", "fe80::1", "127.0.0.4"}), TW_OK);
    EXPECT_TRUE(lets_in("127.0.0.2"));
    EXPECT_FALSE(lets_in("127.0.0.3"));
    EXPECT_TRUE(lets_in("127.0.0.4"));
    ASSERT_EQ(admit({"10.7.7.7"}), TW_OK);
    EXPECT_FALSE(lets_in("127.0.0.2"));
}

TEST_F(Guard, KnowsIpv6)
{
    close(listener);
    open("::1");
    if (listener < 0 || !lets_in("::1")) {
        GTEST_SKIP() << "no IPv6 here";
    }
    ASSERT_TRUE(find());
    EXPECT_FALSE(lets_in("::1"));
    ASSERT_EQ(admit({"127.0.0.1", "::2", "::1"}), TW_OK);
    EXPECT_TRUE(lets_in("::1"));
    ASSERT_EQ(admit({"127.0.0.1", "::2", "1::1"}), TW_OK);
    EXPECT_FALSE(lets_in("::1"));
}

/* Connections that are there stay, and lose the filter that they have from the listener. */
TEST_F(Guard, ShutsAndKeepsWhoIsIn)
{
    ASSERT_TRUE(find());
    ASSERT_EQ(admit({"127.0.0.2"}), TW_OK);
    const int fd = dial("127.0.0.2");
    ASSERT_GE(fd, 0);
    const int accepted = accept(listener, nullptr, nullptr);
    ASSERT_GE(accepted, 0);
    tw_guard_shut(&guard);
    EXPECT_FALSE(lets_in("127.0.0.2"));
    char byte = 5;
    EXPECT_EQ(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(recv(accepted, &byte, 1, 0), 1);
    int none = 0;
    EXPECT_NE(setsockopt(accepted, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)), 0); /* it has none */
    close(fd);
    close(accepted);
}

/* A socket of the program's own is not touched, not even one with the port that is looked for. */
TEST_F(Guard, TakesOnlyWhatIsNew)
{
    const uint16_t wire = htons((uint16_t)tw_socket_port(before));
    memcpy(&blob[3], &wire, sizeof(wire));
    EXPECT_FALSE(find());
    EXPECT_EQ(guard.listener, -1);
    port = tw_socket_port(before);
    EXPECT_TRUE(lets_in("127.0.0.2"));
}

TEST_F(Guard, AListThatIsTooLongLetsEverybodyIn)
{
    ASSERT_TRUE(find());
    const std::vector<uint8_t> many(1000000 * (size_t)TW_GUARD_ADDRESS_BYTES / 100, 1);
    EXPECT_EQ(tw_guard_admit(&guard, many.data(), many.size() / TW_GUARD_ADDRESS_BYTES), TW_ERR_UNSUPPORTED);
    EXPECT_TRUE(lets_in("127.0.0.2"));
}

} // namespace
