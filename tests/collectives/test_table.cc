/* The table of algorithms, both halves of it. */
#include <set>
#include <string>

#include "collectives/communicator.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

using Algos = tw::Fixture;

/* A name says one thing: within an operation it is there once among the plain and once among the quantized
 * ones. */
TEST_F(Algos, RowsAreCompleteAndNamesUnique)
{
    std::set<std::string> seen;
    std::set<int> plain_ops, quantized_ops;
    size_t n = 0;
    for (const tw_algo_t *algo; (algo = tw_algo_get(n)) != nullptr; n++) {
        std::string name = std::string(tw_coll_op_name(algo->info.op)) + "/" + algo->info.name;
        EXPECT_TRUE(seen.insert(name + (algo->info.quantized ? " quantized" : "")).second) << name;
        EXPECT_STRNE(algo->info.name, "auto");
        EXPECT_GT(std::string(algo->info.doc).size(), 0u) << name;
        EXPECT_TRUE(algo->flows.reduce != nullptr || algo->flows.spread != nullptr) << name;
        EXPECT_EQ(tw_coll_algo_get(TW_MEM_HOST, n), &algo->info);
        (algo->info.quantized ? quantized_ops : plain_ops).insert(algo->info.op);
    }
    EXPECT_LE(n, (size_t)TW_COLL_ALGOS);
    EXPECT_EQ(tw_coll_algo_get(TW_MEM_HOST, n), nullptr);
    EXPECT_EQ(tw_algo_get(n + 1), nullptr);
    EXPECT_EQ(plain_ops.size(), (size_t)TW_COLL_OP_COUNT); /* each has a plain one */
    EXPECT_EQ(quantized_ops, (std::set<int>{TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE,
                                            TW_COLL_ALLTOALL}));
}

TEST_F(Algos, QuantizedRowsAreTheLastOnes)
{
    size_t n = 0;
    while (tw_algo_get(n) != nullptr && !tw_algo_get(n)->info.quantized) {
        n++;
    }
    for (; tw_algo_get(n) != nullptr; n++) {
        EXPECT_EQ(tw_algo_get(n)->info.quantized, 1);
    }
}

TEST_F(Algos, OperationsHaveNames)
{
    std::set<std::string> names;
    for (int op = 0; op < TW_COLL_OP_COUNT; op++) {
        names.insert(tw_coll_op_name((tw_coll_op_t)op));
    }
    EXPECT_EQ(names.size(), (size_t)TW_COLL_OP_COUNT);
    EXPECT_STREQ(tw_coll_op_name(TW_COLL_OP_COUNT), "?");
    EXPECT_STREQ(tw_coll_op_name((tw_coll_op_t)-1), "?");
}

TEST_F(Algos, LogarithmsAndMessages)
{
    for (int n = 1; n <= 64; n++) {
        int k = tw_log2_ceil(n);
        EXPECT_GE(1 << k, n);
        EXPECT_TRUE(k == 0 || 1 << (k - 1) < n) << n;
    }
    tw_case_t c = {};
    c.chunk_bytes = 1000;
    EXPECT_EQ(tw_cost_messages(&c, 0), 0);
    EXPECT_EQ(tw_cost_messages(&c, 1), 1);
    EXPECT_EQ(tw_cost_messages(&c, 1000), 1);
    EXPECT_EQ(tw_cost_messages(&c, 1001), 2);
}

} // namespace
