/* Every plain algorithm that has data, in every shape of operation and world. */
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK_BYTES = 512;

int none(int, int)
{
    return 0;
}

int once(int, int)
{
    return 1;
}

int hops(int world, int)
{
    return world;
}

/* Of the node's sum and of the result; of the result alone where there is one tier. */
int two_hops(int world, int n_nodes)
{
    return n_nodes > 1 && world > n_nodes ? 2 : 1;
}

int nodes(int, int n_nodes)
{
    return n_nodes;
}

/* A rounding on each hop of a halving, and one of the result. */
int halvings(int world, int)
{
    int k = 0;
    while ((1 << k) < world) {
        k++;
    }
    return k + 1;
}

/* One on each level of a tree of nodes. */
int levels(int, int n_nodes)
{
    return halvings(n_nodes, 0) + 1;
}

struct Row {
    tw_coll_op_t op;
    const char *algo;
    int (*roundings)(int world, int n_nodes); /**< of the longest path of a sum, to the tensor's type */
};

const Row rows[] = {
    {TW_COLL_ALLGATHER, "ring", none},
    {TW_COLL_ALLGATHER, "doubling", none},
    {TW_COLL_ALLGATHER, "hierarchical", none},
    {TW_COLL_ALLGATHER, "direct", none},
    {TW_COLL_REDUCE_SCATTER, "ring", hops},
    {TW_COLL_REDUCE_SCATTER, "halving", halvings},
    {TW_COLL_REDUCE_SCATTER, "hierarchical", nodes},
    {TW_COLL_REDUCE_SCATTER, "two_hop", two_hops},
    {TW_COLL_REDUCE_SCATTER, "direct", once},
    {TW_COLL_ALLREDUCE, "ring", hops},
    {TW_COLL_ALLREDUCE, "halving_doubling", halvings},
    {TW_COLL_ALLREDUCE, "hierarchical", nodes},
    {TW_COLL_ALLREDUCE, "two_hop", two_hops},
    {TW_COLL_ALLREDUCE, "direct", once},
    {TW_COLL_ALLREDUCE, "exchange", once},
    {TW_COLL_ALLREDUCE, "torus_2d", hops},
    {TW_COLL_ALLREDUCE, "torus_3d", hops},
    {TW_COLL_ALLREDUCE, "double_tree", levels},
    {TW_COLL_ALLREDUCE, "binomial", levels},
    {TW_COLL_BROADCAST, "chain", none},
    {TW_COLL_BROADCAST, "binomial", none},
    {TW_COLL_ALLTOALL, "pairwise", none},
};

class Plain : public tw::Fixture, public ::testing::WithParamInterface<Row>
{
};

TEST_P(Plain, IsRightInEveryShape)
{
    const Row &row = GetParam();
    set_env("TW_COLL_CHUNK", std::to_string(CHUNK_BYTES));
    set_env("TW_COLL_WINDOW", "2");
    tw::sweep(tw::all_worlds(), tw::all_cases(row.op, row.algo, CHUNK_BYTES), row.roundings);
}

std::string name_of(const ::testing::TestParamInfo<Row> &row)
{
    return std::string(tw_coll_op_name(row.param.op)) + "_" + row.param.algo;
}

INSTANTIATE_TEST_SUITE_P(Rows, Plain, ::testing::ValuesIn(rows), name_of);

/* A row that is added to the table has to be added here. */
TEST(PlainRows, NoneIsMissing)
{
    size_t n = 0;
    for (size_t i = 0; tw_coll_algo_get(TW_MEM_HOST, i) != nullptr; i++) {
        const tw_coll_algo_info_t *info = tw_coll_algo_get(TW_MEM_HOST, i);
        n += !info->quantized && info->op != TW_COLL_BARRIER;
    }
    EXPECT_EQ(n, sizeof(rows) / sizeof(rows[0]));
}

} // namespace
