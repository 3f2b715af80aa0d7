/* Point to point: two ends in one process, moved by one thread; a second process where one of them dies. */
#include "transport/p2p.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/process.h"
#include "tests/transport/p2p/ends.h"
#include "transport/p2p/state.h"
#include "transport/p2p/tcp.h"

namespace
{

using ends::patience_sec;
using ends::pattern;

constexpr size_t eager = 4096, chunk = 65536;
const uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

using Handle = std::vector<uint8_t>;

tw_p2p_t *make(const char *name, int streams = 2, double timeout_sec = 20, bool on_credit = false)
{
    tw_p2p_params_t params = {};
    params.name = name;
    params.n_peers = 2;
    params.net_tls = "tcp";
    params.net_devices = "lo";
    params.streams = streams;
    params.chunk_bytes = chunk;
    params.eager_bytes = eager;
    params.sends_on_credit = on_credit;
    params.spin_sec = 20e-6;
    params.timeout_sec = timeout_sec;
    tw_p2p_t *p2p = nullptr;
    EXPECT_EQ(tw_p2p_create(&params, &p2p), TW_OK);
    return p2p;
}

/* As a process of its own: dial, send one short message, and stay until killed. */
int lonely(const Handle &handle)
{
    tw_p2p_t *p2p = make("child");
    tw_p2p_dial_t *dial = nullptr;
    tw_p2p_peer_t *peer = nullptr;
    tw_p2p_request_t *request = nullptr;
    if (tw_p2p_dial_start(p2p, handle.data(), nullptr, &dial)) {
        return 2;
    }
    tw_status_t status;
    while ((status = tw_p2p_dial_test(dial, &peer)) == TW_IN_PROGRESS) {
    }
    const uint64_t word = 42;
    tw_transport_message_t message = {};
    message.tag = 1;
    message.buffer = (void *)(uintptr_t)&word;
    message.bytes = sizeof(word);
    if (status || tw_p2p_send(peer, &message, &request)) {
        return 3;
    }
    for (;;) {
        (void)tw_p2p_progress(p2p);
    }
}

class P2p : public ends::Fixture
{
  protected:
    void TearDown() override
    {
        end();
        tw::Fixture::TearDown();
    }
    void begin(int streams = 2, double timeout_sec = 20, bool on_credit = false)
    {
        a = make("a", streams, timeout_sec, on_credit);
        b = make("b", streams, timeout_sec, on_credit);
    }
    static void close_all(tw_p2p_t *p2p)
    {
        for (int id = 0; p2p && id < 20; id++) {
            tw_p2p_peer_close(tw_p2p_peer_find(p2p, id));
        }
    }
    void end()
    {
        tw_p2p_listener_destroy(listener);
        listener = nullptr;
        for (tw_p2p_t **p2p : {&a, &b}) {
            if (*p2p) {
                tw_p2p_cancel_all(*p2p);
            }
        }
        std::thread closer([this] { close_all(a); }); /* one end may wait for the other's answer */
        close_all(b);
        closer.join();
        tw_p2p_destroy(a);
        tw_p2p_destroy(b);
        a = b = nullptr;
    }
    void listen_at_a(const char *token = nullptr)
    {
        handle.resize(TW_P2P_HANDLE_BYTES);
        ASSERT_EQ(tw_p2p_listen(a, loopback, token, handle.data(), &listener), TW_OK);
    }
    /* Until both are there, or one of them gives up. */
    tw_status_t meet(tw_p2p_peer_t **at_a, tw_p2p_peer_t **at_b, const char *token = nullptr)
    {
        tw_p2p_dial_t *dial = nullptr;
        *at_a = *at_b = nullptr;
        tw_status_t status = tw_p2p_dial_start(b, handle.data(), token, &dial);
        const double until = tw_time_sec() + patience_sec;
        status = status ? status : TW_IN_PROGRESS;
        while (status >= 0 && !(*at_a && *at_b) && tw_time_sec() < until) {
            (void)tw_p2p_accept(listener, at_a); /* the last who came, if somebody else did before */
            if (!*at_b) {
                status = tw_p2p_dial_test(dial, at_b);
            }
        }
        if (status == TW_IN_PROGRESS) {
            tw_p2p_dial_cancel(dial);
        }
        return status;
    }
    void connect(int streams = 2, bool on_credit = false)
    {
        begin(streams, 20, on_credit);
        listen_at_a();
        ASSERT_EQ(meet(&peer_a, &peer_b), TW_OK);
    }
    void connect_on_credit()
    {
        connect(1, true);
    }
    static tw_p2p_request_t *recv(tw_p2p_peer_t *peer, uint64_t tag, const ends::Bytes &data,
                                  bool shorter = false)
    {
        tw_transport_message_t message = message_of(tag, data);
        message.may_be_shorter = shorter;
        return post(peer, message, false);
    }
    tw_status_t wait(tw_p2p_request_t *request, size_t *bytes = nullptr)
    {
        return ends::Fixture::wait({a, b}, request, bytes);
    }
    /* Send short messages from b until the sockets take no more of them; a does not read. */
    void fill_sockets()
    {
        for (tw_p2p_stream_t *stream : {&peer_b->streams[0], &peer_b->streams[1]}) {
            const int bytes = 65536;
            EXPECT_EQ(setsockopt(stream->link->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
        }
        filler = pattern(eager, 9);
        do {
            fillers.push_back(send(peer_b, 2, filler));
        } while (tw_p2p_request_is_done(fillers.back()) && fillers.size() < 20000);
        ASSERT_FALSE(tw_p2p_request_is_done(fillers.back())) << "the sockets take everything";
    }
    void empty_sockets()
    {
        std::vector<uint8_t> in(eager);
        for (tw_p2p_request_t *request : fillers) {
            EXPECT_EQ(wait(recv(peer_a, 2, in)), TW_OK);
            EXPECT_EQ(wait(request), TW_OK);
            EXPECT_EQ(in, filler);
        }
        fillers.clear();
    }
    std::vector<uint8_t> filler;
    std::vector<tw_p2p_request_t *> fillers;
    bool until(const std::function<bool()> &what)
    {
        return ends::Fixture::until({a, b}, what);
    }
    tw_p2p_t *a = nullptr, *b = nullptr;
    tw_p2p_listener_t *listener = nullptr;
    tw_p2p_peer_t *peer_a = nullptr, *peer_b = nullptr; /* peer_a is b as a sees it */
    Handle handle;
};

/* ---- messages ------------------------------------------------------------------------------------------ */

TEST_F(P2p, AllSizesBothWays)
{
    for (int streams : {-1, 1, 3}) {
        connect(std::abs(streams), streams < 0);
        for (size_t bytes : {(size_t)0, (size_t)1, eager - 1, eager, eager + 1, chunk - 1, chunk, chunk + 1,
                             (size_t)3000001}) {
            std::vector<uint8_t> in_a(bytes), in_b(bytes);
            const auto out_a = pattern(bytes, 1), out_b = pattern(bytes, 2);
            tw_p2p_request_t *requests[] = {recv(peer_a, 5, in_a), recv(peer_b, 5, in_b),
                                            send(peer_a, 5, out_a), send(peer_b, 5, out_b)};
            for (tw_p2p_request_t *request : requests) {
                EXPECT_EQ(wait(request), TW_OK);
            }
            EXPECT_EQ(in_a, out_b) << bytes;
            EXPECT_EQ(in_b, out_a) << bytes;
        }
        end();
    }
}

/* As a caller has it that knows only how long it may be. */
TEST_F(P2p, TheRealSizeIsSaid)
{
    connect();
    for (size_t bytes : {(size_t)0, (size_t)1, eager, eager + 1, 3 * chunk + 7}) {
        for (bool early : {true, false}) {
            std::vector<uint8_t> in(4 * chunk, 0xee);
            const auto out = pattern(bytes, 3);
            tw_p2p_request_t *received = early ? recv(peer_a, 9, in, true) : nullptr;
            tw_p2p_request_t *sent = send(peer_b, 9, out);
            if (!early) {
                const uint64_t before = tw_p2p_peer_counts(peer_a).n_received;
                EXPECT_TRUE(until([&] { return tw_p2p_peer_counts(peer_a).n_received > before; }));
                received = recv(peer_a, 9, in, true);
            }
            size_t got = 12345;
            EXPECT_EQ(wait(received, &got), TW_OK);
            EXPECT_EQ(wait(sent), TW_OK);
            EXPECT_EQ(got, bytes);
            EXPECT_TRUE(std::equal(out.begin(), out.end(), in.begin()));
            EXPECT_TRUE(std::all_of(in.begin() + (long)bytes, in.end(), [](uint8_t x) { return x == 0xee; }));
        }
    }
}

TEST_F(P2p, WhatDoesNotFitIsRefusedAndSentNowhere)
{
    connect();
    expect_log("a: peer 0: a message of");
    const struct {
        size_t sent, received;
        bool shorter;
    } cases[] = {
        {2, 1, true},  {eager, eager - 1, true},     {eager + 1, eager, true}, {9 * chunk, chunk, true},
        {1, 2, false}, {eager + 1, 9 * chunk, false}};
    for (const auto &c : cases) {
        std::vector<uint8_t> in(c.received, 0xee);
        const auto out = pattern(c.sent, 4);
        tw_p2p_request_t *received = recv(peer_a, 1, in, c.shorter), *sent = send(peer_b, 1, out);
        EXPECT_EQ(wait(received), TW_ERR_TRUNCATED);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t x) { return x == 0xee; }));
    }
    std::vector<uint8_t> in(7);
    tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, pattern(7, 5));
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
}

TEST_F(P2p, ManyInFlightWithTagsInAnyOrder)
{
    connect();
    constexpr size_t n = 96;
    std::vector<std::vector<uint8_t>> in(n), out(n);
    std::vector<tw_p2p_request_t *> sent(n), received(n);
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = i % 3 == 0 ? i : i % 3 == 1 ? eager + i : 2 * chunk + i;
        in[i].resize(bytes);
        out[i] = pattern(bytes, i);
        sent[i] = send(peer_b, i % 48 + (1ull << 63), out[i]); /* each tag twice: in order */
    }
    for (size_t i = n / 2; i-- > 0;) {
        received[i] = recv(peer_a, i + (1ull << 63), in[i]);
        received[i + n / 2] = recv(peer_a, i + (1ull << 63), in[i + n / 2]);
    }
    for (size_t i = 0; i < n; i++) {
        EXPECT_EQ(wait(received[i]), TW_OK) << i;
        EXPECT_EQ(wait(sent[i]), TW_OK) << i;
        EXPECT_EQ(in[i], out[i]) << i;
    }
}

constexpr size_t cost = chunk + TW_P2P_CREDIT_MESSAGE, n_on_credit = TW_P2P_LONG_CREDIT_BYTES / cost;

TEST_F(P2p, OnCreditNothingIsAskedFor)
{
    connect_on_credit();
    constexpr size_t n = 3 * n_on_credit;
    const auto out = pattern(chunk, 7);
    std::vector<uint8_t> in(chunk);
    const uint64_t from_a = tw_p2p_peer_counts(peer_a).n_sent, from_b = tw_p2p_peer_counts(peer_b).n_sent;
    for (size_t i = 0; i < n; i++) {
        std::fill(in.begin(), in.end(), 0);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(in, out) << i;
    }
    EXPECT_EQ(tw_p2p_peer_counts(peer_b).n_sent - from_b, n) << "a message for each";
    const size_t n_for_a_step = (TW_P2P_LONG_CREDIT_STEP + cost - 1) / cost;
    EXPECT_EQ(tw_p2p_peer_counts(peer_a).n_sent - from_a, n / n_for_a_step) << "credit alone";
}

/* Also one that is longer than a chunk, while there is credit for it. */
TEST_F(P2p, OnCreditALongMessageIsOne)
{
    connect_on_credit();
    for (size_t bytes : {chunk + 1, TW_P2P_EAGER_MAX, TW_P2P_EAGER_MAX + 1}) {
        const auto out = pattern(bytes, 3);
        std::vector<uint8_t> in(bytes);
        const uint64_t before = tw_p2p_peer_counts(peer_b).n_sent;
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(in, out) << bytes;
        EXPECT_EQ(tw_p2p_peer_counts(peer_b).n_sent - before, bytes <= TW_P2P_EAGER_MAX ? 1u : 2u) << bytes;
    }
}

TEST_F(P2p, WithoutCreditItIsAskedFor)
{
    connect_on_credit();
    constexpr size_t n = n_on_credit + 5;
    std::vector<std::vector<uint8_t>> in(n), out(n);
    std::vector<tw_p2p_request_t *> sent(n), received(n);
    std::vector<uint8_t> other(1);
    (void)recv(peer_a, 2, other); /* so that what comes before it is taken */
    for (int round = 0; round < 2; round++) {
        const uint64_t before = tw_p2p_peer_counts(peer_a).n_received;
        const size_t n_credit = peer_b->credit[1].left / cost;
        for (size_t i = 0; i < n; i++) {
            out[i] = pattern(chunk, i);
            sent[i] = send(peer_b, 1, out[i]);
        }
        ASSERT_TRUE(until([&] { return tw_p2p_peer_counts(peer_a).n_received == before + n; }));
        for (size_t i = 0; i < n; i++) {
            EXPECT_EQ(tw_p2p_request_is_done(sent[i]), i < n_credit) << i << ": nothing was received yet";
        }
        for (size_t i = 0; i < n; i++) {
            in[i].assign(chunk, 0);
            received[i] = recv(peer_a, 1, in[i]);
        }
        for (size_t i = 0; i < n; i++) {
            EXPECT_EQ(wait(received[i]), TW_OK) << i;
            EXPECT_EQ(wait(sent[i]), TW_OK) << i;
            EXPECT_EQ(in[i], out[i]) << i;
        }
        EXPECT_TRUE(until(
            [&] { return peer_b->credit[1].left + peer_a->credit[1].owed == TW_P2P_LONG_CREDIT_BYTES; }));
    }
}

/* It posts and tests, and never has to wait: that its credit is back it sees nevertheless. */
TEST_F(P2p, WhoNeverWaitsKeepsItsCredit)
{
    connect_on_credit();
    const auto out = pattern(2 * eager, 7);
    constexpr size_t n = 2 * TW_P2P_CREDIT_BYTES / (2 * eager);
    std::vector<uint8_t> in(out.size());
    const uint64_t from_b = tw_p2p_peer_counts(peer_b).n_sent;
    for (size_t i = 0; i < n; i++) {
        tw_p2p_request_t *received = recv(peer_a, 1, in);
        ASSERT_EQ(tw_p2p_test(b, send(peer_b, 1, out), nullptr), TW_OK) << i;
        while (!tw_p2p_request_is_done(received)) {
            ASSERT_GE(tw_p2p_progress(a), 0);
        }
        EXPECT_EQ(tw_p2p_test(a, received, nullptr), TW_OK);
    }
    EXPECT_EQ(tw_p2p_peer_counts(peer_b).n_sent - from_b, n) << "a message for each";
}

/* Who asks for one request alone gets it, and leaves the others their turn. */
TEST_F(P2p, ProgressForOne)
{
    for (int streams : {-1, 1, 3}) {
        tw_p2p_peer_t *others_a = nullptr, *others_b = nullptr;
        connect(std::abs(streams), streams < 0);
        ASSERT_EQ(meet(&others_a, &others_b), TW_OK);
        for (size_t bytes : {(size_t)0, (size_t)1, eager + 1, chunk, chunk + 1, (size_t)9000001}) {
            std::vector<uint8_t> in(bytes), in_other(bytes);
            const auto out = pattern(bytes, 1), out_other = pattern(bytes, 2);
            tw_p2p_request_t *other_in = recv(others_a, 1, in_other),
                             *other_out = send(others_b, 1, out_other);
            tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
            for (tw_p2p_request_t *asked_in : {received, other_in}) {
                tw_p2p_request_t *asked_out = asked_in == received ? sent : other_out;
                const double limit = tw_time_sec() + patience_sec;
                while (!(tw_p2p_request_is_done(asked_in) && tw_p2p_request_is_done(asked_out)) &&
                       tw_time_sec() < limit) {
                    EXPECT_GE(tw_p2p_progress_for(a, asked_in), 0);
                    EXPECT_GE(tw_p2p_progress_for(b, asked_out), 0);
                }
            }
            for (tw_p2p_request_t *request : {received, sent, other_in, other_out}) {
                EXPECT_EQ(wait(request), TW_OK) << bytes;
            }
            EXPECT_EQ(in, out);
            EXPECT_EQ(in_other, out_other);
        }
        std::vector<uint8_t> never(1), in(chunk);
        const auto out = pattern(chunk, 3);
        tw_p2p_request_t *asked = recv(peer_a, 1, never), *received = recv(others_a, 1, in);
        EXPECT_EQ(wait(send(others_b, 1, out)), TW_OK);
        const double limit = tw_time_sec() + patience_sec;
        while (!tw_p2p_request_is_done(received) && tw_time_sec() < limit) {
            EXPECT_GE(tw_p2p_progress_for(a, asked), 0);
        }
        EXPECT_EQ(tw_p2p_test(a, received, nullptr), TW_OK);
        EXPECT_EQ(in, out);
        end();
    }
}

/* The other end does not read, and short messages have filled the sockets: what has not gone is taken back,
 * and so is its credit. */
TEST_F(P2p, CreditOfWhatIsCanceledComesBack)
{
    connect_on_credit();
    fill_sockets();
    const auto out = pattern(chunk, 8);
    const size_t credit = peer_b->credit[1].left;
    ASSERT_GT(credit, cost) << "the sockets take everything";
    for (int i = 0; i < 3; i++) {
        tw_p2p_request_t *sent = send(peer_b, 1, out);
        EXPECT_EQ(peer_b->credit[1].left, credit - cost);
        tw_p2p_cancel(b, sent);
        EXPECT_EQ(peer_b->credit[1].left, credit);
    }
    empty_sockets();
    std::vector<uint8_t> last(chunk);
    tw_p2p_request_t *received = recv(peer_a, 1, last), *sent = send(peer_b, 1, out);
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(last, out) << "nothing of what was canceled has come";
}

/* What it sent is done, so it closes: at once, though the other end has read nothing yet, and gives back
 * credit later. */
TEST_F(P2p, WhatWasSentOnCreditArrivesAfterClosing)
{
    connect_on_credit();
    const size_t n = 16; /* the sockets take so much */
    std::vector<std::vector<uint8_t>> in(n, std::vector<uint8_t>(chunk)), out(n);
    for (size_t i = 0; i < n; i++) {
        out[i] = pattern(chunk, i);
        EXPECT_EQ(wait(send(peer_b, i, out[i])), TW_OK);
    }
    tw_p2p_peer_close(peer_b);
    for (size_t i = 0; i < n; i++) {
        EXPECT_EQ(wait(recv(peer_a, i, in[i])), TW_OK) << i;
        EXPECT_EQ(in[i], out[i]) << i;
    }
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_closed(peer_a) != 0; }));
    EXPECT_FALSE(tw_p2p_peer_has_failed(peer_a));
}

/* Nobody receives: what lies there stays within the credit, and then messages wait at their sender. */
TEST_F(P2p, ShortMessagesThatNobodyReceivesAreBounded)
{
    connect();
    constexpr size_t n = 20000;
    const auto out = pattern(eager, 1);
    std::vector<tw_p2p_request_t *> sent(n);
    for (size_t i = 0; i < n; i++) {
        sent[i] = send(peer_b, i, out);
        (void)tw_p2p_progress(a);
    }
    const uint64_t all = tw_p2p_peer_counts(peer_b).n_sent;
    EXPECT_TRUE(until([&] { return tw_p2p_peer_counts(peer_a).n_received >= all; }));
    EXPECT_LE(peer_a->credit[0].held, TW_P2P_CREDIT_BYTES);
    EXPECT_FALSE(tw_p2p_request_is_done(sent[n - 1]));
    std::vector<uint8_t> in(eager);
    for (size_t i = 0; i < n; i++) {
        std::fill(in.begin(), in.end(), 0);
        ASSERT_EQ(wait(recv(peer_a, i, in)), TW_OK) << i;
        ASSERT_EQ(wait(sent[i]), TW_OK) << i;
        ASSERT_EQ(in, out) << i;
    }
}

TEST_F(P2p, CreditThatWasNotGivenIsRefused)
{
    connect_on_credit();
    expect_log("a: peer 0");
    expect_log("it gave back credit that it had not given");
    allow_log("failed: connection lost");
    tw_p2p_header_t header = {};
    header.kind = TW_P2P_CREDIT;
    header.value = 1;
    ASSERT_EQ(tw_p2p_control_send(peer_b, &header, nullptr), TW_OK);
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_failed(peer_a) != 0; }));
}

TEST_F(P2p, TheSameEndsMayMeetSeveralTimes)
{
    connect();
    tw_p2p_peer_t *second_a, *second_b;
    ASSERT_EQ(meet(&second_a, &second_b), TW_OK);
    EXPECT_NE(tw_p2p_peer_id(second_a), tw_p2p_peer_id(peer_a));
    std::vector<uint8_t> in_1(chunk), in_2(chunk);
    const auto out_1 = pattern(chunk, 1), out_2 = pattern(chunk, 2);
    tw_p2p_request_t *requests[] = {recv(peer_a, 1, in_1), send(second_b, 1, out_2), recv(second_a, 1, in_2),
                                    send(peer_b, 1, out_1)};
    for (tw_p2p_request_t *request : requests) {
        EXPECT_EQ(wait(request), TW_OK);
    }
    EXPECT_EQ(in_1, out_1);
    EXPECT_EQ(in_2, out_2);
    /* One of them goes, the other stays. */
    tw_p2p_peer_close(second_b);
    tw_p2p_request_t *received = recv(peer_a, 2, in_1), *sent = send(peer_b, 2, out_2);
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_TRUE(until([&] { return tw_p2p_peer_has_closed(second_a) != 0; }));
    EXPECT_FALSE(tw_p2p_peer_has_failed(second_a));
    EXPECT_FALSE(tw_p2p_peer_has_closed(peer_a));
}

TEST_F(P2p, WhatIsCanceledIsNotTouched)
{
    connect();
    std::vector<uint8_t> in(3 * chunk, 0xee);
    tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 2, pattern(3 * chunk, 1));
    tw_p2p_cancel(a, received);
    tw_p2p_cancel(b, sent); /* its announcement is taken back */
    const uint64_t all = tw_p2p_peer_counts(peer_b).n_sent;
    EXPECT_TRUE(until([&] { return tw_p2p_peer_counts(peer_a).n_received == all; }));
    const auto out = pattern(3 * chunk, 2);
    std::vector<uint8_t> other(3 * chunk);
    sent = send(peer_b, 2, out);
    received = recv(peer_a, 2, other);
    EXPECT_EQ(wait(received), TW_OK);
    EXPECT_EQ(wait(sent), TW_OK);
    EXPECT_EQ(other, out);
    EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t x) { return x == 0xee; }));
}

/* The receiver has asked for the data meanwhile: it learns that there will be none. */
TEST_F(P2p, WhatIsCanceledAfterItWasAskedForFails)
{
    connect();
    const auto out = pattern(3 * chunk, 1);
    std::vector<uint8_t> in(3 * chunk, 0xee);
    tw_p2p_request_t *received = recv(peer_a, 1, in);
    const uint64_t before = tw_p2p_peer_counts(peer_a).n_sent;
    tw_p2p_request_t *sent = send(peer_b, 1, out);
    const double limit = tw_time_sec() + patience_sec;
    while (tw_p2p_peer_counts(peer_a).n_sent == before && tw_time_sec() < limit) {
        (void)tw_p2p_progress(a); /* b does not see the answer yet */
    }
    ASSERT_EQ(tw_p2p_peer_counts(peer_a).n_sent, before + 1);
    tw_p2p_cancel(b, sent);
    EXPECT_EQ(wait(received), TW_ERR_CANCELED);
    EXPECT_TRUE(std::all_of(in.begin(), in.end(), [](uint8_t x) { return x == 0xee; }));
}

TEST_F(P2p, OverSharedMemoryByCards)
{
    for (tw_p2p_t **p2p : {&a, &b}) {
        tw_p2p_params_t params = {};
        params.name = p2p == &a ? "a" : "b";
        params.n_peers = 1;
        params.node_tls = "posix,sysv";
        params.eager_bytes = eager;
        params.timeout_sec = 5;
        ASSERT_EQ(tw_p2p_create(&params, p2p), TW_OK);
    }
    for (int at_a : {1, 0}) {
        void *card = nullptr;
        tw_p2p_peer_params_t params = {};
        ASSERT_EQ(tw_p2p_card(at_a ? b : a, &card, &params.card_bytes), TW_OK);
        params.id = at_a ? 7 : 3;
        params.known_as = at_a ? 3 : 7;
        params.is_near = 1;
        params.card = card;
        ASSERT_EQ(tw_p2p_peer_add(at_a ? a : b, &params, at_a ? &peer_a : &peer_b), TW_OK);
        free(card);
    }
    EXPECT_TRUE(tw_p2p_peer_is_open(peer_a));
    for (size_t bytes : {(size_t)0, eager, eager + 1, (size_t)9000001}) {
        std::vector<uint8_t> in(bytes);
        const auto out = pattern(bytes, 6);
        tw_p2p_request_t *received = recv(peer_a, 1, in), *sent = send(peer_b, 1, out);
        EXPECT_EQ(wait(received), TW_OK);
        EXPECT_EQ(wait(sent), TW_OK);
        EXPECT_EQ(in, out);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* UCX, which is loaded, has taken them, and they were given back. Sanitizers have handlers of their own. */
TEST_F(P2p, TheSignalsStayTheProcesssOwn)
{
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        struct sigaction action = {};
        ASSERT_EQ(sigaction(number, nullptr, &action), 0);
        EXPECT_EQ(action.sa_handler, SIG_DFL) << number;
    }
}
#endif

TEST_F(P2p, ACardThatMakesNoSenseIsRefused)
{
    begin();
    expect_log("a: peer 0: its list of addresses makes no sense");
    void *card = nullptr;
    size_t bytes = 0;
    ASSERT_EQ(tw_p2p_card(b, &card, &bytes), TW_OK);
    for (size_t cut : {(size_t)0, (size_t)3, bytes / 2, bytes - 1}) {
        tw_p2p_peer_params_t params = {};
        params.card = card;
        params.card_bytes = cut;
        EXPECT_EQ(tw_p2p_peer_add(a, &params, &peer_a), TW_ERR_FORMAT) << cut;
        EXPECT_EQ(tw_p2p_peer_find(a, 0), nullptr);
    }
    free(card);
}

/* ---- sleeping ------------------------------------------------------------------------------------------ */

TEST_F(P2p, SleepEndsWithAMessageADescriptorOrAWake)
{
    connect();
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    tw_p2p_sleep_args_t sleep = {};
    sleep.fd = fds[0];
    sleep.timeout_sec = 0.02;
    EXPECT_TRUE(until([&] { return tw_p2p_sleep(a, &sleep) == TW_IN_PROGRESS; }));
    EXPECT_FALSE(sleep.fd_is_ready);
    sleep.timeout_sec = patience_sec;
    ASSERT_EQ(write(fds[1], "x", 1), 1);
    const double start = tw_time_sec();
    EXPECT_EQ(tw_p2p_sleep(a, &sleep), TW_OK);
    EXPECT_TRUE(sleep.fd_is_ready);
    sleep.fd = -1;
    tw_p2p_wake(a);
    tw_p2p_wake(a);
    sleep.keeps_wakes = 1;
    sleep.timeout_sec = 0.02;
    EXPECT_EQ(tw_p2p_sleep(a, &sleep), TW_IN_PROGRESS);
    sleep.keeps_wakes = 0;
    sleep.timeout_sec = patience_sec;
    EXPECT_EQ(tw_p2p_sleep(a, &sleep), TW_OK);
    std::thread waker([&] {
        usleep(20000);
        tw_p2p_wake(a);
    });
    EXPECT_EQ(tw_p2p_sleep(a, &sleep), TW_OK);
    waker.join();
    const std::vector<uint8_t> out(1, 1);
    std::vector<uint8_t> in(1);
    tw_p2p_request_t *received = recv(peer_a, 1, in);
    EXPECT_EQ(wait(send(peer_b, 1, out)), TW_OK);
    while (tw_p2p_test(a, received, nullptr) == TW_IN_PROGRESS && tw_time_sec() < start + patience_sec) {
        sleep.fd_is_ready = 1;
        EXPECT_GE(tw_p2p_sleep(a, &sleep), 0);
        EXPECT_FALSE(sleep.fd_is_ready);
    }
    EXPECT_EQ(in, out);
    EXPECT_LT(tw_time_sec() - start, patience_sec);
    close(fds[0]);
    close(fds[1]);
}

/* ---- meeting ------------------------------------------------------------------------------------------- */

TEST_F(P2p, NothingBlocksBeforeAnyoneHasCome)
{
    begin();
    listen_at_a();
    EXPECT_EQ(tw_p2p_accept(listener, &peer_a), TW_IN_PROGRESS);
    tw_p2p_dial_t *dial = nullptr;
    ASSERT_EQ(tw_p2p_dial_start(b, handle.data(), nullptr, &dial), TW_OK);
    EXPECT_EQ(tw_p2p_dial_test(dial, &peer_b), TW_IN_PROGRESS);
    tw_p2p_dial_cancel(dial);
    ASSERT_EQ(meet(&peer_a, &peer_b), TW_OK); /* who gave up is not in the way */
}

TEST_F(P2p, OnlyWhoHoldsTheTokenComesIn)
{
    begin();
    listen_at_a("secret");
    for (const char *token : {(const char *)nullptr, "wrong", "secret "}) {
        expect_log("cannot meet it: peer failed to authenticate");
        EXPECT_EQ(meet(&peer_a, &peer_b, token), TW_ERR_AUTH);
        EXPECT_EQ(peer_a, nullptr);
    }
    EXPECT_EQ(meet(&peer_a, &peer_b, "secret"), TW_OK);
}

/* Another listener's handle at this one's port: as if that one had ended, and this one had been given its
 * port. */
TEST_F(P2p, AnOldHandleDoesNotOpenANewDoor)
{
    begin();
    listen_at_a("secret");
    handle[40] ^= 1;
    expect_log("cannot meet it: peer failed to authenticate");
    EXPECT_EQ(meet(&peer_a, &peer_b, "secret"), TW_ERR_AUTH);
}

TEST_F(P2p, WhatIsNoHandleIsRefused)
{
    begin();
    listen_at_a();
    tw_p2p_dial_t *dial = nullptr;
    expect_log("b: that is no handle");
    const Handle good = handle;
    for (size_t at : {(size_t)0, (size_t)6}) { /* the magic; a port beyond 65535 */
        handle = good;
        handle[at] ^= 0x40;
        EXPECT_EQ(tw_p2p_dial_start(b, handle.data(), nullptr, &dial), TW_ERR_FORMAT);
    }
    handle.assign(TW_P2P_HANDLE_BYTES, 0);
    EXPECT_EQ(tw_p2p_dial_start(b, handle.data(), nullptr, &dial), TW_ERR_FORMAT);
}

TEST_F(P2p, NobodyListens)
{
    begin();
    listen_at_a();
    tw_p2p_listener_destroy(listener);
    listener = nullptr;
    expect_log("cannot meet it: Connection refused");
    tw_p2p_dial_t *dial = nullptr;
    tw_status_t status = tw_p2p_dial_start(b, handle.data(), nullptr, &dial);
    while (!status || status == TW_IN_PROGRESS) {
        status = tw_p2p_dial_test(dial, &peer_b);
    }
    EXPECT_EQ(status, TW_ERR_IO);
}

/* For longer than the timeout: a process that has other things to do is not a dead one. */
TEST_F(P2p, WhoListensButAnswersLateIsWaitedFor)
{
    begin(1, 0.1);
    listen_at_a();
    tw_p2p_dial_t *dial = nullptr;
    ASSERT_EQ(tw_p2p_dial_start(b, handle.data(), nullptr, &dial), TW_OK);
    for (const double until = tw_time_sec() + 0.5; tw_time_sec() < until;) {
        ASSERT_EQ(tw_p2p_dial_test(dial, &peer_b), TW_IN_PROGRESS);
    }
    EXPECT_TRUE(
        until([&] { return peer_a || tw_p2p_accept(listener, &peer_a) == TW_OK; })); /* which moves b on */
    EXPECT_TRUE(until([&] { return peer_b || tw_p2p_dial_test(dial, &peer_b) == TW_OK; }));
}

/* It was taken for a stranger meanwhile, and sent away: before it had said anything, or when it had said
 * HELLO and was still to prove itself. */
TEST_F(P2p, WhoDialsAndThenIsLateComesIn)
{
    for (bool says_hello : {false, true}) {
        begin(1, 0.1);
        listen_at_a();
        tw_p2p_dial_t *dial = nullptr;
        ASSERT_EQ(tw_p2p_dial_start(b, handle.data(), nullptr, &dial), TW_OK);
        if (says_hello) {
            ASSERT_EQ(tw_p2p_dial_test(dial, &peer_b), TW_IN_PROGRESS);
        }
        for (const double until = tw_time_sec() + 0.5; tw_time_sec() < until;) {
            ASSERT_EQ(tw_p2p_accept(listener, &peer_a), TW_IN_PROGRESS);
        }
        EXPECT_TRUE(until([&] { return peer_b || tw_p2p_dial_test(dial, &peer_b) == TW_OK; }));
        EXPECT_TRUE(until([&] { return peer_a || tw_p2p_accept(listener, &peer_a) == TW_OK; }));
        end();
        peer_a = peer_b = nullptr;
    }
}

/* More of them than may be pending, silent or noisy, and one that belongs. */
TEST_F(P2p, StrangersAtTheDoor)
{
    begin();
    listen_at_a();
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    uint32_t port;
    memcpy(&port, handle.data() + 4, sizeof(port));
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::vector<int> strangers;
    for (int i = 0; i < 100; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(::connect(fd, (sockaddr *)&to, sizeof(to)), 0);
        if (i % 2) {
            const char noise[] = "GET / HTTP/1.1\r\nHost: somebody else altogether\r\n\r\n";
            EXPECT_GT(::send(fd, noise, sizeof(noise), MSG_NOSIGNAL), 0);
        }
        strangers.push_back(fd);
        EXPECT_EQ(tw_p2p_accept(listener, &peer_a), TW_IN_PROGRESS);
    }
    EXPECT_EQ(meet(&peer_a, &peer_b), TW_OK);
    for (int fd : strangers) {
        close(fd);
    }
}

/* ---- failing ------------------------------------------------------------------------------------------- */

TEST_F(P2p, WhatWasSentBeforeClosingArrives)
{
    connect();
    const auto out = pattern(eager, 8);
    std::vector<std::vector<uint8_t>> in(200, std::vector<uint8_t>(eager));
    std::vector<tw_p2p_request_t *> received;
    for (auto &data : in) {
        received.push_back(recv(peer_a, 1, data));
        EXPECT_EQ(wait(send(peer_b, 1, out)), TW_OK);
    }
    tw_p2p_peer_close(peer_b);
    for (size_t i = 0; i < in.size(); i++) {
        EXPECT_EQ(wait(received[i]), TW_OK);
        EXPECT_EQ(in[i], out);
    }
}

TEST_F(P2p, WhoHasClosedIsNamed)
{
    connect();
    std::vector<uint8_t> in(chunk);
    tw_p2p_request_t *received = recv(peer_a, 1, in), *other = recv(peer_a, 2, in);
    tw_p2p_peer_close(peer_b);
    expect_log("failed: it has closed, and a message needs it");
    EXPECT_EQ(wait(received), TW_ERR_PEER);
    EXPECT_EQ(wait(other), TW_ERR_PEER);
    EXPECT_EQ(log_count("a: peer 0 at 127.0.0.1:"), 1u);
    const tw_transport_message_t message = {};
    EXPECT_EQ(tw_p2p_send(peer_a, &message, &received), TW_ERR_PEER);
    EXPECT_EQ(tw_p2p_recv(peer_a, &message, &received), TW_ERR_PEER);
}

TEST_F(P2p, WhoIsKilledIsNamed)
{
    a = make("a");
    listen_at_a();
    process::Child child([this] { return lonely(handle); });
    const double limit = tw_time_sec() + patience_sec;
    while (tw_p2p_accept(listener, &peer_a) && tw_time_sec() < limit) {
    }
    ASSERT_NE(peer_a, nullptr);
    std::vector<uint8_t> in(8);
    EXPECT_EQ(wait(recv(peer_a, 1, in)), TW_OK);
    EXPECT_EQ(in[0], 42);
    tw_p2p_request_t *received = recv(peer_a, 1, in);
    child.signal(SIGKILL);
    expect_log("failed: connection lost");
    EXPECT_EQ(wait(received), TW_ERR_PEER);
}

/* The peer breaks the rules while a long message is on its way to it: the rest is not sent, though it takes
 * more. */
TEST_F(P2p, WhatIsGivenUpIsSentNoFurther)
{
    connect(1);
    std::vector<uint8_t> out((size_t)48 << 20, 1), in(out.size());
    tw_p2p_request_t *received = recv(peer_b, 1, in), *sent = send(peer_a, 1, out);
    EXPECT_TRUE(until([&] { return sent->stage == TW_P2P_STAGE_MOVING; }));
    for (uint64_t before = 0; before < tw_p2p_peer_counts(peer_a).n_sent; (void)tw_p2p_progress(a)) {
        before = tw_p2p_peer_counts(peer_a).n_sent; /* until the socket is full */
        (void)tw_p2p_progress(a);
    }
    ASSERT_EQ(tw_p2p_test(a, sent, nullptr), TW_IN_PROGRESS);
    tw_p2p_header_t nonsense = {};
    ASSERT_EQ(tw_p2p_control_send(peer_b, &nonsense, nullptr), TW_OK);
    expect_log("failed: it sent a message of an unknown kind");
    expect_log("b: peer 0");
    const double limit = tw_time_sec() + patience_sec;
    while (tw_p2p_test(a, sent, nullptr) == TW_IN_PROGRESS && tw_time_sec() < limit) {
        (void)tw_p2p_progress(a);
    }
    const uint64_t n_sent = tw_p2p_peer_counts(peer_a).n_sent;
    for (int i = 0; i < 2000; i++) {
        (void)tw_p2p_progress(b);
        (void)tw_p2p_progress(a);
    }
    EXPECT_EQ(tw_p2p_peer_counts(peer_a).n_sent, n_sent);
    EXPECT_EQ(wait(received), TW_ERR_PEER) << "a has closed the connection";
}

/* In the midst of being met: what is half made is taken down, and the next one comes in. */
TEST_F(P2p, WhoGoesWhileBeingMetIsForgotten)
{
    begin();
    listen_at_a();
    for (int steps = 0; steps < 40; steps += 4) {
        tw_p2p_dial_t *dial = nullptr;
        tw_status_t status = tw_p2p_dial_start(b, handle.data(), nullptr, &dial);
        ASSERT_EQ(status, TW_OK);
        peer_a = peer_b = nullptr;
        for (int i = 0; i < steps && !status; i++) {
            (void)tw_p2p_accept(listener, &peer_a);
            status = tw_p2p_dial_test(dial, &peer_b) == TW_OK ? TW_ERR_CANCELED : TW_OK;
        }
        if (!status) {
            tw_p2p_dial_cancel(dial);
        }
    }
    allow_log("failed: connection lost");
    EXPECT_EQ(meet(&peer_a, &peer_b), TW_OK);
}

TEST_F(P2p, AWrongDeviceIsNamed)
{
    tw_p2p_params_t params = {};
    params.name = "a";
    params.net_tls = "tcp";
    params.net_devices = "lo,nosuch0";
    params.streams = 1;
    params.chunk_bytes = chunk;
    params.eager_bytes = eager;
    expect_log("a: TW_NET_DEVICES: \"nosuch0\": no such device");
    EXPECT_EQ(tw_p2p_create(&params, &a), TW_ERR_CONFIG);
    a = nullptr;
}

} // namespace
