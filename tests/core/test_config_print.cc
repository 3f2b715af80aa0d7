/* What a configuration prints can be given to it again. */
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

using ConfigPrint = tw::Fixture;
using Values = std::vector<std::pair<double, std::string>>;

/* The only member of its options. */
tw_config_field_t field_of(tw_config_type_t type)
{
    return {.name = "TW_T", .dflt = type == TW_CONFIG_TIME ? "7s" : "7bit", .doc = "A number.", .type = type};
}

void expect_both_ways(tw_config_type_t type, const Values &values,
                      tw_status_t (*parse)(const char *, double *))
{
    const tw_config_field_t field = field_of(type);
    for (const auto &[value, text] : values) {
        char buf[64];
        double again = -1;
        EXPECT_EQ(tw_config_format(&field, &value, buf, sizeof(buf)), text);
        EXPECT_EQ(parse(buf, &again), TW_OK) << buf;
        EXPECT_DOUBLE_EQ(again, value) << buf;
    }
}

TEST_F(ConfigPrint, Times)
{
    expect_both_ways(TW_CONFIG_TIME,
                     {{0, "0s"},
                      {1e-7, "0.1us"},
                      {50e-6, "50us"},
                      {999e-6, "999us"},
                      {1e-3, "1ms"},
                      {0.25, "250ms"},
                      {1, "1s"},
                      {1.5, "1.5s"},
                      {86400, "86400s"}},
                     tw_parse_time);
}

TEST_F(ConfigPrint, Rates)
{
    expect_both_ways(TW_CONFIG_RATE,
                     {{0, "none"},
                      {0.5, "0.5bit"},
                      {999, "999bit"},
                      {1e3, "1kbit"},
                      {64e3, "64kbit"},
                      {1e6, "1mbit"},
                      {2.5e9, "2.5gbit"},
                      {1e12, "1tbit"},
                      {12e12, "12tbit"}},
                     tw_parse_rate);
}

/* Lines of prose, as they are printed: 96 columns at most, of which 6 are the indent. */
std::vector<std::string> prose_of(const std::string &doc)
{
    tw_config_field_t field = field_of(TW_CONFIG_TIME);
    field.doc = doc.c_str();
    const tw_config_table_t table = {
        .module = "test", .fields = &field, .n_fields = 1, .options_bytes = sizeof(double)};
    char *text = nullptr;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    tw_config_print(&table, nullptr, out);
    EXPECT_EQ(fclose(out), 0);
    std::vector<std::string> lines = {""};
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] == '\n') {
            lines.emplace_back();
        } else {
            lines.back() += text[i];
        }
    }
    free(text);
    EXPECT_EQ(lines.back(), "") << "the last line has its end";
    lines.pop_back();
    lines.erase(lines.begin(), lines.begin() + 3); /* module, value, default */
    return lines;
}

TEST_F(ConfigPrint, ProseIsBrokenWhereItWouldBeTooLong)
{
    const std::string indent(6, ' '), word(45, 'a'), fits(44, 'b'), is_longer(45, 'c'), endless(120, 'd');
    using Lines = std::vector<std::string>;
    EXPECT_EQ(prose_of(word + " " + fits), Lines({indent + word + " " + fits}));
    EXPECT_EQ(prose_of(word + "\n  " + is_longer), Lines({indent + word, indent + is_longer}));
    EXPECT_EQ(prose_of(word + " " + endless + " " + fits),
              Lines({indent + word, indent + endless, indent + fits}));
}

} // namespace
