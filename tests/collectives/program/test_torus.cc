/* Tori: their dimensions, hops, and what a link takes. */
#include <vector>

#include "collectives/program/cost.h"
#include "collectives/program/flow.h"
#include "tests/common/fixture.h"

namespace
{

using Torus = tw::Fixture;

using Dims = std::vector<int>;

struct Shape {
    int n_nodes, local, n_dims;
    Dims dims;
};

const Shape shapes[] = {
    {16, 1, 2, {4, 4, 1}}, {12, 1, 2, {3, 4, 1}},  {7, 1, 2, {1, 7, 1}},   {64, 1, 3, {4, 4, 4}},
    {24, 1, 3, {2, 3, 4}}, {1, 8, 2, {2, 4, 1}},   {16, 8, 2, {8, 16, 1}}, {16, 8, 3, {8, 4, 4}},
    {6, 2, 3, {2, 2, 3}},  {512, 1, 3, {8, 8, 8}}, {48, 8, 3, {8, 6, 8}},  {1, 1, 3, {1, 1, 1}},
};

tw_topo_t topo_of(const std::vector<int> &locals)
{
    std::vector<uint64_t> ids;
    for (size_t n = 0; n < locals.size(); n++) {
        ids.insert(ids.end(), (size_t)locals[n], n);
    }
    tw_topo_t topo = {};
    EXPECT_EQ(tw_topo_init_nodes(&topo, 0, (int)ids.size(), ids.data()), TW_OK);
    return topo;
}

TEST_F(Torus, DimensionsAreNearTheRootAndRowsAreNodes)
{
    for (const Shape &shape : shapes) {
        tw_topo_t topo = topo_of(std::vector<int>((size_t)shape.n_nodes, shape.local));
        Dims dims(TW_TORUS_DIMS);
        tw_flow_torus_dims(&topo, shape.n_dims, dims.data());
        EXPECT_EQ(dims, shape.dims) << shape.n_nodes << " x " << shape.local << ", " << shape.n_dims << "-D";
        tw_topo_cleanup(&topo);
    }
    tw_topo_t uneven = topo_of({3, 1, 2});
    Dims dims(TW_TORUS_DIMS);
    tw_flow_torus_dims(&uneven, 2, dims.data());
    EXPECT_EQ(dims, (Dims{2, 3, 1}));
    tw_topo_cleanup(&uneven);
}

/* As many hops each way as the dimensions' lengths less one, and between nodes a ring's bytes. */
TEST_F(Torus, HopsAddUpAndBytesAreARings)
{
    for (const Shape &shape : shapes) {
        tw_topo_t topo = topo_of(std::vector<int>((size_t)shape.n_nodes, shape.local));
        int hops = shape.dims[0] + shape.dims[1] + shape.dims[2] - 3, world = topo.world;
        tw_flows_t flows = {};
        flows.reduce = shape.n_dims == 2 ? tw_flow_reduce_torus2 : tw_flow_reduce_torus3;
        flows.spread = shape.n_dims == 2 ? tw_flow_spread_torus2 : tw_flow_spread_torus3;
        tw_traffic_t traffic;
        ASSERT_EQ(tw_traffic_read(&topo, &flows, 0, 0, &traffic), TW_OK);
        EXPECT_EQ(traffic.inter_rounds + traffic.node_rounds, 2 * hops) << world;
        double shards = 2.0 * shape.local * (shape.n_nodes - 1); /* of W, in and out */
        EXPECT_EQ(traffic.inter_shards[TW_FORM_PLAIN], shards) << shape.n_nodes << " x " << shape.local;
        EXPECT_EQ(traffic.inter_moves[TW_FORM_PLAIN] + traffic.node_moves[TW_FORM_PLAIN], 2 * (world - 1));
        tw_topo_cleanup(&topo);
    }
}

} // namespace
