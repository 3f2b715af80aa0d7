#include "tests/transport/p2p/ends.h"

#include <cstdlib>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "transport/control/socket.h"
#include "transport/p2p/tcp.h"

namespace ends
{

Bytes pattern(size_t bytes, size_t seed)
{
    Bytes data(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(i * 7 + i / 251 + seed * 13);
    }
    return data;
}

Bytes card_of(const tw_p2p_t *p2p)
{
    void *card = nullptr;
    size_t bytes = 0;
    EXPECT_EQ(tw_p2p_card(p2p, &card, &bytes), TW_OK);
    Bytes copy((uint8_t *)card, (uint8_t *)card + bytes);
    free(card);
    return copy;
}

int port_of(const tw_p2p_t *p2p)
{
    return tw_socket_port(p2p->workers[TW_P2P_FIRST_NET_WORKER].tcp->listener);
}

int dial(int port)
{
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, (sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

bool Fixture::until(const Ends &who, const std::function<bool()> &what)
{
    for (const double limit = tw_time_sec() + patience_sec; !what();) {
        if (tw_time_sec() >= limit) {
            return false;
        }
        for (tw_p2p_t *p2p : who) {
            if (p2p) {
                (void)tw_p2p_progress(p2p);
            }
        }
    }
    return true;
}

tw_transport_message_t Fixture::message_of(uint64_t tag, const Bytes &data)
{
    tw_transport_message_t message = {};
    message.tag = tag;
    message.buffer = (void *)(uintptr_t)data.data();
    message.bytes = data.size();
    return message;
}

tw_p2p_request_t *Fixture::post(tw_p2p_peer_t *peer, const tw_transport_message_t &message, bool is_send)
{
    tw_p2p_request_t *request = nullptr;
    EXPECT_EQ((is_send ? tw_p2p_send : tw_p2p_recv)(peer, &message, &request), TW_OK);
    return request;
}

tw_p2p_request_t *Fixture::send(tw_p2p_peer_t *peer, uint64_t tag, const Bytes &data)
{
    return post(peer, message_of(tag, data), true);
}

tw_p2p_request_t *Fixture::recv(tw_p2p_peer_t *peer, uint64_t tag, const Bytes &data)
{
    return post(peer, message_of(tag, data), false);
}

tw_status_t Fixture::wait(const Ends &who, tw_p2p_request_t *request, size_t *bytes)
{
    tw_status_t status = TW_IN_PROGRESS;
    tw_p2p_t *p2p = tw_p2p_request_peer(request)->p2p;
    (void)until(who, [&] { return (status = tw_p2p_test(p2p, request, bytes)) != TW_IN_PROGRESS; });
    return status;
}

} // namespace ends
