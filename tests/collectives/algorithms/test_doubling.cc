/* Halving and doubling: slices follow each other closely. Their results are test_plain's. */
#include <atomic>

#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t CHUNK_BYTES = 4096, N_SLICES = 6;

class Doubling : public tw::Fixture
{
};

uint64_t messages_to(tw::World &world, int rank, int peer)
{
    tw_transport_counters_t sent;
    tw_transport_peer_counters(world.transport(rank), peer, &sent);
    return sent.messages;
}

/* While nobody else has come, a rank has sent what later slices begin with: it does not wait for the first
 * one to be through all of its hops. */
TEST_F(Doubling, ARankThatWaitsForASliceSendsOthers)
{
    set_env("TW_COLL_CHUNK", std::to_string(CHUNK_BYTES));
    set_env("TW_COLL_CHECK", "n");
    set_env("TW_COLL_WINDOW", "16");
    tw::World world(tw::nodes_of({1, 1, 1, 1}));
    std::atomic<bool> counted{false};
    const tw::Case c = tw::make_case(TW_COLL_ALLREDUCE, "halving_doubling", {N_SLICES * 4 * CHUNK_BYTES / 2});
    world.run([&](int rank) {
        while (rank > 0 && !counted) {
            std::this_thread::yield();
        }
        tw::Job job(c, world.size(), rank);
        tw_coll_request_t *request = nullptr;
        uint64_t before = messages_to(world, rank, 2);
        const tw_status_t status = tw_coll_post(world.coll(rank), job.args(), &request);
        if (status != TW_OK) {
            counted = true; /* nobody waits for what does not come */
            FAIL() << tw_status_string(status);
        }
        for (int i = 0; rank == 0 && i < 1000; i++) {
            EXPECT_EQ(tw_coll_test(request), TW_IN_PROGRESS);
        }
        if (rank == 0) { /* two shards of each slice */
            EXPECT_GT(messages_to(world, rank, 2) - before, 2 * (N_SLICES / 2));
            counted = true;
        }
        EXPECT_EQ(tw_coll_wait(request), TW_OK);
    });
}

} // namespace
