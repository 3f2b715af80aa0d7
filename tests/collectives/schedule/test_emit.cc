/* The executor: order, windows, memory, errors. */
#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "transport/backend.h"

namespace
{

/* Two ranks, driven by one thread: what the executor does is the same in every run. */
class Sched : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(tw_transport_local_create(2, nullptr, transports), TW_OK);
        for (int r = 0; r < 2; r++) {
            ASSERT_EQ(tw_scratch_create(1 << 20, &scratch[r]), TW_OK);
        }
        create(4);
    }
    void TearDown() override
    {
        for (int r = 0; r < 2; r++) {
            tw_sched_destroy(sched[r]);
            EXPECT_EQ(tw_scratch_used_bytes(scratch[r]), 0u);
            tw_scratch_destroy(scratch[r]);
            tw_transport_destroy(transports[r]);
        }
        tw::Fixture::TearDown();
    }
    void create(int window)
    {
        for (int r = 0; r < 2; r++) {
            tw_sched_destroy(sched[r]);
            tw_sched_env_t env = {transports[r], scratch[r], peers, r, 2, window, 5ull << 24, nullptr};
            ASSERT_EQ(tw_sched_create(&env, &sched[r]), TW_OK);
        }
    }
    const tw_view_t *view_of(std::vector<int> &v)
    {
        views.emplace_back();
        extents.emplace_back();
        tw_view_init(&views.back(), sizeof(int), &extents.back());
        tw_view_append(&views.back(), v.data(), v.size());
        return &views.back();
    }
    tw_status_t step(int r)
    {
        int moved = 0;
        tw_status_t status = tw_sched_step(sched[r], &moved);
        return status == TW_IN_PROGRESS ? tw_sched_compute_one(sched[r], &moved) : status;
    }
    /* A task that notes its number. */
    struct Note {
        std::vector<int> *log;
        int number;
        tw_status_t status;
    };
    static tw_status_t note(tw_sched_t *, const void *arg)
    {
        const Note *n = (const Note *)arg;
        n->log->push_back(n->number);
        return n->status;
    }
    tw_task_t add_note(int r, int number, tw_status_t status = TW_OK)
    {
        Note *n = (Note *)tw_sched_alloc(sched[r], sizeof(Note));
        *n = {&log, number, status};
        return tw_sched_compute(sched[r], note, n);
    }

    tw_span_t *span_arg(tw_sbuf_t buffer, size_t bytes)
    {
        tw_span_t *span = (tw_span_t *)tw_sched_alloc(sched[0], sizeof(*span));
        *span = tw_span_buffer(buffer, 0, bytes);
        return span;
    }

    const int peers[2] = {0, 1};
    tw_transport_t *transports[2];
    tw_scratch_t *scratch[2];
    tw_sched_t *sched[2] = {};
    std::deque<tw_view_t> views;
    std::deque<tw_view_extent_t> extents;
    std::vector<int> log;
};

TEST_F(Sched, NothingIsDoneAtOnce)
{
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    EXPECT_EQ(step(0), TW_OK);
}

TEST_F(Sched, TasksWaitForWhatTheyArePutAfter)
{
    tw_task_t a = add_note(0, 1), b = add_note(0, 2), c = add_note(0, 3), all = add_note(0, 4);
    tw_task_t last = add_note(0, 5);
    tw_sched_after(sched[0], c, a);
    tw_sched_after(sched[0], all, b);
    tw_sched_after(sched[0], all, c);
    tw_sched_after(sched[0], last, all);
    tw_sched_after(sched[0], last, TW_TASK_NONE);
    tw_sched_after(sched[0], TW_TASK_NONE, all);
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    for (int i = 0; i < 5; i++) {
        step(0);
    }
    EXPECT_EQ(step(0), TW_OK);
    EXPECT_EQ(log, (std::vector<int>{1, 2, 3, 4, 5}));
}

TEST_F(Sched, WorkThatASendWaitsForComesFirst)
{
    std::vector<int> data(1);
    add_note(0, 1);
    tw_task_t chain = add_note(0, 2), feed = add_note(0, 3);
    tw_task_t send = tw_sched_send(sched[0], 1, tw_span_view(view_of(data), 0, 1));
    tw_sched_after(sched[0], feed, chain);
    tw_sched_after(sched[0], send, feed);
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    for (int i = 0; i < 3; i++) {
        step(0);
    }
    EXPECT_EQ(log, (std::vector<int>{2, 3, 1}));
}

TEST_F(Sched, AnEarlierTaskCannotWaitForALaterOne)
{
    tw_task_t a = add_note(0, 1), b = add_note(0, 2);
    expect_log("cannot wait for task");
    tw_sched_after(sched[0], a, b);
    EXPECT_EQ(tw_sched_seal(sched[0]), TW_ERR_INTERNAL);
}

TEST_F(Sched, TheFirstErrorSticks)
{
    tw_sched_fail(sched[0], TW_ERR_NO_MEMORY);
    tw_sched_fail(sched[0], TW_ERR_INVALID);
    EXPECT_EQ(add_note(0, 1), TW_TASK_NONE);
    EXPECT_EQ(tw_sched_send(sched[0], 1, tw_span_signal()), TW_TASK_NONE);
    EXPECT_EQ(tw_sched_buffer(sched[0], 8), TW_SBUF_NONE);
    EXPECT_EQ(tw_sched_seal(sched[0]), TW_ERR_NO_MEMORY);
}

TEST_F(Sched, AFailedComputationEndsIt)
{
    std::vector<int> data(3);
    tw_sched_recv(sched[0], 1, tw_span_view(view_of(data), 0, 3));
    tw_sbuf_t buffer = tw_sched_buffer(sched[0], 100);
    tw_sched_recv(sched[0], 1, tw_span_buffer(buffer, 0, 100));
    add_note(0, 1, TW_ERR_FORMAT);
    add_note(0, 2);
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    EXPECT_EQ(step(0), TW_ERR_FORMAT);
    EXPECT_EQ(step(0), TW_ERR_FORMAT);
    EXPECT_EQ(log, (std::vector<int>{1}));
}

/* Messages match in the order in which both sides emit them, never more than the window at once. */
TEST_F(Sched, MessagesKeepTheirOrderWithinTheWindow)
{
    constexpr int N = 50;
    uint64_t sent_before = 0;
    for (int window : {1, 3, 100}) {
        std::vector<int> from(N), to(N);
        create(window);
        for (int i = 0; i < N; i++) {
            from[(size_t)i] = i * i;
        }
        const tw_view_t *in = view_of(from), *out = view_of(to);
        for (int i = 0; i < N; i++) {
            tw_sched_send(sched[0], 1, tw_span_view(in, (size_t)i, 1));
            tw_sched_recv(sched[1], 0, tw_span_view(out, (size_t)i, 1));
        }
        EXPECT_EQ(tw_sched_send(sched[0], 1, tw_span_view(in, 0, 0)), TW_TASK_NONE);
        ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
        ASSERT_EQ(tw_sched_seal(sched[1]), TW_OK);
        EXPECT_EQ(tw_sched_sent_bytes(sched[0], 1), N * sizeof(int));
        EXPECT_EQ(tw_sched_sent_bytes(sched[1], 0), 0u);
        EXPECT_EQ(step(0), TW_IN_PROGRESS);
        EXPECT_EQ(step(0), TW_IN_PROGRESS);
        tw_transport_counters_t sent;
        tw_transport_peer_counters(transports[0], 1, &sent);
        EXPECT_EQ(sent.messages - sent_before, (uint64_t)std::min(window, N));
        while (step(1) != TW_OK) {
            step(0);
        }
        while (step(0) != TW_OK) {
            ;
        }
        EXPECT_EQ(to, from);
        sent_before += N;
    }
}

TEST_F(Sched, SignalsAreMessagesOfNoBytes)
{
    tw_task_t heard = tw_sched_recv(sched[1], 0, tw_span_signal());
    tw_sched_after(sched[1], add_note(1, 7), heard);
    tw_sched_send(sched[0], 1, tw_span_signal());
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    ASSERT_EQ(tw_sched_seal(sched[1]), TW_OK);
    step(1);
    EXPECT_TRUE(log.empty());
    step(0);
    while (step(1) != TW_OK) {
        ;
    }
    EXPECT_EQ(log, (std::vector<int>{7}));
    EXPECT_EQ(step(0), TW_OK);
}

/* A buffer exists while somebody uses it: a chain through many buffers holds two at a time. */
TEST_F(Sched, BuffersAreGivenBackAsSoonAsTheyCan)
{
    constexpr size_t BYTES = 1 << 16;
    constexpr int N = 20;
    tw_task_t before = TW_TASK_NONE;
    tw_sbuf_t last = TW_SBUF_NONE;
    for (int i = 0; i < N; i++) {
        tw_sbuf_t buffer = tw_sched_buffer(sched[0], BYTES);
        tw_task_t task = tw_sched_compute(
            sched[0],
            [](tw_sched_t *s, const void *arg) {
                return tw_sched_at(s, *(const tw_span_t *)arg, nullptr) ? TW_OK : TW_ERR_NO_MEMORY;
            },
            span_arg(buffer, BYTES));
        tw_sched_use(sched[0], task, buffer);
        tw_sched_use(sched[0], task, last);
        tw_sched_after(sched[0], task, before);
        before = task;
        last = buffer;
    }
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    EXPECT_EQ(tw_scratch_used_bytes(scratch[0]), 0u);
    while (step(0) != TW_OK) {
        ;
    }
    EXPECT_EQ(tw_scratch_used_bytes(scratch[0]), 0u);
    EXPECT_EQ(tw_scratch_peak_bytes(scratch[0]), 2 * BYTES);
}

/* Who needs no scratch memory is not among its users: who comes after it is the oldest one, and has all of
 * the memory, not half of it. */
TEST_F(Sched, WhoNeedsNoMemoryTakesNobodysPlace)
{
    constexpr size_t BYTES = 700 << 10; /* of 1 MB */
    std::vector<int> data(4);
    tw_sched_recv(sched[0], 1, tw_span_view(view_of(data), 0, 4));
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    EXPECT_EQ(step(0), TW_IN_PROGRESS);

    tw_sched_t *first = sched[0];
    const tw_sched_env_t env = {transports[0], scratch[0], peers, 0, 2, 4, 6ull << 24, nullptr};
    ASSERT_EQ(tw_sched_create(&env, &sched[0]), TW_OK);
    tw_sched_use(sched[0], add_note(0, 1), tw_sched_buffer(sched[0], BYTES));
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    EXPECT_EQ(step(0), TW_OK);
    EXPECT_EQ(log, (std::vector<int>{1}));
    tw_sched_destroy(first);
}

TEST_F(Sched, AMessageOfAnotherSizeIsAMismatch)
{
    std::vector<int> data(4);
    const tw_view_t *view = view_of(data);
    tw_sched_send(sched[0], 1, tw_span_view(view, 0, 3));
    tw_sched_recv(sched[1], 0, tw_span_view(view, 0, 4));
    ASSERT_EQ(tw_sched_seal(sched[0]), TW_OK);
    ASSERT_EQ(tw_sched_seal(sched[1]), TW_OK);
    allow_log("were expected");
    expect_log("rank 0 sent a message of another size than the 16 bytes expected");
    step(0);
    tw_status_t status;
    while ((status = step(1)) == TW_IN_PROGRESS) {
        ;
    }
    EXPECT_EQ(status, TW_ERR_MISMATCH);
}

/* A message whose length is known only once it has been made: it travels as long as it is, and so does what
 * is sent on. */
TEST_F(Sched, AMessageMayBeShorterThanItsBound)
{
    static const auto fill = [](tw_sched_t *run, const void *arg) {
        const tw_span_t *span = (const tw_span_t *)arg;
        memcpy(tw_sched_at(run, *span, nullptr), "four", 4);
        tw_sched_fill(run, span->buffer, 4);
        return TW_OK;
    };
    tw_sched_sent_t sent[2] = {};
    tw_sched_destroy(sched[0]);
    tw_sched_env_t env = {transports[0], scratch[0], peers, 0, 2, 4, 5ull << 24, sent};
    ASSERT_EQ(tw_sched_create(&env, &sched[0]), TW_OK);
    tw_sbuf_t made = tw_sched_buffer(sched[0], 1000), back = tw_sched_buffer(sched[0], 1000);
    tw_task_t task = tw_sched_compute(sched[0], fill, span_arg(made, 1000));
    tw_sched_use(sched[0], task, made);
    tw_sched_after(sched[0], tw_sched_send(sched[0], 1, tw_span_bound(made, 1000)), task);
    tw_sched_recv(sched[0], 1, tw_span_bound(back, 1000));
    tw_sbuf_t passing = tw_sched_buffer(sched[1], 1000);
    tw_task_t come = tw_sched_recv(sched[1], 0, tw_span_bound(passing, 1000));
    tw_sched_after(sched[1], tw_sched_send(sched[1], 0, tw_span_bound(passing, 1000)), come);
    for (int r = 0; r < 2; r++) {
        ASSERT_EQ(tw_sched_seal(sched[r]), TW_OK);
    }
    EXPECT_EQ(tw_sched_sent_bytes(sched[0], 1), 1000u);
    for (tw_status_t first = TW_IN_PROGRESS, second = first; first || second;) {
        first = first ? step(0) : first;
        second = second ? step(1) : second;
        ASSERT_GE(first, TW_OK);
        ASSERT_GE(second, TW_OK);
    }
    EXPECT_EQ(tw_sched_filled(sched[0], back), 4u);
    EXPECT_EQ(tw_sched_filled(sched[1], passing), 4u);
    EXPECT_EQ(sent[1].bytes, 4u);
    EXPECT_EQ(sent[1].spared_bytes, 996u);
    tw_transport_counters_t counted;
    tw_transport_peer_counters(transports[1], 0, &counted);
    EXPECT_EQ(counted.bytes, 4u);
}

/* Rank 0 of 4, which shares its node with rank 1, sends a message of so many bytes to each of the others (0:
 * none). Returns to whom it goes only when asked for, as digits. */
std::string asked_by(size_t to_1, size_t to_2, size_t to_3)
{
    static std::string asked;
    const int nodes[] = {0, 0, 1, 2}, peers[] = {0, 1, 2, 3};
    const size_t bytes[] = {0, to_1, to_2, to_3};
    const std::vector<char> data(1 << 20);
    tw_transport_t *transports[4];
    tw_sched_t *sched = nullptr;
    EXPECT_EQ(tw_transport_local_create(4, nodes, transports), TW_OK);
    tw_transport_ops_t ops = *transports[0]->ops;
    static const auto send_post = ops.send_post;
    ops.send_post = [](tw_transport_t *t, const tw_transport_message_t *m, tw_transport_request_t **out) {
        asked += m->when_asked ? std::to_string(m->peer) : "";
        return send_post(t, m, out);
    };
    transports[0]->ops = &ops;
    asked = "";
    const tw_sched_env_t env = {transports[0], nullptr, peers, 0, 4, 4, 5ull << 24, nullptr};
    EXPECT_EQ(tw_sched_create(&env, &sched), TW_OK);
    for (int peer = 1; peer < 4; peer++) {
        tw_sched_send(sched, peer, tw_sched_memory(sched, data.data(), bytes[peer]));
    }
    EXPECT_EQ(tw_sched_seal(sched), TW_OK);
    int moved = 0;
    EXPECT_EQ(tw_sched_step(sched, &moved), TW_IN_PROGRESS);
    tw_sched_destroy(sched);
    for (tw_transport_t *transport : transports) {
        tw_transport_destroy(transport);
    }
    return asked;
}

TEST_F(Sched, MuchToSeveralNodesGoesWhenAskedFor)
{
    const size_t much = 300 << 10, little = 200 << 10;
    EXPECT_EQ(asked_by(0, much, much), "23");
    EXPECT_EQ(asked_by(much, much, little), "12");
    EXPECT_EQ(asked_by(0, little, little), "");
    EXPECT_EQ(asked_by(much, 0, much), "") << "one node";
}

TEST_F(Sched, DescribesWhatItWaitsFor)
{
    char text[200], tiny[20];
    std::vector<int> data(4);
    tw_sched_recv(sched[1], 0, tw_span_view(view_of(data), 0, 4));
    tw_sched_send(sched[1], 0, tw_span_signal());
    ASSERT_EQ(tw_sched_seal(sched[1]), TW_OK);
    step(1);
    EXPECT_NE(std::string(tw_sched_describe(sched[1], text, sizeof(text)))
                  .find("waiting for message 0 (16 bytes) from rank 0"),
              std::string::npos)
        << text;
    EXPECT_NE(std::string(text).find("sending message 0 (0 bytes) to rank 0"), std::string::npos) << text;
    EXPECT_EQ(std::string(tw_sched_describe(sched[1], tiny, sizeof(tiny))).size(), sizeof(tiny) - 1);
}

} // namespace
