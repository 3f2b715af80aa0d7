/* Two hosts whose device has no address of a network, each in a network namespace of its own. */
#include "tests/common/fixture.h"
#include "tests/plugin/nccl/net/cable.h"

namespace
{

using namespace proxy;
using cable::enter;
using cable::ip;

class Unnumbered : public testing::TestWithParam<int>
{
  protected:
    void SetUp() override
    {
        const std::string why = cable::why_not();
        if (!why.empty()) {
            GTEST_SKIP() << why;
        }
    }

    /** A message, once each of both, 1 and 2, has its address. */
    static std::string run(const std::function<void(int own, int other)> &set_up)
    {
        return run_pair(
            [&](const Channel &channel) {
                enter(channel, true);
                set_up(1, 2);
                channel.meet();
                auto net = version(GetParam());
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = make_sender(*net, channel);
                Message message = send(*net, comm, 3000000, 1, 1);
                finish(*net, message);
                expect(net->close_send(comm) == TW_NCCL_SUCCESS, "close_send");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                channel.meet();
            },
            [&](const Channel &channel) {
                enter(channel, false);
                set_up(2, 1);
                channel.meet();
                auto net = version(GetParam());
                expect(net->init() == TW_NCCL_SUCCESS, "init");
                void *comm = make_receiver(*net, channel);
                Message message = receive(*net, comm, {3000000}, {1}, {1});
                finish(*net, message);
                expect(net->close_receive(comm) == TW_NCCL_SUCCESS, "close_receive");
                expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                channel.meet();
            },
            {{"TW_NET_DEVICES", ""}, {"NCCL_SOCKET_IFNAME", ""}});
    }
};

/* As where hosts tell routers of it. */
TEST_P(Unnumbered, TheAddressIsOnTheLoopback)
{
    EXPECT_EQ(run([](int own, int other) {
                  const std::string address = "10.200.0.";
                  ip("addr add " + address + std::to_string(own) + "/32 dev lo");
                  ip("route add " + address + std::to_string(other) + "/32 dev eth0 src " + address +
                     std::to_string(own));
              }),
              "");
}

TEST_P(Unnumbered, TheAddressIsOfTheLinkAlone)
{
    for (const std::string subnet : {"169.254.7.", "fe80::"}) {
        EXPECT_EQ(run([&](int own, int) {
                      const bool is_v6 = subnet == "fe80::";
                      ip("addr add " + subnet + std::to_string(own) + (is_v6 ? "/64" : "/16") + " dev eth0" +
                         (is_v6 ? " nodad" : ""));
                  }),
                  "")
            << subnet;
    }
}

INSTANTIATE_TEST_SUITE_P(Versions, Unnumbered, testing::Values(9, 12));

} // namespace
