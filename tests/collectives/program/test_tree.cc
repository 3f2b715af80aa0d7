/* Trees of nodes: their shape, and what a link takes. */
#include <algorithm>
#include <map>
#include <vector>

#include "collectives/program/cost.h"
#include "collectives/program/flow.h"
#include "tests/common/fixture.h"

namespace
{

using Tree = tw::Fixture;

/** Nodes with as many ranks each. */
struct Topo {
    Topo(int n_nodes, int local)
    {
        std::vector<uint64_t> ids;
        for (int r = 0; r < n_nodes * local; r++) {
            ids.push_back((uint64_t)(r / local));
        }
        EXPECT_EQ(tw_topo_init_nodes(&topo, 0, (int)ids.size(), ids.data()), TW_OK);
    }
    Topo(const Topo &) = delete;
    Topo &operator=(const Topo &) = delete;
    ~Topo()
    {
        tw_topo_cleanup(&topo);
    }
    tw_topo_t topo = {};
};

int log2_of(int n)
{
    return tw_log2_ceil(n);
}

/** Who a sum comes from, by the node that it goes to; *depth: moves between nodes on the longest way. */
std::map<int, std::vector<int>> children_of(const tw_topo_t &topo, tw_flow_reduce_t reduce, int owner,
                                            int *depth)
{
    std::map<int, std::vector<int>> children;
    std::vector<int> moves;
    tw_flow_t flow = {};
    flow.topo = &topo;
    EXPECT_EQ(tw_flow_rank(&flow, reduce(&flow, owner)), owner);
    for (int i = 0; i < flow.n_ops; i++) {
        const tw_flow_op_t &op = flow.ops[i];
        moves.push_back(0);
        for (int k = 0; k < op.n_inputs; k++) {
            tw_value_t input = flow.inputs[op.first_input + k];
            int from = topo.node[tw_flow_rank(&flow, input)], to = topo.node[op.at];
            moves[(size_t)i] =
                std::max(moves[(size_t)i], (input < 0 ? 0 : moves[(size_t)input]) + (from != to));
            if (from != to) {
                children[to].push_back(from);
            }
        }
        *depth = std::max(*depth, moves[(size_t)i]);
    }
    tw_flow_cleanup(&flow);
    return children;
}

TEST_F(Tree, EveryNodeIsInsideOneOfTwoTrees)
{
    for (int n = 2; n <= 130; n++) {
        Topo nodes(n, 1);
        std::vector<int> owners;
        for (int r = 0; r < n; r++) {
            if (tw_flow_owns_double(&nodes.topo, r)) {
                owners.push_back(r);
            }
        }
        ASSERT_EQ(owners.size(), 2u) << n;
        std::vector<int> inside((size_t)n), children((size_t)n);
        for (int owner : owners) {
            int depth = 0;
            for (const auto &node : children_of(nodes.topo, tw_flow_reduce_double, owner, &depth)) {
                inside[(size_t)node.first]++;
                children[(size_t)node.first] += (int)node.second.size();
            }
            EXPECT_LE(depth, log2_of(n + 1)) << n;
        }
        EXPECT_EQ(*std::max_element(inside.begin(), inside.end()), 1) << n;
        EXPECT_LE(*std::max_element(children.begin(), children.end()), 2) << n;
    }
}

/* A link takes twice the tensor, whatever the number of nodes; that of a binomial tree's root log2(N) times
 * that. */
TEST_F(Tree, LinksTakeWhatTheHeaderSays)
{
    tw_flows_t two = {}, one = {};
    two.reduce = tw_flow_reduce_double;
    two.spread = tw_flow_spread_double;
    two.owns = tw_flow_owns_double;
    one.reduce = tw_flow_reduce_binomial;
    one.spread = tw_flow_spread_binomial_nodes;
    one.owns = tw_flow_owns_binomial;
    two.of = one.of = tw_flows_t::TW_FLOWS_SOME;
    for (int local : {1, 4}) {
        for (int n : {2, 4, 8, 16, 64, 128}) {
            Topo nodes(n, local);
            tw_traffic_t traffic;
            ASSERT_EQ(tw_traffic_read(&nodes.topo, &two, 0, 0, &traffic), TW_OK);
            EXPECT_EQ(tw_flows_count_shards(&two, &nodes.topo), 2 * local);
            EXPECT_LE(traffic.inter_shards[TW_FORM_PLAIN] / (2 * local), 2) << n << " x " << local;
            EXPECT_LE(traffic.inter_rounds, 2 * log2_of(n + 1));
            ASSERT_EQ(tw_traffic_read(&nodes.topo, &one, 0, 0, &traffic), TW_OK);
            EXPECT_EQ(tw_flows_count_shards(&one, &nodes.topo), local);
            EXPECT_EQ(traffic.inter_shards[TW_FORM_PLAIN] / local, log2_of(n)) << n << " x " << local;
            EXPECT_EQ(traffic.inter_rounds, 2 * log2_of(n));
        }
    }
}

/* What comes from below is before the own node's, which is in rank order. */
TEST_F(Tree, SumsAreInTheDocumentedOrder)
{
    Topo nodes(4, 2);
    tw_flow_t flow = {};
    flow.topo = &nodes.topo;
    tw_value_t result = tw_flow_reduce_binomial(&flow, 0);
    const tw_flow_op_t &last = flow.ops[result];
    ASSERT_EQ(last.n_inputs, 4);
    std::vector<tw_value_t> inputs(flow.inputs + last.first_input, flow.inputs + last.first_input + 4);
    for (int i = 0; i < 4; i++) { /* before they were moved here */
        while (inputs[(size_t)i] >= 0 && !flow.ops[inputs[(size_t)i]].is_sum) {
            inputs[(size_t)i] = flow.inputs[flow.ops[inputs[(size_t)i]].first_input];
        }
    }
    EXPECT_EQ(tw_flow_rank(&flow, inputs[0]), 4) << "node 2, above node 3";
    EXPECT_EQ(tw_flow_rank(&flow, inputs[1]), 2) << "node 1";
    EXPECT_EQ(inputs[2], tw_flow_own(0));
    EXPECT_EQ(inputs[3], tw_flow_own(1));
    tw_flow_cleanup(&flow);
}

} // namespace
