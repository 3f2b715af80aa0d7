#include "tests/gpu/options.h"

#include <cstring>
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
     "the "
     "GPU"},
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
        filter += "-*MoreThan2To31*:*EverySizeOfInt8AndInt4*:DeltaCudaMessage.*:LosslessCudaMessage.*:"
                  "GpuCuda.OneRankOverNccl:GpuCuda.GraphReplay:CudaModel.Larger*";
    }
    return filter;
}

/* ---- the command line ---- */

namespace
{

enum { KEY_JSON = 256, KEY_QUICK, KEY_ONLY, KEY_SECONDS, KEY_LIST, KEY_RANK_OF };

const argp_option option_list[] = {
    {"only", KEY_ONLY, "PARTS", 0,
     "Some of codecs,sums,collectives,trainer,processes,plugin,bench (default: all)", 0},
    {"quick", KEY_QUICK, nullptr, 0,
     "Of codecs, sums, collectives and trainer a few tests on small sizes: what runs under compute-sanitizer "
     "in "
     "minutes",
     0},
    {"list", KEY_LIST, nullptr, 0, "Say what would be run, and end", 0},
    {"json", KEY_JSON, "FILE", 0,
     "Write the speeds, and a last line of counts, as JSON lines to FILE (default: to standard output)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "Time to measure each line of the bench for (default: 0.2)", 0},
    {"rank-of", KEY_RANK_OF, "JOB", OPTION_HIDDEN, "Be a rank of a job of processes", 0},
    {nullptr, 0, nullptr, 0, nullptr, 0},
};

void parse_only(const char *arg, argp_state *state, Options *options)
{
    std::string why;
    if (!parse_sections(arg, &options->sections, &why)) {
        argp_error(state, "--only: %s", why.c_str());
    }
}

void parse_seconds(const char *arg, argp_state *state, Options *options)
{
    const tw_config_field_t field = {"seconds", nullptr, "S",  nullptr, TW_CONFIG_DOUBLE,
                                     0,         1e-6,    3600, nullptr};
    if (tw_config_parse(&field, &options->seconds, arg) != TW_OK) {
        argp_error(state, "--seconds: '%s' is not a number from 1e-6 to 3600", arg);
    }
}

/* A quick run has neither processes nor a bench. */
void check_quick(argp_state *state, Options *options)
{
    const unsigned slow = options->sections & ~(unsigned)section_tests;
    if (!options->quick) {
        return;
    }
    if (options->sections != section_all && slow) {
        argp_error(state, "--quick has no %s",
                   slow & section_bench    ? "bench"
                   : slow & section_plugin ? "plugin"
                                           : "processes");
    }
    options->sections &= section_tests;
}

error_t parse_option(int key, char *arg, argp_state *state)
{
    Options *options = static_cast<Options *>(state->input);
    switch (key) {
    case KEY_JSON:
        options->json = arg;
        return 0;
    case KEY_QUICK:
        options->quick = true;
        return 0;
    case KEY_ONLY:
        parse_only(arg, state, options);
        return 0;
    case KEY_SECONDS:
        parse_seconds(arg, state, options);
        return 0;
    case KEY_LIST:
        options->list = true;
        return 0;
    case KEY_RANK_OF:
        options->rank_of = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': there are no arguments but options", arg);
        return EINVAL;
    case ARGP_KEY_END:
        check_quick(state, options);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

} // namespace

Options parse_options(int argc, char **argv)
{
    const argp parser = {option_list,
                         parse_option,
                         nullptr,
                         "Tests everything that needs a GPU on the GPU that is here, against the CPU, and "
                         "measures the codecs' kernels.\vThe last line is \"N passed, N failed, N skipped\". "
                         "GoogleTest's flags (--gtest_filter=PATTERN, ...) work too. Exit status: 0 "
                         "nothing failed, 1 something failed, 2 bad usage, 77 no GPU.",
                         nullptr,
                         nullptr,
                         nullptr};
    Options options;
    tw_flags_parse(&parser, argc, argv, 0, &options);
    return options;
}

} // namespace tw::gpu
