/* The model against times worked out by hand, and against common sense for all shapes. */
#include "plugin/nccl/tuner/tuner.h"

#include "tests/common/fixture.h"

namespace
{

class Model : public tw::Fixture
{
  protected:
    /* 10 us and 8 Gb/s (0.001 us a byte) between nodes, 1 us and 80 Gb/s inside; protocols cost nothing but
     * LL's bytes. */
    static tw_tuner_t tuner(size_t ranks, size_t nodes)
    {
        tw_tuner_t it = {};
        tw_tuner_constants_init(&it.constants);
        it.constants.inter = {10, 8};
        it.constants.node = {1, 80};
        for (auto &proto : it.constants.proto) {
            proto = {0, 1};
        }
        it.constants.proto[TW_NCCL_LL] = {0, 2};
        for (double &share : it.constants.share) {
            share = 1;
        }
        it.world = ranks;
        it.n_nodes = nodes;
        return it;
    }
    static double time(const tw_tuner_t &it, int func, size_t bytes, int algo, int proto = TW_NCCL_SIMPLE,
                       int n_ops = 1)
    {
        const tw_tuner_op_t op = {func, bytes, n_ops};
        return tw_tuner_time_us(&it, &op, algo, proto);
    }
};

TEST_F(Model, Rings)
{
    const tw_tuner_t it = tuner(8, 4);
    /* 2 * 3 rounds between nodes, 2 * 4 inside; 2 * 7/8 of the bytes over each link. */
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_REDUCE, 8000, TW_NCCL_RING), 6 * 10 + 8 * 1 + 14000 * 0.001);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_GATHER, 8000, TW_NCCL_RING), 3 * 10 + 4 * 1 + 7000 * 0.001);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_REDUCE_SCATTER, 8000, TW_NCCL_RING), 3 * 10 + 4 * 1 + 7000 * 0.001);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_BROADCAST, 8000, TW_NCCL_RING), 3 * 10 + 4 * 1 + 8000 * 0.001);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_REDUCE, 0, TW_NCCL_RING), 34);
}

TEST_F(Model, Trees)
{
    EXPECT_DOUBLE_EQ(time(tuner(4, 4), TW_NCCL_ALL_REDUCE, 1000, TW_NCCL_TREE), 2 * 2 * 10 + 2);
    EXPECT_DOUBLE_EQ(time(tuner(5, 5), TW_NCCL_ALL_REDUCE, 1000, TW_NCCL_TREE), 2 * 3 * 10 + 2);
    EXPECT_DOUBLE_EQ(time(tuner(2, 2), TW_NCCL_ALL_REDUCE, 1000, TW_NCCL_TREE), 2 * 10 + 1) << "two nodes";
    EXPECT_DOUBLE_EQ(time(tuner(12, 4), TW_NCCL_ALL_REDUCE, 1000, TW_NCCL_TREE), 2 * 2 * 10 + 2 * 2 * 1 + 2);
    EXPECT_DOUBLE_EQ(time(tuner(12, 4), TW_NCCL_ALL_REDUCE, 1000, TW_NCCL_NVLS_TREE), 2 * 2 * 10 + 2 * 1 + 2);
}

TEST_F(Model, CollnetAndPat)
{
    const tw_tuner_t it = tuner(8, 4);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_REDUCE, 4000, TW_NCCL_COLLNET_CHAIN), 6 * 10 + 2 * 1 + 6);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_GATHER, 4000, TW_NCCL_COLLNET_DIRECT), 3 * 10 + 1 + 3);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_REDUCE, 4000, TW_NCCL_NVLS), 6 * 10 + 2 * 1 + 6);
    EXPECT_DOUBLE_EQ(time(tuner(4, 4), TW_NCCL_ALL_GATHER, 4000, TW_NCCL_PAT), 2 * 10 + 3);
}

TEST_F(Model, ProtocolsSharesAndGroups)
{
    tw_tuner_t it = tuner(4, 4);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_GATHER, 4000, TW_NCCL_RING, TW_NCCL_LL), 30 + 6);
    it.constants.proto[TW_NCCL_SIMPLE].alpha_us = 5;
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_GATHER, 4000, TW_NCCL_RING), 45 + 3);
    it.constants.share[TW_NCCL_RING] = 0.5;
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_GATHER, 4000, TW_NCCL_RING), 45 + 6);
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_ALL_GATHER, 4000, TW_NCCL_RING, TW_NCCL_SIMPLE, 3), 3 * 45 + 6);
}

TEST_F(Model, TheSlowerTierSetsThePace)
{
    tw_tuner_t it = tuner(8, 4);
    it.constants.node.gbps = 4;
    EXPECT_DOUBLE_EQ(time(it, TW_NCCL_BROADCAST, 1000, TW_NCCL_RING), 34 + 2);
    tw_tuner_t one_each = tuner(4, 4);
    one_each.constants.node.gbps = 4;
    EXPECT_DOUBLE_EQ(time(one_each, TW_NCCL_BROADCAST, 1000, TW_NCCL_RING), 30 + 1)
        << "nothing inside a node";
}

TEST_F(Model, UnknownIsNegative)
{
    const tw_tuner_t it = tuner(4, 4);
    EXPECT_LT(time(it, TW_NCCL_ALL_GATHER, 1, TW_NCCL_TREE), 0);
    EXPECT_LT(time(it, TW_NCCL_ALL_REDUCE, 1, TW_NCCL_PAT), 0);
    EXPECT_LT(time(it, TW_NCCL_BROADCAST, 1, TW_NCCL_NVLS), 0);
    EXPECT_LT(time(it, TW_NCCL_ALL_REDUCE, 1, TW_NCCL_ALGOS), 0);
    EXPECT_LT(time(it, TW_NCCL_ALL_REDUCE, 1, -1), 0);
    EXPECT_LT(time(it, TW_NCCL_ALL_REDUCE, 1, TW_NCCL_RING, TW_NCCL_PROTOS), 0);
    EXPECT_LT(time(it, TW_NCCL_FUNCS, 1, TW_NCCL_RING), 0);
    EXPECT_LT(time(it, -1, 1, TW_NCCL_RING), 0);
}

TEST_F(Model, EveryShapeIsFiniteAndGrowsWithSize)
{
    for (size_t ranks = 2; ranks <= 9; ranks++) {
        for (size_t nodes = 2; nodes <= ranks; nodes++) {
            const tw_tuner_t it = tuner(ranks, nodes);
            for (int cell = 0; cell < TW_NCCL_FUNCS * TW_NCCL_ALGOS; cell++) {
                const int func = cell / TW_NCCL_ALGOS, algo = cell % TW_NCCL_ALGOS;
                const double none = time(it, func, 0, algo), some = time(it, func, 1 << 20, algo);
                if (none >= 0) {
                    EXPECT_GT(none, 0);
                    EXPECT_GT(some, none);
                    EXPECT_LT(time(it, func, (size_t)1 << 62, algo), 1e18);
                }
            }
        }
    }
}

} // namespace
