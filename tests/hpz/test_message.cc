/* Messages of a sync: their lengths, and what is refused. */
#include "tests/hpz/replicas.h"

namespace
{

using HpzMessage = tw::Fixture;

TEST_F(HpzMessage, LengthsAreThoseOfTheirPieces)
{
    tw_quant_codec_t codec = tw::codec_of("int4");
    tw::on_ranks({1, 1}, {{1000, 0, 0}, {1000, 0, 1}}, tw::params_with("int4"), [&](tw::Rank &rank, int) {
        tw_hpz_slice_t all = tw::all_of(rank.hpz, 0), some = {0, 96}, rest = {96, 1000};
        EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, all, TW_HPZ_FULL, 0), 2000U);
        EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, all, TW_HPZ_DELTA, 0),
                  tw_quant_encoded_bytes(&codec, 500) + 1000);
        EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, all, TW_HPZ_EXACT, 0), tw_quant_exact_bound_bytes(1000));
        EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, some, TW_HPZ_FULL, 0), 192U);
        EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, some, TW_HPZ_DELTA, 0),
                  tw_quant_encoded_bytes(&codec, 96));
        EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, rest, TW_HPZ_DELTA, 0),
                  tw_quant_encoded_bytes(&codec, 404) + 1000);
        EXPECT_FALSE(tw_hpz_message_varies(rank.hpz, TW_HPZ_FULL));
        EXPECT_FALSE(tw_hpz_message_varies(rank.hpz, TW_HPZ_DELTA));
        EXPECT_TRUE(tw_hpz_message_varies(rank.hpz, TW_HPZ_EXACT));
    });
}

TEST_F(HpzMessage, ShortOnesAreRefused)
{
    expect_log("fewer than its pieces take");
    expect_log("exact_decode");
    tw::on_ranks({1, 1}, {{1000, 0, 0}}, tw::params_with("int4"), [](tw::Rank &rank, int) {
        std::vector<uint8_t> message(tw_quant_exact_bound_bytes(500));
        int other = 1 - tw_hpz_node(rank.hpz);
        tw_hpz_job_t job = {};
        job.slice = tw::all_of(rank.hpz, 0);
        for (tw_hpz_sync_t kind : {TW_HPZ_FULL, TW_HPZ_DELTA}) {
            rank.hpz->units[0].sync.kind = kind;
            size_t bytes = tw_hpz_message_bytes(rank.hpz, 0, job.slice, kind, other);
            EXPECT_EQ(tw_hpz_message_apply(rank.hpz, &job, other, message.data(), bytes), TW_OK);
            EXPECT_EQ(tw_hpz_message_apply(rank.hpz, &job, other, message.data(), bytes - 1), TW_ERR_FORMAT);
            EXPECT_EQ(tw_hpz_message_apply(rank.hpz, &job, other, message.data(), 0), TW_ERR_FORMAT);
        }
        rank.hpz->units[0].sync.kind = TW_HPZ_EXACT;
        EXPECT_LT(tw_hpz_message_apply(rank.hpz, &job, other, message.data(), message.size()), 0);
    });
}

} // namespace
