#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "quant/delta/value.h"
#include "tests/quant/delta/delta_data.h"

namespace
{

using tw::Change;

tw_delta_stats_t choose(Change change, size_t n, bool second)
{
    const auto steps = tw::make_steps(change, n, 2);
    auto sample = std::make_unique<tw_delta_sample_t>();
    sample->n = n;
    for (size_t i = 0; i < n; i++) {
        sample->old_values[i] = steps[1][i];
        sample->new_values[i] = steps[2][i];
        sample->states[i] = second ? tw_delta_state(tw_delta_change(steps[0][i], steps[1][i])) : 0;
    }
    tw_delta_stats_t stats;
    tw_delta_stats_choose(sample.get(), second, &stats);
    return stats;
}

TEST(DeltaModel, FrequenciesFillEveryTableAndLeaveAnEscape)
{
    for (Change change : tw::all_changes) {
        for (size_t n : {size_t(1), size_t(33), size_t(TW_DELTA_SAMPLE_MAX)}) {
            const tw_delta_stats_t stats = choose(change, n, true);
            for (const auto &freq : stats.freq) {
                int sum = 0;
                for (uint16_t f : freq) {
                    sum += f;
                }
                ASSERT_EQ(sum, TW_ENTROPY_FREQ_SUM) << name_of(change) << " " << n;
                ASSERT_GE(freq[TW_ENTROPY_ESCAPE], 1);
            }
        }
    }
}

TEST(DeltaModel, TheWindowIsWhereTheWeightsAre)
{
    const tw_delta_stats_t stats = choose(Change::adam, 4096, false);
    const int of_sigma = 121; /* the exponent of 0.02 */
    EXPECT_LE(stats.base, of_sigma - 8);
    EXPECT_GE(stats.base + TW_DELTA_EXPONENTS, of_sigma + 3);
}

TEST(DeltaModel, SteadyChangesArePredictedRandomOnesNot)
{
    const tw_delta_stats_t steady = choose(Change::adam, TW_DELTA_SAMPLE_MAX, true);
    const int row = 116 - steady.base; /* changes of ten units or so */
    EXPECT_GT(steady.factor[row], 64);
    const tw_delta_stats_t none = choose(Change::none, 4096, true);
    for (uint8_t factor : none.factor) {
        EXPECT_EQ(factor, 0);
    }
}

TEST(DeltaModel, LargerMeansGetLaterTables)
{
    const tw_delta_stats_t stats = choose(Change::adam, TW_DELTA_SAMPLE_MAX, false);
    const int small = 113 - stats.base, large = 122 - stats.base;
    EXPECT_GT(stats.table[small * TW_DELTA_SIZES], stats.table[large * TW_DELTA_SIZES] + 4);
}

TEST(DeltaModel, WhatIsWrittenIsRead)
{
    for (Change change : tw::all_changes) {
        for (bool second : {false, true}) {
            const tw_delta_stats_t stats = choose(change, 5000, second);
            std::vector<uint8_t> bytes(TW_DELTA_STATS_BYTES_MAX);
            bytes.resize(tw_delta_stats_write(&stats, second, bytes.data()));
            tw_delta_stats_t again;
            ASSERT_EQ(tw_delta_stats_read(&again, second, bytes.data(), bytes.size()), bytes.size());
            EXPECT_EQ(again.base, stats.base);
            EXPECT_EQ(memcmp(again.factor, stats.factor, sizeof(stats.factor)), 0);
            EXPECT_EQ(memcmp(again.freq, stats.freq, sizeof(stats.freq)), 0);
            for (size_t c = 0; c < TW_DELTA_CONTEXTS; c += second ? 1 : TW_DELTA_SIZES) {
                EXPECT_EQ(again.table[c], stats.table[c]) << c;
            }
            for (size_t length = 0; length < bytes.size(); length++) {
                const std::vector<uint8_t> part(bytes.begin(), bytes.begin() + long(length));
                ASSERT_EQ(tw_delta_stats_read(&again, second, part.data(), length), 0u) << length;
            }
        }
    }
}

TEST(DeltaModel, ImpossibleTablesAreRefused)
{
    const size_t head = 1 + TW_DELTA_EXPONENTS / 2;
    std::vector<uint8_t> bytes(head + TW_DELTA_TABLES, 0);
    tw_delta_stats_t stats;
    ASSERT_EQ(tw_delta_stats_read(&stats, 0, bytes.data(), bytes.size()), bytes.size()) << "escapes alone";
    EXPECT_EQ(stats.freq[0][TW_ENTROPY_ESCAPE], TW_ENTROPY_FREQ_SUM);

    auto many = bytes;
    many[head] = TW_ENTROPY_ESCAPE + 1;
    many.resize(200, 1);
    EXPECT_EQ(tw_delta_stats_read(&stats, 0, many.data(), many.size()), 0u) << "too many frequencies";

    auto full = bytes;
    full[head] = 1;
    full.insert(full.begin() + long(head) + 1, {0x80, 0x08}); /* 1024: nothing is left for the escape */
    EXPECT_EQ(tw_delta_stats_read(&stats, 0, full.data(), full.size()), 0u) << "no escape";
    auto halves = full; /* 512 twice */
    halves[head] = 2;
    halves[head + 2] = 0x04;
    halves.insert(halves.begin() + long(head) + 3, {0x80, 0x04});
    EXPECT_EQ(tw_delta_stats_read(&stats, 0, halves.data(), halves.size()), 0u) << "no escape";
    full[head + 1] = 0xff;
    full[head + 2] = 0x07; /* 1023 */
    EXPECT_EQ(tw_delta_stats_read(&stats, 0, full.data(), full.size()), full.size());
}

/* Slot by slot: what the decoder's table says is what the encoder's entry promised. */
TEST(DeltaModel, BothTablesSayTheSame)
{
    const tw_delta_stats_t stats = choose(Change::adam, 20000, true);
    auto model = std::make_unique<tw_delta_model_t>();
    tw_delta_model_encoder(&stats, model.get());
    tw_delta_model_decoder(&stats, model.get());
    for (uint32_t table = 0; table < TW_DELTA_TABLES; table++) {
        for (uint32_t slot = 0; slot < TW_ENTROPY_FREQ_SUM; slot++) {
            const uint32_t entry = model->decode[table * TW_ENTROPY_FREQ_SUM + slot];
            const uint32_t symbol = entry >> 21, freq = entry & 0x7ff, in_symbol = entry >> 11 & 0x3ff;
            const uint64_t encode = model->encode[table * TW_ENTROPY_SYMBOLS + symbol];
            ASSERT_EQ(encode & 0x7ff, freq);
            ASSERT_EQ((encode >> 11 & 0x3ff) + in_symbol, slot);
            ASSERT_EQ(encode >> 31 & 1, symbol == TW_ENTROPY_ESCAPE);
            ASSERT_EQ(encode >> 32, 0xffffffffu / freq);
        }
        for (uint32_t symbol = 0; symbol < TW_ENTROPY_ESCAPE; symbol++) {
            if (!stats.freq[table][symbol]) {
                const uint64_t *row = &model->encode[table * TW_ENTROPY_SYMBOLS];
                ASSERT_EQ(row[symbol], row[TW_ENTROPY_ESCAPE]) << "a symbol without slots is escaped";
            }
        }
    }
}

} // namespace
