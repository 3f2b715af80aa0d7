/* What ranks tell each other, where one of them has no memory for it. */
#include "trainer/agreement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

class Agreement : public tw::Fixture
{
};

/* They wait for it, so they hear that it gives up. */
TEST_F(Agreement, WhoHasNoRoomForTheOthersGivesUp)
{
    tw::World ranks(std::vector<int>{0, 0, 0});
    expect_log("rank 1: out of memory for what 3 ranks have to say");
    allow_log("gave the job up");
    ranks.run([&](int rank) {
        if (rank == 1) {
            void *all = tw_agree_alloc(ranks.coll(rank), SIZE_MAX / 2);
            EXPECT_EQ(nullptr, all);
            free(all);
        } else {
            EXPECT_EQ(TW_ERR_PEER, tw_agree_status(ranks.coll(rank), TW_OK));
        }
    });
}

TEST_F(Agreement, TheFirstFailureIsEverybodys)
{
    tw::World ranks(std::vector<int>{0, 0, 0});
    ranks.run([&](int rank) {
        const tw_status_t own = rank == 0 ? TW_OK : rank == 1 ? TW_ERR_IO : TW_ERR_FORMAT;
        EXPECT_EQ(TW_ERR_IO, tw_agree_status(ranks.coll(rank), own));
    });
}

} // namespace
