/* Messages between two processes through every version's table. A warning in either is a failure. */
#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "tests/common/fixture.h"
#include "tests/plugin/nccl/net/proxy.h"

namespace
{

using namespace proxy;

class Messages : public testing::TestWithParam<int>
{
  protected:
    /* Both ends, each with its own copy of the version, opened and closed by `sender` and `receiver`. */
    static std::string run(const std::function<void(Net &, void *, const Channel &)> &sender,
                           const std::function<void(Net &, void *, const Channel &)> &receiver,
                           const std::map<std::string, std::string> &env = {})
    {
        const int number = GetParam();
        return run_pair(
            [&](const Channel &channel) {
                auto net = version(number);
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = make_sender(*net, channel);
                sender(*net, comm, channel);
                expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            },
            [&](const Channel &channel) {
                auto net = version(number);
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = make_receiver(*net, channel);
                receiver(*net, comm, channel);
                expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            },
            env);
    }
};

/* The same sizes, tags and order at both ends. */
std::vector<size_t> sizes_of(int n)
{
    std::vector<size_t> sizes = {0, 1, 16383, 16384, 16385, 262143, 262144, 262145, 3000001};
    std::mt19937 random(5);
    while ((int)sizes.size() < n) {
        sizes.push_back(random() % 2 ? random() % 40000 : random() % 600000);
    }
    return sizes;
}

TEST_P(Messages, ThirtyTwoUnderWayLookedAtInAnyOrder)
{
    const std::vector<size_t> sizes = sizes_of(96);
    auto drive = [&](Net &net, unsigned seed, const std::function<Message(size_t)> &post) {
        std::mt19937 random(seed);
        std::vector<Message> under_way;
        size_t next = 0;
        while (next < sizes.size() || !under_way.empty()) {
            if (next < sizes.size() && under_way.size() < TW_NCCL_REQUESTS) {
                under_way.push_back(post(next++));
            }
            if (!under_way.empty() && random() % 4 == 0) {
                const size_t i = random() % under_way.size();
                if (is_done(net, under_way[i])) {
                    under_way.erase(under_way.begin() + (long)i);
                }
            }
        }
    };
    EXPECT_EQ(run(
                  [&](Net &net, void *comm, const Channel &) {
                      drive(net, 1, [&](size_t i) { return send(net, comm, sizes[i], (int)(i % 3), i); });
                  },
                  [&](Net &net, void *comm, const Channel &) {
                      drive(net, 2, [&](size_t i) {
                          return receive(net, comm, {sizes[i]}, {(int)(i % 3)}, {i}, i % 2 ? 100 : 0);
                      });
                  }),
              "");
}

/* Eight messages to one request, sent in another order than their tags; two groups with the same tags keep
 * theirs. */
TEST_P(Messages, Groups)
{
    const std::vector<size_t> sizes = {0, 1, 20000, 5, 300000, 16384, 7, 90000};
    const std::vector<int> tags = {3, -1, 0, 77, 1 << 30, 5, 6, 2};
    EXPECT_EQ(run(
                  [&](Net &net, void *comm, const Channel &) {
                      std::vector<Message> sent;
                      for (size_t group = 0; group < 2; group++) {
                          for (size_t k = 0; k < sizes.size(); k++) {
                              const size_t i = (k * 5 + 3) % sizes.size();
                              sent.push_back(send(net, comm, sizes[i] + group, tags[i], 10 * group + i));
                          }
                      }
                      for (Message &message : sent) {
                          finish(net, message);
                      }
                  },
                  [&](Net &net, void *comm, const Channel &) {
                      std::vector<Message> groups;
                      for (size_t group = 0; group < 2; group++) {
                          std::vector<size_t> bytes(sizes), seeds(sizes.size());
                          for (size_t i = 0; i < bytes.size(); i++) {
                              bytes[i] += group;
                              seeds[i] = 10 * group + i;
                          }
                          groups.push_back(receive(net, comm, bytes, tags, seeds, 64));
                      }
                      finish(net, groups[1]);
                      finish(net, groups[0]);
                  }),
              "");
}

INSTANTIATE_TEST_SUITE_P(Versions, Messages, testing::Range(first_version, last_version + 1));

/* Where the versions do not differ: one without contexts, one with. */
class Latest : public Messages
{
};

/* More than can be under way: the call says "again", and nothing is lost. */
TEST_P(Latest, MoreThanCanBeUnderWay)
{
    constexpr int n = 300;
    EXPECT_EQ(run(
                  [&](Net &net, void *comm, const Channel &channel) {
                      channel.meet();
                      for (int i = 0; i < n; i++) {
                          Message message = send(net, comm, 100, 9, (size_t)i);
                          finish(net, message);
                      }
                  },
                  [&](Net &net, void *comm, const Channel &channel) {
                      std::vector<std::vector<uint8_t>> buffers(n, std::vector<uint8_t>(100));
                      std::vector<void *> requests;
                      for (int i = 0; i < n; i++) {
                          void *data = buffers[(size_t)i].data(), *mhandle = comm, *request = nullptr;
                          size_t bytes = 100;
                          int tag = 9;
                          expect(net.receive(comm, 1, &data, &bytes, &tag, &mhandle, &request) ==
                                     TW_NCCL_SUCCESS,
                                 "irecv");
                          if (request == nullptr) {
                              break;
                          }
                          requests.push_back(request);
                      }
                      const size_t taken = requests.size();
                      expect(taken >= TW_NCCL_REQUESTS && taken < n, std::to_string(taken) + " were taken");
                      channel.meet();
                      for (void *request : requests) {
                          int done = 0, size = 0;
                          while (!done) {
                              expect(net.test(request, &done, &size) == TW_NCCL_SUCCESS, "test");
                          }
                          expect(size == 100, "size");
                      }
                      for (size_t i = taken; i < n; i++) {
                          Message message = receive(net, comm, {100}, {9}, {i});
                          finish(net, message);
                      }
                      for (size_t i = 0; i < taken; i++) {
                          expect(buffers[i] == pattern(100, i), "wrong bytes");
                      }
                  }),
              "");
}

/* Whoever closes first, the other one is not bothered while it goes on with other connections; what was sent
 * before arrives. */
TEST_P(Latest, OneEndClosesFirst)
{
    for (bool sender_first : {true, false}) {
        auto end = [&](const Channel &channel, bool is_sender) {
            auto net = version(GetParam());
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            void *closing = is_sender ? make_sender(*net, channel) : make_receiver(*net, channel);
            void *staying = is_sender ? make_sender(*net, channel) : make_receiver(*net, channel);
            auto close_it = [&] {
                expect((is_sender ? net->close_send(closing) : net->close_receive(closing)) ==
                           TW_NCCL_SUCCESS,
                       "close");
            };
            if (is_sender) {
                Message message = send(*net, closing, 1000, 1, 4);
                finish(*net, message);
            } else if (!sender_first) {
                Message message = receive(*net, closing, {1000}, {1}, {4});
                finish(*net, message);
            }
            if (is_sender == sender_first) {
                close_it();
            }
            channel.meet();
            for (size_t i = 0; i < 50; i++) {
                Message message =
                    is_sender ? send(*net, staying, 50000, 1, i) : receive(*net, staying, {50000}, {1}, {i});
                finish(*net, message);
            }
            if (!is_sender && sender_first) {
                Message message = receive(*net, closing, {1000}, {1}, {4});
                finish(*net, message);
            }
            if (is_sender != sender_first) {
                close_it();
            }
            expect((is_sender ? net->close_send(staying) : net->close_receive(staying)) == TW_NCCL_SUCCESS,
                   "close");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        };
        EXPECT_EQ(run_pair([&](const Channel &channel) { end(channel, true); },
                           [&](const Channel &channel) { end(channel, false); }),
                  "")
            << (sender_first ? "the sender" : "the receiver") << " closes first";
    }
}

/* NCCL stops calling once its requests are done; what is done has to arrive all the same. */
TEST_P(Latest, WhatIsDoneArrivesWithoutAnotherCall)
{
    constexpr size_t bytes = 12 << 20;
    EXPECT_EQ(run(
                  [&](Net &net, void *comm, const Channel &channel) {
                      Message message = send(net, comm, bytes, 0, 1);
                      finish(net, message);
                      (void)channel.hear(1);
                  },
                  [&](Net &net, void *comm, const Channel &channel) {
                      Message message = receive(net, comm, {bytes}, {0}, {1});
                      while (!is_done(net, message)) {
                          usleep(1000);
                      }
                      channel.tell({'.'});
                  }),
              "");
}

/* Longer, in small chunks over several connections. */
TEST_P(Latest, LongOverSeveralStreams)
{
    const std::vector<size_t> sizes = {33 << 20, 64 << 20, (5 << 20) + 3};
    EXPECT_EQ(run(
                  [&](Net &net, void *comm, const Channel &) {
                      std::vector<Message> sent;
                      for (size_t i = 0; i < sizes.size(); i++) {
                          sent.push_back(send(net, comm, sizes[i], 0, i));
                      }
                      for (Message &message : sent) {
                          finish(net, message);
                      }
                  },
                  [&](Net &net, void *comm, const Channel &) {
                      std::vector<Message> received;
                      for (size_t i = 0; i < sizes.size(); i++) {
                          received.push_back(receive(net, comm, {sizes[i]}, {0}, {i}));
                      }
                      for (Message &message : received) {
                          finish(net, message);
                      }
                  },
                  {{"TW_NET_STREAMS", "4"}, {"TW_NET_CHUNK", "64K"}}),
              "");
}

/* A proxy thread for each communicator: four connections in each direction, all at once, and once more after
 * all have ended. */
TEST_P(Latest, SeveralThreadsBothWaysAndAgain)
{
    const int number = GetParam();
    auto both = [&](const Channel &channel, bool first) {
        for (int round = 0; round < 2; round++) {
            auto net = version(number);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            std::vector<void *> senders, receivers;
            for (int i = 0; i < 4; i++) {
                for (bool receiving : {first, !first}) {
                    if (receiving) {
                        receivers.push_back(make_receiver(*net, channel));
                    } else {
                        senders.push_back(make_sender(*net, channel));
                    }
                }
            }
            std::vector<std::thread> threads;
            std::vector<std::string> wrong(4);
            for (size_t t = 0; t < 4; t++) {
                threads.emplace_back([&, t] {
                    try {
                        for (size_t i = 0; i < 40; i++) {
                            Message in = receive(*net, receivers[t], {i * 3001}, {1}, {i});
                            Message out = send(*net, senders[t], i * 3001, 1, i);
                            finish(*net, out);
                            finish(*net, in);
                        }
                    } catch (const std::exception &error) {
                        wrong[t] = error.what();
                    }
                });
            }
            for (std::thread &thread : threads) {
                thread.join();
            }
            for (size_t t = 0; t < 4; t++) {
                expect(wrong[t].empty(), wrong[t]);
                expect(net->close_send(senders[t]) == TW_NCCL_SUCCESS, "close_send");
                expect(net->close_receive(receivers[t]) == TW_NCCL_SUCCESS, "close_receive");
            }
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        }
    };
    EXPECT_EQ(run_pair([&](const Channel &channel) { both(channel, true); },
                       [&](const Channel &channel) { both(channel, false); }),
              "");
}

/* Two GPUs of one process reach each other this way too. Afterwards the process has the descriptors that it
 * had. */
TEST_P(Latest, AProcessAndItself)
{
    EXPECT_EQ(run_pair(
                  [&](const Channel &) {
                      const auto before = tw::open_descriptors();
                      auto net = version(GetParam());
                      expect(net->init() == TW_NCCL_SUCCESS, "init");
                      Handle handle(TW_NCCL_HANDLE_BYTES);
                      void *listener = nullptr, *sender = nullptr, *receiver = nullptr;
                      expect(net->listen(handle.data(), &listener) == TW_NCCL_SUCCESS, "listen");
                      for (int i = 0; i < 100; i++) {
                          expect(sender || net->connect(handle.data(), &sender) == TW_NCCL_SUCCESS,
                                 "connect");
                      }
                      (void)until_connected([&](void **out) {
                          tw_nccl_result_t result =
                              receiver == nullptr ? net->accept(listener, &receiver) : TW_NCCL_SUCCESS;
                          if (result == TW_NCCL_SUCCESS && sender == nullptr) {
                              result = net->connect(handle.data(), &sender);
                          }
                          *out = receiver != nullptr ? sender : nullptr;
                          return result;
                      });
                      for (size_t bytes : {(size_t)0, (size_t)5000, (size_t)2000000}) {
                          Message in = receive(*net, receiver, {bytes}, {1}, {1});
                          Message out = send(*net, sender, bytes, 1, 1);
                          while (in.request != nullptr || out.request != nullptr) {
                              (void)(out.request != nullptr && is_done(*net, out));
                              (void)(in.request != nullptr && is_done(*net, in));
                          }
                      }
                      expect(net->close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
                      expect(net->close_send(sender) == TW_NCCL_SUCCESS, "close_send");
                      expect(net->close_receive(receiver) == TW_NCCL_SUCCESS, "close_receive");
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                      std::string left;
                      for (const auto &[fd, what] : tw::open_descriptors()) {
                          if (before.count(fd) == 0) {
                              left += what + " ";
                          }
                      }
                      expect(left.empty(), "left open: " + left);
                  },
                  [](const Channel &) {}),
              "");
}

INSTANTIATE_TEST_SUITE_P(Versions, Latest, testing::Values(9, 12));

} // namespace
