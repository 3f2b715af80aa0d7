/* Direct algorithms: sums are rounded once. */
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK_BYTES = 512;

class Direct : public tw::Fixture
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

int once(int, int)
{
    return 1;
}

TEST_F(Direct, Allgather)
{
    sweep(TW_COLL_ALLGATHER, "direct", once);
}

TEST_F(Direct, ReduceScatter)
{
    sweep(TW_COLL_REDUCE_SCATTER, "direct", once);
}

TEST_F(Direct, Allreduce)
{
    sweep(TW_COLL_ALLREDUCE, "direct", once);
}

TEST_F(Direct, Exchange)
{
    sweep(TW_COLL_ALLREDUCE, "exchange", once);
}

} // namespace
