/* Blocks that lag: found, counted, and on request sent plain. */
#include <mutex>

#include "tests/hpz/replicas.h"

namespace
{

using HpzLag = tw::Fixture;

tw_hpz_params_t params(int plain)
{
    tw_hpz_params_t params = tw::params_with("int4:block=32");
    params.lag_bound = 0.5;
    params.lag_plain = plain;
    return params;
}

/* Every weight of the first block of a rank's piece moves by `small`, the first one by `large`; the others
 * stand still. */
void move(tw::Rank &rank, float large, float small)
{
    rank.for_own([&](size_t t, size_t e, float *master) {
        *master += t == 0 && e % 256 < 32 ? (e % 256 == 0 ? large : small) : 0;
    });
}

/* From zeros, so that bf16 does not hide what is missing. */
void begin(tw::Rank &rank)
{
    rank.for_own([](size_t, size_t, float *master) { *master = 0; });
    ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
    move(rank, 1, 1.0F / 1024); /* of the small moves, the large one's scale leaves nothing */
    ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 2), TW_OK);
}

TEST_F(HpzLag, BlocksBehindAreCounted)
{
    tw::on_ranks({1, 1}, {{512, 0, 0, 0, 0}}, params(0), [](tw::Rank &rank, int) {
        tw_hpz_counters_t counters;
        begin(rank);
        tw_hpz_counters_get(rank.hpz, &counters);
        EXPECT_EQ(counters.lag_blocks, 0U) << "what is missing is little beside the update";
        EXPECT_GT(counters.lag_max, 0);
        EXPECT_LT(counters.lag_max, 0.1);
        move(rank, 1.0F / 1048576, 1.0F / 1048576);
        ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 3), TW_OK);
        tw_hpz_counters_get(rank.hpz, &counters);
        EXPECT_EQ(counters.lag_blocks, 1U) << "hardly anything moved: what is still missing is late";
        EXPECT_GT(counters.lag_max, 0.5);
    });
}

/* A NaN makes NaN of its whole block; the next delta cannot mend that, late blocks do. */
TEST_F(HpzLag, BlocksThatBecameNaNAreLate)
{
    tw::on_ranks({1, 1}, {{512, 0, 0, 0, 0}}, params(1), [](tw::Rank &rank, int) {
        tw_hpz_counters_t counters;
        rank.for_own([](size_t, size_t, float *master) { *master = 0; });
        ASSERT_EQ(rank.sync(TW_HPZ_FULL, 1), TW_OK);
        move(rank, NAN, 1);
        ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 2), TW_OK);
        tw_hpz_counters_get(rank.hpz, &counters);
        EXPECT_EQ(counters.lag_blocks, 1U);
        EXPECT_EQ(counters.lag_max, INFINITY);
        ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 3), TW_OK);
        tw_hpz_counters_get(rank.hpz, &counters);
        EXPECT_EQ(counters.lag_blocks, 1U) << "nothing is left to mend";
        EXPECT_EQ(counters.lag_max, 0);
    });
}

TEST_F(HpzLag, LateBlocksAreSentPlain)
{
    std::vector<uint64_t> hashes(4);
    tw::on_ranks({2, 2}, {{1024, 0, 0, 0, 0}, {7, 0, 1, 0, 0}}, params(1), [&](tw::Rank &rank, int r) {
        tw_hpz_counters_t counters;
        begin(rank);
        move(rank, 1.0F / 1048576, 1.0F / 1048576);
        ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 3), TW_OK);
        EXPECT_EQ(rank.hpz->units[0].lag.n_late, 1U);
        move(rank, 0.25F, 1.0F / 512);
        ASSERT_EQ(rank.sync(TW_HPZ_QUANTIZED, 4), TW_OK);
        EXPECT_EQ(rank.hpz->units[0].lag.n_late, 0U);
        tw_hpz_piece_t piece =
            tw_hpz_primary_piece(rank.layout(), 0, tw_hpz_node(rank.hpz), tw_hpz_local(rank.hpz));
        size_t at = tw_hpz_replica_offset(rank.hpz, 0, piece);
        for (size_t i = 0; i < 32; i++) {
            EXPECT_EQ(tw::replica_of(rank.hpz, 0)[at + i], tw::narrow(rank.masters[0][i])) << i;
        }
        EXPECT_EQ(tw_hpz_check(rank.hpz, 4), TW_OK);
        hashes[(size_t)r] = rank.gathered_hash(4);
        tw_hpz_counters_get(rank.hpz, &counters);
        EXPECT_EQ(counters.inter_node_bytes, counters.planned_inter_node_bytes);
    });
    EXPECT_EQ(hashes, std::vector<uint64_t>(4, hashes[0]));
}

/* What no rank writes is refused, whatever it says. */
TEST_F(HpzLag, HostileLateBlocksAreRefused)
{
    expect_log("none of its pieces'");
    tw::on_ranks({1, 1}, {{40, 0, 0, 0, 0}, {7, 0, 1, 0, 0}}, params(1), [](tw::Rank &rank, int) {
        uint8_t bytes[8 + 64] = {0};
        auto apply = [&](uint32_t tensor, uint32_t block, size_t n) {
            memcpy(bytes, &tensor, 4);
            memcpy(bytes + 4, &block, 4);
            return tw_hpz_late_apply(rank.hpz, 0, 0, bytes, n);
        };
        EXPECT_EQ(apply(0, 0, 8 + 40), TW_OK); /* pieces of 20 */
        EXPECT_EQ(apply(0, 0, 0), TW_OK);
        EXPECT_EQ(apply(0, 0, 8 + 39), TW_ERR_FORMAT);
        EXPECT_EQ(apply(0, 0, 7), TW_ERR_FORMAT);
        EXPECT_EQ(apply(0, 0, 8 + 41), TW_ERR_FORMAT);
        EXPECT_EQ(apply(0, 1, 8 + 40), TW_ERR_FORMAT);
        EXPECT_EQ(apply(0, 0xffffffffU, 8 + 64), TW_ERR_FORMAT);
        EXPECT_EQ(apply(1, 0, 8 + 64), TW_ERR_FORMAT);
        EXPECT_EQ(apply(2, 0, 8 + 64), TW_ERR_FORMAT);
        EXPECT_EQ(apply(0xffffffffU, 0, 8 + 64), TW_ERR_FORMAT);
        /* Each would pass whole if it were not for the one thing that is wrong with it. */
        EXPECT_EQ(apply(0, 1, 8 + 64), TW_ERR_FORMAT) << "the block behind the last one";
        EXPECT_EQ(apply(1, 0, 8 + 2 * tw_hpz_primary_piece(rank.layout(), 1, 0, 0).n_elems), TW_ERR_FORMAT)
            << "of an unquantized tensor";
        /* A block that is cut off is not taken in part. */
        const size_t at = tw_hpz_replica_offset(rank.hpz, 0, tw_hpz_primary_piece(rank.layout(), 0, 0, 0));
        const uint16_t *replica = tw::replica_of(rank.hpz, 0) + at;
        const std::vector<uint16_t> before(replica, replica + 20);
        memset(bytes + 8, 0x3f, 64);
        for (size_t n = 8; n < 8 + 40; n++) {
            EXPECT_EQ(apply(0, 0, n), TW_ERR_FORMAT) << n;
        }
        EXPECT_EQ(std::vector<uint16_t>(replica, replica + 20), before);
    });
}

} // namespace
