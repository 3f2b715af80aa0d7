/* The network backend between network namespaces: each rank has its own, with one or two links to a bridge.
 * As root, or in a user namespace; skips where neither works. */
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/core.h"
#include "tests/transport/ranks.h"

namespace
{

constexpr double patience_sec = 50;
constexpr double peer_timeout_sec = 2;
constexpr double slack_sec = 20; /* for busy cores */

bool command(const std::string &text)
{
    return system(("PATH=$PATH:/usr/sbin:/sbin; { " + text + "; } >/dev/null 2>&1").c_str()) == 0;
}

bool write_file(const char *path, const std::string &text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, text.data(), text.size()) == (ssize_t)text.size();
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

/* This process moves into a network namespace of its own, which holds the bridge. Empty, or why not. */
std::string enter_namespace()
{
    const std::string uid = std::to_string(geteuid()), gid = std::to_string(getegid());
    if (geteuid() == 0 && unshare(CLONE_NEWNET) == 0) {
        return "";
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
        return "no network namespaces here: neither root nor user namespaces";
    }
    if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", "0 " + uid + " 1") ||
        !write_file("/proc/self/gid_map", "0 " + gid + " 1")) {
        return "no user namespaces here";
    }
    return "";
}

/* The links of each rank. */
struct Plan {
    int n_links = 1;
    bool one_subnet = false; /* all of them are in one */
    bool by_route = false;   /* a rank's own address is on the loopback device, and routes lead there */
};

class UcxLinks : public ::testing::Test
{
  protected:
    static void SetUpTestSuite()
    {
        why_not = enter_namespace();
        if (why_not.empty() && !(command("ip link set lo up") && command("ip link add br0 type bridge") &&
                                 command("ip link set br0 up") && command("ip link add br1 type bridge") &&
                                 command("ip link set br1 up"))) {
            why_not = "ip cannot make a bridge here";
        }
    }
    void SetUp() override
    {
        if (!why_not.empty()) {
            GTEST_SKIP() << why_not;
        }
    }
    /* Another for each job: a namespace that is just going away would answer for its addresses. */
    static std::string network()
    {
        return "10." + std::to_string(job) + ".";
    }
    /* A rank's own end: its namespace, then its addresses once the links are there. */
    static void in_child(int rank, const Plan &plan, int ready)
    {
        const char byte = 1;
        /* UCX looks for devices in /sys, which shows those of the namespace that mounted it. */
        if (unshare(CLONE_NEWNET | CLONE_NEWNS) || mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) ||
            mount("thinwire-test", "/sys", "sysfs", 0, nullptr) || write(ready, &byte, 1) != 1) {
            _exit(126);
        }
        (void)command("ip link set lo up");
        (void)write_file("/proc/sys/net/ipv4/tcp_congestion_control", "cubic"); /* it fills queues */
        if (plan.one_subnet) {
            (void)write_file("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
            (void)write_file("/proc/sys/net/ipv4/conf/all/arp_announce", "2");
        }
        for (int i = 0; i < plan.n_links; i++) {
            const std::string device = "eth" + std::to_string(i);
            for (int tries = 0; tries < 5000 && !if_nametoindex(device.c_str()); tries++) {
                usleep(2000);
            }
            (void)command("ip addr add " + network() + std::to_string(plan.one_subnet ? 0 : i) + "." +
                          std::to_string(rank + 1 + (plan.one_subnet ? 100 * i : 0)) + "/24 dev " + device);
            (void)command("ip link set " + device + " up");
            for (int tries = 0; tries < 500 && !command("ip link show " + device + " | grep -q LOWER_UP");
                 tries++) {
                usleep(20000); /* until the other end is up too */
            }
        }
        if (plan.by_route) {
            announce(rank, 3);
        }
    }
    /* Hosts that announce their addresses themselves: one on lo, reached by whatever link there is. */
    static void announce(int rank, int world)
    {
        const std::string own = network() + "99." + std::to_string(rank + 1);
        (void)command("ip addr add " + own + "/32 dev lo");
        for (int r = 0; r < world; r++) {
            const std::string other = std::to_string(r + 1);
            (void)command("ip route add " + network() + "99." + other + "/32 via " + network() + "0." +
                          other + " src " + own);
        }
    }
    /* Starts the ranks and plugs them in. */
    std::unique_ptr<Ranks> start(Ranks::Options options, int n_links)
    {
        return start(options, Plan{n_links});
    }
    std::unique_ptr<Ranks> start(Ranks::Options options, const Plan &plan)
    {
        int ready[2];
        job++;
        EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
        options.master_addr = network() + (plan.by_route ? "99.1" : "0.1");
        options.port = 29000;
        options.env["TW_PEER_TIMEOUT"] = std::to_string(peer_timeout_sec);
        options.in_child = [=](int rank) { in_child(rank, plan, ready[1]); };
        auto ranks = std::make_unique<Ranks>(options);
        close(ready[1]);
        char byte;
        for (int r = 0; r < options.world; r++) {
            EXPECT_EQ(read(ready[0], &byte, 1), 1);
        }
        close(ready[0]);
        for (int r = 0; r < options.world; r++) {
            for (int i = 0; i < plan.n_links; i++) {
                const std::string link = link_of(r, i);
                EXPECT_TRUE(command("ip link add " + link + " type veth peer name eth" + std::to_string(i) +
                                    " netns " + std::to_string(ranks->pid(r))));
                EXPECT_TRUE(command("ip link set " + link + " master br" +
                                    std::to_string(plan.one_subnet ? 0 : i) + " up"));
            }
        }
        return ranks;
    }
    /* The bridge's end; never the name of one that is just going away with its namespace. */
    std::string link_of(int rank, int i) const
    {
        return "j" + std::to_string(job) + "r" + std::to_string(rank) + "l" + std::to_string(i);
    }
    /* Bytes that a rank has received, or sent, through a device. */
    static uint64_t received(pid_t pid, const std::string &device)
    {
        return counted(pid, device, 0);
    }
    static uint64_t sent(pid_t pid, const std::string &device)
    {
        return counted(pid, device, 8);
    }
    static uint64_t counted(pid_t pid, const std::string &device, int column)
    {
        std::ifstream file("/proc/" + std::to_string(pid) + "/net/dev");
        std::string line;
        while (std::getline(file, line)) {
            std::istringstream fields(line);
            std::string name;
            uint64_t value = 0;
            fields >> name;
            for (int i = 0; i <= column; i++) {
                fields >> value;
            }
            if (name == device + ":") {
                return value;
            }
        }
        return 0;
    }
    void link_down(const char *what, int victim)
    {
        Ranks::Options options;
        options.world = 4;
        options.arguments = {what};
        auto ranks = start(options, 1);
        ASSERT_TRUE(ranks->wait_ready(patience_sec)) << ranks->transcript();
        usleep(200000);
        ASSERT_TRUE(command("ip link set " + link_of(victim, 0) + " down"));
        const double start_sec = tw_time_sec();
        for (int r = 0; r < options.world; r++) {
            const process::Result ending = ranks->wait_one(r, patience_sec);
            /* A rank that is cut off sees rank 0 go; rank 0 sees that it is itself. */
            const int named = r != victim ? victim : 0;
            EXPECT_TRUE(ending.in_time) << ending.out << ending.err;
            EXPECT_EQ(ending.code, 0) << ending.out << ending.err;
            EXPECT_NE(ending.out.find("tcp on eth0"), std::string::npos) << ending.out;
            EXPECT_NE(ending.out.find("failed rank " + std::to_string(named) + " "), std::string::npos)
                << "rank " << r << ": " << ending.out;
        }
        EXPECT_LT(tw_time_sec() - start_sec, peer_timeout_sec + slack_sec);
    }
    /* The ports, here and there, of the connections that a rank has made to a higher one. */
    static std::vector<std::pair<int, int>> connections(pid_t pid, int to)
    {
        std::vector<std::pair<int, int>> found;
        std::ifstream file("/proc/" + std::to_string(pid) + "/net/tcp");
        std::string line, number, local, remote;
        char address[16];
        snprintf(address, sizeof(address), "%02X00%02X0A:", to + 1, job);
        while (std::getline(file, line)) {
            std::istringstream(line) >> number >> local >> remote;
            if (remote.rfind(address, 0) == 0) {
                found.emplace_back(strtol(local.c_str() + 9, nullptr, 16),
                                   strtol(remote.c_str() + 9, nullptr, 16));
            }
        }
        return found;
    }
    /* Of the connections between ranks 1 and 2 some carry nothing any more, and nobody is told. */
    void some_are_dead(const char *what, const std::vector<size_t> &which, const std::string &why)
    {
        Ranks::Options options;
        options.world = 3;
        options.arguments = {what};
        auto ranks = start(options, 1);
        ASSERT_TRUE(ranks->wait_ready(patience_sec)) << ranks->transcript();
        const auto all = connections(ranks->pid(1), 2);
        ASSERT_EQ(all.size(), 2u);
        const auto drop = [&](int rank, const std::string &sport, const std::string &dport) {
            return command("nsenter -t " + std::to_string(ranks->pid(rank)) +
                           " -n ip rule add ipproto tcp sport " + sport + " dport " + dport + " blackhole");
        };
        for (size_t i : which) {
            const std::string from = std::to_string(all[i].first), to = std::to_string(all[i].second);
            if (!drop(1, from, to) || !drop(2, to, from)) {
                GTEST_SKIP() << "no rules that drop one connection here";
            }
        }
        const double start_sec = tw_time_sec();
        for (const process::Result &ending : ranks->wait_all(patience_sec)) {
            EXPECT_TRUE(ending.out.find("failed rank 1 ") != std::string::npos ||
                        ending.out.find("failed rank 2 ") != std::string::npos)
                << ending.out << ending.err;
            EXPECT_NE(ending.err.find("has lost its data connection to it: what was sent on it " + why),
                      std::string::npos)
                << ending.err;
        }
        EXPECT_LT(tw_time_sec() - start_sec, peer_timeout_sec + slack_sec);
    }
    static std::string why_not;
    static int job;
};

std::string UcxLinks::why_not;
int UcxLinks::job = 0;

TEST_F(UcxLinks, LinkDownWhileExchanging)
{
    link_down("exchange_for_ever", 2);
}

TEST_F(UcxLinks, LinkDownWhileWaiting)
{
    link_down("wait_for_ever", 3);
}

TEST_F(UcxLinks, Rank0sLinkDown)
{
    link_down("exchange_for_ever", 0);
}

TEST_F(UcxLinks, OneDeadConnectionOfSeveral)
{
    for (size_t which : {0, 1}) {
        some_are_dead("exchange_for_ever", {which}, "");
    }
}

/* Then no other connection can tell what has come. */
TEST_F(UcxLinks, AllConnectionsBetweenTwoAreDead)
{
    some_are_dead("exchange_for_ever", {0, 1}, "is not acknowledged");
}

TEST_F(UcxLinks, OneDeadConnectionWhileWaiting)
{
    some_are_dead("wait_for_ever", {0}, "");
}

TEST_F(UcxLinks, TheDeviceIsFound)
{
    Ranks::Options options;
    options.world = 3;
    options.arguments = {"contract"};
    auto ranks = start(options, 1);
    for (const process::Result &ending : ranks->wait_all(patience_sec)) {
        EXPECT_EQ(ending.code, 0) << ending.out << ending.err;
        EXPECT_NE(ending.out.find("3 ranks on 3 nodes"), std::string::npos) << ending.out;
        EXPECT_NE(ending.out.find("tcp on eth0"), std::string::npos) << ending.out;
    }
}

/* The TCP ports that somebody listens on in a process' network. */
std::vector<int> listening_ports(pid_t pid)
{
    std::vector<int> ports;
    for (const char *table : {"tcp", "tcp6"}) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/net/" + table);
        std::string line, number, local, remote, state;
        while (std::getline(file, line)) {
            std::istringstream(line) >> number >> local >> remote >> state;
            if (state == "0A") {
                ports.push_back((int)strtol(local.c_str() + local.rfind(':') + 1, nullptr, 16));
            }
        }
    }
    return ports;
}

/* All are connected: there is nothing that a stranger could reach. */
TEST_F(UcxLinks, NobodyListensOnceAllAreConnected)
{
    Ranks::Options options;
    options.world = 3;
    options.arguments = {"exchange_for_ever"};
    auto ranks = start(options, 1);
    ASSERT_TRUE(ranks->wait_ready(patience_sec)) << ranks->transcript();
    for (int r : {0, 1, 2}) {
        EXPECT_TRUE(listening_ports(ranks->pid(r)).empty()) << r;
    }
}

/* Two devices: both carry data, and the faster one more. */
TEST_F(UcxLinks, TwoDevicesShareTheChunks)
{
    Ranks::Options options;
    options.world = 2;
    options.arguments = {"exchange_for_ever"};
    options.env = {{"TW_NET_DEVICES", "eth0,eth1"}, {"TW_NET_CHUNK", "32K"}};
    auto ranks = start(options, 2);
    ASSERT_TRUE(ranks->wait_ready(patience_sec)) << ranks->transcript();
    /* On the way to rank 1: 100 Mb/s next to 400. */
    const bool shaped =
        command("tc qdisc add dev " + link_of(1, 0) + " root tbf rate 400mbit burst 256k latency 100ms") &&
        command("tc qdisc add dev " + link_of(1, 1) + " root tbf rate 100mbit burst 256k latency 100ms");
    const uint64_t start_0 = received(ranks->pid(1), "eth0"), start_1 = received(ranks->pid(1), "eth1");
    sleep(2);
    const uint64_t on_0 = received(ranks->pid(1), "eth0") - start_0,
                   on_1 = received(ranks->pid(1), "eth1") - start_1;
    EXPECT_GT(on_0, 1000000u);
    EXPECT_GT(on_1, 1000000u);
    if (shaped) {
        EXPECT_GT(on_0, on_1);
    }
    ranks->signal(1, SIGKILL);
    const process::Result ending = ranks->wait_one(0, patience_sec);
    EXPECT_NE(ending.out.find("failed rank 1 "), std::string::npos) << ending.out << ending.err;
    EXPECT_NE(ending.out.find("tcp on eth0,eth1"), std::string::npos) << ending.out;
}

/* Two devices in one subnet, where the routes name the first for all: each carries its own. */
TEST_F(UcxLinks, TwoDevicesOfOneSubnetBothCarry)
{
    Ranks::Options options;
    options.world = 2;
    options.arguments = {"exchange_for_ever"};
    options.env = {{"TW_NET_DEVICES", "eth0,eth1"}, {"TW_NET_CHUNK", "32K"}};
    auto ranks = start(options, Plan{2, true});
    ASSERT_TRUE(ranks->wait_ready(patience_sec)) << ranks->transcript();
    sleep(1);
    for (int r : {0, 1}) {
        for (const char *device : {"eth0", "eth1"}) {
            EXPECT_GT(sent(ranks->pid(r), device), 1000000u) << r << " by " << device;
        }
    }
    EXPECT_EQ(ranks->transcript().find("in one subnet"), std::string::npos) << ranks->transcript();
}

/* The address that others reach is on the loopback device, which leads to no one. */
TEST_F(UcxLinks, AnAddressOnTheLoopbackDevice)
{
    Ranks::Options options;
    options.world = 3;
    options.arguments = {"contract"};
    auto ranks = start(options, Plan{1, false, true});
    for (const process::Result &ending : ranks->wait_all(patience_sec)) {
        EXPECT_EQ(ending.code, 0) << ending.out << ending.err;
        EXPECT_NE(ending.out.find("3 ranks on 3 nodes"), std::string::npos) << ending.out;
        EXPECT_NE(ending.out.find("tcp on lo"), std::string::npos) << ending.out;
    }
}

/* The way to each node becomes slow, with a queue that takes longer to empty than a rank may be silent. All
 * go on; a node that is cut off then has failed soon. */
TEST_F(UcxLinks, DeepQueues)
{
    const int victim = 2;
    Ranks::Options options;
    options.world = 4;
    options.arguments = {"exchange_for_ever", "30000000"};
    options.env = {{"TW_NET_STREAMS", "4"}};
    auto ranks = start(options, 1);
    ASSERT_TRUE(ranks->wait_ready(patience_sec)) << ranks->transcript();
    sleep(1);
    for (int r = 0; r < options.world; r++) {
        ASSERT_TRUE(
            command("tc qdisc add dev " + link_of(r, 0) + " root tbf rate 25mbit burst 256k limit 6250000"));
    }
    const uint64_t before = received(ranks->pid(0), "eth0");
    sleep(8);
    EXPECT_GT(received(ranks->pid(0), "eth0"), before + 1000000);
    if (ranks->transcript().find("failed") != std::string::npos) {
        (void)ranks->wait_all(patience_sec);
    }
    ASSERT_EQ(ranks->transcript().find("failed"), std::string::npos) << ranks->transcript();
    ASSERT_TRUE(command("ip link set " + link_of(victim, 0) + " down"));
    const double start_sec = tw_time_sec();
    for (int r = 0; r < options.world; r++) {
        const process::Result ending = ranks->wait_one(r, patience_sec);
        const int named = r != victim ? victim : 0;
        EXPECT_TRUE(ending.in_time) << ending.out << ending.err;
        EXPECT_NE(ending.out.find("failed rank " + std::to_string(named) + " "), std::string::npos)
            << "rank " << r << ": " << ending.out << ending.err;
    }
    EXPECT_LT(tw_time_sec() - start_sec, peer_timeout_sec + slack_sec);
}

} // namespace
