/* Ranks as threads meet over real sockets, with real strangers around. */
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "tests/transport/ranks.h"
#include "transport/control/socket.h"
#include "transport/control/strangers.h"
#include "transport/monitor/monitor.h"
#include "transport/rendezvous/rendezvous.h"

namespace
{

struct Rank {
    tw_job_t job = {};
    tw_transport_options_t options = {};
    tw_msg_member_t own = {};
    tw_rendezvous_t rendezvous = {};
    tw_status_t status = TW_ERR_INTERNAL;
    tw_monitor_t *monitor = nullptr;
    std::vector<std::string> blobs;
};

class Rendezvous : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        port = free_port();
    }
    void TearDown() override
    {
        for (Rank &rank : ranks) {
            tw_rendezvous_cleanup(&rank.rendezvous);
            tw_monitor_destroy(rank.monitor);
        }
        tw::Fixture::TearDown();
    }
    void make(int world)
    {
        ranks = std::vector<Rank>((size_t)world);
        for (int r = 0; r < world; r++) {
            Rank &rank = ranks[(size_t)r];
            rank.job.rank = r;
            rank.job.world = world;
            strcpy(rank.job.master_addr, "127.0.0.1");
            rank.job.master_port = port;
            strcpy(rank.job.token, "secret");
            rank.options.join_timeout = 30;
            rank.options.handshake_timeout = 1;
            rank.options.peer_timeout = 10 + r;
            rank.options.net_chunk = 100000 + (size_t)r;
            rank.options.net_streams = 2;
            rank.own = {r, (uint64_t)(r / 2 + 100), (uint64_t)r, "1.2.3", 0, "", ""};
        }
    }
    void join(Rank &rank)
    {
        rank.status = tw_rendezvous_join(&rank.rendezvous, &rank.job, &rank.options, &rank.own);
    }
    void exchange(Rank &rank)
    {
        const std::string mine =
            "blob of " + std::to_string(rank.job.rank) + std::string((size_t)rank.job.rank, '!');
        const tw_msg_blob_t own = {(const uint8_t *)mine.data(), (uint32_t)mine.size()};
        std::vector<tw_msg_blob_t> all((size_t)rank.job.world);
        tw_monitor_params_t params = {};
        params.rank = rank.job.rank;
        params.world = rank.job.world;
        params.connections = tw_rendezvous_take_connections(&rank.rendezvous, &params.n_connections);
        params.peer_timeout_sec = params.join_timeout_sec = 30;
        ASSERT_EQ(tw_monitor_create(&params, &rank.monitor), TW_OK);
        rank.status = tw_monitor_exchange(rank.monitor, &own, all.data());
        rank.blobs.clear();
        for (const tw_msg_blob_t &blob : all) {
            rank.blobs.emplace_back((const char *)blob.data, rank.status ? 0 : blob.bytes);
        }
        tw_monitor_leave(rank.monitor, std::vector<uint64_t>((size_t)rank.job.world).data());
    }
    void run(const std::function<void(Rank &)> &body)
    {
        std::vector<std::thread> threads;
        for (Rank &rank : ranks) {
            threads.emplace_back([&] { body(rank); });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }
    /* All are in, know each other and rank 0's settings. */
    void expect_met()
    {
        for (const Rank &rank : ranks) {
            ASSERT_EQ(rank.status, TW_OK) << "rank " << rank.job.rank;
            EXPECT_EQ(rank.rendezvous.settings.peer_timeout_ms, 10000u);
            EXPECT_EQ(rank.rendezvous.settings.chunk_bytes, 100000u);
            for (const Rank &other : ranks) {
                const tw_msg_member_t &seen = rank.rendezvous.members[other.job.rank];
                EXPECT_EQ(seen.local_rank, other.own.local_rank);
                EXPECT_EQ(seen.node_id, other.own.node_id);
                EXPECT_EQ(seen.shm_id, other.own.shm_id);
            }
        }
    }
    int port;
    std::vector<Rank> ranks;
};

/* ---- strangers ----------------------------------------------------------------------------------------- */

int dial(int port, double sec = 5)
{
    int fd = -1;
    char why[256];
    const uint64_t deadline = tw_time_ns() + (uint64_t)(sec * 1e9);
    while (tw_socket_connect("127.0.0.1", port, deadline, &fd, why, sizeof(why)) != TW_OK) {
        if (tw_time_ns() > deadline) {
            return -1;
        }
    }
    return fd;
}

void say(int fd, const void *data, size_t bytes)
{
    (void)send(fd, data, bytes, MSG_NOSIGNAL);
}

std::vector<uint8_t> message(int type, uint32_t announced, size_t bytes)
{
    std::vector<uint8_t> out(TW_MSG_HEADER_BYTES + bytes, 0x55);
    const tw_msg_header_t header = {type, announced};
    tw_msg_header_write(&header, out.data());
    return out;
}

void say_message(int fd, int type, uint32_t announced, size_t bytes)
{
    const std::vector<uint8_t> raw = message(type, announced, bytes);
    say(fd, raw.data(), raw.size());
}

/* The whole handshake, with a token of our own choice; returns the answer, or the connection's error. */
tw_status_t pretend(int fd, const char *token, const tw_msg_join_t &join, int *answer)
{
    tw_connection_t connection;
    tw_connection_message_t in;
    tw_token_key_t key;
    uint8_t nonce[TW_MSG_NONCE_BYTES] = {7};
    const uint64_t deadline = tw_time_ns() + 10000000000u;
    tw_msg_writer_t out = {};
    tw_connection_init(&connection, fd);
    EXPECT_EQ(tw_token_key_init(&key, token), TW_OK);
    tw_status_t status = tw_connection_send(&connection, TW_MSG_HELLO, nonce, sizeof(nonce));
    if (!status) {
        status = tw_connection_wait(&connection, ~0u, deadline, &in);
    }
    if (!status) {
        tw_token_session_init(&connection.session, &key, TW_TOKEN_CLIENT, nonce, in.payload);
        tw_msg_join_write(&join, &out);
        status = tw_connection_send(&connection, TW_MSG_JOIN, out.data, out.bytes);
    }
    if (!status) {
        status = tw_connection_wait(&connection, ~0u, deadline, &in);
    }
    if (!status) {
        *answer = in.type;
    }
    tw_msg_writer_cleanup(&out);
    tw_connection_cleanup(&connection);
    return status;
}

const std::vector<std::function<void(int)>> strangers = {
    [](int fd) { close(fd); },
    [](int fd) {
        say(fd, "GET / HTTP/1.1\r\nHost: example\r\n\r\n", 33);
        close(fd);
    },
    [](int fd) {
        const std::vector<uint8_t> noise(100000, 0xa7);
        say(fd, noise.data(), noise.size());
        close(fd);
    },
    [](int fd) { /* cut short */
                 say_message(fd, TW_MSG_HELLO, TW_MSG_NONCE_BYTES, 5);
                 close(fd);
    },
    [](int fd) { /* longer than any HELLO */
                 say_message(fd, TW_MSG_HELLO, 0xffffffff, 64);
                 close(fd);
    },
    [](int fd) { /* shorter */
                 say_message(fd, TW_MSG_HELLO, 4, 4);
                 close(fd);
    },
    [](int fd) { /* JOIN without HELLO */
                 say_message(fd, TW_MSG_JOIN, 44, 44 + TW_TOKEN_MAC_BYTES);
                 close(fd);
    },
    [](int fd) { /* JOIN with a made-up hash */
                 say_message(fd, TW_MSG_HELLO, TW_MSG_NONCE_BYTES, TW_MSG_NONCE_BYTES);
                 say_message(fd, TW_MSG_JOIN, 44, 44 + TW_TOKEN_MAC_BYTES);
                 close(fd);
    },
    [](int fd) { /* rank 0's own message */
                 say_message(fd, TW_MSG_MEMBERS, 100, 100 + TW_TOKEN_MAC_BYTES);
                 close(fd);
    },
    [](int fd) { /* a token that is not the job's, for a rank that is still missing */
                 tw_msg_join_t join = {};
                 int answer = 0;
                 join.rank = 1;
                 join.world = 3;
                 strcpy(join.version, TW_VERSION);
                 EXPECT_LT(pretend(fd, "guess", join, &answer), 0);
                 EXPECT_EQ(answer, 0);
    },
};

/* ---- meeting ------------------------------------------------------------------------------------------- */

TEST_F(Rendezvous, WorldsOfAllSizes)
{
    for (int world : {1, 2, 3, 5, 8}) {
        make(world);
        run([&](Rank &rank) { join(rank); });
        expect_met();
        run([&](Rank &rank) { exchange(rank); });
        for (const Rank &rank : ranks) {
            ASSERT_EQ(rank.status, TW_OK);
            for (int r = 0; r < world; r++) {
                EXPECT_EQ(rank.blobs[(size_t)r],
                          "blob of " + std::to_string(r) + std::string((size_t)r, '!'));
            }
        }
        for (Rank &rank : ranks) {
            tw_rendezvous_cleanup(&rank.rendezvous);
            tw_monitor_destroy(rank.monitor);
            rank.monitor = nullptr;
        }
    }
}

TEST_F(Rendezvous, TheDeviceOnTheWay)
{
    make(2);
    ranks[1].own.node_id = 999;
    run([&](Rank &rank) { join(rank); });
    expect_met();
    for (const Rank &rank : ranks) {
        EXPECT_STREQ(rank.rendezvous.device, "lo");
        EXPECT_STREQ(rank.rendezvous.settings.device, "lo");
    }
}

TEST_F(Rendezvous, RanksComeInAnyOrder)
{
    make(4);
    run([&](Rank &rank) {
        usleep((useconds_t)(4 - rank.job.rank) * 30000); /* rank 0 last */
        join(rank);
    });
    expect_met();
}

TEST_F(Rendezvous, StrangersChangeNothing)
{
    make(3);
    std::atomic<bool> done(false);
    std::vector<int> silent; /* these just hold the line, more than rank 0 listens to at once */
    std::thread crowd([&] {
        for (size_t i = 0; !done; i++) {
            const int fd = dial(port, 0.05);
            if (fd >= 0 && i % 2 && silent.size() < 300) {
                silent.push_back(fd);
            } else if (fd >= 0) {
                strangers[i / 2 % strangers.size()](fd);
            }
        }
    });
    run([&](Rank &rank) {
        if (rank.job.rank) {
            usleep(500000); /* let them have rank 0 for themselves at first */
        }
        join(rank);
    });
    done = true;
    crowd.join();
    expect_met();
    run([&](Rank &rank) { exchange(rank); });
    for (const Rank &rank : ranks) {
        EXPECT_EQ(rank.status, TW_OK);
    }
    EXPECT_GT(silent.size(), 128u);
    for (int fd : silent) {
        close(fd);
    }
}

/* However many there are and however long they may stay, who comes next has its turn: the oldest goes. */
TEST_F(Rendezvous, TheOldestStrangerGoesFirst)
{
    const size_t n_heard = 128;
    std::vector<int> silent;
    make(3);
    for (Rank &rank : ranks) {
        rank.options.handshake_timeout = rank.options.join_timeout = 30;
    }
    std::thread rank_0([&] { join(ranks[0]); });
    while (silent.size() < n_heard) {
        silent.push_back(dial(port));
    }
    std::thread rank_1([&] { join(ranks[1]); });
    pollfd first = {silent.front(), POLLIN, 0}, last = {silent.back(), POLLIN, 0};
    EXPECT_EQ(poll(&first, 1, 5000), 1); /* hung up on, while rank 2 is awaited */
    EXPECT_EQ(poll(&last, 1, 0), 0);
    join(ranks[2]);
    rank_0.join();
    rank_1.join();
    expect_met();
    for (int fd : silent) {
        close(fd);
    }
}

/* Rank 0 stops when this rank is in and others are missing. */
TEST_F(Rendezvous, Rank0FallsSilentBeforeAllAreThere)
{
    make(3);
    ranks[1].options.peer_timeout = 0.2;
    expect_log("peer 0 failed during the start, waiting for the other ranks: timed out");
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        join(ranks[0]);
        _exit(0);
    }
    std::thread rank_1([&] { join(ranks[1]); });
    sleep(1); /* it is in by then */
    kill(child, SIGSTOP);
    const uint64_t start = tw_time_ns();
    rank_1.join();
    EXPECT_EQ(ranks[1].status, TW_ERR_TIMEOUT);
    EXPECT_LT((double)(tw_time_ns() - start) * 1e-9, ranks[1].options.join_timeout / 2);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

TEST_F(Rendezvous, Rank0LivesWhileItWaits)
{
    make(3);
    ranks[0].options.join_timeout = 3;
    ranks[1].options.peer_timeout = 0.2;
    expect_log("missing after 3 s: rank 2");
    expect_log("refuses: missing after 3 s: rank 2");
    run([&](Rank &rank) {
        if (rank.job.rank < 2) {
            join(rank);
        }
    });
    EXPECT_EQ(ranks[1].status, TW_ERR_TIMEOUT); /* rank 0 lived: it said who is missing */
}

TEST_F(Rendezvous, EveryStrangerIsNoted)
{
    capture_level(TW_LOG_INFO);
    make(2);
    ranks[0].options.handshake_timeout = 0.1;
    std::thread rank_0([&] { join(ranks[0]); });
    const auto noted = [&](size_t n) {
        const uint64_t until = tw_time_ns() + 10000000000u;
        while (log_count("dropping the connection") < n && tw_time_ns() < until) {
            usleep(1000);
        }
        EXPECT_EQ(log_count("dropping the connection"), n);
    };
    for (size_t i = 0; i < strangers.size(); i++) {
        strangers[i](dial(port));
        noted(i + 1);
    }
    const int silent = dial(port);
    noted(strangers.size() + 1);
    char byte;
    EXPECT_EQ(recv(silent, &byte, 1, 0), 0); /* hung up on */
    close(silent);
    join(ranks[1]);
    rank_0.join();
    expect_met();
}

/* What listens on the port at first is somebody else. */
TEST_F(Rendezvous, AStrangerInRank0sPlace)
{
    make(2);
    ranks[1].options.handshake_timeout = 0.2;
    const int listener = tw_socket_listen("127.0.0.1", port);
    ASSERT_GE(listener, 0);
    std::thread impostor([&] {
        for (int n = 0; n < 4;) {
            const int fd = tw_socket_accept(listener);
            if (fd < 0) {
                usleep(1000);
                continue;
            }
            switch (n++) {
            case 0:
                say(fd, "SSH-2.0-OpenSSH_9.9\r\n", 21);
                break;
            case 1:
                say_message(fd, TW_MSG_CHALLENGE, 4, 4);
                break;
            case 2: /* it takes the JOIN, but cannot sign an answer */
                say_message(fd, TW_MSG_CHALLENGE, TW_MSG_NONCE_BYTES, TW_MSG_NONCE_BYTES);
                say_message(fd, TW_MSG_ACCEPT, 0, TW_TOKEN_MAC_BYTES);
                break;
            default: /* silence */
                usleep(300000);
            }
            close(fd);
        }
        close(listener);
        join(ranks[0]);
    });
    join(ranks[1]);
    impostor.join();
    expect_met();
}

/* ---- errors -------------------------------------------------------------------------------------------- */

TEST_F(Rendezvous, WhoIsMissingIsNamed)
{
    make(9);
    for (Rank &rank : ranks) {
        rank.options.join_timeout = 2;
    }
    expect_log("missing after 2 s: rank 2, 4-6, 8");
    run([&](Rank &rank) {
        if (rank.job.rank < 2 || rank.job.rank == 3 || rank.job.rank == 7) {
            join(rank);
        }
    });
    for (int r : {0, 1, 3, 7}) {
        EXPECT_EQ(ranks[(size_t)r].status, TW_ERR_TIMEOUT) << r;
    }
    EXPECT_EQ(log_count("rank 2, 4-6, 8"), 4u); /* everyone is told */
}

/* Of Thinwire anywhere; of UCX where ranks share memory. All are told. */
TEST_F(Rendezvous, VersionsThatDifferAreRefused)
{
    const auto expect_refused = [&](const char *what, size_t n_told) {
        expect_log(what);
        run([&](Rank &rank) { join(rank); });
        for (const Rank &rank : ranks) {
            EXPECT_EQ(rank.status, TW_ERR_CONFIG) << rank.job.rank;
        }
        EXPECT_EQ(log_count(what), n_told);
        for (Rank &rank : ranks) {
            tw_rendezvous_cleanup(&rank.rendezvous);
        }
    };
    make(3);
    ranks[1].own.shm_id = ranks[2].own.shm_id = 77;
    strcpy(ranks[1].own.ucx, "1.16.0");
    strcpy(ranks[2].own.ucx, "1.19.0");
    expect_refused("are on one node, and have UCX 1.1", 3);
    ranks[2].own.shm_id = 78;
    run([&](Rank &rank) { join(rank); });
    expect_met();
}

/* What a rank would send by, and how many ranks its launcher says a node has: who, which variable, and both
 * values. */
TEST_F(Rendezvous, SettingsThatDifferAreNamed)
{
    const auto expect_refused = [&](const std::string &before, const std::string &after) {
        SCOPED_TRACE(after);
        expect_log(before);
        expect_log(after);
        run([&](Rank &rank) { join(rank); });
        for (Rank &rank : ranks) {
            EXPECT_EQ(rank.status, TW_ERR_CONFIG) << rank.job.rank;
            tw_rendezvous_cleanup(&rank.rendezvous);
        }
        EXPECT_EQ(log_count(after), 2u);
    };
    make(2);
    strcpy(ranks[0].own.net_tls, "tcp");
    strcpy(ranks[1].own.net_tls, "rc,ud");
    expect_refused("TW_NET_TLS is rc,ud on rank 1 (127.0.0.1:", "), and tcp on rank 0");
    strcpy(ranks[1].own.net_tls, "tcp");
    strcpy(ranks[0].own.node_tls, "posix");
    strcpy(ranks[1].own.node_tls, "sysv");
    run([&](Rank &rank) { join(rank); }); /* not on one node */
    expect_met();
    ranks[1].own.shm_id = ranks[0].own.shm_id;
    for (Rank &rank : ranks) {
        tw_rendezvous_cleanup(&rank.rendezvous);
    }
    expect_refused("ranks 0 and 1 (127.0.0.1:", "are on one node, and have TW_NODE_TLS=posix and sysv");
    strcpy(ranks[1].own.node_tls, "posix");
    strcpy(ranks[1].own.ucx, "none");
    ranks[0].own.local_world = 2;
    ranks[1].own.local_world = 1;
    expect_refused("are on one node, and their launcher says that it has 2 and 1 ranks",
                   "(LOCAL_WORLD_SIZE)");
}

/* However many come, and however fast: some lines, and how many more there would have been. */
TEST_F(Rendezvous, StrangersDoNotFillTheLog)
{
    capture_level(TW_LOG_INFO);
    make(2);
    std::thread rank_0([&] { join(ranks[0]); });
    for (int i = 0; i < 300; i++) {
        const int fd = dial(port);
        say(fd, "nothing that makes sense", 24);
        close(fd);
    }
    join(ranks[1]);
    rank_0.join();
    EXPECT_EQ(ranks[0].status, TW_OK);
    EXPECT_GE(log_count("dropping the connection from"), 1u);
    EXPECT_LE(log_count("dropping the connection from"), 60u); /* a busy machine takes several spans */
}

TEST(StrangersLog, SaysHowManyWereLeftOut)
{
    tw_strangers_log_t log = {};
    char more[TW_STRANGERS_MORE_BYTES];
    int n = 0;
    for (int i = 0; i < 100; i++) {
        n += tw_strangers_may_log(&log, 5, more);
        EXPECT_STREQ(more, "");
    }
    EXPECT_EQ(n, TW_STRANGERS_LINES);
    EXPECT_EQ(tw_strangers_may_log(&log, 5 + TW_STRANGERS_SPAN_NS, more), 1);
    EXPECT_STREQ(more, " (80 more lines left out)");
    EXPECT_EQ(tw_strangers_may_log(&log, 6 + TW_STRANGERS_SPAN_NS, more), 1);
    EXPECT_STREQ(more, "");
}

TEST_F(Rendezvous, AnotherThinwireIsRefused)
{
    const struct {
        const char *version, *said;
    } others[] = {{"9.9.9", "has Thinwire 9.9.9, rank 0 has " TW_VERSION},
                  {"", "has Thinwire of an older version, rank 0 has " TW_VERSION}};
    for (const auto &other : others) {
        make(2);
        std::thread rank_0([&] { join(ranks[0]); });
        tw_msg_join_t join = {};
        int answer = 0;
        join.rank = 1;
        join.world = 2;
        strcpy(join.version, other.version);
        expect_log(std::string("rank 1 (127.0.0.1:"));
        EXPECT_EQ(pretend(dial(port), "secret", join, &answer), TW_OK);
        EXPECT_EQ(answer, TW_MSG_REJECT);
        rank_0.join();
        EXPECT_EQ(ranks[0].status, TW_ERR_CONFIG);
        EXPECT_EQ(log_count(other.said), 1u);
        tw_rendezvous_cleanup(&ranks[0].rendezvous);
    }
}

TEST_F(Rendezvous, NoRank0)
{
    make(2);
    ranks[1].options.join_timeout = 0.3;
    expect_log("rank 1: could not join the job within 0.3 s; last attempt: 127.0.0.1 port");
    join(ranks[1]);
    EXPECT_EQ(ranks[1].status, TW_ERR_TIMEOUT);
}

/* The variable that says where rank 0 is has its name in the message. */
TEST_F(Rendezvous, AHostThatHasNoAddressIsNamedWithItsVariable)
{
    make(2);
    strcpy(ranks[1].job.master_addr, "no such host");
    ranks[1].options.join_timeout = 0.3;
    expect_log("last attempt: no such host: ");
    join(ranks[1]);
    EXPECT_EQ(ranks[1].status, TW_ERR_TIMEOUT);
    EXPECT_EQ(log_count("(is MASTER_ADDR rank 0's host?)"), 1u);
}

TEST_F(Rendezvous, WrongToken)
{
    make(2);
    for (Rank &rank : ranks) {
        rank.options.join_timeout = 0.6;
    }
    strcpy(ranks[1].job.token, "Secret");
    expect_log("rank 0: missing after 0.6 s: rank 1; whoever came from 127.0.0.1:");
    expect_log(" has another TW_JOB_TOKEN (");
    expect_log("is TW_JOB_TOKEN the same on all ranks?");
    run([&](Rank &rank) { join(rank); });
    for (const Rank &rank : ranks) {
        EXPECT_EQ(rank.status, TW_ERR_TIMEOUT);
    }
}

TEST_F(Rendezvous, AnotherWorldNamesBoth)
{
    make(3);
    ranks[2].job.world = 4;
    expect_log("takes part in a world of 4, rank 0 in one of 3");
    run([&](Rank &rank) {
        if (rank.job.rank == 2) {
            usleep(200000); /* rank 1 is in by then, and is told */
        }
        join(rank);
    });
    for (const Rank &rank : ranks) {
        EXPECT_EQ(rank.status, TW_ERR_CONFIG) << rank.job.rank;
    }
    EXPECT_EQ(log_count("a world of 4"), 3u);
}

TEST_F(Rendezvous, ARankTwice)
{
    make(3);
    ranks[2].job.rank = 1;
    expect_log("two processes claim rank 1");
    run([&](Rank &rank) { join(rank); });
    EXPECT_EQ(ranks[0].status, TW_ERR_CONFIG);
    EXPECT_EQ(ranks[1].status, TW_ERR_CONFIG);
    EXPECT_EQ(ranks[2].status, TW_ERR_CONFIG);
}

TEST_F(Rendezvous, ARankOutOfRange)
{
    for (uint32_t wrong : {0u, 2u, 0x80000000u}) {
        make(2);
        expect_log(wrong ? "in a world of 2" : "claims rank 0");
        std::thread rank_0([&] { join(ranks[0]); });
        tw_msg_join_t claim = {};
        strcpy(claim.version, TW_VERSION);
        strcpy(claim.who.ucx, "1.2.3");
        int answer = 0;
        claim.rank = wrong;
        claim.world = 2;
        EXPECT_EQ(pretend(dial(port), "secret", claim, &answer), TW_OK);
        EXPECT_EQ(answer, TW_MSG_REJECT);
        rank_0.join();
        EXPECT_EQ(ranks[0].status, TW_ERR_CONFIG);
        tw_rendezvous_cleanup(&ranks[0].rendezvous);
    }
}

/* A rank that has joined and is gone again may come once more. */
TEST_F(Rendezvous, ASecondTry)
{
    capture_level(TW_LOG_INFO);
    make(3);
    std::thread rank_0([&] { join(ranks[0]); });
    tw_msg_join_t claim = {};
    strcpy(claim.version, TW_VERSION);
    strcpy(claim.who.ucx, "1.2.3");
    int answer = 0;
    claim.rank = 1;
    claim.world = 3;
    EXPECT_EQ(pretend(dial(port), "secret", claim, &answer), TW_OK);
    EXPECT_EQ(answer, TW_MSG_ACCEPT);
    std::thread rank_1([&] { join(ranks[1]); });
    join(ranks[2]);
    rank_1.join();
    rank_0.join();
    expect_met();
}

TEST_F(Rendezvous, ThePortIsTaken)
{
    make(2);
    ranks[0].options.join_timeout = 0.3;
    const int taken = tw_socket_listen("127.0.0.1", port);
    expect_log("TW_RENDEZVOUS_PORT chooses another");
    join(ranks[0]);
    EXPECT_EQ(ranks[0].status, TW_ERR_CONFIG);
    close(taken);
}

TEST_F(Rendezvous, ARankThatDiesAfterJoiningIsNamed)
{
    make(4);
    run([&](Rank &rank) { join(rank); });
    expect_met();
    tw_rendezvous_cleanup(&ranks[2].rendezvous);
    expect_log("peer 2 failed: it closed its connection");
    run([&](Rank &rank) {
        if (rank.job.rank != 2) {
            exchange(rank);
        }
    });
    for (int r : {0, 1, 3}) {
        EXPECT_EQ(ranks[(size_t)r].status, TW_ERR_PEER) << r;
        EXPECT_EQ(tw_monitor_failed_rank(ranks[(size_t)r].monitor), 2) << r;
    }
}

TEST_F(Rendezvous, Rank0ThatDiesAfterJoiningIsNamed)
{
    make(3);
    run([&](Rank &rank) { join(rank); });
    expect_met();
    tw_rendezvous_cleanup(&ranks[0].rendezvous);
    expect_log("peer 0 failed: it closed its connection");
    run([&](Rank &rank) {
        if (rank.job.rank) {
            exchange(rank);
        }
    });
    for (int r : {1, 2}) {
        EXPECT_EQ(ranks[(size_t)r].status, TW_ERR_PEER) << r;
        EXPECT_EQ(tw_monitor_failed_rank(ranks[(size_t)r].monitor), 0) << r;
    }
}

} // namespace
