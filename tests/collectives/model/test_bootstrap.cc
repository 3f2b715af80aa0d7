/* Meeting: what members agree on. */
#include "collectives/communicator.h"
#include "collectives/model/bootstrap.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Meet = tw::Fixture;

constexpr uint64_t TAG = 200ull << 40;

void run_peers(tw::World *world, const std::function<void(const tw_coll_peers_t &, int rank)> &body)
{
    world->run([&](int rank) {
        tw_coll_peers_t peers = {world->transport(rank), &world->coll(rank)->topo, TAG};
        body(peers, rank);
    });
}

TEST_F(Meet, AnyIsTheSameForAll)
{
    for (int n = 1; n <= 8; n++) {
        tw::World world(std::vector<int>((size_t)n, 0));
        for (int who = -1; who < n; who++) { /* -1: nobody */
            run_peers(&world, [&](const tw_coll_peers_t &peers, int rank) {
                int flag = rank == who;
                ASSERT_EQ(tw_meet_any(&peers, &flag), TW_OK);
                EXPECT_EQ(flag, who >= 0) << rank << " of " << n;
            });
        }
    }
}

TEST_F(Meet, GatherThenBroadcast)
{
    for (int n = 1; n <= 8; n++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)n, 1)));
        for (size_t bytes : {(size_t)0, (size_t)1, (size_t)4097}) {
            run_peers(&world, [&](const tw_coll_peers_t &peers, int rank) {
                std::vector<char> mine(bytes, (char)(rank + 1)), all(bytes * (size_t)n), last = mine;
                ASSERT_EQ(tw_meet_gather(&peers, mine.data(), bytes, rank == 0 ? all.data() : nullptr),
                          TW_OK);
                for (size_t i = 0; rank == 0 && i < all.size(); i++) {
                    ASSERT_EQ(all[i], (char)(i / bytes + 1));
                }
                if (rank == 0 && bytes > 0) { /* the last member's goes back to all */
                    last.assign(all.end() - (long)bytes, all.end());
                }
                ASSERT_EQ(tw_meet_broadcast(&peers, last.data(), bytes), TW_OK);
                EXPECT_EQ(last, std::vector<char>(bytes, (char)n));
            });
        }
    }
}

/* A member that is gone is an error for those that wait, and leaves nothing in flight. */
TEST_F(Meet, AFailedMemberIsAnError)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    allow_log("");
    run_peers(&world, [&](const tw_coll_peers_t &peers, int rank) {
        int flag = 0;
        if (rank == 2) {
            tw_transport_abort(peers.transport, "test");
        } else {
            EXPECT_EQ(tw_meet_any(&peers, &flag), TW_ERR_PEER);
        }
    });
}

} // namespace
