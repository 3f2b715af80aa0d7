/* One end of the doctor's flows and probes, on this machine's loopback device. */
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "doctor/state.h"
#include "tests/common/process.h"

namespace
{

sockaddr_in6 loopback()
{
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, "::ffff:127.0.0.1", &address.sin6_addr), 1);
    return address;
}

/* A rank that sends to itself. */
struct Rank {
    Rank()
    {
        for (int i = 0; i < TW_DOCTOR_DEVICES_MAX; i++) {
            rank.listeners[i] = rank.probes[i] = -1;
        }
        memset(rank.nonce, 7, sizeof(rank.nonce));
        facts.n_devices = 1;
        facts.devices[0].address = loopback();
        EXPECT_EQ(tw_doctor_listen(&rank, &facts), TW_OK);
    }
    ~Rank()
    {
        tw_doctor_close(&rank);
    }
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;

    tw_doctor_end_t end(tw_doctor_flow_t *flow) const
    {
        return {&rank, flow, facts.devices[0].address, 0.1, &stop};
    }

    /* Where they come. */
    sockaddr_in6 probes() const
    {
        sockaddr_in6 to = facts.devices[0].address;
        to.sin6_port = facts.devices[0].probe_port;
        return to;
    }

    tw_doctor_rank_t rank = {};
    tw_doctor_facts_t facts = {};
    volatile int stop = 0;
};

tw_doctor_flow_t flow_of(int n_streams)
{
    tw_doctor_flow_t flow = {};
    flow.kind = TW_DOCTOR_STREAMS;
    flow.n_streams = n_streams;
    flow.slot = 5;
    return flow;
}

/* Both ends at once; the sender's flow. */
tw_doctor_flow_t run(const Rank &own, int n_streams)
{
    tw_doctor_flow_t sent = flow_of(n_streams), received = sent;
    tw_doctor_end_t from = own.end(&sent), to = own.end(&received);
    std::thread receiver([&to]() { tw_doctor_receive(&to); });
    tw_doctor_send(&from);
    receiver.join();
    return sent;
}

TEST(DoctorFlow, SaysHowFastAndHow)
{
    const Rank own;
    for (int n_streams : {1, 3}) {
        const tw_doctor_flow_t flow = run(own, n_streams);
        EXPECT_EQ(flow.error, 0) << strerror(flow.error);
        EXPECT_GT(flow.bps, 0);
        EXPECT_GT(flow.segments, 0);
        EXPECT_GT(flow.segment_bytes, 0);
        EXPECT_STRNE(flow.congestion, "");
    }
}

/* What a sender of this rank sends first: a nonce, the slot, which stream. */
std::string greeting()
{
    const int32_t slot_and_stream[] = {flow_of(1).slot, 0};
    return std::string(TW_DOCTOR_NONCE_BYTES, 7) +
           std::string(reinterpret_cast<const char *>(slot_and_stream), sizeof(slot_and_stream));
}

/* It stalls for longer than a step, then a kilobyte comes each 10 ms, but two at first: that is the rate, not
 * two in a moment. */
TEST(DoctorFlow, AStallIsNoRate)
{
    const Rank own;
    tw_doctor_flow_t flow = flow_of(1);
    tw_doctor_end_t end = own.end(&flow);
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    ASSERT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), 0);
    ASSERT_EQ(connect(fd, (const sockaddr *)&end.to, sizeof(end.to)), 0);
    std::thread receiver([&end]() { tw_doctor_receive(&end); });
    const std::string piece(1000, 'x'), begin = greeting() + piece;
    double bps = 0;
    EXPECT_EQ(send(fd, begin.data(), begin.size(), MSG_NOSIGNAL), (ssize_t)begin.size());
    usleep((useconds_t)(3 * end.seconds * 1e6));
    ssize_t n = -1;
    for (int i = 0; i < 400 && n < 0; i++) {
        (void)send(fd, piece.data(), piece.size(), MSG_NOSIGNAL);
        usleep(i == 0 ? 200 : 10000);
        n = recv(fd, &bps, sizeof(bps), MSG_DONTWAIT);
    }
    close(fd);
    receiver.join();
    EXPECT_EQ(n, (ssize_t)sizeof(bps));
    EXPECT_GT(bps, 0);
    EXPECT_LT(bps, 8e6); /* ten times as much */
}

TEST(DoctorFlow, StrangersAreSentAway)
{
    const Rank own;
    const sockaddr_in6 to = own.facts.devices[0].address;
    int strangers[2];
    for (int &fd : strangers) {
        fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ASSERT_EQ(connect(fd, (const sockaddr *)&to, sizeof(to)), 0);
    }
    const std::string garbage(4096, 'x'); /* the other one says nothing */
    ASSERT_EQ(send(strangers[0], garbage.data(), garbage.size(), MSG_NOSIGNAL), (ssize_t)garbage.size());
    const tw_doctor_flow_t flow = run(own, 1);
    EXPECT_EQ(flow.error, 0) << strerror(flow.error);
    EXPECT_GT(flow.bps, 0);
    for (int fd : strangers) {
        close(fd);
    }
}

TEST(DoctorFlow, WhereNobodyListensIsAnError)
{
    Rank own;
    tw_doctor_flow_t flow = flow_of(2);
    const tw_doctor_end_t end = own.end(&flow);
    close(own.rank.listeners[0]);
    own.rank.listeners[0] = -1;
    tw_doctor_end_t from = end;
    tw_doctor_send(&from);
    EXPECT_EQ(flow.error, ECONNREFUSED);
    EXPECT_EQ(flow.bps, 0);
}

TEST(DoctorFlow, EndsWithTheJob)
{
    Rank own;
    tw_doctor_flow_t flow = flow_of(1);
    tw_doctor_end_t to = own.end(&flow);
    own.stop = 1;
    const double start = tw_time_sec();
    tw_doctor_receive(&to); /* for nobody */
    EXPECT_LT(tw_time_sec() - start, 5);
    EXPECT_EQ(flow.bps, 0);
}

int largest_probe(int asked)
{
    const Rank own;
    tw_doctor_path_t path = {};
    path.asked_bytes = asked;
    const sockaddr_in6 to = own.probes();
    tw_doctor_probe_send(&own.rank, &path, &to);
    return tw_doctor_probe_receive(&own.rank, 0, 0.1);
}

TEST(DoctorProbe, TheLargestPacketThatPasses)
{
    EXPECT_EQ(largest_probe(1500), 1500);
    EXPECT_EQ(largest_probe(1234), 1234);
    EXPECT_EQ(largest_probe(9000), 9000);
}

/* A network of this process's own, whose loopback device passes packets of so many bytes. */
bool enter_network(int mtu)
{
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return false;
    }
    ifreq request = {};
    snprintf(request.ifr_name, sizeof(request.ifr_name), "lo");
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_mtu = mtu;
    bool done = ioctl(fd, SIOCSIFMTU, &request) == 0;
    request.ifr_flags = IFF_UP;
    done = done && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    return done;
}

/* As where a switch has a smaller MTU than the devices. */
TEST(DoctorProbe, OnAPathThatPassesLess)
{
    process::Child child([]() {
        return !enter_network(1300) ? 77 : largest_probe(1500) == 1300 && largest_probe(1280) == 1280 ? 0 : 1;
    });
    const process::Result result = child.wait();
    if (result.code == 77) {
        GTEST_SKIP() << "no network can be made here";
    }
    EXPECT_EQ(result.code, 0) << result.err;
}

/* A port that somebody else has, for what comes by that protocol. */
bool take_port(int type, uint16_t port)
{
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    return bind(fd, (const sockaddr *)&address, sizeof(address)) == 0;
}

/* Where two ports are left, each free for one protocol alone. */
TEST(DoctorFlow, PortsOfProbesAndFlowsDiffer)
{
    process::Child child([]() {
        FILE *range = enter_network(1500) ? fopen("/proc/sys/net/ipv4/ip_local_port_range", "w") : nullptr;
        if (!range || fputs("40000 40001", range) == EOF || fclose(range) != 0) {
            return 77;
        }
        const bool taken = take_port(SOCK_DGRAM, 40000) && take_port(SOCK_STREAM, 40001);
        const Rank own;
        return taken && own.facts.devices[0].address.sin6_port == htons(40000) &&
                       own.facts.devices[0].probe_port == htons(40001)
                   ? 0
                   : 1;
    });
    const process::Result result = child.wait();
    if (result.code == 77) {
        GTEST_SKIP() << "no network can be made here";
    }
    EXPECT_EQ(result.code, 0) << result.err;
}

TEST(DoctorProbe, OthersPacketsDoNotCount)
{
    const Rank own;
    const sockaddr_in6 to = own.probes();
    const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const std::string garbage(5000, 'x');
    ASSERT_EQ(sendto(fd, garbage.data(), garbage.size(), 0, (const sockaddr *)&to, sizeof(to)),
              (ssize_t)garbage.size());
    EXPECT_EQ(tw_doctor_probe_receive(&own.rank, 0, 0.1), 0);
    close(fd);
}

} // namespace
