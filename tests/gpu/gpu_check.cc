/* Everything that needs a GPU, in one program to carry to a machine that has one. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <map>

#include "tests/collectives/gpu/checks.h"
#include "tests/gpu/codec_bench.h"
#include "tests/gpu/codec_report.h"
#include "tests/gpu/entropy_bench.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/options.h"
#include "tests/gpu/rank.h"
#include "tests/quant/cuda/staged.h"
#ifdef TW_HAVE_NCCL
#include "tests/gpu/plugin_jobs.h"
#endif

namespace tw::gpu
{

namespace
{

struct Count {
    int passed = 0, failed = 0, skipped = 0;
    void operator+=(const Count &other)
    {
        passed += other.passed;
        failed += other.failed;
        skipped += other.skipped;
    }
};

using Counts = std::map<Section, Count>;

/* The name before it runs, so that what hangs is known. */
void say_begin(const char *section, const std::string &name)
{
    printf("%-11s %s ...", section, name.c_str());
    fflush(stdout);
}

void say_end(const char *became, double sec, const std::string &why = "")
{
    printf(" %s (%.1f s)\n%s%s", became, sec, why.c_str(), why.empty() || why.back() == '\n' ? "" : "\n");
    fflush(stdout);
}

/* ---- GoogleTest's ---- */

std::vector<std::string> suites()
{
    const testing::UnitTest *all = testing::UnitTest::GetInstance();
    std::vector<std::string> names;
    for (int i = 0; i < all->total_test_suite_count(); i++) {
        names.push_back(all->GetTestSuite(i)->name());
    }
    return names;
}

/* A line for each test, what is wrong with it, and the counts. */
class Progress : public testing::EmptyTestEventListener
{
  public:
    explicit Progress(Counts *the_counts) : counts(the_counts)
    {
    }
    void OnTestStart(const testing::TestInfo &test) override
    {
        why.clear();
        say_begin(section_name(section_of_suite(test.test_suite_name())),
                  std::string(test.test_suite_name()) + "." + test.name());
    }
    void OnTestPartResult(const testing::TestPartResult &result) override
    {
        const char *file = result.file_name();
        if (result.passed()) {
            return;
        }
        why += std::string("    ") + (file ? file : "?") + ":" + std::to_string(result.line_number()) + ": " +
               result.message() + "\n";
        if (result.failed() && why.size() < 4096) { /* at once: it may not come to an end */
            printf("\n    %s:%d: %s\n", file ? file : "?", result.line_number(), result.message());
        }
        fflush(stdout);
    }
    void OnTestEnd(const testing::TestInfo &test) override
    {
        const testing::TestResult &result = *test.result();
        Count &count = (*counts)[section_of_suite(test.test_suite_name())];
        count.failed += result.Failed();
        count.skipped += result.Skipped();
        count.passed += result.Passed();
        say_end(result.Failed()    ? "FAILED"
                : result.Skipped() ? "SKIPPED"
                                   : "ok",
                (double)result.elapsed_time() * 1e-3, result.Skipped() ? why : "");
    }

  private:
    Counts *counts;
    std::string why;
};

void run_tests(const Options &options, Counts *counts)
{
    const std::string filter = filter_of(suites(), options.sections, options.quick);
    if (filter.empty()) {
        return;
    }
    if (testing::GTEST_FLAG(filter) == "*") {
        testing::GTEST_FLAG(filter) = filter;
    }
    testing::TestEventListeners &listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Progress(counts));
    if (options.quick) {
        tw::staged::set_take_every(211);
        tw::set_gpu_checks_quick();
    }
    /* Failures outside of tests show here alone. */
    const int code = RUN_ALL_TESTS();
    int failed = 0;
    for (const auto &each : *counts) {
        failed += each.second.failed;
    }
    if (code != 0 && failed == 0) {
        (*counts)[section_codecs].failed = 1;
    }
}

/* ---- processes ---- */

Count run_and_tell(const char *section, const JobSpec &spec)
{
    Count count;
    const auto progress = [&](const Verdict &verdict) {
        (verdict.passed ? count.passed : count.failed)++;
        say_begin(section, verdict.name);
        say_end(verdict.passed ? "ok" : "FAILED", verdict.sec, verdict.why);
    };
    try {
        run_job(spec, progress);
    } catch (const std::exception &error) {
        say_begin(section, spec.name);
        say_end("FAILED", 0, std::string("    ") + error.what());
        count.failed++;
    }
    return count;
}

/* As many as there would have been verdicts. */
Count skip_job(const char *section, const std::string &name, size_t n_cases, const std::string &why)
{
    Count count;
    count.skipped = (int)n_cases + 1;
    say_begin(section, name + ", " + std::to_string(count.skipped) + " cases");
    say_end("SKIPPED", 0, "    " + why);
    return count;
}

std::string why_no_nccl(const Nccl &nccl)
{
    return nccl.found ? "" : "there is no NCCL here: " + nccl.text;
}

Count run_processes(const Nccl &nccl)
{
    const char *const section = section_name(section_processes);
    Count count;
    for (const ProcessJob &job : process_jobs()) {
        std::string why = why_not_shared();
        if (why.empty() && job.over_nccl) {
            why = why_no_nccl(nccl);
        }
        count += why.empty()
                     ? run_and_tell(section, spec_of(job, {"/proc/self/exe", "--rank-of=" + job.name}))
                     : skip_job(section, job.name, job.cases.size(), why);
    }
    return count;
}

/* ---- the plugin ---- */

#ifdef TW_HAVE_NCCL

void list_plugin()
{
    for (const PluginJob &job : plugin_jobs()) {
        for (const PluginCase &each : job.cases) {
            printf("%-11s %s: %s\n", section_name(section_plugin), job.name.c_str(), each.name.c_str());
        }
    }
}

Count run_plugin_job(const PluginJob &job)
{
    char folder[] = "/tmp/gpu-check-XXXXXX";
    const char *const section = section_name(section_plugin);
    if (mkdtemp(folder) == nullptr) {
        return skip_job(section, job.name, job.cases.size(), std::string(folder) + ": " + strerror(errno));
    }
    const Count count = run_and_tell(section, plugin_spec_of(job, {nccl_rank_path(), job.name}, folder));
    if (count.failed == 0) {
        std::filesystem::remove_all(folder);
    } else {
        printf("    NCCL's logs: %s\n", folder);
    }
    return count;
}

Count run_plugin(const Nccl &nccl)
{
    std::string why = why_not_shared();
    why = why.empty() ? why_no_nccl(nccl) : why;
    why = why.empty() ? why_no_plugin() : why;
    Count count;
    for (const PluginJob &job : plugin_jobs()) {
        count += why.empty() ? run_plugin_job(job)
                             : skip_job(section_name(section_plugin), job.name, job.cases.size(), why);
    }
    return count;
}

#else

void list_plugin()
{
}

Count run_plugin(const Nccl &)
{
    printf("%-11s nothing: this program was built without NCCL's headers\n", section_name(section_plugin));
    return {};
}

#endif

/* ---- speeds ---- */

Count run_bench(const Options &options, const std::string &command, FILE *json)
{
    cb_gpu_report_t report = {};
    std::vector<cb_gpu_line_t> lines;
    report.command = command.c_str();
    report.json = json;
    if (cb_gpu_report_begin(&report) != TW_OK) {
        return {0, 1, 0};
    }
    Count count;
    for (const cb_case_t &each : bench_cases(options.seconds)) {
        const bool written = cb_gpu_report_case(&report, &each) == TW_OK;
        (written && report.last.ok ? count.passed : count.failed)++;
        lines.push_back(report.last);
    }
    printf("\n%s\n", bench_table(lines).c_str());
    return count;
}

const std::vector<size_t> entropy_sizes = {size_t{1} << 20, size_t{64} << 20, size_t{512} << 20};

Count run_entropy_bench(const Options &options, const std::string &command, FILE *json)
{
    Count count;
    try {
        const std::vector<EntropyLine> lines = entropy_bench(entropy_sizes, options.seconds);
        for (const EntropyLine &line : lines) {
            const bool written = entropy_json(line, describe_gpu(), command, json);
            (written && line.same ? count.passed : count.failed)++;
        }
        printf("%s\n", entropy_table(lines).c_str());
    } catch (const std::exception &error) {
        printf("entropy codecs: %s\n", error.what());
        count.failed++;
    }
    return count;
}

/* ---- all ---- */

void list_entropy_bench(const Options &options)
{
    for (size_t size : entropy_sizes) {
        for (const std::string &op : entropy_ops()) {
            char bytes[32];
            if (options.sections & section_bench) {
                printf("%-11s %s bf16 %s\n", "bench", op.c_str(),
                       tw_format_bytes(size, bytes, sizeof(bytes)));
            }
        }
    }
}

void list(const Options &options)
{
    const testing::UnitTest *all = testing::UnitTest::GetInstance();
    for (int i = 0; i < all->total_test_suite_count(); i++) {
        const testing::TestSuite *suite = all->GetTestSuite(i);
        for (int t = 0; t < suite->total_test_count(); t++) {
            if (options.sections & section_of_suite(suite->name())) {
                printf("%-11s %s.%s\n", section_name(section_of_suite(suite->name())), suite->name(),
                       suite->GetTestInfo(t)->name());
            }
        }
    }
    for (const ProcessJob &job : process_jobs()) {
        for (size_t i = 0; (options.sections & section_processes) && i < job.cases.size(); i++) {
            printf("%-11s %s: %s\n", "processes", job.name.c_str(), job.cases[i].name.c_str());
        }
    }
    if (options.sections & section_plugin) {
        list_plugin();
    }
    list_entropy_bench(options);
    for (const cb_case_t &each : bench_cases(options.seconds)) {
        char codec[64], bytes[32];
        if (options.sections & section_bench) {
            printf("%-11s %s %s %s %s, %zu segments\n", "bench", cb_op_name(each.op),
                   tw_quant_codec_format(&each.codec, codec, sizeof(codec)), tw_type_name(each.type),
                   tw_format_bytes(each.n_elems * tw_type_bytes(each.type), bytes, sizeof(bytes)),
                   each.n_segments);
        }
    }
}

std::string utc_now()
{
    char text[32];
    const time_t now = time(nullptr);
    struct tm utc;
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    return text;
}

Count total_of(const Counts &counts)
{
    Count total;
    for (const auto &[section, count] : counts) {
        printf("%-11s %d passed, %d failed, %d skipped\n", section_name(section), count.passed, count.failed,
               count.skipped);
        total += count;
    }
    return total;
}

bool write_counts(FILE *json, const Count &total, const std::string &command)
{
    tw_json_t *line = tw_json_create();
    tw_json_add_string(line, "table", "gpu_check");
    tw_json_add_int(line, "passed", total.passed);
    tw_json_add_int(line, "failed", total.failed);
    tw_json_add_int(line, "skipped", total.skipped);
    tw_json_add_string(line, "gpu", describe_gpu().c_str());
    tw_json_add_string(line, "date", utc_now().c_str());
    tw_json_add_string(line, "command", command.c_str());
    const tw_status_t status = tw_json_write_line(line, json);
    tw_json_destroy(line);
    return status == TW_OK;
}

int run(const Options &options, const std::string &command)
{
    FILE *json = options.json.empty() ? stdout : fopen(options.json.c_str(), "w");
    if (!json) {
        fprintf(stderr, "gpu_check: %s: %m\n", options.json.c_str());
        return 1;
    }
    const Nccl nccl = find_nccl();
    printf("# %s: %s\n# %s\n# NCCL: %s%s\n", utc_now().c_str(), command.c_str(), describe_gpu().c_str(),
           nccl.found ? "" : "NOT FOUND, what needs it is skipped: ", nccl.text.c_str());
    fflush(stdout);
    Counts counts;
    run_tests(options, &counts);
    if (options.sections & section_processes) {
        counts[section_processes] = run_processes(nccl);
    }
    if (options.sections & section_plugin) {
        counts[section_plugin] = run_plugin(nccl);
    }
    if (options.sections & section_bench) {
        counts[section_bench] = run_bench(options, command, json);
        counts[section_bench] += run_entropy_bench(options, command, json);
    }
    Count total = total_of(counts);
    bool written = write_counts(json, total, command);
    written = (options.json.empty() || fclose(json) == 0) && written;
    if (!written) {
        fprintf(stderr, "gpu_check: %s: not everything could be written\n",
                options.json.empty() ? "standard output" : options.json.c_str());
    }
    printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped);
    return total.failed != 0 || !written;
}

int be_rank(const std::string &name)
{
    const ProcessJob *job = find_process_job(name);
    if (job == nullptr) {
        fprintf(stderr, "gpu_check: --rank-of: there is no job '%s'\n", name.c_str());
        return 2;
    }
    return run_rank(*job, cuda_rank_gpu());
}

} // namespace

int main(int argc, char **argv)
{
    std::string command;
    for (int i = 0; i < argc; i++) {
        command += (i ? " " : "") + std::string(argv[i]);
    }
    if (argc != 2 || std::string(argv[1]) != "--help") {
        testing::InitGoogleTest(&argc, argv);
    }
    const Options options = parse_options(argc, argv);
    if (!options.rank_of.empty()) {
        return be_rank(options.rank_of);
    }
    if (options.list) {
        list(options);
        return 0;
    }
    const std::string no_gpu = why_no_gpu();
    if (no_gpu.empty()) {
        return run(options, command);
    }
    printf("gpu_check: there is no GPU here that CUDA can use: %s\n0 passed, 0 failed, 0 skipped\n",
           no_gpu.c_str());
    return 77;
}

} // namespace tw::gpu

int main(int argc, char **argv)
{
    return tw::gpu::main(argc, argv);
}
