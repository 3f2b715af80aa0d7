/** gpu_check's command line. */
#ifndef TW_TESTS_GPU_OPTIONS_H
#define TW_TESTS_GPU_OPTIONS_H

#include <string>
#include <vector>

namespace tw::gpu
{

/** What gpu_check consists of. */
enum Section : unsigned {
    section_codecs = 1,
    section_sums = 2,
    section_collectives = 4,
    section_processes = 8,
    section_bench = 16,
    section_plugin = 32,
    section_trainer = 64,
    section_tests =
        section_codecs | section_sums | section_collectives | section_trainer, /**< GoogleTest's */
    section_all = section_tests | section_processes | section_plugin | section_bench
};

struct SectionInfo {
    Section section;
    const char *name, *doc;
};
extern const std::vector<SectionInfo> section_infos;
const char *section_name(Section section);

/** "codecs,bench" into a set of parts; false, and why, if a word is none of them. */
bool parse_sections(const std::string &text, unsigned *sections, std::string *why);

struct Options {
    unsigned sections = section_all;
    bool quick = false, list = false;
    std::string json; /**< "": standard output */
    double seconds = 0.2;
    std::string rank_of; /**< hidden: be a rank of this job */
};

/** Ends the program on --help and on errors. GoogleTest has taken its flags out before. */
Options parse_options(int argc, char **argv);

/** The part that a suite of GoogleTest's belongs to. */
Section section_of_suite(const std::string &suite);
/** The filter for those of the suites that belong to the wanted parts, without what is too slow for a quick
 *  run; "": none. */
std::string filter_of(const std::vector<std::string> &suites, unsigned sections, bool quick);

} // namespace tw::gpu

#endif
