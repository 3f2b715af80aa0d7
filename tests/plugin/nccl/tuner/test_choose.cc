/* The table that NCCL gets. */
#include "plugin/nccl/tuner/tuner.h"

#include <random>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

using Table = std::vector<float>;
constexpr int n_algos = TW_NCCL_ALGOS, n_protos = TW_NCCL_PROTOS;

class Choose : public tw::Fixture
{
  protected:
    static tw_tuner_t tuner(size_t ranks, size_t nodes, int explain = 0)
    {
        tw_tuner_t it = {};
        tw_tuner_constants_init(&it.constants);
        it.world = ranks;
        it.n_nodes = nodes;
        it.explain = explain;
        return it;
    }
    static Table filled(tw_tuner_t it, int func, size_t bytes, Table table, int protos = n_protos)
    {
        const tw_tuner_op_t op = {func, bytes, 1};
        tw_tuner_fill(&it, &op, table.data(), (int)table.size() / protos, protos);
        return table;
    }
    static std::string choice(const tw_tuner_t &it, int func, size_t bytes, const Table &table)
    {
        int algo = -1, proto = -1;
        const Table out = filled(it, func, bytes, table);
        if (!tw_tuner_lowest(out.data(), n_algos, n_protos, &algo, &proto)) {
            return "none";
        }
        return std::string(tw_tuner_algo_name(algo)) + "/" + tw_tuner_proto_name(proto);
    }
    static float &at(Table &table, int algo, int proto)
    {
        return table[algo * n_protos + proto];
    }
    /* What NCCL allows an all-reduce with and without collnet. */
    static Table allowed(bool collnet)
    {
        Table table(n_algos * n_protos, -1);
        for (int proto = 0; proto < n_protos; proto++) {
            at(table, TW_NCCL_RING, proto) = at(table, TW_NCCL_TREE, proto) = 1;
        }
        if (collnet) {
            at(table, TW_NCCL_COLLNET_CHAIN, TW_NCCL_SIMPLE) = 1;
        }
        return table;
    }
};

TEST_F(Choose, ShortGoesByTreeLongByRing)
{
    EXPECT_EQ(choice(tuner(8, 8), TW_NCCL_ALL_REDUCE, 8, allowed(false)), "tree/ll");
    EXPECT_EQ(choice(tuner(8, 8), TW_NCCL_ALL_REDUCE, 256 << 20, allowed(false)), "ring/simple");
}

TEST_F(Choose, TheCrossingMovesWithTheLink)
{
    tw_tuner_t fast = tuner(8, 8);
    fast.constants.inter.gbps = 100;
    const size_t bytes = 256 << 10;
    EXPECT_EQ(choice(tuner(8, 8), TW_NCCL_ALL_REDUCE, bytes, allowed(false)).substr(0, 4), "ring");
    EXPECT_EQ(choice(fast, TW_NCCL_ALL_REDUCE, bytes, allowed(false)).substr(0, 4), "tree");
}

/* Exact, it sends what a ring sends; who asks for a codec gets it where it sends less. */
TEST_F(Choose, LongAllReducesGoWhereTheCodecIs)
{
    const size_t bytes = 64 << 20;
    tw_tuner_t it = tuner(4, 4);
    EXPECT_EQ(choice(it, TW_NCCL_ALL_REDUCE, bytes, allowed(true)), "ring/simple");
    it.constants.collnet_bytes = 0.5;
    EXPECT_EQ(choice(it, TW_NCCL_ALL_REDUCE, bytes, allowed(true)), "collnet_chain/simple");
    EXPECT_NE(choice(it, TW_NCCL_ALL_REDUCE, 1 << 19, allowed(true)), "collnet_chain/simple");
    it.constants.collnet_bytes = 1.02;
    EXPECT_EQ(choice(it, TW_NCCL_ALL_REDUCE, bytes, allowed(true)), "ring/simple");
}

TEST_F(Choose, TheCodecIsTheCollnets)
{
    tw_tuner_constants_t constants;
    int explains = 0;
    ASSERT_EQ(tw_tuner_configure(&constants, &explains), TW_OK);
    EXPECT_EQ(constants.collnet_bytes, 1);
    set_env("TW_ALLREDUCE_CODEC", "int8");
    ASSERT_EQ(tw_tuner_configure(&constants, &explains), TW_OK);
    EXPECT_NEAR(constants.collnet_bytes, 0.5 + 1.0 / 2048, 1e-9);
    set_env("TW_ALLREDUCE_CODEC", "lossless");
    ASSERT_EQ(tw_tuner_configure(&constants, &explains), TW_OK);
    EXPECT_NEAR(constants.collnet_bytes, 0.65, 0.01);
    set_env("TW_ALLREDUCE_CODEC", "int9");
    expect_log("TW_ALLREDUCE_CODEC=int9");
    allow_log("int9");
    EXPECT_EQ(tw_tuner_configure(&constants, &explains), TW_ERR_CONFIG);
}

TEST_F(Choose, SmallAllReducesStayOffCollnet)
{
    const Table out = filled(tuner(4, 4), TW_NCCL_ALL_REDUCE, (1 << 20) - 1, allowed(true));
    EXPECT_EQ(out[TW_NCCL_COLLNET_CHAIN * n_protos + TW_NCCL_SIMPLE], -1);
    const Table large = filled(tuner(4, 4), TW_NCCL_ALL_REDUCE, 1 << 20, allowed(true));
    EXPECT_GT(large[TW_NCCL_COLLNET_CHAIN * n_protos + TW_NCCL_SIMPLE], 0);
}

TEST_F(Choose, TheOnlyWayIsNeverForbidden)
{
    Table only(n_algos * n_protos, -1);
    at(only, TW_NCCL_COLLNET_CHAIN, TW_NCCL_SIMPLE) = 5;
    EXPECT_EQ(choice(tuner(4, 4), TW_NCCL_ALL_REDUCE, 4, only), "collnet_chain/simple");
}

TEST_F(Choose, InsideOneNodeNothingChanges)
{
    const Table table = allowed(true);
    EXPECT_EQ(filled(tuner(8, 1), TW_NCCL_ALL_REDUCE, 4, table), table);
}

TEST_F(Choose, UnknownFunctionsAndRowsStay)
{
    Table larger((n_algos + 2) * n_protos, 7);
    const Table out = filled(tuner(4, 4), TW_NCCL_ALL_REDUCE, 4 << 20, larger);
    EXPECT_EQ(std::vector<float>(out.end() - 2 * n_protos, out.end()), std::vector<float>(2 * n_protos, 7));
    EXPECT_NE(out[TW_NCCL_RING * n_protos], 7);
    EXPECT_EQ(filled(tuner(4, 4), TW_NCCL_FUNCS + 3, 4, larger), larger);
    EXPECT_EQ(filled(tuner(4, 4), -1, 4, larger), larger);
}

TEST_F(Choose, SmallerAndEmptyTables)
{
    const Table out = filled(tuner(4, 4), TW_NCCL_ALL_REDUCE, 4, Table(2, 1), 1);
    EXPECT_NE(out[TW_NCCL_RING], 1);
    EXPECT_TRUE(filled(tuner(4, 4), TW_NCCL_ALL_REDUCE, 4, {}).empty());
    int algo = 9, proto = 9;
    EXPECT_EQ(tw_tuner_lowest(nullptr, 0, 3, &algo, &proto), 0);
    EXPECT_EQ(algo, 9);
}

/* Whatever is allowed at the start: forbidden stays forbidden, something stays allowed, and every rank
 * decides alike. */
TEST_F(Choose, AnyTable)
{
    std::mt19937 random(1);
    for (int trial = 0; trial < 5000; trial++) {
        Table table(n_algos * n_protos);
        for (float &cell : table) {
            cell = random() % 3 == 0 ? (float)(random() % 1000) : -1;
        }
        const size_t ranks = 2 + random() % 16, nodes = 2 + random() % (ranks - 1);
        const tw_tuner_t it = tuner(ranks, nodes);
        const int func = random() % TW_NCCL_FUNCS;
        const size_t bytes = (size_t)1 << random() % 34;
        const Table out = filled(it, func, bytes, table);
        bool had = false, has = false;
        for (size_t i = 0; i < table.size(); i++) {
            had |= table[i] >= 0;
            has |= out[i] >= 0;
            EXPECT_TRUE(table[i] >= 0 || out[i] == table[i]);
        }
        EXPECT_EQ(had, has);
        EXPECT_EQ(out, filled(it, func, bytes, table));
    }
}

TEST_F(Choose, ExplainsOnceForEachPowerOfTwo)
{
    capture_level(TW_LOG_INFO);
    tw_tuner_t it = tuner(4, 2, 1);
    for (size_t bytes : {4096, 5000, 8191, 8192, 0, 0, 1}) {
        Table table = allowed(false);
        const tw_tuner_op_t op = {TW_NCCL_ALL_REDUCE, bytes, 1};
        tw_tuner_fill(&it, &op, table.data(), n_algos, n_protos);
    }
    EXPECT_EQ(log_count("all_reduce of "), 3u);
    EXPECT_EQ(log_count("all_reduce of 4096 bytes, 4 ranks on 2 nodes: tree/ll "), 1u);
    EXPECT_EQ(log_count(" so tree/ll"), 3u);
    Table none(n_algos * n_protos, -1);
    const tw_tuner_op_t op = {TW_NCCL_BROADCAST, 77, 1};
    tw_tuner_fill(&it, &op, none.data(), n_algos, n_protos);
    EXPECT_EQ(log_count("nothing is allowed"), 1u);
}

TEST_F(Choose, ExplainingTooManyRowsIsCut)
{
    capture_level(TW_LOG_INFO);
    tw_tuner_t it = tuner(4, 2, 1);
    Table table(200 * n_protos, 1e30f);
    const tw_tuner_op_t op = {TW_NCCL_ALL_REDUCE, 100, 1};
    tw_tuner_fill(&it, &op, table.data(), 200, n_protos);
    EXPECT_EQ(log_count(" so nvls_tree/ll"), 1u);
}

} // namespace
