/* Who is alive: monitors of several ranks in one process, over socket pairs. */
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
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
        for (int fd : held) {
            if (fd >= 0) {
                close(fd);
            }
        }
        monitors.clear();
        held.clear();
    }
    /* Ranks in `mute` have a connection but no monitor: their end is in `held`. */
    void make(int world, const std::vector<int> &mute = {})
    {
        tw_channel_t *star = (tw_channel_t *)calloc((size_t)world, sizeof(tw_channel_t));
        star[0].fd = -1;
        monitors.assign((size_t)world, nullptr);
        held.assign((size_t)world, -1);
        for (int r = 1; r < world; r++) {
            int fds[2];
            ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
            connect(&star[r], fds[0], TW_TOKEN_SERVER);
            if (is_in(mute, r)) {
                held[(size_t)r] = fds[1];
                continue;
            }
            tw_channel_t *own = (tw_channel_t *)calloc(1, sizeof(tw_channel_t));
            connect(own, fds[1], TW_TOKEN_CLIENT);
            create(r, world, own, 1);
        }
        if (is_in(mute, 0)) {
            for (int r = 1; r < world; r++) {
                held[(size_t)r] = dup(star[r].fd);
                tw_channel_cleanup(&star[r]);
            }
            free(star);
        } else {
            create(0, world, star, world);
        }
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
    static void connect(tw_channel_t *channel, int fd, tw_token_side_t side)
    {
        const uint8_t nonce[TW_MSG_NONCE_BYTES] = {};
        tw_token_key_t key;
        tw_channel_init(channel, fd);
        ASSERT_EQ(tw_token_key_init(&key, "secret"), TW_OK);
        tw_token_session_init(&channel->session, &key, side, nonce, nonce);
    }
    void create(int rank, int world, tw_channel_t *channels, int n_channels)
    {
        tw_monitor_params_t params = {};
        params.rank = rank;
        params.world = world;
        params.channels = channels;
        params.n_channels = n_channels;
        params.peer_timeout_sec = timeout_sec;
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
    std::vector<tw_monitor_t *> monitors;
    std::vector<int> held;
};

TEST_F(Monitor, NothingHappensToTheLiving)
{
    make(4);
    usleep((useconds_t)(2.5 * timeout_sec * 1e6));
    for (tw_monitor_t *monitor : monitors) {
        EXPECT_EQ(tw_monitor_failed_rank(monitor), -1);
    }
}

TEST_F(Monitor, AClosedConnection)
{
    make(4, {2});
    expect_log("peer 2 failed: ");
    close(held[2]);
    held[2] = -1;
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

TEST_F(Monitor, Rank0IsLost)
{
    make(3, {0});
    expect_log("peer 0 failed: no sign of life for");
    expect_verdict({1, 2}, 0);
}

TEST_F(Monitor, GarbageFromARank)
{
    make(3, {1});
    expect_log("peer 1 failed: malformed input");
    ASSERT_EQ(write(held[1], "what is this?", 13), 13);
    expect_verdict({0, 2}, 1);
}

TEST_F(Monitor, OwnVerdictsSpread)
{
    for (int blamed : {0, 1, 2}) {
        make(3);
        expect_log("it gave the job up");
        tw_monitor_fail(monitors[1], blamed, "it gave the job up");
        EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), blamed);
        expect_verdict({0, 1, 2}, blamed);
        tw_monitor_fail(monitors[2], 2 - blamed, "too late");
        EXPECT_EQ(tw_monitor_failed_rank(monitors[2]), blamed);
        end();
    }
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

/* Rank 0 stays until the others have left, as long as they come within the timeout. */
TEST_F(Monitor, Rank0LeavesLast)
{
    uint64_t count = 0;
    make(3);
    std::thread rank_0([&] { leave(0, {1, 2, 3}); });
    EXPECT_TRUE(gone(2, 0, &count));
    EXPECT_EQ(count, 3u);
    leave(1, {0, 0, 7});
    EXPECT_TRUE(gone(2, 1, &count)); /* through rank 0 */
    EXPECT_EQ(count, 7u);
    leave(2, {0, 0, 0});
    rank_0.join();
}

/* Without rank 0 nobody says goodbye for others: a lost connection has to do. */
TEST_F(Monitor, AfterRank0HasLeft)
{
    uint64_t count = 1;
    make(3);
    leave(0, {0, 0, 0}); /* the others stay for longer than the timeout */
    usleep(200000);
    tw_monitor_suspect(monitors[1], 2);
    EXPECT_TRUE(gone(1, 2, &count));
    EXPECT_EQ(count, 0u);
    EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), -1);
}

TEST_F(Monitor, ASuspectThatSaysNothingIsFailed)
{
    make(4);
    expect_log("peer 3 failed: another rank has lost its data connection to it");
    expect_log("rank 3: this rank failed");
    tw_monitor_suspect(monitors[1], 3);
    expect_verdict({0, 1, 2, 3}, 3);
}

TEST_F(Monitor, WhoSuspectsRank0IsOut)
{
    make(3);
    expect_log("rank 2: this rank failed");
    expect_log("peer 2 failed");
    tw_monitor_suspect(monitors[2], 0);
    expect_verdict({0, 1, 2}, 2);
}

TEST_F(Monitor, ASuspectThatIsJustLeavingIsFine)
{
    make(3);
    tw_monitor_suspect(monitors[1], 2);
    leave(2, {0, 0, 0});
    usleep((useconds_t)(timeout_sec * 0.6e6));
    EXPECT_EQ(tw_monitor_failed_rank(monitors[0]), -1);
    EXPECT_EQ(tw_monitor_failed_rank(monitors[1]), -1);
}

} // namespace
