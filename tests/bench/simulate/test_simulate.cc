/* The simulated network against formulas, and its traffic against what costs are read from. */
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/program/cost.h"
#include "tests/bench/simulate/simulate.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

constexpr double kBytes = 1 << 24, kRate = 1e9, kAlpha = 1e-4;

sim_cluster_t cluster_of(int n_nodes, int ranks_per_node)
{
    sim_cluster_t c = {};
    c.n_nodes = n_nodes;
    c.ranks_per_node = ranks_per_node;
    c.link_Bps = kRate;
    c.in_node_Bps = INFINITY;
    c.latency_sec = kAlpha;
    c.ratio[TW_FORM_PLAIN] = c.ratio[TW_FORM_CODEC] = c.ratio[TW_FORM_INNER] = 1;
    c.oversubscription = 1;
    c.slow_node = c.straggler = -1;
    c.seed = 1;
    return c;
}

const tw_algo_t *find_algo(tw_coll_op_t op, int quantized, const char *name)
{
    const tw_algo_t *algo;
    for (size_t i = 0; (algo = sim_algo(op, quantized, i)) && strcmp(algo->info.name, name) != 0; i++) {
    }
    return algo;
}

class Simulate : public tw::Fixture
{
  protected:
    sim_result_t run(sim_cluster_t c, const tw_algo_t *algo, double chunk = INFINITY, double bytes = kBytes)
    {
        c.post_sec = start_.empty() ? nullptr : start_.data();
        sim_result_t result = {};
        done_.assign((size_t)(c.n_nodes * c.ranks_per_node), 0);
        result.done = done_.data();
        EXPECT_NE(nullptr, algo);
        EXPECT_EQ(TW_OK, sim_run(&c, algo, bytes, chunk, &result));
        return result;
    }
    double sec(const sim_cluster_t &c, tw_coll_op_t op, const char *name, double chunk = INFINITY)
    {
        return run(c, find_algo(op, 0, name), chunk).sec;
    }
    std::vector<double> done_, start_;
};

/* Alpha and beta where the formulas are exact: a rank a node, one chunk a shard. */
TEST_F(Simulate, FollowsFormulas)
{
    const double all = kBytes / kRate;
    for (int w : {2, 4, 8, 16}) {
        sim_cluster_t c = cluster_of(w, 1);
        double hops = w - 1, part = all / w, rounds = std::log2(w);
        EXPECT_NEAR(hops * (kAlpha + part), sec(c, TW_COLL_ALLGATHER, "ring"), 1e-9) << w;
        EXPECT_NEAR(hops * (kAlpha + part), sec(c, TW_COLL_REDUCE_SCATTER, "ring"), 1e-9) << w;
        EXPECT_NEAR(2 * hops * (kAlpha + part), sec(c, TW_COLL_ALLREDUCE, "ring"), 1e-9) << w;
        EXPECT_NEAR(hops * part + kAlpha, sec(c, TW_COLL_ALLGATHER, "direct"), 1e-9) << w;
        EXPECT_NEAR(hops * part + kAlpha, sec(c, TW_COLL_REDUCE_SCATTER, "direct"), 1e-9) << w;
        /* A row that goes round the end of the tensor is two messages, of which one may come out of turn. */
        for (int turns : {1, 2}) {
            double took = turns == 1 ? sec(c, TW_COLL_ALLGATHER, "doubling")
                                     : sec(c, TW_COLL_ALLREDUCE, "halving_doubling");
            EXPECT_GE(took, turns * hops * part + kAlpha - 1e-9) << w;
            EXPECT_LE(took, turns * (rounds * kAlpha + hops * part) + (w > 4 ? 2.5 * part : 1e-9)) << w;
        }
        EXPECT_NEAR(hops * all + kAlpha, sec(c, TW_COLL_ALLREDUCE, "exchange"), 1e-9) << w;
    }
}

/* What tree.c and torus.c say of 64 to 512 ranks. A torus hides latencies behind other shards where there is
 * much to send. */
TEST_F(Simulate, TreesAndToriFollowTheirHeaders)
{
    struct {
        int w, torus2, torus3; /* hops each way */
    } const rows[] = {{64, 7 + 7, 3 + 3 + 3}, {128, 7 + 15, 3 + 3 + 7}, {512, 15 + 31, 7 + 7 + 7}};
    const double chunk = 262144, piece = chunk / kRate, all = kBytes / kRate;
    for (const auto &row : rows) {
        sim_cluster_t c = cluster_of(row.w, 1);
        double log = std::log2(row.w), bytes = 2 * all * (row.w - 1) / row.w;
        EXPECT_NEAR(2 * log * (kAlpha + all), sec(c, TW_COLL_ALLREDUCE, "binomial"), 1e-9) << row.w;
        EXPECT_LE(sec(c, TW_COLL_ALLREDUCE, "binomial", chunk), 2 * log * (kAlpha + all));
        EXPECT_GE(sec(c, TW_COLL_ALLREDUCE, "binomial", chunk), log * all);
        double trees = sec(c, TW_COLL_ALLREDUCE, "double_tree", chunk);
        EXPECT_GE(trees, 2 * all) << row.w;
        EXPECT_LE(trees, 1.25 * (2 * all + 2 * log * (kAlpha + 2 * piece))) << row.w;
        for (auto [name, hops] : {std::pair("torus_2d", row.torus2), {"torus_3d", row.torus3}}) {
            double torus = sec(c, TW_COLL_ALLREDUCE, name, chunk);
            EXPECT_GE(torus, bytes) << name << " " << row.w;
            EXPECT_LE(torus, 1.01 * bytes + 2 * hops * kAlpha) << name << " " << row.w;
        }
        c.link_Bps = INFINITY; /* latencies alone */
        EXPECT_NEAR(2 * row.torus2 * kAlpha, sec(c, TW_COLL_ALLREDUCE, "torus_2d"), 1e-9) << row.w;
        EXPECT_NEAR(2 * row.torus3 * kAlpha, sec(c, TW_COLL_ALLREDUCE, "torus_3d"), 1e-9) << row.w;
        EXPECT_NEAR(2 * log * kAlpha, sec(c, TW_COLL_ALLREDUCE, "double_tree"), 1e-9) << row.w;
    }
}

/* With chunks, a ring's link never rests. */
TEST_F(Simulate, ChunksKeepLinksBusy)
{
    sim_cluster_t c = cluster_of(8, 1);
    double part = kBytes / kRate / 8;
    EXPECT_NEAR(7 * part + 7 * kAlpha, sec(c, TW_COLL_ALLGATHER, "ring"), 1e-9);
    EXPECT_NEAR(7 * part + kAlpha, sec(c, TW_COLL_ALLGATHER, "ring", 16384), kAlpha);
}

/* Of rank 0's whole tensor. */
tw_algo_t from_one(tw_flow_spread_t spread)
{
    tw_algo_t algo = {};
    algo.flows.spread = spread;
    algo.flows.of = tw_flows_t::TW_FLOWS_ROOT;
    return algo;
}

tw_algo_t to_one(tw_flow_reduce_t reduce)
{
    tw_algo_t algo = {};
    algo.flows.reduce = reduce;
    algo.flows.of = tw_flows_t::TW_FLOWS_ROOT;
    return algo;
}

TEST_F(Simulate, ConnectionsTakeTurns)
{
    sim_cluster_t c = cluster_of(4, 1);
    const tw_algo_t star = from_one(tw_flow_spread_direct);
    const double all = kBytes / kRate;
    (void)run(c, &star);
    EXPECT_NEAR(all + kAlpha, done_[1], 1e-9) << "one message after the other";
    EXPECT_NEAR(3 * all + kAlpha, done_[3], 1e-9);
    c.packet_bytes = kBytes / 8;
    (void)run(c, &star);
    EXPECT_NEAR(22 * all / 8 + kAlpha, done_[1], 1e-9) << "its last packet is followed by two others";
    EXPECT_NEAR(3 * all + kAlpha, done_[3], 1e-9);
}

/* Rank 1's shard goes to rank 2 by way of rank 0, then rank 0's own. */
void spread_in_turn(tw_flow_t *flow, int owner, tw_value_t from)
{
    if (owner == 1) {
        flow->hop = 0;
        tw_value_t there = tw_flow_move(flow, from, 0);
        flow->hop = 1;
        (void)tw_flow_move(flow, there, 2);
    } else if (owner == 0) {
        flow->hop = 2;
        (void)tw_flow_move(flow, from, 2);
    }
}

/* What is ready stays behind what its rank's program sends to the same rank before. */
TEST_F(Simulate, AConnectionFollowsTheProgram)
{
    sim_cluster_t c = cluster_of(3, 1);
    tw_algo_t algo = {};
    algo.flows.spread = spread_in_turn;
    const double part = kBytes / kRate / 3;
    start_ = {0, 1, 0};
    EXPECT_NEAR(1 + 3 * part + 2 * kAlpha, run(c, &algo).sec, 1e-9);
}

/* Who sends already has half of a link as soon as another one comes. */
TEST_F(Simulate, SendersShareTheReceiversPort)
{
    sim_cluster_t c = cluster_of(3, 1);
    const tw_algo_t funnel = to_one(tw_flow_reduce_direct);
    const double all = kBytes / kRate;
    start_ = {0, 0, all / 2};
    sim_result_t result = run(c, &funnel, kBytes / 64);
    const double window = SIM_WINDOW_PACKETS * all / 64;
    EXPECT_NEAR(1.5 * all, done_[1], 3 * window) << "what has left may still stand in a queue";
    EXPECT_NEAR(2 * all, done_[2], 3 * window);
    EXPECT_NEAR(2 * all + kAlpha, result.sec, all / 64);
}

/* A processor is taken by what is there, not by what a port's queue still holds: sums come in at node 0 from
 * two others and leave to both at the same time. */
TEST_F(Simulate, AQueueAtAPortKeepsNoProcessorBusy)
{
    sim_cluster_t c = cluster_of(4, 1);
    const double all = kBytes / kRate, chunk = kBytes / 64;
    c.packet_bytes = chunk;
    c.message_sec = 1e-7;
    double took = sec(c, TW_COLL_ALLREDUCE, "binomial", chunk);
    EXPECT_GE(took, 2 * all);
    EXPECT_LE(took, 2.6 * all);
}

/* Node 1's sums come in at node 0 by a way that is free, node 2's words come back behind what node 3 sends
 * there: so node 1 gets more than half of what node 0 takes, and its data are gone early. */
TEST_F(Simulate, AWayBackThatIsBusyCostsASenderItsShare)
{
    sim_cluster_t c = cluster_of(4, 1);
    c.packet_bytes = kBytes / 256;
    (void)run(c, find_algo(TW_COLL_ALLREDUCE, 0, "binomial"), kBytes / 256);
    double busy = *std::max_element(done_.begin(), done_.end());
    EXPECT_GE(busy, 2.25 * kBytes / kRate);
    EXPECT_LE(busy, 2.75 * kBytes / kRate);
}

/* Announcing a long message takes time where there is none before it. */
TEST_F(Simulate, LongMessagesAreAnnounced)
{
    sim_cluster_t c = cluster_of(2, 1);
    const double part = kBytes / kRate / 2, turn = 1e-3;
    c.turn_sec = turn;
    EXPECT_NEAR(turn + part + kAlpha, sec(c, TW_COLL_ALLGATHER, "ring", TW_COLL_TURN_BYTES), 1e-9);
    EXPECT_NEAR(part + kAlpha, sec(c, TW_COLL_ALLGATHER, "ring", TW_COLL_TURN_BYTES / 2), 1e-9);
    c.n_nodes = 1;
    c.ranks_per_node = 2;
    EXPECT_NEAR(0, sec(c, TW_COLL_ALLGATHER, "ring"), 1e-9);
    c.in_node_turn_sec = turn;
    EXPECT_NEAR(turn, sec(c, TW_COLL_ALLGATHER, "ring"), 1e-9);
}

TEST_F(Simulate, NodesShareTheirLink)
{
    sim_cluster_t c = cluster_of(4, 4);
    c.latency_sec = 0;
    EXPECT_NEAR(kBytes / kRate * 3 / 4, sec(c, TW_COLL_ALLGATHER, "hierarchical"), 1e-9);
    /* every rank gets every shard of another node for itself */
    EXPECT_NEAR(1, sec(c, TW_COLL_ALLGATHER, "direct") / (kBytes / kRate * 3 / 4 * 4), 0.05);
    c.in_node_Bps = kRate / 10;
    EXPECT_GT(sec(c, TW_COLL_ALLGATHER, "hierarchical"), kBytes / c.in_node_Bps * 0.7);
}

/* Bytes and messages are those that costs are read from, of all algorithms. */
TEST_F(Simulate, TrafficIsTheLibrarys)
{
    for (auto [n, l] : {std::pair(1, 4), {4, 1}, {3, 3}, {4, 2}}) {
        sim_cluster_t c = cluster_of(n, l);
        c.ratio[TW_FORM_CODEC] = 0.25;
        std::vector<uint64_t> nodes;
        for (int r = 0; r < n * l; r++) {
            nodes.push_back((uint64_t)(r / l));
        }
        tw_topo_t topo;
        ASSERT_EQ(TW_OK, tw_topo_init_nodes(&topo, 0, n * l, nodes.data()));
        for (int quantized : {0, 1}) {
            for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
                const tw_algo_t *algo;
                for (size_t i = 0; (algo = sim_algo(op, quantized, i)); i++) {
                    tw_traffic_t traffic;
                    ASSERT_EQ(TW_OK, tw_traffic_read(&topo, &algo->flows, quantized, 0, &traffic));
                    double shard = kBytes / tw_flows_count_shards(&algo->flows, &topo);
                    double bytes = shard * (traffic.inter_shards[TW_FORM_PLAIN] +
                                            0.25 * traffic.inter_shards[TW_FORM_CODEC]);
                    sim_result_t result = run(c, algo);
                    EXPECT_NEAR(bytes, result.node_bytes, 1e-3)
                        << algo->info.name << " " << op << " " << quantized << " " << n << " x " << l;
                    EXPECT_LE(result.remote_peers, result.peers);
                    EXPECT_LE(result.peers, n * l - 1);
                }
            }
        }
        tw_topo_cleanup(&topo);
    }
}

/* Payload messages of the rank that sends most of them, as the library counts them. */
double sent_most(const std::vector<int> &node_of, const tw_coll_algo_info_t &algo, size_t n_elems)
{
    tw::World world(node_of);
    std::vector<double> sent(node_of.size());
    world.run([&](int rank) {
        std::vector<uint16_t> memory(2 * n_elems);
        tw_coll_segment_t segment = {};
        segment.src = memory.data();
        segment.dst = memory.data() + n_elems;
        segment.n_elems = n_elems;
        tw_coll_args_t args = {};
        args.op = algo.op;
        args.type = TW_TYPE_BF16;
        args.algo = algo.name;
        args.segments = &segment;
        args.n_segments = 1;
        args.factor = 1;
        tw_coll_counters_t before, after;
        tw_coll_counters_get(world.coll(rank), &before);
        EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        tw_coll_counters_get(world.coll(rank), &after);
        sent[(size_t)rank] = (double)(after.inter_node_messages - before.inter_node_messages +
                                      after.in_node_messages - before.in_node_messages);
    });
    return *std::max_element(sent.begin(), sent.end());
}

/* Where shards are short some algorithms send several as one message, as many as fit. */
TEST_F(Simulate, MessagesAreTheLibrarys)
{
    const size_t chunk = 1024;
    set_env("TW_COLL_CHECK", "n");
    set_env("TW_COLL_CHUNK", "1024");
    for (auto [n, l] : {std::pair(8, 1), {5, 1}, {3, 2}, {13, 1}}) {
        sim_cluster_t c = cluster_of(n, l);
        std::vector<int> node_of;
        for (int r = 0; r < n * l; r++) {
            node_of.push_back(r / l);
        }
        for (size_t shard : {chunk / 4, chunk / 2, chunk, 3 * chunk}) {
            const size_t bytes = shard * node_of.size();
            for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
                const tw_algo_t *algo;
                for (size_t i = 0; (algo = sim_algo(op, 0, i)); i++) {
                    EXPECT_EQ(run(c, algo, (double)chunk, (double)bytes).messages,
                              sent_most(node_of, algo->info, bytes / 2))
                        << algo->info.name << " " << op << ", " << n << " x " << l << ", " << shard;
                }
            }
        }
    }
}

TEST_F(Simulate, ASwitchsUplinkIsShared)
{
    sim_cluster_t c = cluster_of(4, 1);
    double part = kBytes / kRate / 4;
    c.nodes_per_switch = 2;
    EXPECT_GE(sec(c, TW_COLL_ALLGATHER, "direct"), 3 * part + kAlpha - 1e-9);
    EXPECT_LE(sec(c, TW_COLL_ALLGATHER, "direct"), 4 * part + kAlpha) << "the uplink holds both links";
    c.oversubscription = 4; /* four shards leave a switch at half of a link's rate */
    EXPECT_GE(sec(c, TW_COLL_ALLGATHER, "direct"), 8 * part + kAlpha - 1e-9);
    EXPECT_LE(sec(c, TW_COLL_ALLGATHER, "direct"), 10 * part + kAlpha);
}

TEST_F(Simulate, ASlowLinkAndAStragglerHoldAllUp)
{
    sim_cluster_t c = cluster_of(4, 1);
    double usual = sec(c, TW_COLL_ALLREDUCE, "ring");
    c.slow_node = 2;
    c.slow_factor = 5;
    EXPECT_GT(sec(c, TW_COLL_ALLREDUCE, "ring"), 4 * usual);
    c.slow_node = -1;
    c.add_sec = 1e-9;
    double adding = sec(c, TW_COLL_ALLREDUCE, "ring");
    EXPECT_GT(adding, usual);
    c.straggler = 3;
    c.straggler_factor = 10;
    EXPECT_GT(sec(c, TW_COLL_ALLREDUCE, "ring"), adding);
}

TEST_F(Simulate, TheSeedIsTheRun)
{
    sim_cluster_t c = cluster_of(4, 2);
    c.jitter_sec = 1e-3;
    double first = sec(c, TW_COLL_ALLREDUCE, "ring"), again = sec(c, TW_COLL_ALLREDUCE, "ring");
    EXPECT_EQ(first, again);
    c.seed = 2;
    EXPECT_NE(first, sec(c, TW_COLL_ALLREDUCE, "ring"));
    c.jitter_sec = 0;
    EXPECT_LT(sec(c, TW_COLL_ALLREDUCE, "ring"), first);
}

/* A rank that posts late is waited for. */
TEST_F(Simulate, RanksBeginWhenTheyPost)
{
    sim_cluster_t c = cluster_of(4, 1);
    double usual = sec(c, TW_COLL_ALLGATHER, "ring");
    start_ = {0, 0, 1, 0};
    EXPECT_GE(sec(c, TW_COLL_ALLGATHER, "ring"), 1 + kAlpha);
    EXPECT_LE(sec(c, TW_COLL_ALLGATHER, "ring"), 1 + usual + 1e-9);
}

TEST_F(Simulate, CodecsTakeTheirTime)
{
    sim_cluster_t c = cluster_of(4, 1);
    c.latency_sec = 0;
    c.ratio[TW_FORM_CODEC] = 0.5;
    double part = kBytes / kRate / 4;
    const tw_algo_t *direct = find_algo(TW_COLL_ALLGATHER, 1, "direct");
    EXPECT_NEAR(3 * part / 2, run(c, direct).sec, 1e-9);
    c.encode_sec[TW_FORM_CODEC] = 1 / kRate;
    EXPECT_NEAR(part + 3 * part / 2, run(c, direct).sec, 1e-9) << "its shard first, then all of it leaves";
    c.decode_sec[TW_FORM_CODEC] = 10 / kRate;
    EXPECT_NEAR(part + part / 2 + 30 * part, run(c, direct).sec, 1e-9) << "from the first arrival on";
}

/* All of 384 ranks in a small part of 4 GB. */
TEST_F(Simulate, LargeClustersFitIntoMemory)
{
    sim_cluster_t c = cluster_of(48, 8);
    const tw_algo_t *algo;
    for (size_t i = 0; (algo = sim_algo(TW_COLL_ALLREDUCE, 0, i)); i++) {
        if (algo->flows.of != tw_flows_t::TW_FLOWS_WHOLES) {
            EXPECT_GT(run(c, algo).sec, 0) << algo->info.name;
        }
    }
    struct rusage used;
    ASSERT_EQ(getrusage(RUSAGE_SELF, &used), 0);
    EXPECT_LT(used.ru_maxrss, 1 << 20) << "KB";
}

} // namespace
