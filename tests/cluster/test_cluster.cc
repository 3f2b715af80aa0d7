#include "cluster/cluster.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <grp.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "cluster/state.h"
#include "tests/common/process.h"
#include "transport/transport.h"

namespace
{

using process::Child;
using process::Result;

const char *const kTool = "bench/cluster";

std::vector<std::string> sorted_lines(const std::string &text)
{
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) {
        lines.push_back(line);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
}

Result run_cluster(const std::vector<std::string> &flags, const std::string &script)
{
    std::vector<std::string> args = {kTool};
    args.insert(args.end(), flags.begin(), flags.end());
    args.insert(args.end(), {"--", "sh", "-c", script});
    return process::run(args);
}

class ClusterTest : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        Result result = run_cluster({"--nodes", "1"}, "true");
        if (result.code != 0) {
            GTEST_SKIP() << "no cluster can be made here: " << result.err;
        }
    }
};

/* Processes whose command line contains `mark`. */
int count_processes(const std::string &mark)
{
    int n = 0;
    DIR *dir = opendir("/proc");
    while (const dirent *entry = readdir(dir)) {
        std::string command = process::slurp(std::string("/proc/") + entry->d_name + "/cmdline");
        n += command.find(mark) != std::string::npos && atoi(entry->d_name) != getpid();
    }
    closedir(dir);
    return n;
}

/* Polls until condition holds; false after a time that no healthy run needs. */
bool eventually(const std::function<bool()> &condition)
{
    for (int i = 0; i < 1000; i++) {
        if (condition()) {
            return true;
        }
        usleep(20000);
    }
    return false;
}

std::string unique_seconds()
{
    return "4" + std::to_string(getpid()) + std::to_string(rand() % 1000);
}

TEST_F(ClusterTest, RanksKnowWhoTheyAre)
{
    Result result =
        run_cluster({"--nodes", "3", "--ranks-per-node", "2"},
                    "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $(hostname) $MASTER_ADDR "
                    "$MASTER_PORT $TW_NET_DEVICES $TW_CLUSTER ${#TW_JOB_TOKEN}");
    EXPECT_EQ(0, result.code) << result.err;
    std::vector<std::string> want;
    for (int rank = 0; rank < 6; rank++) {
        std::string mark = rank > 0 ? "[rank " + std::to_string(rank) + "] " : "";
        want.push_back(mark + std::to_string(rank) + " 6 " + std::to_string(rank % 2) + " 2 node" +
                       std::to_string(rank / 2) + " 10.77.0.1 29500 eth0 nodes 32");
    }
    std::sort(want.begin(), want.end());
    EXPECT_EQ(want, sorted_lines(result.out));
    EXPECT_EQ("", result.err);
}

TEST_F(ClusterTest, NodesWithIpv6Alone)
{
    Result result = run_cluster({"--ipv6", "--nics", "2"},
                                "echo $RANK $MASTER_ADDR $TW_NET_DEVICES $(ip -4 addr | grep -c inet) "
                                "$(ip -6 addr show eth1 | grep -c fd77::1:$((RANK + 1))/112)");
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ((std::vector<std::string>{"0 fd77::0:1 eth0,eth1 0 1", "[rank 1] 1 fd77::0:1 eth0,eth1 0 1"}),
              sorted_lines(result.out));
    EXPECT_EQ("", result.err);
}

TEST_F(ClusterTest, TokensDifferBetweenJobs)
{
    Result first = run_cluster({"--nodes", "1"}, "echo $TW_JOB_TOKEN");
    Result second = run_cluster({"--nodes", "1"}, "echo $TW_JOB_TOKEN");
    EXPECT_EQ(33u, first.out.size());
    EXPECT_NE(first.out, second.out);
}

TEST_F(ClusterTest, NodesShareNothingButTheNetwork)
{
    const std::string script =
        "for ns in net ipc uts pid mnt; do echo $ns $(readlink /proc/self/ns/$ns); done; "
        "touch /dev/shm/from$RANK; sleep 0.2; ls /dev/shm";
    Result result = run_cluster({"--nodes", "2"}, script);
    EXPECT_EQ(0, result.code) << result.err;
    std::vector<std::string> lines = sorted_lines(result.out);
    EXPECT_EQ(12u, lines.size()) << result.out;
    std::vector<std::string> bare;
    for (const std::string &line : lines) {
        bare.push_back(line[0] == '[' ? line.substr(line.find("] ") + 2) : line);
    }
    std::sort(bare.begin(), bare.end());
    EXPECT_EQ(bare.end(), std::adjacent_find(bare.begin(), bare.end())) << result.out;
}

TEST_F(ClusterTest, LinksAreShapedInBothDirectionsAndTheHostIsNotTouched)
{
    Child child({kTool, "--nodes", "2", "--link", "50mbit", "--", "sh", "-c",
                 "PATH=$PATH:/usr/sbin:/sbin; tc qdisc show dev eth0; sleep 0.3"});
    EXPECT_TRUE(eventually([&]() { return child.out().find("tbf") != std::string::npos; }));
    EXPECT_EQ(0u, if_nametoindex("port0"));
    EXPECT_EQ(0u, if_nametoindex("port1"));
    Result result = child.wait();
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_NE(std::string::npos, result.out.find("rate 50Mbit")) << result.out;
}

/* ---- rank bodies: this program again, see main() ------------------------------------------------------- */

constexpr size_t kTransferBytes = 2000000;
constexpr double kTransferRate = 40e6;
constexpr int kNics = 3;

int socket_to(int node, int listening)
{
    char text[TW_CLUSTER_ADDRESS_BYTES];
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(4242);
    inet_pton(AF_INET, tw_cluster_node_address(node, text), &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (listening) {
        if (bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) != 0 || listen(fd, 8) != 0) {
            return -1;
        }
        return fd;
    }
    while (connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) != 0) {
        close(fd);
        usleep(1000);
        fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    return fd;
}

size_t drain(int fd)
{
    std::vector<char> buf(1 << 16);
    size_t total = 0;
    for (ssize_t n; (n = read(fd, buf.data(), buf.size())) > 0;) {
        total += static_cast<size_t>(n);
    }
    close(fd);
    return total;
}

void pour(int fd)
{
    std::vector<char> data(kTransferBytes, 'x');
    if (write(fd, data.data(), data.size()) != static_cast<ssize_t>(data.size())) {
        _exit(3);
    }
    close(fd);
}

/* Prints the congestion control of a connection from node 0 to node 1, as the kernel has it. */
int rank_congestion()
{
    int rank = atoi(getenv("RANK"));
    int fd = rank == 1 ? accept(socket_to(1, 1), nullptr, nullptr) : rank == 0 ? socket_to(1, 0) : -1;
    char name[32] = "";
    socklen_t bytes = sizeof(name);
    if (rank == 0 && getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0) {
        printf("%s\n", name);
    }
    return 0;
}

/* Nodes 1 and 2 send to node 0, which takes what one link takes for both; then the other way round. Prints
 * seconds. */
int rank_incast()
{
    int rank = atoi(getenv("RANK"));
    if (rank == 0) {
        int listener = socket_to(0, 1), a = accept(listener, nullptr, nullptr),
            b = accept(listener, nullptr, nullptr);
        double start = tw_time_sec();
        size_t got = drain(a) + drain(b);
        printf("%zu %.6f\n", got, tw_time_sec() - start);
        return 0;
    }
    pour(socket_to(0, 0));
    return 0;
}

int rank_outcast()
{
    int rank = atoi(getenv("RANK"));
    if (rank == 0) {
        int a = socket_to(1, 0), b = socket_to(2, 0);
        pid_t pid = fork();
        pour(pid == 0 ? a : b);
        if (pid == 0) {
            _exit(0);
        }
        close(pid == 0 ? b : a);
        waitpid(pid, nullptr, 0);
        return 0;
    }
    int listener = socket_to(rank, 1), a = accept(listener, nullptr, nullptr);
    double start = tw_time_sec();
    size_t got = drain(a);
    printf("%zu %.6f\n", got, tw_time_sec() - start);
    return 0;
}

/* Node 0 connects to each interface of node 1, and prints which of its own it left by. */
int rank_nics()
{
    sockaddr_in address = {};
    socklen_t length = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_port = htons(4242);
    if (atoi(getenv("RANK")) == 1) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        bind(listener, reinterpret_cast<sockaddr *>(&address), length);
        listen(listener, 8);
        for (int nic = 0; nic < kNics; nic++) {
            accept(listener, nullptr, nullptr);
        }
        printf("%s\n", getenv("TW_NET_DEVICES"));
        return 0;
    }
    for (int nic = 0; nic < kNics; nic++) {
        std::string peer = "10.77." + std::to_string(nic) + ".2";
        inet_pton(AF_INET, peer.c_str(), &address.sin_addr);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        for (; connect(fd, reinterpret_cast<sockaddr *>(&address), length) != 0; usleep(1000)) {
            close(fd);
            fd = socket(AF_INET, SOCK_STREAM, 0);
        }
        sockaddr_in own;
        getsockname(fd, reinterpret_cast<sockaddr *>(&own), &length);
        printf("%s\n", inet_ntoa(own.sin_addr));
    }
    return 0;
}

Result run_bodies(const char *name, const char *nodes = "3", int nics = 1)
{
    std::string self = process::slurp("/proc/self/cmdline");
    return process::run({kTool, "--nodes", nodes, "--nics", std::to_string(nics), "--link", "40mbit", "--",
                         self.c_str(), name});
}

TEST_F(ClusterTest, EveryNicHasAShapedLinkOfItsOwn)
{
    Result result = run_bodies("rank_nics", "2", kNics);
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ((std::vector<std::string>{"10.77.0.1", "10.77.1.1", "10.77.2.1", "[rank 1] eth0,eth1,eth2"}),
              sorted_lines(result.out));
    Result queues = run_cluster({"--nodes", "1", "--nics", "3", "--link", "40mbit"},
                                "PATH=$PATH:/usr/sbin:/sbin; tc qdisc show");
    for (const char *nic : {" dev eth0 ", " dev eth1 ", " dev eth2 "}) {
        size_t at = queues.out.find(nic);
        ASSERT_NE(std::string::npos, at) << queues.out;
        EXPECT_NE(std::string::npos, queues.out.substr(at, 60).find("rate 40Mbit")) << queues.out;
    }
}

TEST_F(ClusterTest, TcpBetweenNodesUsesCubicOrTheNoteSaysWhyNot)
{
    Result result = run_bodies("rank_congestion"),
           note = run_cluster({"--nodes", "1"}, "echo $TW_CLUSTER_NOTE");
    ASSERT_EQ(0, result.code) << result.err;
    EXPECT_EQ(result.out == "cubic\n", note.out == "\n") << result.out << note.out;
    if (note.out != "\n") {
        EXPECT_NE(std::string::npos, note.out.find("node 0: TCP without cubic: ")) << note.out;
    }
}

/* The only bound on time here, and the link itself keeps it: a transfer cannot be faster than its rate
 * allows. */
double least_seconds(size_t bytes)
{
    return static_cast<double>(bytes - 2 * tw_cluster_burst_bytes(kTransferRate)) * 8 / kTransferRate * 0.95;
}

TEST_F(ClusterTest, NoNodeReceivesFasterThanItsLink)
{
    Result result = run_bodies("rank_incast");
    ASSERT_EQ(0, result.code) << result.err;
    size_t bytes;
    double seconds;
    ASSERT_EQ(2, sscanf(result.out.c_str(), "%zu %lf", &bytes, &seconds)) << result.out;
    EXPECT_EQ(2 * kTransferBytes, bytes);
    EXPECT_GE(seconds, least_seconds(bytes));
}

TEST_F(ClusterTest, NoNodeSendsFasterThanItsLink)
{
    Result result = run_bodies("rank_outcast");
    ASSERT_EQ(0, result.code) << result.err;
    double slowest = 0;
    for (const std::string &line : sorted_lines(result.out)) {
        size_t bytes;
        double seconds;
        ASSERT_EQ(2, sscanf(line.c_str() + line.find("] ") + 2, "%zu %lf", &bytes, &seconds)) << result.out;
        EXPECT_EQ(kTransferBytes, bytes);
        slowest = std::max(slowest, seconds);
    }
    EXPECT_GE(slowest, least_seconds(2 * kTransferBytes));
}

/* ---- endings ------------------------------------------------------------------------------------------- */

TEST_F(ClusterTest, AFailingRankEndsTheOthersAndIsNamed)
{
    std::string seconds = unique_seconds();
    Result result =
        run_cluster({"--nodes", "3", "--grace", "200ms"},
                    "if [ $RANK = 1 ]; then echo last words >&2; exit 7; fi; exec sleep " + seconds);
    EXPECT_EQ(7, result.code);
    EXPECT_NE(std::string::npos, result.err.find("[rank 1] last words\n")) << result.err;
    EXPECT_NE(std::string::npos, result.err.find("rank 1 (node 1): exited with code 7")) << result.err;
    EXPECT_EQ(0, count_processes(seconds));
}

TEST_F(ClusterTest, AKilledRankIsNamedWithItsSignal)
{
    Result result = run_cluster({"--nodes", "2", "--grace", "200ms"},
                                "[ $RANK = 0 ] && kill -SEGV $$; exec sleep " + unique_seconds());
    EXPECT_EQ(128 + SIGSEGV, result.code);
    EXPECT_NE(std::string::npos, result.err.find("rank 0 (node 0): killed by signal 11")) << result.err;
}

/* Whoever lost him may end first, and be heard of first. */
TEST_F(ClusterTest, WhoIsKilledCountsMoreThanWhoFailsOfIt)
{
    Result result =
        run_cluster({"--nodes", "2", "--grace", "20s"}, "[ $RANK = 0 ] && exit 3; sleep 0.3; kill -KILL $$");
    EXPECT_EQ(128 + SIGKILL, result.code);
    EXPECT_NE(std::string::npos, result.err.find("rank 0 (node 0): exited with code 3")) << result.err;
    EXPECT_NE(std::string::npos, result.err.find("rank 1 (node 1): killed by signal 9")) << result.err;
}

/* Rank 1 goes on for longer than the time of the first case, and for less than that of the others. */
TEST_F(ClusterTest, TheOthersHaveTheirTimeToEnd)
{
    const std::string script = "[ $RANK = 0 ] && exit 3; sleep 1; echo done";
    Result killed = run_cluster({"--nodes", "2", "--grace", "100ms"}, script);
    Result ended = run_cluster({"--nodes", "2", "--grace", "100s"}, script);
    setenv("TW_PEER_TIMEOUT", "100ms", 1);
    Result by_default = run_cluster({"--nodes", "2"}, script);
    unsetenv("TW_PEER_TIMEOUT");
    EXPECT_EQ("", killed.out);
    EXPECT_EQ("[rank 1] done\n", ended.out);
    EXPECT_EQ("[rank 1] done\n", by_default.out);
    EXPECT_EQ(std::vector<int>({3, 3, 3}), std::vector<int>({killed.code, ended.code, by_default.code}));
}

TEST_F(ClusterTest, AProgramThatIsNotThereIsNamed)
{
    Result result = process::run({kTool, "--nodes", "2", "--", "/nosuch/program"});
    EXPECT_EQ(127, result.code);
    EXPECT_NE(std::string::npos, result.err.find("/nosuch/program: No such file")) << result.err;
}

class ClusterEndTest : public ClusterTest
{
  protected:
    /* Starts a cluster, ends it with `end`, and sees everything go away: caller, supervisor, 2 nodes, 4
     * ranks. */
    void expect_gone(const std::function<void(pid_t)> &end)
    {
        std::string mark = unique_seconds();
        Child child({kTool, "--nodes", "2", "--ranks-per-node", "2", "--", "sleep", mark});
        ASSERT_TRUE(eventually([&]() { return count_processes(mark) == 8; })) << count_processes(mark);
        end(child.pid());
        EXPECT_TRUE(eventually([&]() { return count_processes(mark) == 0; })) << count_processes(mark);
        EXPECT_NE(0, child.wait().code);
    }
};

TEST_F(ClusterEndTest, NothingIsLeftWhenTheCallerIsKilled)
{
    expect_gone([](pid_t pid) { kill(pid, SIGKILL); });
}

TEST_F(ClusterEndTest, NothingIsLeftAfterCtrlC)
{
    expect_gone([](pid_t pid) { kill(-pid, SIGINT); });
}

TEST_F(ClusterEndTest, NothingIsLeftAfterTermination)
{
    expect_gone([](pid_t pid) { kill(pid, SIGTERM); });
}

/* Ranks that have something to do before they end are asked, and waited for. */
const char *const kAsked = "trap 'echo asked $RANK; exit 7' TERM INT HUP; echo ready; "
                           "while :; do sleep 0.1; done";

TEST_F(ClusterTest, WhoAsksTheCallerToEndAsksAllRanks)
{
    for (int number : {SIGTERM, SIGINT, SIGHUP}) {
        for (bool is_group : {false, true}) { /* a terminal's Ctrl-C goes to all processes of the box */
            Child child({kTool, "--nodes", "2", "--ranks-per-node", "2", "--", "bash", "-c", kAsked});
            ASSERT_TRUE(eventually([&]() {
                process::listen({&child}, 10);
                const std::string &out = child.out();
                return std::count(out.begin(), out.end(), '\n') == 4;
            })) << child.err();
            ASSERT_EQ(0, kill(is_group ? -child.pid() : child.pid(), number));
            Result result = child.wait(60);
            EXPECT_EQ(7, result.code) << result.err;
            for (const char *rank : {"asked 0", "asked 1", "asked 2", "asked 3"}) {
                EXPECT_NE(std::string::npos, result.out.find(rank)) << number << result.out;
            }
        }
    }
}

TEST_F(ClusterTest, WhoAsksAgainDoesNotWait)
{
    std::string mark = unique_seconds();
    Child child({kTool, "--nodes", "2", "--", "bash", "-c", "trap '' TERM; echo ready; sleep " + mark});
    ASSERT_TRUE(eventually([&]() {
        process::listen({&child}, 10);
        return std::count(child.out().begin(), child.out().end(), '\n') == 2;
    })) << child.err();
    child.signal(SIGTERM);
    sleep(TW_CLUSTER_SAME_REQUEST_SEC + 2);
    EXPECT_GT(count_processes(mark), 0);
    child.signal(SIGTERM);
    EXPECT_EQ(128 + SIGTERM, child.wait(60).code);
    EXPECT_TRUE(eventually([&]() { return count_processes(mark) == 0; })) << count_processes(mark);
}

/* What runs in the background of a script ignores a terminal's Ctrl-C; so do its ranks. */
TEST_F(ClusterTest, WhatTheCallerIgnoresIsNotPassedOn)
{
    process::Spec spec;
    spec.argv = {kTool, "--nodes", "1", "--", "bash", "-c", "echo ready; sleep 2; echo done"};
    spec.before = []() { signal(SIGINT, SIG_IGN); };
    Child child(spec);
    ASSERT_TRUE(eventually([&]() {
        process::listen({&child}, 10);
        return child.out() == "ready\n";
    })) << child.err();
    ASSERT_EQ(0, kill(-child.pid(), SIGINT));
    Result result = child.wait(60);
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ("ready\ndone\n", result.out);
}

/* ---- without privileges -------------------------------------------------------------------------------- */

/* Dumpable, so that the process still owns its files in /proc, as one that was started like this does. */
bool become_nobody()
{
    return geteuid() != 0 || (setgroups(0, nullptr) == 0 && setresgid(65534, 65534, 65534) == 0 &&
                              setresuid(65534, 65534, 65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
}

int run_echo(int no_loopback)
{
    const char *argv[] = {"/bin/sh", "-c", "echo $RANK $TW_CLUSTER $(id -u)", nullptr};
    tw_cluster_params_t params = {};
    params.n_nodes = 2;
    params.ranks_per_node = 1;
    params.link_bps = 1e9;
    params.argv = argv;
    params.no_loopback = no_loopback;
    int code = -1;
    return tw_cluster_run(&params, &code) == TW_OK ? code : 99;
}

/* Buffers of a window, and queues for those of both ranks, with some room, one for each node. */
int run_with_windows(int ipv6)
{
    const char *argv[] = {
        "/bin/sh", "-c",
        "cat /proc/sys/net/ipv4/tcp_wmem; PATH=$PATH:/usr/sbin:/sbin; tc qdisc show dev eth0; "
        "tc class show dev eth0; tc filter show dev eth0 parent 1:; "
        "case $MASTER_ADDR in *:*) other=fd77::0:2;; *) other=10.77.0.2;; esac; "
        "[ $RANK = 0 ] || sleep 1; [ $RANK = 1 ] || bash -c \"exec 3<>/dev/tcp/$other/9\" 2>/dev/null; "
        "[ $RANK = 1 ] || tc -s class show dev eth0 | grep -A 1 'htb 1:3 ' | sed -n 's/.*Sent/node 1 gets/p'",
        nullptr};
    tw_cluster_params_t params = {};
    params.n_nodes = 2;
    params.ranks_per_node = 1;
    params.link_bps = 1e8;
    params.window_bytes = 131072;
    params.ipv6 = ipv6;
    params.argv = argv;
    params.no_loopback = 1;
    int code = -1;
    return tw_cluster_run(&params, &code) == TW_OK ? code : 99;
}

TEST_F(ClusterTest, ConnectionsHaveAWindowAndQueuesHoldAll)
{
    for (int ipv6 : {0, 1}) {
        Result result = Child([ipv6]() { return run_with_windows(ipv6); }).wait();
        EXPECT_EQ(0, result.code) << result.err;
        EXPECT_NE(std::string::npos, result.out.find("4096\t131072\t131072")) << result.out;
        for (const char *id : {"1:2", "1:3"}) {
            EXPECT_NE(std::string::npos, result.out.find(std::string("parent ") + id + " limit 400Kb"))
                << result.out;
            EXPECT_NE(std::string::npos, result.out.find(std::string("flowid ") + id)) << result.out;
        }
        EXPECT_NE(std::string::npos, result.out.find("rate 50Mbit ceil 100Mbit")) << result.out;
        EXPECT_NE(std::string::npos, result.out.find("node 1 gets")) << result.out;
        EXPECT_EQ(std::string::npos, result.out.find("node 1 gets 0 bytes")) << result.out;
    }
}

TEST(ClusterUnprivilegedTest, WorksInAUserNamespace)
{
    Result result = Child([]() { return become_nobody() ? run_echo(1) : 98; }).wait();
    if (result.code == 99) {
        GTEST_SKIP() << "no unprivileged user namespaces here: " << result.err;
    }
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_EQ((std::vector<std::string>{"0 nodes 0", "[rank 1] 1 nodes 0"}), sorted_lines(result.out));
}

/* In a user namespace that maps nobody, no further one can be made. */
bool become_powerless()
{
    return unshare(CLONE_NEWUSER) == 0;
}

TEST(ClusterUnprivilegedTest, FallsBackToLoopbackAndSaysSo)
{
    Result result = Child([]() { return become_powerless() ? run_echo(0) : 97; }).wait();
    if (result.code == 97) {
        GTEST_SKIP() << "cannot drop privileges here";
    }
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_NE(std::string::npos, result.err.find("no cluster can be made here (")) << result.err;
    EXPECT_NE(std::string::npos, result.err.find("loopback")) << result.err;
    ASSERT_EQ(2u, sorted_lines(result.out).size()) << result.out;
    EXPECT_EQ(0u, sorted_lines(result.out)[0].find("0 loopback ")) << result.out;
    EXPECT_EQ(0u, sorted_lines(result.out)[1].find("[rank 1] 1 loopback ")) << result.out;
}

TEST(ClusterUnprivilegedTest, RefusesLoopbackWhenTold)
{
    Result result = Child([]() { return become_powerless() ? run_echo(1) : 97; }).wait();
    if (result.code == 97) {
        GTEST_SKIP() << "cannot drop privileges here";
    }
    EXPECT_EQ(99, result.code);
    EXPECT_NE(std::string::npos, result.err.find("error no cluster can be made here")) << result.err;
}

/* The ranks' own time to find a failure must be over before they are killed. */
TEST(ClusterGraceTest, KnowsTheTransportsTimeout)
{
    const tw_config_table_t *table = &tw_transport_config_table;
    double seconds = 0;
    for (size_t i = 0; i < table->n_fields; i++) {
        if (std::string(table->fields[i].name) == "TW_PEER_TIMEOUT") {
            EXPECT_EQ(TW_OK, tw_parse_time(table->fields[i].dflt, &seconds));
        }
    }
    EXPECT_EQ(seconds, TW_CLUSTER_PEER_TIMEOUT_SEC);
}

/* ---- what is wrong with the parameters ----------------------------------------------------------------- */

TEST(ClusterParamsTest, BadOnesAreRefused)
{
    const char *argv[] = {"true", nullptr};
    tw_cluster_params_t good = {};
    good.n_nodes = good.ranks_per_node = 1;
    good.argv = argv;
    int code;
    tw_log_set_sink([](void *, tw_log_level_t, const char *, int, const char *) {}, nullptr);
    const std::function<void(tw_cluster_params_t &)> spoil[] = {
        [](tw_cluster_params_t &p) { p.n_nodes = 0; },
        [](tw_cluster_params_t &p) { p.n_nodes = TW_CLUSTER_MAX_NODES + 1; },
        [](tw_cluster_params_t &p) { p.ranks_per_node = 0; },
        [](tw_cluster_params_t &p) { p.ranks_per_node = TW_CLUSTER_MAX_RANKS + 1; },
        [](tw_cluster_params_t &p) { p.n_nics = -1; },
        [](tw_cluster_params_t &p) { p.n_nics = TW_CLUSTER_MAX_NICS + 1; },
        [](tw_cluster_params_t &p) { p.link_bps = -1; },
        [](tw_cluster_params_t &p) { p.link_bps = TW_CLUSTER_LINK_MIN_BPS / 2; },
        [](tw_cluster_params_t &p) { p.grace_sec = -1; },
        [&](tw_cluster_params_t &p) { p.argv = argv + 1; },
    };
    for (size_t i = 0; i < std::size(spoil); i++) {
        tw_cluster_params_t params = good;
        spoil[i](params);
        EXPECT_EQ(TW_ERR_INVALID, tw_cluster_run(&params, &code)) << i;
    }
    tw_log_set_sink(nullptr, nullptr);
}

TEST(ClusterToolTest, SaysWhatIsWrong)
{
    struct {
        std::vector<std::string> args;
        const char *said;
    } cases[] = {
        {{kTool, "--nodes", "x", "--", "true"}, "--nodes: 'x'"},
        {{kTool, "--link", "fast", "--", "true"}, "--link: 'fast'"},
        {{kTool, "--link", "1", "--", "true"}, "--link: '1' is not a rate from 1mbit on"},
        {{kTool, "--nics", "17", "--", "true"}, "--nics: '17'"},
        {{kTool, "--grace", "soon", "--", "true"}, "--grace: 'soon'"},
        {{kTool, "--ranks-per-node", "0", "--", "true"}, "--ranks-per-node: '0'"},
        {{kTool}, "-- COMMAND [ARG...] is missing"},
        {{kTool, "--nonsense"}, "--nonsense"},
    };
    for (const auto &c : cases) {
        Result result = process::run(c.args);
        EXPECT_EQ(2, result.code) << c.said;
        EXPECT_NE(std::string::npos, result.err.find(c.said)) << result.err;
    }
    Result help = process::run({kTool, "--help"});
    EXPECT_EQ(0, help.code);
    EXPECT_NE(std::string::npos, help.out.find("default: 1gbit")) << help.out;
}

} // namespace

int main(int argc, char **argv)
{
    const std::map<std::string, int (*)()> bodies = {{"rank_incast", rank_incast},
                                                     {"rank_outcast", rank_outcast},
                                                     {"rank_congestion", rank_congestion},
                                                     {"rank_nics", rank_nics}};
    if (argc == 2 && bodies.count(argv[1])) {
        return bodies.at(argv[1])();
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
