/* Parsers of text from outside: sizes, times, rates, every type of configuration field. First byte: which one. */
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
    {"TW_FLAG", "y", "", "A flag.", TW_CONFIG_BOOL, offsetof(Options, flag), 0, 0, nullptr},
    {"TW_NUMBER", "3", "", "A number.", TW_CONFIG_INT, offsetof(Options, number), -5, 1e6, nullptr},
    {"TW_REAL", "0.5", "", "A real.", TW_CONFIG_DOUBLE, offsetof(Options, real), -1, 1, nullptr},
    {"TW_BYTES", "64K", "bytes", "A size.", TW_CONFIG_BYTES, offsetof(Options, bytes), 1, 1e12, nullptr},
    {"TW_TIME", "10s", "s", "A time.", TW_CONFIG_TIME, offsetof(Options, time), 1e-6, 3600, nullptr},
    {"TW_RATE", "1gbit", "bit/s", "A rate.", TW_CONFIG_RATE, offsetof(Options, rate), 0, 1e12, nullptr},
    {"TW_TEXT", "", "", "A text.", TW_CONFIG_STRING, offsetof(Options, text), 0, 0, nullptr},
    {"TW_CHOICE", "ring", "", "A choice.", TW_CONFIG_ENUM, offsetof(Options, choice), 0, 0, choices},
};
constexpr size_t n_fields = sizeof(fields) / sizeof(fields[0]);
const tw_config_table_t table = {"fuzz", fields, n_fields, sizeof(Options)};

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

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    tw_log_set_sink(ignore_log, nullptr);
    std::string text(reinterpret_cast<const char *>(data) + 1, size - 1);
    check_parsers(text.c_str());
    check_field(data[0] % n_fields, text.c_str());
    return 0;
}
