/* What goes wrong in another rank, or comes from a stranger. */
#include <csignal>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/plugin/nccl/collnet/group.h"

namespace
{

using namespace group;

bool contains(const std::string &text, const std::string &what)
{
    return text.find(what) != std::string::npos;
}

std::unique_ptr<CollNet> ready()
{
    auto net = version(12);
    expect(net->init() == TW_NCCL_SUCCESS, "init");
    return net;
}

void end(CollNet &net, void *comm)
{
    expect(net.close(comm) == TW_NCCL_SUCCESS, "close");
    expect(net.finalize() == TW_NCCL_SUCCESS, "finalize");
}

/* What becomes of operations, when it is known here that they cannot be done any more. */
tw_nccl_result_t how_it_fails(CollNet &net, const std::function<tw_nccl_result_t()> &post, void **request)
{
    tw_nccl_result_t result = TW_NCCL_SUCCESS;
    while (result == TW_NCCL_SUCCESS) {
        result = post();
        if (result == TW_NCCL_SUCCESS && *request != nullptr) {
            result = failure(net, *request);
        }
    }
    return result;
}

/* Rank 0 watches over the others, and so dies differently. */
class Killed : public testing::TestWithParam<int>
{
  protected:
    /* What the others do, when the one is dead or will be: `before` on all of them, `after` on those who are
     * left. */
    void run_and_kill(const std::function<void(CollNet &, void *, const Place &)> &before,
                      const std::function<void(CollNet &, void *)> &after)
    {
        const int victim = GetParam();
        const std::string text = run(3, [&](const Place &place) {
            auto net = ready();
            void *comm = join(*net, place);
            if (before != nullptr) {
                before(*net, comm, place);
            }
            place.meet();
            if (place.rank() == victim) {
                raise(SIGKILL);
            }
            after(*net, comm);
            end(*net, comm);
        });
        for (int r = 0; r < 3; r++) {
            const std::string ended = "rank " + std::to_string(r) + " ended with ";
            EXPECT_TRUE(contains(text, ended + (r == victim ? "137" : "0"))) << text;
        }
        EXPECT_TRUE(contains(text, "peer " + std::to_string(victim) + " failed")) << text;
    }
};

std::vector<float> g_send(1 << 20, 1), g_receive(1 << 20);

tw_nccl_result_t reduce(CollNet &net, void *comm, size_t at, size_t count, void **request)
{
    return net.allreduce(comm, g_send.data() + at, g_receive.data() + at, count, TW_NCCL_FLOAT32, TW_NCCL_SUM,
                         request);
}

TEST_P(Killed, BeforeAnOperation)
{
    run_and_kill(nullptr, [](CollNet &net, void *comm) {
        void *request = nullptr;
        tw_nccl_result_t result = how_it_fails(
            net, [&] { return reduce(net, comm, 0, 1000, &request); }, &request);
        expect(result == TW_NCCL_REMOTE_ERROR, "no remote error");
        expect(reduce(net, comm, 0, 1000, &request) == TW_NCCL_REMOTE_ERROR && request == nullptr,
               "an operation after the end");
    });
}

TEST_P(Killed, WithOperationsUnderWay)
{
    const int victim = GetParam();
    std::vector<void *> requests;
    run_and_kill(
        [&](CollNet &net, void *comm, const Place &place) {
            for (size_t k = 0; k < 8 && place.rank() != victim; k++) {
                requests.push_back(
                    taken([&](void **out) { return reduce(net, comm, k << 16, 1 << 16, out); }));
            }
        },
        [&](CollNet &net, void *) {
            for (void *request : requests) {
                expect(failure(net, request) == TW_NCCL_REMOTE_ERROR, "no remote error");
            }
        });
}

TEST_P(Killed, WhileTheOthersClose)
{
    const int victim = GetParam();
    const std::string text = run(3, [&](const Place &place) {
        auto net = ready();
        void *comm = join(*net, place);
        place.meet();
        if (place.rank() == victim) {
            raise(SIGKILL);
        }
        end(*net, comm);
    });
    EXPECT_TRUE(contains(text, "rank " + std::to_string(victim) + " ended with 137")) << text;
    for (int r = 0; r < 3; r++) {
        EXPECT_EQ(contains(text, "rank " + std::to_string(r) + " ended with 1:"), false) << text;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Killed, testing::Values(0, 2));

/* ---- connect: all or none ------------------------------------------------------------------------------ */

/* No rank gets a communicator; `spoil` is called in each before. */
std::string nobody_connects(const std::function<void(const Place &)> &spoil,
                            const std::map<std::string, std::string> &env = {})
{
    return run(
        3,
        [&](const Place &place) {
            spoil(place);
            auto net = ready();
            void *comm = nullptr;
            expect(try_join(*net, place, &comm) != TW_NCCL_SUCCESS, "connected");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        },
        env);
}

void all_ended_well(const std::string &text)
{
    for (int r = 0; r < 3; r++) {
        EXPECT_TRUE(contains(text, "rank " + std::to_string(r) + " ended with 0:")) << text;
    }
}

TEST(Connect, AnotherToken)
{
    const std::string text = nobody_connects(
        [](const Place &place) { setenv("TW_JOB_TOKEN", place.rank() == 1 ? "another" : "one", 1); },
        {{"TW_JOIN_TIMEOUT", "2s"}});
    all_ended_well(text);
    EXPECT_TRUE(contains(text, "missing after 2 s: rank 1")) << text;
}

TEST(Connect, AnotherCodec)
{
    const std::pair<const char *, const char *> pairs[] = {
        {"int8", "int4"}, {"lossless", "int8"}, {"plain", "lossless"}, {"lossless", "plain"}};
    for (const auto &[most, last] : pairs) {
        const std::string text = nobody_connects([most = most, last = last](const Place &place) {
            setenv("TW_ALLREDUCE_CODEC", place.rank() == 2 ? last : most, 1);
        });
        all_ended_well(text);
        EXPECT_TRUE(contains(text, "TW_ALLREDUCE_CODEC is not the same on ranks 0 and 2")) << text;
    }
}

/* One dies when the others are about to connect: before it has a handle is NCCL's own business. */
TEST(Connect, WithoutOne)
{
    for (int victim : {0, 2}) {
        const std::string text =
            run(3,
                [&](const Place &place) {
                    auto net = ready();
                    void *comm = nullptr;
                    if (place.rank() == victim) {
                        char handle[TW_NCCL_HANDLE_BYTES];
                        void *listener = nullptr;
                        expect(net->listen(handle, &listener) == TW_NCCL_SUCCESS, "listen");
                        (void)place.swap(handle, sizeof(handle));
                        raise(SIGKILL);
                    }
                    expect(try_join(*net, place, &comm) != TW_NCCL_SUCCESS, "connected");
                },
                {{"TW_JOIN_TIMEOUT", "2s"}});
        for (int r = 0; r < 3; r++) {
            const std::string ended = "rank " + std::to_string(r) + " ended with ";
            EXPECT_TRUE(contains(text, ended + (r == victim ? "137" : "0:"))) << text;
        }
    }
}

TEST(Connect, HandlesThatAreNone)
{
    const std::string text = run(1, [](const Place &) {
        auto net = ready();
        char handle[TW_NCCL_HANDLE_BYTES] = {}, none[TW_NCCL_HANDLE_BYTES] = {};
        for (int k = 0; k < 3; k++) {
            void *listener = nullptr, *comm = &comm;
            expect(net->listen(handle, &listener) == TW_NCCL_SUCCESS, "listen");
            memset(none, 0x5a, sizeof(none));
            void *not_one[] = {none, handle}, *not_mine[] = {handle, none}, *one[] = {handle};
            tw_nccl_result_t result = TW_NCCL_SUCCESS;
            if (k == 0) {
                result = net->connect(not_one, 2, 1, listener, &comm);
            } else if (k == 1) {
                result = net->connect(not_mine, 2, 1, listener, &comm);
            } else {
                result = net->connect(one, 1, 1, listener, &comm);
            }
            expect(result != TW_NCCL_SUCCESS && comm == nullptr, "connected");
        }
    });
    EXPECT_TRUE(contains(text, "rank 0 ended with 0:")) << text;
    EXPECT_TRUE(contains(text, "is no handle")) << text;
    EXPECT_TRUE(contains(text, "not the one of its listener")) << text;
    EXPECT_TRUE(contains(text, "rank 1 of 1")) << text;
}

/* The port is open to anyone: silent ones and garbage do not matter. */
TEST(Connect, StrangersAtTheDoor)
{
    EXPECT_EQ(run(2,
                  [](const Place &place) {
                      auto net = ready();
                      char handle[TW_NCCL_HANDLE_BYTES];
                      void *listener = nullptr, *comm = nullptr;
                      expect(net->listen(handle, &listener) == TW_NCCL_SUCCESS, "listen");
                      auto handles = place.swap(handle, sizeof(handle));
                      std::vector<int> fds;
                      for (const std::string &bytes :
                           {std::string(), std::string(1, 'x'), std::string(5000, '\xff')}) {
                          uint32_t port = 0;
                          memcpy(&port, handles[0].data() + 4, sizeof(port));
                          sockaddr_in address = {};
                          address.sin_family = AF_INET;
                          address.sin_port = htons((uint16_t)port);
                          address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                          const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                          expect(::connect(fd, (sockaddr *)&address, sizeof(address)) == 0,
                                 "no way to the listener");
                          expect(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                                     (ssize_t)bytes.size(),
                                 "bytes");
                          fds.push_back(fd);
                      }
                      void *pointers[] = {handles[0].data(), handles[1].data()};
                      expect(net->connect(pointers, 2, place.rank(), listener, &comm) == TW_NCCL_SUCCESS,
                             "connect");
                      expect(net->close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
                      finish(*net, taken([&](void **out) { return reduce(*net, comm, 0, 100, out); }), 400);
                      end(*net, comm);
                      for (int fd : fds) {
                          ::close(fd);
                      }
                  }),
              "");
}

/* ---- memory and ends ----------------------------------------------------------------------------------- */

/* NCCL, when it is aborted, gives memory back under operations that will never be done. */
TEST(Memory, IsNotTouchedAfterItIsDeregistered)
{
    const std::string text = run(2, [](const Place &place) {
        auto net = ready();
        void *comm = join(*net, place), *mhandle = nullptr;
        place.meet();
        if (place.rank() == 0) {
            expect(net->register_memory(comm, g_send.data(), g_send.size() * 4, &mhandle) == TW_NCCL_SUCCESS,
                   "regMr");
            void *request = taken([&](void **out) { return reduce(*net, comm, 0, 1 << 20, out); });
            expect(net->deregister_memory(comm, mhandle) == TW_NCCL_SUCCESS, "deregMr");
            int done = 0, size = 0;
            expect(net->test(request, &done, &size) != TW_NCCL_SUCCESS && !done, "it should have ended");
            place.meet(); /* only now the other rank does anything */
        } else {
            void *request = nullptr;
            place.meet();
            auto post = [&] { return reduce(*net, comm, 0, 1 << 20, &request); };
            expect(how_it_fails(*net, post, &request) == TW_NCCL_REMOTE_ERROR, "no remote error");
        }
        end(*net, comm);
    });
    EXPECT_TRUE(contains(text, "rank 1 ended with 0:")) << text;
    EXPECT_FALSE(contains(text, "ended with 1:")) << text;
}

/* Rank 0 stays for the others; NCCL does not wait for that longer than it was told. */
TEST(Close, IsBounded)
{
    const std::string text =
        run(2,
            [](const Place &place) {
                auto net = ready();
                void *comm = join(*net, place);
                finish(*net, taken([&](void **out) { return reduce(*net, comm, 0, 100, out); }), 400);
                if (place.rank() == 0) {
                    expect(net->close(comm) == TW_NCCL_SUCCESS, "close");
                    place.meet(); /* the other has not closed its own yet */
                } else {
                    place.meet();
                    expect(net->close(comm) == TW_NCCL_SUCCESS, "close");
                }
                place.meet();
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            },
            {{"TW_PEER_TIMEOUT", "1s"}});
    EXPECT_TRUE(text.empty() || contains(text, "stays to watch over 1 rank")) << text;
}

TEST(Arguments, ThatNcclWasNotOffered)
{
    const std::string text = run(1, [](const Place &place) {
        auto net = ready();
        void *comm = join(*net, place), *request = nullptr;
        int supported = -1;
        for (int type = 0; type < 14; type++) {
            for (int op = 0; op < 6; op++) {
                expect(net->support(type, op, &supported) == TW_NCCL_SUCCESS, "reduceSupport");
                expect(supported == (op == 0 && (type == 6 || type == 7 || type == 9)), "reduceSupport");
                if (!supported) {
                    expect(net->allreduce(comm, g_send.data(), g_receive.data(), 1, type, op, &request) ==
                                   TW_NCCL_INVALID_ARGUMENT &&
                               request == nullptr,
                           "an operation that was not offered");
                }
            }
        }
        expect(net->allgather(comm, g_send.data(), g_receive.data(), {100, 50, 60}, &request) ==
                   TW_NCCL_INVALID_ARGUMENT,
               "a window beyond the end");
        expect(net->reducescatter(comm, g_send.data(), g_receive.data(), {100, 50, 10}, TW_NCCL_FLOAT32, 0,
                                  &request) == TW_NCCL_INVALID_ARGUMENT,
               "half an element");
        finish(*net, taken([&](void **out) { return reduce(*net, comm, 0, 100, out); }), 400);
        end(*net, comm);
    });
    EXPECT_TRUE(contains(text, "rank 0 ended with 0:")) << text;
}

TEST(Settings, ACodecThatIsNone)
{
    const std::string text = run(1,
                                 [](const Place &) {
                                     for (int number : {8, 12}) {
                                         auto net = version(number);
                                         expect(net->init() == TW_NCCL_INVALID_USAGE, "init");
                                         expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                                     }
                                 },
                                 {{"TW_ALLREDUCE_CODEC", "int7"}});
    EXPECT_TRUE(contains(text, "rank 0 ended with 0:")) << text;
    EXPECT_TRUE(contains(text, "TW_ALLREDUCE_CODEC=int7")) << text;
}

} // namespace
