/* Who is alive: monitors of several ranks in one process, over socket pairs. */
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "transport/monitor/monitor.h"

namespace
{

constexpr double timeout_sec = 1;
/* A verdict is due within the timeout; busy cores get more. */
constexpr double patience_sec = 20;

class Monitor : public tw::Fixture
{
  protected:
    void TearDown() override
    {
        end();
        tw::Fixture::TearDown();
    }
    void end()
    {
        const std::vector<uint64_t> counts(monitors.size(), 0);
        std::vector<std::thread> threads; /* they wait for each other */
        for (tw_monitor_t *monitor : monitors) {
            threads.emplace_back([&counts, monitor] {
                if (monitor) {
                    tw_monitor_leave(monitor, counts.data());
                }
                tw_monitor_destroy(monitor);
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        for (tw_connection_t &connection : held) {
            tw_connection_cleanup(&connection);
        }
        monitors.clear();
        held.clear();
    }
    /* Ranks in `mute` have a connection but no monitor: their end is in `held`. */
    void make(int world, const std::vector<int> &mute = {})
    {
        tw_connection_t *star = (tw_connection_t *)calloc((size_t)world, sizeof(tw_connection_t));
        star[0].fd = -1;
        monitors.assign((size_t)world, nullptr);
        held.assign((size_t)world, closed());
        for (int r = 1; r < world; r++) {
            int fds[2];
            ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
            connect(&star[r], fds[0], TW_TOKEN_SERVER);
            star_fd = fds[0];
            if (is_in(mute, r)) {
                connect(&held[(size_t)r], fds[1], TW_TOKEN_CLIENT);
                continue;
            }
            tw_connection_t *own = (tw_connection_t *)calloc(1, sizeof(tw_connection_t));
            connect(own, fds[1], TW_TOKEN_CLIENT);
            create(r, world, own, 1);
        }
        if (is_in(mute, 0)) {
            for (int r = 1; r < world; r++) {
                held[(size_t)r] = star[r];
            }
            free(star);
        } else {
            create(0, world, star, world);
        }
    }
    static tw_connection_t closed()
    {
        tw_connection_t connection = {};
        connection.fd = -1;
        return connection;
    }
    static bool is_in(const std::vector<int> &list, int r)
    {
        for (int other : list) {
            if (other == r) {
                return true;
            }
        }
        return false;
    }
    static void connect(tw_connection_t *connection, int fd, tw_token_side_t side)
    {
        const uint8_t nonce[TW_MSG_NONCE_BYTES] = {};
        tw_token_key_t key;
        tw_connection_init(connection, fd);
        ASSERT_EQ(tw_token_key_init(&key, "secret"), TW_OK);
        tw_token_session_init(&connection->session, &key, side, nonce, nonce);
    }
    void create(int rank, int world, tw_connection_t *connections, int n_connections)
    {
        tw_monitor_params_t params = {};
        params.rank = rank;
        params.world = world;
        params.connections = connections;
        params.n_connections = n_connections;
        params.node_of = nodes.empty() ? nullptr : nodes.data();
        params.peer_timeout_sec = timeout;
        params.join_timeout_sec = join_timeout_sec;
        ASSERT_EQ(tw_monitor_create(&params, &monitors[(size_t)rank]), TW_OK);
    }
    int failed_rank(int r)
    {
        const uint64_t until = tw_time_ns() + (uint64_t)(patience_sec * 1e9);
        while (tw_monitor_failed_rank(monitors[(size_t)r]) < 0 && tw_time_ns() < until) {
            usleep(1000);
        }
        return tw_monitor_failed_rank(monitors[(size_t)r]);
    }
    bool gone(int at, int rank, uint64_t *count)
    {
        const uint64_t until = tw_time_ns() + (uint64_t)(patience_sec * 1e9);
        while (!tw_monitor_gone(monitors[(size_t)at], rank, count) && tw_time_ns() < until) {
            usleep(1000);
        }
        return tw_monitor_gone(monitors[(size_t)at], rank, count);
    }
    void expect_verdict(const std::vector<int> &ranks, int failed)
    {
        for (int r : ranks) {
            EXPECT_EQ(failed_rank(r), failed) << "at rank " << r;
        }
    }
    void leave(int rank, const std::vector<uint64_t> &counts)
    {
        tw_monitor_leave(monitors[(size_t)rank], counts.data());
        tw_monitor_destroy(monitors[(size_t)rank]);
        monitors[(size_t)rank] = nullptr;
    }
    /* The next message to a rank without a monitor that is no sign of life; 0: none. */
    int heard_by(int rank, tw_msg_notice_t *notice, double sec = patience_sec)
    {
        tw_connection_message_t message;
        const uint64_t until = tw_time_ns() + (uint64_t)(sec * 1e9);
        do {
            if (tw_connection_wait(&held[(size_t)rank], ~0u, until, &message)) {
                return 0;
            }
        } while (message.type == TW_MSG_HEARTBEAT);
        if (message.type >= TW_MSG_REPORT) {
            EXPECT_EQ(tw_msg_notice_parse(message.payload, message.bytes, notice), TW_OK);
        }
        return message.type;
    }
    std::vector<int> nodes; /* of each rank; empty: each its own */
    double timeout = timeout_sec, join_timeout_sec = 30;
    int star_fd = -1; /* of rank 0, to the last rank */
    std::vector<tw_monitor_t *> monitors;
    std::vector<tw_connection_t> held;
};

TEST_F(Monitor, NothingHappensToTheLiving)
{
    make(4);
    usleep((useconds_t)(2.5 * timeout_sec * 1e6));
    for (tw_monitor_t *monitor : monitors) {
        EXPECT_EQ(tw_monitor_failed_rank(monitor), -1);
    }
}

TEST_F(Monitor, NoDescriptorIsLeft)
{
    tw_monitor_params_t params = {};
    tw_monitor_t *monitor = nullptr;
    rlimit limit, none;
    params.world = 1;
    params.peer_timeout_sec = timeout_sec;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = {3, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    expect_log("cannot start the monitor: Too many open files");
    const tw_status_t status = tw_monitor_create(&params, &monitor);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(status, tw_status_from_errno(EMFILE));
}

TEST_F(Monitor, AClosedConnection)
{
    make(4, {2});
    expect_log("peer 2 failed: ");
    tw_connection_cleanup(&held[2]);
    expect_verdict({0, 1, 3}, 2);
    EXPECT_EQ(log_count("peer 2 failed"), 3u);
}

TEST_F(Monitor, Silence)
{
    make(4, {3});
    expect_log("peer 3 failed: no sign of life for");
    expect_verdict({0, 1, 2}, 3);
}

TEST_F(Monitor, OfSeveralSilentTheLowestIsNamed)
{
    make(6, {2, 3, 5});
    expect_log("peer 2 failed: no sign of life for");
    expect_verdict({0, 1, 4}, 2);
}

/* Who has left in order is no other node any more: with one node left, nobody can know whose link it was. */
TEST_F(Monitor, WhoHasLeftIsNoWitness)
{
    make(3, {1, 2});
    const uint64_t counts[3] = {};
    tw_msg_writer_t goodbye = {};
    tw_msg_goodbye_write(counts, 3, &goodbye);
    ASSERT_EQ(tw_connection_send(&held[1], TW_MSG_GOODBYE, goodbye.data, goodbye.bytes), TW_OK);
    tw_msg_writer_cleanup(&goodbye);
    uint64_t count = 0;
    ASSERT_TRUE(gone(0, 1, &count));
    tw_connection_cleanup(&held[1]);
    expect_log("peer 2 failed: no sign of life for");
    expect_verdict({0}, 2);
}

/* What nobody reads is not piled up. */
TEST_F(Monitor, WhoDoesNotReadGetsNoMoreSignsOfLife)
{
    make(2, {1});
    const int least = 1; /* the kernel makes it a few kilobytes */
    ASSERT_EQ(setsockopt(star_fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
    size_t n_sent = 0, n_read = 0;
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(4 * timeout_sec * 1e9);
    for (; tw_time_ns() < until_ns; n_sent++) {
        ASSERT_EQ(tw_connection_send(&held[1], TW_MSG_HEARTBEAT, nullptr, 0), TW_OK);
        usleep((useconds_t)(0.1 * timeout_sec * 1e6));
    }
    tw_connection_message_t message;
    while (tw_connection_wait(&held[1], ~0u, tw_time_ns() + 20000000, &message) == TW_OK) {
        n_read++;
    }
    EXPECT_GT(n_read, 0u);
    EXPECT_LT(n_read, 25u) << "of forty or so";
    expect_log("peer 1 failed: ");
    tw_connection_cleanup(&held[1]);
    expect_verdict({0}, 1);
}

/* It says where it can be reached once. */
TEST_F(Monitor, AnAddressTwiceIsAgainstTheRules)
{
    make(3, {1, 2});
    expect_log("peer 1 failed: ");
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(tw_connection_send(&held[1], TW_MSG_ADDRESS, "where", 5), TW_OK);
    }
    expect_verdict({0}, 1);
}

TEST_F(Monitor, SignsOfLifeGoFirst)
{
    make(2);
    int priority = 0;
    socklen_t bytes = sizeof(priority);
    ASSERT_EQ(getsockopt(star_fd, SOL_SOCKET, SO_PRIORITY, &priority, &bytes), 0);
    EXPECT_EQ(priority, 6);
}

/* Signs of life may wait behind data for longer than the timeout: the data are signs of life, too, to
 * whomever they come. */
class Hearer : public Monitor, public testing::WithParamInterface<size_t>
{
};

TEST_P(Hearer, WhoseDataComeIsAlive)
{
    const int mute = 9; /* a bit of the second byte */
    make(10, {mute});
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(3 * timeout_sec * 1e9);
    while (tw_time_ns() < until_ns) {
        tw_monitor_heard(monitors[GetParam()], mute);
        usleep((useconds_t)(0.02 * timeout_sec * 1e6));
    }
    EXPECT_EQ(tw_monitor_failed_rank(monitors[0]), -1);
    expect_log("peer 9 failed: no sign of life for");
    expect_verdict({0, 1, 4}, mute);
}

INSTANTIATE_TEST_SUITE_P(, Hearer, testing::Values(0, 4));

TEST_F(Monitor, Rank0WhoseDataComeIsAlive)
{
    make(2, {0});
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(3 * timeout_sec * 1e9);
    while (tw_time_ns() < until_ns) {
        tw_monitor_heard(monitors[1], 0);
        usleep((useconds_t)(0.02 * timeout_sec * 1e6));
    }
    EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), -1);
    expect_log("peer 0 failed: no sign of life for");
    expect_verdict({1}, 0);
}

/* What a silent rank has sent may wait behind the data of another, but not for ever, and not inside a
 * node. */
struct Queue {
    int mute;
    size_t hearer;
    std::vector<int> nodes;
    bool may;
};

class QueueOfOthers : public Monitor, public testing::WithParamInterface<Queue>
{
};

TEST_P(QueueOfOthers, ARankBehindItMayBeSilentForLonger)
{
    const Queue &c = GetParam();
    const double queue_sec = 5;
    timeout = 2; /* a pause of a quarter of it in this loop is as if no data came */
    nodes = c.nodes;
    make(3, {c.mute});
    const double start_sec = tw_time_sec();
    expect_log("peer " + std::to_string(c.mute) + " failed: no sign of life for");
    while (tw_monitor_failed_rank(monitors[c.hearer]) < 0 && tw_time_sec() < start_sec + patience_sec) {
        tw_monitor_heard(monitors[c.hearer], 2);
        usleep(20000);
    }
    const double sec = tw_time_sec() - start_sec;
    EXPECT_EQ(tw_monitor_failed_rank(monitors[c.hearer]), c.mute);
    if (c.may) {
        EXPECT_GT(sec, queue_sec);
    } else {
        EXPECT_LT(sec, queue_sec);
    }
}

INSTANTIATE_TEST_SUITE_P(, QueueOfOthers,
                         testing::Values(Queue{1, 0, {}, true}, Queue{0, 1, {}, true},
                                         Queue{1, 0, {0, 0, 1}, false}));

/* All other nodes at once: that is this rank's own link. */
TEST_F(Monitor, Rank0ThatHearsNobodyNamesItself)
{
    tw_msg_notice_t notice;
    make(3, {1, 2});
    expect_log("rank 0: this rank failed: no sign of life came to it from any other node for");
    expect_verdict({0}, 0);
    ASSERT_EQ(heard_by(2, &notice), TW_MSG_FAILED);
    EXPECT_EQ(notice.number, 0);
}

/* Rank 3 is stopped. The others are silent with it, but for the last beats before the verdict: it was rank
 * 0's link, unless they say that they did not run. */
class Witness : public Monitor, public testing::WithParamInterface<bool>
{
};

TEST_P(Witness, WhoDidNotRunIsNone)
{
    const bool late = GetParam();
    timeout = 4;
    make(4, {1, 2, 3});
    expect_log(late ? "peer 3 failed: no sign of life for"
                    : "no sign of life came to it from any other node for");
    usleep((useconds_t)(0.5 * timeout * 1e6));
    tw_msg_writer_t heartbeat = {};
    const tw_msg_heartbeat_t says = {late ? (uint32_t)(0.4 * timeout * 1e3) : 0, 0, nullptr};
    tw_msg_heartbeat_write(&says, &heartbeat);
    for (size_t r : {1, 2}) {
        ASSERT_EQ(tw_connection_send(&held[r], TW_MSG_HEARTBEAT, heartbeat.data, heartbeat.bytes), TW_OK);
    }
    tw_msg_writer_cleanup(&heartbeat);
    expect_verdict({0}, late ? 3 : 0);
}

INSTANTIATE_TEST_SUITE_P(, Witness, testing::Bool());

/* The others hear of a verdict before the owner does, who may end the process at once. */
TEST_F(Monitor, TheOthersAreToldFirst)
{
    const int world = 60;
    std::vector<int> all;
    for (int r = 1; r < world; r++) {
        all.push_back(r);
    }
    make(world, all);
    expect_log("peer 1 failed: ");
    tw_connection_cleanup(&held[1]);
    while (tw_monitor_failed_rank(monitors[0]) < 0) {
    }
    tw_msg_notice_t notice;
    EXPECT_EQ(heard_by(world - 1, &notice, 0), TW_MSG_FAILED);
    EXPECT_EQ(notice.number, 1);
}

/* The lower one was heard of a little later, and is not yet silent for long enough when the higher one is. */
TEST_F(Monitor, TheLowestIsNamedThoughItWasHeardOfLater)
{
    timeout = 4;
    make(4, {2, 3});
    expect_log("peer 2 failed: no sign of life for");
    usleep(20000);
    ASSERT_EQ(tw_connection_send(&held[2], TW_MSG_HEARTBEAT, nullptr, 0), TW_OK);
    expect_verdict({0, 1}, 2);
}

/* A process that did not run has heard nothing; that is not the others' silence. */
TEST_F(Monitor, TimeInWhichThisProcessWasStoppedIsNobodysSilence)
{
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        make(3);
        raise(SIGSTOP);
        usleep((useconds_t)(0.5 * timeout_sec * 1e6));
        const bool well = tw_monitor_failed_rank(monitors[0]) < 0 && tw_monitor_failed_rank(monitors[1]) < 0;
        _exit(well ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
    usleep((useconds_t)(2 * timeout_sec * 1e6));
    ASSERT_EQ(kill(child, SIGCONT), 0);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

/* ---- the exchange -------------------------------------------------------------------------------------- */

TEST_F(Monitor, WhoDoesNotSayWhereItIsIsNamed)
{
    const uint8_t byte = 7;
    const tw_msg_blob_t own = {&byte, 1};
    tw_msg_blob_t lists[3];
    join_timeout_sec = 0.3;
    make(3);
    expect_log("peer 2 failed: it did not say in time");
    expect_log("this rank failed");
    std::thread rank_1([&] {
        tw_msg_blob_t none[3];
        EXPECT_EQ(tw_monitor_exchange(monitors[1], &own, none), TW_ERR_PEER);
    });
    EXPECT_EQ(tw_monitor_exchange(monitors[0], &own, lists), TW_ERR_PEER);
    rank_1.join();
    expect_verdict({0, 1, 2}, 2);
}

TEST_F(Monitor, WhoStopsDuringTheExchangeIsNamed)
{
    const uint8_t byte = 7;
    const tw_msg_blob_t own = {&byte, 1};
    tw_msg_blob_t lists[2];
    make(2, {1});
    expect_log("peer 1 failed: no sign of life for");
    EXPECT_EQ(tw_monitor_exchange(monitors[0], &own, lists), TW_ERR_PEER);
    expect_verdict({0}, 1);
}

/* ---- rank 0 -------------------------------------------------------------------------------------------- */

TEST_F(Monitor, Rank0IsLost)
{
    make(3, {0});
    expect_log("peer 0 failed: no sign of life for");
    expect_verdict({1, 2}, 0);
}

/* It has lost rank 0, which others have not. */
TEST_F(Monitor, WhoAloneLosesRank0IsOut)
{
    tw_msg_writer_t notice = {};
    make(4, {2});
    expect_log("peer 2 failed: it was cut off from rank 0");
    tw_msg_notice_write(0, "no sign of life for 0.7 s", &notice);
    ASSERT_EQ(tw_connection_send(&held[2], TW_MSG_LOST, notice.data, notice.bytes), TW_OK);
    tw_msg_writer_cleanup(&notice);
    expect_verdict({0, 1, 3}, 2);
}

/* With one other node nobody can know; who complains has its verdict, and the others join in. */
TEST_F(Monitor, WithOneOtherNodeWhoLosesRank0IsBelieved)
{
    tw_msg_writer_t notice = {};
    nodes = {0, 1, 1, 0};
    make(4, {2});
    expect_log("peer 0 failed: no sign of life for 0.7 s");
    expect_log("rank 0: this rank failed");
    tw_msg_notice_write(0, "no sign of life for 0.7 s", &notice);
    ASSERT_EQ(tw_connection_send(&held[2], TW_MSG_LOST, notice.data, notice.bytes), TW_OK);
    tw_msg_writer_cleanup(&notice);
    expect_verdict({0, 1, 3}, 0);
}

/* A rank that has left complains of nobody. */
TEST_F(Monitor, WhoHasLeftMayLoseRank0)
{
    const uint64_t counts[3] = {};
    tw_msg_writer_t goodbye = {}, notice = {};
    uint64_t count;
    make(3, {2});
    tw_msg_goodbye_write(counts, 3, &goodbye);
    tw_msg_notice_write(0, "no sign of life for 0.7 s", &notice);
    ASSERT_EQ(tw_connection_send(&held[2], TW_MSG_GOODBYE, goodbye.data, goodbye.bytes), TW_OK);
    ASSERT_EQ(tw_connection_send(&held[2], TW_MSG_LOST, notice.data, notice.bytes), TW_OK);
    tw_msg_writer_cleanup(&goodbye);
    tw_msg_writer_cleanup(&notice);
    EXPECT_TRUE(gone(1, 2, &count));
    tw_connection_cleanup(&held[2]);
    usleep((useconds_t)(0.3 * timeout_sec * 1e6));
    EXPECT_EQ(tw_monitor_failed_rank(monitors[0]), -1);
}

/* What it says of its own: it has lost rank 0, and says so before it ends. */
TEST_F(Monitor, WhoLosesRank0SaysSo)
{
    tw_msg_notice_t notice;
    make(2, {0});
    expect_log("rank 1: peer 0 failed: no sign of life for");
    expect_verdict({1}, 0);
    ASSERT_EQ(heard_by(1, &notice), TW_MSG_LOST);
}

TEST_F(Monitor, GarbageFromARank)
{
    make(3, {1});
    expect_log("peer 1 failed: malformed input");
    ASSERT_EQ(write(held[1].fd, "what is this?", 13), 13);
    expect_verdict({0, 2}, 1);
    /* And nobody listens to it any more. */
    char data[256];
    ssize_t got;
    do {
        pollfd end = {held[1].fd, POLLIN, 0};
        ASSERT_EQ(poll(&end, 1, (int)(1000 * patience_sec)), 1);
        got = recv(held[1].fd, data, sizeof(data), 0);
    } while (got > 0);
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << errno;
}

/* A number that is no rank's is not an index. */
TEST_F(Monitor, ARankThatIsNotThereIsNotBlamed)
{
    for (int32_t number : {-1, 3, INT32_MAX}) {
        for (tw_msg_type_t type : {TW_MSG_ABORT, TW_MSG_REPORT, TW_MSG_LOST}) {
            make(3, {1});
            expect_log("peer 1 failed: malformed input");
            tw_msg_writer_t notice = {};
            tw_msg_notice_write(number, "it was somebody else", &notice);
            ASSERT_EQ(tw_connection_send(&held[1], type, notice.data, notice.bytes), TW_OK);
            tw_msg_writer_cleanup(&notice);
            expect_verdict({0, 2}, 1);
            end();
        }
    }
}

TEST_F(Monitor, Rank0NamesOnlyRanksThatAreThere)
{
    for (int what = 0; what < 4; what++) {
        make(3, {0});
        expect_log("peer 0 failed: malformed input");
        tw_msg_writer_t message = {};
        if (what < 2) {
            tw_msg_notice_write(what == 0 ? -1 : 3, "it was somebody else", &message);
        } else { /* or one that has left and is still here */
            tw_msg_gone_write(what == 2 ? 3 : 2, what == 2 ? 0 : UINT64_MAX, &message);
        }
        for (size_t r : {1, 2}) {
            ASSERT_EQ(tw_connection_send(&held[r], what < 2 ? TW_MSG_FAILED : TW_MSG_GONE, message.data,
                                         message.bytes),
                      TW_OK);
        }
        tw_msg_writer_cleanup(&message);
        expect_verdict({1, 2}, 0);
        end();
    }
}

TEST_F(Monitor, OwnVerdictsSpread)
{
    for (int blamed : {0, 1, 2}) {
        make(3);
        expect_log("it gave the job up");
        tw_monitor_fail(monitors[1], blamed, "it gave the job up");
        expect_verdict({0, 1, 2}, blamed);
        tw_monitor_fail(monitors[2], 2 - blamed, "too late");
        usleep(10000);
        EXPECT_EQ(tw_monitor_failed_rank(monitors[2]), blamed);
        end();
    }
}

/* All survivors name the same rank, so what one of them finds counts once rank 0 says so. */
TEST_F(Monitor, Rank0HasTheLastWord)
{
    tw_msg_notice_t notice;
    tw_msg_writer_t verdict = {};
    make(4, {0});
    expect_log("peer 3 failed: it was first");
    expect_log("rank 3: this rank failed: it was first");
    tw_monitor_fail(monitors[1], 2, "it has left");
    ASSERT_EQ(heard_by(1, &notice), TW_MSG_ABORT);
    EXPECT_EQ(notice.number, 2);
    EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), -1);
    tw_msg_notice_write(3, "it was first", &verdict);
    for (int r : {1, 2, 3}) {
        ASSERT_EQ(tw_connection_send(&held[(size_t)r], TW_MSG_FAILED, verdict.data, verdict.bytes), TW_OK);
    }
    tw_msg_writer_cleanup(&verdict);
    expect_verdict({1, 2, 3}, 3);
}

TEST_F(Monitor, TheEventWakesItsOwner)
{
    make(2);
    struct pollfd event = {tw_monitor_event_fd(monitors[1]), POLLIN, 0};
    EXPECT_EQ(poll(&event, 1, 0), 0);
    expect_log("for the test");
    tw_monitor_fail(monitors[0], 0, "for the test");
    EXPECT_EQ(poll(&event, 1, (int)(patience_sec * 1000)), 1);
    tw_monitor_clear_event(monitors[1]);
    EXPECT_EQ(poll(&event, 1, 0), 0);
    EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), 0);
}

TEST_F(Monitor, AGoodbyeIsNoFailure)
{
    uint64_t count = 0;
    make(3);
    leave(1, {10, 11, 12});
    EXPECT_TRUE(gone(0, 1, &count));
    EXPECT_EQ(count, 10u);
    EXPECT_TRUE(gone(2, 1, &count));
    EXPECT_EQ(count, 12u);
    EXPECT_FALSE(tw_monitor_gone(monitors[0], 2, &count));
    usleep((useconds_t)(1.5 * timeout_sec * 1e6));
    EXPECT_EQ(tw_monitor_failed_rank(monitors[0]), -1);
    EXPECT_EQ(tw_monitor_failed_rank(monitors[2]), -1);
    leave(2, {0, 0, 0});
    leave(0, {0, 0, 0});
}

/* Rank 0 stays until the others have left, also for longer than the timeout, and says why. */
TEST_F(Monitor, Rank0LeavesLast)
{
    uint64_t count = 0;
    make(3);
    expect_log(
        "rank 0: it has left the job, and stays to watch over 2 ranks that have not: rank 1 and others");
    tw_monitor_leave(monitors[0], std::vector<uint64_t>{1, 2, 3}.data());
    EXPECT_TRUE(gone(2, 0, &count));
    EXPECT_EQ(count, 3u);
    usleep((useconds_t)(2 * timeout_sec * 1e6));
    EXPECT_FALSE(tw_monitor_has_left(monitors[0]));
    leave(1, {0, 0, 7});
    EXPECT_TRUE(gone(2, 1, &count)); /* through rank 0 */
    EXPECT_EQ(count, 7u);
    EXPECT_FALSE(tw_monitor_has_left(monitors[0]));
    leave(2, {0, 0, 0});
    tw_monitor_destroy(monitors[0]);
    monitors[0] = nullptr;
}

/* A failure after that is still seen, and named by all. */
TEST_F(Monitor, AFailureAfterRank0HasLeft)
{
    for (bool silent : {false, true}) {
        make(4, {2});
        expect_log("peer 2 failed: ");
        tw_monitor_leave(monitors[0], std::vector<uint64_t>(4).data());
        uint64_t count;
        EXPECT_TRUE(gone(1, 0, &count));
        if (!silent) {
            tw_connection_cleanup(&held[2]);
        }
        expect_verdict({0, 1, 3}, 2);
        end();
    }
}

/* Without rank 0 nobody watches: its end before the others' is a failure, goodbye or not. */
TEST_F(Monitor, Rank0EndsBeforeTheOthersHaveLeft)
{
    tw_msg_writer_t goodbye = {};
    make(3, {0});
    expect_log("peer 0 failed: ");
    tw_msg_gone_write(0, 0, &goodbye);
    for (int r : {1, 2}) {
        ASSERT_EQ(tw_connection_send(&held[(size_t)r], TW_MSG_GONE, goodbye.data, goodbye.bytes), TW_OK);
    }
    tw_msg_writer_cleanup(&goodbye);
    uint64_t count;
    EXPECT_TRUE(gone(1, 0, &count));
    EXPECT_TRUE(gone(2, 0, &count));
    for (int r : {1, 2}) {
        tw_connection_cleanup(&held[(size_t)r]);
    }
    expect_verdict({1, 2}, 0);
}

TEST_F(Monitor, ASuspectThatSaysNothingIsFailed)
{
    make(4);
    expect_log("peer 3 failed: rank 1 has lost its data connection to it: closed");
    expect_log("rank 3: this rank failed");
    tw_monitor_suspect(monitors[1], 3, "closed");
    expect_verdict({0, 1, 2, 3}, 3);
}

TEST_F(Monitor, WhoSuspectsRank0IsOut)
{
    make(3);
    expect_log("rank 2: this rank failed");
    expect_log("peer 2 failed");
    tw_monitor_suspect(monitors[2], 0, "closed");
    expect_verdict({0, 1, 2}, 2);
}

TEST_F(Monitor, ASuspectThatIsJustLeavingIsFine)
{
    make(3);
    tw_monitor_suspect(monitors[1], 2, "closed");
    leave(2, {0, 0, 0});
    usleep((useconds_t)(timeout_sec * 0.6e6));
    EXPECT_EQ(tw_monitor_failed_rank(monitors[0]), -1);
    EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), -1);
}

} // namespace
