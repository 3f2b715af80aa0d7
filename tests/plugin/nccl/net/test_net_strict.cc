/* What NCCL's thread must not be made to do: sleep, or work for long; and what must not happen behind its
 * back. */
#include <chrono>
#include <cstring>

#include "tests/common/fixture.h"
#include "tests/plugin/nccl/net/proxy.h"
#include "tests/plugin/nccl/net/strict.h"
#include "tests/plugin/nccl/net/ticker_sleeps.h"

namespace
{

using namespace proxy;

constexpr size_t long_bytes = (size_t)64 << 20;

class Strict : public testing::TestWithParam<int>
{
  protected:
    static std::unique_ptr<Net> ready()
    {
        auto net = version(GetParam());
        expect(net->init() == TW_NCCL_SUCCESS, "init");
        return net;
    }
};

/* The filter is there: without it the next test would say nothing. */
TEST(Filter, EndsAProcessThatSleeps)
{
    const std::string text = run_pair(
        [](const Channel &) {
            strict::without_sleep([] {
                const timespec moment = {0, 1};
                nanosleep(&moment, nullptr);
            });
        },
        [](const Channel &) {});
    EXPECT_NE(text.find("one ended with 159"), std::string::npos) << text;
}

/* A message of 64 MB and many short ones, to a receiver that takes its time: no call sleeps, and none takes
 * as long as a copy of the message would. */
TEST_P(Strict, NoCallSleepsOrWorksForLong)
{
    EXPECT_EQ(
        run_pair(
            [](const Channel &channel) {
                auto net = ready();
                void *comm = make_sender(*net, channel), *mhandle = nullptr;
                const double most_sec = strict::copy_sec(long_bytes);
                std::vector<uint8_t> data(long_bytes, 7);
                strict::Longest call;
                expect(net->register_memory(comm, data.data(), long_bytes, &mhandle) == TW_NCCL_SUCCESS,
                       "regMr");
                strict::without_sleep([&] {
                    for (int round = 0; round < strict::rounds; round++) {
                        for (size_t bytes : {long_bytes, (size_t)8, (size_t)0, (size_t)20000, long_bytes}) {
                            void *request = nullptr;
                            int done = 0, size = 0;
                            while (request == nullptr) {
                                expect(call([&] {
                                           return net->send(comm, data.data(), bytes, 0, mhandle, &request);
                                       }) == TW_NCCL_SUCCESS,
                                       "isend");
                            }
                            while (!done) {
                                expect(call([&] { return net->test(request, &done, &size); }) ==
                                           TW_NCCL_SUCCESS,
                                       "test");
                            }
                        }
                        call.end_round();
                    }
                });
                expect(call.best_sec() < most_sec, "a call took " + std::to_string(call.best_sec()) +
                                                       " s, a copy " + std::to_string(most_sec));
                expect(net->deregister_memory(comm, mhandle) == TW_NCCL_SUCCESS, "deregMr");
                channel.meet();
                expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
            },
            [](const Channel &channel) {
                auto net = ready();
                void *comm = make_receiver(*net, channel), *mhandle = nullptr;
                const double most_sec = strict::copy_sec(long_bytes);
                std::vector<uint8_t> buffer(long_bytes);
                strict::Longest call;
                expect(net->register_memory(comm, buffer.data(), long_bytes, &mhandle) == TW_NCCL_SUCCESS,
                       "regMr");
                strict::without_sleep([&] {
                    for (int round = 0; round < strict::rounds; round++) {
                        for (size_t bytes : {long_bytes, (size_t)8, (size_t)0, (size_t)20000, long_bytes}) {
                            void *request = nullptr, *data = buffer.data();
                            size_t room = long_bytes;
                            int done = 0, size = 0, tag = 0;
                            while (request == nullptr) {
                                expect(call([&] {
                                           return net->receive(comm, 1, &data, &room, &tag, &mhandle,
                                                               &request);
                                       }) == TW_NCCL_SUCCESS,
                                       "irecv");
                            }
                            while (!done) {
                                expect(call([&] { return net->test(request, &done, &size); }) ==
                                           TW_NCCL_SUCCESS,
                                       "test");
                            }
                            expect((size_t)size == bytes, "size");
                        }
                        call.end_round();
                    }
                });
                expect(call.best_sec() < most_sec, "a call took " + std::to_string(call.best_sec()) +
                                                       " s, a copy " + std::to_string(most_sec));
                expect(net->deregister_memory(comm, mhandle) == TW_NCCL_SUCCESS, "deregMr");
                channel.meet();
                expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
            }),
        "");
}

/* A send that is done may be overwritten at once, and a receive that is done stays as it is: also while more
 * messages go from and to the same places. */
TEST_P(Strict, BuffersAreNcclsAgainOnceDone)
{
    EXPECT_EQ(run_pair(
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_sender(*net, channel);
                      for (size_t k = 0; k < 200; k++) {
                          const size_t bytes = k % 3 == 0 ? 100 : k % 3 == 1 ? 16384 : 300000;
                          Message message = send(*net, comm, bytes, 0, k);
                          finish(*net, message);
                          memset(message.buffers[0].data(), 0xee, bytes);
                      }
                      channel.meet();
                      expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                  },
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_receiver(*net, channel);
                      std::vector<Message> done;
                      for (size_t k = 0; k < 200; k++) {
                          const size_t bytes = k % 3 == 0 ? 100 : k % 3 == 1 ? 16384 : 300000;
                          done.push_back(receive(*net, comm, {bytes}, {0}, {k}, 64));
                          finish(*net, done.back());
                          memset(done.back().buffers[0].data(), 0x11, bytes);
                      }
                      channel.meet();
                      for (const Message &message : done) {
                          std::vector<uint8_t> right(message.buffers[0].size(), 0xa5);
                          std::fill(right.begin(), right.end() - 64, 0x11);
                          expect(message.buffers[0] == right, "a buffer was touched after it was done");
                      }
                      expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                  }),
              "");
}

/* Back and forth, each message awaited: what the plugin's thread does in that time depends on the time alone,
 * not on the messages, and is next to nothing. Were it awake, it would take the processor and the lock from
 * NCCL's. */
TEST_P(Strict, ItsThreadStaysOutOfTheWay)
{
    constexpr int n_trips = 5000;
    auto trips = [](const Channel &channel, bool is_first) {
        auto net = ready();
        void *to = nullptr, *from = nullptr;
        if (is_first) {
            to = make_sender(*net, channel);
            from = make_receiver(*net, channel);
        } else {
            from = make_receiver(*net, channel);
            to = make_sender(*net, channel);
        }
        const auto start = std::chrono::steady_clock::now();
        const long sleeps_before = ticker_sleeps();
        for (int k = 0; k < n_trips; k++) {
            for (const bool is_send : {is_first, !is_first}) {
                Message message = is_send ? send(*net, to, 8, 0, 1) : receive(*net, from, {8}, {0}, {1});
                finish(*net, message);
            }
        }
        const double ms =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        const double sleeps = (double)(ticker_sleeps() - sleeps_before), most = 10 + ms / 2;
        expect(sleeps <= most, std::to_string(sleeps) + " sleeps in " + std::to_string(ms) + " ms");
        channel.meet();
        expect(net->close_send(to) == TW_NCCL_SUCCESS, "close_send");
        expect(net->close_receive(from) == TW_NCCL_SUCCESS, "close_receive");
    };
    EXPECT_EQ(run_pair([&](const Channel &channel) { trips(channel, true); },
                       [&](const Channel &channel) { trips(channel, false); }),
              "");
}

INSTANTIATE_TEST_SUITE_P(Versions, Strict, testing::Values(8, 12));

} // namespace
