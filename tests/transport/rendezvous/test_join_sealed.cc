/* A rendezvous and its monitors with TW_NET_ENCRYPT=y, over a wire on which somebody listens, and may change
 * what goes over it. */
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "tests/transport/ranks.h"
#include "transport/control/socket.h"
#include "transport/monitor/monitor.h"
#include "transport/rendezvous/rendezvous.h"

namespace
{

constexpr double patience_sec = 30;
const char *const secret = "what the ranks say to each other";

/* One connection after the other is passed on to `port`; what goes over it is kept. */
class Wire
{
  public:
    explicit Wire(int to)
        : listener_(tw_socket_listen("127.0.0.1", 0)), port(tw_socket_port(listener_)), to_(to),
          thread_([this] { run(); })
    {
    }
    ~Wire()
    {
        end();
        close(listener_);
    }
    void end()
    {
        stop_ = true;
        if (thread_.joinable()) {
            thread_.join();
        }
    }

  private:
    int listener_;

  public:
    const int port;
    std::string seen; /**< to be read once it has ended */
    std::atomic<int> changes{
        0}; /**< 1: of the next thing that comes from a rank, a bit is changed; 2: of rank 0 */
    std::atomic<int> repeats{0}; /**< the same: it comes twice */

  private:
    static int dial(int port)
    {
        int fd = -1;
        char why[256];
        (void)tw_socket_connect("127.0.0.1", port, tw_time_ns() + 1000000000u, &fd, why, sizeof(why));
        return fd;
    }
    bool pass(int from, int to, int direction)
    {
        char data[65536];
        const ssize_t got = recv(from, data, sizeof(data), MSG_DONTWAIT);
        if (got < 0) {
            return errno == EAGAIN;
        }
        if (got == 0) {
            (void)shutdown(to, SHUT_WR);
            return false;
        }
        seen.append(data, (size_t)got);
        int wanted = direction;
        if (changes.compare_exchange_strong(wanted, 0)) {
            data[got - 1] ^= 1;
        }
        wanted = direction;
        const int n = repeats.compare_exchange_strong(wanted, 0) ? 2 : 1;
        for (int i = 0; i < n; i++) {
            (void)send(to, data, (size_t)got, MSG_NOSIGNAL);
        }
        return true;
    }
    void run()
    {
        std::vector<std::pair<int, int>> pairs;
        while (!stop_) {
            std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
            for (const auto &pair : pairs) {
                fds.push_back({pair.first, POLLIN, 0});
                fds.push_back({pair.second, POLLIN, 0});
            }
            (void)poll(fds.data(), fds.size(), 20);
            if (fds[0].revents) {
                const int in = tw_socket_accept(listener_), out = dial(to_);
                if (in >= 0 && out >= 0) {
                    pairs.emplace_back(in, out);
                } else {
                    close(in);
                    close(out);
                }
                continue;
            }
            for (size_t i = pairs.size(); i-- > 0;) {
                const bool open = (!fds[1 + 2 * i].revents || pass(pairs[i].first, pairs[i].second, 1)) &&
                                  (!fds[2 + 2 * i].revents || pass(pairs[i].second, pairs[i].first, 2));
                if (!open) {
                    close(pairs[i].first);
                    close(pairs[i].second);
                    pairs.erase(pairs.begin() + (long)i);
                }
            }
        }
        for (const auto &pair : pairs) {
            close(pair.first);
            close(pair.second);
        }
    }

    std::atomic<bool> stop_{false};
    const int to_;
    std::thread thread_;
};

class Sealed : public tw::Fixture
{
  protected:
    struct Rank {
        tw_job_t job = {};
        tw_transport_options_t options = {};
        tw_rendezvous_t rendezvous = {};
        tw_status_t status = TW_ERR_INTERNAL;
        tw_monitor_t *monitor = nullptr;
    };
    void TearDown() override
    {
        end();
        tw::Fixture::TearDown();
    }
    void end()
    {
        both([](Rank &rank) {
            const uint64_t counts[2] = {};
            if (rank.monitor) {
                tw_monitor_leave(rank.monitor, counts);
            }
            tw_monitor_destroy(rank.monitor);
            rank.monitor = nullptr;
            tw_rendezvous_cleanup(&rank.rendezvous);
        });
        wire.reset();
    }
    template <typename Body>
    void both(Body body)
    {
        std::thread other([&] { body(ranks[1]); });
        body(ranks[0]);
        other.join();
    }
    void make(bool of_0, bool of_1)
    {
        listener = tw_socket_listen("127.0.0.1", 0); /* now: nobody can take the port in between */
        const int port = tw_socket_port(listener);
        wire = std::make_unique<Wire>(port);
        for (int r = 0; r < 2; r++) {
            Rank &rank = ranks[r] = Rank();
            rank.job.rank = r;
            rank.job.world = 2;
            rank.job.master_port = r ? wire->port : port;
            strcpy(rank.job.master_addr, "127.0.0.1");
            strcpy(rank.job.token, "token");
            rank.options.join_timeout = rank.options.handshake_timeout = patience_sec;
            rank.options.peer_timeout = 10;
            rank.options.net_encrypt = r ? of_1 : of_0;
        }
        ranks[0].options.listener = &listener;
    }
    void join()
    {
        both([](Rank &rank) {
            tw_msg_member_t own = {rank.job.rank, 100, 100, "1.2.3", 0, "", ""};
            rank.status = tw_rendezvous_join(&rank.rendezvous, &rank.job, &rank.options, &own);
        });
    }
    void meet(bool of_0, bool of_1)
    {
        make(of_0, of_1);
        join();
        both([](Rank &rank) {
            if (rank.status) {
                return;
            }
            tw_monitor_params_t params = {};
            params.rank = rank.job.rank;
            params.world = 2;
            params.connections = tw_rendezvous_take_connections(&rank.rendezvous, &params.n_connections);
            params.peer_timeout_sec = params.join_timeout_sec = 10;
            rank.status = tw_monitor_create(&params, &rank.monitor);
            if (!rank.status) {
                const tw_msg_blob_t own = {(const uint8_t *)secret, (uint32_t)strlen(secret)};
                tw_msg_blob_t all[2] = {};
                rank.status = tw_monitor_exchange(rank.monitor, &own, all);
                EXPECT_EQ(std::string((const char *)all[1].data, all[1].bytes), secret);
            }
        });
    }
    int failed_rank(int r)
    {
        const double until = tw_time_sec() + patience_sec;
        while (tw_monitor_failed_rank(ranks[r].monitor) < 0 && tw_time_sec() < until) {
            usleep(1000);
        }
        return tw_monitor_failed_rank(ranks[r].monitor);
    }
    Rank ranks[2];
    int listener = -1; /* rank 0 takes it when it joins */
    std::unique_ptr<Wire> wire;
};

/* Nothing that is said can be read on the wire, but for the first two messages; without sealing all of it
 * can. */
TEST_F(Sealed, NothingCanBeRead)
{
    for (bool sealed : {false, true}) {
        meet(sealed, sealed);
        for (const Rank &rank : ranks) {
            ASSERT_EQ(rank.status, TW_OK);
        }
        wire->end();
        const std::string seen = wire->seen;
        size_t n_headers = 0;
        for (size_t at = 0; (at = seen.find("TWIR", at)) != std::string::npos; at++) {
            n_headers++;
        }
        EXPECT_EQ(seen.find(secret) == std::string::npos, sealed);
        EXPECT_EQ(seen.find(TW_VERSION) == std::string::npos, sealed);
        EXPECT_EQ(n_headers == 2, sealed) << n_headers;
        expect_log(" failed: it closed its connection without a goodbye");
        for (int r : {0, 1}) {
            EXPECT_EQ(failed_rank(r), !r);
        }
        end();
    }
}

TEST_F(Sealed, WhatIsChangedOrRepeatedIsTheOthersFailure)
{
    for (int direction : {1, 2}) {
        for (bool change : {true, false}) {
            meet(true, true);
            ASSERT_EQ(ranks[0].status, TW_OK);
            ASSERT_EQ(ranks[1].status, TW_OK);
            expect_log("rank " + std::to_string(direction == 1 ? 0 : 1) + ": peer " +
                       std::to_string(direction == 1 ? 1 : 0) + " failed: peer failed to authenticate");
            expect_log(" failed: ");
            (change ? wire->changes : wire->repeats) = direction;
            EXPECT_EQ(failed_rank(direction == 1 ? 0 : 1), direction == 1 ? 1 : 0);
            end();
        }
    }
}

TEST_F(Sealed, AllSealOrNobodyDoes)
{
    for (bool of_0 : {true, false}) {
        make(of_0, !of_0);
        expect_log("rank 0: rank 1 (127.0.0.1:");
        expect_log("rank 1: rank 0 refuses: rank 1");
        join();
        EXPECT_EQ(ranks[0].status, TW_ERR_CONFIG);
        EXPECT_EQ(ranks[1].status, TW_ERR_CONFIG);
        EXPECT_EQ(log_count(of_0 ? ") lacks TW_NET_ENCRYPT=y, which rank 0 has"
                                 : ") has TW_NET_ENCRYPT=y, which rank 0 lacks"),
                  2u);
        end();
    }
}

/* The same token and nonces, and other keys. */
TEST_F(Sealed, KeysAreOfOneConnection)
{
    tw_token_key_t key;
    const uint8_t nonce[TW_MSG_NONCE_BYTES] = {};
    uint8_t pieces[2][8 + TW_SEAL_TAG_BYTES], out[8];
    ASSERT_EQ(tw_token_key_init(&key, "token"), TW_OK);
    for (auto &piece : pieces) {
        tw_token_session_t client, server;
        tw_token_share_t of_client, of_server;
        tw_token_session_init(&client, &key, TW_TOKEN_CLIENT, nonce, nonce);
        tw_token_session_init(&server, &key, TW_TOKEN_SERVER, nonce, nonce);
        tw_token_share_make(&of_client);
        tw_token_share_make(&of_server);
        const tw_token_share_t told = of_client;
        ASSERT_EQ(tw_token_session_seal(&client, TW_TOKEN_CLIENT, &of_client, of_server.open), TW_OK);
        ASSERT_EQ(tw_token_session_seal(&server, TW_TOKEN_SERVER, &of_server, told.open), TW_OK);
        tw_seal_close(client.seal[0], "8 bytes", 8, piece);
        EXPECT_EQ(tw_seal_open(server.seal[1], piece, 8, out), TW_OK);
        EXPECT_STREQ((const char *)out, "8 bytes");
        tw_seal_close(client.seal[0], "8 bytes", 8, piece);
        EXPECT_EQ(tw_seal_open(client.seal[1], piece, 8, out), TW_ERR_AUTH); /* sent back */
        tw_token_session_cleanup(&client);
        tw_token_session_cleanup(&server);
    }
    EXPECT_NE(memcmp(pieces[0], pieces[1], sizeof(pieces[0])), 0);
}

/* Both ends of a session with the same nonces, sealed; `change` sees what each has of the other. 1: what one
 * closes, the other opens. */
int fits(const std::function<void(tw_token_share_t &own, uint8_t *theirs)> &change)
{
    tw_token_key_t key;
    const uint8_t nonce[TW_MSG_NONCE_BYTES] = {};
    tw_token_session_t client, server;
    tw_token_share_t of_client, of_server;
    uint8_t piece[8 + TW_SEAL_TAG_BYTES], out[8];
    EXPECT_EQ(tw_token_key_init(&key, "token"), TW_OK);
    tw_token_session_init(&client, &key, TW_TOKEN_CLIENT, nonce, nonce);
    tw_token_session_init(&server, &key, TW_TOKEN_SERVER, nonce, nonce);
    tw_token_share_make(&of_client);
    tw_token_share_make(&of_server);
    tw_token_share_t told_client = of_server, told_server = of_client;
    change(of_client, told_client.open);
    EXPECT_EQ(tw_token_session_seal(&client, TW_TOKEN_CLIENT, &of_client, told_client.open), TW_OK);
    EXPECT_EQ(tw_token_session_seal(&server, TW_TOKEN_SERVER, &of_server, told_server.open), TW_OK);
    tw_seal_close(client.seal[0], "8 bytes", 8, piece);
    const int opens = tw_seal_open(server.seal[1], piece, 8, out) == TW_OK;
    tw_token_session_cleanup(&client);
    tw_token_session_cleanup(&server);
    return opens;
}

/* Keys are made of what neither end says, and of both public keys as they were said: of one that is another
 * point in writing alone (its top bit counts for nothing), the same would be agreed on. */
TEST_F(Sealed, KeysAreOfAllThreeParts)
{
    EXPECT_TRUE(fits([](tw_token_share_t &, uint8_t *) {}));
    EXPECT_FALSE(fits([](tw_token_share_t &own, uint8_t *) { own.secret[5] ^= 1; }));
    EXPECT_FALSE(fits([](tw_token_share_t &, uint8_t *theirs) { theirs[31] ^= 0x80; }));
    EXPECT_FALSE(fits([](tw_token_share_t &own, uint8_t *) { own.open[31] ^= 0x80; }));
}

TEST_F(Sealed, APublicKeyThatIsNone)
{
    const uint8_t none[TW_TOKEN_SHARE_BYTES] = {};
    tw_token_session_t session = {};
    tw_token_share_t share;
    tw_token_share_make(&share);
    EXPECT_EQ(tw_token_session_seal(&session, TW_TOKEN_CLIENT, &share, none), TW_ERR_AUTH);
    EXPECT_EQ(session.seal[0], nullptr);
    EXPECT_EQ(share.secret[0] | share.secret[31], 0);
    tw_token_session_cleanup(&session);
}

} // namespace
