/* Where the contributions to a shard meet: one rank of each node. */
#include <map>

#include "collectives/quantized/collect.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

using Collect = tw::Fixture;

TEST_F(Collect, GatewaysAreOnTheirNodeAndShareTheWork)
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
