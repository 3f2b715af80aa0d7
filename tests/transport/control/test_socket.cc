#include <arpa/inet.h>
#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "transport/control/socket.h"
#include "transport/devices.h"

namespace
{

using NetSocket = tw::Fixture;

uint64_t soon()
{
    return tw_time_ns() + 10000000000u;
}

TEST_F(NetSocket, ListenConnectAccept)
{
    for (const char *host : {"127.0.0.1", "localhost", "::1", "0.0.0.0"}) {
        SCOPED_TRACE(host);
        char why[256], name[64], device[16];
        const int listener = tw_socket_listen(host, 0);
        if (listener < 0 && !strcmp(host, "::1")) {
            continue; /* no IPv6 here */
        }
        ASSERT_GE(listener, 0);
        const int port = tw_socket_port(listener);
        EXPECT_GT(port, 0);
        EXPECT_EQ(tw_socket_accept(listener), -1);
        int client = -1, server = -1;
        ASSERT_EQ(tw_socket_connect(host, port, soon(), &client, why, sizeof(why)), TW_OK) << why;
        while ((server = tw_socket_accept(listener)) < 0) {
            ASSERT_EQ(errno, EAGAIN);
        }
        tw_socket_peer_name(client, name, sizeof(name));
        EXPECT_EQ(name, (!strcmp(host, "::1") ? "[::1]:" : "127.0.0.1:") + std::to_string(port));
        tw_socket_peer_name(server, name, sizeof(name)); /* where it is IPv4 wrapped in IPv6 */
        EXPECT_EQ(strncmp(name, !strcmp(host, "::1") ? "[::1]:" : "127.0.0.1:", 6), 0) << name;
        for (int fd : {client, server}) {
            tw_socket_device(fd, device, sizeof(device));
            EXPECT_STREQ(device, "lo");
        }
        EXPECT_EQ(send(client, "x", 1, 0), 1);
        close(client);
        close(server);
        close(listener);
    }
}

TEST_F(NetSocket, WhyItDoesNotConnect)
{
    char why[256];
    int fd = -1;
    const int listener = tw_socket_listen("127.0.0.1", 0);
    const int port = tw_socket_port(listener);
    close(listener);
    EXPECT_EQ(tw_socket_connect("127.0.0.1", port, soon(), &fd, why, sizeof(why)), TW_ERR_IO);
    EXPECT_NE(strstr(why, "Connection refused"), nullptr) << why;
    EXPECT_EQ(fd, -1); /* not a number that is somebody else's by now */
    EXPECT_EQ(tw_socket_connect("no such host", port, soon(), &fd, why, sizeof(why)), TW_ERR_IO);
    EXPECT_NE(strstr(why, "no such host: "), nullptr) << why;
}

/* The loopback device has all of 127.0.0.0/8, though it lists one address. */
TEST_F(NetSocket, TheDeviceOfAnyLoopbackAddress)
{
    const int listener = tw_socket_listen("0.0.0.0", 0);
    ASSERT_GE(listener, 0);
    for (const char *host : {"127.0.0.1", "127.0.0.2"}) {
        char why[256], device[64];
        int client = -1, server = -1;
        ASSERT_EQ(tw_socket_connect(host, tw_socket_port(listener), soon(), &client, why, sizeof(why)), TW_OK)
            << why;
        while ((server = tw_socket_accept(listener)) < 0) {
            ASSERT_EQ(errno, EAGAIN);
        }
        tw_socket_device(server, device, sizeof(device));
        EXPECT_STREQ(device, "lo") << host;
        close(client);
        close(server);
    }
    close(listener);
}

TEST_F(NetSocket, LoopbackIsNotHeardElsewhere)
{
    for (const char *host : {"127.0.0.1", "127.0.0.2", "127.1", "localhost", "::1", "::ffff:127.0.0.1"}) {
        sockaddr_storage at = {};
        socklen_t bytes = sizeof(at);
        uint8_t address[16];
        const int listener = tw_socket_listen(host, 0);
        ASSERT_EQ(getsockname(listener, (sockaddr *)&at, &bytes), 0) << host;
        ASSERT_TRUE(tw_devices_address((sockaddr *)&at, address));
        EXPECT_GE(tw_net_address_kind(address), TW_NET_KIND_LOOPBACK) << host;
        close(listener);
    }
}

TEST_F(NetSocket, ATakenPort)
{
    const int first = tw_socket_listen("127.0.0.1", 0);
    EXPECT_EQ(tw_socket_listen("127.0.0.1", tw_socket_port(first)), -1);
    EXPECT_EQ(errno, EADDRINUSE);
    close(first);
}

TEST_F(NetSocket, Devices)
{
    EXPECT_TRUE(tw_net_device_usable("lo"));
    EXPECT_FALSE(tw_net_device_usable("no-such-device"));
    EXPECT_FALSE(tw_net_device_usable(""));
}

TEST_F(NetSocket, KindsOfAddresses)
{
    const std::pair<const char *, int> kinds[] = {{"::ffff:10.0.0.1", 0},
                                                  {"::ffff:254.128.0.1", 0},
                                                  {"::ffff:169.254.1.1", 0},
                                                  {"::1", 4},
                                                  {"::ffff:127.0.0.1", 3},
                                                  {"::ffff:127.8.0.1", 3},
                                                  {"fd00::1", 1},
                                                  {"fec0::1", 1},
                                                  {"2001:db8::1", 1},
                                                  {"a0bf::1", 1},
                                                  {"80::1", 1},
                                                  {"fe80::1", 2},
                                                  {"febf:ffff::1", 2}};
    for (auto [text, kind] : kinds) {
        uint8_t address[16];
        ASSERT_EQ(inet_pton(AF_INET6, text, address), 1) << text;
        EXPECT_EQ(tw_net_address_kind(address), kind) << text;
    }
}

} // namespace
