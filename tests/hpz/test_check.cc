/* The comparison of replicas between nodes, and what mends them. */
#include "tests/hpz/replicas.h"

namespace
{

using HpzCheck = tw::Fixture;

uint16_t *replica(tw::Rank &rank, int unit)
{
    return rank.hpz->units[unit].replica;
}

TEST_F(HpzCheck, AllRanksHearOfOneWrongReplicaAndAFullSyncMendsIt)
{
    expect_log("unit 1: the replica of rank 3 is not that of rank 1, in tensor 3");
    tw::on_ranks({2, 2}, tw::tensors_of(100), tw::params_with(""), [](tw::Rank &rank, int r) {
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        EXPECT_EQ(tw_hpz_check(rank.hpz, 1), TW_OK);
        if (r == 3) {
            replica(rank, 1)[0] ^= 1;
        }
        EXPECT_EQ(tw_hpz_check(rank.hpz, 1), TW_ERR_MISMATCH);
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 2), TW_OK);
        EXPECT_EQ(tw_hpz_check(rank.hpz, 2), TW_OK);
    });
}

TEST_F(HpzCheck, AnotherVersionIsAMismatch)
{
    expect_log("unit 0: the replica of rank 0 is at version 1 instead of 2");
    tw::on_ranks({1, 1}, {{64, 0, 0, 0, 0}}, tw::params_with(""), [](tw::Rank &rank, int) {
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        EXPECT_EQ(tw_hpz_check(rank.hpz, 2), TW_ERR_MISMATCH);
    });
}

/* A replica that has gone wrong is seen by the lossless delta itself, whole or slice by slice; the unit is
 * refused until a full sync. */
TEST_F(HpzCheck, ALosslessDeltaThatDoesNotFitIsAnError)
{
    expect_log("do not fit the replica");
    expect_log("unit 0: the replica of rank 1 is at version 0 instead of 2");
    expect_log("delta_decode: a block does not decode");
    tw_hpz_params_t params = tw::params_with("");
    for (size_t room : {0, 8000}) {
        params.sync_elems = room;
        params.slice_elems = 2000;
        tw::on_ranks({1, 1}, {{10000, 0, 0, 0, 0}}, params, [](tw::Rank &rank, int r) {
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
            if (r == 1) {
                replica(rank, 0)[10] ^= 4; /* of the other node's piece */
            }
            rank.update(1);
            EXPECT_EQ(rank.sync(TW_HPZ_LOSSLESS, 2), r == 1 ? TW_ERR_FORMAT : TW_OK);
            EXPECT_EQ(tw_hpz_version(rank.hpz, 0), r == 1 ? 0U : 2U);
            EXPECT_EQ(tw_hpz_check(rank.hpz, 2), TW_ERR_MISMATCH);
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 3), TW_OK);
            rank.update(3);
            ASSERT_EQ(rank.sync(TW_HPZ_LOSSLESS, 4), TW_OK);
            EXPECT_EQ(tw_hpz_check(rank.hpz, 4), TW_OK);
        });
    }
}

TEST_F(HpzCheck, EverySoManySteps)
{
    set_env("TW_HPZ_CHECK_STEPS", "3");
    tw::on_ranks({1, 1}, {{64, 0, 0, 0, 0}}, tw::params_with(""), [](tw::Rank &rank, int) {
        EXPECT_FALSE(tw_hpz_check_due(rank.hpz, 2));
        EXPECT_TRUE(tw_hpz_check_due(rank.hpz, 3));
        EXPECT_FALSE(tw_hpz_check_due(rank.hpz, 4));
    });
    set_env("TW_HPZ_CHECK_STEPS", "0");
    tw::on_ranks({1, 1}, {{64, 0, 0, 0, 0}}, tw::params_with(""),
                 [](tw::Rank &rank, int) { EXPECT_FALSE(tw_hpz_check_due(rank.hpz, 100)); });
}

} // namespace
