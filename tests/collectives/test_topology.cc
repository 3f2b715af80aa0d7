/* Topology of a communicator. */
#include <map>
#include <set>

#include "collectives/topology.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

using Topo = tw::Fixture;

class Ranks
{
  public:
    explicit Ranks(const std::vector<int> &node_of) : transports(node_of.size())
    {
        EXPECT_EQ(tw_transport_local_create((int)node_of.size(), node_of.data(), transports.data()), TW_OK);
    }
    ~Ranks()
    {
        for (tw_transport_t *transport : transports) {
            tw_transport_destroy(transport);
        }
    }
    std::vector<tw_transport_t *> transports;
};

/* The ring visits everybody once and each node's ranks in a row. */
TEST_F(Topo, RingOrder)
{
    for (const std::vector<int> &node_of : tw::all_worlds()) {
        Ranks ranks(node_of);
        int world = (int)node_of.size();
        std::vector<int> all((size_t)world);
        for (int r = 0; r < world; r++) {
            all[(size_t)r] = r;
        }
        tw_topo_t topo;
        ASSERT_EQ(tw_topo_init(&topo, ranks.transports[(size_t)world - 1], all.data(), world), TW_OK);
        EXPECT_EQ(topo.rank, world - 1);
        EXPECT_EQ(topo.n_nodes, (int)std::set<int>(node_of.begin(), node_of.end()).size());
        int changes = 0;
        for (int p = 0; p < world; p++) {
            int rank = topo.ring[p];
            EXPECT_EQ(topo.position[rank], p);
            EXPECT_EQ(tw_topo_rank_at(&topo, topo.node[rank], topo.local[rank]), rank);
            EXPECT_LE(topo.min_local, tw_topo_node_size(&topo, topo.node[rank]));
            EXPECT_GE(topo.max_local, tw_topo_node_size(&topo, topo.node[rank]));
            changes += p > 0 && topo.node[rank] != topo.node[topo.ring[p - 1]];
        }
        EXPECT_EQ(changes, topo.n_nodes - 1);
        tw_topo_cleanup(&topo);
    }
}

TEST_F(Topo, SomeRanksInAnyOrder)
{
    Ranks ranks({0, 0, 1, 1, 2, 2});
    int chosen[] = {5, 2, 4, 3};
    tw_topo_t topo;
    ASSERT_EQ(tw_topo_init(&topo, ranks.transports[4], chosen, 4), TW_OK);
    EXPECT_EQ(topo.rank, 2);
    EXPECT_EQ(topo.n_nodes, 2);
    EXPECT_EQ(std::vector<int>(topo.peer, topo.peer + 4), (std::vector<int>{5, 2, 4, 3}));
    EXPECT_EQ(std::vector<int>(topo.node, topo.node + 4), (std::vector<int>{0, 1, 0, 1}));
    EXPECT_EQ(std::vector<int>(topo.ring, topo.ring + 4), (std::vector<int>{0, 2, 1, 3}));
    tw_topo_cleanup(&topo);
}

/* Where the contributions to a shard meet: one rank of each node. */
TEST_F(Topo, GatewaysAreOnTheirNodeAndShareTheWork)
{
    for (const std::vector<int> &node_of : tw::all_worlds()) {
        std::vector<uint64_t> ids(node_of.begin(), node_of.end());
        tw_topo_t topo;
        ASSERT_EQ(tw_topo_init_nodes(&topo, 0, (int)ids.size(), ids.data()), TW_OK);
        for (int node = 0; node < topo.n_nodes; node++) {
            int size = tw_topo_node_size(&topo, node);
            for (int from = 0; from < topo.n_nodes; from++) {
                std::map<int, int> owners; /* of node `from`, by gateway */
                for (int owner = 0; owner < topo.world; owner++) {
                    int gateway = tw_topo_gateway(&topo, owner, node);
                    ASSERT_TRUE(gateway >= 0 && gateway < topo.world);
                    EXPECT_EQ(topo.node[gateway], node);
                    if (node == topo.node[owner]) {
                        EXPECT_EQ(gateway, owner); /* its own node's sum is made where it is needed */
                    }
                    if (topo.node[owner] == from) {
                        owners[gateway]++;
                    }
                }
                int most = (tw_topo_node_size(&topo, from) + size - 1) / size;
                for (const auto &[gateway, n] : owners) {
                    EXPECT_LE(n, most) << "gateway " << gateway;
                }
            }
        }
        tw_topo_cleanup(&topo);
    }
}

} // namespace
