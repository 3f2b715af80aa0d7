/* main() of a test whose cases mostly wait: they run side by side, in processes of their own, six or as many
 * as SIDE_BY_SIDE says. Each takes every n-th case, as GoogleTest's sharding does it; what they say and
 * report comes one after the other. GTEST_TOTAL_SHARDS=1 in the environment: in this process, for a
 * debugger. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

/* One at least: none would run nothing, and pass. */
int count_parts()
{
    const char *told = getenv("SIDE_BY_SIDE");
    return told ? std::max(atoi(told), 1) : 6;
}

std::string file_of(const char *report, int part)
{
    return std::string(report) + "." + std::to_string(part);
}

std::unique_ptr<process::Child> start(int part, int n_parts, int argc, char **argv, const char *report)
{
    process::Spec spec;
    spec.argv.assign(argv, argv + argc);
    spec.argv[0] = "/proc/self/exe";
    spec.env["GTEST_TOTAL_SHARDS"] = std::to_string(n_parts);
    spec.env["GTEST_SHARD_INDEX"] = std::to_string(part);
    spec.env["TEST_PREMATURE_EXIT_FILE"] = ""; /* it is one for all; who ends early leaves no report */
    if (report) {
        spec.env["XML_OUTPUT_FILE"] = file_of(report, part);
    }
    spec.stderr_to = process::Stderr::with_stdout;
    return std::make_unique<process::Child>(spec);
}

/* What a part's report has inside of its root; empty: there is none. */
std::string suites_of(const std::string &path)
{
    const std::string text = process::slurp(path);
    const size_t root = text.find("<testsuites"), begin = text.find('>', root);
    const size_t end = text.rfind("</testsuites>");
    (void)std::remove(path.c_str());
    return root == std::string::npos || end == std::string::npos ? ""
                                                                 : text.substr(begin + 1, end - begin - 1);
}

/* The reports of all as one. Returns 1 if one ended without. */
int write_report(const char *report, int n_parts)
{
    std::ofstream out(report);
    int code = 0;
    out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>";
    for (int i = 0; i < n_parts; i++) {
        const std::string suites = suites_of(file_of(report, i));
        out << suites;
        if (suites.empty()) {
            code = 1;
            out << "<testsuite name=\"part\"><testcase name=\"" << i
                << "\"><failure message=\"it ended without a report\"/></testcase></testsuite>\n";
        }
    }
    out << "</testsuites>\n";
    return code;
}

int run_parts(int argc, char **argv)
{
    const char *report = getenv("XML_OUTPUT_FILE");
    const int n_parts = count_parts();
    std::vector<std::unique_ptr<process::Child>> parts;
    std::vector<process::Child *> all;
    int code = 0;
    for (int i = 0; i < n_parts; i++) {
        parts.push_back(start(i, n_parts, argc, argv, report));
        all.push_back(parts.back().get());
    }
    for (bool left = true; left;) {
        process::listen(all, 1000);
        left = false;
        for (process::Child *part : all) {
            left = left || part->pid() > 0;
        }
    }
    for (process::Child *part : all) {
        const process::Result ending = part->wait();
        std::cout << ending.out;
        code = ending.code ? ending.code : code;
    }
    std::cout.flush();
    return report && write_report(report, n_parts) ? 1 : code;
}

bool lists_only(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--gtest_list_tests", strlen("--gtest_list_tests")) ||
            !strcmp(argv[i], "--help")) {
            return true;
        }
    }
    return false;
}

} // namespace

int main(int argc, char **argv)
{
    if (!getenv("GTEST_TOTAL_SHARDS") && !lists_only(argc, argv)) {
        return run_parts(argc, argv);
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
