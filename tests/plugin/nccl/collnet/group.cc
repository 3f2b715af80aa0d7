#include "tests/plugin/nccl/collnet/group.h"

#include <cstdio>
#include <cstring>
#include <thread>

#include <sys/mman.h>

#include "core/core.h"

namespace group
{

namespace
{

constexpr double patience_sec = 40;

void succeed(tw_nccl_result_t result, const char *what)
{
    expect(result == TW_NCCL_SUCCESS, std::string(what) + ": result " + std::to_string(result));
}

} // namespace

/* ---- the others ---------------------------------------------------------------------------------------- */

void Place::meet(int n_here) const
{
    const double until = tw_time_sec() + patience_sec;
    n_met_ += n_here != 0 ? n_here : n_;
    board_->arrived++;
    while (board_->arrived < n_met_) {
        expect(tw_time_sec() < until, "another rank does not come");
        std::this_thread::yield();
    }
}

std::vector<std::vector<uint8_t>> Place::swap(const void *word, size_t bytes) const
{
    std::vector<std::vector<uint8_t>> words((size_t)n_, std::vector<uint8_t>(bytes));
    expect(bytes <= word_bytes, "a word is too long");
    for (size_t i = 0; i < bytes; i++) {
        board_->words[rank_][i] = ((const uint8_t *)word)[i];
    }
    meet();
    for (int r = 0; r < n_; r++) {
        for (size_t i = 0; i < bytes; i++) {
            words[(size_t)r][i] = board_->words[r][i];
        }
    }
    meet();
    return words;
}

/* ---- communicators ------------------------------------------------------------------------------------- */

tw_nccl_result_t try_join(CollNet &net, const Place &place, void **comm)
{
    char handle[TW_NCCL_HANDLE_BYTES];
    void *listener = nullptr;
    *comm = nullptr;
    succeed(net.listen(handle, &listener), "listen");
    auto handles = place.swap(handle, sizeof(handle));
    std::vector<void *> pointers;
    for (auto &each : handles) {
        pointers.push_back(each.data());
    }
    const tw_nccl_result_t result = net.connect(pointers.data(), place.n(), place.rank(), listener, comm);
    expect((result == TW_NCCL_SUCCESS) == (*comm != nullptr), "a communicator without success");
    if (result == TW_NCCL_SUCCESS) {
        succeed(net.close_listen(listener), "close_listen");
    }
    return result;
}

void *join(CollNet &net, const Place &place)
{
    void *comm = nullptr;
    succeed(try_join(net, place, &comm), "connect");
    return comm;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

void *taken(const std::function<tw_nccl_result_t(void **request)> &post)
{
    const double until = tw_time_sec() + patience_sec;
    void *request = nullptr;
    while (request == nullptr) {
        succeed(post(&request), "an operation");
        expect(tw_time_sec() < until, "an operation is never taken");
    }
    return request;
}

bool is_done(CollNet &net, void *request, size_t bytes)
{
    int done = -1, size = -1;
    succeed(net.test(request, &done, &size), "test");
    expect(done == 0 || done == 1, "done is neither 0 nor 1");
    expect(!done || (size_t)size == bytes, "size " + std::to_string(size));
    return done;
}

void finish(CollNet &net, void *request, size_t bytes)
{
    const double until = tw_time_sec() + patience_sec;
    while (!is_done(net, request, bytes)) {
        expect(tw_time_sec() < until, "an operation is never done");
    }
}

tw_nccl_result_t failure(CollNet &net, void *request)
{
    const double until = tw_time_sec() + patience_sec;
    tw_nccl_result_t result = TW_NCCL_SUCCESS;
    while (result == TW_NCCL_SUCCESS) {
        int done = 0, size = 0;
        result = net.test(request, &done, &size);
        expect(!done, "done, but a rank is dead");
        expect(tw_time_sec() < until, "it never fails");
    }
    return result;
}

/* ---- processes ----------------------------------------------------------------------------------------- */

namespace
{

int run_body(const Body &body, const Place &place)
{
    try {
        body(place);
    } catch (const std::exception &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}

std::string said(int rank, const process::Result &result)
{
    if (result.code == 0 && result.err.empty()) {
        return "";
    }
    return "rank " + std::to_string(rank) + " ended with " + std::to_string(result.code) +
           (result.in_time ? "" : " (it took too long)") + ": " + result.err + "\n";
}

} // namespace

std::string run(int n, const Body &body, const std::map<std::string, std::string> &env, double limit_sec)
{
    void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(memory != MAP_FAILED, "no shared memory");
    auto *board = new (memory) Board();
    std::vector<std::unique_ptr<process::Child>> children;
    for (int rank = 0; rank < n; rank++) {
        process::Spec spec;
        spec.env = {{"TW_NET_DEVICES", "lo"}, {"TW_PEER_TIMEOUT", "5s"}, {"TW_JOIN_TIMEOUT", "20s"}};
        for (const auto &[name, value] : env) {
            spec.env[name] = value;
        }
        spec.body = [=] { return run_body(body, Place(board, rank, n)); };
        children.push_back(std::make_unique<process::Child>(spec));
    }
    std::string text;
    for (int rank = 0; rank < n; rank++) {
        text += said(rank, children[(size_t)rank]->wait(limit_sec));
    }
    munmap(memory, sizeof(Board));
    return text;
}

} // namespace group
