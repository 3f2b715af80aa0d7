/** gpu_check's command line. */
#ifndef TW_TESTS_GPU_OPTIONS_H
#define TW_TESTS_GPU_OPTIONS_H

#include <string>
#include <vector>

namespace tw::gpu
{

/** What gpu_check consists of. */
enum Part : unsigned {
    part_codecs = 1,
    part_sums = 2,
    part_collectives = 4,
    part_processes = 8,
    part_bench = 16,
    part_plugin = 32,
    part_trainer = 64,
    part_tests = part_codecs | part_sums | part_collectives | part_trainer, /**< GoogleTest's */
    part_all = part_tests | part_processes | part_plugin | part_bench
};

struct PartInfo {
    Part part;
    const char *name, *doc;
};
extern const std::vector<PartInfo> part_infos;
const char *part_name(Part part);

/** "codecs,bench" into a set of parts; false, and why, if a word is none of them. */
bool parse_parts(const std::string &text, unsigned *parts, std::string *why);

struct Options {
    unsigned parts = part_all;
    bool quick = false, list = false;
    std::string json; /**< "": standard output */
    double seconds = 0.2;
    std::string rank_of; /**< hidden: be a rank of this job */
};

/** Ends the program on --help and on errors. GoogleTest has taken its flags out before. */
Options parse_options(int argc, char **argv);

/** The part that a suite of GoogleTest's belongs to. */
Part part_of_suite(const std::string &suite);
/** The filter for those of the suites that belong to the wanted parts, without what is too slow for a quick
 *  run; "": none. */
std::string filter_of(const std::vector<std::string> &suites, unsigned parts, bool quick);

} // namespace tw::gpu

#endif
