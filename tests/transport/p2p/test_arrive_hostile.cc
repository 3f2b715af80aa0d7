/* A peer that holds the secret and breaks the rules, beside one that keeps them: the first alone is refused.
 * And what is half gone when it is canceled. Real sockets, moved by one thread. */
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/transport/p2p/ends.h"
#include "transport/p2p/tcp.h"

namespace
{

/* A socket that takes so many bytes more, and then nothing. */
struct {
    int fd = -1;
    size_t room = 0;
} narrow;

/* -1: full. */
ssize_t narrowed(int fd, size_t bytes)
{
    if (fd != narrow.fd) {
        return (ssize_t)bytes;
    }
    const size_t now = std::min(bytes, narrow.room);
    narrow.room -= now;
    errno = EAGAIN;
    return now ? (ssize_t)now : -1;
}

} // namespace

extern "C" ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    const ssize_t now = narrowed(fd, bytes);
    return now < 0 ? -1 : syscall(SYS_sendto, fd, data, (size_t)now, flags, nullptr, 0);
}

extern "C" ssize_t sendmsg(int fd, const msghdr *message, int flags)
{
    std::vector<uint8_t> all;
    if (fd != narrow.fd) {
        return syscall(SYS_sendmsg, fd, message, flags);
    }
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const auto *from = (const uint8_t *)message->msg_iov[i].iov_base;
        all.insert(all.end(), from, from + message->msg_iov[i].iov_len);
    }
    return send(fd, all.data(), all.size(), flags);
}

namespace
{

using ends::Bytes;
using ends::card_of;
using ends::pattern;

constexpr size_t eager = 4096, chunk = 16384, whole = 300000;

/* What the one who breaks the rules sends: a header, and as much data as that says. */
struct Said {
    uint32_t kind, stream;
    uint64_t tag, id, value;
};

class Hostile : public ends::Fixture
{
  protected:
    void TearDown() override
    {
        end();
        tw::Fixture::TearDown();
    }
    void end()
    {
        narrow.fd = -1;
        for (tw_p2p_t *p2p : {a, b, c}) {
            if (p2p) {
                tw_p2p_cancel_all(p2p);
            }
        }
        for (tw_p2p_t **p2p : {&b, &c, &a}) {
            for (int id = 0; *p2p && id < 2; id++) {
                tw_p2p_peer_close(tw_p2p_peer_find(*p2p, id));
            }
            tw_p2p_destroy(*p2p);
            *p2p = nullptr;
        }
    }
    static tw_p2p_t *make(const char *name, bool is_near, double timeout_sec)
    {
        tw_p2p_params_t params = {};
        params.name = name;
        params.n_peers = 2;
        params.node_tls = is_near ? "posix,sysv" : nullptr;
        params.net_tls = is_near ? nullptr : "tcp";
        params.net_devices = "lo";
        params.streams = 2;
        params.token = "a secret";
        params.chunk_bytes = chunk;
        params.eager_bytes = eager;
        params.timeout_sec = timeout_sec;
        tw_p2p_t *p2p = nullptr;
        EXPECT_EQ(tw_p2p_create(&params, &p2p), TW_OK);
        return p2p;
    }
    static tw_p2p_peer_t *add(tw_p2p_t *to, const tw_p2p_t *peer, int id, int known_as, bool is_near,
                              bool connects)
    {
        const Bytes card = card_of(peer);
        tw_p2p_peer_params_t params = {};
        tw_p2p_peer_t *added = nullptr;
        params.id = id;
        params.known_as = known_as;
        params.is_near = is_near;
        params.connects = connects;
        params.card = card.data();
        params.card_bytes = card.size();
        EXPECT_EQ(tw_p2p_peer_add(to, &params, &added), TW_OK);
        return added;
    }
    /* a has two peers: b, its peer 0, and c, its peer 1. */
    void connect(bool is_near = false, double timeout_sec = 20)
    {
        a = make("a", is_near, timeout_sec);
        b = make("b", is_near, timeout_sec);
        c = make("c", is_near, timeout_sec);
        b_at_a = add(a, b, 0, 0, is_near, false);
        c_at_a = add(a, c, 1, 0, is_near, false);
        a_at_b = add(b, a, 0, 0, is_near, true);
        a_at_c = add(c, a, 0, 1, is_near, true);
        for (tw_p2p_peer_t *peer : {a_at_b, a_at_c}) {
            ASSERT_EQ(tw_p2p_peer_greet(peer), TW_OK);
        }
        ASSERT_TRUE(until({a, b, c}, [&] {
            return tw_p2p_peer_is_open(b_at_a) && tw_p2p_peer_is_open(c_at_a) &&
                   tw_p2p_peer_is_open(a_at_b) && tw_p2p_peer_is_open(a_at_c);
        }));
    }
    /* Messages to and from both of a's peers, that are announced: a has asked for those that come, and is
     * still to be asked for those that go. */
    void announce()
    {
        from_b = recv(b_at_a, 1, in_b);
        from_c = recv(c_at_a, 1, in_c);
        to_b = send(b_at_a, 2, out_b);
        to_c = send(c_at_a, 2, out_c);
        sent_b = send(a_at_b, 1, out_b);
        sent_c = send(a_at_c, 1, out_c);
        ASSERT_TRUE(until({a}, [&] { return from_b->number && from_c->number; }));
    }
    /* What c does with a ends right, though b does not move. */
    void finish_with_c()
    {
        Bytes in(whole);
        tw_p2p_request_t *received = recv(a_at_c, 2, in);
        for (tw_p2p_request_t *request : {from_c, to_c, sent_c, received}) {
            EXPECT_EQ(wait({a, c}, request), TW_OK);
        }
        EXPECT_EQ(in_c, out_c);
        EXPECT_EQ(in, out_c);
        EXPECT_FALSE(tw_p2p_peer_has_failed(c_at_a));
    }
    void finish_with_b()
    {
        Bytes in(whole);
        tw_p2p_request_t *received = recv(a_at_b, 2, in);
        for (tw_p2p_request_t *request : {from_b, to_b, sent_b, received}) {
            EXPECT_EQ(wait({a, b}, request), TW_OK);
        }
        EXPECT_EQ(in_b, out_b);
        EXPECT_EQ(in, out_b);
    }
    /* b says this, past its own end. */
    void say(const Said &said, uint32_t source = 0)
    {
        tw_p2p_header_t header = {};
        header.source = source;
        header.kind = said.kind;
        header.stream = said.stream;
        header.tag = said.tag;
        header.id = said.id;
        header.value = said.value;
        if (said.kind != TW_P2P_DATA && said.kind != TW_P2P_CREDIT && said.kind != TW_P2P_BYE) {
            header.sequence = (uint32_t)a_at_b->n_control_sent++;
        }
        ASSERT_TRUE(TAILQ_EMPTY(&a_at_b->streams[0].waiting));
        Bytes frame(sizeof(header) + tw_p2p_header_data(&header), 0xee);
        memcpy(frame.data(), &header, sizeof(header));
        size_t sent = 0;
        EXPECT_TRUE(until({a}, [&] {
            const ssize_t now = ::send(a_at_b->streams[0].link->fd, frame.data() + sent, frame.size() - sent,
                                       MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += now > 0 ? (size_t)now : 0;
            return sent == frame.size();
        }));
    }
    void expect_at_a(const Ends &who, uint64_t tag, const Bytes &data)
    {
        Bytes in(data.size());
        EXPECT_EQ(wait(who, recv(b_at_a, tag, in)), TW_OK);
        EXPECT_EQ(in, data);
    }
    /* b sends a message, takes it back when the first bytes of its header are in the socket, and has other
     * data in its buffer then. What is behind it happens before it is taken back. */
    void cancel_half_gone(uint64_t tag, Bytes out, size_t header_bytes, size_t gone,
                          const std::function<void()> &behind)
    {
        tw_p2p_stream_t *stream = &a_at_b->streams[0];
        narrow.room = gone;
        narrow.fd = stream->link->fd;
        tw_p2p_request_t *half = send(a_at_b, tag, out);
        ASSERT_EQ(TAILQ_FIRST(&stream->waiting)->head_bytes, header_bytes);
        ASSERT_EQ(TAILQ_FIRST(&stream->waiting)->sent, gone);
        behind();
        tw_p2p_cancel(b, half);
        std::fill(out.begin(), out.end(), 0);
        narrow.fd = -1;
        stream->link->can_write = 1;
    }

  public: /* for tables of cases */
    tw_p2p_t *a = nullptr, *b = nullptr, *c = nullptr;
    tw_p2p_peer_t *b_at_a = nullptr, *c_at_a = nullptr, *a_at_b = nullptr, *a_at_c = nullptr;
    tw_p2p_request_t *from_b = nullptr, *from_c = nullptr, *to_b = nullptr, *to_c = nullptr;
    tw_p2p_request_t *sent_b = nullptr, *sent_c = nullptr;
    const Bytes out_b = pattern(whole, 1), out_c = pattern(whole, 2);
    Bytes in_b = Bytes(whole), in_c = Bytes(whole);
};

/* ---- breaking the rules -------------------------------------------------------------------------------- */

/* What b says, and what a says of it. */
struct Rule {
    const char *what, *why;
    uint32_t kind, stream;
    std::vector<uint64_t> tags;     /* one after the other */
    tw_p2p_request_t *Hostile::*of; /* whose number b says; nullptr: id */
    uint64_t value, id = 0;
};

TEST_F(Hostile, WhoBreaksTheRulesIsNamedAlone)
{
    const char *const cleared = "it cleared a message that does not wait for it";
    const char *const not_own = "it sent data for a message that is not its own";
    const char *const beyond = "it sent data beyond the end of a message";
    const char *const not_sent = "it acknowledged what was not sent";
    const char *const not_its = "it closed what is not its to close";
    const char *const malformed_rts = "it announced a malformed message";
    const char *const nothing = "it tells of what there is not";
    const char *const malformed = "it sent a malformed message";
    const Rule rules[] = {
        {"clears a receive", cleared, TW_P2P_CTS, 0, {0}, &Hostile::from_b, 1},
        {"clears another's receive", cleared, TW_P2P_CTS, 0, {0}, &Hostile::from_c, 1},
        {"clears another's message", cleared, TW_P2P_CTS, 0, {0}, &Hostile::to_c, 1},
        {"clears and refuses another's message", cleared, TW_P2P_CTS, 0, {0}, &Hostile::to_c, 0},
        {"clears twice", cleared, TW_P2P_CTS, 0, {0, 0}, &Hostile::to_b, 1},
        {"data for a message that goes", not_own, TW_P2P_DATA, 0, {100}, &Hostile::to_b, 0},
        {"data for another's receive", not_own, TW_P2P_DATA, 0, {100}, &Hostile::from_c, 0},
        {"data for another's message that goes", not_own, TW_P2P_DATA, 0, {0}, &Hostile::to_c, 0},
        {"data behind the end", beyond, TW_P2P_DATA, 0, {1}, &Hostile::from_b, whole},
        {"data across the end", beyond, TW_P2P_DATA, 0, {100}, &Hostile::from_b, whole - 99},
        {"data at no place", beyond, TW_P2P_DATA, 0, {100}, &Hostile::from_b, UINT64_MAX},
        {"the same data too often", beyond, TW_P2P_DATA, 0, {whole / 2, whole / 2 + 1}, &Hostile::from_b, 0},
        {"acknowledges what carries no chunks", not_sent, TW_P2P_ACK, 0, {0}, nullptr, 0},
        {"acknowledges what was not sent", not_sent, TW_P2P_ACK, 1, {0}, nullptr, 0},
        {"acknowledges on no connection", not_sent, TW_P2P_ACK, 3, {0}, nullptr, 0},
        {"closes twice", not_its, TW_P2P_BYE, 0, {0, 0}, nullptr, 0},
        {"closes no connection", not_its, TW_P2P_BYE, 3, {0}, nullptr, 0},
        {"announces without a number", malformed_rts, TW_P2P_RTS, 0, {3}, nullptr, whole},
        {"tells of no connection", nothing, TW_P2P_ALIVE, 3, {0}, nullptr, 0},
        {"has heard what is not said yet", nothing, TW_P2P_ALIVE, 0, {0}, nullptr, UINT64_MAX},
        {"sends with a number", malformed, TW_P2P_EAGER, 0, {3}, nullptr, 10, 5},
    };
    for (const Rule &rule : rules) {
        SCOPED_TRACE(rule.what);
        connect();
        announce();
        const std::string why = std::string("a: peer 0: failed: ") + rule.why;
        const size_t n_before = log_count(why);
        expect_log(why);
        allow_log("b: peer 0: failed: connection lost");
        const uint64_t id = rule.of ? (this->*rule.of)->number : rule.id;
        for (uint64_t tag : rule.tags) {
            say({rule.kind, rule.stream, tag, id, rule.value});
        }
        EXPECT_TRUE(until({a}, [&] { return tw_p2p_peer_has_failed(b_at_a) != 0; }));
        EXPECT_EQ(log_count(why), n_before + 1);
        finish_with_c();
        for (tw_p2p_request_t *request : {from_b, to_b}) {
            EXPECT_EQ(wait({a}, request), TW_ERR_PEER);
        }
        end();
    }
}

TEST_F(Hostile, WhoSpeaksForAnotherIsNamedAlone)
{
    connect();
    announce();
    expect_log("a: peer 0: failed: it says that it is somebody else");
    allow_log("b: peer 0: failed: connection lost");
    say({TW_P2P_RTS, 0, 3, 77, 10}, 1);
    EXPECT_TRUE(until({a}, [&] { return tw_p2p_peer_has_failed(b_at_a) != 0; }));
    finish_with_c();
}

/* Numbers may be of what is over already, so that they are of somebody else's, or of nobody's, is no fault:
 * nothing happens. */
TEST_F(Hostile, WhatIsNotItsOwnStays)
{
    const struct {
        Said said;
        tw_p2p_request_t *Hostile::*of; /* whose number is the value; nullptr: it stays */
    } cases[] = {
        {{TW_P2P_CANCEL, 0, 0, 1, 0}, &Hostile::from_c}, {{TW_P2P_CANCEL, 0, 0, 1, 0}, &Hostile::to_c},
        {{TW_P2P_CANCEL, 0, 0, 1, 0}, &Hostile::to_b},   {{TW_P2P_CANCEL, 0, 0, 1, UINT64_MAX}, nullptr},
        {{TW_P2P_DATA, 0, 100, UINT64_MAX, 0}, nullptr}, {{TW_P2P_CTS, 0, 0, UINT64_MAX, 0}, nullptr},
    };
    for (const auto &each : cases) {
        connect();
        announce();
        Said said = each.said;
        said.value = each.of ? (this->*each.of)->number : said.value;
        const uint64_t before = b_at_a->counts.n_received;
        say(said);
        EXPECT_TRUE(until({a}, [&] { return b_at_a->counts.n_received > before; }));
        finish_with_c();
        finish_with_b();
        end();
    }
}

/* Its own receive it can end. */
TEST_F(Hostile, WhatIsItsOwnIsCanceled)
{
    connect();
    announce();
    say({TW_P2P_CANCEL, 0, 0, sent_b->number, from_b->number});
    EXPECT_EQ(wait({a}, from_b), TW_ERR_CANCELED);
    finish_with_c();
}

/* Another's data goes on where one peer is given up in the midst of its own, in UCX's hands. */
TEST_F(Hostile, WhoIsGivenUpLeavesTheOthersAlone)
{
    connect(true, 0.5);
    const Bytes out = pattern((size_t)40 << 20, 3);
    Bytes for_b(out.size()), for_c(out.size());
    const tw_p2p_request_t *received_b = recv(a_at_b, 1, for_b);
    tw_p2p_request_t *received_c = recv(a_at_c, 1, for_c);
    (void)send(b_at_a, 1, out);
    to_c = send(c_at_a, 1, out);
    ASSERT_TRUE(until({b}, [&] { return received_b->number != 0; }));
    ASSERT_TRUE(until({c}, [&] { return received_c->number != 0; }));
    ASSERT_TRUE(
        until({a}, [&] { return b_at_a->streams[0].n_chunks == 2 && c_at_a->streams[0].n_chunks == 2; }));
    expect_log("a: peer 0: failed: it takes no data");
    tw_p2p_peer_close(b_at_a);
    EXPECT_EQ(wait({a, c}, received_c), TW_OK);
    EXPECT_EQ(wait({a, c}, to_c), TW_OK);
    EXPECT_EQ(for_c, out);
    allow_log("b: peer 0: failed: ");
}

/* An older version's HELLO is refused, and that is said once, however often it comes. */
TEST_F(Hostile, AnotherVersionIsNamedOnce)
{
    connect();
    expect_log("not let in: it speaks another version of the protocol");
    for (int i = 0; i < 5; i++) {
        const tw_greeting_hello_t who = {};
        const uint8_t key[TW_GREETING_KEY_BYTES] = {};
        tw_greeting_t greeting;
        uint8_t hello[TW_GREETING_HELLO_BYTES], byte;
        tw_greeting_hello_write(&greeting, &who, key, hello);
        hello[3]--; /* the version, behind "TWC" */
        const int fd = ends::dial(ends::port_of(a));
        ASSERT_EQ(::send(fd, hello, sizeof(hello), MSG_NOSIGNAL), (ssize_t)sizeof(hello));
        EXPECT_TRUE(until({a}, [&] { return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0; }));
        close(fd);
    }
    EXPECT_EQ(log_count("another version of the protocol"), 1u);
}

/* ---- canceling what is half gone ----------------------------------------------------------------------- */

/* Of a brief header some bytes are in the socket: the rest, and the data, go out from a copy; what waits
 * behind it may be taken back, and the next one has the tag that is its own. */
TEST_F(Hostile, AHalfGoneBriefHeaderKeepsTheStreamInStep)
{
    connect();
    uint64_t tag = 10;
    for (size_t cut = 1; cut <= sizeof(tw_p2p_brief_t); cut++, tag += 2) {
        SCOPED_TRACE(cut);
        const Bytes kept = pattern(100, cut), next = pattern(50, cut + 1);
        tw_p2p_request_t *last = nullptr;
        cancel_half_gone(tag, kept, sizeof(tw_p2p_brief_t), cut, [&] {
            tw_p2p_request_t *taken = send(a_at_b, tag + 1, next);
            last = send(a_at_b, tag + 1, next);
            tw_p2p_cancel(b, taken);
        });
        EXPECT_EQ(wait({a, b}, last), TW_OK);
        expect_at_a({a}, tag, kept);
        expect_at_a({a}, tag + 1, next);
    }
    tag--; /* the last one's, which does not travel again */
    for (size_t cut = 1; cut <= sizeof(uint32_t); cut++) {
        SCOPED_TRACE(cut);
        const Bytes kept = pattern(100, cut);
        cancel_half_gone(tag, kept, sizeof(uint32_t), cut, [] {});
        expect_at_a({a, b}, tag, kept);
    }
}

} // namespace
