/* The local backend: threads of one process as ranks. */
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "transport/transport.h"

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
        for (tw_transport_t *t : ranks)
            tw_transport_destroy(t);
    }
    void run(const std::function<void(tw_transport_t *, int)> &body)
    {
        std::vector<std::thread> threads;
        for (size_t r = 0; r < ranks.size(); r++)
            threads.emplace_back(body, ranks[r], (int)r);
        for (std::thread &t : threads)
            t.join();
    }
    std::vector<tw_transport_t *> ranks;
};

tw_status_t wait(tw_transport_t *t, tw_transport_request_t *request)
{
    tw_status_t status;
    while ((status = tw_transport_test(t, request)) == TW_IN_PROGRESS)
        if (tw_transport_progress(t) == TW_IN_PROGRESS)
            (void)tw_transport_sleep(t, 10);
    return status;
}

std::vector<uint8_t> pattern(size_t bytes, int seed)
{
    std::vector<uint8_t> v(bytes);
    for (size_t i = 0; i < bytes; i++)
        v[i] = (uint8_t)(i * 31 + (size_t)seed * 17 + (i >> 8));
    return v;
}

tw_transport_request_t *post_send(tw_transport_t *t, int peer, uint64_t tag, const void *buffer, size_t bytes)
{
    tw_transport_request_t *request = nullptr;
    EXPECT_EQ(tw_transport_send_post(t, peer, tag, buffer, bytes, &request), TW_OK);
    return request;
}

tw_transport_request_t *post_recv(tw_transport_t *t, int peer, uint64_t tag, void *buffer, size_t bytes)
{
    tw_transport_request_t *request = nullptr;
    EXPECT_EQ(tw_transport_recv_post(t, peer, tag, buffer, bytes, &request), TW_OK);
    return request;
}

TEST(TransportLocal, EveryoneToEveryoneOwnRankIncluded)
{
    const size_t sizes[] = {0, 1, 2, 63, 64, 1009, 65537};
    for (int world = 1; world <= 8; world++) {
        World w(world);
        w.run([&](tw_transport_t *t, int rank) {
            for (size_t bytes : sizes) {
                std::vector<std::vector<uint8_t>> in(world), out(world);
                std::vector<tw_transport_request_t *> requests;
                for (int p = 0; p < world; p++) {
                    out[p] = pattern(bytes, rank * world + p);
                    in[p].resize(bytes);
                    requests.push_back(post_recv(t, p, bytes, in[p].data(), bytes));
                }
                for (int p = 0; p < world; p++)
                    requests.push_back(post_send(t, p, bytes, out[p].data(), bytes));
                for (tw_transport_request_t *request : requests)
                    EXPECT_EQ(wait(t, request), TW_OK);
                for (int p = 0; p < world; p++)
                    EXPECT_EQ(in[p], pattern(bytes, p * world + rank));
            }
        });
    }
}

TEST(TransportLocal, EqualTagsMatchInPostingOrder)
{
    World w(2);
    w.run([](tw_transport_t *t, int rank) {
        int values[100];
        std::vector<tw_transport_request_t *> requests;
        for (int i = 0; i < 100; i++) {
            values[i] = rank ? -1 : i;
            requests.push_back(rank ? post_recv(t, 0, 7, &values[i], sizeof(int))
                                    : post_send(t, 1, 7, &values[i], sizeof(int)));
        }
        for (tw_transport_request_t *request : requests)
            EXPECT_EQ(wait(t, request), TW_OK);
        for (int i = 0; i < 100; i++)
            EXPECT_EQ(values[i], i);
    });
}

TEST(TransportLocal, TagsAndPeersSelect)
{
    World w(3);
    w.run([](tw_transport_t *t, int rank) {
        if (rank) {
            const int values[2] = {rank * 10, rank * 10 + 1};
            tw_transport_request_t *first = post_send(t, 0, 100, &values[0], sizeof(int));
            tw_transport_request_t *second = post_send(t, 0, (1ull << 48) - 1, &values[1], sizeof(int));
            EXPECT_EQ(wait(t, first), TW_OK);
            EXPECT_EQ(wait(t, second), TW_OK);
            return;
        }
        for (int peer = 2; peer > 0; peer--) {
            int value = -1;
            EXPECT_EQ(wait(t, post_recv(t, peer, (1ull << 48) - 1, &value, sizeof(int))), TW_OK);
            EXPECT_EQ(value, peer * 10 + 1);
            EXPECT_EQ(wait(t, post_recv(t, peer, 100, &value, sizeof(int))), TW_OK);
            EXPECT_EQ(value, peer * 10);
        }
    });
}

TEST(TransportLocal, AnotherSizeIsTruncated)
{
    World w(1);
    uint8_t in[8] = {1, 2, 3}, out[9] = {0};
    for (size_t bytes : {0, 7, 9}) {
        tw_transport_request_t *send = post_send(w.ranks[0], 0, 1, out, bytes);
        EXPECT_EQ(wait(w.ranks[0], post_recv(w.ranks[0], 0, 1, in, sizeof(in))), TW_ERR_TRUNCATED);
        EXPECT_EQ(wait(w.ranks[0], send), TW_OK);
        EXPECT_EQ(in[0], 1);
    }
}

TEST(TransportLocal, RefusesWhatMakesNoSense)
{
    World w(2);
    tw_transport_request_t *request = nullptr;
    int value = 0;
    EXPECT_EQ(tw_transport_send_post(w.ranks[0], 2, 0, &value, 4, &request), TW_ERR_INVALID);
    EXPECT_EQ(tw_transport_send_post(w.ranks[0], -1, 0, &value, 4, &request), TW_ERR_INVALID);
    EXPECT_EQ(tw_transport_recv_post(w.ranks[0], 0, 1ull << 48, &value, 4, &request), TW_ERR_INVALID);
    EXPECT_EQ(tw_transport_recv_post(w.ranks[0], 0, 0, nullptr, 4, &request), TW_ERR_INVALID);
    EXPECT_EQ(request, nullptr);
    tw_transport_t *none = nullptr;
    EXPECT_EQ(tw_transport_local_create(0, nullptr, &none), TW_ERR_INVALID);
    tw_transport_destroy(nullptr);
}

TEST(TransportLocal, CancelLeavesTheBufferAlone)
{
    World w(2);
    int dropped = 1, kept = 2, value = 3;
    tw_transport_cancel(w.ranks[1], post_recv(w.ranks[1], 0, 5, &dropped, sizeof(int)));
    tw_transport_request_t *send = post_send(w.ranks[0], 1, 5, &value, sizeof(int));
    EXPECT_EQ(tw_transport_test(w.ranks[0], send), TW_IN_PROGRESS);
    EXPECT_EQ(wait(w.ranks[1], post_recv(w.ranks[1], 0, 5, &kept, sizeof(int))), TW_OK);
    EXPECT_EQ(wait(w.ranks[0], send), TW_OK);
    EXPECT_EQ(dropped, 1);
    EXPECT_EQ(kept, 3);
    tw_transport_cancel(w.ranks[0], post_send(w.ranks[0], 1, 5, &value, sizeof(int)));
    tw_transport_request_t *receive = post_recv(w.ranks[1], 0, 5, &dropped, sizeof(int));
    EXPECT_EQ(tw_transport_test(w.ranks[1], receive), TW_IN_PROGRESS);
    tw_transport_cancel(w.ranks[1], receive);
}

TEST(TransportLocal, CountsAtTheSenderByNode)
{
    const int node_of[5] = {7, 3, 7, 3, 9};
    World w(5, node_of);
    const int expected[5] = {0, 1, 0, 1, 2};
    tw_transport_t *t = w.ranks[1];
    EXPECT_EQ(tw_transport_n_nodes(t), 3);
    for (int r = 0; r < 5; r++)
        EXPECT_EQ(tw_transport_node_of(t, r), expected[r]);
    EXPECT_EQ(tw_transport_node_of(t, 5), -1);

    uint8_t buffer[100] = {0};
    std::vector<tw_transport_request_t *> requests;
    for (int p = 0; p < 5; p++)
        for (int i = 0; i <= p; i++)
            requests.push_back(post_send(t, p, 0, buffer, 10 + (size_t)p));
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
    for (tw_transport_request_t *request : requests)
        tw_transport_cancel(t, request);
}

TEST(TransportLocal, SleepTimesOutAndWakes)
{
    World w(2);
    EXPECT_EQ(tw_transport_sleep(w.ranks[1], 0.01), TW_IN_PROGRESS);
    EXPECT_EQ(tw_transport_progress(w.ranks[1]), TW_IN_PROGRESS);
    int in = 0;
    const int out = 42;
    tw_transport_request_t *receive = post_recv(w.ranks[1], 0, 1, &in, sizeof(int));
    std::thread sender(
        [&] { EXPECT_EQ(wait(w.ranks[0], post_send(w.ranks[0], 1, 1, &out, sizeof(int))), TW_OK); });
    EXPECT_EQ(tw_transport_sleep(w.ranks[1], 60), TW_OK);
    EXPECT_EQ(tw_transport_test(w.ranks[1], receive), TW_OK);
    EXPECT_EQ(in, 42);
    sender.join();
}

TEST(TransportLocal, AbortReachesEveryone)
{
    World w(4);
    w.run([](tw_transport_t *t, int rank) {
        int value = 0;
        tw_transport_request_t *request = nullptr;
        if (rank == 2) {
            tw_transport_abort(t, "for the test");
        } else if (tw_transport_recv_post(t, 2, 1, &value, sizeof(int), &request) == TW_OK) {
            EXPECT_EQ(wait(t, request), TW_ERR_PEER);
        }
        EXPECT_EQ(tw_transport_failed_rank(t), 2);
        EXPECT_EQ(tw_transport_progress(t), TW_ERR_PEER);
        EXPECT_EQ(tw_transport_sleep(t, 60), TW_ERR_PEER);
        EXPECT_EQ(tw_transport_send_post(t, 0, 1, &value, sizeof(int), &request), TW_ERR_PEER);
        EXPECT_EQ(tw_transport_recv_post(t, 0, 1, &value, sizeof(int), &request), TW_ERR_PEER);
    });
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
    tw_transport_request_t *receive = post_recv(w.ranks[0], 2, 1, &in, sizeof(int));
    tw_transport_request_t *send = post_send(w.ranks[1], 0, 1, &out, sizeof(int));
    tw_transport_destroy(w.ranks[2]);
    w.ranks[2] = nullptr;

    /* Whoever does not need it goes on. */
    EXPECT_EQ(wait(w.ranks[0], post_recv(w.ranks[0], 1, 1, &in, sizeof(int))), TW_OK);
    EXPECT_EQ(wait(w.ranks[1], send), TW_OK);
    EXPECT_EQ(tw_transport_failed_rank(w.ranks[0]), -1);

    EXPECT_EQ(wait(w.ranks[0], receive), TW_ERR_PEER);
    EXPECT_EQ(tw_transport_failed_rank(w.ranks[1]), 2);
}

TEST(TransportLocal, DestroyCancelsWhatWasPosted)
{
    World w(2);
    int in = 5;
    const int out = 6;
    post_recv(w.ranks[0], 1, 1, &in, sizeof(int));
    post_send(w.ranks[0], 1, 2, &out, sizeof(int));
    tw_transport_destroy(w.ranks[0]);
    w.ranks[0] = nullptr;
    EXPECT_EQ(wait(w.ranks[1], post_send(w.ranks[1], 0, 1, &out, sizeof(int))), TW_ERR_PEER);
    EXPECT_EQ(in, 5);
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
