/* Bytes that a TCP connection reads. First byte: 0, from a stranger who greets; 1, from a peer that holds the
 * secret, plain; 2, sealed; 4 and 5 as 1 and 2, and the end that reads them sends, too. An end of p2p with a
 * peer that sends them, and a few receives; what it sends is short, at once, and announced, and nobody reads
 * it. */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <sys/socket.h>
#include <unistd.h>

#include "transport/p2p/tcp.h"

namespace
{

constexpr size_t room = 5000, alone = 3000;

void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

void quiet(void *, tw_log_level_t, const char *, int, const char *)
{
}

struct End {
    tw_p2p_t *p2p = nullptr;
    void *card = nullptr;
    size_t card_bytes = 0;

    End()
    {
        tw_p2p_params_t params = {};
        tw_log_set_sink(quiet, nullptr);
        params.name = "fuzz";
        params.net_tls = "tcp";
        params.net_devices = "lo";
        params.streams = 1;
        params.token = "secret";
        params.chunk_bytes = 4096;
        params.eager_bytes = 1024;
        params.eager_alone_bytes = alone;
        params.timeout_sec = 1;
        check(tw_p2p_create(&params, &p2p) == TW_OK);
        check(tw_p2p_card(p2p, &card, &card_bytes) == TW_OK);
    }
    ~End()
    {
        tw_p2p_destroy(p2p);
        free(card);
    }
    tw_tcp_device_t *device() const
    {
        return p2p->workers[TW_P2P_FIRST_NET_WORKER].tcp;
    }
};

/* Its stream is open, on one end of a pair of sockets. */
tw_tcp_link_t *open_link(const End &end, tw_p2p_stream_t *stream, int fd, bool sealed)
{
    const uint8_t key[TW_SEAL_KEY_BYTES] = {1};
    tw_tcp_link_t *link = tw_tcp_link_create(end.device(), fd, TW_TCP_HELLO);
    check(link && tw_tcp_watch(link));
    link->stage = TW_TCP_OPEN;
    end.device()->n_timed--;
    link->stream = stream;
    stream->link = link;
    stream->is_open = 1;
    for (int i = 0; sealed && i < 2; i++) {
        link->seal[i] = tw_seal_create(TW_CIPHER_CHACHA20_POLY1305, key);
        link->piece = (uint8_t *)(link->piece ? link->piece : malloc(TW_TCP_PIECE_BYTES + TW_SEAL_TAG_BYTES));
    }
    return link;
}

/* Little room for what goes, so that some of it is half gone when it is canceled. Numbers of requests begin
 * anew, so that an input can name them. */
int post_sends(tw_p2p_peer_t *peer, int fd, tw_p2p_request_t **requests)
{
    static uint8_t buffer[2 * room];
    const int bytes = 1;
    int n = 0;
    check(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
    for (size_t length : {(size_t)100, alone, 2 * room, alone}) {
        tw_transport_message_t message = {};
        message.tag = length;
        message.buffer = buffer;
        message.bytes = length;
        n += tw_p2p_send(peer, &message, &requests[n]) == TW_OK;
    }
    return n;
}

void serve(const End &end, tw_p2p_peer_t *peer, int sending_fd)
{
    static uint8_t buffers[3][room];
    tw_p2p_request_t *requests[7];
    free(end.p2p->numbers.entries);
    end.p2p->numbers = {};
    int n = sending_fd < 0 ? 0 : post_sends(peer, sending_fd, requests);
    for (int i = 0; i < 3; i++) {
        tw_transport_message_t message = {};
        message.tag = (uint64_t)i;
        message.buffer = buffers[i];
        message.bytes = room;
        message.may_be_shorter = i > 0;
        n += tw_p2p_recv(peer, &message, &requests[n]) == TW_OK;
    }
    for (int i = 0; i < 20; i++) {
        (void)tw_p2p_progress(end.p2p);
    }
    while (n--) {
        tw_p2p_cancel(end.p2p, requests[n]);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const End end;
    int fds[2];
    tw_p2p_peer_t *peer = nullptr;
    tw_p2p_peer_params_t params = {};
    if (!bytes || bytes > 65536) {
        return 0;
    }
    params.card = end.card;
    params.card_bytes = end.card_bytes;
    check(tw_p2p_peer_add(end.p2p, &params, &peer) == TW_OK);
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    check(write(fds[0], data + 1, bytes - 1) == (ssize_t)(bytes - 1));
    tw_tcp_link_t *link;
    if (data[0] % 3 == 0) {
        link = tw_tcp_link_create(end.device(), fds[1], TW_TCP_HELLO);
        end.device()->n_strangers++;
        link->until_ns = UINT64_MAX;
        check(link && tw_tcp_watch(link));
    } else {
        link = open_link(end, &peer->streams[0], fds[1], data[0] % 3 == 2);
    }
    serve(end, peer, data[0] / 3 % 2 && data[0] % 3 ? fds[1] : -1);
    check(data[0] % 3 || !peer->streams[0].is_open); /* nobody can prove what he does not know */
    close(fds[0]);
    (void)tw_p2p_progress(end.p2p);
    tw_p2p_peer_close(peer);
    (void)tw_p2p_progress(end.p2p);
    check(TAILQ_EMPTY(&end.device()->links));
    return 0;
}
