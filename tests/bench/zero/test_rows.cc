/* Rows of the benchmark of feature sets: handed over, found again, compared. */
#include <cmath>
#include <cstring>
#include <fstream>

#include <unistd.h>

#include "tests/common/fixture.h"

extern "C" {
#include "bench/zero/zero.h"
}

namespace
{

zero_row_t row_of(const char *set, int64_t seed)
{
    zero_row_t row = {};
    strcpy(row.set, set);
    strcpy(row.losses, "0123456789abcdef");
    row.seed = seed;
    row.nodes = row.ranks_per_node = 2;
    row.steps = 10;
    row.tokens = 512;
    row.warmup = 100;
    row.params = 1041664;
    row.lr = 6e-4;
    row.step_sec_median = 0.5;
    row.inter_node_bytes_per_step = 6e6;
    row.bytes_ratio = row.speedup = row.val_loss = NAN;
    row.losses_equal = -1;
    row.ok = 1;
    return row;
}

class ZeroRows : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        path = testing::TempDir() + "zero_rows." + std::to_string(getpid());
    }
    void TearDown() override
    {
        zero_rows_cleanup(&rows);
        unlink(path.c_str());
        tw::Fixture::TearDown();
    }
    std::string path;
    zero_rows_t rows = {};
};

TEST_F(ZeroRows, ARunHandsItsRowOver)
{
    zero_row_t row = row_of("delta-g4", 2), back;
    ASSERT_EQ(zero_row_write(path.c_str(), &row), TW_OK);
    ASSERT_EQ(zero_row_read(path.c_str(), &back), TW_OK);
    EXPECT_EQ(memcmp(&row, &back, sizeof(row)), 0);
    std::ofstream(path) << "less than a row";
    expect_log(": the run has left no row");
    EXPECT_EQ(zero_row_read(path.c_str(), &back), TW_ERR_IO);
    unlink(path.c_str());
    EXPECT_EQ(zero_row_read(path.c_str(), &back), TW_ERR_IO);
}

TEST_F(ZeroRows, ARowIsFoundBySetAndSeed)
{
    for (const zero_row_t &row : {row_of("zero3", 1), row_of("zero3", 2), row_of("ddp", 1)}) {
        ASSERT_EQ(zero_rows_append(&rows, &row), TW_OK);
    }
    EXPECT_EQ(zero_rows_find(&rows, "zero3", 2), &rows.rows[1]);
    EXPECT_EQ(zero_rows_find(&rows, "zero3", 3), nullptr);
    EXPECT_EQ(zero_rows_find(&rows, "zeropp", 1), nullptr);
}

TEST_F(ZeroRows, ComparedWithTheBase)
{
    zero_row_t base = row_of("zero3", 1), row = row_of("delta", 1);
    row.inter_node_bytes_per_step = 1.5e6;
    row.step_sec_median = 0.125;
    zero_row_compare(&row, &base);
    EXPECT_EQ(row.bytes_ratio, 0.25);
    EXPECT_EQ(row.speedup, 4);
    EXPECT_EQ(row.losses_equal, 1);
    row.losses[3]++;
    zero_row_compare(&row, &base);
    EXPECT_EQ(row.losses_equal, 0);
}

TEST_F(ZeroRows, OfRoundsTheMiddleOneCounts)
{
    const double sec[] = {0.5, 0.2, 0.3, 0.9, 0.3};
    zero_row_t row = row_of("zero3", 1), middle;
    EXPECT_EQ(zero_rows_middle(&rows, "zero3", 1, &middle), TW_ERR_NOT_FOUND);
    const double expected[] = {0.5, 0.2, 0.3, 0.3, 0.3};
    for (int round = 0; round < 5; round++) {
        row.step_sec_median = sec[round];
        row.wait_share = round;
        ASSERT_EQ(zero_rows_append(&rows, &row), TW_OK);
        zero_row_t other = row_of("zero3", 2);
        other.ok = 0;
        ASSERT_EQ(zero_rows_append(&rows, &other), TW_OK);
        ASSERT_EQ(zero_rows_middle(&rows, "zero3", 1, &middle), TW_OK);
        EXPECT_EQ(middle.step_sec_median, expected[round]) << round;
        EXPECT_TRUE(middle.ok);
    }
    EXPECT_EQ(middle.wait_share, 4) << "all of the row is of that round";
    rows.rows[0].losses[3]++;
    ASSERT_EQ(zero_rows_middle(&rows, "zero3", 1, &middle), TW_OK);
    EXPECT_FALSE(middle.ok) << "a round had other losses";
    rows.rows[0].losses[3]--;
    rows.rows[2].ok = 0;
    ASSERT_EQ(zero_rows_middle(&rows, "zero3", 1, &middle), TW_OK);
    EXPECT_FALSE(middle.ok) << "a round failed";
}

TEST_F(ZeroRows, NoNodeSendsAnything)
{
    zero_row_t base = row_of("zero3", 1), row = row_of("ddp", 1);
    base.inter_node_bytes_per_step = row.inter_node_bytes_per_step = 0;
    zero_row_compare(&row, &base);
    EXPECT_TRUE(std::isnan(row.bytes_ratio));
}

TEST_F(ZeroRows, AllSetsHaveRoom)
{
    EXPECT_EQ(tw_trainer_set_get(ZERO_MAX_SETS), nullptr);
}

} // namespace
