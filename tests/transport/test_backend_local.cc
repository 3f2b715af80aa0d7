/* The local backend: threads of one process as ranks. */
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport/contract.h"
#include "tests/transport/local.h"

namespace
{

/* A world of local ranks; run() gives each a thread. */
class World
{
  public:
    explicit World(int world, const int *node_of = nullptr) : ranks(world)
    {
        EXPECT_EQ(tw_transport_local_create(world, node_of, ranks.data()), TW_OK);
    }
    ~World()
    {
        for (tw_transport_t *t : ranks) {
            tw_transport_destroy(t);
        }
    }
    void run(const std::function<void(tw_transport_t *&, int)> &body)
    {
        std::vector<std::thread> threads;
        for (size_t r = 0; r < ranks.size(); r++) {
            threads.emplace_back([&, r] { body(ranks[r], (int)r); });
        }
        for (std::thread &t : threads) {
            t.join();
        }
    }
    std::vector<tw_transport_t *> ranks;
};

/* What every backend does. */
class Contract : public ::testing::TestWithParam<contract::Case>
{
};

TEST_P(Contract, Holds)
{
    for (int world : {1, 2, 3, 5, 8}) {
        if (world < GetParam().min_world) {
            continue;
        }
        World w(world);
        w.run([&](tw_transport_t *&t, int rank) {
            try {
                GetParam().run(t);
            } catch (const std::exception &error) {
                ADD_FAILURE() << "rank " << rank << " of " << world << ": " << error.what();
                tw_transport_abort(t, "the test has failed");
            }
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Local, Contract, ::testing::ValuesIn(contract::cases()),
                         [](const auto &each) { return std::string(each.param.name); });

TEST(TransportLocal, CountsAtTheSenderByNode)
{
    const int node_of[5] = {7, 3, 7, 3, 9};
    World w(5, node_of);
    const int expected[5] = {0, 1, 0, 1, 2};
    tw_transport_t *t = w.ranks[1];
    EXPECT_EQ(tw_transport_n_nodes(t), 3);
    for (int r = 0; r < 5; r++) {
        EXPECT_EQ(tw_transport_node_of(t, r), expected[r]);
    }
    EXPECT_EQ(tw_transport_node_of(t, 5), -1);

    uint8_t buffer[100] = {0};
    std::vector<tw_transport_request_t *> requests;
    for (int p = 0; p < 5; p++) {
        for (int i = 0; i <= p; i++) {
            requests.push_back(contract::send(t, p, 0, buffer, 10 + (size_t)p));
        }
    }
    tw_transport_counters_t c;
    for (int p = 0; p < 5; p++) {
        tw_transport_peer_counters(t, p, &c);
        EXPECT_EQ(c.messages, (uint64_t)p + 1);
        EXPECT_EQ(c.bytes, ((uint64_t)p + 1) * (10 + (uint64_t)p));
    }
    tw_transport_in_node_counters(t, &c);
    EXPECT_EQ(c.messages, 4u);
    EXPECT_EQ(c.bytes, 4u * 13);
    tw_transport_inter_node_counters(t, &c);
    EXPECT_EQ(c.messages, 1u + 3 + 5);
    EXPECT_EQ(c.bytes, 1u * 10 + 3 * 12 + 5 * 14);
    tw_transport_peer_counters(w.ranks[0], 1, &c);
    EXPECT_EQ(c.messages, 0u);
    for (tw_transport_request_t *request : requests) {
        tw_transport_cancel(t, request);
    }
}

TEST(TransportLocal, ProgressMovesTheHookOnce)
{
    struct Hook {
        tw_transport_hook_t hook = {};
        int calls = 0, moves = 0;
    } mine;
    mine.hook.arg = &mine;
    mine.hook.move = [](void *arg, int *moved) {
        auto *self = static_cast<Hook *>(arg);
        self->calls++;
        *moved = *moved || self->moves;
    };
    World w(1);
    tw_transport_t *t = w.ranks[0];
    EXPECT_EQ(tw_transport_hook_get(t), nullptr);
    tw_transport_hook_set(t, &mine.hook);
    EXPECT_EQ(tw_transport_hook_get(t), &mine.hook);
    EXPECT_EQ(tw_transport_progress(t), TW_IN_PROGRESS);
    mine.moves = 1;
    EXPECT_EQ(tw_transport_progress(t), TW_OK);
    EXPECT_EQ(mine.calls, 2);

    /* Also when a message has moved. */
    mine.moves = 0;
    uint8_t out = 7, in = 0;
    tw_transport_request_t *received = contract::recv(t, 0, 0, &in, 1);
    tw_transport_request_t *sent = contract::send(t, 0, 0, &out, 1);
    int calls = mine.calls;
    for (tw_status_t status = TW_OK; status == TW_OK; calls++) {
        status = tw_transport_progress(t);
    }
    EXPECT_EQ(mine.calls, calls);
    tw_transport_cancel(t, sent);
    tw_transport_cancel(t, received);

    tw_transport_hook_set(t, nullptr);
    tw_transport_progress(t);
    EXPECT_EQ(mine.calls, calls);
}

/* Other threads may have held the hook's locks at the fork. */
TEST(TransportLocal, AForkedProcessDoesNotRunTheHook)
{
    int n_polls = 0, ended = -1;
    tw_transport_hook_t hook = {};
    hook.arg = &n_polls;
    hook.polls = [](void *arg) { return ++*static_cast<int *>(arg); };
    World w(1);
    tw_transport_hook_set(w.ranks[0], &hook);
    const pid_t child = fork();
    if (child == 0) {
        _exit(tw_transport_sleep(w.ranks[0], 0) == TW_ERR_INVALID ? n_polls : 2);
    }
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_EQ(ended, 0);
    tw_transport_hook_set(w.ranks[0], nullptr);
}

TEST(TransportLocal, SleepTimesOutAndWakes)
{
    World w(2);
    EXPECT_EQ(tw_transport_sleep(w.ranks[1], 0.01), TW_IN_PROGRESS);
    EXPECT_EQ(tw_transport_progress(w.ranks[1]), TW_IN_PROGRESS);
    int in = 0;
    const int out = 42;
    tw_transport_request_t *receive = contract::recv(w.ranks[1], 0, 1, &in, sizeof(int));
    std::thread sender([&] {
        EXPECT_EQ(contract::wait(w.ranks[0], contract::send(w.ranks[0], 1, 1, &out, sizeof(int))), TW_OK);
    });
    EXPECT_EQ(tw_transport_sleep(w.ranks[1], 60), TW_OK);
    EXPECT_EQ(tw_transport_test(w.ranks[1], receive), TW_OK);
    EXPECT_EQ(in, 42);
    sender.join();
}

TEST(TransportLocal, TheFirstFailureIsTheOneThatIsNamed)
{
    World w(3);
    EXPECT_EQ(tw_transport_failed_rank(w.ranks[0]), -1);
    tw_transport_abort(w.ranks[1], "first");
    tw_transport_abort(w.ranks[2], "second");
    EXPECT_EQ(tw_transport_failed_rank(w.ranks[0]), 1);
}

TEST(TransportLocal, ARankThatHasLeftFailsWhoNeedsIt)
{
    World w(3);
    int in = 0;
    const int out = 1;
    tw_transport_request_t *receive = contract::recv(w.ranks[0], 2, 1, &in, sizeof(int));
    tw_transport_request_t *send = contract::send(w.ranks[1], 0, 1, &out, sizeof(int));
    tw_transport_destroy(w.ranks[2]);
    w.ranks[2] = nullptr;

    /* Whoever does not need it goes on. */
    EXPECT_EQ(contract::wait(w.ranks[0], contract::recv(w.ranks[0], 1, 1, &in, sizeof(int))), TW_OK);
    EXPECT_EQ(contract::wait(w.ranks[1], send), TW_OK);
    EXPECT_EQ(tw_transport_failed_rank(w.ranks[0]), -1);

    EXPECT_EQ(contract::wait(w.ranks[0], receive), TW_ERR_PEER);
    EXPECT_EQ(tw_transport_failed_rank(w.ranks[1]), 2);
}

TEST(TransportLocal, DestroyCancelsWhatWasPosted)
{
    World w(2);
    int in = 5;
    const int out = 6;
    contract::recv(w.ranks[0], 1, 1, &in, sizeof(int));
    contract::send(w.ranks[0], 1, 2, &out, sizeof(int));
    tw_transport_destroy(w.ranks[0]);
    w.ranks[0] = nullptr;
    EXPECT_EQ(contract::wait(w.ranks[1], contract::send(w.ranks[1], 0, 1, &out, sizeof(int))), TW_ERR_PEER);
    EXPECT_EQ(in, 5);
}

TEST(TransportLocal, AWorldOfNobodyIsRefused)
{
    tw_transport_t *none = nullptr;
    EXPECT_EQ(tw_transport_local_create(0, nullptr, &none), TW_ERR_INVALID);
    tw_transport_destroy(nullptr);
}

TEST(TransportLocal, Names)
{
    World w(2);
    EXPECT_STREQ(tw_transport_name(w.ranks[1]), "local");
    EXPECT_NE(strstr(tw_transport_describe(w.ranks[1]), "2 threads"), nullptr);
    EXPECT_EQ(tw_transport_rank(w.ranks[1]), 1);
    EXPECT_EQ(tw_transport_world(w.ranks[1]), 2);
}

} // namespace
