#include <clocale>
#include <cstdlib>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "core/core.h"
#include "core/parse.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t K = 1024, M = K * K, G = K * M, T = K * G;

/* What no number looks like, for any of the parsers. */
const char *const never[] = {
    "",    " ",     " 1",  "1 ",   "\t1",   "1\n",   "-1",     "+1",         "--1",   ".",     "e5",  "1e",
    "1e+", "1.2.3", "1,5", "0x10", "0x1p3", "inf",   "nan",    "infinity",   "one",   "1KK",   "1sK", "K",
    "s",   "gbit",  "1 K", "1 s",  "1K ",   "1e999", "1e999s", "1\xc2\xb5s", "1_000", "1'000",
};

template <typename T>
struct Case {
    const char *text;
    T value;
};

} // namespace

TEST(Parse, Counts)
{
    const Case<double> cases[] = {{"0", 0},        {"1000", 1000},   {"500K", 500e3}, {"1m", 1e6},
                                  {"7.5G", 7.5e9}, {"124e6", 124e6}, {"1.5k", 1500}};
    for (const auto &c : cases) {
        double value = -1;
        EXPECT_EQ(tw_parse_count(c.text, &value), TW_OK) << c.text;
        EXPECT_EQ(value, c.value) << c.text;
    }
    for (const char *text : never) {
        double value = 5;
        EXPECT_EQ(tw_parse_count(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 5) << text;
    }
    EXPECT_EQ(tw_parse_count("1KB", nullptr), TW_ERR_INVALID);
}

TEST(Parse, Bytes)
{
    const Case<size_t> cases[] = {
        {"0", 0},
        {"1", 1},
        {"007", 7},
        {"65536", 65536},
        {"64K", 64 * K},
        {"64k", 64 * K},
        {"64KB", 64 * K},
        {"64KiB", 64 * K},
        {"64kib", 64 * K},
        {"1M", M},
        {"3MB", 3 * M},
        {"2G", 2 * G},
        {"2GiB", 2 * G},
        {"1T", T},
        {"1.5M", M + M / 2},
        {".5K", 512},
        {"1.K", K},
        {"0.1K", 102},
        {"1e3K", 1000 * K},
        {"0K", 0},
        {"9007199254740993", 9007199254740993u},         /* 2^53 + 1: no double */
        {"18446744073709551615", 18446744073709551615u}, /* 2^64 - 1 */
        {"16777215T", 16777215 * T},
    };
    for (const auto &expected : cases) {
        size_t value = 42;
        EXPECT_EQ(tw_parse_bytes(expected.text, &value), TW_OK) << expected.text;
        EXPECT_EQ(value, expected.value) << expected.text;
    }
}

TEST(Parse, BytesRefused)
{
    for (const char *text : {"1.5", "0.5", "1e3", "1B", "1P", "1KBB", "1Ki", "18446744073709551616",
                             "16777216T", "99999999999999999999999", "1s", "1gbit", "-0", "none"}) {
        size_t value = 42;
        EXPECT_EQ(tw_parse_bytes(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 42u) << text;
    }
}

TEST(Parse, Time)
{
    const Case<double> cases[] = {
        {"0", 0},        {"10", 10},         {"10s", 10},       {"10S", 10},       {"250ms", 0.25},
        {"50us", 50e-6}, {"1.5s", 1.5},      {".5", 0.5},       {"100ns", 100e-9}, {"1e-3s", 1e-3},
        {"1E1", 10},     {"0.000001", 1e-6}, {"86400s", 86400},
    };
    for (const auto &expected : cases) {
        double value = 42;
        EXPECT_EQ(tw_parse_time(expected.text, &value), TW_OK) << expected.text;
        /* One rounding in the decimal, one in the unit, one in their product. */
        EXPECT_NEAR(value, expected.value, 4 * expected.value * std::numeric_limits<double>::epsilon())
            << expected.text;
    }
}

TEST(Parse, TimeRefused)
{
    for (const char *text : {"10sec", "1m", "1min", "10K", "1ps", "1e308e1", "none", "auto", "-1s"}) {
        double value = 42;
        EXPECT_EQ(tw_parse_time(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 42) << text;
    }
}

TEST(Parse, Rate)
{
    const Case<double> cases[] = {
        {"1gbit", 1e9}, {"1Gbit", 1e9},   {"1GBIT", 1e9},     {"100mbit", 1e8}, {"64kbit", 64e3},
        {"8bit", 8},    {"1000000", 1e6}, {"1e9", 1e9},       {"none", 0},      {"NONE", 0},
        {"auto", 0},    {"0", 0},         {"2.5gbit", 2.5e9}, {"1tbit", 1e12},  {"0.1gbit", 1e8},
    };
    for (const auto &expected : cases) {
        double value = 42;
        EXPECT_EQ(tw_parse_rate(expected.text, &value), TW_OK) << expected.text;
        EXPECT_NEAR(value, expected.value, 4 * expected.value * std::numeric_limits<double>::epsilon())
            << expected.text;
    }
}

TEST(Parse, RateRefused)
{
    /* gbps is bytes to tc and bits to everybody else. */
    for (const char *text :
         {"1gbps", "1g", "1gb", "1gib", "nones", "automatic", "1s", "1gbit/s", "-1gbit", "1e308tbit"}) {
        double value = 42;
        EXPECT_EQ(tw_parse_rate(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 42) << text;
    }
}

TEST(Parse, NothingLikeANumber)
{
    for (const char *text : never) {
        size_t bytes;
        double real;
        EXPECT_EQ(tw_parse_bytes(text, &bytes), TW_ERR_INVALID) << text;
        EXPECT_EQ(tw_parse_time(text, &real), TW_ERR_INVALID) << text;
        EXPECT_EQ(tw_parse_rate(text, &real), TW_ERR_INVALID) << text;
    }
    size_t bytes;
    double real;
    int64_t number;
    int flag;
    EXPECT_EQ(tw_parse_bytes(nullptr, &bytes), TW_ERR_INVALID);
    EXPECT_EQ(tw_parse_time(nullptr, &real), TW_ERR_INVALID);
    EXPECT_EQ(tw_parse_rate(nullptr, &real), TW_ERR_INVALID);
    EXPECT_EQ(tw_parse_double(nullptr, &real), TW_ERR_INVALID);
    EXPECT_EQ(tw_parse_int(nullptr, &number), TW_ERR_INVALID);
    EXPECT_EQ(tw_parse_bool(nullptr, &flag), TW_ERR_INVALID);
}

/* A job may run under a locale that writes 1,5. Made here, where the system has the sources of locales. */
TEST(Parse, DoesNotDependOnTheLocale)
{
    std::string folder = ::testing::TempDir();
    std::string command = "localedef -i de_DE -f UTF-8 '" + folder + "/de_DE.UTF-8' >/dev/null 2>&1";
    (void)!system(command.c_str());
    tw::ScopedEnv path("LOCPATH", folder);
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == nullptr) {
        GTEST_SKIP() << "localedef makes no German locale (Debian: locales)";
    }
    ASSERT_STREQ(localeconv()->decimal_point, ",");
    double value = 0, unused;
    tw_status_t point = tw_parse_time("1.5s", &value), comma = tw_parse_time("1,5s", &unused);
    size_t bytes = 0;
    tw_status_t size = tw_parse_bytes("1.5K", &bytes);
    setlocale(LC_NUMERIC, "C");
    EXPECT_EQ(point, TW_OK);
    EXPECT_EQ(value, 1.5);
    EXPECT_EQ(comma, TW_ERR_INVALID);
    EXPECT_EQ(size, TW_OK);
    EXPECT_EQ(bytes, 1536u);
}

TEST(Parse, Int)
{
    const Case<int64_t> cases[] = {
        {"0", 0},
        {"-0", 0},
        {"+5", 5},
        {"-17", -17},
        {"010", 10},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
    };
    for (const auto &expected : cases) {
        int64_t value = 42;
        EXPECT_EQ(tw_parse_int(expected.text, &value), TW_OK) << expected.text;
        EXPECT_EQ(value, expected.value) << expected.text;
    }
    for (const char *text : {"", "-", "+", "1.0", "1e3", "0x10", " 1", "1 ", "- 1", "--1",
                             "9223372036854775808", "-9223372036854775809", "1K", "one"}) {
        int64_t value = 42;
        EXPECT_EQ(tw_parse_int(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 42) << text;
    }
}

TEST(Parse, Double)
{
    const Case<double> cases[] = {
        {"0", 0}, {"-1.5", -1.5}, {"1e-3", 1e-3}, {".25", .25}, {"5.", 5}, {"-.5E2", -50}, {"1e308", 1e308},
    };
    for (const auto &expected : cases) {
        double value = 42;
        EXPECT_EQ(tw_parse_double(expected.text, &value), TW_OK) << expected.text;
        EXPECT_EQ(value, expected.value) << expected.text;
    }
    for (const char *text :
         {"", "-", "--1", "+-1", "1x", "nan", "-inf", "0x1p3", " 1", "1 ", "-1e999", "1,5"}) {
        double value = 42;
        EXPECT_EQ(tw_parse_double(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 42) << text;
    }
}

TEST(Parse, Bool)
{
    const Case<int> cases[] = {
        {"y", 1}, {"yes", 1}, {"on", 1},  {"true", 1},  {"1", 1}, {"YES", 1},   {"On", 1},
        {"n", 0}, {"no", 0},  {"off", 0}, {"false", 0}, {"0", 0}, {"False", 0},
    };
    for (const auto &expected : cases) {
        int value = 42;
        EXPECT_EQ(tw_parse_bool(expected.text, &value), TW_OK) << expected.text;
        EXPECT_EQ(value, expected.value) << expected.text;
    }
    for (const char *text : {"", "2", "ye", "yess", "t", "nope", "-1", "01"}) {
        int value = 42;
        EXPECT_EQ(tw_parse_bool(text, &value), TW_ERR_INVALID) << text;
        EXPECT_EQ(value, 42) << text;
    }
}

TEST(Parse, Choice)
{
    const char *const choices[] = {"auto", "ring", "ring2", nullptr};
    int index = 42;
    EXPECT_EQ(tw_parse_choice("ring", choices, &index), TW_OK);
    EXPECT_EQ(index, 1);
    EXPECT_EQ(tw_parse_choice("RING2", choices, &index), TW_OK);
    EXPECT_EQ(index, 2);
    for (const char *text : {"", "rin", "ring22", "1"}) {
        EXPECT_EQ(tw_parse_choice(text, choices, &index), TW_ERR_INVALID) << text;
    }
    EXPECT_EQ(index, 2);
}

/* Words that have changed are still taken. */
TEST(Parse, WhatPlainWasCalledBefore)
{
    const char *const choices[] = {"int8", "plain", nullptr};
    int index = 42;
    EXPECT_EQ(tw_parse_choice("exact", choices, &index), TW_OK);
    EXPECT_EQ(index, 1);
    EXPECT_TRUE(tw_word_is("Exact", "plain"));
    EXPECT_FALSE(tw_word_is("plain", "exact"));
    EXPECT_FALSE(tw_word_is("exact", "int8"));
    EXPECT_FALSE(tw_word_is("exactly", "plain"));
}

TEST(Parse, FormatBytes)
{
    const struct {
        size_t bytes;
        const char *text;
    } expected[] = {
        {0, "0"},
        {1, "1"},
        {100, "100"},
        {1023, "1023"},
        {K, "1K"},
        {K + 1, "1.00K"},
        {K + K / 2, "1.50K"},
        {64 * K, "64K"},
        {M, "1M"},
        {M + M / 2, "1.50M"},
        {G, "1G"},
        {5 * T, "5T"},
        {5000 * T, "5000T"},
        {SIZE_MAX, "16777216.00T"},
    };
    for (const auto &item : expected) {
        char buf[32];
        EXPECT_STREQ(tw_format_bytes(item.bytes, buf, sizeof(buf)), item.text);
    }
    char tiny[3];
    EXPECT_STREQ(tw_format_bytes(12345, tiny, sizeof(tiny)), "12");
}
