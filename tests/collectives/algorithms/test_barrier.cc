/* Barriers. */
#include <atomic>
#include <chrono>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Barrier = tw::Fixture;

TEST_F(Barrier, HoldsEveryoneBack)
{
    for (int w = 1; w <= 8; w++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
        std::atomic<int> arrived{0};
        world.run([&](int rank) {
            tw_coll_args_t args = {};
            args.op = TW_COLL_BARRIER;
            for (int round = 1; round <= 20; round++) {
                if (rank == round % w) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                arrived++;
                EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
                EXPECT_GE(arrived.load(), round * w);
            }
        });
    }
}

} // namespace
