/* What members agree on while a communicator is made, and how long they wait for each other. */
#include "collectives/communicator.h"
#include "collectives/model/bootstrap.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Bootstrap = tw::Fixture;

constexpr uint64_t TAG = 200ull << 40;

void run_members(tw::World *world, const std::function<void(tw_bootstrap_t *, int rank)> &body,
                 double timeout_sec = 0)
{
    world->run([&](int rank) {
        tw_bootstrap_t boot = {};
        boot.transport = world->transport(rank);
        boot.topo = &world->coll(rank)->topo;
        boot.tag = TAG;
        boot.timeout_sec = timeout_sec;
        body(&boot, rank);
    });
}

TEST_F(Bootstrap, AnyIsTheSameForAll)
{
    for (int n = 1; n <= 8; n++) {
        tw::World world(std::vector<int>((size_t)n, 0));
        for (int who = -1; who < n; who++) { /* -1: nobody */
            run_members(&world, [&](tw_bootstrap_t *boot, int rank) {
                int flag = rank == who;
                ASSERT_EQ(tw_bootstrap_any(boot, &flag), TW_OK);
                EXPECT_EQ(flag, who >= 0) << rank << " of " << n;
            });
        }
    }
}

TEST_F(Bootstrap, GatherThenBroadcast)
{
    for (int n = 1; n <= 8; n++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)n, 1)));
        for (size_t bytes : {(size_t)0, (size_t)1, (size_t)4097}) {
            run_members(&world, [&](tw_bootstrap_t *boot, int rank) {
                std::vector<char> mine(bytes, (char)(rank + 1)), all(bytes * (size_t)n), last = mine;
                ASSERT_EQ(tw_bootstrap_gather(boot, mine.data(), bytes, rank == 0 ? all.data() : nullptr),
                          TW_OK);
                for (size_t i = 0; rank == 0 && i < all.size(); i++) {
                    ASSERT_EQ(all[i], (char)(i / bytes + 1));
                }
                if (rank == 0 && bytes > 0) { /* the last member's goes back to all */
                    last.assign(all.end() - (long)bytes, all.end());
                }
                ASSERT_EQ(tw_bootstrap_broadcast(boot, last.data(), bytes), TW_OK);
                EXPECT_EQ(last, std::vector<char>(bytes, (char)n));
            });
        }
    }
}

/* A member that is gone is an error for those that wait, and leaves nothing in flight. */
TEST_F(Bootstrap, AFailedMemberIsAnError)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    allow_log("");
    run_members(&world, [&](tw_bootstrap_t *boot, int rank) {
        int flag = 0;
        if (rank == 2) {
            tw_transport_abort(boot->transport, "test");
        } else {
            EXPECT_EQ(tw_bootstrap_any(boot, &flag), TW_ERR_PEER);
        }
    });
}

/* The one in the middle names the member that does not come; the others name the one in the middle. */
TEST_F(Bootstrap, AMemberThatNeverComesIsNamed)
{
    tw::World world(tw::nodes_of({1, 1, 1, 1}));
    expect_log("rank 0: making a communicator: nothing has come from rank 2");
    expect_log("rank 3: making a communicator: nothing has come from rank 0");
    allow_log("rank 1: making a communicator: nothing has come from rank 0");
    run_members(
        &world,
        [&](tw_bootstrap_t *boot, int rank) {
            int flag = 0;
            if (rank != 2) {
                EXPECT_EQ(tw_bootstrap_any(boot, &flag), TW_ERR_TIMEOUT);
            }
        },
        0.2);
}

/* As long as messages come, time does not run out: 20 rounds take longer than the limit. */
TEST_F(Bootstrap, TheLimitIsOnStandingStill)
{
    tw::World world(tw::nodes_of({1, 1}));
    run_members(
        &world,
        [&](tw_bootstrap_t *boot, int rank) {
            for (int i = 0; i < 20; i++) {
                int flag = 0;
                if (rank == 1) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(60));
                }
                ASSERT_EQ(tw_bootstrap_any(boot, &flag), TW_OK);
            }
        },
        1.0);
}

} // namespace
