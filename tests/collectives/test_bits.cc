/* Every algorithm by name, on host memory and on simulated GPUs, gives the bits that were recorded. */
#include "tests/collectives/bits.h"
#include "tests/collectives/gpu/world.h"
#include "tests/common/fixture.h"

namespace
{

class Bits : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
        set_env("TW_COLL_CHUNK", "1K");
        set_env("TW_COLL_TIMEOUT", "20s");
    }
};

TEST_F(Bits, OnTheHost)
{
    for (const std::vector<int> &grid : tw::bits_grids) {
        tw::World world(tw::nodes_of(grid));
        for (const tw::BitsCase &bits : tw::bits_cases(TW_MEM_HOST, true)) {
            expect_recorded(grid, bits, bits_of(bits, [&](const tw::Case &c) { return run_case(world, c); }));
        }
    }
}

TEST_F(Bits, OverNccl)
{
    for (const std::vector<int> &grid : tw::bits_grids) {
        tw::GpuWorld gpu(tw::nodes_of(grid), 5);
        for (const tw::BitsCase &bits : tw::bits_cases(TW_MEM_CUDA, false)) {
            if (bits.algo->op != TW_COLL_ALLTOALL) { /* NCCL has one */
                expect_recorded(grid, bits, bits_of(bits, [&](const tw::Case &c) { return gpu.run(c); }));
            }
        }
    }
}

} // namespace
