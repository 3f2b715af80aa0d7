/* One rank of a job over UCX: rank_main WHAT [ARGUMENT], the job from the environment. WHAT: a case of the
 * contract, all that can follow each other ("contract"), or one of the cases below. Ends with a line on
 * stdout, "ok" or "failed rank R after S s: STATUS", and exit status 0; anything else has gone wrong. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include <sys/socket.h>
#include <unistd.h>

#include "tests/transport/contract.h"
#include "transport/p2p/state.h"
#include "transport/ranks/state.h"

namespace
{

using contract::recv;
using contract::send;
using contract::wait;

/* Both neighbours, all the time, until something fails. */
tw_status_t exchange_for_ever(tw_transport_t *t, const char *argument)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const size_t bytes = *argument ? strtoull(argument, nullptr, 10) : 300000;
    std::vector<uint8_t> in(bytes), out(bytes);
    for (uint64_t i = 0;; i++) {
        tw_transport_request_t *received, *sent;
        TW_TRY(tw_transport_recv_post(t, (rank + world - 1) % world, i, in.data(), in.size(), &received));
        TW_TRY(tw_transport_send_post(t, (rank + 1) % world, i, out.data(), out.size(), &sent));
        TW_TRY(wait(t, received));
        TW_TRY(wait(t, sent));
    }
}

/* Waits for something that does not come. */
tw_status_t wait_for_ever(tw_transport_t *t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    int value;
    tw_transport_request_t *request;
    const tw_status_t status =
        tw_transport_recv_post(t, (rank + world - 1) % world, 1, &value, sizeof(value), &request);
    return status ? status : wait(t, request);
}

/* Rank 0 leaves at once; each other one waits for the next of them. */
tw_status_t wait_without_rank_0(tw_transport_t *t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    int value;
    return rank == 0 ? TW_OK : wait(t, recv(t, rank == world - 1 ? 1 : rank + 1, 1, &value, sizeof(value)));
}

/* Rank 0's chunk is sent before rank 1 has a receive for it; not so the one that is to be asked for. */
void a_chunk_goes_at_once(tw_transport_t *t)
{
    const size_t bytes = 256 << 10;
    std::vector<uint8_t> out(bytes, 3), in(bytes);
    tw_transport_request_t *asked = nullptr;
    if (tw_transport_rank(t) == 0) {
        const tw_transport_message_t message = {1, 2, out.data(), bytes, TW_MEM_HOST, 0, 1};
        CONTRACT_EQ(tw_transport_message_send(t, &message, &asked), TW_OK);
        CONTRACT_EQ(wait(t, send(t, 1, 1, out.data(), bytes)), TW_OK);
    }
    contract::barrier(t);
    if (tw_transport_rank(t) == 0) {
        CONTRACT_EQ(tw_transport_test(t, asked), TW_IN_PROGRESS);
    }
    contract::barrier(t);
    for (uint64_t tag = 1; tag <= 2 && tw_transport_rank(t) == 1; tag++) {
        std::fill(in.begin(), in.end(), 0);
        CONTRACT_EQ(wait(t, recv(t, 0, tag, in.data(), bytes)), TW_OK);
        CONTRACT_CHECK(in == out);
    }
    if (tw_transport_rank(t) == 0) {
        CONTRACT_EQ(wait(t, asked), TW_OK);
    }
}

/* TCP connections of this process; each of them to `visit`. */
template <class Visit>
int for_connections(Visit visit)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        sockaddr_storage address;
        socklen_t bytes = sizeof(address);
        if (!getpeername(fd, (sockaddr *)&address, &bytes) &&
            (address.ss_family == AF_INET || address.ss_family == AF_INET6)) {
            visit(fd);
            n++;
        }
    }
    return n;
}

/* Rank 1 sends, and leaves while rank 0 does something else. What it has left in its socket has to come, also
 * when rank 0 has taken so much that credit would go back, to a socket that is closed. */
void leave_before_all_is_taken(tw_transport_t *t)
{
    const size_t bytes = 1 << 20, n = 2;
    std::vector<uint8_t> out(bytes, 3), in(bytes);
    if (tw_transport_rank(t) == 0) {
        const int small = 64 << 10;
        for_connections(
            [&](int fd) { CONTRACT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0); });
    }
    for (size_t i = 0; i < n; i++) {
        if (tw_transport_rank(t) == 1) {
            CONTRACT_EQ(wait(t, send(t, 0, 1, out.data(), bytes)), TW_OK);
            continue;
        }
        if (i == 0) {
            usleep(3500000);
        }
        CONTRACT_EQ(wait(t, recv(t, 1, 1, in.data(), bytes)), TW_OK);
        CONTRACT_CHECK(in == out);
    }
}

/* Computes: nothing of the transport is called for a while. */
tw_status_t compute(tw_transport_t *t, double sec)
{
    if (tw_transport_rank(t) == tw_transport_world(t) - 1) {
        usleep((useconds_t)(sec * 1e6));
    }
    contract::barrier(t);
    return TW_OK;
}

const size_t eager = 16384; /* TW_EAGER's default */

/* Everyone to everyone else, each side in memory of some kind; TW_ERR_UNSUPPORTED is for short ones into a
 * GPU only. */
void exchange_between(tw_transport_t *t, tw_mem_t from, tw_mem_t to, size_t bytes)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    const tw_status_t want =
        from != to && to == TW_MEM_CUDA && bytes && bytes <= eager ? TW_ERR_UNSUPPORTED : TW_OK;
    std::vector<std::vector<uint8_t>> in(world), out(world);
    std::vector<tw_transport_request_t *> receives(world), sends(world);
    for (int p = 0; p < world; p++) {
        in[p].resize(bytes);
        out[p] = contract::pattern(bytes, rank, p);
        const tw_transport_message_t received = {p, bytes, in[p].data(), bytes, to, 0, 0};
        const tw_transport_message_t sent = {p, bytes, out[p].data(), bytes, from, 0, 0};
        if (p == rank) {
            continue;
        }
        CONTRACT_EQ(tw_transport_message_recv(t, &received, &receives[p]), TW_OK);
        CONTRACT_EQ(tw_transport_message_send(t, &sent, &sends[p]), TW_OK);
    }
    for (int p = 0; p < world; p++) {
        if (p == rank) {
            continue;
        }
        CONTRACT_EQ(wait(t, receives[p]), want);
        CONTRACT_EQ(wait(t, sends[p]), TW_OK);
        CONTRACT_CHECK(in[p] == (want ? std::vector<uint8_t>(bytes) : contract::pattern(bytes, p, rank)));
    }
}

/* A message that is given up by the receiver, before and after its announcement has come. */
void cancel_on_gpu(tw_transport_t *t)
{
    const int world = tw_transport_world(t), rank = tw_transport_rank(t);
    std::vector<uint8_t> in(1000000), out(1000000, 1);
    tw_transport_request_t *received = nullptr, *sent = nullptr;
    const tw_transport_message_t from = {
        (rank + world - 1) % world, 1, in.data(), in.size(), TW_MEM_CUDA, 0, 0};
    const tw_transport_message_t to = {(rank + 1) % world, 1, out.data(), out.size(), TW_MEM_CUDA, 0, 0};
    CONTRACT_EQ(tw_transport_message_recv(t, &from, &received), TW_OK);
    CONTRACT_EQ(tw_transport_message_send(t, &to, &sent), TW_OK);
    for (int i = 0; i < 20 * rank; i++) {
        (void)tw_transport_progress(t);
    }
    tw_transport_cancel(t, received);
    const std::vector<uint8_t> then = in;
    tw_transport_cancel(t, sent);
    contract::barrier(t);
    CONTRACT_CHECK(in == then);
}

/* The ways that messages in the memory of a GPU take, with host memory in its place: UCX does not mind. */
void as_if_on_gpu(tw_transport_t *t)
{
    tw_ranks_t *ucx = tw_ranks_of(t);
    t->takes[TW_MEM_CUDA] = 1;
    ucx->p2p->memory[TW_MEM_CUDA] = UCS_MEMORY_TYPE_HOST;
    contract::barrier(t);
    for (size_t bytes : {(size_t)0, (size_t)1, (size_t)1009, eager, eager + 1, (size_t)262144, (size_t)262145,
                         (size_t)9000001}) {
        exchange_between(t, TW_MEM_CUDA, TW_MEM_CUDA, bytes);
        exchange_between(t, TW_MEM_CUDA, TW_MEM_HOST, bytes);
        exchange_between(t, TW_MEM_HOST, TW_MEM_CUDA, bytes);
    }
    cancel_on_gpu(t);
}

/* Rank 1 announces a message to rank 0 and sends data that does not fit it, as "OFFSET+BYTES ...". */
tw_status_t data_that_does_not_fit(tw_transport_t *t, const char *argument)
{
    const size_t bytes = 300000;
    std::vector<uint8_t> buffer(3 * bytes, 7);
    if (tw_transport_rank(t) == 0) {
        const tw_status_t status = wait(t, recv(t, 1, 1, buffer.data() + bytes, bytes));
        CONTRACT_CHECK(std::all_of(buffer.begin(), buffer.begin() + bytes, [](uint8_t b) { return b == 7; }));
        CONTRACT_CHECK(
            std::all_of(buffer.begin() + 2 * bytes, buffer.end(), [](uint8_t b) { return b == 7; }));
        return status;
    }
    tw_p2p_t *p2p = tw_ranks_of(t)->p2p;
    const uint64_t first_number = 1ull << 32, no_number = 99ull << 32;
    tw_p2p_header_t header = {};
    header.kind = TW_P2P_RTS;
    header.tag = 1;
    header.id = no_number;
    header.value = bytes;
    usleep(100000); /* the receive is posted, and takes the first number */
    CONTRACT_EQ(tw_p2p_control_send(tw_p2p_peer_find(p2p, 0), &header, nullptr), TW_OK);
    std::vector<uint8_t> data(bytes, 9);
    char *end;
    for (const char *at = argument; *at; at = *end ? end + 1 : end) {
        tw_p2p_request_t chunk = {};
        header = {};
        header.kind = TW_P2P_DATA;
        header.id = first_number;
        header.value = strtoull(at, &end, 10);
        chunk.buffer = data.data();
        chunk.bytes = strtoull(end + 1, &end, 10);
        header.tag = chunk.bytes;
        CONTRACT_EQ(tw_p2p_control_send(tw_p2p_peer_find(p2p, 0), &header, &chunk), TW_OK);
        while (chunk.n_ops && tw_p2p_progress(p2p) >= 0) {
        }
    }
    usleep(100000);
    return wait_for_ever(t);
}

/* What UCX has in hand when a message is canceled is the sender's own again afterwards, whatever the receiver
 * does. */
void cancel_what_ucx_has(tw_transport_t *t)
{
    std::vector<uint8_t> buffer(8 << 20, 3);
    tw_p2p_t *p2p = tw_ranks_of(t)->p2p;
    if (tw_transport_rank(t) == 0) {
        tw_transport_request_t *received = recv(t, 1, 1, buffer.data(), buffer.size());
        while (((tw_p2p_request_t *)received)->stage == TW_P2P_STAGE_UNMATCHED) {
            (void)tw_transport_progress(t);
        }
        usleep(300000); /* nothing moves meanwhile */
        const tw_status_t status = wait(t, received);
        CONTRACT_CHECK(status == TW_OK || status == TW_ERR_CANCELED);
    } else {
        tw_transport_request_t *sent = send(t, 0, 1, buffer.data(), buffer.size());
        const double until = tw_time_sec() + 20;
        while (TAILQ_EMPTY(&p2p->ops) && tw_time_sec() < until) {
            (void)tw_transport_progress(t);
        }
        CONTRACT_CHECK(!TAILQ_EMPTY(&p2p->ops));
        tw_transport_cancel(t, sent);
        CONTRACT_CHECK(TAILQ_EMPTY(&p2p->ops));
    }
    contract::barrier(t);
}

/* Rank 1 says goodbye after more messages than it has sent: they do not come. */
tw_status_t leave_with_messages_lost(tw_transport_t *t)
{
    if (tw_transport_rank(t) == 0) {
        return wait_for_ever(t);
    }
    tw_p2p_peer_find(tw_ranks_of(t)->p2p, 0)->counts.n_sent += 5;
    return TW_OK;
}

/* Rank 0 sends short messages as fast as it can; rank 1 does not look. */
tw_status_t flood(tw_transport_t *t)
{
    static uint8_t data[10000];
    tw_status_t status = TW_OK;
    tw_transport_request_t *request;
    if (tw_transport_rank(t) == 1) {
        return wait_for_ever(t);
    }
    for (int i = 0; i < 20000 && !status; i++) {
        status = tw_transport_send_post(t, 1, 2, data, sizeof(data), &request);
    }
    return status ? status : wait_for_ever(t);
}

void say_ready(const tw_transport_t *t)
{
    printf("ready %d %s\n", tw_transport_rank(t), tw_transport_describe(t));
    fflush(stdout);
}

void run_contract(tw_transport_t *&t)
{
    for (const contract::Case &each : contract::cases()) {
        if (!each.ends_job) {
            each.run(t);
        }
    }
}

int run(tw_transport_t *&t, const std::string &what, const char *argument)
{
    const contract::Case *contract_case = contract::find(what);
    tw_status_t status = TW_OK;
    if (!contract_case) {
        contract::barrier(t);
    }
    say_ready(t);
    const double start = tw_time_sec();
    if (contract_case) {
        contract_case->run(t);
    } else if (what == "contract") {
        run_contract(t);
    } else if (what == "as_if_on_gpu") {
        as_if_on_gpu(t);
    } else if (what == "exchange_for_ever") {
        status = exchange_for_ever(t, argument);
    } else if (what == "wait_for_ever") {
        status = wait_for_ever(t);
    } else if (what == "wait_without_rank_0") {
        status = wait_without_rank_0(t);
    } else if (what == "end_on_failure") {
        status = wait_for_ever(t);
    } else if (what == "data_that_does_not_fit") {
        status = data_that_does_not_fit(t, argument);
    } else if (what == "cancel_what_ucx_has") {
        cancel_what_ucx_has(t);
    } else if (what == "leave_with_messages_lost") {
        status = leave_with_messages_lost(t);
    } else if (what == "peer_timeout") {
        printf("peer timeout %g s\n", tw_ranks_of(t)->peer_timeout_sec);
    } else if (what == "flood") {
        status = flood(t);
    } else if (what == "a_chunk_goes_at_once") {
        a_chunk_goes_at_once(t);
    } else if (what == "leave_before_all_is_taken") {
        leave_before_all_is_taken(t);
    } else if (what == "compute") {
        status = compute(t, atof(argument));
    } else if (what != "meet") {
        contract::fail(__FILE__, __LINE__, "no such case: " + what);
    }
    if (status) {
        printf("failed rank %d after %.3f s: %s\n", tw_transport_failed_rank(t), tw_time_sec() - start,
               tw_status_string(status));
    } else {
        printf("ok\n");
    }
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    tw_job_t job;
    tw_transport_t *t = nullptr;
    int result = 1;
    tw_status_t status = argc > 1 ? tw_job_from_env(&job) : TW_ERR_INVALID;
    if (!status) {
        status = tw_transport_create(&job, &t);
    }
    if (status) {
        printf("not created: %s\n", tw_status_string(status));
        return 2;
    }
    try {
        result = run(t, argv[1], argc > 2 ? argv[2] : "");
    } catch (const std::exception &error) {
        printf("%s\n", error.what());
    }
    fflush(stdout);
    if (std::string(argv[1]) == "end_on_failure") {
        _exit(result);
    }
    tw_transport_destroy(t);
    printf("%d connections left\n", for_connections([](int) {}));
    return result;
}
