/* Bytes between nodes: what is counted is what was planned, and what arithmetic says. */
#include <numeric>

#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr uint64_t SIGNATURE_BYTES = 32;
constexpr uint64_t SIZES_BYTES = 16; /* all-to-all: what each rank tells each other one */

class Bytes : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", "512");
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
    }
};

/* Sum over all ranks of the bytes sent to other nodes; checks each rank's against its plan. */
uint64_t count(const std::vector<int> &node_of, const tw::Case &c)
{
    tw::World world(node_of);
    std::vector<uint64_t> sent(node_of.size());
    world.run([&](int rank) {
        tw::Job job(c, world.size(), rank);
        tw_transport_counters_t before, after;
        uint64_t planned = 0;
        EXPECT_EQ(tw_coll_planned_inter_node_bytes(world.coll(rank), job.args(), &planned), TW_OK);
        tw_transport_inter_node_counters(world.transport(rank), &before);
        EXPECT_EQ(tw_coll_run(world.coll(rank), job.args()), TW_OK);
        tw_transport_inter_node_counters(world.transport(rank), &after);
        sent[(size_t)rank] = after.bytes - before.bytes;
        EXPECT_EQ(sent[(size_t)rank], planned) << c.name() << ", rank " << rank;
    });
    return std::accumulate(sent.begin(), sent.end(), (uint64_t)0);
}

/* A world whose ranks are numbered node by node, and its tensor. */
struct World {
    explicit World(const std::vector<int> &ranks_per_node) : node_of(tw::nodes_of(ranks_per_node))
    {
        w = (int)node_of.size();
        n_nodes = (int)ranks_per_node.size();
        for (size_t n = 0, first = 0; n < ranks_per_node.size(); first += (size_t)ranks_per_node[n], n++) {
            first_of_node.push_back((int)first);
        }
    }
    uint64_t shard(int rank) const
    {
        return tw_coll_shard_elems(N_ELEMS, w, rank) * 2;
    }
    uint64_t signatures() const
    {
        return n_nodes > 1 ? (uint64_t)n_nodes * SIGNATURE_BYTES : 0;
    }
    int remote_ranks(int rank) const
    {
        return w - (int)std::count(node_of.begin(), node_of.end(), node_of[(size_t)rank]);
    }
    static constexpr size_t N_ELEMS = 10007;
    static constexpr uint64_t TOTAL = N_ELEMS * 2;
    std::vector<int> node_of, first_of_node;
    int w, n_nodes;
};

std::vector<World> worlds()
{
    std::vector<World> all;
    for (const std::vector<int> &grid : std::vector<std::vector<int>>{
             {1}, {4}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1}, {2, 2}, {2, 2, 2}, {3, 1, 2}}) {
        all.emplace_back(grid);
    }
    return all;
}

tw::Case make_case(tw_coll_op_t op, const char *algo)
{
    tw::Case c;
    c.op = op;
    c.algo = algo;
    c.type = TW_TYPE_BF16;
    c.n_elems = {World::N_ELEMS};
    return c;
}

/* Between two nodes next to each other in the ring, all shards but that of the rank behind the gap. */
uint64_t ring_bytes(const World &world)
{
    uint64_t bytes = 0;
    for (int first : world.first_of_node) {
        bytes += world.n_nodes > 1 ? World::TOTAL - world.shard(first) : 0;
    }
    return bytes;
}

TEST_F(Bytes, Ring)
{
    for (const World &world : worlds()) {
        uint64_t gather = ring_bytes(world), reduce = 0;
        /* A sum ends at its owner, so the last rank of a node keeps its own shard. */
        for (int first : world.first_of_node) {
            reduce += world.n_nodes > 1 ? World::TOTAL - world.shard((first + world.w - 1) % world.w) : 0;
        }
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLGATHER, "ring")), gather + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_REDUCE_SCATTER, "ring")),
                  reduce + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLREDUCE, "ring")),
                  gather + reduce + world.signatures());
    }
}

/* Every shard enters every other node once, and leaves it once as a sum. */
TEST_F(Bytes, Hierarchical)
{
    for (const World &world : worlds()) {
        uint64_t once = World::TOTAL * (uint64_t)(world.n_nodes - 1);
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLGATHER, "hierarchical")),
                  once + world.signatures());
        for (const char *algo : {"hierarchical", "two_hop"}) {
            EXPECT_EQ(count(world.node_of, make_case(TW_COLL_REDUCE_SCATTER, algo)),
                      once + world.signatures());
            EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLREDUCE, algo)),
                      2 * once + world.signatures());
        }
    }
}

TEST_F(Bytes, Direct)
{
    for (const World &world : worlds()) {
        uint64_t once = 0, exchange = 0;
        for (int r = 0; r < world.w; r++) {
            once += world.shard(r) * (uint64_t)world.remote_ranks(r);
            exchange += World::TOTAL * (uint64_t)world.remote_ranks(r);
        }
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLGATHER, "direct")), once + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_REDUCE_SCATTER, "direct")),
                  once + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLREDUCE, "direct")),
                  2 * once + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLREDUCE, "exchange")),
                  exchange + world.signatures());
    }
}

/* One rank per node: nobody gets anything twice. */
TEST_F(Bytes, Doubling)
{
    for (int w = 1; w <= 8; w++) {
        World world(std::vector<int>((size_t)w, 1));
        uint64_t once = World::TOTAL * (uint64_t)(w - 1);
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLGATHER, "doubling")), once + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_REDUCE_SCATTER, "halving")),
                  once + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLREDUCE, "halving_doubling")),
                  2 * once + world.signatures());
    }
}

TEST_F(Bytes, BroadcastAndAlltoall)
{
    for (const World &world : worlds()) {
        uint64_t pairs = 0;
        for (int r = 0; r < world.w; r++) {
            for (int q = 0; q < world.w; q++) {
                pairs +=
                    world.node_of[(size_t)r] != world.node_of[(size_t)q] ? world.shard(q) + SIZES_BYTES : 0;
            }
        }
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_BROADCAST, "chain")),
                  World::TOTAL * (uint64_t)(world.n_nodes - 1) + world.signatures());
        EXPECT_EQ(count(world.node_of, make_case(TW_COLL_ALLTOALL, "pairwise")), pairs + world.signatures());
    }
}

/* Both tiers of a communicator, and where its ranks are: nodes in the order of their lowest rank. */
TEST_F(Bytes, OfBothTiers)
{
    set_env("TW_COLL_CHECK", "n");
    const std::vector<int> node_of = {5, 2, 5, 7, 2, 5}, nodes = {0, 1, 0, 2, 1, 0},
                           locals = {0, 0, 1, 0, 1, 2};
    const tw::Case c = make_case(TW_COLL_ALLGATHER, "direct");
    tw::World world(node_of);
    world.run([&](int rank) {
        tw_coll_t *coll = world.coll(rank);
        tw::Job job(c, world.size(), rank);
        const uint64_t shard = tw_coll_shard_elems(World::N_ELEMS, 6, rank) * 2,
                       messages = (shard + 511) / 512;
        uint64_t mates = 0;
        for (int r = 0; r < world.size(); r++) {
            EXPECT_EQ(tw_coll_node_of(coll, r), nodes[(size_t)r]) << r;
            EXPECT_EQ(tw_coll_local_of(coll, r), locals[(size_t)r]) << r;
            mates += r != rank && nodes[(size_t)r] == nodes[(size_t)rank];
        }
        tw_coll_counters_t before, after;
        tw_coll_counters_get(coll, &before);
        EXPECT_EQ(tw_coll_run(coll, job.args()), TW_OK);
        tw_coll_counters_get(coll, &after);
        EXPECT_EQ(after.in_node_bytes - before.in_node_bytes, mates * shard);
        EXPECT_EQ(after.in_node_messages - before.in_node_messages, mates * messages);
        EXPECT_EQ(after.inter_node_bytes - before.inter_node_bytes, (5 - mates) * shard);
        EXPECT_EQ(after.inter_node_messages - before.inter_node_messages, (5 - mates) * messages);
    });
    for (int nobody : {-1, 6}) {
        EXPECT_EQ(tw_coll_node_of(world.coll(0), nobody), -1);
        EXPECT_EQ(tw_coll_local_of(world.coll(0), nobody), -1);
    }
}

/* Without the check, not a byte more than the payload. */
TEST_F(Bytes, NothingButPayload)
{
    set_env("TW_COLL_CHECK", "n");
    EXPECT_EQ(count({0, 1, 2}, make_case(TW_COLL_ALLGATHER, "ring")), World::TOTAL * 2);
}

} // namespace
