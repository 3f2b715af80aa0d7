#include "tests/plugin/nccl/net/proxy.h"

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"

namespace proxy
{

namespace
{

constexpr double patience_sec = 40;

void succeed(tw_nccl_result_t result, const char *what)
{
    expect(result == TW_NCCL_SUCCESS, std::string(what) + ": result " + std::to_string(result));
}

} // namespace

void expect(bool holds, const std::string &what)
{
    if (!holds) {
        throw std::runtime_error(what);
    }
}

/* ---- the other process --------------------------------------------------------------------------------- */

void Channel::tell(const Handle &bytes) const
{
    expect(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == (ssize_t)bytes.size(),
           "the other is gone");
}

Handle Channel::hear(size_t bytes) const
{
    Handle out(bytes);
    expect(::recv(fd_, out.data(), bytes, MSG_WAITALL) == (ssize_t)bytes, "the other is gone");
    return out;
}

void Channel::meet() const
{
    tell({'.'});
    (void)hear(1);
}

/* ---- connections --------------------------------------------------------------------------------------- */

void *until_connected(const std::function<tw_nccl_result_t(void **comm)> &call)
{
    const double until = tw_time_sec() + patience_sec;
    void *comm = nullptr;
    while (comm == nullptr) {
        succeed(call(&comm), "connecting");
        expect(tw_time_sec() < until, "no connection");
    }
    return comm;
}

void *make_receiver(Net &net, const Channel &channel)
{
    Handle handle(TW_NCCL_HANDLE_BYTES);
    void *listener = nullptr;
    succeed(net.listen(handle.data(), &listener), "listen");
    channel.tell(handle);
    void *comm = until_connected([&](void **out) { return net.accept(listener, out); });
    succeed(net.close_listen(listener), "close_listen");
    return comm;
}

void *make_sender(Net &net, const Channel &channel)
{
    Handle handle = channel.hear(TW_NCCL_HANDLE_BYTES);
    return until_connected([&](void **out) { return net.connect(handle.data(), out); });
}

/* ---- messages ------------------------------------------------------------------------------------------ */

std::vector<uint8_t> pattern(size_t bytes, size_t seed)
{
    std::vector<uint8_t> data(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(i * 31 + (i >> 9) + seed * 7 + 1);
    }
    return data;
}

Message send(Net &net, void *comm, size_t bytes, int tag, size_t seed)
{
    Message message;
    message.is_send = true;
    message.buffers = {pattern(bytes, seed)};
    message.expected_bytes = {bytes};
    message.seeds = {seed};
    void *mhandle = nullptr;
    succeed(net.register_memory(comm, message.buffers[0].data(), bytes, &mhandle), "regMr");
    const double until = tw_time_sec() + patience_sec;
    while (message.request == nullptr) {
        succeed(net.send(comm, message.buffers[0].data(), bytes, tag, mhandle, &message.request), "isend");
        expect(tw_time_sec() < until, "a send is never taken");
    }
    message.comm = comm;
    message.mhandles = {mhandle};
    return message;
}

Message receive(Net &net, void *comm, const std::vector<size_t> &bytes, const std::vector<int> &tags,
                const std::vector<size_t> &seeds, size_t spare)
{
    Message message;
    message.expected_bytes = bytes;
    message.seeds = seeds;
    std::vector<void *> data, mhandles(bytes.size());
    std::vector<size_t> sizes;
    std::vector<int> with(tags);
    for (size_t i = 0; i < bytes.size(); i++) {
        message.buffers.emplace_back(bytes[i] + spare, (uint8_t)0xa5);
        data.push_back(message.buffers[i].data());
        sizes.push_back(bytes[i] + spare);
        succeed(net.register_memory(comm, data[i], sizes[i], &mhandles[i]), "regMr");
    }
    const double until = tw_time_sec() + patience_sec;
    while (message.request == nullptr) {
        succeed(net.receive(comm, (int)bytes.size(), data.data(), sizes.data(), with.data(), mhandles.data(),
                            &message.request),
                "irecv");
        expect(tw_time_sec() < until, "a receive is never taken");
    }
    message.comm = comm;
    message.mhandles = mhandles;
    return message;
}

bool is_done(Net &net, Message &message)
{
    int done = -1;
    std::vector<int> sizes(message.buffers.size(), -1);
    succeed(net.test(message.request, &done, sizes.data()), "test");
    expect(done == 0 || done == 1, "done is neither 0 nor 1");
    if (!done) {
        return false;
    }
    message.request = nullptr;
    for (void *mhandle : message.mhandles) {
        succeed(net.deregister_memory(message.comm, mhandle), "deregMr");
    }
    for (size_t i = 0; i < sizes.size(); i++) {
        const size_t bytes = message.expected_bytes[i];
        expect((size_t)sizes[i] == bytes,
               "size " + std::to_string(sizes[i]) + " instead of " + std::to_string(bytes));
        std::vector<uint8_t> right = pattern(bytes, message.seeds[i]);
        right.resize(message.buffers[i].size(), 0xa5);
        expect(message.buffers[i] == right, "wrong bytes, or bytes beyond the message's end");
    }
    return true;
}

void finish(Net &net, Message &message)
{
    const double until = tw_time_sec() + patience_sec;
    while (!is_done(net, message)) {
        expect(tw_time_sec() < until,
               "a message of " + std::to_string(message.expected_bytes[0]) + " bytes is never done");
    }
}

/* ---- processes ----------------------------------------------------------------------------------------- */

namespace
{

int run_body(const Body &body, int fd, int not_mine)
{
    close(not_mine);
    try {
        body(Channel(fd));
    } catch (const std::exception &error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}

std::string said(const char *who, const process::Result &result)
{
    if (result.code == 0 && result.err.empty()) {
        return "";
    }
    return std::string(who) + " ended with " + std::to_string(result.code) +
           (result.in_time ? "" : " (it took too long)") + ": " + result.err + "\n";
}

} // namespace

std::string run_pair(const Body &one, const Body &other, const std::map<std::string, std::string> &env,
                     double limit_sec)
{
    int fds[2];
    expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "no socketpair");
    process::Spec a, b;
    a.env = b.env = {{"TW_NET_DEVICES", "lo"}, {"TW_PEER_TIMEOUT", "5s"}};
    for (const auto &[name, value] : env) {
        a.env[name] = b.env[name] = value;
    }
    a.body = [&] { return run_body(one, fds[0], fds[1]); };
    b.body = [&] { return run_body(other, fds[1], fds[0]); };
    process::Child child_a(a), child_b(b);
    close(fds[0]);
    close(fds[1]);
    const process::Result result_a = child_a.wait(limit_sec), result_b = child_b.wait(limit_sec);
    return said("one", result_a) + said("the other", result_b);
}

} // namespace proxy
