/* Rows of the benchmark of feature sets: written, read, found again, compared. */
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

zero_options_t options_of()
{
    zero_options_t options = {};
    options.n_nodes = options.ranks_per_node = 2;
    options.steps = 10;
    options.tokens = 512;
    options.warmup = 100;
    options.params = 1e6;
    options.lr = 6e-4;
    return options;
}

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
    void write(const std::vector<zero_row_t> &all) const
    {
        FILE *file = fopen(path.c_str(), "w");
        for (const zero_row_t &row : all) {
            EXPECT_EQ(bench_table_write(&zero_table, &row, file), TW_OK);
        }
        fclose(file);
    }
    std::string path;
    zero_rows_t rows = {};
};

TEST_F(ZeroRows, WhatIsWrittenIsRead)
{
    write({row_of("zero3", 1), row_of("delta-g4", 2)});
    ASSERT_EQ(zero_rows_read(path.c_str(), &rows), TW_OK);
    ASSERT_EQ(rows.n_rows, 2U);
    const zero_row_t &row = rows.rows[1];
    EXPECT_STREQ(row.set, "delta-g4");
    EXPECT_STREQ(row.losses, "0123456789abcdef");
    EXPECT_EQ(row.seed, 2);
    EXPECT_EQ(row.step_sec_median, 0.5);
    EXPECT_TRUE(std::isnan(row.val_loss));
    EXPECT_EQ(row.losses_equal, -1);
    EXPECT_EQ(row.ok, 1);
}

TEST_F(ZeroRows, OthersFilesAreRefused)
{
    expect_log(":1: no row of this benchmark: 'set'");
    for (const char *line :
         {"", "x", "{}", "[1]", R"({"set": "a name that is much longer than any set has"})"}) {
        std::ofstream(path) << line << "\n";
        EXPECT_EQ(zero_rows_read(path.c_str(), &rows), TW_ERR_FORMAT) << line;
    }
    EXPECT_EQ(rows.n_rows, 0U);
    unlink(path.c_str());
    EXPECT_EQ(zero_rows_read(path.c_str(), &rows), TW_ERR_NOT_FOUND);
}

TEST_F(ZeroRows, ARowIsFoundByWhatWasAskedFor)
{
    write({row_of("zero3", 1), row_of("zero3", 2), row_of("ddp", 1)});
    ASSERT_EQ(zero_rows_read(path.c_str(), &rows), TW_OK);
    zero_options_t options = options_of();
    EXPECT_EQ(zero_rows_find(&rows, &options, "zero3", 2), &rows.rows[1]);
    EXPECT_EQ(zero_rows_find(&rows, &options, "zero3", 3), nullptr);
    EXPECT_EQ(zero_rows_find(&rows, &options, "zeropp", 1), nullptr);
    options.steps = 11;
    EXPECT_EQ(zero_rows_find(&rows, &options, "zero3", 2), nullptr);
    options = options_of();
    options.params = 3e6;
    EXPECT_EQ(zero_rows_find(&rows, &options, "zero3", 2), nullptr);
    options = options_of();
    options.tokens = 1024;
    EXPECT_EQ(zero_rows_find(&rows, &options, "zero3", 2), nullptr);
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
    const zero_options_t options = options_of();
    zero_row_t row = row_of("zero3", 1), middle;
    EXPECT_EQ(zero_rows_middle(&rows, &options, "zero3", 1, &middle), TW_ERR_NOT_FOUND);
    const double expected[] = {0.5, 0.2, 0.3, 0.3, 0.3};
    for (int round = 0; round < 5; round++) {
        row.step_sec_median = sec[round];
        row.wait_share = round;
        ASSERT_EQ(zero_rows_append(&rows, &row), TW_OK);
        zero_row_t other = row_of("zero3", 2);
        other.ok = 0;
        ASSERT_EQ(zero_rows_append(&rows, &other), TW_OK);
        ASSERT_EQ(zero_rows_middle(&rows, &options, "zero3", 1, &middle), TW_OK);
        EXPECT_EQ(middle.step_sec_median, expected[round]) << round;
        EXPECT_TRUE(middle.ok);
    }
    EXPECT_EQ(middle.wait_share, 4) << "all of the row is of that round";
    rows.rows[0].losses[3]++;
    ASSERT_EQ(zero_rows_middle(&rows, &options, "zero3", 1, &middle), TW_OK);
    EXPECT_FALSE(middle.ok) << "a round had other losses";
    rows.rows[0].losses[3]--;
    rows.rows[2].ok = 0;
    ASSERT_EQ(zero_rows_middle(&rows, &options, "zero3", 1, &middle), TW_OK);
    EXPECT_FALSE(middle.ok) << "a round failed";
}

TEST_F(ZeroRows, NoNodeSendsAnything)
{
    zero_row_t base = row_of("zero3", 1), row = row_of("ddp", 1);
    base.inter_node_bytes_per_step = row.inter_node_bytes_per_step = 0;
    zero_row_compare(&row, &base);
    EXPECT_TRUE(std::isnan(row.bytes_ratio));
}

} // namespace
