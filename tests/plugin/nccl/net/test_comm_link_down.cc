/* A job's network is away for a while: a switch starts anew, a link is down. */
#include <cstdlib>

#include <unistd.h>

#include "core/core.h"
#include "tests/common/fixture.h"
#include "tests/plugin/nccl/net/cable.h"

namespace
{

using namespace proxy;

constexpr size_t message_bytes = 3000000;
constexpr double away_sec = 15;

void join(const Channel &channel, int own)
{
    unsetenv("TW_PEER_TIMEOUT"); /* as it is by itself */
    cable::enter(channel, own == 1);
    cable::ip("addr add 10.200.0." + std::to_string(own) + "/24 dev eth0");
    channel.meet();
}

/* TCP tries again after twice as long each time: it may take as long once more as the link was down. */
void await(Net &net, Message &message)
{
    const double until = tw_time_sec() + 4 * away_sec;
    while (!is_done(net, message)) {
        expect(tw_time_sec() < until, "the message does not come after the link is back");
        usleep(1000);
    }
}

TEST(LinkDown, AJobGoesOnAfter15Seconds)
{
    const std::string why = cable::why_not();
    if (!why.empty()) {
        GTEST_SKIP() << why;
    }
    const std::string said = run_pair(
        [](const Channel &channel) {
            join(channel, 1);
            auto net = version(12);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            void *comm = make_sender(*net, channel);
            Message first = send(*net, comm, message_bytes, 1, 1);
            finish(*net, first);
            channel.meet();
            channel.meet(); /* the link is down */
            Message second = send(*net, comm, message_bytes, 2, 2);
            await(*net, second);
            channel.meet();
            expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        },
        [](const Channel &channel) {
            join(channel, 2);
            auto net = version(12);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            void *comm = make_receiver(*net, channel);
            Message first = receive(*net, comm, {message_bytes}, {1}, {1});
            finish(*net, first);
            channel.meet();
            cable::ip("link set eth0 down");
            channel.meet();
            Message second = receive(*net, comm, {message_bytes}, {2}, {2});
            for (const double until = tw_time_sec() + away_sec; tw_time_sec() < until;) {
                expect(!is_done(*net, second), "it came though the link is down");
                usleep(1000);
            }
            cable::ip("link set eth0 up");
            await(*net, second);
            channel.meet();
            expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        },
        {{"TW_NET_DEVICES", "eth0"}}, 150);
    EXPECT_EQ(said, "");
}

} // namespace
