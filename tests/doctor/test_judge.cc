/* The doctor's judgement, of made-up figures. */
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "doctor/state.h"

namespace
{

constexpr double kRate = 1e9;

/* Nodes of so many ranks, all alike and well. */
class Cluster
{
  public:
    /* Each node sends to so many others; -1: to all. */
    explicit Cluster(int n_nodes, int ranks_per_node = 1, int n_pairs = -1)
    {
        const int furthest = n_pairs < 0 ? n_nodes - 1 : n_pairs;
        for (int r = 0; r < n_nodes * ranks_per_node; r++) {
            facts.push_back(good_rank(r, r / ranks_per_node));
        }
        for (int node = 0; node < n_nodes; node++) {
            leaders.push_back(node * ranks_per_node);
            const int next = (node + 1) % n_nodes;
            for (int distance = 1; distance <= furthest; distance++) {
                flows.push_back(good_flow(TW_DOCTOR_PAIR, node, (node + distance) % n_nodes, 1));
            }
            flows.push_back(good_flow(TW_DOCTOR_STREAMS, node, next, 4));
            flows.push_back(good_flow(TW_DOCTOR_ALL, node, next, 4));
            paths.push_back({node, next, 0, 1500, 1500});
        }
    }

    tw_doctor_facts_t &node(int n)
    {
        return facts[(size_t)leaders[(size_t)n]];
    }

    /* Change all flows of a kind that begin, or end, at a node; -1: of any, at any. */
    template <typename Change>
    void each(int kind, int from, int to, Change change)
    {
        for (tw_doctor_flow_t &flow : flows) {
            if ((kind < 0 || flow.kind == kind) && (from < 0 || flow.from == from) &&
                (to < 0 || flow.to == to)) {
                change(flow);
            }
        }
    }

    void scale(int kind, int from, int to, double factor)
    {
        each(kind, from, to, [factor](tw_doctor_flow_t &flow) { flow.bps *= factor; });
    }

    tw_doctor_result_t result()
    {
        return {(int)facts.size(),
                (int)leaders.size(),
                (int)flows.size(),
                (int)paths.size(),
                facts.data(),
                leaders.data(),
                flows.data(),
                paths.data(),
                0,
                0,
                n_skipped,
                0};
    }

    std::vector<tw_doctor_finding_t> judged()
    {
        const tw_doctor_result_t seen = result();
        tw_doctor_findings_t findings;
        tw_doctor_judge(&seen, &findings);
        return {findings.list, findings.list + findings.n};
    }

    /* The only thing that is wrong. */
    tw_doctor_finding_t only()
    {
        const std::vector<tw_doctor_finding_t> found = judged();
        EXPECT_EQ(found.size(), 1u) << (found.size() > 1 ? found[1].what : "");
        return found.empty() ? tw_doctor_finding_t{} : found[0];
    }

    std::vector<tw_doctor_facts_t> facts;
    std::vector<int> leaders;
    std::vector<tw_doctor_flow_t> flows;
    std::vector<tw_doctor_path_t> paths;
    int n_skipped = 0;

  private:
    static tw_doctor_facts_t good_rank(int rank, int node)
    {
        tw_doctor_facts_t one = {};
        one.rank = rank;
        one.node = node;
        snprintf(one.host, sizeof(one.host), "host%d", node);
        one.n_devices = 1;
        snprintf(one.devices[0].name, sizeof(one.devices[0].name), "eth0");
        one.devices[0].mtu = 1500;
        one.devices[0].speed_mbps = 1000;
        one.devices[0].numa = one.numa = 0;
        one.cores = 8;
        one.descriptors = one.descriptors_hard = 65536;
        one.memory_bytes = one.shm_bytes = (int64_t)64 << 30;
        one.send_buffer = one.receive_buffer = 4 << 20;
        one.encode_GBps[0] = one.encode_GBps[1] = one.encode_GBps[2] = one.encode_GBps[3] = 10;
        return one;
    }

    static tw_doctor_flow_t good_flow(int kind, int from, int to, int n_streams)
    {
        tw_doctor_flow_t one = {};
        one.kind = kind;
        one.from = from;
        one.to = to;
        one.n_streams = n_streams;
        one.bps = kRate;
        one.rtt_us = 100;
        one.segments = 100000;
        snprintf(one.congestion, sizeof(one.congestion), "cubic");
        return one;
    }
};

bool has(const char *text, const std::string &part)
{
    return std::string(text).find(part) != std::string::npos;
}

#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part)) << (text)

TEST(DoctorJudge, NothingIsWrongWhereAllIsWell)
{
    for (int n_nodes : {1, 2, 3, 8}) {
        EXPECT_TRUE(Cluster(n_nodes, 2).judged().empty()) << n_nodes;
    }
}

TEST(DoctorJudge, ANodeThatSendsSlowly)
{
    Cluster cluster(4);
    cluster.scale(TW_DOCTOR_PAIR, 2, -1, 0.1);
    const tw_doctor_finding_t found = cluster.only();
    EXPECT_STREQ(found.what, "node 2 (host2) sends 100 Mb/s by eth0, 1.00 Gb/s is usual");
    EXPECT_NEAR(found.weight, 10, 1e-9);
    EXPECT_HAS(found.change, "on host2: ethtool eth0");
}

TEST(DoctorJudge, ANodeThatReceivesSlowly)
{
    Cluster cluster(3);
    cluster.scale(TW_DOCTOR_PAIR, -1, 0, 0.5);
    EXPECT_STREQ(cluster.only().what, "node 0 (host0) receives 500 Mb/s by eth0, 1.00 Gb/s is usual");
}

TEST(DoctorJudge, ANodeThatIsSlowBothWays)
{
    Cluster cluster(5);
    cluster.scale(TW_DOCTOR_PAIR, 1, -1, 0.1);
    cluster.scale(TW_DOCTOR_PAIR, -1, 1, 0.2);
    cluster.node(1).devices[0].speed_mbps = 100;
    const std::vector<tw_doctor_finding_t> found = cluster.judged();
    EXPECT_STREQ(found[0].what, "node 1 (host1) sends and receives 100 Mb/s by eth0, 1.00 Gb/s is usual");
    EXPECT_STREQ(found[0].why, "eth0 there is a link of 100 Mb/s, elsewhere of 1000");
}

TEST(DoctorJudge, APairIsBlamedWhereItsNodesAreWell)
{
    Cluster cluster(4);
    cluster.scale(TW_DOCTOR_PAIR, 1, 3, 0.25);
    EXPECT_STREQ(cluster.only().what,
                 "from node 1 (host1) to node 3 (host3): 250 Mb/s, 1.00 Gb/s with others");
}

TEST(DoctorJudge, OfManySlowPairsTheWorst)
{
    Cluster cluster(8);
    cluster.node(5).devices[0].mtu = 1400;
    for (int n = 0; n < 8; n++) {
        cluster.scale(TW_DOCTOR_PAIR, n, (n + 3) % 8, 0.6 - 0.05 * n);
        cluster.scale(TW_DOCTOR_PAIR, n, (n + 5) % 8, 0.5);
    }
    const std::vector<tw_doctor_finding_t> found = cluster.judged();
    ASSERT_EQ(found.size(), 5u);
    EXPECT_HAS(found[0].what, "from node 7 (host7) to node 2 (host2)");
    EXPECT_HAS(found[1].what, "from node 6 (host6) to node 1 (host1)");
    EXPECT_HAS(found[3].what, "node 5 (host5): eth0 has an MTU of 1400");
    EXPECT_STREQ(found[4].what, "13 more pairs of nodes are slow");
}

TEST(DoctorJudge, OfTwoNodesADirection)
{
    Cluster cluster(2);
    for (int kind : {TW_DOCTOR_PAIR, TW_DOCTOR_STREAMS, TW_DOCTOR_ALL}) {
        cluster.scale(kind, 1, 0, 0.1);
    }
    EXPECT_STREQ(cluster.only().what,
                 "from node 1 (host1) to node 0 (host0): 100 Mb/s, 1.00 Gb/s the other way");
}

TEST(DoctorJudge, AFlowThatBroughtNothingSaysWhy)
{
    Cluster cluster(3);
    cluster.each(TW_DOCTOR_PAIR, 0, 1, [](tw_doctor_flow_t &flow) {
        flow.bps = 0;
        flow.error = EHOSTUNREACH;
    });
    const tw_doctor_finding_t found = cluster.only();
    EXPECT_HAS(found.what, "from node 0 (host0) to node 1 (host1): 0.00 bit/s");
    EXPECT_STREQ(found.why, strerror(EHOSTUNREACH));
}

TEST(DoctorJudge, ADeviceOnWhichNothingComes)
{
    for (int n_nodes : {2, 4}) {
        Cluster cluster(n_nodes);
        cluster.each(-1, -1, -1, [](tw_doctor_flow_t &flow) {
            flow.bps = 0;
            flow.error = EHOSTUNREACH;
        });
        const tw_doctor_finding_t found = cluster.only();
        const std::string n = std::to_string(n_nodes * (n_nodes - 1));
        EXPECT_EQ(found.what, "by eth0 nothing comes on " + n + " of " + n + " ways from node to node");
        EXPECT_HAS(found.why, strerror(EHOSTUNREACH));
    }
}

TEST(DoctorJudge, SeveralStreamsAreFaster)
{
    Cluster cluster(3);
    cluster.scale(TW_DOCTOR_STREAMS, -1, -1, 3);
    cluster.scale(TW_DOCTOR_ALL, -1, -1, 3);
    tw_doctor_finding_t found = cluster.only();
    EXPECT_STREQ(found.what, "one TCP stream makes 1.00 Gb/s of eth0, 4 streams 3.0 times as much");
    EXPECT_STREQ(found.change, "TW_NET_STREAMS=4");
    EXPECT_HAS(found.why, "one core's work");
    cluster.node(0).send_buffer = 16000;
    found = cluster.only();
    EXPECT_HAS(found.why, "buffers hold less than is on the way (16 KB, 100 us)");
    EXPECT_HAS(found.change, "tcp_wmem");
}

TEST(DoctorJudge, AllAtOnceAreSlower)
{
    Cluster cluster(4);
    cluster.scale(TW_DOCTOR_ALL, -1, -1, 0.25);
    EXPECT_STREQ(cluster.only().what, "all nodes at once get 25 % of what each gets alone by eth0");
}

TEST(DoctorJudge, AllLinksAreSlowerThanTheirDevicesSay)
{
    Cluster cluster(3);
    for (tw_doctor_facts_t &one : cluster.facts) {
        one.devices[0].speed_mbps = 10000;
    }
    EXPECT_STREQ(cluster.only().what, "all links make 1.00 Gb/s by eth0, whose devices say 10.0 Gb/s");
    cluster.node(1).devices[0].speed_mbps = 0; /* where one does not say, nothing is known */
    EXPECT_TRUE(cluster.judged().empty());
}

TEST(DoctorJudge, ADeviceWithASmallMtu)
{
    Cluster cluster(3);
    for (tw_doctor_facts_t &one : cluster.facts) {
        one.devices[0].mtu = 9000;
    }
    cluster.node(1).devices[0].mtu = 1500;
    const tw_doctor_finding_t found = cluster.only();
    EXPECT_STREQ(found.what, "node 1 (host1): eth0 has an MTU of 1500, elsewhere it is 9000");
    EXPECT_STREQ(found.change, "ip link set eth0 mtu 9000 on host1");
}

TEST(DoctorJudge, APathThatPassesLessThanItsEnds)
{
    Cluster cluster(3);
    cluster.paths[1].passed_bytes = 1450;
    EXPECT_STREQ(cluster.only().what,
                 "from node 1 (host1) to node 2 (host2) packets of 1450 bytes pass, of 1500 they do not");
    cluster.paths[1].passed_bytes = 0;
    EXPECT_HAS(cluster.only().what, "no UDP packet passes");
}

TEST(DoctorJudge, CongestionControlThatDiffers)
{
    Cluster cluster(3);
    cluster.each(TW_DOCTOR_PAIR, 2, -1,
                 [](tw_doctor_flow_t &flow) { snprintf(flow.congestion, sizeof(flow.congestion), "bbr"); });
    const tw_doctor_finding_t found = cluster.only();
    EXPECT_STREQ(found.what, "node 2 (host2) sends with the congestion control bbr, others with cubic");
    EXPECT_HAS(found.change, "tcp_congestion_control=cubic on host2");
}

TEST(DoctorJudge, ARankOnAnotherInterface)
{
    Cluster cluster(2, 2);
    snprintf(cluster.facts[3].devices[0].name, 16, "ib0");
    const tw_doctor_finding_t found = cluster.only();
    EXPECT_STREQ(found.what, "rank 3 of node 1 (host1) uses ib0, others eth0");
    EXPECT_STREQ(found.change, "TW_NET_DEVICES=eth0 on all ranks");
}

TEST(DoctorJudge, RdmaThatIsNotUsed)
{
    Cluster cluster(3);
    for (tw_doctor_facts_t &one : cluster.facts) {
        snprintf(one.rdma, sizeof(one.rdma), "mlx5_0, 200 Gb/sec (4X HDR)");
        one.is_tcp = 1;
    }
    const tw_doctor_finding_t found = cluster.only();
    EXPECT_STREQ(found.what, "all nodes have RDMA (mlx5_0, 200 Gb/sec (4X HDR)), which jobs do not use");
    EXPECT_HAS(found.change, "TW_NET_TLS=rc");
    for (tw_doctor_facts_t &one : cluster.facts) {
        one.is_tcp = 0;
    }
    EXPECT_TRUE(cluster.judged().empty());
    cluster.node(1).rdma[0] = '\0';
    EXPECT_STREQ(cluster.only().what,
                 "node 1 (host1) has no active RDMA port, others have mlx5_0, 200 Gb/sec (4X HDR)");
}

TEST(DoctorJudge, ARankFarFromItsDevice)
{
    Cluster cluster(2, 2);
    cluster.facts[1].numa = 1;
    EXPECT_STREQ(cluster.only().what, "rank 1 runs on NUMA node 1 of host0, its device eth0 is at node 0");
    cluster.facts[1].numa = -1; /* of several nodes, or not known */
    EXPECT_TRUE(cluster.judged().empty());
}

TEST(DoctorJudge, ASlowProcessor)
{
    Cluster cluster(3);
    cluster.facts[2].encode_GBps[0] = 3;
    EXPECT_STREQ(cluster.only().what, "rank 2 (host2) encodes 3.00 GB/s, 10.00 is usual");
}

TEST(DoctorJudge, PacketsThatAreSentAgain)
{
    Cluster cluster(3);
    cluster.each(TW_DOCTOR_PAIR, 1, -1, [](tw_doctor_flow_t &flow) { flow.repeated = 5000; });
    EXPECT_STREQ(cluster.only().what, "node 1 (host1) sends 5.0 % of its packets again");
    cluster.scale(TW_DOCTOR_PAIR, 1, -1, 0.1); /* why it is slow, and not said twice */
    EXPECT_HAS(cluster.only().why, "5.0 % of its packets are lost");
}

TEST(DoctorJudge, LimitsOfANode)
{
    Cluster cluster(2, 2);
    cluster.node(1).descriptors = 100;
    EXPECT_STREQ(cluster.only().what, "node 1 (host1): 100 files and sockets may be open, 272 may be needed");
    cluster.node(1).descriptors = 65536;
    cluster.node(0).shm_bytes = 1 << 20;
    EXPECT_STREQ(cluster.only().what, "node 0 (host0): /dev/shm has 1 MB");
    cluster.node(0).shm_bytes = (int64_t)1 << 30;
    cluster.node(1).clock_sec = -3;
    EXPECT_STREQ(cluster.only().what, "node 1 (host1): its clock is 3.00 s behind rank 0's");
    cluster.node(1).clock_uncertain_sec = 5;
    EXPECT_TRUE(cluster.judged().empty());
}

TEST(DoctorJudge, TheWorstComesFirst)
{
    Cluster cluster(4);
    cluster.node(3).clock_sec = 9;
    cluster.node(2).devices[0].mtu = 1400;
    cluster.scale(TW_DOCTOR_PAIR, 1, -1, 0.5);
    const std::vector<tw_doctor_finding_t> found = cluster.judged();
    ASSERT_EQ(found.size(), 3u);
    EXPECT_HAS(found[0].what, "node 1");
    EXPECT_HAS(found[1].what, "node 2");
    EXPECT_HAS(found[2].what, "node 3");
}

/* Two hundred pairs of each, as there is time for: the one node and the one pair are named. */
TEST(DoctorJudge, AThousandNodes)
{
    Cluster cluster(1024, 1, 200);
    cluster.scale(TW_DOCTOR_PAIR, 700, -1, 0.1);
    cluster.scale(TW_DOCTOR_PAIR, 5, 105, 0.2);
    cluster.each(TW_DOCTOR_PAIR, 900, -1, [](tw_doctor_flow_t &flow) { flow.repeated = 5000; });
    cluster.each(TW_DOCTOR_PAIR, 800, -1,
                 [](tw_doctor_flow_t &flow) { snprintf(flow.congestion, sizeof(flow.congestion), "bbr"); });
    const std::vector<tw_doctor_finding_t> found = cluster.judged();
    ASSERT_EQ(found.size(), 4u);
    EXPECT_STREQ(found[0].what, "node 700 (host700) sends 100 Mb/s by eth0, 1.00 Gb/s is usual");
    EXPECT_HAS(found[1].what, "from node 5 (host5) to node 105 (host105): 200 Mb/s");
    EXPECT_HAS(found[2].what, "node 800 (host800) sends with the congestion control bbr");
    EXPECT_STREQ(found[3].what, "node 900 (host900) sends 5.0 % of its packets again");
}

TEST(DoctorJudge, MoreThanAreKept)
{
    Cluster cluster(60);
    for (int n = 0; n < 60; n++) {
        cluster.node(n).descriptors = 10;
    }
    EXPECT_EQ(cluster.judged().size(), (size_t)TW_DOCTOR_FINDINGS_MAX);
    cluster.n_skipped = 1;
    EXPECT_EQ(cluster.judged().size(), (size_t)TW_DOCTOR_FINDINGS_MAX);
    EXPECT_HAS(cluster.judged()[2].what, "1 of 3541 ways");
}

/* It is one of the three that the last lines say, whatever else there is. */
TEST(DoctorJudge, WhatWasNotMeasuredIsSaid)
{
    Cluster cluster(14, 1, 3);
    cluster.n_skipped = 14 * 10;
    EXPECT_STREQ(cluster.only().what, "140 of 182 ways from node to node are not measured");
    cluster.each(-1, -1, -1, [](tw_doctor_flow_t &flow) {
        flow.bps = 0;
        flow.error = ETIMEDOUT;
    });
    EXPECT_HAS(cluster.judged()[0].what, "by eth0 nothing comes on 42 of 42 ways");
    EXPECT_HAS(cluster.judged()[1].what, "140 of 182");
    for (int n = 0; n < 5; n++) {
        cluster.node(n).descriptors = 10;
    }
    EXPECT_HAS(cluster.judged()[2].what, "140 of 182");
}

/* A host's name may be no UTF-8, which JSON is: the report is written all the same. */
TEST(DoctorReport, ANameThatIsNoUtf8IsWritten)
{
    Cluster cluster(3);
    snprintf(cluster.node(1).host, sizeof(cluster.node(1).host), "kn\xfcller");
    cluster.scale(TW_DOCTOR_PAIR, 1, -1, 0.1);
    tw_doctor_findings_t findings;
    const tw_doctor_result_t result = cluster.result();
    tw_doctor_judge(&result, &findings);
    char *text = nullptr;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    EXPECT_EQ(tw_doctor_write_json(&result, &findings, out, "memory"), TW_OK);
    fclose(out);
    EXPECT_HAS(text, "\"host\": \"kn?ller\"");
    EXPECT_HAS(text, "node 1 (kn?ller) sends");
    free(text);
}

} // namespace
