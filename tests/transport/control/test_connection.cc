/* Framed, signed messages over a real socket pair. */
#include <cstring>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "transport/control/connection.h"

namespace
{

constexpr unsigned anything = ~0u;

class Connection : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        int fds[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        raw_ = fds[0];
        tw_connection_init(&a, fds[0]);
        tw_connection_init(&b, fds[1]);
        uint8_t nonce[TW_MSG_NONCE_BYTES] = {};
        tw_token_key_t key;
        ASSERT_EQ(tw_token_key_init(&key, "secret"), TW_OK);
        tw_token_session_init(&a.session, &key, TW_TOKEN_CLIENT, nonce, nonce);
        tw_token_session_init(&b.session, &key, TW_TOKEN_SERVER, nonce, nonce);
    }
    void TearDown() override
    {
        tw_connection_cleanup(&a);
        tw_connection_cleanup(&b);
        tw::Fixture::TearDown();
    }
    void write_raw(const void *data, size_t bytes)
    {
        ASSERT_EQ(write(raw_, data, bytes), (ssize_t)bytes);
    }
    uint64_t soon() const
    {
        return tw_time_ns() + 20000000000u;
    }
    tw_connection_t a, b;
    tw_connection_message_t message;
    int raw_;
};

TEST_F(Connection, MessagesInOrderBothWays)
{
    for (int i = 0; i < 50; i++) {
        const std::vector<uint8_t> payload((size_t)i * 7, (uint8_t)i);
        ASSERT_EQ(tw_connection_send(&a, TW_MSG_ADDRESS, payload.data(), payload.size()), TW_OK);
        ASSERT_EQ(tw_connection_send(&b, TW_MSG_HEARTBEAT, nullptr, 0), TW_OK);
    }
    for (int i = 0; i < 50; i++) {
        ASSERT_EQ(tw_connection_receive(&b, anything, &message), TW_OK);
        EXPECT_EQ(message.type, TW_MSG_ADDRESS);
        ASSERT_EQ(message.bytes, (uint32_t)i * 7);
        for (uint32_t k = 0; k < message.bytes; k++) {
            ASSERT_EQ(message.payload[k], i);
        }
        ASSERT_EQ(tw_connection_receive(&a, anything, &message), TW_OK);
        EXPECT_EQ(message.type, TW_MSG_HEARTBEAT);
    }
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_IN_PROGRESS);
}

TEST_F(Connection, ByteByByte)
{
    uint8_t bytes[TW_MSG_HEADER_BYTES + TW_MSG_NONCE_BYTES] = {};
    const tw_msg_header_t header = {TW_MSG_HELLO, TW_MSG_NONCE_BYTES};
    tw_msg_header_write(&header, bytes);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_IN_PROGRESS);
        write_raw(&bytes[i], 1);
    }
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_OK);
    EXPECT_EQ(message.bytes, (uint32_t)TW_MSG_NONCE_BYTES);
}

TEST_F(Connection, MoreThanTheSocketTakes)
{
    std::vector<uint8_t> payload(20u << 20);
    for (size_t i = 0; i < payload.size(); i++) {
        payload[i] = (uint8_t)(i * 31 >> 3);
    }
    ASSERT_EQ(tw_connection_send(&a, TW_MSG_ADDRESSES, payload.data(), payload.size()), TW_OK);
    EXPECT_TRUE(tw_connection_wants_write(&a));
    std::thread sender([&] { EXPECT_EQ(tw_connection_drain(&a, soon()), TW_OK); });
    EXPECT_EQ(tw_connection_wait(&b, TW_CONNECTION_ACCEPTS(TW_MSG_ADDRESSES), soon(), &message), TW_OK);
    sender.join();
    ASSERT_EQ(message.bytes, payload.size());
    EXPECT_EQ(memcmp(message.payload, payload.data(), payload.size()), 0);
    EXPECT_FALSE(tw_connection_wants_write(&a));
}

TEST_F(Connection, GarbageIsNoMessage)
{
    write_raw("GET / HTTP/1.1\r\n", 16);
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_ERR_FORMAT);
}

TEST_F(Connection, OnlyWhatIsDue)
{
    ASSERT_EQ(tw_connection_send(&a, TW_MSG_JOIN, nullptr, 0), TW_OK);
    EXPECT_EQ(tw_connection_receive(&b, TW_CONNECTION_ACCEPTS(TW_MSG_HELLO), &message), TW_ERR_FORMAT);
}

/* A length is refused before anything of that length is read or kept. */
TEST_F(Connection, TooLongIsRefusedByItsHeader)
{
    uint8_t bytes[TW_MSG_HEADER_BYTES];
    const tw_msg_header_t header = {TW_MSG_HELLO, 0xffffffff};
    tw_msg_header_write(&header, bytes);
    write_raw(bytes, sizeof(bytes));
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_ERR_FORMAT);
    EXPECT_LE(b.in_capacity, 4096u);
}

TEST_F(Connection, MemoryGrowsWithWhatHasCome)
{
    uint8_t bytes[TW_MSG_HEADER_BYTES];
    const tw_msg_header_t header = {TW_MSG_ADDRESSES, 256u << 20};
    tw_msg_header_write(&header, bytes);
    write_raw(bytes, sizeof(bytes));
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_IN_PROGRESS);
    EXPECT_LE(b.in_capacity, 4096u);
}

TEST_F(Connection, WrongHash)
{
    a.session.n_sent++; /* as if one had been left out */
    ASSERT_EQ(tw_connection_send(&a, TW_MSG_HEARTBEAT, nullptr, 0), TW_OK);
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_ERR_AUTH);
}

TEST_F(Connection, ClosedAndTruncated)
{
    write_raw("TWIR\x01", 5);
    tw_connection_cleanup(&a);
    EXPECT_FALSE(tw_connection_is_open(&a));
    EXPECT_EQ(tw_connection_receive(&b, anything, &message), TW_ERR_IO);
    EXPECT_EQ(b.error, 0);
    EXPECT_EQ(tw_connection_send(&b, TW_MSG_HEARTBEAT, nullptr, 0), TW_ERR_IO);
    EXPECT_EQ(b.error, EPIPE);
}

TEST_F(Connection, WaitHasAnEnd)
{
    EXPECT_EQ(tw_connection_wait(&b, anything, tw_time_ns() + 1000000, &message), TW_ERR_TIMEOUT);
}

} // namespace
