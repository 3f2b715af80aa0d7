#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <malloc.h>

#include "core/config_value.h"
#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

struct Options {
    char before; /* what lies around the fields stays as it is */
    int flag;
    int64_t number;
    int64_t any_number;
    double real;
    size_t bytes;
    double time;
    double rate;
    char *text;
    char *secret;
    int choice;
    size_t at_least;
};

const char *const choices[] = {"auto", "ring", "tree", nullptr};

const tw_config_field_t fields[] = {
    {.name = "TW_T_FLAG",
     .dflt = "n",
     .doc = "A flag.",
     .type = TW_CONFIG_BOOL,
     .offset = offsetof(Options, flag)},
    {.name = "TW_T_NUMBER",
     .dflt = "3",
     .unit = "ranks",
     .doc = "A number.",
     .type = TW_CONFIG_INT,
     .offset = offsetof(Options, number),
     .min = -5,
     .max = 100},
    {.name = "TW_T_ANY",
     .dflt = "-1",
     .doc = "Any number.",
     .type = TW_CONFIG_INT,
     .offset = offsetof(Options, any_number)},
    {.name = "TW_T_REAL",
     .dflt = "0.5",
     .doc = "A real.",
     .type = TW_CONFIG_DOUBLE,
     .offset = offsetof(Options, real),
     .min = -1,
     .max = 1},
    {.name = "TW_T_BYTES",
     .dflt = "64K",
     .unit = "bytes",
     .doc = "A size.",
     .type = TW_CONFIG_BYTES,
     .offset = offsetof(Options, bytes),
     .min = 1,
     .max = 1048576},
    {.name = "TW_T_TIME",
     .dflt = "10s",
     .unit = "s",
     .doc = "A time.",
     .type = TW_CONFIG_TIME,
     .offset = offsetof(Options, time),
     .min = 0.001,
     .max = 3600},
    {.name = "TW_T_RATE",
     .dflt = "auto",
     .unit = "bit/s",
     .doc = "A rate.",
     .type = TW_CONFIG_RATE,
     .offset = offsetof(Options, rate),
     .min = 0,
     .max = 1e11},
    {.name = "TW_T_TEXT",
     .dflt = "eth0",
     .doc = "A text.",
     .type = TW_CONFIG_STRING,
     .offset = offsetof(Options, text)},
    {.name = "TW_T_SECRET",
     .dflt = "",
     .doc = "A secret.",
     .type = TW_CONFIG_SECRET,
     .offset = offsetof(Options, secret)},
    {.name = "TW_T_CHOICE",
     .dflt = "auto",
     .doc = "A choice.",
     .type = TW_CONFIG_ENUM,
     .offset = offsetof(Options, choice),
     .choices = choices},
    {.name = "TW_T_AT_LEAST",
     .dflt = "2",
     .doc = "No upper end.",
     .type = TW_CONFIG_BYTES,
     .offset = offsetof(Options, at_least),
     .min = 2,
     .max = INFINITY},
};
const tw_config_table_t table = {
    .module = "test", .fields = fields, .n_fields = std::size(fields), .options_bytes = sizeof(Options)};

class Config : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        for (const tw_config_field_t &field : fields) {
            set_env(field.name, std::nullopt);
        }
    }
    void TearDown() override
    {
        cleanup();
        Fixture::TearDown();
    }
    tw_status_t init()
    {
        cleanup();
        tw_status_t status = tw_config_init(&table, &options);
        live = status == TW_OK;
        return status;
    }
    void cleanup()
    {
        if (live) {
            tw_config_cleanup(&table, &options);
        }
        live = false;
    }
    /* The same value by environment and by call; both are taken. */
    void take(const char *name, const char *value)
    {
        ASSERT_EQ(init(), TW_OK);
        EXPECT_EQ(tw_config_set(&table, &options, name, value), TW_OK) << name << "=" << value;
        Options by_call = options;
        tw::ScopedEnv env(name, value);
        by_call.text = by_call.secret = nullptr;
        ASSERT_EQ(init(), TW_OK) << name << "=" << value;
        Options by_environment = options;
        by_environment.text = by_environment.secret = nullptr;
        EXPECT_EQ(memcmp(&by_call, &by_environment, sizeof(Options)), 0) << name << "=" << value;
    }
    /* Both refuse it, and say "NAME=VALUE: expected ALLOWED". */
    void refuse(const char *name, const char *value, const std::string &allowed)
    {
        std::string line = std::string("config: ") + name + "=" + value + ": expected " + allowed;
        expect_log(line);
        ASSERT_EQ(init(), TW_OK);
        std::string text_before = options.text;
        Options before = options;
        EXPECT_EQ(tw_config_set(&table, &options, name, value), TW_ERR_CONFIG) << name << "=" << value;
        EXPECT_EQ(memcmp(&before, &options, sizeof(Options)), 0) << name << "=" << value;
        EXPECT_EQ(options.text, text_before);
        size_t lines = log_count(line);
        EXPECT_GE(lines, 1u) << name << "=" << value;
        tw::ScopedEnv env(name, value);
        EXPECT_EQ(init(), TW_ERR_CONFIG) << name << "=" << value;
        EXPECT_EQ(log_count(line), lines + 1) << name << "=" << value;
    }
    std::string print(const Options *values)
    {
        char *text = nullptr;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        tw_config_print(&table, values, out);
        fclose(out);
        std::string printed(text, bytes);
        free(text);
        return printed;
    }

    Options options = {};
    bool live = false;
};

} // namespace

TEST_F(Config, Defaults)
{
    memset(&options, 0xff, sizeof(options));
    ASSERT_EQ(init(), TW_OK);
    EXPECT_EQ(options.flag, 0);
    EXPECT_EQ(options.number, 3);
    EXPECT_EQ(options.any_number, -1);
    EXPECT_EQ(options.real, 0.5);
    EXPECT_EQ(options.bytes, 65536u);
    EXPECT_EQ(options.time, 10);
    EXPECT_EQ(options.rate, 0);
    EXPECT_STREQ(options.text, "eth0");
    EXPECT_STREQ(options.secret, "");
    EXPECT_EQ(options.choice, 0);
    EXPECT_EQ(options.at_least, 2u);
}

TEST_F(Config, EveryTypeFromTheEnvironment)
{
    set_env("TW_T_FLAG", "yes");
    set_env("TW_T_NUMBER", "-5");
    set_env("TW_T_ANY", "-9223372036854775808");
    set_env("TW_T_REAL", "-1");
    set_env("TW_T_BYTES", "1M");
    set_env("TW_T_TIME", "1ms");
    set_env("TW_T_RATE", "100gbit");
    set_env("TW_T_TEXT", "mlx5_0:1,eth0 = x");
    set_env("TW_T_SECRET", "hush");
    set_env("TW_T_CHOICE", "Tree");
    set_env("TW_T_AT_LEAST", "18446744073709551615");
    ASSERT_EQ(init(), TW_OK);
    EXPECT_EQ(options.flag, 1);
    EXPECT_EQ(options.number, -5);
    EXPECT_EQ(options.any_number, INT64_MIN);
    EXPECT_EQ(options.real, -1);
    EXPECT_EQ(options.bytes, 1048576u);
    EXPECT_EQ(options.time, 0.001);
    EXPECT_EQ(options.rate, 1e11);
    EXPECT_STREQ(options.text, "mlx5_0:1,eth0 = x");
    EXPECT_STREQ(options.secret, "hush");
    EXPECT_EQ(options.choice, 2);
    EXPECT_EQ(options.at_least, SIZE_MAX);
}

TEST_F(Config, EndsOfRangesAreIn)
{
    take("TW_T_NUMBER", "-5");
    take("TW_T_NUMBER", "100");
    take("TW_T_REAL", "1");
    take("TW_T_REAL", "-1.0");
    take("TW_T_BYTES", "1");
    take("TW_T_BYTES", "1048576");
    take("TW_T_TIME", "0.001");
    take("TW_T_TIME", "3600s");
    take("TW_T_RATE", "none");
    take("TW_T_RATE", "100gbit");
    take("TW_T_AT_LEAST", "2");
    take("TW_T_AT_LEAST", "16777215T");
}

TEST_F(Config, BadValuesNameVariableAndRange)
{
    const std::string number = "a whole number, from -5 to 100";
    for (const char *value : {"-6", "101", "1.5", "", "ten", "9223372036854775808", "5 ", "1e1"}) {
        refuse("TW_T_NUMBER", value, number);
    }
    for (const char *value : {"1.0000001", "-2", "nan", "inf", ""}) {
        refuse("TW_T_REAL", value, "a number, from -1 to 1");
    }
    for (const char *value : {"0", "1048577", "2M", "-1", "", "64kk", "1e3"}) {
        refuse("TW_T_BYTES", value, "a size such as 65536, 64K or 1M, from 1 to 1M");
    }
    for (const char *value : {"0", "0.5ms", "3601", "10m", "none", ""}) {
        refuse("TW_T_TIME", value, "a time such as 10s, 250ms or 50us, from 1ms to 3600s");
    }
    for (const char *value : {"101gbit", "1gbps", "-1", ""}) {
        refuse("TW_T_RATE", value, "a rate such as 1gbit or 100mbit, or none, from none to 100gbit");
    }
    for (const char *value : {"2", "maybe", ""}) {
        refuse("TW_T_FLAG", value, "y or n");
    }
    for (const char *value : {"", "rings", "0"}) {
        refuse("TW_T_CHOICE", value, "one of auto, ring, tree");
    }
    for (const char *value : {"1", "0"}) {
        refuse("TW_T_AT_LEAST", value, "a size such as 65536, 64K or 1M, at least 2");
    }
    for (const char *value : {"9223372036854775808", "x"}) {
        refuse("TW_T_ANY", value, "a whole number");
    }
}

/* Strings before and after the bad one: asan sees what leaks or is freed twice. */
TEST_F(Config, AFailedInitLeavesNothing)
{
    expect_log("TW_T_CHOICE=sideways");
    set_env("TW_T_TEXT", "a text of some length, so that it lives on the heap");
    set_env("TW_T_CHOICE", "sideways");
    EXPECT_EQ(init(), TW_ERR_CONFIG);
    EXPECT_EQ(options.text, nullptr);
    EXPECT_EQ(options.secret, nullptr);
}

TEST_F(Config, SetReplacesStrings)
{
    ASSERT_EQ(init(), TW_OK);
    EXPECT_EQ(tw_config_set(&table, &options, "TW_T_TEXT", "first"), TW_OK);
    EXPECT_EQ(tw_config_set(&table, &options, "TW_T_TEXT", ""), TW_OK);
    EXPECT_STREQ(options.text, "");
    EXPECT_EQ(tw_config_set(&table, &options, "TW_T_TEXT", "second"), TW_OK);
    EXPECT_STREQ(options.text, "second");
}

#if __GLIBC_PREREQ(2, 33)
TEST_F(Config, SetGivesTheOldStringBack)
{
    const std::string text(10000, 'x');
    ASSERT_EQ(init(), TW_OK);
    EXPECT_EQ(tw_config_set(&table, &options, "TW_T_TEXT", text.c_str()), TW_OK);
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 1000; i++) {
        EXPECT_EQ(tw_config_set(&table, &options, "TW_T_TEXT", text.c_str()), TW_OK);
    }
    EXPECT_LT(mallinfo2().uordblks, before + 100 * text.size());
}
#endif

TEST_F(Config, SetOfAnUnknownNameIsSilent)
{
    ASSERT_EQ(init(), TW_OK);
    EXPECT_EQ(tw_config_set(&table, &options, "TW_T_NUMBERS", "1"), TW_ERR_NOT_FOUND);
    EXPECT_EQ(tw_config_set(&table, &options, "tw_t_number", "1"), TW_ERR_NOT_FOUND);
    EXPECT_EQ(tw_config_set(&table, &options, "", "1"), TW_ERR_NOT_FOUND);
}

TEST_F(Config, CleanupTwice)
{
    ASSERT_EQ(init(), TW_OK);
    tw_config_cleanup(&table, &options);
    EXPECT_EQ(options.text, nullptr);
    tw_config_cleanup(&table, &options);
    live = false;
}

TEST_F(Config, ABadDefaultIsFound)
{
    tw_config_field_t bad = fields[1];
    bad.dflt = "101";
    const tw_config_table_t bad_table = {
        .module = "bad", .fields = &bad, .n_fields = 1, .options_bytes = sizeof(Options)};
    expect_log("default of TW_T_NUMBER=101: expected");
    EXPECT_EQ(tw_config_init(&bad_table, &options), TW_ERR_CONFIG);
}

TEST_F(Config, PrintIsTheManual)
{
    std::string printed = print(nullptr);
    EXPECT_EQ(printed.find("test:\n"), 0u);
    for (const tw_config_field_t &field : fields) {
        std::string first_line = std::string("\n  ") + field.name + "=" + field.dflt + "\n";
        EXPECT_NE(printed.find(first_line), std::string::npos) << field.name;
        EXPECT_NE(printed.find(std::string("      ") + field.doc + "\n"), std::string::npos) << field.name;
    }
    EXPECT_NE(
        printed.find("\n      default: 64K; unit: bytes; a size such as 65536, 64K or 1M, from 1 to 1M\n"),
        std::string::npos)
        << printed;
    EXPECT_NE(printed.find("default: (empty)"), std::string::npos);
}

TEST_F(Config, PrintShowsCurrentValues)
{
    set_env("TW_T_FLAG", "on");
    set_env("TW_T_NUMBER", "7");
    set_env("TW_T_REAL", "0.125");
    set_env("TW_T_BYTES", "65537"); /* no two decimals say that */
    set_env("TW_T_TIME", "0.25");
    set_env("TW_T_RATE", "2500mbit");
    set_env("TW_T_TEXT", "ib0");
    set_env("TW_T_CHOICE", "RING");
    ASSERT_EQ(init(), TW_OK);
    std::string printed = print(&options);
    for (const char *line :
         {"TW_T_FLAG=y\n", "TW_T_NUMBER=7\n", "TW_T_REAL=0.125\n", "TW_T_BYTES=65537\n", "TW_T_TIME=250ms\n",
          "TW_T_RATE=2.5gbit\n", "TW_T_TEXT=ib0\n", "TW_T_CHOICE=ring\n", "TW_T_ANY=-1\n"}) {
        EXPECT_NE(printed.find(line), std::string::npos) << line << printed;
    }
}

TEST_F(Config, PrintShowsTheDefaultInItsOwnWords)
{
    set_env("TW_T_RATE", "none");
    set_env("TW_T_BYTES", "65536");
    set_env("TW_T_TIME", "10000ms");
    ASSERT_EQ(init(), TW_OK);
    std::string printed = print(&options);
    for (const char *line : {"TW_T_RATE=auto\n", "TW_T_BYTES=64K\n", "TW_T_TIME=10s\n"}) {
        EXPECT_NE(printed.find(line), std::string::npos) << line << printed;
    }
}

TEST_F(Config, SecretsAreNeverPrinted)
{
    set_env("TW_T_SECRET", "correct horse battery staple");
    capture_level(TW_LOG_TRACE);
    ASSERT_EQ(init(), TW_OK);
    std::string printed = print(&options);
    EXPECT_EQ(printed.find("horse"), std::string::npos);
    EXPECT_NE(printed.find("TW_T_SECRET=(set)\n"), std::string::npos);
    EXPECT_EQ(log_count("horse"), 0u);
}

TEST_F(Config, PrintWrapsLongDocs)
{
    tw_config_field_t field = fields[0];
    std::string doc;
    for (int i = 0; i < 60; i++) {
        doc += "word" + std::to_string(i) + " ";
    }
    std::string long_word(300, 'x');
    doc += long_word + " end.";
    field.doc = doc.c_str();
    const tw_config_table_t long_table = {
        .module = "long", .fields = &field, .n_fields = 1, .options_bytes = sizeof(Options)};
    char *text = nullptr;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    tw_config_print(&long_table, nullptr, out);
    fclose(out);
    std::string line, printed(text, bytes), words;
    free(text);
    for (char c : printed) {
        if (c != '\n') {
            line += c;
            continue;
        }
        if (line.find(long_word) == std::string::npos) {
            EXPECT_LE(line.size(), 100u) << line;
        }
        line.clear();
    }
    for (int i = 0; i < 60; i++) {
        EXPECT_NE(printed.find("word" + std::to_string(i)), std::string::npos) << i;
    }
    EXPECT_NE(printed.find(long_word), std::string::npos);
}

/* Everything that is printed is also accepted. */
TEST_F(Config, FormattedNumbersParseBack)
{
    const struct {
        const char *name;
        const char *value;
    } cases[] = {
        {"TW_T_TIME", "0.0123456"},
        {"TW_T_TIME", "1234.5"},
        {"TW_T_RATE", "1"},
        {"TW_T_RATE", "1234567"},
        {"TW_T_RATE", "99.9gbit"},
        {"TW_T_BYTES", "1000000"},
        {"TW_T_AT_LEAST", "1234567890123456789"},
        {"TW_T_REAL", "0.1"},
        {"TW_T_AT_LEAST", "1536"},
    };
    for (const auto &item : cases) {
        ASSERT_EQ(init(), TW_OK);
        ASSERT_EQ(tw_config_set(&table, &options, item.name, item.value), TW_OK);
        Options before = options;
        std::string printed = print(&options), key = std::string("  ") + item.name + "=";
        size_t begin = printed.find(key) + key.size();
        std::string again = printed.substr(begin, printed.find('\n', begin) - begin);
        ASSERT_EQ(tw_config_set(&table, &options, item.name, again.c_str()), TW_OK) << again;
        EXPECT_NEAR(options.time, before.time, 1e-12 * before.time) << again;
        EXPECT_NEAR(options.rate, before.rate, 1e-12 * before.rate) << again;
        EXPECT_EQ(options.bytes, before.bytes) << again;
        EXPECT_EQ(options.at_least, before.at_least) << again;
        EXPECT_EQ(options.real, before.real) << again;
    }
}

/* ---- lists --------------------------------------------------------------------------------------------- */

namespace
{

struct Link {
    double latency, rate;
    size_t window;
};

const tw_config_field_t link_fields[] = {
    {.name = "up:latency",
     .dflt = "50us",
     .doc = "A time.",
     .type = TW_CONFIG_TIME,
     .offset = offsetof(Link, latency)},
    {.name = "up:rate",
     .dflt = "1gbit",
     .doc = "A rate.",
     .type = TW_CONFIG_RATE,
     .offset = offsetof(Link, rate),
     .min = 1,
     .max = 1e12},
    {.name = "down:window",
     .dflt = "64K",
     .doc = "A size.",
     .type = TW_CONFIG_BYTES,
     .offset = offsetof(Link, window)},
};
const tw_config_table_t link_table = {.module = "link",
                                      .fields = link_fields,
                                      .n_fields = std::size(link_fields),
                                      .options_bytes = sizeof(Link)};

class ConfigList : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        ASSERT_EQ(tw_config_init(&link_table, &link), TW_OK);
    }
    tw_status_t set(const char *text)
    {
        return tw_config_set_list(&link_table, &link, "TW_T_LINK", text);
    }
    Link link;
};

} // namespace

TEST_F(ConfigList, SetsWhatIsThere)
{
    EXPECT_EQ(set("up:latency=10ms,rate=2gbit;down:window=1M"), TW_OK);
    EXPECT_EQ(link.latency, 0.01);
    EXPECT_EQ(link.rate, 2e9);
    EXPECT_EQ(link.window, size_t(1) << 20);
    EXPECT_EQ(set("up:rate=3gbit"), TW_OK);
    EXPECT_EQ(link.latency, 0.01);
    EXPECT_EQ(link.rate, 3e9);
}

TEST_F(ConfigList, BlanksAndEmptySectionsAreIgnored)
{
    EXPECT_EQ(set(" ; up : latency = 2s ,\trate = 5mbit ; ;\n"), TW_OK);
    EXPECT_EQ(link.latency, 2);
    EXPECT_EQ(link.rate, 5e6);
    EXPECT_EQ(set(""), TW_OK);
}

TEST_F(ConfigList, BadOnesAreNamedWithTheirSource)
{
    const struct {
        const char *text, *line;
    } cases[] = {
        {"up:rate=2tbit", "config: TW_T_LINK: up:rate=2tbit: expected a rate such as"},
        {"up:latency=1parsec", "config: TW_T_LINK: up:latency=1parsec: expected a time such as"},
        {"up:latency=1s=2s", "config: TW_T_LINK: up:latency=1s=2s: expected a time such as"},
        {"up:latncy=1s", "config: TW_T_LINK: unknown key up:latncy; did you mean up:latency?"},
        {"sideways=1", "config: TW_T_LINK: 'sideways=1' is not of the form section:key=value,key=value"},
        {"up:latency", "config: TW_T_LINK: 'latency' is not of the form section:key=value,key=value"},
        {"up:latency=1s,", "config: TW_T_LINK: '' is not of the form section:key=value,key=value"},
        {"up:", "config: TW_T_LINK: '' is not of the form section:key=value,key=value"},
    };
    for (const auto &item : cases) {
        expect_log(item.line);
        size_t lines = log_count(item.line);
        EXPECT_EQ(set(item.text), TW_ERR_CONFIG) << item.text;
        EXPECT_EQ(log_count(item.line), lines + 1) << item.text;
    }
    EXPECT_EQ(link.rate, 1e9);
    EXPECT_EQ(link.window, 65536u);
}

/* A name that is too long for any field stays unknown. */
TEST_F(ConfigList, LongNames)
{
    std::string text = "up:latency" + std::string(500, 'x') + "=1s";
    expect_log("TW_T_LINK: unknown key up:latency");
    EXPECT_EQ(set(text.c_str()), TW_ERR_CONFIG);
}
