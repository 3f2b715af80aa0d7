/* Which flows when, on as many nodes as there may be, and what becomes of what they tell rank 0. */
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "doctor/state.h"
#include "tests/common/fixture.h"

namespace
{

using Flow = std::tuple<int, int, int, int, int, int>; /* slot, from, to, kind, device, streams */

Flow key(const tw_doctor_flow_t &flow)
{
    return {flow.slot, flow.from, flow.to, flow.kind, flow.device, flow.n_streams};
}

/* What every node knows of the plan. */
struct Nodes {
    Nodes(int n_nodes, int n_devices, double seconds)
    {
        const tw_doctor_plan_t plan = {seconds, 4};
        for (int node = 0; node < n_nodes; node++) {
            tw_doctor_schedule_t s;
            EXPECT_EQ(tw_doctor_schedule_init(&plan, n_nodes, n_devices, node, &s), TW_OK);
            take(s);
            tw_doctor_schedule_cleanup(&s);
        }
    }

    void take(const tw_doctor_schedule_t &s)
    {
        int n_sent = 0;
        EXPECT_TRUE(n_slots == 0 || n_slots == s.n_slots);
        n_slots = s.n_slots;
        n_sent_most = s.n_sent_most;
        for (int i = 0; i < s.n; i++) {
            const bool is_own = s.flows[i].from == s.node;
            EXPECT_TRUE(is_own || s.flows[i].to == s.node);
            (is_own ? sent : received).insert(key(s.flows[i]));
            n_sent += is_own;
        }
        EXPECT_LE(n_sent, s.n_sent_most);
        most_known = std::max(most_known, s.n);
    }

    int count(int kind) const
    {
        int n = 0;
        for (const Flow &flow : sent) {
            n += std::get<3>(flow) == kind;
        }
        return n;
    }

    int n_slots = 0, n_sent_most = 0, most_known = 0;
    std::multiset<Flow> sent, received;
};

/* Each sender knows of a flow what its receiver does, and a node is in one flow each way at a time. */
void expect_sound(const Nodes &nodes)
{
    EXPECT_EQ(nodes.sent, nodes.received);
    std::set<std::pair<int, int>> senders, receivers;
    for (const Flow &flow : nodes.sent) {
        EXPECT_NE(std::get<1>(flow), std::get<2>(flow));
        EXPECT_TRUE(senders.insert({std::get<0>(flow), std::get<1>(flow)}).second);
        EXPECT_TRUE(receivers.insert({std::get<0>(flow), std::get<2>(flow)}).second);
    }
}

TEST(DoctorSchedule, BothEndsOfAFlowKnowIt)
{
    for (int n_nodes : {2, 3, 4, 7, 8, 15, 16}) {
        for (int n_devices : {1, 2}) {
            for (double seconds : {0.1, 1.0, 60.0}) {
                SCOPED_TRACE(std::to_string(n_nodes) + " nodes, " + std::to_string(n_devices) + " devices");
                const Nodes nodes(n_nodes, n_devices, seconds);
                expect_sound(nodes);
                EXPECT_EQ(nodes.count(TW_DOCTOR_STREAMS), n_nodes * n_devices);
                EXPECT_EQ(nodes.count(TW_DOCTOR_ALL), n_nodes * n_devices);
            }
        }
    }
}

/* Where there is time, each pair has the network for itself; several streams have their ends. */
TEST(DoctorSchedule, FewNodesPairByPair)
{
    const Nodes nodes(7, 1, 60);
    EXPECT_EQ(nodes.count(TW_DOCTOR_PAIR), 7 * 6);
    EXPECT_EQ(nodes.n_slots, 7 * 6 + 3 + 1);
    std::map<int, std::multiset<int>> busy; /* by slot */
    for (const Flow &flow : nodes.sent) {
        if (std::get<3>(flow) != TW_DOCTOR_ALL) {
            busy[std::get<0>(flow)].insert({std::get<1>(flow), std::get<2>(flow)});
        }
    }
    for (const auto &[slot, ends] : busy) {
        EXPECT_EQ(std::set<int>(ends.begin(), ends.end()).size(), ends.size()) << slot;
    }
}

/* However late it is, each node has sent and received, with one stream, several, and all at once; then come
 * pairs alone, which are left out after twice the time. */
TEST(DoctorSchedule, WhatEachNodeIsJudgedByComesFirst)
{
    for (int n_nodes : {2, 14, 15, 1024}) {
        const tw_doctor_plan_t plan = {60, 4};
        tw_doctor_schedule_t s;
        ASSERT_EQ(tw_doctor_schedule_init(&plan, n_nodes, 2, 1, &s), TW_OK);
        int n_sent[2][3] = {}, n_received[2][3] = {};
        for (int i = 0; i < s.n; i++) {
            const tw_doctor_flow_t &flow = s.flows[i];
            if (flow.slot < s.n_first) {
                (flow.from == 1 ? n_sent : n_received)[flow.device][flow.kind]++;
            } else {
                EXPECT_EQ(flow.kind, TW_DOCTOR_PAIR);
            }
        }
        for (int device : {0, 1}) {
            for (int kind : {TW_DOCTOR_PAIR, TW_DOCTOR_STREAMS, TW_DOCTOR_ALL}) {
                EXPECT_EQ(n_sent[device][kind], 1) << n_nodes << " " << kind;
                EXPECT_EQ(n_received[device][kind], 1) << n_nodes << " " << kind;
            }
        }
        EXPECT_LE(tw_doctor_limit_seconds(&plan, &s), 125) << n_nodes;
        tw_doctor_schedule_cleanup(&s);
    }
}

/* 60 seconds are 200 steps: no node knows of more than its own part in them, nor tells more. */
TEST(DoctorSchedule, AThousandNodes)
{
    const Nodes nodes(1024, 1, 60);
    expect_sound(nodes);
    EXPECT_EQ(nodes.n_slots, 200 + 2 + 1);
    EXPECT_EQ(nodes.count(TW_DOCTOR_PAIR), 200 * 1024);
    EXPECT_EQ(nodes.n_sent_most, 200 + 2);
    EXPECT_LE(nodes.most_known, 2 * nodes.n_sent_most);
    EXPECT_LT((size_t)nodes.n_sent_most * sizeof(tw_doctor_flow_t), 20000u);
}

/* What rank 0 keeps of nodes with one rank each. */
class DoctorResult : public tw::Fixture
{
  protected:
    DoctorResult() : facts(kNodes), leaders(kNodes)
    {
        for (int node = 0; node < kNodes; node++) {
            facts[(size_t)node].rank = facts[(size_t)node].node = leaders[(size_t)node] = node;
            facts[(size_t)node].n_devices = 1;
        }
        result.world = result.n_nodes = kNodes;
        result.facts = facts.data();
        result.leader = leaders.data();
    }
    ~DoctorResult() override
    {
        free(result.flows);
        free(result.paths);
    }

    tw_doctor_flow_t flow(int from, int to) const
    {
        tw_doctor_flow_t one = {};
        one.from = from;
        one.to = to;
        one.n_streams = 1;
        return one;
    }

    static constexpr int kNodes = 3;
    std::vector<tw_doctor_facts_t> facts;
    std::vector<int> leaders;
    tw_doctor_result_t result = {};
};

TEST_F(DoctorResult, TakesAndSortsWhatNodesSay)
{
    for (int node : {2, 0, 1}) {
        tw_doctor_flow_t sent[2] = {flow(node, (node + 1) % kNodes), flow(node, (node + 2) % kNodes)};
        sent[0].slot = 5;
        sent[1].slot = 4;
        EXPECT_EQ(tw_doctor_take_flows(&result, node, sent, sizeof(sent)), TW_OK);
        const tw_doctor_path_t received = {(node + 2) % kNodes, node, 0, 1500, 1400};
        EXPECT_EQ(tw_doctor_take_paths(&result, node, &received, sizeof(received)), TW_OK);
    }
    EXPECT_EQ(tw_doctor_take_flows(&result, 1, nullptr, 0), TW_OK); /* nothing to say */
    tw_doctor_result_sort(&result);
    ASSERT_EQ(result.n_flows, 6);
    ASSERT_EQ(result.n_paths, 3);
    for (int i = 0; i < 6; i++) {
        EXPECT_EQ(result.flows[i].slot, 4 + i / 3);
        EXPECT_EQ(result.flows[i].from, i % 3);
    }
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(result.paths[i].from, i);
    }
}

TEST_F(DoctorResult, CountsWhatWasNotMeasured)
{
    tw_doctor_flow_t sent[3] = {flow(1, 0), flow(1, 2), flow(1, 0)};
    sent[0].skipped = sent[2].skipped = 1;
    sent[1].slot = 7;
    EXPECT_EQ(tw_doctor_take_flows(&result, 1, sent, sizeof(sent)), TW_OK);
    ASSERT_EQ(result.n_flows, 1);
    EXPECT_EQ(result.flows[0].slot, 7);
    EXPECT_EQ(result.n_skipped, 2);
}

TEST_F(DoctorResult, WhatCannotBeIsAnErrorThatNamesTheRank)
{
    expect_log("rank 1 says what cannot be");
    std::vector<tw_doctor_flow_t> wrong(7, flow(1, 2));
    wrong[0].from = 0;
    wrong[1].to = 3;
    wrong[2].to = -1;
    wrong[3].device = 1;
    wrong[4].kind = 9;
    wrong[5].n_streams = 1000;
    memset(wrong[6].congestion, 'x', sizeof(wrong[6].congestion));
    for (const tw_doctor_flow_t &one : wrong) {
        EXPECT_EQ(tw_doctor_take_flows(&result, 1, &one, sizeof(one)), TW_ERR_INVALID) << &one - &wrong[0];
    }
    const tw_doctor_path_t path = {0, 2, 0, 1500, 1500};
    EXPECT_EQ(tw_doctor_take_paths(&result, 1, &path, sizeof(path)), TW_ERR_INVALID);
    EXPECT_EQ(tw_doctor_check_facts(&result), TW_OK);
    facts[1].n_devices = 100;
    EXPECT_EQ(tw_doctor_check_facts(&result), TW_ERR_INVALID);
}

} // namespace
