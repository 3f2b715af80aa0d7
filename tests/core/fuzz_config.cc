/* Parsers of text from outside: sizes, times, rates, every type of configuration field. First byte: which
 * one. */
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/core.h"

namespace
{

struct Options {
    int flag;
    int64_t number;
    double real;
    size_t bytes;
    double time;
    double rate;
    char *text;
    int choice;
};

const char *const choices[] = {"ring", "tree", nullptr};

const tw_config_field_t fields[] = {
    {.name = "TW_FLAG",
     .dflt = "y",
     .doc = "A flag.",
     .type = TW_CONFIG_BOOL,
     .offset = offsetof(Options, flag)},
    {.name = "TW_NUMBER",
     .dflt = "3",
     .doc = "A number.",
     .type = TW_CONFIG_INT,
     .offset = offsetof(Options, number),
     .min = -5,
     .max = 1e6},
    {.name = "TW_REAL",
     .dflt = "0.5",
     .doc = "A real.",
     .type = TW_CONFIG_DOUBLE,
     .offset = offsetof(Options, real),
     .min = -1,
     .max = 1},
    {.name = "TW_BYTES",
     .dflt = "64K",
     .unit = "bytes",
     .doc = "A size.",
     .type = TW_CONFIG_BYTES,
     .offset = offsetof(Options, bytes),
     .min = 1,
     .max = 1e12},
    {.name = "TW_TIME",
     .dflt = "10s",
     .unit = "s",
     .doc = "A time.",
     .type = TW_CONFIG_TIME,
     .offset = offsetof(Options, time),
     .min = 1e-6,
     .max = 3600},
    {.name = "TW_RATE",
     .dflt = "1gbit",
     .unit = "bit/s",
     .doc = "A rate.",
     .type = TW_CONFIG_RATE,
     .offset = offsetof(Options, rate),
     .min = 0,
     .max = 1e12},
    {.name = "TW_TEXT",
     .dflt = "",
     .doc = "A text.",
     .type = TW_CONFIG_STRING,
     .offset = offsetof(Options, text)},
    {.name = "TW_CHOICE",
     .dflt = "ring",
     .doc = "A choice.",
     .type = TW_CONFIG_ENUM,
     .offset = offsetof(Options, choice),
     .choices = choices},
};
constexpr size_t n_fields = sizeof(fields) / sizeof(fields[0]);
const tw_config_table_t table = {
    .module = "fuzz", .fields = fields, .n_fields = n_fields, .options_bytes = sizeof(Options)};
const tw_config_field_t list_fields[] = {
    {.name = "a:real",
     .dflt = "0",
     .doc = "A real.",
     .type = TW_CONFIG_DOUBLE,
     .offset = offsetof(Options, real),
     .min = -1,
     .max = 1},
    {.name = "a:text",
     .dflt = "",
     .doc = "A text.",
     .type = TW_CONFIG_STRING,
     .offset = offsetof(Options, text)},
};
const tw_config_table_t list_table = {
    .module = "list", .fields = list_fields, .n_fields = 2, .options_bytes = sizeof(Options)};

void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "fuzz_config: not so: %s\n", what);
        abort();
    }
}

void ignore_log(void *, tw_log_level_t, const char *, int, const char *)
{
}

void check_parsers(const char *text)
{
    size_t bytes;
    double value;
    char printed[64];

    /* Close to 2^64, two decimals round up to it, and that is no size_t. */
    if (tw_parse_bytes(text, &bytes) == TW_OK && bytes < SIZE_MAX / 2) {
        size_t again;
        tw_format_bytes(bytes, printed, sizeof(printed));
        check(tw_parse_bytes(printed, &again) == TW_OK, "a formatted size parses");
        /* Two decimals of a unit that the size reaches: half a percent at most. */
        check(fabs(double(again) - double(bytes)) <= 0.005 * double(bytes) + 1, "it is nearly the same");
    }
    if (tw_parse_time(text, &value) == TW_OK) {
        check(std::isfinite(value) && value >= 0, "a time is finite and not negative");
    }
    if (tw_parse_rate(text, &value) == TW_OK) {
        check(std::isfinite(value) && value >= 0, "a rate is finite and not negative");
    }
    tw_type_t type;
    if (tw_type_parse(text, &type) == TW_OK) {
        check(tw_type_bytes(type) > 0, "a type has a size");
    }
    const char *names[] = {"TW_PEER_TIMEOUT", "TW_LOG_LEVEL", ""};
    (void)tw_nearest_name(text, names, 3);
}

/* Set a field; afterwards all of them are in range, whatever the text was. */
void check_field(size_t index, const char *text)
{
    Options options;
    check(tw_config_init(&table, &options) == TW_OK, "the defaults are good");
    tw_status_t status = tw_config_set(&table, &options, fields[index].name, text);
    check(status == TW_OK || status == TW_ERR_CONFIG, "a value is taken or refused");
    check(options.flag == 0 || options.flag == 1, "flag");
    check(options.number >= -5 && options.number <= 1000000, "number");
    check(options.real >= -1 && options.real <= 1, "real");
    check(options.bytes >= 1 && options.bytes <= size_t(1e12), "bytes");
    check(options.time >= 1e-6 && options.time <= 3600, "time");
    check(options.rate >= 0 && options.rate <= 1e12, "rate");
    check(options.choice == 0 || options.choice == 1, "choice");
    if (fields[index].type == TW_CONFIG_STRING) {
        check(strcmp(options.text, text) == 0, "text");
    }
    tw_config_cleanup(&table, &options);
}

void check_list(const char *text)
{
    Options options;
    check(tw_config_init(&list_table, &options) == TW_OK, "the list's defaults are good");
    tw_status_t status = tw_config_set_list(&list_table, &options, "TW_LIST", text);
    check(status == TW_OK || status == TW_ERR_CONFIG, "a list is taken or refused");
    check(options.real >= -1 && options.real <= 1, "a list's real");
    tw_config_cleanup(&list_table, &options);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    tw_log_set_sink(ignore_log, nullptr);
    std::string text(reinterpret_cast<const char *>(data) + 1, size - 1);
    check_parsers(text.c_str());
    check_list(text.c_str());
    check_field(data[0] % n_fields, text.c_str());
    return 0;
}
