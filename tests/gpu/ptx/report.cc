#include "tests/gpu/ptx/report.h"

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

uint64_t warp_instructions;

namespace
{

struct Entry {
    std::string kind, first;
    uint64_t n = 0;
};

struct Book {
    std::map<std::string, Entry> reports;
    std::map<std::string, Count> kernels;
};

bool expected(const std::string &kind)
{
    return ("," + settings().expect + ",").find("," + kind + ",") != std::string::npos;
}

Book &book();

/* At the end of the program: the counts, and a failure that the program did not see itself. */
void close_book()
{
    FILE *out = settings().log.empty() ? stderr : fopen(settings().log.c_str(), "w");
    bool failed = false;
    if (!out) {
        fprintf(stderr, "ptx: %s: %m\n", settings().log.c_str());
        _exit(3);
    }
    fprintf(out, "ptx: %zu kernels, %llu warp instructions, %zu reports\n", book().kernels.size(),
            (unsigned long long)warp_instructions, book().reports.size());
    for (const auto &[name, count] : book().kernels) {
        if (out != stderr) {
            fprintf(out, "KERNEL %llu %s\n", (unsigned long long)count.launches, name.c_str());
        }
    }
    for (const auto &[key, entry] : book().reports) {
        failed = failed || !expected(entry.kind);
        fprintf(out, "REPORT %llu %s\n    first: %s\n", (unsigned long long)entry.n, key.c_str(),
                entry.first.c_str());
    }
    fflush(out);
    if (failed) {
        fprintf(stderr, "ptx: there are reports that were not expected\n");
        fflush(nullptr);
        _exit(3);
    }
}

Book &book()
{
    static auto *all = [] {
        atexit(close_book);
        return new Book;
    }();
    return *all;
}

} // namespace

void report(const std::string &kind, const std::string &where, const std::string &text)
{
    const std::string key = where.empty() ? kind : kind + " | " + where;
    Entry &entry = book().reports[key];
    if (entry.n++ == 0) {
        entry.kind = kind;
        entry.first = text;
        if (!expected(kind)) {
            fprintf(stderr, "ptx: %s\n    %s\n", key.c_str(), text.c_str());
        }
    }
}

std::map<std::string, uint64_t> report_counts()
{
    std::map<std::string, uint64_t> counts;
    for (const auto &[key, entry] : book().reports) {
        counts[entry.kind] += entry.n;
    }
    return counts;
}

void clear_reports()
{
    book().reports.clear();
}

Count &count_launch(const std::string &kernel)
{
    Count &count = book().kernels[kernel];
    count.launches++;
    return count;
}

const std::map<std::string, Count> &counts()
{
    return book().kernels;
}

std::map<std::string, uint64_t> &call_counts()
{
    static auto *all = new std::map<std::string, uint64_t>;
    return *all;
}

void clear_counts()
{
    call_counts().clear();
    book().kernels.clear();
}

void fatal(const std::string &text)
{
    fprintf(stderr, "ptx: %s\n", text.c_str());
    fflush(nullptr);
    abort();
}

} // namespace tw::ptx
