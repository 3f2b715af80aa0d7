/* Recursive doubling and halving. */
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK_BYTES = 512;

class Doubling : public tw::Fixture
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
    int k = 0;
    while ((1 << k) < world) {
        k++;
    }
    return k + 1;
}

TEST_F(Doubling, Allgather)
{
    sweep(TW_COLL_ALLGATHER, "doubling", hops);
}

TEST_F(Doubling, ReduceScatter)
{
    sweep(TW_COLL_REDUCE_SCATTER, "halving", hops);
}

TEST_F(Doubling, Allreduce)
{
    sweep(TW_COLL_ALLREDUCE, "halving_doubling", hops);
}

} // namespace
