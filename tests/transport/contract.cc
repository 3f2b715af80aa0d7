#include "tests/transport/contract.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace contract
{

void fail(const char *file, int line, const std::string &text)
{
    throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

tw_status_t wait(tw_transport_t *t, tw_transport_request_t *request)
{
    tw_status_t status;
    while ((status = tw_transport_test(t, request)) == TW_IN_PROGRESS) {
        if (tw_transport_progress(t) == TW_IN_PROGRESS) {
            (void)tw_transport_sleep(t, 30);
        }
    }
    return status;
}

tw_transport_request_t *send(tw_transport_t *t, int peer, uint64_t tag, const void *buffer, size_t bytes)
{
    tw_transport_request_t *request = nullptr;
    CONTRACT_EQ(tw_transport_send_post(t, peer, tag, buffer, bytes, &request), TW_OK);
    return request;
}

tw_transport_request_t *recv(tw_transport_t *t, int peer, uint64_t tag, void *buffer, size_t bytes)
{
    tw_transport_request_t *request = nullptr;
    CONTRACT_EQ(tw_transport_recv_post(t, peer, tag, buffer, bytes, &request), TW_OK);
    return request;
}

std::vector<uint8_t> pattern(size_t bytes, int from, int to, int salt)
{
    std::vector<uint8_t> v(bytes);
    uint64_t x = (uint64_t)(from * 7919 + to * 104729 + salt * 1299709 + 1) * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < bytes; i += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(&v[i], &x, std::min(sizeof(x), bytes - i));
    }
    return v;
}

void barrier(tw_transport_t *t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const uint64_t tag = (1ull << 48) - 2;
    for (int step = 1; step < world; step *= 2) {
        tw_transport_request_t *in = recv(t, (rank - step + world) % world, tag, nullptr, 0);
        tw_transport_request_t *out = send(t, (rank + step) % world, tag, nullptr, 0);
        CONTRACT_EQ(wait(t, in), TW_OK);
        CONTRACT_EQ(wait(t, out), TW_OK);
    }
}

namespace
{

/* Around the thresholds at which the network backend changes its ways (16K eager, 256K chunks,
 * one of which goes at once over one TCP stream), and primes. */
const size_t sizes[] = {0,     1,      2,      63,     64,     1009,   8191,   16383,         16384,
                        16385, 104729, 262143, 262144, 262145, 524288, 524289, 3 * 262144 + 7};

void everyone_to_everyone(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    for (size_t bytes : sizes) {
        std::vector<std::vector<uint8_t>> in(world), out(world);
        std::vector<tw_transport_request_t *> requests;
        for (int p = 0; p < world; p++) {
            out[p] = pattern(bytes, rank, p);
            in[p].resize(bytes);
            requests.push_back(recv(t, p, bytes, in[p].data(), bytes));
        }
        for (int p = 0; p < world; p++) {
            requests.push_back(send(t, p, bytes, out[p].data(), bytes));
        }
        for (tw_transport_request_t *request : requests) {
            CONTRACT_EQ(wait(t, request), TW_OK);
        }
        for (int p = 0; p < world; p++) {
            CONTRACT_CHECK(in[p] == pattern(bytes, p, rank));
        }
    }
}

/* Half of the receives are posted late, short and long messages take turns. */
void equal_tags_in_order(tw_transport_t *&t)
{
    const int n = 60, world = tw_transport_world(t), rank = tw_transport_rank(t);
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    std::vector<std::vector<uint8_t>> in(n), out(n);
    std::vector<tw_transport_request_t *> receives, sends;
    const auto bytes_of = [](int i) {
        return (size_t)(i % 3 == 0 ? 5 : i % 3 == 1 ? 20000 : 300000) + (size_t)i;
    };
    const auto post_receive = [&](int i) {
        in[i].resize(bytes_of(i));
        receives.push_back(recv(t, left, 7, in[i].data(), in[i].size()));
    };
    for (int i = 0; i < n / 2; i++) {
        post_receive(i);
    }
    for (int i = 0; i < n; i++) {
        out[i] = pattern(bytes_of(i), rank, right, i);
        sends.push_back(send(t, right, 7, out[i].data(), out[i].size()));
    }
    for (int i = 0; i < n / 2; i++) {
        CONTRACT_EQ(wait(t, receives[i]), TW_OK);
    }
    for (int i = n / 2; i < n; i++) {
        post_receive(i);
    }
    for (int i = n / 2; i < n; i++) {
        CONTRACT_EQ(wait(t, receives[i]), TW_OK);
    }
    for (tw_transport_request_t *request : sends) {
        CONTRACT_EQ(wait(t, request), TW_OK);
    }
    for (int i = 0; i < n; i++) {
        CONTRACT_CHECK(in[i] == pattern(bytes_of(i), left, rank, i));
    }
}

/* Everything at once, received in the opposite order. */
void tags_select(tw_transport_t *&t)
{
    const int n = 50, world = tw_transport_world(t), rank = tw_transport_rank(t);
    std::vector<std::vector<uint8_t>> in, out;
    std::vector<tw_transport_request_t *> requests;
    const auto bytes_of = [](int i) { return (size_t)(i * i * 23); };
    const auto tag_of = [](int i) { return (1ull << 48) - 1000 + (uint64_t)i; };
    in.reserve((size_t)(n * world));
    out.reserve((size_t)(n * world));
    for (int p = 0; p < world; p++) {
        for (int i = 0; i < n; i++) {
            out.push_back(pattern(bytes_of(i), rank, p, i));
            requests.push_back(send(t, p, tag_of(i), out.back().data(), out.back().size()));
        }
    }
    for (int p = world - 1; p >= 0; p--) {
        for (int i = n - 1; i >= 0; i--) {
            in.emplace_back(bytes_of(i));
            CONTRACT_EQ(wait(t, recv(t, p, tag_of(i), in.back().data(), in.back().size())), TW_OK);
            CONTRACT_CHECK(in.back() == pattern(bytes_of(i), p, rank, i));
        }
    }
    for (tw_transport_request_t *request : requests) {
        CONTRACT_EQ(wait(t, request), TW_OK);
    }
}

void another_size_is_truncated(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    const size_t wrong[][2] = {{7, 8}, {9, 8}, {0, 8}, {300000, 299999}, {100, 300000}, {300000, 100}};
    std::vector<uint8_t> out(300000, 1), in(300000, 42);
    for (const auto &bytes : wrong) {
        tw_transport_request_t *sent = send(t, right, 3, out.data(), bytes[0]);
        CONTRACT_EQ(wait(t, recv(t, left, 3, in.data(), bytes[1])), TW_ERR_TRUNCATED);
        CONTRACT_EQ(wait(t, sent), TW_OK);
        CONTRACT_CHECK(std::all_of(in.begin(), in.end(), [](uint8_t byte) { return byte == 42; }));
    }
    everyone_to_everyone(t); /* the job goes on */
}

void cancel_receives(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    for (size_t bytes : {(size_t)100, (size_t)300001}) {
        std::vector<uint8_t> dropped(bytes, 5), in(bytes), out = pattern(bytes, rank, right);
        tw_transport_cancel(t, recv(t, left, 9, dropped.data(), bytes));
        barrier(t);
        tw_transport_request_t *sent = send(t, right, 9, out.data(), bytes);
        CONTRACT_EQ(wait(t, recv(t, left, 9, in.data(), bytes)), TW_OK);
        CONTRACT_EQ(wait(t, sent), TW_OK);
        CONTRACT_CHECK(in == pattern(bytes, left, rank));
        CONTRACT_CHECK(dropped == std::vector<uint8_t>(bytes, 5));
    }
}

/* A message so long that it waits for its receive, and is taken back before, never was. */
void cancel_sends(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    const size_t bytes = 700001;
    std::vector<uint8_t> in(bytes), out = pattern(bytes, rank, right), dropped(bytes, 6);
    tw_transport_request_t *canceled = send(t, right, 9, dropped.data(), bytes);
    for (int i = 0; i < 100; i++) {
        (void)tw_transport_progress(t);
    }
    CONTRACT_EQ(tw_transport_test(t, canceled), TW_IN_PROGRESS);
    tw_transport_cancel(t, canceled);
    std::fill(dropped.begin(), dropped.end(), 7);
    barrier(t);
    tw_transport_request_t *sent = send(t, right, 9, out.data(), bytes);
    CONTRACT_EQ(wait(t, recv(t, left, 9, in.data(), bytes)), TW_OK);
    CONTRACT_EQ(wait(t, sent), TW_OK);
    CONTRACT_CHECK(in == pattern(bytes, left, rank));
    barrier(t);
}

/* Canceled on both sides, after more and more of it has moved. */
void cancel_in_flight(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    std::vector<uint8_t> in(2000003), out(2000003);
    for (int i = 0; i < 12; i++) {
        tw_transport_request_t *received = recv(t, left, (uint64_t)i, in.data(), in.size());
        tw_transport_request_t *sent = send(t, right, (uint64_t)i, out.data(), out.size());
        for (int k = 0; k < i * i; k++) {
            (void)tw_transport_progress(t);
        }
        tw_transport_cancel(t, i % 2 ? sent : received);
        tw_transport_cancel(t, i % 2 ? received : sent);
        std::fill(in.begin(), in.end(), 9);
        barrier(t);
        CONTRACT_CHECK(std::all_of(in.begin(), in.end(), [](uint8_t byte) { return byte == 9; }));
    }
    everyone_to_everyone(t);
}

void counters(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    std::vector<uint8_t> in(400000), out(400000);
    std::vector<tw_transport_request_t *> requests;
    tw_transport_counters_t inter, inside, before, seen;
    tw_transport_inter_node_counters(t, &inter);
    tw_transport_in_node_counters(t, &inside);
    for (int p = 0; p < world; p++) {
        requests.push_back(recv(t, p, 1, in.data(), 300000 + (size_t)rank));
    }
    for (int p = 0; p < world; p++) {
        const size_t bytes = 300000 + (size_t)p;
        tw_transport_peer_counters(t, p, &before);
        requests.push_back(send(t, p, 1, out.data(), bytes));
        tw_transport_peer_counters(t, p, &seen);
        CONTRACT_EQ(seen.bytes - before.bytes, bytes);
        CONTRACT_EQ(seen.messages - before.messages, 1);
        tw_transport_counters_t &sum =
            tw_transport_node_of(t, p) == tw_transport_node_of(t, rank) ? inside : inter;
        sum.bytes += p == rank ? 0 : bytes;
        sum.messages += p != rank;
    }
    for (tw_transport_request_t *request : requests) {
        CONTRACT_EQ(wait(t, request), TW_OK);
    }
    tw_transport_inter_node_counters(t, &seen);
    CONTRACT_EQ(seen.bytes, inter.bytes);
    CONTRACT_EQ(seen.messages, inter.messages);
    tw_transport_in_node_counters(t, &seen);
    CONTRACT_EQ(seen.bytes, inside.bytes);
    CONTRACT_EQ(seen.messages, inside.messages);
}

void refuses_nonsense(tw_transport_t *&t)
{
    tw_transport_request_t *request = nullptr;
    int value = 0;
    CONTRACT_EQ(tw_transport_send_post(t, tw_transport_world(t), 0, &value, 4, &request), TW_ERR_INVALID);
    CONTRACT_EQ(tw_transport_send_post(t, -1, 0, &value, 4, &request), TW_ERR_INVALID);
    CONTRACT_EQ(tw_transport_recv_post(t, 0, 1ull << 48, &value, 4, &request), TW_ERR_INVALID);
    CONTRACT_EQ(tw_transport_recv_post(t, 0, 0, nullptr, 4, &request), TW_ERR_INVALID);
    CONTRACT_CHECK(!request);
}

/* Messages are under way, or not yet asked for, when their sender leaves: they arrive. */
void leave_after_sending(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const size_t lengths[] = {1, 16384, 600011};
    std::vector<std::vector<uint8_t>> buffers;
    std::vector<tw_transport_request_t *> requests;
    if (rank == world - 1) {
        for (int p = 0; p < world - 1; p++) {
            for (size_t bytes : lengths) {
                buffers.push_back(pattern(bytes, rank, p));
                requests.push_back(send(t, p, bytes, buffers.back().data(), bytes));
            }
        }
    } else {
        for (size_t bytes : lengths) {
            buffers.emplace_back(bytes);
            requests.push_back(recv(t, world - 1, bytes, buffers.back().data(), bytes));
        }
    }
    for (tw_transport_request_t *request : requests) {
        CONTRACT_EQ(wait(t, request), TW_OK);
    }
    for (size_t i = 0; rank != world - 1 && i < buffers.size(); i++) {
        CONTRACT_CHECK(buffers[i] == pattern(buffers[i].size(), world - 1, rank));
    }
}

/* Who does not need a rank that has left goes on. Then rank 0 waits for it in vain, and that is everyone's
 * end. */
void to_need_who_has_left(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    std::vector<uint8_t> in(20000), out(20000);
    int value = 0;
    barrier(t);
    if (rank == world - 1) {
        tw_transport_destroy(t);
        t = nullptr;
        return;
    }
    for (uint64_t i = 0; i < 20 && rank == 0; i++) {
        for (int p = 1; p < world - 1; p++) {
            tw_transport_request_t *sent = send(t, p, i, out.data(), out.size());
            CONTRACT_EQ(wait(t, recv(t, p, i, in.data(), in.size())), TW_OK);
            CONTRACT_EQ(wait(t, sent), TW_OK);
        }
    }
    for (uint64_t i = 0; i < 20 && rank != 0; i++) {
        CONTRACT_EQ(wait(t, recv(t, 0, i, in.data(), in.size())), TW_OK);
        tw_transport_request_t *sent = send(t, 0, i, out.data(), out.size());
        const tw_status_t status = wait(t, sent);
        CONTRACT_CHECK(status == TW_OK || (status == TW_ERR_PEER && i == 19));
    }
    tw_transport_request_t *vain = nullptr;
    tw_status_t status =
        tw_transport_recv_post(t, rank == 0 ? world - 1 : 0, 99, &value, sizeof(value), &vain);
    CONTRACT_EQ(status ? status : wait(t, vain), TW_ERR_PEER);
    CONTRACT_EQ(tw_transport_failed_rank(t), world - 1);
}

void abort_reaches_everyone(tw_transport_t *&t)
{
    const int culprit = tw_transport_world(t) / 2, rank = tw_transport_rank(t);
    tw_transport_request_t *request = nullptr;
    int value = 0;
    if (rank == culprit) {
        tw_transport_abort(t, "for the test");
    } else if (tw_transport_recv_post(t, culprit, 1, &value, sizeof(int), &request) == TW_OK) {
        CONTRACT_EQ(wait(t, request), TW_ERR_PEER);
    }
    CONTRACT_EQ(tw_transport_failed_rank(t), culprit);
    CONTRACT_EQ(tw_transport_progress(t), TW_ERR_PEER);
    CONTRACT_EQ(tw_transport_sleep(t, 60), TW_ERR_PEER);
    CONTRACT_EQ(tw_transport_send_post(t, 0, 1, &value, sizeof(int), &request), TW_ERR_PEER);
    CONTRACT_EQ(tw_transport_recv_post(t, 0, 1, &value, sizeof(int), &request), TW_ERR_PEER);
}

/* Sleeps until nothing has woken this rank for a while; not for ever. */
void fall_asleep(tw_transport_t *t)
{
    for (int i = 0; tw_transport_sleep(t, 0.01) != TW_IN_PROGRESS; i++) {
        CONTRACT_CHECK(i < 1000);
        (void)tw_transport_progress(t);
    }
}

/* A sleep that would be long ends when another thread says so, before it or during it, and a later one does
 * not. */
void woken_from_another_thread(tw_transport_t *&t)
{
    barrier(t);
    if (tw_transport_rank(t) != 0) { /* in silence */
        CONTRACT_EQ(wait(t, recv(t, 0, 11, nullptr, 0)), TW_OK);
        return;
    }
    fall_asleep(t);
    tw_transport_wake(t);
    tw_transport_wake(t);
    (void)tw_transport_progress(t);
    CONTRACT_EQ(tw_transport_sleep(t, 60), TW_OK);
    fall_asleep(t);
    std::thread waker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        tw_transport_wake(t);
    });
    const tw_status_t status = tw_transport_sleep(t, 60);
    waker.join();
    CONTRACT_EQ(status, TW_OK);
    for (int p = 1; p < tw_transport_world(t); p++) {
        CONTRACT_EQ(wait(t, send(t, p, 11, nullptr, 0)), TW_OK);
    }
}

/* A receive that has room for more says how much has come; more than it has room for is truncated. */
void shorter_messages(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    for (size_t bytes : sizes) {
        const std::vector<uint8_t> out = pattern(bytes, rank, right, 5);
        for (size_t room : {bytes, bytes + 1, 2 * bytes + 40000}) {
            std::vector<uint8_t> in(room + 1, 0x5a);
            const tw_transport_message_t message = {left, 21, in.data(), room, TW_MEM_HOST, 1, 0};
            tw_transport_request_t *request = nullptr;
            CONTRACT_EQ(tw_transport_message_recv(t, &message, &request), TW_OK);
            tw_transport_request_t *sending = send(t, right, 21, out.data(), bytes);
            size_t come = 1;
            tw_status_t status;
            while ((status = tw_transport_test_bytes(t, request, &come)) == TW_IN_PROGRESS) {
                if (tw_transport_progress(t) == TW_IN_PROGRESS) {
                    (void)tw_transport_sleep(t, 30);
                }
            }
            CONTRACT_EQ(status, TW_OK);
            CONTRACT_EQ(come, bytes);
            CONTRACT_EQ(wait(t, sending), TW_OK);
            const std::vector<uint8_t> expected = pattern(bytes, left, rank, 5);
            CONTRACT_CHECK(std::equal(expected.begin(), expected.end(), in.begin()));
            CONTRACT_EQ(in[room], 0x5a);
        }
    }
}

/* Memory that is not taken is refused, on both sides alike; host memory is always taken. */
void takes_memory(tw_transport_t *&t)
{
    tw_transport_request_t *request = nullptr;
    int value = 0;
    const int rank = tw_transport_rank(t), right = (rank + 1) % tw_transport_world(t);
    CONTRACT_EQ(tw_transport_takes(t, TW_MEM_HOST), 1);
    CONTRACT_EQ(tw_transport_takes(t, (tw_mem_t)2), 0);
    CONTRACT_EQ(tw_transport_takes(t, (tw_mem_t)-1), 0);
    tw_transport_message_t message = {rank, 0, &value, sizeof(value), TW_MEM_CUDA, 0, 0};
    CONTRACT_EQ(tw_transport_message_send(t, &message, &request), TW_ERR_UNSUPPORTED);
    CONTRACT_EQ(tw_transport_message_recv(t, &message, &request), TW_ERR_UNSUPPORTED);
    message.peer = right;
    message.mem = tw_transport_takes(t, TW_MEM_CUDA) ? (tw_mem_t)2 : TW_MEM_CUDA;
    CONTRACT_EQ(tw_transport_message_send(t, &message, &request), TW_ERR_UNSUPPORTED);
    CONTRACT_EQ(tw_transport_message_recv(t, &message, &request), TW_ERR_UNSUPPORTED);
    CONTRACT_CHECK(!request);
}

/* Destroy cancels: nobody has to clean up before. */
void destroy_with_posted(tw_transport_t *&t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    std::vector<uint8_t> in(100000, 5), out(100000, 6);
    barrier(t);
    (void)recv(t, (rank + 1) % world, 77, in.data(), in.size());
    (void)send(t, (rank + 1) % world, 78, out.data(), out.size());
    (void)send(t, (rank + 1) % world, 79, out.data(), 10);
    tw_transport_destroy(t);
    t = nullptr;
    CONTRACT_CHECK(in == std::vector<uint8_t>(100000, 5));
}

} // namespace

const std::vector<Case> &cases()
{
    static const std::vector<Case> all = {
        {"everyone_to_everyone", 1, false, everyone_to_everyone},
        {"equal_tags_in_order", 1, false, equal_tags_in_order},
        {"tags_select", 1, false, tags_select},
        {"another_size_is_truncated", 1, false, another_size_is_truncated},
        {"shorter_messages", 1, false, shorter_messages},
        {"cancel_receives", 1, false, cancel_receives},
        {"cancel_sends", 1, false, cancel_sends},
        {"cancel_in_flight", 1, false, cancel_in_flight},
        {"counters", 1, false, counters},
        {"refuses_nonsense", 1, false, refuses_nonsense},
        {"takes_memory", 1, false, takes_memory},
        {"woken_from_another_thread", 1, false, woken_from_another_thread},
        {"leave_after_sending", 2, true, leave_after_sending},
        {"to_need_who_has_left", 2, true, to_need_who_has_left},
        {"abort_reaches_everyone", 1, true, abort_reaches_everyone},
        {"destroy_with_posted", 1, true, destroy_with_posted},
    };
    return all;
}

const Case *find(const std::string &name)
{
    for (const Case &c : cases()) {
        if (name == c.name) {
            return &c;
        }
    }
    return nullptr;
}

} // namespace contract
