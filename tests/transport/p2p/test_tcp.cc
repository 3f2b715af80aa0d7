/* Connections of our own, against those who do not keep the rules: real sockets, and a man in the middle. */
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/process.h"
#include "tests/transport/p2p/ends.h"
#include "transport/control/messages.h"
#include "transport/control/socket.h"
#include "transport/p2p/tcp.h"

namespace
{

using ends::card_of;
using ends::dial;
using ends::patience_sec;
using ends::pattern;
using ends::port_of;

constexpr size_t eager = 4096, chunk = 200000;

struct Options {
    const char *token = "a secret";
    int encrypt = 0, streams = 1, sends_on_credit = 1;
    size_t chunk_bytes = chunk, eager_bytes = eager, eager_alone = 0;
    double timeout_sec = 20;
};

tw_p2p_t *make(const char *name, const Options &options)
{
    tw_p2p_params_t params = {};
    params.name = name;
    params.n_peers = 1;
    params.net_tls = "tcp";
    params.net_devices = "lo";
    params.streams = options.streams;
    params.token = options.token;
    params.encrypt = options.encrypt;
    params.chunk_bytes = options.chunk_bytes;
    params.eager_bytes = options.eager_bytes;
    params.eager_alone_bytes = options.eager_alone;
    params.sends_on_credit = options.sends_on_credit;
    params.timeout_sec = options.timeout_sec;
    tw_p2p_t *p2p = nullptr;
    EXPECT_EQ(tw_p2p_create(&params, &p2p), TW_OK);
    return p2p;
}

/* Passes on, in both directions, what goes over connections; `forward` sees what who connects sends on the
 * control stream's, `from` bytes after its start. */
class Middle
{
  public:
    using Change = std::function<void(std::vector<uint8_t> &piece, size_t from)>;
    Middle(int port, Change forward) : to_(port), forward_(std::move(forward))
    {
        listener_ = tw_socket_listen("127.0.0.1", 0);
        thread_ = std::thread([this] { run(); });
    }
    ~Middle()
    {
        stop_ = true;
        thread_.join();
        close(listener_);
    }
    int port() const
    {
        return tw_socket_port(listener_);
    }
    std::atomic<bool> cut{false};        /* close both ends */
    std::atomic<size_t> limit{SIZE_MAX}; /* on the control stream: what is sent is kept back from here on */
    std::atomic<bool> swallows{false};   /* there, too: it is taken, and dropped */
    std::atomic<size_t> n_forward{0};    /* that have passed there */

  private:
    void run()
    {
        std::vector<std::thread> passing;
        while (!stop_) {
            pollfd ready = {listener_, POLLIN, 0};
            const int fd = poll(&ready, 1, 5) > 0 ? accept(listener_, nullptr, nullptr) : -1;
            if (fd >= 0) {
                passing.emplace_back([this, fd] { pass(fd, dial(to_)); });
            }
        }
        for (std::thread &thread : passing) {
            thread.join();
        }
    }
    /* HELLO comes in one piece, and says of which stream it is. */
    static bool is_of_control(const std::vector<uint8_t> &hello)
    {
        tw_greeting_hello_t who = {};
        return hello.size() == TW_GREETING_HELLO_BYTES && !tw_greeting_hello_parse(hello.data(), &who) &&
               who.stream == 0;
    }
    void pass(int client, int server)
    {
        bool is_control = false;
        size_t from = 0;
        std::vector<uint8_t> piece;
        bool is_open = true;
        while (is_open && !stop_ && !cut) {
            pollfd ready[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
            (void)poll(ready, 2, 5);
            for (int i = 0; i < 2 && is_open; i++) {
                piece.resize(i || !is_control ? 65536 : std::min((size_t)65536, limit - from));
                const ssize_t got = ready[i].revents && !piece.empty()
                                        ? recv(ready[i].fd, piece.data(), piece.size(), MSG_DONTWAIT)
                                        : -1;
                piece.resize(got > 0 ? (size_t)got : 0);
                is_open = got != 0;
                is_control |= got > 0 && i == 0 && from == 0 && is_of_control(piece);
                if (got > 0 && i == 0) {
                    from += is_control ? 0 : (size_t)got;
                }
                if (got > 0 && i == 0 && is_control) {
                    forward_(piece, from);
                    from += (size_t)got;
                    n_forward += (size_t)got;
                    piece.resize(swallows ? 0 : piece.size());
                }
                for (size_t sent = 0; sent < piece.size() && !stop_;) {
                    const ssize_t now = send(i ? client : server, piece.data() + sent, piece.size() - sent,
                                             MSG_NOSIGNAL | MSG_DONTWAIT);
                    sent += now > 0 ? (size_t)now : 0;
                    if (now < 0 && errno != EAGAIN) {
                        break;
                    }
                }
            }
        }
        close(client);
        close(server);
    }
    const int to_;
    Change forward_;
    int listener_;
    std::thread thread_;
    std::atomic<bool> stop_{false};
};

class Tcp : public ends::Fixture
{
  protected:
    void TearDown() override
    {
        end();
        tw::Fixture::TearDown();
    }
    void end()
    {
        for (tw_p2p_t **p2p : {&a, &b}) {
            if (*p2p) {
                tw_p2p_cancel_all(*p2p);
                tw_p2p_peer_close(tw_p2p_peer_find(*p2p, 0));
                tw_p2p_destroy(*p2p);
            }
            *p2p = nullptr;
        }
    }
    /* Where the address of the device stands in a card: its last bytes. */
    static void set_port(std::vector<uint8_t> &card, const tw_p2p_t *owner, int port)
    {
        const uint16_t number = (uint16_t)port;
        memcpy(&card[card.size() - owner->workers[TW_P2P_FIRST_NET_WORKER].address_bytes], &number,
               sizeof(number));
    }
    static tw_status_t add(tw_p2p_t *p2p, const std::vector<uint8_t> &card, int connects,
                           tw_p2p_peer_t **peer)
    {
        tw_p2p_peer_params_t params = {};
        params.connects = connects;
        params.card = card.data();
        params.card_bytes = card.size();
        return tw_p2p_peer_add(p2p, &params, peer);
    }
    /* b connects to a. */
    void begin(const Options &of_a = {}, const Options &of_b = {})
    {
        a = make("a", of_a);
        b = make("b", of_b);
        ASSERT_EQ(add(a, card_of(b), 0, &peer_a), TW_OK);
        ASSERT_EQ(add(b, card_of(a), 1, &peer_b), TW_OK);
    }
    void connect(const Options &options = {})
    {
        begin(options, options);
        greet();
    }
    void greet()
    {
        ASSERT_EQ(tw_p2p_peer_greet(peer_b), TW_OK);
        ASSERT_TRUE(until([&] { return tw_p2p_peer_is_open(peer_a) && tw_p2p_peer_is_open(peer_b); }));
    }
    bool until(const std::function<bool()> &what)
    {
        return ends::Fixture::until({a, b}, what);
    }
    tw_status_t wait(tw_p2p_request_t *request)
    {
        return ends::Fixture::wait({a, b}, request);
    }
    void exchange(size_t bytes, uint64_t tag)
    {
        std::vector<uint8_t> in_a(bytes), in_b(bytes);
        const auto out_a = pattern(bytes, tag), out_b = pattern(bytes, tag + 1);
        tw_p2p_request_t *requests[] = {recv(peer_a, tag, in_a), send(peer_a, tag, out_a),
                                        send(peer_b, tag, out_b), recv(peer_b, tag, in_b)};
        for (tw_p2p_request_t *request : requests) {
            EXPECT_EQ(wait(request), TW_OK) << bytes;
        }
        EXPECT_EQ(in_a, out_b) << bytes;
        EXPECT_EQ(in_b, out_a) << bytes;
    }
    /* Small buffers: whatever is longer goes in many parts. */
    void shrink_sockets()
    {
        for (tw_p2p_peer_t *peer : {peer_a, peer_b}) {
            for (int s = 0; s < peer->n_streams; s++) {
                const int bytes = 2048;
                const int fd = peer->streams[s].link->fd;
                EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
            }
        }
    }
    /* From b to a, so that they hold a few MB. 0: not here. */
    int enlarge_sockets()
    {
        const int room = 16 << 20;
        const int from = peer_b->streams[0].link->fd, to = peer_a->streams[0].link->fd;
        return !setsockopt(to, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) &&
               !setsockopt(from, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
    }
    /* b sends, through the middle, a message of which only some is at a. */
    tw_p2p_request_t *send_half(Middle &middle, uint64_t tag, const std::vector<uint8_t> &data)
    {
        middle.limit = middle.n_forward + data.size() / 2;
        tw_p2p_request_t *sent = send(peer_b, tag, data);
        const tw_p2p_landing_t *landing = &peer_a->streams[0].link->landing;
        EXPECT_TRUE(until([&] { return landing->done > data.size() / 4; }));
        return sent;
    }
    void connect_through(std::unique_ptr<Middle> &middle, const Options &options, Middle::Change change)
    {
        a = make("a", options);
        b = make("b", options);
        middle = std::make_unique<Middle>(port_of(a), std::move(change));
        auto card = card_of(a);
        set_port(card, a, middle->port());
        ASSERT_EQ(add(a, card_of(b), 0, &peer_a), TW_OK);
        ASSERT_EQ(add(b, card, 1, &peer_b), TW_OK);
    }
    tw_p2p_t *a = nullptr, *b = nullptr;
    tw_p2p_peer_t *peer_a = nullptr, *peer_b = nullptr; /* peer_a is b as a sees it */
};

/* ---- at work ------------------------------------------------------------------------------------------- */

const size_t sizes[] = {0,
                        1,
                        sizeof(tw_p2p_header_t) - 1,
                        sizeof(tw_p2p_header_t),
                        eager,
                        eager + 1,
                        TW_TCP_IN_BYTES - 1,
                        TW_TCP_IN_BYTES,
                        TW_P2P_BRIEF_BELOW - 1,
                        TW_P2P_BRIEF_BELOW,
                        TW_TCP_PIECE_BYTES - 1,
                        TW_TCP_PIECE_BYTES,
                        TW_TCP_PIECE_BYTES + 1,
                        2 * TW_TCP_PIECE_BYTES,
                        chunk,
                        chunk + 1,
                        1500001};

TEST_F(Tcp, CarriesAllSizesPlainAndSealedOverOneAndSeveral)
{
    for (int streams : {1, 3}) {
        for (int encrypt : {0, 1}) {
            Options options;
            options.streams = streams;
            options.encrypt = encrypt;
            connect(options);
            uint64_t tag = 0;
            for (size_t bytes : sizes) {
                exchange(bytes, tag++);
            }
            shrink_sockets();
            for (size_t bytes : sizes) {
                exchange(bytes < 300000 ? bytes : 300000, tag++);
            }
            EXPECT_EQ(peer_a->streams[0].link->seal[0] != nullptr, encrypt != 0);
            end();
        }
    }
}

/* A short message takes 4 bytes more than it has, and 8 with a tag that was not the last one's; 14 bits of
 * the sequence come round. Long ones in between change nothing. */
TEST_F(Tcp, AShortMessageTakesFewBytesMore)
{
    std::unique_ptr<Middle> middle;
    connect_through(middle, Options(), [](std::vector<uint8_t> &, size_t) {});
    greet();
    const auto bytes_of = [&](size_t bytes, uint64_t tag) {
        const size_t before = middle->n_forward;
        exchange(bytes, tag);
        return middle->n_forward - before - bytes;
    };
    EXPECT_EQ(bytes_of(100, 7), 12u);
    EXPECT_EQ(bytes_of(0, 7), 4u);
    EXPECT_EQ(bytes_of(eager, 7), 4u);
    EXPECT_EQ(bytes_of(1, UINT64_MAX), 12u);
    exchange(chunk, 9);
    EXPECT_EQ(bytes_of(1, UINT64_MAX), 4u);
    EXPECT_EQ(bytes_of(1, 9), 12u);
    for (uint64_t i = 0; i < 0x4001; i++) {
        exchange(1, 9);
    }
    EXPECT_EQ(bytes_of(1, 9), 4u);
}

/* Before its receive is posted, where there is one stream for data; over several they are spread. */
TEST_F(Tcp, OverOneStreamLongerMessagesGoAtOnce)
{
    for (int streams : {1, 2}) {
        Options options;
        options.streams = streams;
        options.sends_on_credit = 0;
        options.eager_alone = 2 * TW_P2P_LONG_FROM;
        connect(options);
        const auto out = pattern(options.eager_alone, 1), longer = pattern(options.eager_alone + 1, 2);
        std::vector<uint8_t> in(out.size()), in_longer(longer.size());
        tw_transport_message_t when_asked = message_of(0, out);
        when_asked.when_asked = 1;
        tw_p2p_request_t *asked = post(peer_b, when_asked, true);
        tw_p2p_request_t *sent = send(peer_b, 1, out), *announced = send(peer_b, 2, longer);
        EXPECT_FALSE(tw_p2p_request_is_done(sent)) << "the post does not copy it";
        for (int i = 0; i < 200; i++) {
            (void)tw_p2p_progress(a);
            (void)tw_p2p_progress(b);
        }
        EXPECT_EQ(tw_p2p_request_is_done(sent), streams == 1);
        EXPECT_FALSE(tw_p2p_request_is_done(announced));
        EXPECT_FALSE(tw_p2p_request_is_done(asked));
        EXPECT_EQ(wait(recv(peer_a, 0, in)), TW_OK);
        EXPECT_EQ(wait(asked), TW_OK);
        EXPECT_EQ(in, out);
        std::fill(in.begin(), in.end(), 0);
        EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
        EXPECT_EQ(wait(recv(peer_a, 2, in_longer)), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(wait(announced), TW_OK);
        EXPECT_EQ(in, out);
        EXPECT_EQ(in_longer, longer);
        end();
    }
}

/* What eager_bytes lets go at once goes with the post, however long and over however many streams. */
TEST_F(Tcp, WhatIsEagerGoesWithThePost)
{
    for (int streams : {1, 2}) {
        Options options;
        options.streams = streams;
        options.sends_on_credit = 0;
        options.eager_bytes = 2 * TW_P2P_LONG_FROM;
        options.eager_alone = 4 * TW_P2P_LONG_FROM;
        connect(options);
        const auto out = pattern(options.eager_bytes, 1);
        std::vector<uint8_t> in(out.size());
        tw_p2p_request_t *sent = send(peer_b, 1, out);
        EXPECT_TRUE(tw_p2p_request_is_done(sent)) << streams;
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
        EXPECT_EQ(in, out);
        end();
    }
}

/* A short message goes with the post, unless another one has only just gone: then with those that follow. */
TEST_F(Tcp, ShortMessagesInQuickSuccessionGoTogether)
{
    constexpr size_t n = 400;
    connect();
    const auto out = pattern(100, 1);
    std::vector<uint8_t> in(out.size());
    std::vector<tw_p2p_request_t *> sent;
    size_t n_waiting = 0;
    for (size_t i = 0; i < n; i++) {
        sent.push_back(send(peer_b, i, out));
        n_waiting += !tw_p2p_request_is_done(sent.back());
    }
    EXPECT_GT(n_waiting, 0u);
    for (size_t i = 0; i < n; i++) {
        ASSERT_EQ(wait(recv(peer_a, i, in)), TW_OK) << i;
        ASSERT_EQ(wait(sent[i]), TW_OK) << i;
        ASSERT_EQ(in, out) << i;
    }
    usleep(1000);
    sent[0] = send(peer_b, n, out);
    EXPECT_TRUE(tw_p2p_request_is_done(sent[0]));
    EXPECT_EQ(wait(sent[0]), TW_OK);
}

/* Who sleeps does not sleep on what is about to go. */
TEST_F(Tcp, AShortMessageThatWaitsForOthersIsNotSleptOn)
{
    connect();
    const auto out = pattern(100, 1);
    for (uint64_t tag = 0; tag < 100; tag += 2) {
        tw_p2p_request_t *first = send(peer_b, tag, out), *second = send(peer_b, tag + 1, out);
        tw_p2p_t *sender = peer_b->p2p;
        tw_p2p_sleep_args_t sleep = {};
        sleep.timeout_sec = patience_sec;
        sleep.fd = -1;
        const double start = tw_time_sec();
        while (!tw_p2p_request_is_done(second)) {
            (void)tw_p2p_sleep(sender, &sleep);
        }
        ASSERT_LT(tw_time_sec() - start, patience_sec / 2);
        EXPECT_EQ(wait(first), TW_OK);
        EXPECT_EQ(wait(second), TW_OK);
        usleep(100);
    }
}

/* Both ends send more than there is credit for, before either receives anything. */
TEST_F(Tcp, BothWaysMoreThanTheCredit)
{
    constexpr size_t n = 40;
    Options options;
    options.sends_on_credit = 0;
    options.eager_alone = 512 << 10;
    connect(options);
    std::vector<tw_p2p_request_t *> sent;
    const auto out = pattern(options.eager_alone, 1);
    std::vector<uint8_t> in(out.size());
    for (size_t i = 0; i < n; i++) {
        sent.push_back(send(peer_b, i, out));
        sent.push_back(send(peer_a, i, out));
    }
    for (size_t i = 0; i < n; i++) {
        for (tw_p2p_peer_t *from : {peer_a, peer_b}) {
            std::fill(in.begin(), in.end(), 0);
            ASSERT_EQ(wait(recv(from, i, in)), TW_OK) << i;
            ASSERT_EQ(in, out) << i;
        }
    }
    for (tw_p2p_request_t *request : sent) {
        EXPECT_EQ(wait(request), TW_OK);
    }
}

/* Many in one call, of which the socket takes what it can: each tag is the right one. */
TEST_F(Tcp, TagsOfManyShortMessagesAreTheirOwn)
{
    connect();
    shrink_sockets();
    constexpr size_t n = 3000;
    std::vector<std::vector<uint8_t>> in(n, std::vector<uint8_t>(60));
    std::vector<std::vector<uint8_t>> out;
    std::vector<tw_p2p_request_t *> sent;
    for (size_t i = 0; i < n; i++) {
        out.push_back(pattern(60, (int)i));
        sent.push_back(send(peer_b, i / 3 % 2, out[i]));
    }
    for (size_t tag : {0, 1}) {
        for (size_t i = 0; i < n; i++) {
            if (i / 3 % 2 == tag) {
                ASSERT_EQ(wait(recv(peer_a, tag, in[i])), TW_OK) << i;
                ASSERT_EQ(in[i], out[i]) << i;
            }
        }
    }
    for (tw_p2p_request_t *request : sent) {
        EXPECT_EQ(wait(request), TW_OK);
    }
}

TEST_F(Tcp, BothCiphersSeal)
{
    for (int has_aes : {0, 1}) {
        Options options;
        options.encrypt = 1;
        begin(options, options);
        if (!has_aes) {
            peer_a->cipher = peer_b->cipher = TW_CIPHER_CHACHA20_POLY1305;
        }
        greet();
        exchange(300000, 1);
        end();
    }
}

/* Nothing of it is in what goes over the wire. */
/* Keys become new on the way, in the midst of messages, in both directions and with both ciphers. */
TEST_F(Tcp, KeysAreRenewedOnTheWay)
{
    for (tw_cipher_t cipher : {TW_CIPHER_AES256_GCM, TW_CIPHER_CHACHA20_POLY1305}) {
        if (cipher == TW_CIPHER_AES256_GCM && !tw_seal_has_aes()) {
            continue;
        }
        Options options;
        options.encrypt = 1;
        begin(options, options);
        peer_a->cipher = peer_b->cipher = cipher;
        greet();
        for (tw_p2p_peer_t *peer : {peer_a, peer_b}) {
            for (int s = 0; s < peer->n_streams; s++) {
                for (tw_seal_t *seal : peer->streams[s].link->seal) {
                    tw_seal_renew_after(seal, 100000, 50);
                }
            }
        }
        for (uint64_t tag = 0; tag < 60; tag++) {
            exchange(tag % 20 ? 100 : 1500001, tag);
        }
        for (tw_p2p_peer_t *peer : {peer_a, peer_b}) {
            for (int direction : {0, 1}) {
                EXPECT_GT(tw_seal_renewals(peer->streams[0].link->seal[direction]), 10u);
            }
        }
        end();
    }
}

/* Who holds the secret, and says another cipher than both must use, is not let in: nobody talks them out of
 * sealing. */
TEST_F(Tcp, AnotherCipherIsNotLetIn)
{
    Options options;
    options.encrypt = 1;
    options.timeout_sec = 0.3;
    begin(options, options);
    peer_b->cipher = TW_CIPHER_NONE;
    capture_level(TW_LOG_DEBUG);
    ASSERT_EQ(tw_p2p_peer_greet(peer_b), TW_OK);
    expect_log("b: peer 0: failed: connection lost: ");
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_b) != 0; }));
    EXPECT_FALSE(peer_a->streams[0].is_open);
    EXPECT_GT(log_count("not let in: it is nobody who is expected"), 0u);
}

TEST_F(Tcp, WhatIsSealedIsNotSeen)
{
    for (int encrypt : {0, 1}) {
        Options options;
        options.encrypt = encrypt;
        std::vector<uint8_t> seen;
        std::unique_ptr<Middle> middle;
        connect_through(middle, options, [&](std::vector<uint8_t> &piece, size_t) {
            seen.insert(seen.end(), piece.begin(), piece.end());
        });
        greet();
        const std::string secret = "nobody else is to read this sentence";
        const std::vector<uint8_t> out(secret.begin(), secret.end());
        std::vector<uint8_t> in(out.size());
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(in, out);
        const bool is_seen =
            std::search(seen.begin(), seen.end(), secret.begin(), secret.end()) != seen.end();
        EXPECT_EQ(is_seen, !encrypt);
        end();
    }
}

TEST_F(Tcp, ChunksMayDiffer)
{
    Options other;
    other.chunk_bytes = 4096;
    begin(Options(), other);
    greet();
    for (size_t bytes : sizes) {
        exchange(bytes, 3);
    }
}

/* ---- canceling ----------------------------------------------------------------------------------------- */

/* Half of it is in the socket: the rest goes out from a copy, as the buffer is the caller's again. */
TEST_F(Tcp, WhatIsCanceledHalfwayGoesOnWithoutItsBuffer)
{
    for (int encrypt : {0, 1}) {
        Options options;
        options.encrypt = encrypt;
        connect(options);
        shrink_sockets();
        const auto kept = pattern(chunk, 5);
        auto out = kept;
        tw_p2p_request_t *sent = send(peer_b, 1, out);
        ASSERT_FALSE(tw_p2p_request_is_done(sent));
        ASSERT_GT(TAILQ_FIRST(&peer_b->streams[0].waiting)->sent, 0u);
        tw_p2p_cancel(b, sent);
        std::fill(out.begin(), out.end(), 0);
        std::vector<uint8_t> in(chunk);
        EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
        EXPECT_EQ(in, kept);
        exchange(1000, 2);
        end();
    }
}

TEST_F(Tcp, AReceiveThatIsCanceledHalfwayIsNotTouched)
{
    for (int encrypt : {0, 1}) {
        std::unique_ptr<Middle> middle;
        Options options;
        options.encrypt = encrypt;
        connect_through(middle, options, [](std::vector<uint8_t> &, size_t) {});
        greet();
        const auto out = pattern(chunk, 6);
        std::vector<uint8_t> in(chunk);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send_half(*middle, 1, out);
        tw_p2p_cancel(a, received);
        std::fill(in.begin(), in.end(), 0xee);
        middle->limit = SIZE_MAX;
        EXPECT_EQ(wait(sent), TW_OK);
        exchange(1000, 2);
        EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t x) { return x == 0xee; }));
        end();
    }
}

/* Before there is a receive; then the rest goes straight to it. */
TEST_F(Tcp, AReceiveMayTakeWhatIsHalfHere)
{
    for (int encrypt : {0, 1}) {
        std::unique_ptr<Middle> middle;
        Options options;
        options.encrypt = encrypt;
        connect_through(middle, options, [](std::vector<uint8_t> &, size_t) {});
        greet();
        const auto out = pattern(chunk, 7);
        std::vector<uint8_t> in(chunk), small(7), other(1);
        (void)recv(peer_a, 99, other); /* so that what comes before it is taken */
        tw_p2p_request_t *sent = send_half(*middle, 1, out), *received = recv(peer_a, 1, in);
        middle->limit = SIZE_MAX;
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(in, out);
        sent = send_half(*middle, 2, out);
        expect_log("bytes came where 7 were expected");
        EXPECT_EQ(wait(recv(peer_a, 2, small)), TW_ERR_TRUNCATED);
        middle->limit = SIZE_MAX;
        EXPECT_EQ(wait(sent), TW_OK);
        exchange(1000, 3);
        EXPECT_EQ(peer_a->credit[0].held, peer_a->credit[0].owed);
        EXPECT_EQ(peer_a->credit[1].held, peer_a->credit[1].owed);
        end();
    }
}

/* ---- what nobody waits for ----------------------------------------------------------------------------- */

/* It is long: only its header is read, and the end sleeps, until a receive is posted. For it, so that it goes
 * straight there; or for something that may be behind it, so that it has to be kept. */
TEST_F(Tcp, ALongMessageThatNobodyWaitsForIsLeft)
{
    for (int encrypt : {0, 1}) {
        Options options;
        options.encrypt = encrypt;
        connect(options);
        const tw_tcp_link_t *link = peer_a->streams[0].link;
        const auto out = pattern(chunk, 8);
        std::vector<uint8_t> in(chunk), other(1);
        for (bool is_kept : {false, true}) {
            tw_p2p_request_t *sent = send(peer_b, 1, out), *waits = nullptr;
            ASSERT_TRUE(until([&] { return link->has_header != 0; }));
            tw_p2p_sleep_args_t sleep = {};
            sleep.timeout_sec = 0.01;
            sleep.fd = -1;
            EXPECT_TRUE(until([&] { return tw_p2p_sleep(a, &sleep) == TW_IN_PROGRESS; }));
            EXPECT_FALSE(link->has_begun);
            EXPECT_TRUE(TAILQ_EMPTY(&peer_a->arrivals));
            if (is_kept) {
                waits = recv(peer_a, 2, other);
                EXPECT_TRUE(until([&] { return !TAILQ_EMPTY(&peer_a->arrivals); }));
            }
            std::fill(in.begin(), in.end(), 0);
            EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
            EXPECT_EQ(wait(sent), TW_OK);
            EXPECT_EQ(in, out);
            if (waits) {
                tw_p2p_cancel(a, waits);
            }
        }
        end();
    }
}

/* That its sender has closed is heard, though it comes behind it. */
TEST_F(Tcp, BehindWhatIsLeftTheEndIsHeard)
{
    connect();
    const auto out = pattern(20000, 9);
    std::vector<uint8_t> in(out.size());
    EXPECT_EQ(wait(send(peer_b, 1, out)), TW_OK);
    ASSERT_TRUE(until([&] { return peer_a->streams[0].link->has_header != 0; }));
    tw_p2p_peer_close(peer_b);
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_closed(peer_a) != 0; }));
    EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
    EXPECT_EQ(in, out);
}

/* Of a long message that lies here half a megabyte is read in a turn; who asks for it gets all. */
TEST_F(Tcp, WhoAsksReadsAllThatIsThere)
{
    connect();
    if (!enlarge_sockets()) {
        GTEST_SKIP() << "sockets take no long messages here";
    }
    const tw_tcp_link_t *link = peer_a->streams[0].link;
    const auto out = pattern(3 << 20, 4);
    std::vector<uint8_t> in(out.size());
    tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
    const double limit = tw_time_sec() + patience_sec;
    for (int here = 0; here < (int)out.size() && tw_time_sec() < limit;) {
        (void)tw_p2p_progress(b);
        ASSERT_EQ(ioctl(link->fd, FIONREAD, &here), 0);
    }
    (void)tw_p2p_progress(a);
    EXPECT_GE(link->landing.done, (size_t)512 << 10);
    EXPECT_LE(link->landing.done, ((size_t)512 << 10) + TW_TCP_IN_BYTES);
    (void)tw_p2p_progress_for(a, received);
    EXPECT_TRUE(tw_p2p_request_is_done(received));
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(in, out);
}

/* Each try would cost the sender's processor something. */
TEST_F(Tcp, WhoAsksPausesAfterALongMessageAlone)
{
    connect();
    tw_tcp_link_t *link = peer_a->streams[0].link;
    for (size_t bytes : {(size_t)100 << 10, (size_t)256 << 10}) {
        const bool is_long = bytes > (size_t)128 << 10;
        const auto out = pattern(bytes, 4);
        std::vector<uint8_t> in(bytes);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        received = recv(peer_a, 1, in);
        a->n_for_one = 0;
        EXPECT_EQ(tw_p2p_progress_for(a, received), TW_IN_PROGRESS);
        EXPECT_EQ(link->quiet_ns > 0, is_long);
        link->quiet_ns = is_long ? UINT64_MAX : 0;
        sent = send(peer_b, 1, out);
        const double limit = tw_time_sec() + patience_sec;
        for (int here = 0; here < (int)TW_TCP_IN_BYTES && tw_time_sec() < limit;) {
            (void)tw_p2p_progress(b);
            ASSERT_EQ(ioctl(link->fd, FIONREAD, &here), 0);
        }
        const tw_status_t status = tw_p2p_progress_for(a, received);
        EXPECT_EQ(status == TW_OK || link->has_begun, !is_long) << status;
        link->quiet_ns = 1; /* long ago */
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(in, out);
    }
}

/* A message that waits for its receive. */
TEST_F(Tcp, WhatIsKnownToBeThereEndsThePause)
{
    connect();
    tw_tcp_link_t *link = peer_a->streams[0].link;
    const auto out = pattern((size_t)256 << 10, 5);
    std::vector<uint8_t> in(out.size());
    tw_p2p_request_t *sent = send(peer_b, 1, out);
    const double limit = tw_time_sec() + patience_sec;
    while (!link->has_header && tw_time_sec() < limit) {
        (void)tw_p2p_progress(b);
        (void)tw_p2p_progress(a);
    }
    ASSERT_TRUE(link->has_header && !link->has_begun);
    link->quiet_ns = UINT64_MAX;
    tw_p2p_request_t *received = recv(peer_a, 1, in);
    a->n_for_one = 0;
    const tw_status_t status = tw_p2p_progress_for(a, received);
    EXPECT_TRUE(status == TW_OK || link->has_begun) << status;
    EXPECT_NE(link->quiet_ns, UINT64_MAX);
    link->quiet_ns = 0;
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(in, out);
}

/* Also where there is room for more. */
TEST_F(Tcp, OfLongMessagesOneGoesInATurn)
{
    connect();
    if (!enlarge_sockets()) {
        GTEST_SKIP() << "sockets take no long messages here";
    }
    const auto out = pattern(chunk, 4);
    std::vector<uint8_t> in(chunk);
    tw_p2p_request_t *sent[3];
    b->in_callback = 1; /* nothing goes now */
    for (tw_p2p_request_t *&request : sent) {
        request = send(peer_b, 1, out);
    }
    b->in_callback = 0;
    for (int turn = 0; turn < 3; turn++) {
        tw_p2p_stream_flush(&peer_b->streams[0]);
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(tw_p2p_request_is_done(sent[i]), i <= turn) << i << " in turn " << turn;
        }
    }
    for (tw_p2p_request_t *request : sent) {
        EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
        EXPECT_EQ(wait(request), TW_OK);
        EXPECT_EQ(in, out);
    }
}

/* On the stream on which long messages come nothing goes back. */
TEST_F(Tcp, CreditComesBackOnTheOtherStream)
{
    connect();
    tw_p2p_stream_t *other = &peer_b->streams[1];
    const size_t whole = TW_P2P_EAGER_MAX;
    for (size_t bytes : {whole, whole, whole, whole - 10000, (size_t)20000}) {
        EXPECT_EQ(peer_a->counts.n_sent, 0u);
        const auto out = pattern(bytes, 4);
        std::vector<uint8_t> in(bytes);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
        const double limit = tw_time_sec() + patience_sec;
        while (!tw_p2p_request_is_done(received) && tw_time_sec() < limit) {
            (void)tw_p2p_progress(a); /* the last one goes without b */
            (void)(bytes > TW_P2P_LONG_FROM * 2 ? tw_p2p_progress(b) : TW_OK);
        }
        EXPECT_EQ(tw_p2p_test(a, received, nullptr), TW_OK);
        EXPECT_EQ(tw_p2p_test(b, sent, nullptr), TW_OK);
        EXPECT_EQ(in, out);
    }
    EXPECT_EQ(peer_a->counts.n_sent, 1u);
    EXPECT_LT(peer_b->credit[1].left, TW_P2P_LONG_CREDIT_BYTES);
    const double limit = tw_time_sec() + patience_sec;
    while (peer_b->credit[1].left < TW_P2P_LONG_CREDIT_BYTES && tw_time_sec() < limit) {
        (void)other->worker->carrier->receive(other, 0);
    }
    EXPECT_EQ(peer_b->credit[1].left, TW_P2P_LONG_CREDIT_BYTES);
}

/* Its connection to b is out of epoll then. */
class TcpAside : public Tcp
{
  protected:
    void ask_often(const tw_p2p_request_t *request)
    {
        for (int i = 0; i < 100; i++) {
            EXPECT_GE(tw_p2p_progress_for(a, request), 0);
        }
        EXPECT_TRUE(peer_a->streams[0].link->is_aside);
        EXPECT_EQ(peer_a->streams[0].worker->tcp->n_aside, 1);
    }
    const std::vector<uint8_t> out = pattern(chunk, 5);
    std::vector<uint8_t> in = std::vector<uint8_t>(chunk);
};

TEST_F(TcpAside, WhoAsksGetsHisMessages)
{
    connect();
    for (uint64_t tag = 0; tag < 2; tag++) {
        tw_p2p_request_t *received = recv(peer_a, tag, in), *sent = send(peer_b, tag, out);
        const double limit = tw_time_sec() + patience_sec;
        while (!tw_p2p_request_is_done(received) && tw_time_sec() < limit) {
            EXPECT_GE(tw_p2p_progress_for(a, received), 0);
            (void)tw_p2p_progress(b);
        }
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(in, out);
        in.assign(in.size(), 0);
        received = recv(peer_a, 7, in);
        ask_often(received);
        tw_p2p_cancel(a, received);
    }
    shrink_sockets();
    std::vector<uint8_t> in_b(chunk);
    tw_p2p_request_t *received = recv(peer_b, 1, in_b);
    EXPECT_EQ(wait(send(peer_a, 1, out)), TW_OK) << "it goes on when there is room again";
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(in_b, out);
}

TEST_F(TcpAside, WithoutBeingAskedForItComesBack)
{
    connect();
    tw_p2p_request_t *received = recv(peer_a, 1, in);
    ask_often(received);
    tw_p2p_request_t *sent = send(peer_b, 1, out);
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(in, out);
    EXPECT_EQ(peer_a->streams[0].worker->tcp->n_aside, 0);
}

TEST_F(TcpAside, NobodySleepsThroughItsMessages)
{
    connect();
    tw_p2p_request_t *received = recv(peer_a, 1, in);
    ask_often(received);
    tw_p2p_sleep_args_t sleep = {};
    sleep.timeout_sec = patience_sec;
    sleep.fd = -1;
    tw_p2p_request_t *sent = send(peer_b, 1, out);
    EXPECT_EQ(tw_p2p_sleep(a, &sleep), TW_OK);
    EXPECT_EQ(peer_a->streams[0].worker->tcp->n_aside, 0);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(in, out);
}

TEST_F(TcpAside, ItsEndIsHeardAndMade)
{
    for (bool by_a : {true, false}) {
        connect();
        if (by_a) {
            std::vector<uint8_t> in_b(chunk);
            tw_p2p_request_t *received_b = recv(peer_b, 2, in_b);
            EXPECT_EQ(wait(send(peer_a, 2, out)), TW_OK);
            EXPECT_EQ(wait(received_b), TW_OK);
        }
        tw_p2p_request_t *received = recv(peer_a, 1, in);
        ask_often(received); /* last: progress for all brings it back */
        tw_p2p_cancel(a, received);
        const tw_p2p_peer_t *hears = by_a ? peer_b : peer_a;
        tw_p2p_peer_close(by_a ? peer_a : peer_b);
        EXPECT_TRUE(until([&] { return tw_p2p_peer_has_closed(hears) != 0; }));
        end();
    }
}

/* ---- who does not belong ------------------------------------------------------------------------------- */

TEST_F(Tcp, WhoHasAnotherTokenIsNamed)
{
    Options other;
    other.token = "another secret";
    begin(Options(), other);
    ASSERT_EQ(tw_p2p_peer_greet(peer_b), TW_OK);
    expect_log("b: peer 0: failed: it does not hold the secret that both share (TW_JOB_TOKEN)");
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_b) != 0; }));
    EXPECT_FALSE(tw_p2p_peer_is_open(peer_a));
}

TEST_F(Tcp, WhatMustBeAlikeIsCompared)
{
    const struct {
        int encrypt, streams, sends_on_credit;
        const char *why;
    } cases[] = {{1, 1, 1, "a: peer 0: TW_NET_ENCRYPT is y there and n here"},
                 {0, 3, 1, "a: peer 0: TW_NET_STREAMS is 3 there and 1 here"},
                 {0, 1, 0, "a: peer 0: long messages go when asked for there and at once here"}};
    for (const auto &c : cases) {
        Options other;
        other.encrypt = c.encrypt;
        other.streams = c.streams;
        other.sends_on_credit = c.sends_on_credit;
        a = make("a", Options());
        b = make("b", other);
        expect_log(c.why);
        EXPECT_EQ(add(a, card_of(b), 0, &peer_a), TW_ERR_CONFIG);
        end();
    }
}

TEST_F(Tcp, WithoutASecretNobodyIsAPeer)
{
    Options none;
    none.token = nullptr;
    a = make("a", none);
    b = make("b", none);
    expect_log("a: peer 0: there is no secret that it could prove itself with");
    EXPECT_EQ(add(a, card_of(b), 0, &peer_a), TW_ERR_AUTH);
}

std::vector<uint8_t> hello_of(uint32_t stream)
{
    const uint8_t key[32] = {1};
    std::vector<uint8_t> hello(TW_GREETING_HELLO_BYTES);
    tw_greeting_t greeting;
    tw_greeting_hello_t who = {};
    who.stream = stream;
    tw_greeting_hello_write(&greeting, &who, key, hello.data());
    return hello;
}

/* A stranger who knows what to say, and says it, hears a nonce; whatever it says then, nothing that is made
 * of the secret: it cannot be guessed at home. */
TEST_F(Tcp, AStrangerGetsNothingToGuessBy)
{
    begin();
    std::set<std::vector<uint8_t>> heard;
    for (int i = 0; i < 3; i++) {
        const int fd = dial(port_of(a));
        auto said = hello_of(0);
        said.resize(said.size() + TW_GREETING_PROOF_BYTES, (uint8_t)i);
        EXPECT_EQ(::send(fd, said.data(), said.size(), MSG_NOSIGNAL), (ssize_t)said.size());
        std::vector<uint8_t> all(1000);
        size_t n = 0;
        ssize_t got = -1;
        EXPECT_TRUE(until([&] {
            got = ::recv(fd, &all[n], all.size() - n, MSG_DONTWAIT);
            n += got > 0 ? (size_t)got : 0;
            return got == 0 || (got < 0 && errno != EAGAIN);
        }));
        ASSERT_EQ(n, (size_t)TW_GREETING_CHALLENGE_BYTES + TW_GREETING_WELCOME_BYTES);
        heard.insert({all.begin() + TW_GREETING_CHALLENGE_BYTES, all.begin() + (long)n});
        close(fd);
    }
    EXPECT_EQ(heard, std::set<std::vector<uint8_t>>{std::vector<uint8_t>(TW_GREETING_WELCOME_BYTES)});
}

/* Silent, noisy, half polite, and those who know the form but not the secret. More of them than there is room
 * for. */
TEST_F(Tcp, StrangersChangeNothing)
{
    begin();
    std::vector<int> strangers;
    for (int i = 0; i < 200; i++) {
        const int fd = dial(port_of(a));
        const std::string noise =
            "GET / HTTP/1.1\r\nHost: somebody else altogether, and what else there is to say\r\n"
            "Accept: */*\r\n\r\n";
        auto hello = hello_of(0);
        switch (i % 5) {
        case 1:
            EXPECT_GT(::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
            break;
        case 2:
            EXPECT_GT(::send(fd, hello.data(), hello.size() / 2, MSG_NOSIGNAL), 0);
            break;
        case 3: /* and a proof that is none */
            hello.resize(hello.size() + TW_GREETING_PROOF_BYTES);
            EXPECT_GT(::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), 0);
            break;
        case 4: /* a stream that there is not */
            hello = hello_of(99);
            EXPECT_GT(::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), 0);
            break;
        default:
            break;
        }
        strangers.push_back(fd);
        (void)tw_p2p_progress(a);
        EXPECT_LE(a->workers[TW_P2P_FIRST_NET_WORKER].tcp->n_strangers, 70);
    }
    greet();
    exchange(5000, 1);
    tw_p2p_shut(a);
    EXPECT_EQ(a->workers[TW_P2P_FIRST_NET_WORKER].tcp->n_strangers, 0);
    exchange(5000, 2);
    for (int fd : strangers) {
        close(fd);
    }
}

/* What who belongs has said on a connection that was cut: said again word by word, it opens nothing. */
TEST_F(Tcp, ARecordedConnectionCannotBePlayedAgain)
{
    std::vector<uint8_t> said;
    std::atomic<bool> is_done{false};
    std::unique_ptr<Middle> middle;
    connect_through(middle, Options(), [&](std::vector<uint8_t> &piece, size_t from) {
        if (!is_done) {
            said.insert(said.end(), piece.begin(), piece.end());
        }
        if (from + piece.size() > TW_GREETING_HELLO_BYTES) { /* the proof is kept back */
            piece.clear();
            is_done = true;
        }
    });
    ASSERT_EQ(tw_p2p_peer_greet(peer_b), TW_OK);
    EXPECT_TRUE(until([&] { return is_done.load(); }));
    ASSERT_GE(said.size(), (size_t)TW_GREETING_HELLO_BYTES + TW_GREETING_PROOF_BYTES);
    said.resize(TW_GREETING_HELLO_BYTES + TW_GREETING_PROOF_BYTES);
    const int fd = dial(port_of(a));
    EXPECT_EQ(::send(fd, said.data(), said.size(), MSG_NOSIGNAL), (ssize_t)said.size());
    uint8_t answer[TW_GREETING_CHALLENGE_BYTES];
    ssize_t got = 1;
    EXPECT_TRUE(until([&] { /* answers, and then the end */
                            got = ::recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
                            return got == 0 || (got < 0 && errno != EAGAIN);
    }));
    EXPECT_FALSE(peer_a->streams[0].is_open);
    EXPECT_FALSE(tw_p2p_peer_has_failed(peer_a)) << "it would have been refused for that";
    close(fd);
    allow_log("failed: connection lost");
}

/* ---- a man in the middle ------------------------------------------------------------------------------- */

constexpr size_t greeting_bytes = TW_GREETING_HELLO_BYTES + TW_GREETING_PROOF_BYTES;
constexpr size_t sealed_header = sizeof(tw_p2p_header_t) + TW_SEAL_TAG_BYTES;

/* At byte `at` after the greeting, something happens to what b sends; a must say so, and take nothing of
 * it. */
TEST_F(Tcp, WhatIsChangedOnTheWayIsNamed)
{
    const size_t bytes = 70000;
    using ends::Bytes;
    const struct {
        const char *what;
        size_t at;
        std::function<void(Bytes &piece, size_t at)> change;
    } cases[] = {
        {"a bit of the header", 3, [](Bytes &piece, size_t at) { piece[at] ^= 1; }},
        {"a bit of the header's tag", sealed_header - 1, [](Bytes &piece, size_t at) { piece[at] ^= 0x80; }},
        {"a bit of the data", sealed_header + 100, [](Bytes &piece, size_t at) { piece[at] ^= 4; }},
        {"a bit of the data's tag", sealed_header + TW_TCP_PIECE_BYTES + 2,
         [](Bytes &piece, size_t at) { piece[at] ^= 1; }},
        {"a byte less", sealed_header + 100,
         [](Bytes &piece, size_t at) { piece.erase(piece.begin() + (long)at); }},
        {"a header once more", 0,
         [](Bytes &piece, size_t at) {
             const Bytes header(piece.begin() + (long)at,
                                piece.begin() + (long)std::min(at + sealed_header, piece.size()));
             piece.insert(piece.begin() + (long)at, header.begin(), header.end());
         }},
    };
    for (const auto &c : cases) {
        SCOPED_TRACE(c.what);
        Options options;
        options.encrypt = 1;
        std::unique_ptr<Middle> middle;
        connect_through(middle, options, [&](std::vector<uint8_t> &piece, size_t from) {
            const size_t at = greeting_bytes + c.at;
            if (at >= from && at < from + piece.size()) {
                c.change(piece, at - from);
            }
        });
        greet();
        Bytes in(bytes);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, pattern(bytes, 1));
        expect_log("a: peer 0: failed: what it sent was changed on the way");
        allow_log("b: peer 0: failed: connection lost");
        EXPECT_EQ(wait(received), TW_ERR_PEER);
        (void)wait(sent);
        end();
    }
}

/* Plain, a brief header whose place is not the next one is one too many, or too few. */
TEST_F(Tcp, AShortMessageOutOfOrderIsNamed)
{
    std::unique_ptr<Middle> middle;
    connect_through(middle, Options(), [&](std::vector<uint8_t> &piece, size_t from) {
        const size_t at = greeting_bytes + 2; /* in the low byte of its place */
        if (at >= from && at < from + piece.size()) {
            piece[at - from] ^= 4;
        }
    });
    greet();
    expect_log("a: peer 0: failed: its messages do not come in order");
    allow_log("b: peer 0: failed: connection lost");
    std::vector<uint8_t> in(10);
    tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, pattern(10, 1));
    EXPECT_EQ(wait(received), TW_ERR_PEER);
    (void)wait(sent);
}

TEST_F(Tcp, AConnectionThatIsCutIsNamed)
{
    for (int encrypt : {0, 1}) {
        Options options;
        options.encrypt = encrypt;
        std::unique_ptr<Middle> middle;
        connect_through(middle, options, [](std::vector<uint8_t> &, size_t) {});
        greet();
        std::vector<uint8_t> in((size_t)32 << 20);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, in);
        ASSERT_TRUE(until([&] { return received->landed > 0; }));
        middle->cut = true;
        expect_log("a: peer 0: failed: connection lost");
        expect_log("b: peer 0: failed: connection lost");
        EXPECT_EQ(wait(received), TW_ERR_PEER);
        EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_b) != 0; }));
        (void)wait(sent); /* which may be done: the kernel had it */
        end();
    }
}

/* ---- a connection that is dead while others live ------------------------------------------------------- */

class TcpWatch : public Tcp
{
  protected:
    static Options options(int encrypt = 0, int streams = 1)
    {
        Options options;
        options.encrypt = encrypt;
        options.streams = streams;
        options.timeout_sec = 0.5;
        return options;
    }
    /* Times the timeout. */
    void go_on_for(double times, const Ends &who)
    {
        const double end = tw_time_sec() + times * options().timeout_sec;
        EXPECT_TRUE(ends::Fixture::until(who, [&] { return tw_time_sec() > end; }));
    }
    void expect_nobody_failed()
    {
        EXPECT_FALSE(tw_p2p_peer_has_failed(peer_a));
        EXPECT_FALSE(tw_p2p_peer_has_failed(peer_b));
    }
};

/* Somebody on the way takes what goes over one connection and drops it, or passes nothing on any more; all
 * else lives, and neither end's system knows. Who sent has no use for an answer; who waits hears of it. */
TEST_F(TcpWatch, IsNamed)
{
    for (bool swallows : {false, true}) {
        for (int encrypt : {0, 1}) {
            for (int streams : {1, 3}) {
                std::unique_ptr<Middle> middle;
                connect_through(middle, options(encrypt, streams), [](std::vector<uint8_t> &, size_t) {});
                greet();
                exchange(1000, 1);
                middle->swallows = swallows;
                middle->limit = swallows ? SIZE_MAX : middle->n_forward.load();
                std::vector<uint8_t> in(100);
                tw_p2p_request_t *received = recv(peer_a, 5, in);
                EXPECT_EQ(wait(send(peer_b, 5, pattern(100, 5))), TW_OK);
                expect_log("b: peer 0: failed: connection lost: what was sent on it does not come");
                expect_log("a: peer 0: failed: connection lost");
                EXPECT_EQ(wait(received), TW_ERR_PEER) << swallows << encrypt << streams;
                EXPECT_TRUE(tw_p2p_peer_has_failed(peer_b));
                end();
            }
        }
    }
}

/* A peer that has other things to do for long, with its sockets full, and then goes on. */
TEST_F(TcpWatch, WhoDoesNotReadIsWaitedFor)
{
    connect(options());
    const auto data = pattern((size_t)64 << 20, 3);
    std::vector<uint8_t> in(data.size()), answer(10);
    tw_p2p_request_t *sent = send(peer_b, 1, data), *received = recv(peer_a, 1, in),
                     *answered = recv(peer_b, 2, answer);
    go_on_for(0.1, {a, b});
    go_on_for(4, {b});
    go_on_for(4, {a});
    go_on_for(4, {b});
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(in, data);
    EXPECT_EQ(wait(send(peer_a, 2, answer)), TW_OK);
    EXPECT_EQ(wait(answered), TW_OK);
    expect_nobody_failed();
}

/* A message that is left at the connection, as nobody waits for it yet. */
TEST_F(TcpWatch, WhatIsLeftIsNotLost)
{
    connect(options());
    const auto data = pattern(TW_P2P_EAGER_MAX, 3);
    std::vector<uint8_t> in(data.size()), answer(10);
    tw_p2p_request_t *sent = send(peer_b, 1, data), *answered = recv(peer_b, 2, answer);
    go_on_for(3, {a, b});
    EXPECT_TRUE(peer_a->streams[0].link->has_header && !peer_a->streams[0].link->has_begun);
    EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(wait(send(peer_a, 2, answer)), TW_OK);
    EXPECT_EQ(wait(answered), TW_OK);
    EXPECT_EQ(in, data);
}

/* Little at a time, for longer than the timeout, while the other connection is quick. */
TEST_F(TcpWatch, WhatIsSlowIsNotDead)
{
    std::unique_ptr<Middle> middle;
    connect_through(middle, options(), [](std::vector<uint8_t> &, size_t) {});
    greet();
    const auto data = pattern(TW_P2P_EAGER_MAX, 3);
    std::vector<uint8_t> in(data.size());
    middle->limit = middle->n_forward.load();
    tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, data);
    for (int i = 0; i < 30; i++) {
        middle->limit += 1000;
        go_on_for(0.1, {a, b});
    }
    EXPECT_LT(peer_a->streams[0].link->landing.done, data.size());
    expect_nobody_failed();
    middle->limit = SIZE_MAX;
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
}

/* Who waits says so now and then, and who has nothing to wait for says nothing. */
TEST_F(TcpWatch, NobodySaysAnythingWithoutNeed)
{
    connect(options());
    exchange(100, 1);
    go_on_for(0.2, {a, b});
    const uint64_t before = peer_a->streams[0].link->n_written + peer_b->streams[0].link->n_written;
    go_on_for(1, {a, b});
    EXPECT_EQ(peer_a->streams[0].link->n_written + peer_b->streams[0].link->n_written, before);
    const uint64_t sent = tw_p2p_peer_counts(peer_b).n_sent, received = tw_p2p_peer_counts(peer_b).n_received,
                   reads = tw_p2p_peer_counts(peer_b).n_reads;
    std::vector<uint8_t> in(10);
    tw_p2p_request_t *waits = recv(peer_b, 1, in);
    go_on_for(1, {a, b});
    EXPECT_GT(peer_a->n_alive, 5u);
    EXPECT_GT(peer_b->n_alive, 5u);
    EXPECT_EQ(tw_p2p_peer_counts(peer_b).n_sent, sent); /* these are no messages */
    EXPECT_EQ(tw_p2p_peer_counts(peer_b).n_received, received);
    EXPECT_LE(tw_p2p_peer_counts(peer_b).n_reads, reads + 2);
    tw_p2p_cancel(b, waits);
}

TEST_F(TcpWatch, WhoHasReadMoreThanWasSentIsNamed)
{
    connect(options());
    tw_p2p_header_t alive = {};
    alive.kind = TW_P2P_ALIVE;
    alive.n_read = peer_a->streams[0].link->n_written + 1;
    EXPECT_EQ(tw_p2p_stream_say(&peer_b->streams[1], &alive, nullptr), TW_OK);
    expect_log("a: peer 0: failed: it has read more than was sent");
    allow_log("b: peer 0: failed: connection lost");
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_a) != 0; }));
}

/* To a peer that does not answer no more is said than it takes. */
TEST_F(TcpWatch, WhoDoesNotAnswerIsNotToldForEver)
{
    connect(options());
    std::vector<uint8_t> in(10);
    tw_p2p_request_t *waits = recv(peer_b, 1, in);
    go_on_for(2, {b});
    const uint64_t before = peer_b->streams[0].link->n_written;
    go_on_for(2, {b});
    EXPECT_EQ(peer_b->streams[0].link->n_written, before);
    EXPECT_EQ(wait(send(peer_a, 1, in)), TW_OK);
    EXPECT_EQ(wait(waits), TW_OK);
}

/* Who sleeps looks, too. */
TEST_F(TcpWatch, NobodySleepsThroughIt)
{
    connect(options());
    std::vector<uint8_t> in(10);
    tw_p2p_request_t *waits = recv(peer_b, 1, in);
    tw_p2p_sleep_args_t sleep = {.timeout_sec = 3600, .fd = -1, .keeps_wakes = 0, .fd_is_ready = 0};
    for (int i = 0; i < 20; i++) {
        EXPECT_EQ(tw_p2p_sleep(b, &sleep), TW_OK);
    }
    EXPECT_GT(peer_b->n_unheard, 2);
    tw_p2p_cancel(b, waits);
}

/* ---- a peer that holds the secret, and breaks the rules ------------------------------------------------ */

TEST_F(Tcp, LengthsBeyondReasonAreRefused)
{
    const struct {
        uint32_t kind, stream;
        uint64_t tag, id, value;
        const char *why;
    } cases[] = {
        {TW_P2P_EAGER, 0, 1, 0, UINT64_MAX, "it sent a malformed message"},
        {TW_P2P_EAGER, 0, 1, 0, TW_P2P_EAGER_MAX + 1, "it sent a malformed message"},
        {TW_P2P_DATA, 99, 1, 0, 0, "it sent data on a connection that it does not have"},
        {TW_P2P_CREDIT, 0, 0, 0, UINT64_MAX, "it gave back credit"},
        {77, 0, 0, 0, 0, "it sent a message of an unknown kind"},
    };
    for (const auto &c : cases) {
        connect();
        tw_p2p_header_t header = {};
        header.kind = c.kind;
        header.stream = c.stream;
        header.tag = c.tag;
        header.id = c.id;
        header.value = c.value;
        expect_log(c.why);
        allow_log("b: peer 0: failed: connection lost");
        ASSERT_EQ(tw_p2p_control_send(peer_b, &header, nullptr), TW_OK);
        EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_a) != 0; }));
        end();
    }
}

TEST_F(Tcp, MoreThanItHasCreditForIsRefused)
{
    connect();
    peer_b->credit[1].left = (size_t)1 << 30; /* it gives itself */
    const auto out = pattern(chunk, 1);
    std::vector<tw_p2p_request_t *> sent;
    std::vector<uint8_t> other(1);
    (void)recv(peer_a, SIZE_MAX, other); /* so that what comes before it is taken */
    expect_log("a: peer 0: failed: it sent more than it has credit for");
    allow_log("b: peer 0: failed: connection lost");
    for (size_t i = 0; i < TW_P2P_LONG_CREDIT_BYTES / chunk + 1; i++) {
        sent.push_back(send(peer_b, i, out));
    }
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_a) != 0; }));
}

/* ---- closing ------------------------------------------------------------------------------------------- */

/* It does not read, and what it should read does not fit into the sockets. To close is not to wait; the end
 * of all waits, for all of them together, and not at all where something was given up. */
TEST_F(Tcp, ClosingDoesNotWaitForWhoDoesNotRead)
{
    for (bool gives_up : {false, true}) {
        Options options;
        options.timeout_sec = 1;
        connect(options);
        shrink_sockets();
        auto out = pattern(chunk, 1);
        tw_p2p_request_t *sent = send(peer_b, 1, out);
        ASSERT_FALSE(tw_p2p_request_is_done(sent));
        if (!gives_up) {
            tw_p2p_cancel(b, sent);
        }
        const double start = tw_time_sec();
        tw_p2p_peer_close(peer_b);
        EXPECT_LT(tw_time_sec() - start, 0.5);
        tw_p2p_destroy(b);
        b = nullptr;
        const double took = tw_time_sec() - start;
        EXPECT_EQ(took > 0.9, !gives_up) << took;
        allow_log("a: peer 0: failed: connection lost");
        end();
    }
}

/* Behind a message of which half has gone waits what takes another one back: all of it still comes, in
 * order. */
TEST_F(Tcp, WhatWaitsBehindHalfAMessageComesInOrder)
{
    for (int encrypt : {0, 1}) {
        Options options;
        options.encrypt = encrypt;
        connect(options);
        shrink_sockets();
        const auto out = pattern(chunk, 1), announced = pattern(TW_P2P_EAGER_MAX + 1, 2);
        std::vector<uint8_t> in(out.size());
        tw_p2p_request_t *half = send(peer_b, 1, out), *other = send(peer_b, 2, announced);
        ASSERT_FALSE(tw_p2p_request_is_done(half));
        tw_p2p_cancel(b, half);
        tw_p2p_cancel(b, other);
        tw_p2p_peer_close(peer_b);
        EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
        EXPECT_EQ(in, out);
        EXPECT_TRUE(until([&] { return tw_p2p_peer_has_closed(peer_a) != 0; }));
        EXPECT_FALSE(tw_p2p_peer_has_failed(peer_a));
        end();
    }
}

/* ---- another version ----------------------------------------------------------------------------------- */

/* Its handle is refused, and who it was and both versions are named. */
TEST_F(Tcp, AHandleOfAnotherVersionIsRefused)
{
    const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    const std::string others[][2] = {{"0.1.9", "0.1.9"},
                                     {"", "of an older version"},
                                     {"8\xff\n45678", "8??45678"},
                                     {TW_VERSION "x", TW_VERSION "x"}};
    tw_p2p_t *p2p = make("a", Options());
    uint8_t handle[TW_P2P_HANDLE_BYTES];
    tw_p2p_listener_t *listener = nullptr;
    ASSERT_EQ(tw_p2p_listen(p2p, loopback, nullptr, handle, &listener), TW_OK);
    EXPECT_STREQ((const char *)handle + 56, TW_VERSION);
    uint32_t port;
    memcpy(&port, handle + 4, sizeof(port));
    for (const auto &[version, said] : others) {
        tw_p2p_dial_t *dial = nullptr;
        memset(handle + 56, 0, 8);
        memcpy(handle + 56, version.data(), version.size());
        EXPECT_EQ(tw_p2p_dial_start(p2p, handle, nullptr, &dial), TW_ERR_CONFIG);
        expect_log("a: 127.0.0.1 port " + std::to_string(port) + ": cannot meet it: it has Thinwire " + said +
                   ", this end has " TW_VERSION);
    }
    tw_p2p_listener_destroy(listener);
    tw_p2p_destroy(p2p);
}

/* ---- without descriptors ------------------------------------------------------------------------------- */

/* In a process of its own: a connection comes, and there is no descriptor for it. */
int accept_without_descriptors()
{
    const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    tw_p2p_t *p2p = make("a", Options());
    uint8_t handle[TW_P2P_HANDLE_BYTES];
    tw_p2p_listener_t *listener = nullptr;
    tw_p2p_peer_t *peer = nullptr;
    uint32_t port;
    if (tw_p2p_listen(p2p, loopback, nullptr, handle, &listener)) {
        return 2;
    }
    memcpy(&port, handle + 4, sizeof(port));
    const int fd = dial((int)port);
    const rlimit none = {(rlim_t)fd + 1, (rlim_t)fd + 1};
    if (setrlimit(RLIMIT_NOFILE, &none)) {
        return 3;
    }
    tw_status_t status;
    const double limit = tw_time_sec() + patience_sec;
    while ((status = tw_p2p_accept(listener, &peer)) == TW_IN_PROGRESS && tw_time_sec() < limit) {
    }
    return status < 0 ? 0 : 1;
}

TEST_F(Tcp, WithoutDescriptorsAcceptFails)
{
    process::Child child([] { return accept_without_descriptors(); });
    const process::Result ending = child.wait(2 * patience_sec);
    EXPECT_EQ(ending.code, 0) << ending.err;
    EXPECT_NE(ending.err.find("cannot take a connection: Too many open files"), std::string::npos)
        << ending.err;
}

} // namespace
