#include "tests/gpu/options.h"

#include <cstddef>
#include <sstream>

#include "flags/flags.h"

namespace tw::gpu
{

const std::vector<SectionInfo> section_infos = {
    {section_codecs, "codecs", "every codec operation on the GPU, bit for bit that of the reference"},
    {section_sums, "sums", "sums and copies of plain tensors, bit for bit those of the CPU"},
    {section_collectives, "collectives", "collectives on GPU memory, ranks as threads that share the GPU"},
    {section_trainer, "trainer", "the trainer's kernels, products and models, beside those of the CPU"},
    {section_processes, "processes",
     "collectives on GPU memory between processes that share the GPU, over UCX and over NCCL; CUDA graphs; a "
     "rank that dies"},
    {section_plugin, "plugin",
     "a program that calls NCCL, with the net plugin, collnet and the interposer, in processes that share "
     "the GPU"},
    {section_bench, "bench", "speed of the codecs' kernels beside a device-to-device copy, against the bars"},
};

const char *section_name(Section section)
{
    for (const SectionInfo &info : section_infos) {
        if (info.section == section) {
            return info.name;
        }
    }
    return "?";
}

bool parse_sections(const std::string &text, unsigned *sections, std::string *why)
{
    std::istringstream words(text);
    std::string word;
    unsigned found = 0;
    while (std::getline(words, word, ',')) {
        unsigned section = 0;
        for (const SectionInfo &info : section_infos) {
            section |= word == info.name ? (unsigned)info.section : 0;
        }
        if (section == 0) {
            *why = "'" + word + "' is not one of";
            for (const SectionInfo &info : section_infos) {
                *why += std::string(" ") + info.name;
            }
            return false;
        }
        found |= section;
    }
    *why = found ? "" : "nothing is named";
    *sections = found ? found : *sections;
    return found != 0;
}

Section section_of_suite(const std::string &suite)
{
    return suite == "GpuSum"             ? section_sums
           : suite == "GpuCuda"          ? section_collectives
           : suite.rfind("Cuda", 0) == 0 ? section_trainer
                                         : section_codecs;
}

std::string filter_of(const std::vector<std::string> &suites, unsigned sections, bool quick)
{
    std::string filter;
    for (const std::string &suite : suites) {
        if (sections & section_of_suite(suite)) {
            filter += (filter.empty() ? "" : ":") + suite + ".*";
        }
    }
    if (!filter.empty() && quick) {
        filter += "-*MoreThan2To31*:*EverySizeOfInt8AndInt4*:DeltaCudaMessage.*:*/Wrong*Cuda.*:"
                  "GpuCuda.OneRankOverNccl:GpuCuda.GraphReplay:CudaModel.Larger*";
    }
    return filter;
}

/* ---- the command line ---- */

namespace
{

/* What the flags store. */
struct Read {
    unsigned sections;
    int quick, list;
    const char *json, *rank_of;
    double seconds;
};

void take_only(argp_state *state, const tw_flag_t *flag, void *options, const char *text)
{
    std::string why;
    if (!parse_sections(text, &static_cast<Read *>(options)->sections, &why)) {
        argp_error(state, "--%s: %s", flag->field.name, why.c_str());
    }
}

const tw_flag_t flag_list[] = {
    {{"only", nullptr, "PARTS",
      "Some of codecs,sums,collectives,trainer,processes,plugin,bench (default: all)", TW_CONFIG_STRING, 0, 0,
      0, nullptr},
     0,
     1,
     take_only,
     0},
    {{"quick", nullptr, nullptr,
      "Of codecs, sums, collectives and trainer a few tests on small sizes: what runs under "
      "compute-sanitizer "
      "in minutes",
      TW_CONFIG_BOOL, offsetof(Read, quick), 0, 0, nullptr},
     0,
     1,
     nullptr,
     0},
    {{"list", nullptr, nullptr, "Say what would be run, and end", TW_CONFIG_BOOL, offsetof(Read, list), 0, 0,
      nullptr},
     0,
     1,
     nullptr,
     0},
    {{"json", nullptr, "FILE",
      "Write the speeds, and a last line of counts, as JSON lines to FILE (default: to standard output)",
      TW_CONFIG_STRING, offsetof(Read, json), 0, 0, nullptr},
     0,
     1,
     nullptr,
     0},
    {{"seconds", "0.2", "S", "Time to measure each line of the bench for", TW_CONFIG_DOUBLE,
      offsetof(Read, seconds), 1e-6, 3600, nullptr},
     0,
     1,
     nullptr,
     0},
    /* without a text, so that --help leaves it out: a rank of a job of processes is started so */
    {{"rank-of", nullptr, "JOB", nullptr, TW_CONFIG_STRING, offsetof(Read, rank_of), 0, 0, nullptr},
     0,
     0,
     nullptr,
     0},
};

/* A quick run has neither processes nor a bench. */
void check_quick(argp_state *state, void *options)
{
    Read *read = static_cast<Read *>(options);
    const unsigned slow = read->sections & ~(unsigned)section_tests;
    if (!read->quick) {
        return;
    }
    if (read->sections != section_all && slow) {
        argp_error(state, "--quick has no %s",
                   slow & section_bench    ? "bench"
                   : slow & section_plugin ? "plugin"
                                           : "processes");
    }
    read->sections &= section_tests;
}

const tw_flags_t flags = {
    flag_list,
    sizeof(flag_list) / sizeof(flag_list[0]),
    "Tests everything that needs a GPU on the GPU that is here, against the CPU, and measures the codecs' "
    "kernels.\vThe last line is \"N passed, N failed, N skipped\". GoogleTest's flags "
    "(--gtest_filter=PATTERN, ...) work too. Exit status: 0 nothing failed, 1 something failed, 2 bad usage, "
    "77 no GPU.",
    nullptr,
    nullptr,
    check_quick,
};

} // namespace

Options parse_options(int argc, char **argv)
{
    Read read = {section_all, 0, 0, "", "", 0};
    tw_flags_read(&flags, argc, argv, &read);
    Options options;
    options.sections = read.sections;
    options.quick = read.quick;
    options.list = read.list;
    options.json = read.json;
    options.rank_of = read.rank_of;
    options.seconds = read.seconds;
    return options;
}

} // namespace tw::gpu
