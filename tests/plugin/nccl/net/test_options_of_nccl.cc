/* What NCCL says besides: a communicator's traffic class, a profiler, and a secret. */
#include <netinet/in.h>
#include <sys/socket.h>

#include "plugin/nccl/net/net.h"
#include "plugin/plugin.h"
#include "tests/common/fixture.h"
#include "tests/plugin/nccl/net/proxy.h"

namespace
{

using namespace proxy;

/* ---- traffic class ------------------------------------------------------------------------------------- */

/** Of the connected TCP sockets of this process that have it, how many there are. */
int sockets_of_class(int wanted)
{
    int n = 0;
    for (const auto &[fd, what] : tw::open_descriptors()) {
        sockaddr_storage peer;
        socklen_t bytes = sizeof(peer);
        int traffic_class = -1;
        if (what.rfind("socket:", 0) != 0 || getpeername(fd, (sockaddr *)&peer, &bytes) != 0 ||
            (peer.ss_family != AF_INET && peer.ss_family != AF_INET6)) {
            continue;
        }
        bool is_v6 =
            peer.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&((const sockaddr_in6 *)&peer)->sin6_addr);
        bytes = sizeof(traffic_class);
        expect(getsockopt(fd, is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_TCLASS : IP_TOS, &traffic_class,
                          &bytes) == 0,
               "getsockopt");
        n += traffic_class == wanted;
    }
    return n;
}

class Told : public testing::TestWithParam<int>
{
  protected:
    /** A message both ways; the sender is told the class, the receiver another one. */
    static std::string run(int traffic_class, int expected_sender, int expected_receiver,
                           const std::map<std::string, std::string> &env)
    {
        const int number = GetParam();
        return run_pair(
            [&](const Channel &channel) {
                auto net = version(number);
                told().config.traffic_class = traffic_class;
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = make_sender(*net, channel);
                Message message = send(*net, comm, 100000, 1, 1);
                finish(*net, message);
                expect(sockets_of_class(expected_sender) == 3, "the sender's connections, each once");
                channel.meet();
                expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            },
            [&](const Channel &channel) {
                auto net = version(number);
                told().config.traffic_class = 0x20;
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = make_receiver(*net, channel);
                Message message = receive(*net, comm, {100000}, {1}, {1});
                finish(*net, message);
                expect(sockets_of_class(expected_receiver) == 3, "the receiver's connections, each once");
                channel.meet();
                expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
            },
            env);
    }
};

/* Two connections for data and one besides. v10 tells it to who connects, v11 to both. */
TEST_P(Told, TrafficClass)
{
    const bool tells = GetParam() >= 10, tells_both = GetParam() >= 11;
    for (const char *family : {"AF_INET", "AF_INET6"}) {
        EXPECT_EQ(run(0x68, tells ? 0x68 : 0, tells_both ? 0x20 : 0,
                      {{"TW_NET_STREAMS", "2"}, {"NCCL_SOCKET_FAMILY", family}}),
                  "")
            << family;
    }
    EXPECT_EQ(run(-1, 0, tells_both ? 0x20 : 0, {{"TW_NET_STREAMS", "2"}}), "");
}

TEST_P(Told, ATrafficClassThatIsNone)
{
    const std::string text = run(256, 0, GetParam() >= 11 ? 0x20 : 0, {{"TW_NET_STREAMS", "2"}});
    EXPECT_EQ(text.find("trafficClass 256 of the communicator's configuration is none") != std::string::npos,
              GetParam() >= 10)
        << text;
}

/* ---- profiler ------------------------------------------------------------------------------------------ */

struct Seen {
    std::vector<tw_nccl_profiler_socket_t> started;
    int n_stopped = 0, n_wrong = 0;
    bool wants = true;
} seen;
char parent;

tw_nccl_result_t profiler(void **event, int type, void *of, int64_t plugin, void *data)
{
    if (type == TW_NCCL_PROFILER_START) {
        seen.n_wrong += of != &parent || plugin != ((2 << 16) | 1) || *event != nullptr;
        seen.started.push_back(*(tw_nccl_profiler_socket_t *)data);
        *event = seen.wants ? (void *)seen.started.size() : nullptr;
    } else {
        seen.n_wrong += type != TW_NCCL_PROFILER_STOP || *event == nullptr;
        seen.n_stopped++;
    }
    return TW_NCCL_SUCCESS;
}

/** Three messages under way at a time; what the profiler has seen must be right. */
void drive(Net &net, bool tells, int op, const std::function<Message(int)> &post)
{
    for (bool wants : {true, false}) {
        seen = {};
        seen.wants = wants;
        std::vector<Message> under_way;
        for (int i = 0; i < 3; i++) {
            under_way.push_back(post(i));
        }
        expect(seen.n_stopped == 0, "nothing was looked at yet");
        for (Message &message : under_way) {
            finish(net, message);
        }
        expect(seen.started.size() == (tells ? 3u : 0u), std::to_string(seen.started.size()) + " starts");
        expect(seen.n_stopped == (tells && wants ? 3 : 0), std::to_string(seen.n_stopped) + " stops");
        expect(seen.n_wrong == 0, "what it is told");
        for (size_t i = 0; i < seen.started.size(); i++) {
            const tw_nccl_profiler_socket_t &one = seen.started[i];
            expect(one.type == 1 && one.sock.fd == -1 && one.sock.op == op &&
                       one.sock.bytes == 1000 * (i + 1),
                   "a message");
        }
    }
}

TEST_P(Told, Profiler)
{
    const int number = GetParam();
    for (bool has_phandle : {true, false}) {
        const bool tells = number >= 10 && has_phandle;
        auto begin = [&] {
            told().profiler = profiler;
            told().phandle = has_phandle ? &parent : nullptr;
            auto net = version(number);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            return net;
        };
        EXPECT_EQ(run_pair(
                      [&](const Channel &channel) {
                          auto net = begin();
                          void *comm = make_sender(*net, channel);
                          drive(*net, tells, 0,
                                [&](int i) { return send(*net, comm, 1000 * (size_t)(i + 1), i, 1); });
                          expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                          expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                      },
                      [&](const Channel &channel) {
                          auto net = begin();
                          void *comm = make_receiver(*net, channel);
                          drive(*net, tells, 1, [&](int i) {
                              return receive(*net, comm, {1000 * (size_t)(i + 1)}, {i}, {1});
                          });
                          expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                          expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                      }),
                  "");
    }
}

INSTANTIATE_TEST_SUITE_P(Versions, Told, testing::Values(9, 10, 12));

/* ---- secret -------------------------------------------------------------------------------------------- */

class Secret : public tw::Fixture
{
  protected:
    void read(int encrypt, int is_nccls, const std::string &token)
    {
        tw_net_options_t options;
        ASSERT_EQ(tw_net_options_init(&options), TW_OK);
        EXPECT_EQ(options.encrypt, encrypt);
        EXPECT_EQ(options.is_nccls, is_nccls);
        EXPECT_EQ(options.token, token);
        tw_config_cleanup(&tw_net_config_table, &options);
    }
};

TEST_F(Secret, SealsUnlessTheVariablesSayHow)
{
    set_env("TW_NET_ENCRYPT", std::nullopt);
    set_env("TW_JOB_TOKEN", "token");
    read(0, 0, "token");
    ASSERT_EQ(tw_net_begin(nullptr, "a secret, of NCCL's job"), TW_OK);
    read(1, 1, "a secret, of NCCL's job");
    set_env("TW_NET_ENCRYPT", "y");
    read(1, 0, "token");
    set_env("TW_NET_ENCRYPT", std::nullopt);
    ASSERT_EQ(tw_net_begin(nullptr, nullptr), TW_OK);
    read(0, 0, "token");
}

} // namespace
