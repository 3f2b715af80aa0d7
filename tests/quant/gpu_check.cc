/* Everything that waits for a GPU, in one program to carry to a machine that has one: the tests of the CUDA codecs, then the
 * speed of their kernels. Ends with "N passed, N failed"; exits with 77 where there is no GPU. */
#include <argp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "bench/quant_gpu.h"
#include "tests/quant/cuda_staged.h"

namespace
{

struct Options {
    const char *json = nullptr;
    bool quick = false, tests = true, bench = true;
    double seconds = 0.2;
};

enum { KEY_JSON = 256, KEY_QUICK, KEY_ONLY, KEY_SECONDS };

const argp_option option_list[] = {
    {"json", KEY_JSON, "FILE", 0, "Write the speeds as JSON lines to FILE (default: to standard output)", 0},
    {"only", KEY_ONLY, "WHAT", 0, "tests or bench (default: both)", 0},
    {"quick", KEY_QUICK, nullptr, 0,
     "A few of the tests on small sizes, no bench: what runs under compute-sanitizer in minutes", 0},
    {"seconds", KEY_SECONDS, "S", 0, "Time to measure each line of the bench for (default: 0.2)", 0},
    {nullptr, 0, nullptr, 0, nullptr, 0},
};

error_t parse_option(int key, char *arg, argp_state *state)
{
    Options *options = static_cast<Options *>(state->input);
    switch (key) {
    case KEY_JSON:
        options->json = arg;
        return 0;
    case KEY_QUICK:
        options->quick = true;
        options->bench = false;
        return 0;
    case KEY_ONLY:
        options->tests = strcmp(arg, "tests") == 0;
        options->bench = strcmp(arg, "bench") == 0;
        if (!options->tests && !options->bench)
            argp_error(state, "--only: '%s' is not tests or bench", arg);
        return 0;
    case KEY_SECONDS:
        options->seconds = atof(arg);
        if (!(options->seconds > 0))
            argp_error(state, "--seconds: '%s' is not a time", arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

struct Count {
    int passed = 0, failed = 0;
};

/* ---- tests ------------------------------------------------------------------------------------------------------ */

Count run_tests(const Options &options)
{
    testing::GTEST_FLAG(brief) = !options.quick;
    if (options.quick) {
        if (testing::GTEST_FLAG(filter) == "*")
            testing::GTEST_FLAG(filter) = "-*MoreThan2To31*:*EverySizeOfInt8AndInt4*";
        tw::staged::set_take_every(211);
    }
    /* Its own word does not count: an empty run is none that passed. */
    const int code = RUN_ALL_TESTS();
    const testing::UnitTest *all = testing::UnitTest::GetInstance();
    Count count = {all->successful_test_count(), all->failed_test_count()};
    if (all->skipped_test_count())
        printf("%d tests skipped\n", all->skipped_test_count());
    if (code != 0 && count.failed == 0)
        count.failed = 1;
    return count;
}

/* ---- speeds ----------------------------------------------------------------------------------------------------- */

tw_quant_codec_t codec_of(const char *text)
{
    tw_quant_codec_t codec = {};
    if (tw_quant_codec_parse(text, &codec) != TW_OK)
        abort();
    return codec;
}

/* Every operation of the codecs people use, in bf16; the other types where they matter; a hop of a two-hop reduction; a
 * model's worth of segments. */
void report_speeds(qg_report_t *report, double seconds)
{
    const size_t small = size_t{1} << 20, large = size_t{64} << 20, huge = size_t{512} << 20;
    auto measure = [&](int op, const char *codec, const char *out, tw_type_t type, size_t bytes,
                       size_t n_inputs, size_t n_segments) {
        const qg_case_t c = {op,         codec_of(codec), codec_of(out), type, bytes / tw_type_bytes(type),
                             n_segments, n_inputs,        seconds};
        qg_report_case(report, &c);
    };
    for (const char *codec : {"int8", "int4", "int4:hadamard"})
        for (int op = 0; op < QG_OP_COUNT; op++)
            for (size_t bytes : {small, large})
                measure(op, codec, codec, TW_TYPE_BF16, bytes, 8, 1);
    for (const char *codec : {"int8", "int4:hadamard,stochastic", "int8:block=96"})
        for (int op : {int(QB_ENCODE), int(QB_DECODE)})
            for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16})
                measure(op, codec, codec, type, large, 1, 1);
    for (size_t bytes : {small, large, huge}) {
        measure(QB_REDUCE_ENCODE, "int8", "int4:hadamard", TW_TYPE_BF16, bytes, 8, 1);
        measure(QB_REDUCE_ENCODE, "int4:hadamard", "int4:hadamard", TW_TYPE_BF16, bytes, 8, 1);
    }
    for (int op : {int(QB_ENCODE), int(QB_DECODE)})
        measure(op, "int8", "int8", TW_TYPE_BF16, huge, 1, 1);
    for (size_t n_segments : {10, 200, 2000})
        for (int op : {int(QB_ENCODE), int(QB_DECODE), int(QB_REDUCE_ENCODE), int(QG_ADAMW)})
            measure(op, "int4", "int4", TW_TYPE_BF16, large, 8, n_segments);
}

Count run_bench(const Options &options, const std::string &command)
{
    qg_report_t report = {};
    report.command = command.c_str();
    report.json = options.json ? fopen(options.json, "w") : stdout;
    if (!report.json) {
        tw_error("gpu_check: %s: %m", options.json);
        return {0, 1};
    }
    if (qg_report_begin(&report) != TW_OK)
        return {0, 1};
    report_speeds(&report, options.seconds);
    int failed = int(report.n_failed);
    if (options.json && fclose(report.json) != 0) {
        tw_error("gpu_check: %s: %m", options.json);
        failed++;
    }
    return {int(report.n_lines - report.n_failed), failed};
}

} // namespace

int main(int argc, char **argv)
{
    const argp parser = {
        option_list,
        parse_option,
        nullptr,
        "Tests the CUDA codecs on the GPU that is there, against the CPU reference, and measures their "
        "kernels.\vGoogleTest's flags (--gtest_filter=PATTERN, ...) work too. Exit status: 0 all passed, 1 "
        "something failed, 77 no GPU.",
        nullptr,
        nullptr,
        nullptr};
    Options options;
    Count tests, bench;
    std::string command;
    for (int i = 0; i < argc; i++)
        command += (i ? " " : "") + std::string(argv[i]);
    if (argc != 2 || strcmp(argv[1], "--help") != 0)
        testing::InitGoogleTest(&argc, argv);
    argp_parse(&parser, argc, argv, 0, nullptr, &options);
    if (!tw::staged::available()) {
        printf("gpu_check: there is no GPU here that CUDA can use\n0 passed, 0 failed\n");
        return 77;
    }
    if (options.tests)
        tests = run_tests(options);
    if (options.bench)
        bench = run_bench(options, command);
    const int failed = tests.failed + bench.failed;
    printf("%d passed, %d failed\n", tests.passed + bench.passed, failed);
    return failed != 0;
}
