/* Hierarchical algorithms. */
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK_BYTES = 512;

class Hier : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", std::to_string(CHUNK_BYTES));
        set_env("TW_COLL_WINDOW", "2");
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
    }
    void sweep(tw_coll_op_t op, const char *algo, int (*roundings)(int, int))
    {
        tw::sweep(tw::all_worlds(), tw::all_cases(op, algo, CHUNK_BYTES), roundings);
    }
};

int nodes(int, int n_nodes)
{
    return n_nodes;
}

TEST_F(Hier, Allgather)
{
    sweep(TW_COLL_ALLGATHER, "hierarchical", nodes);
}

TEST_F(Hier, ReduceScatter)
{
    sweep(TW_COLL_REDUCE_SCATTER, "hierarchical", nodes);
}

TEST_F(Hier, Allreduce)
{
    sweep(TW_COLL_ALLREDUCE, "hierarchical", nodes);
}

} // namespace
