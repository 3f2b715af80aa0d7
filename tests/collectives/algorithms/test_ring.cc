/* Ring algorithms. */
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK_BYTES = 512;

class Ring : public tw::Fixture
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

int hops(int world, int)
{
    return world;
}

TEST_F(Ring, Allgather)
{
    sweep(TW_COLL_ALLGATHER, "ring", hops);
}

TEST_F(Ring, ReduceScatter)
{
    sweep(TW_COLL_REDUCE_SCATTER, "ring", hops);
}

TEST_F(Ring, Allreduce)
{
    sweep(TW_COLL_ALLREDUCE, "ring", hops);
}

} // namespace
