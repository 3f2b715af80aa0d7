/* A command line as a table. */
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include "core/core.h"
#include "flags/flags.h"

namespace
{

struct Options {
    int nodes, device, verbose, n_words;
    int64_t steps;
    double params, link, lr;
    size_t bytes;
    const char *json;
    std::string sizes, words, checked, items;
    size_t n_items;
};

void add_size(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *item)
{
    if (*item == '\0') {
        argp_error(state, "--%s: an empty one", flag->field.name);
    }
    static_cast<Options *>(ctx)->sizes += std::string("<") + item + ">";
}

void take_sizes(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *list)
{
    static_cast<Options *>(ctx)->sizes.clear();
    tw_flag_each(state, flag, ctx, list, add_size);
}

void take_item(struct argp_state *, const tw_flag_t *, void *ctx, const char *item)
{
    Options *options = static_cast<Options *>(ctx);
    options->items = (options->n_items > 0 ? options->items + "+" : "") + item;
}

void take_words(void *ctx, char **words, int n)
{
    for (int i = 0; i < n; i++) {
        static_cast<Options *>(ctx)->words += std::string(i > 0 ? " " : "") + words[i];
    }
    EXPECT_EQ(words[n], nullptr);
}

void check(struct argp_state *state, void *ctx)
{
    Options *options = static_cast<Options *>(ctx);
    options->checked = options->sizes; /* all flags are read by now */
    if (options->nodes == 7 && options->steps == 7) {
        argp_error(state, "7 nodes and 7 steps");
    }
}

const char *const devices[] = {"host", "cuda", nullptr};

const tw_flag_t flag_list[] = {
    {{"nodes", "2", "N", "Nodes", TW_CONFIG_INT32, offsetof(Options, nodes), 1, 64, nullptr},
     'n',
     1,
     nullptr,
     0},
    {{"steps", nullptr, "N", "Steps", TW_CONFIG_INT, offsetof(Options, steps), 0, INFINITY, nullptr},
     0,
     1,
     nullptr,
     0},
    {{"params", "1M", "N", "Parameters", TW_CONFIG_COUNT, offsetof(Options, params), 1, 1e12, nullptr},
     0,
     1,
     nullptr,
     0},
    {{"link", "100mbit", "RATE", "Link", TW_CONFIG_RATE, offsetof(Options, link), 0, 0, nullptr},
     'l',
     2,
     tw_flag_take_link,
     0},
    {{"lr", "6e-4", "X", "Learning rate", TW_CONFIG_DOUBLE, offsetof(Options, lr), 0, 10, nullptr},
     0,
     2,
     nullptr,
     0},
    {{"bytes", "64K", "SIZE", "Bytes", TW_CONFIG_BYTES, offsetof(Options, bytes), 4096, 0x1p30, nullptr},
     0,
     2,
     nullptr,
     0},
    {{"device", "host", "NAME", "host or cuda", TW_CONFIG_ENUM, offsetof(Options, device), 0, 0, devices},
     0,
     2,
     nullptr,
     0},
    {{"verbose", nullptr, nullptr, "More lines", TW_CONFIG_BOOL, offsetof(Options, verbose), 0, 0, nullptr},
     'v',
     2,
     nullptr,
     0},
    {{"json", nullptr, "FILE", "Lines of JSON", TW_CONFIG_STRING, offsetof(Options, json), 0, 0, nullptr},
     0,
     2,
     nullptr,
     0},
    {{"sizes", "8,4K", "LIST", "Sizes", TW_CONFIG_STRING, 0, 0, 0, nullptr}, 's', 2, take_sizes, 0},
    {{"items", "a,b", "LIST", "Items", TW_CONFIG_STRING, offsetof(Options, n_items), 0, 0, nullptr},
     0,
     2,
     take_item,
     3},
    {{"child", "-1", "FD", nullptr, TW_CONFIG_INT32, offsetof(Options, n_words), -1, 9, nullptr},
     0,
     0,
     nullptr,
     0},
};

tw_flags_t table()
{
    return {flag_list, sizeof(flag_list) / sizeof(flag_list[0]), "Does it.\vAnd more.", nullptr, nullptr,
            check};
}

Options read(std::vector<std::string> words, tw_flags_t flags = table())
{
    static std::vector<std::vector<std::string>> kept; /* text is pointed to */
    Options options = {};
    words.insert(words.begin(), "it");
    kept.push_back(words);
    std::vector<char *> argv;
    for (std::string &word : kept.back()) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    tw_flags_read(&flags, (int)words.size(), argv.data(), &options);
    return options;
}

TEST(Flags, Defaults)
{
    const Options options = read({});
    EXPECT_EQ(options.nodes, 2);
    EXPECT_EQ(options.steps, 0);
    EXPECT_EQ(options.params, 1e6);
    EXPECT_EQ(options.link, 100e6);
    EXPECT_EQ(options.lr, 6e-4);
    EXPECT_EQ(options.bytes, 65536u);
    EXPECT_EQ(options.device, 0);
    EXPECT_EQ(options.verbose, 0);
    EXPECT_EQ(options.json, nullptr);
    EXPECT_EQ(options.sizes, "<8><4K>");
    EXPECT_EQ(options.checked, "<8><4K>");
    EXPECT_EQ(options.items, "a+b");
    EXPECT_EQ(options.n_items, 2u);
    EXPECT_EQ(options.n_words, -1);
}

TEST(Flags, Given)
{
    const Options options = read({"-n", "64", "--steps=9000000000", "--params", "7.5G", "-lnone", "--lr=0",
                                  "--bytes=1M", "--device", "cuda", "-v", "--json", "a b", "--sizes=9", "-s",
                                  "1,2,3", "--items=c", "--items=d,e,f", "--child=3"});
    EXPECT_EQ(options.nodes, 64);
    EXPECT_EQ(options.steps, 9000000000);
    EXPECT_EQ(options.params, 7.5e9);
    EXPECT_EQ(options.link, 0);
    EXPECT_EQ(options.lr, 0);
    EXPECT_EQ(options.bytes, 1u << 20);
    EXPECT_EQ(options.device, 1);
    EXPECT_EQ(options.verbose, 1);
    EXPECT_STREQ(options.json, "a b");
    EXPECT_EQ(options.checked, "<1><2><3>");
    EXPECT_EQ(options.items, "d+e+f");
    EXPECT_EQ(options.n_items, 3u);
    EXPECT_EQ(options.n_words, 3);
}

void expect_refused(const std::vector<std::string> &words, const std::string &why)
{
    EXPECT_EXIT(read(words), testing::ExitedWithCode(2), why) << words[0];
}

TEST(Flags, Refused)
{
    expect_refused({"--nodes=65"}, "--nodes: '65' is not a whole number, from 1 to 64");
    expect_refused({"-n", "4294967298"}, "--nodes: '4294967298' is not");
    expect_refused({"--steps=-1"}, "--steps: '-1' is not a whole number, at least 0");
    expect_refused({"--params=1X"}, "--params: '1X' is not a number such as 500K");
    expect_refused({"--lr=nan"}, "--lr: 'nan' is not a number, from 0 to 10");
    expect_refused({"--bytes=4095"}, "--bytes: '4095' is not a size .* from 4K to 1G");
    expect_refused({"--device=gpu"}, "--device: 'gpu' is not one of host, cuda");
    expect_refused({"--link=1"}, "--link: '1' is not a rate from 1mbit on");
    expect_refused({"--sizes=1,,2"}, "--sizes: an empty one");
    expect_refused({"--items=1,2,3,4"}, "--items: more than 3");
    expect_refused({"--verbose=1"}, "doesn't allow an argument");
    expect_refused({"--nodes=7", "--steps=7"}, "7 nodes and 7 steps");
    expect_refused({"what"}, "what is 'what'\\?");
    expect_refused({"--nobody"}, "unrecognized option");
}

TEST(Flags, Help)
{
    testing::internal::CaptureStdout();
    EXPECT_EXIT(
        {
            dup2(2, 1);
            read({"--help"});
        },
        testing::ExitedWithCode(0),
        "Does it(.|\n)*-n, --nodes=N +Nodes \\(default: 2\\)(.|\n)*--link=RATE +Link \\(default: "
        "100mbit\\)(.|\n)*"
        "-v, --verbose +More lines\n(.|\n)*And more");
    testing::internal::GetCapturedStdout();
    EXPECT_EXIT(
        {
            dup2(2, 1);
            read({"--help"});
        },
        [](int status) { return status == 0; }, testing::Not(testing::HasSubstr("child")));
}

TEST(Flags, Words)
{
    tw_flags_t flags = table();
    flags.args_doc = "-- COMMAND [ARG...]";
    flags.take_args = take_words;
    EXPECT_EQ(read({"-n", "3", "--", "run", "-n", "4"}, flags).words, "run -n 4");
    EXPECT_EQ(read({"run", "-n", "4"}, flags).nodes, 2);
    EXPECT_EXIT(read({"-v"}, flags), testing::ExitedWithCode(2), "-- COMMAND \\[ARG...\\] is missing");
}

TEST(Flags, AWrongDefaultEndsTheProgram)
{
    tw_flags_t flags = table();
    const tw_flag_t wrong = {
        {"nodes", "0", "N", "Nodes", TW_CONFIG_INT32, offsetof(Options, nodes), 1, 64, nullptr},
        0,
        1,
        nullptr,
        0};
    flags.flags = &wrong;
    flags.n_flags = 1;
    EXPECT_EXIT(read({}, flags), testing::ExitedWithCode(2), "--nodes: '0' is not");
}

} // namespace
