/* What is read off the flows of the plain algorithms is what they do. */
#include <algorithm>
#include <mutex>

#include "collectives/communicator.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t N_ELEMS = 840 * 16; /* a multiple of every world here: all shards are equal */
constexpr size_t TYPE_BYTES = 4;

class Cost : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
        set_env("TW_COLL_CHECK", "n");
    }
};

struct Counted {
    uint64_t inter_bytes = 0;    /**< through the busiest node's link: the larger of in and out */
    uint64_t node_bytes = 0;     /**< inside the busiest node */
    uint64_t inter_messages = 0; /**< sent by the busiest rank */
};

Counted run(const std::vector<int> &node_of, const tw::Case &c, tw_coll_cost_t *cost)
{
    tw::World world(node_of);
    size_t n_nodes = (size_t)*std::max_element(node_of.begin(), node_of.end()) + 1;
    std::vector<uint64_t> in(n_nodes), out(n_nodes), inside(n_nodes);
    Counted counted;
    std::mutex lock;
    world.run([&](int rank) {
        tw::Job job(c, world.size(), rank);
        /* making the communicator has sent something, too */
        std::vector<tw_transport_counters_t> before(node_of.size());
        tw_transport_counters_t inter, inter_before;
        for (size_t peer = 0; peer < node_of.size(); peer++) {
            tw_transport_peer_counters(world.transport(rank), (int)peer, &before[peer]);
        }
        tw_transport_inter_node_counters(world.transport(rank), &inter_before);
        EXPECT_EQ(world.run(rank, job.args()), TW_OK);
        std::lock_guard<std::mutex> guard(lock);
        for (size_t peer = 0; peer < node_of.size(); peer++) {
            tw_transport_counters_t sent;
            tw_transport_peer_counters(world.transport(rank), (int)peer, &sent);
            sent.bytes -= before[peer].bytes;
            if (node_of[peer] == node_of[(size_t)rank]) {
                inside[(size_t)node_of[peer]] += sent.bytes;
                continue;
            }
            in[(size_t)node_of[peer]] += sent.bytes;
            out[(size_t)node_of[(size_t)rank]] += sent.bytes;
        }
        tw_transport_inter_node_counters(world.transport(rank), &inter);
        counted.inter_messages = std::max(counted.inter_messages, inter.messages - inter_before.messages);
        if (rank > 0) {
            return;
        }
        tw_coll_t *coll = world.coll(0);
        const tw_coll_plan_t &plan = world.plan(0);
        tw_case_t shape = {};
        shape.model = &coll->model;
        shape.topo = &coll->topo;
        shape.args = job.args();
        shape.bytes = N_ELEMS * TYPE_BYTES;
        shape.chunk_bytes = (double)plan.chunk_bytes;
        for (size_t i = 0; tw_algo_get(i) != nullptr; i++) {
            const tw_algo_t *algo = tw_algo_get(i);
            if (algo->info.op == c.op && !algo->info.quantized && algo->info.name == c.algo) {
                tw_traffic_t traffic;
                EXPECT_EQ(tw_traffic_read(&coll->topo, &algo->flows, 0, 0, &traffic), TW_OK);
                tw_cost_read(&shape, &algo->flows, &traffic, cost);
            }
        }
    });
    for (size_t n = 0; n < n_nodes; n++) {
        counted.inter_bytes = std::max({counted.inter_bytes, in[n], out[n]});
        counted.node_bytes = std::max(counted.node_bytes, inside[n]);
    }
    return counted;
}

TEST_F(Cost, CountsWhatIsSent)
{
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_HOST, i)) != nullptr; i++) {
        if (info->quantized || info->op == TW_COLL_BARRIER) {
            continue;
        }
        for (const std::vector<int> &grid : std::vector<std::vector<int>>{{1},
                                                                          {4},
                                                                          {1, 1},
                                                                          {1, 1, 1},
                                                                          {1, 1, 1, 1, 1},
                                                                          {2, 2},
                                                                          {2, 2, 2},
                                                                          {4, 4},
                                                                          {1, 3},
                                                                          {3, 1, 2}}) {
            tw_coll_cost_t cost = {};
            tw::Case c;
            c.op = info->op;
            c.algo = info->name;
            c.n_elems = {N_ELEMS};
            Counted counted = run(tw::nodes_of(grid), c, &cost);
            SCOPED_TRACE(c.name() + " on " + std::to_string(grid.size()) + " nodes, the first of " +
                         std::to_string(grid[0]));
            EXPECT_NEAR(cost.inter_bytes, (double)counted.inter_bytes, 1e-6);
            EXPECT_EQ(cost.inter_rounds > 0, counted.inter_messages > 0); /* somebody waits for them */
            EXPECT_NEAR(cost.node_bytes, (double)counted.node_bytes, 1e-6);
            EXPECT_EQ(cost.node_messages > 0, counted.node_bytes > 0);
            /* Halving and doubling: a row of shards that goes round the world is two messages. */
            bool rows = c.algo.find("ing") != std::string::npos && c.algo != "ring";
            EXPECT_NEAR(cost.inter_messages, (double)counted.inter_messages, rows ? 1 : 1e-6);
        }
    }
}

} // namespace
