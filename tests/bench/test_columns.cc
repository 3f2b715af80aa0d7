/* Rows as tables of columns: what is printed, written, and read back. */
#include <cmath>
#include <cstdio>
#include <cstring>

#include <gtest/gtest.h>
#include <jansson.h>

extern "C" {
#include "bench/columns.h"
}

namespace
{

struct Row {
    const char *name;
    char text[8];
    int count, is_ok, maybe;
    int64_t big;
    size_t bytes;
    uint64_t sent;
    double share, error;
    json_t *list;
};

const bench_column_t columns[] = {
    {"name", "name", "%-6s", BENCH_STRING, offsetof(Row, name), 0},
    {"text", "text", "%5s", BENCH_TEXT, offsetof(Row, text), 0},
    {"count", "count", "%6lld", BENCH_INT, offsetof(Row, count), 0},
    {"big", nullptr, nullptr, BENCH_INT64, offsetof(Row, big), 0},
    {"bytes", "bytes", "%6lld", BENCH_INT64, offsetof(Row, bytes), 0},
    {"sent", nullptr, nullptr, BENCH_INT64, offsetof(Row, sent), 0},
    {"share", "share, %", "%8.1f", BENCH_DOUBLE, offsetof(Row, share), 100},
    {nullptr, "error", "%9.2e", BENCH_DOUBLE, offsetof(Row, error), 0},
    {"ok", "ok", "%3s", BENCH_BOOL, offsetof(Row, is_ok), 0},
    {"same", "same", "%4s", BENCH_MAYBE, offsetof(Row, maybe), 0},
};
const size_t n_columns = sizeof(columns) / sizeof(columns[0]);
const bench_table_t table = {columns, n_columns, 1};

const Row row = {"one", "ab", -3, 1, -1, INT64_C(1) << 40, 42, 7, 0.125, NAN, nullptr};

TEST(Columns, HeadAndRowStandUnderEachOther)
{
    testing::internal::CaptureStdout();
    bench_table_head(&table);
    bench_table_row(&table, &row, " why");
    EXPECT_EQ("# name    text  count  bytes share, %     error  ok same\n"
              "  one       ab     -3     42     12.5         - yes    - why\n",
              testing::internal::GetCapturedStdout());
}

/* The row as a line of JSON, without its end. */
std::string written(const bench_table_t &what, const Row &with = row)
{
    char line[512] = "";
    FILE *file = tmpfile();
    EXPECT_EQ(TW_OK, bench_table_write(&what, &with, file));
    rewind(file);
    EXPECT_NE(nullptr, fgets(line, sizeof(line), file));
    fclose(file);
    return std::string(line, strcspn(line, "\n"));
}

TEST(Columns, AreWrittenUnscaledAndInOrder)
{
    EXPECT_EQ(R"({"name":"one","text":"ab","count":-3,"big":1099511627776,"bytes":42,"sent":7,)"
              R"("share":0.125,"ok":true,"same":null})",
              written(table));
    EXPECT_EQ(TW_OK, bench_table_write(&table, &row, nullptr)) << "no file, nothing to write";
}

TEST(Columns, ListsStandInJsonAlone)
{
    const bench_column_t listed[] = {
        {"name", "name", "%-6s", BENCH_STRING, offsetof(Row, name), 0},
        {"list", nullptr, nullptr, BENCH_JSON, offsetof(Row, list), 0},
    };
    const bench_table_t what = {listed, 2, 0};
    Row with = row;
    with.list = json_pack("[i[i]]", 1, 2);
    EXPECT_EQ(R"({"name":"one","list":[1,[2]]})", written(what, with));
    EXPECT_EQ(R"({"name":"one","list":[1,[2]]})", written(what, with)) << "the row keeps its list";
    json_decref(with.list);
    testing::internal::CaptureStdout();
    bench_table_row(&what, &row, nullptr);
    EXPECT_EQ("one   \n", testing::internal::GetCapturedStdout());
}

} // namespace
