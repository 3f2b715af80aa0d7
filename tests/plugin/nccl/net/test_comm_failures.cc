/* What goes wrong in the other process, or comes from a stranger. */
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "tests/common/sanitized.h"
#include "tests/plugin/nccl/net/proxy.h"

namespace
{

using namespace proxy;

class Failures : public testing::TestWithParam<int>
{
  protected:
    static std::unique_ptr<Net> ready()
    {
        auto net = version(GetParam());
        expect(net->init() == TW_NCCL_SUCCESS, "init");
        return net;
    }
    /* Tests until it is an error. */
    static void fails_as_remote(Net &net, void *request)
    {
        int done = 0, size = 0;
        tw_nccl_result_t result = TW_NCCL_SUCCESS;
        while (result == TW_NCCL_SUCCESS) {
            result = net.test(request, &done, &size);
            expect(!done, "done though the peer is dead");
        }
        expect(result == TW_NCCL_REMOTE_ERROR, "result " + std::to_string(result));
    }
    static bool contains(const std::string &text, const std::string &what)
    {
        return text.find(what) != std::string::npos;
    }
    /* `what` happened to one side only: the text of run_pair when the one was killed and the other said so,
     * and nothing else. */
    static void only_said(const std::string &text, const std::string &said)
    {
        EXPECT_TRUE(contains(text, "one ended with 137")) << text;
        EXPECT_TRUE(contains(text, "the other ended with 0")) << text;
        EXPECT_TRUE(contains(text, said)) << text;
    }
};

TEST_P(Failures, TheSenderIsKilledWhileAReceiveWaits)
{
    only_said(run_pair(
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_sender(*net, channel);
                      Message message = send(*net, comm, 10, 0, 0);
                      finish(*net, message);
                      (void)channel.hear(1);
                      raise(SIGKILL);
                  },
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_receiver(*net, channel);
                      Message arrives = receive(*net, comm, {10}, {0}, {0});
                      finish(*net, arrives);
                      Message first = receive(*net, comm, {1000}, {0}, {0});
                      Message second = receive(*net, comm, {1000, 2000}, {0, 1}, {0, 0});
                      channel.tell({'.'});
                      fails_as_remote(*net, first.request);
                      fails_as_remote(*net, second.request);
                      void *request = nullptr;
                      char byte = 0;
                      size_t bytes = 1;
                      int tag = 0;
                      void *data = &byte, *mhandle = comm;
                      expect(net->receive(comm, 1, &data, &bytes, &tag, &mhandle, &request) ==
                                 TW_NCCL_REMOTE_ERROR,
                             "a new receive");
                      expect(request == nullptr, "a request");
                      expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  }),
              "lo: peer 0 at 127.0.0.1");
}

TEST_P(Failures, TheReceiverIsKilledInTheMiddleOfALongMessage)
{
    only_said(run_pair(
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_receiver(*net, channel);
                      Message message = receive(*net, comm, {100 << 20}, {0}, {0});
                      (void)channel.hear(1);
                      for (int i = 0; i < 20; i++) {
                          expect(!is_done(*net, message), "so soon");
                      }
                      raise(SIGKILL);
                  },
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_sender(*net, channel);
                      Message message = send(*net, comm, 100 << 20, 0, 0);
                      channel.tell({'.'});
                      fails_as_remote(*net, message.request);
                      expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  }),
              "lo: peer 0 at 127.0.0.1");
}

/* Those that the system has taken are done; those for which there was no room are not, and learn of it. */
TEST_P(Failures, TheReceiverIsKilledBeforeItTakesAnything)
{
    only_said(run_pair(
                  [](const Channel &channel) {
                      auto net = ready();
                      (void)make_receiver(*net, channel);
                      (void)channel.hear(1);
                      raise(SIGKILL);
                  },
                  [](const Channel &channel) {
                      constexpr size_t bytes = 200000, n = 60; /* more than there is credit for */
                      auto net = ready();
                      void *comm = make_sender(*net, channel);
                      std::vector<Message> messages;
                      while (messages.size() < n) {
                          messages.push_back(send(*net, comm, bytes, 0, messages.size()));
                      }
                      size_t n_done = 0;
                      while (n_done < n && is_done(*net, messages[n_done])) {
                          n_done++;
                      }
                      expect(n_done < n, "all are done, and nobody has received anything");
                      channel.tell({'.'});
                      fails_as_remote(*net, messages[n - 1].request);
                      expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  }),
              "lo: peer 0 at 127.0.0.1");
}

/* Its other connections go on, and new ones can be made. */
/* ---- closing ------------------------------------------------------------------------------------------- */

constexpr int channels = 8;
constexpr double timeout_sec = 2;

/* Closes all connections and the context, as an abort does; fails if that takes more than one timeout, and
 * some for a busy machine. */
void close_in_time(Net &net, const std::vector<void *> &senders, const std::vector<void *> &receivers)
{
    const double begun = tw_time_sec();
    for (void *comm : senders) {
        expect(net.close_send(comm) == TW_NCCL_SUCCESS, "close_send");
    }
    for (void *comm : receivers) {
        expect(net.close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
    }
    expect(net.finalize() == TW_NCCL_SUCCESS, "finalize");
    const double sec = tw_time_sec() - begun;
    fprintf(stderr, "closed in %.1f s\n", sec);
    expect(sec < timeout_sec + 5, "closing took " + std::to_string(sec) + " s");
}

/* Eight channels each way; then `vanish` happens to the one, and the other closes, with messages under way or
 * without. */
std::string close_towards(bool under_way, const std::function<void(const Channel &)> &vanish)
{
    return run_pair(
        [=](const Channel &channel) {
            auto net = version(last_version);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            for (int i = 0; i < channels; i++) {
                (void)make_sender(*net, channel);
                (void)make_receiver(*net, channel);
            }
            channel.meet();
            vanish(channel);
            raise(SIGKILL);
        },
        [=](const Channel &channel) {
            auto net = version(last_version);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            std::vector<void *> senders, receivers;
            std::vector<Message> messages;
            for (int i = 0; i < channels; i++) {
                receivers.push_back(make_receiver(*net, channel));
                senders.push_back(make_sender(*net, channel));
            }
            channel.meet();
            (void)channel.hear(1); /* it is about to go */
            usleep(200000);
            for (int i = 0; i < channels; i++) { /* small ones are done at once, and stay in the kernel */
                Message small = send(*net, senders[(size_t)i], 1000, 0, 0);
                finish(*net, small);
                if (under_way) {
                    messages.push_back(send(*net, senders[(size_t)i], 4 << 20, 1, 0));
                    messages.push_back(receive(*net, receivers[(size_t)i], {1000}, {0}, {0}));
                }
            }
            close_in_time(*net, senders, receivers);
            channel.tell({'.'});
        },
        {{"TW_PEER_TIMEOUT", std::to_string(timeout_sec) + "s"}});
}

class Closing : public testing::TestWithParam<bool>
{
};

TEST_P(Closing, TowardsAProcessThatIsStopped)
{
    const std::string text = close_towards(GetParam(), [](const Channel &channel) {
        const pid_t self = getpid();
        if (fork() == 0) { /* goes on for it when the other is through */
            (void)channel.hear(1);
            kill(self, SIGKILL);
            _exit(0);
        }
        channel.tell({'.'});
        raise(SIGSTOP);
    });
    EXPECT_NE(text.find("the other ended with 0"), std::string::npos) << text;
}

/* Both are in a network of their own, whose only device goes down: nobody answers, nor says that he does
 * not. */
TEST_P(Closing, TowardsAMachineThatIsGone)
{
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up") != 0) {
            _exit(77);
        }
        const std::string text = close_towards(GetParam(), [](const Channel &channel) {
            channel.tell({'.'});
            expect(system("ip link set lo down") == 0, "lo stays up");
            (void)channel.hear(1);
        });
        const bool is_right = text.find("the other ended with 0") != std::string::npos;
        fprintf(stderr, "%s\n", text.c_str());
        _exit(is_right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        GTEST_SKIP() << "no network of its own can be made here";
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

INSTANTIATE_TEST_SUITE_P(Of8Channels, Closing, testing::Bool(),
                         [](const auto &each) { return each.param ? "Aborted" : "InOrder"; });

/* The last connection of a device closes: what it has sent is not taken by a process that is stopped, and is
 * waited for. Whoever begins meanwhile is not kept waiting. */
TEST_P(Failures, ClosingHoldsNobodyWhoBegins)
{
    const std::string text = run_pair(
        [](const Channel &channel) {
            auto net = ready();
            (void)make_receiver(*net, channel);
            const pid_t self = getpid();
            if (fork() == 0) { /* goes on for it when the other is through */
                (void)channel.hear(1);
                kill(self, SIGKILL);
                _exit(0);
            }
            channel.tell({'.'});
            raise(SIGSTOP);
        },
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_sender(*net, channel);
            std::vector<Message> messages;
            (void)channel.hear(1); /* it is about to stop */
            usleep(200000);
            do {
                messages.push_back(send(*net, comm, 200000, 0, 0));
            } while (is_done(*net, messages.back()));
            expect(net->deregister_memory(comm, messages.back().mhandles[0]) == TW_NCCL_SUCCESS, "deregMr");
            std::atomic<bool> is_closed{false};
            std::thread closer([&] {
                (void)net->close_send(comm);
                is_closed = true;
            });
            usleep(200000);
            expect(!is_closed, "there was nothing to wait for");
            Handle handle(TW_NCCL_HANDLE_BYTES);
            void *listener = nullptr;
            expect(net->listen(handle.data(), &listener) == TW_NCCL_SUCCESS, "listen");
            const bool is_held = is_closed;
            closer.join();
            expect(!is_held, "who begins waits for who closes");
            expect(net->close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            channel.tell({'.'});
        },
        {{"TW_PEER_TIMEOUT", "3s"}});
    EXPECT_TRUE(contains(text, "the other ended with 0") || !contains(text, "the other ended")) << text;
}

TEST_P(Failures, OthersGoOn)
{
    only_said(run_pair(
                  [](const Channel &channel) {
                      auto net = ready();
                      (void)make_sender(*net, channel);
                      channel.meet();
                      raise(SIGKILL);
                  },
                  [](const Channel &channel) {
                      auto net = ready();
                      void *lost = make_receiver(*net, channel);
                      Message message = receive(*net, lost, {1000}, {0}, {0});
                      channel.meet();
                      fails_as_remote(*net, message.request);
                      Handle handle(TW_NCCL_HANDLE_BYTES);
                      void *listener = nullptr, *receiver = nullptr;
                      expect(net->listen(handle.data(), &listener) == TW_NCCL_SUCCESS, "listen");
                      void *sender = until_connected([&](void **out) {
                          if (receiver == nullptr && net->accept(listener, &receiver) != TW_NCCL_SUCCESS) {
                              return TW_NCCL_INTERNAL_ERROR;
                          }
                          return net->connect(handle.data(), out);
                      });
                      while (receiver == nullptr) {
                          expect(net->accept(listener, &receiver) == TW_NCCL_SUCCESS, "accept");
                      }
                      Message in = receive(*net, receiver, {5000}, {0}, {3});
                      Message out = send(*net, sender, 5000, 0, 3);
                      finish(*net, out);
                      finish(*net, in);
                      for (void *comm : {lost, receiver}) {
                          expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                      }
                      expect(net->close_send(sender) == TW_NCCL_SUCCESS, "close_send");
                      expect(net->close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  }),
              "lo: peer 0 at 127.0.0.1");
}

TEST_P(Failures, AMessageThatDoesNotFit)
{
    const std::string text = run_pair(
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_sender(*net, channel);
            Message message = send(*net, comm, 2000, 0, 0);
            finish(*net, message);
            channel.meet();
            expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
        },
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_receiver(*net, channel);
            Message message = receive(*net, comm, {1999}, {0}, {0}, 0);
            int done = 0, size = 0;
            tw_nccl_result_t result = TW_NCCL_SUCCESS;
            while (result == TW_NCCL_SUCCESS && !done) {
                result = net->test(message.request, &done, &size);
            }
            expect(result == TW_NCCL_INTERNAL_ERROR && !done, "result " + std::to_string(result));
            channel.meet();
            expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
        });
    EXPECT_TRUE(contains(text, "2000 bytes")) << text;
    EXPECT_FALSE(contains(text, "one ended") || contains(text, "result")) << text;
}

/* Nothing is under way afterwards, and the next message is as any other. */
TEST_P(Failures, ArgumentsThatMakeNoSense)
{
    const std::string text = run_pair(
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_sender(*net, channel), *request = nullptr;
            char byte = 0;
            if (GetParam() >= 9) { /* before, sizes are ints */
                for (size_t bytes : {SIZE_MAX, SIZE_MAX / 2 + 1, ((size_t)1 << 40) + 1}) {
                    expect(net->send(comm, &byte, bytes, 0, nullptr, &request) == TW_NCCL_INVALID_ARGUMENT &&
                               request == nullptr,
                           "a send of " + std::to_string(bytes));
                }
            }
            expect(net->send(comm, nullptr, 1, 0, nullptr, &request) == TW_NCCL_INVALID_ARGUMENT, "NULL");
            Message message = send(*net, comm, 2000, -1, 0);
            finish(*net, message);
            channel.meet();
            expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
        },
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_receiver(*net, channel), *request = nullptr, *mhandle = nullptr;
            void *nowhere = nullptr;
            char byte = 0;
            void *data = &byte;
            size_t bytes = SIZE_MAX, one = 1;
            int tag = -1;
            if (GetParam() >= 9) {
                expect(net->receive(comm, 1, &data, &bytes, &tag, &mhandle, &request) ==
                               TW_NCCL_INVALID_ARGUMENT &&
                           request == nullptr,
                       "a receive");
            }
            expect(net->receive(comm, 1, &nowhere, &one, &tag, &mhandle, &request) ==
                       TW_NCCL_INVALID_ARGUMENT,
                   "NULL");
            void *places[9] = {data, data, data, data, data, data, data, data, data}, *mhandles[9] = {};
            size_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
            int tags[9] = {};
            for (int n : {0, 9}) {
                expect(net->receive(comm, n, places, ones, tags, mhandles, &request) ==
                           TW_NCCL_INVALID_ARGUMENT,
                       "a group of " + std::to_string(n));
            }
            Message message = receive(*net, comm, {2000}, {-1}, {0});
            finish(*net, message);
            channel.meet();
            expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
        });
    EXPECT_TRUE(contains(text, "one ended with 0") && contains(text, "the other ended with 0")) << text;
    EXPECT_TRUE(contains(text, "without memory for them")) << text;
}

/* NCCL, when it is aborted, gives memory back under messages that will never be done: the other end's come to
 * nothing, too. */
TEST_P(Failures, MemoryIsNotTouchedAfterItIsDeregistered)
{
    EXPECT_EQ(run_pair(
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_receiver(*net, channel);
                      for (size_t bytes : {100, 100000, 1 << 20}) {
                          Message message = receive(*net, comm, {bytes, bytes}, {(int)bytes, 0}, {0, 0});
                          for (void *mhandle : message.mhandles) {
                              expect(net->deregister_memory(comm, mhandle) == TW_NCCL_SUCCESS, "deregMr");
                          }
                          channel.meet();
                          int done = 0, sizes[2];
                          expect(net->test(message.request, &done, sizes) != TW_NCCL_SUCCESS && !done,
                                 "it should have ended");
                          for (const auto &buffer : message.buffers) {
                              expect(buffer == std::vector<uint8_t>(bytes, 0xa5), "something has come");
                          }
                          channel.meet();
                      }
                      expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                      channel.meet(); /* who gives up in the midst of a message is lost to the other */
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  },
                  [](const Channel &channel) {
                      auto net = ready();
                      void *comm = make_sender(*net, channel);
                      for (size_t bytes : {100, 100000, 1 << 20}) {
                          channel.meet();
                          Message message = send(*net, comm, bytes, (int)bytes, 0);
                          (void)is_done(*net, message);
                          channel.meet();
                      }
                      channel.meet();
                      expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  }),
              "");
}

/* ---- other processes ----------------------------------------------------------------------------------- */

int status_of_child(const std::function<int()> &body)
{
    const pid_t pid = fork();
    if (pid == 0) {
        exit(body()); /* with all that runs at the end of a process */
    }
    int status = -1;
    expect(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "the child did not end by itself");
    return WEXITSTATUS(status);
}

bool begins_and_listens(int number)
{
    auto own = version(number);
    Handle handle(TW_NCCL_HANDLE_BYTES);
    void *listener = nullptr;
    return own->init() == TW_NCCL_SUCCESS && own->listen(handle.data(), &listener) == TW_NCCL_SUCCESS &&
           own->close_listen(listener) == TW_NCCL_SUCCESS && own->finalize() == TW_NCCL_SUCCESS;
}

/* A child that has nothing to do with NCCL changes nothing; one that wants to use it is told that it cannot,
 * unless its parent has closed all. */
TEST_P(Failures, Fork)
{
    if (tw::is_sanitized) {
        GTEST_SKIP()
            << "a lock of the sanitizer's own, held by another thread at a fork, is never free again";
    }
    const std::string text = run_pair(
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_sender(*net, channel);
            Message before = send(*net, comm, 1 << 20, 0, 1);
            expect(status_of_child([] { return 5; }) == 5, "a child that does nothing");
            finish(*net, before);
            expect(status_of_child([] {
                       auto own = version(GetParam());
                       return own->init() == TW_NCCL_INVALID_USAGE ? 6 : 7;
                   }) == 6,
                   "a child that begins anew");
            Message after = send(*net, comm, 5000, 0, 2);
            finish(*net, after);
            expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            expect(status_of_child([] { return begins_and_listens(GetParam()) ? 8 : 9; }) == 8,
                   "a child after all is closed");
        },
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_receiver(*net, channel);
            for (size_t k = 1; k <= 2; k++) {
                Message message = receive(*net, comm, {k == 1 ? (size_t)1 << 20 : (size_t)5000}, {0}, {k});
                finish(*net, message);
            }
            expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        });
    EXPECT_TRUE(contains(text, "one ended with 0: ")) << text;
    EXPECT_TRUE(contains(text, "was forked from one that uses the net")) << text;
    EXPECT_FALSE(contains(text, "the other ended")) << text;
}

/* ---- strangers ----------------------------------------------------------------------------------------- */

/* A TCP connection to where a handle leads, with some bytes. */
int knock(const Handle &handle, const std::string &bytes)
{
    uint32_t port = 0;
    memcpy(&port, handle.data() + 4, sizeof(port));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    expect(connect(fd, (sockaddr *)&address, sizeof(address)) == 0, "no way to the listener");
    expect(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == (ssize_t)bytes.size(), "bytes");
    return fd;
}

/* Silent ones, garbage, and somebody who has the address but not the secret: none gets in, and none stops the
 * real one. */
TEST_P(Failures, StrangersAtTheDoor)
{
    const std::string text = run_pair(
        [](const Channel &channel) {
            auto net = ready();
            Handle handle = channel.hear(TW_NCCL_HANDLE_BYTES), forged(handle);
            std::vector<int> fds;
            for (const std::string &bytes :
                 {std::string(), std::string(1, 'x'), std::string(5000, '\xff'), std::string(64, '\0')}) {
                fds.push_back(knock(handle, bytes));
            }
            forged[30] ^= 1;
            void *comm = nullptr;
            tw_nccl_result_t result = TW_NCCL_SUCCESS;
            while (result == TW_NCCL_SUCCESS && comm == nullptr) {
                result = net->connect(forged.data(), &comm);
            }
            expect(result == TW_NCCL_REMOTE_ERROR, "a forged handle: " + std::to_string(result));
            comm = until_connected([&](void **out) { return net->connect(handle.data(), out); });
            Message message = send(*net, comm, 77, 0, 0);
            finish(*net, message);
            channel.meet();
            expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
            for (int fd : fds) {
                close(fd);
            }
        },
        [](const Channel &channel) {
            auto net = ready();
            void *comm = make_receiver(*net, channel);
            Message message = receive(*net, comm, {77}, {0}, {0});
            finish(*net, message);
            channel.meet();
            expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
        });
    EXPECT_TRUE(contains(text, "one ended with 0: ")) << text;
    EXPECT_TRUE(contains(text, "authenticate")) << text;
    EXPECT_FALSE(contains(text, "the other ended")) << text;
}

/* Connects to whom it hears of, until it is refused. */
tw_nccl_result_t connect_in_vain(Net &net, const Channel &channel)
{
    Handle handle = channel.hear(TW_NCCL_HANDLE_BYTES);
    void *comm = nullptr;
    tw_nccl_result_t result = TW_NCCL_SUCCESS;
    while (result == TW_NCCL_SUCCESS && comm == nullptr) {
        result = net.connect(handle.data(), &comm);
    }
    expect(comm == nullptr, "it was let in");
    channel.tell({'.'});
    return result;
}

/* Listens until the other has done that. */
void let_nobody_in(Net &net, const Channel &channel)
{
    Handle handle(TW_NCCL_HANDLE_BYTES);
    void *listener = nullptr, *comm = nullptr;
    expect(net.listen(handle.data(), &listener) == TW_NCCL_SUCCESS, "listen");
    channel.tell(handle);
    char byte;
    while (recv(channel.fd(), &byte, 1, MSG_DONTWAIT) != 1) {
        expect(net.accept(listener, &comm) == TW_NCCL_SUCCESS, "accept");
        expect(comm == nullptr, "it was let in");
    }
    expect(net.close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
}

TEST_P(Failures, AnotherJobsToken)
{
    const std::string text = run_pair(
        [](const Channel &channel) {
            setenv("TW_JOB_TOKEN", "another", 1);
            auto net = ready();
            const tw_nccl_result_t result = connect_in_vain(*net, channel);
            expect(result == TW_NCCL_REMOTE_ERROR, "result " + std::to_string(result));
        },
        [](const Channel &channel) {
            setenv("TW_JOB_TOKEN", "one", 1);
            auto net = ready();
            let_nobody_in(*net, channel);
        });
    EXPECT_TRUE(contains(text, "one ended with 0: ")) << text;
    EXPECT_FALSE(contains(text, "the other ended")) << text;
}

/* The same secret, and one of the two seals: both are told, and nothing is carried in plain. */
TEST_P(Failures, WhoSealsDoesNotMeetWhoDoesNot)
{
    for (const char *seals : {"y", "n"}) {
        const std::string text = run_pair(
            [=](const Channel &channel) {
                setenv("TW_NET_ENCRYPT", seals, 1);
                auto net = ready();
                expect(connect_in_vain(*net, channel) != TW_NCCL_SUCCESS, "connect");
            },
            [=](const Channel &channel) {
                setenv("TW_NET_ENCRYPT", *seals == 'y' ? "n" : "y", 1);
                auto net = ready();
                let_nobody_in(*net, channel);
            },
            {{"TW_JOB_TOKEN", "a secret"}});
        EXPECT_TRUE(contains(text, "TW_NET_ENCRYPT is y there and n here")) << text;
        EXPECT_TRUE(contains(text, "TW_NET_ENCRYPT is n there and y here")) << text;
        EXPECT_TRUE(contains(text, "one ended with 0: ")) << text;
        EXPECT_TRUE(contains(text, "the other ended with 0: ")) << text;
    }
}

TEST_P(Failures, SealingNeedsAToken)
{
    const std::string text = run_pair(
        [](const Channel &) {
            auto net = version(GetParam());
            expect(net->init() == TW_NCCL_INVALID_USAGE, "init");
        },
        [](const Channel &) {}, {{"TW_NET_ENCRYPT", "y"}, {"TW_JOB_TOKEN", ""}});
    EXPECT_TRUE(contains(text, "TW_NET_ENCRYPT=y needs TW_JOB_TOKEN")) << text;
    EXPECT_TRUE(contains(text, "one ended with 0: ")) << text;
}

/* A handle that is none, one that leads nowhere, and one with a number of a connection that this process
 * makes with another. */
TEST_P(Failures, HandlesOfStrangers)
{
    const std::string text = run_pair(
        [](const Channel &) {
            auto net = ready();
            void *listener = nullptr, *comm = nullptr;
            Handle none(TW_NCCL_HANDLE_BYTES, '\x5a'), good(TW_NCCL_HANDLE_BYTES),
                other(TW_NCCL_HANDLE_BYTES);
            expect(net->connect(none.data(), &comm) == TW_NCCL_INTERNAL_ERROR && comm == nullptr,
                   "no handle");
            expect(net->listen(good.data(), &listener) == TW_NCCL_SUCCESS, "listen");
            expect(net->connect(good.data(), &comm) == TW_NCCL_SUCCESS && comm == nullptr, "begun");
            memcpy(none.data() + 64, good.data() + 64, 64);
            expect(net->connect(none.data(), &comm) == TW_NCCL_INTERNAL_ERROR && comm == nullptr, "borrowed");
            expect(net->close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
            tw_nccl_result_t result = TW_NCCL_SUCCESS;
            while (result == TW_NCCL_SUCCESS && comm == nullptr) {
                result = net->connect(good.data(), &comm);
            }
            expect(result != TW_NCCL_SUCCESS && comm == nullptr, "nobody is there any more");
            expect(net->listen(other.data(), &listener) == TW_NCCL_SUCCESS, "listen");
            expect(net->connect(other.data(), &comm) == TW_NCCL_SUCCESS && comm == nullptr,
                   "begun, and left");
            expect(net->close_listen(listener) == TW_NCCL_SUCCESS, "close_listen");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        },
        [](const Channel &) {});
    EXPECT_TRUE(contains(text, "one ended with 0: ")) << text;
}

INSTANTIATE_TEST_SUITE_P(Versions, Failures, testing::Values(8, 12));

} // namespace
