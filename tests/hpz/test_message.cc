/* Messages of a sync: their lengths, and what is refused. */
#include "tests/hpz/replicas.h"

namespace
{

using HpzMessage = tw::Fixture;

TEST_F(HpzMessage, LengthsAreThoseOfTheirPieces)
{
    tw_quant_codec_t codec = tw::codec_of("int4");
    tw::on_ranks({1, 1}, {{1000, 0, 0, 0, 0}, {1000, 0, 1, 0, 0}}, tw::params_with("int4"),
                 [&](tw::Rank &rank, int) {
                     tw_hpz_slice_t all = tw::all_of(rank.hpz, 0), some = {0, 96}, rest = {96, 1000};
                     EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, all, TW_HPZ_FULL, 0), 2000U);
                     EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, all, TW_HPZ_QUANTIZED, 0),
                               tw_quant_encoded_bytes(&codec, 500) + 1000);
                     EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, all, TW_HPZ_LOSSLESS, 0),
                               tw_quant_delta_bound_bytes(1000));
                     EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, some, TW_HPZ_FULL, 0), 192U);
                     EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, some, TW_HPZ_QUANTIZED, 0),
                               tw_quant_encoded_bytes(&codec, 96));
                     EXPECT_EQ(tw_hpz_message_bytes(rank.hpz, 0, rest, TW_HPZ_QUANTIZED, 0),
                               tw_quant_encoded_bytes(&codec, 404) + 1000);
                     EXPECT_FALSE(tw_hpz_message_varies(rank.hpz, TW_HPZ_FULL));
                     EXPECT_FALSE(tw_hpz_message_varies(rank.hpz, TW_HPZ_QUANTIZED));
                     EXPECT_TRUE(tw_hpz_message_varies(rank.hpz, TW_HPZ_LOSSLESS));
                 });
}

/* A step's rounding is that of its version: whoever knows seed and step can make the message again. */
TEST_F(HpzMessage, TheVersionIsTheStepOfTheRounding)
{
    tw_hpz_params_t params = tw::params_with("int4:block=32,stochastic");
    params.seed = 77;
    tw::on_ranks({1, 1}, {{1000, 0, 0, 0, 0}}, params, [&](tw::Rank &rank, int) {
        const size_t n = tw_hpz_primary_elems(rank.layout(), 0, tw_hpz_node(rank.hpz), 0);
        std::vector<float> master(n);
        std::vector<uint16_t> fresh(n), zeros(n);
        for (size_t i = 0; i < n; i++) {
            master[i] = 0.01F * (float)(i % 37) - 0.1F;
        }
        for (uint64_t version : {5, 6}) {
            std::vector<uint8_t> message(tw_quant_encoded_bytes(&params.delta, n)), expected(message.size());
            tw_hpz_transfer_t transfer = {};
            transfer.slice = tw::all_of(rank.hpz, 0);
            transfer.n_own = n;
            transfer.fresh = fresh.data();
            transfer.message = message.data();
            rank.hpz->units[0].sync.kind = TW_HPZ_QUANTIZED;
            rank.hpz->units[0].sync.version = version;
            rank.hpz->units[0].sync.master = master.data();
            size_t bytes = 0;
            ASSERT_EQ(tw_hpz_message_encode(rank.hpz, &transfer, &bytes), TW_OK);
            ASSERT_EQ(bytes, message.size());
            const tw_hpz_piece_t piece = tw_hpz_primary_piece(rank.layout(), 0, tw_hpz_node(rank.hpz), 0);
            tw_quant_args_t args = {};
            args.type = TW_TYPE_BF16;
            args.seed = 77;
            args.step = (uint32_t)version;
            args.factor = 1;
            const tw_quant_segment_t segment = {master.data(), zeros.data(), expected.data(), n, 0,
                                                piece.first};
            ASSERT_EQ(tw_quant_encode_delta(rank.hpz->quant, &args, &segment, 1), TW_OK);
            EXPECT_EQ(message, expected) << version;
        }
    });
}

TEST_F(HpzMessage, ShortOnesAreRefused)
{
    expect_log("fewer than its pieces take");
    expect_log("delta_decode");
    tw::on_ranks({1, 1}, {{1000, 0, 0, 0, 0}}, tw::params_with("int4"), [](tw::Rank &rank, int) {
        std::vector<uint8_t> message(tw_quant_delta_bound_bytes(500));
        int other = 1 - tw_hpz_node(rank.hpz);
        tw_hpz_transfer_t transfer = {};
        transfer.slice = tw::all_of(rank.hpz, 0);
        for (tw_hpz_sync_t kind : {TW_HPZ_FULL, TW_HPZ_QUANTIZED}) {
            rank.hpz->units[0].sync.kind = kind;
            size_t bytes = tw_hpz_message_bytes(rank.hpz, 0, transfer.slice, kind, other);
            EXPECT_EQ(tw_hpz_message_apply(rank.hpz, &transfer, other, message.data(), bytes), TW_OK);
            EXPECT_EQ(tw_hpz_message_apply(rank.hpz, &transfer, other, message.data(), bytes - 1),
                      TW_ERR_FORMAT);
            EXPECT_EQ(tw_hpz_message_apply(rank.hpz, &transfer, other, message.data(), 0), TW_ERR_FORMAT);
        }
        rank.hpz->units[0].sync.kind = TW_HPZ_LOSSLESS;
        EXPECT_LT(tw_hpz_message_apply(rank.hpz, &transfer, other, message.data(), message.size()), 0);
    });
}

/* Codes of fp8 follow the rest, whose length stands before it. */
TEST_F(HpzMessage, ShortOnesOfFp8AreRefused)
{
    const int8_t exponents[] = {-12, TW_HPZ_BF16};
    allow_log("bytes of changes");
    allow_log("delta_decode");
    allow_log("delta8_decode");
    tw::on_ranks(
        {1, 1}, {{3000, 0, 0, 0, 0}, {500, 0, 0, 0, 0}}, tw::params_with(""), [&](tw::Rank &rank, int) {
            ASSERT_EQ(tw_hpz_exponents_set(rank.hpz, exponents), TW_OK);
            ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
            const size_t n = tw_hpz_primary_elems(rank.layout(), 0, tw_hpz_node(rank.hpz), 0);
            tw_hpz_transfer_t transfer = {};
            transfer.slice = tw::all_of(rank.hpz, 0);
            transfer.n_own = n;
            std::vector<uint16_t> fresh(n);
            std::vector<uint8_t> message(
                tw_hpz_message_bytes(rank.hpz, 0, transfer.slice, TW_HPZ_LOSSLESS, tw_hpz_node(rank.hpz)));
            EXPECT_EQ(message.size(),
                      4 + tw_quant_delta_bound_bytes(250) + tw_quant_delta8_bound_bytes(1500));
            transfer.fresh = fresh.data();
            transfer.message = message.data();
            rank.update(1);
            rank.hpz->units[0].sync.kind = TW_HPZ_LOSSLESS;
            rank.hpz->units[0].sync.master = rank.masters[0].data();
            size_t bytes = 0;
            ASSERT_EQ(tw_hpz_message_encode(rank.hpz, &transfer, &bytes), TW_OK);
            std::vector<uint8_t> cut(message.begin(), message.begin() + (ptrdiff_t)bytes);
            int other = 1 - tw_hpz_node(rank.hpz);
            for (size_t length = 0; length < bytes; length += length < 8 ? 1 : 97) {
                std::vector<uint8_t> some(cut.begin(), cut.begin() + (ptrdiff_t)length);
                EXPECT_LT(tw_hpz_message_apply(rank.hpz, &transfer, other, some.data(), length), 0) << length;
            }
            memset(cut.data(), 0xff, 4); /* more than there is */
            EXPECT_LT(tw_hpz_message_apply(rank.hpz, &transfer, other, cut.data(), bytes), 0);
        });
}

TEST_F(HpzMessage, Fp8WithRoundedChangesIsRefused)
{
    expect_log("replicas of fp8 are in host memory, and follow lossless deltas");
    const int8_t exponents[] = {-12};
    tw::on_ranks({1, 1}, {{100, 0, 0, 0, 0}}, tw::params_with("int4"), [&](tw::Rank &rank, int) {
        EXPECT_EQ(tw_hpz_exponents_set(rank.hpz, exponents), TW_ERR_UNSUPPORTED);
    });
}

} // namespace
