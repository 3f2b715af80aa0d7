#include "tests/collectives/world.h"

#include <cstdint>

namespace
{

/** What every member puts in, from all members, in their order. */
std::vector<int32_t> gather(tw_coll_t *coll, int32_t own)
{
    std::vector<int32_t> all((size_t)tw_coll_size(coll), -1);
    tw_coll_segment_t segment = {};
    segment.src = &own;
    segment.dst = all.data();
    segment.n_elems = all.size() * sizeof(own);
    std::vector<size_t> counts(all.size(), sizeof(own));
    segment.counts = counts.data();
    tw_coll_args_t args = {};
    args.op = TW_COLL_ALLGATHER;
    args.type = TW_TYPE_BYTE;
    args.segments = &segment;
    args.n_segments = 1;
    EXPECT_EQ(tw_coll_run(coll, &args), TW_OK);
    return all;
}

/** Ranks of `coll` for which `belongs` holds. */
std::vector<int> ranks_where(const tw_coll_t *coll, const std::function<bool(int)> &belongs)
{
    std::vector<int> ranks;
    for (int r = 0; r < tw_coll_size(coll); r++) {
        if (belongs(r)) {
            ranks.push_back(r);
        }
    }
    return ranks;
}

class GroupTest : public tw::Fixture
{
};

/* All at once: the node, the rail, and the rail backwards, as groups of groups too. */
TEST_F(GroupTest, NodesAndRailsOfEveryShape)
{
    const std::vector<std::vector<int>> shapes = {{1}, {2, 2}, {1, 1, 1}, {3, 1}, {2, 3}};
    for (const std::vector<int> &shape : shapes) {
        tw::World world(tw::nodes_of(shape));
        tw::ScopedEnv model("TW_COLL_MODEL", "inter:beta=1gbit");
        world.run([&](int rank) {
            tw_coll_t *all = world.coll(rank);
            const int node = tw_coll_node_of(all, rank), local = tw_coll_local_of(all, rank);
            std::vector<int> mates = ranks_where(all, [&](int r) { return tw_coll_node_of(all, r) == node; });
            std::vector<int> rail =
                ranks_where(all, [&](int r) { return tw_coll_local_of(all, r) == local; });
            std::vector<int> back(rail.rbegin(), rail.rend());
            tw_coll_t *node_coll, *rail_coll, *back_coll;
            ASSERT_EQ(tw_coll_group_create(all, mates.data(), (int)mates.size(), &node_coll), TW_OK);
            ASSERT_EQ(tw_coll_group_create(all, rail.data(), (int)rail.size(), &rail_coll), TW_OK);
            std::vector<int> order(rail.size());
            for (size_t i = 0; i < order.size(); i++) {
                order[i] = (int)(order.size() - 1 - i);
            }
            ASSERT_EQ(tw_coll_group_create(rail_coll, order.data(), (int)order.size(), &back_coll), TW_OK);

            EXPECT_EQ(tw_coll_n_nodes(node_coll), 1);
            EXPECT_EQ(gather(node_coll, rank), std::vector<int32_t>(mates.begin(), mates.end()));
            EXPECT_EQ(gather(rail_coll, rank), std::vector<int32_t>(rail.begin(), rail.end()));
            EXPECT_EQ(gather(back_coll, rank), std::vector<int32_t>(back.begin(), back.end()));
            tw_coll_counters_t sent;
            tw_coll_counters_get(node_coll, &sent);
            EXPECT_EQ(sent.inter_node_bytes, 0u);
            tw_coll_counters_get(rail_coll, &sent);
            EXPECT_EQ(sent.in_node_bytes, 0u);
            EXPECT_EQ(sent.inter_node_bytes > 0, rail.size() > 1);
            tw_coll_destroy(back_coll);
            tw_coll_destroy(rail_coll);
            tw_coll_destroy(node_coll);
        });
    }
}

TEST_F(GroupTest, RefusesWhatIsNoGroup)
{
    tw::World world({0, 1});
    expect_log("group");
    world.run([&](int rank) {
        tw_coll_t *coll = nullptr;
        const int beyond[] = {0, 2}, below[] = {-1}, both[] = {0, 1};
        if (rank == 0) {
            EXPECT_EQ(tw_coll_group_create(world.coll(0), beyond, 2, &coll), TW_ERR_INVALID);
            EXPECT_EQ(tw_coll_group_create(world.coll(0), below, 1, &coll), TW_ERR_INVALID);
            EXPECT_EQ(tw_coll_group_create(world.coll(0), both, 0, &coll), TW_ERR_INVALID);
            EXPECT_EQ(tw_coll_group_create(world.coll(0), both, 3, &coll), TW_ERR_INVALID);
        }
    });
}

TEST_F(GroupTest, AWorldFindsItsTransportByItself)
{
    tw::World world({0});
    expect_log("by itself");
    const tw_coll_params_t params = tw::params_of(world.transport(0));
    tw_coll_t *coll;
    EXPECT_EQ(tw_coll_world_create(&params, &coll), TW_ERR_INVALID);
}

} // namespace
