/* The command line of gpu_check. */
#include <gtest/gtest.h>

#include "tests/gpu/options.h"

namespace
{

using namespace tw::gpu;

Options parse(std::vector<std::string> words)
{
    std::vector<char *> argv;
    words.insert(words.begin(), "gpu_check");
    for (std::string &word : words) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    return parse_options((int)words.size(), argv.data());
}

TEST(Options, Defaults)
{
    const Options options = parse({});
    EXPECT_EQ(options.sections, (unsigned)section_all);
    EXPECT_FALSE(options.quick || options.list);
    EXPECT_EQ(options.json, "");
    EXPECT_EQ(options.rank_of, "");
    EXPECT_EQ(options.seconds, 0.2);
}

TEST(Options, Only)
{
    EXPECT_EQ(parse({"--only", "codecs"}).sections, (unsigned)section_codecs);
    EXPECT_EQ(parse({"--only=sums,bench"}).sections, (unsigned)(section_sums | section_bench));
    EXPECT_EQ(parse({"--only=codecs,sums,collectives,trainer,processes,plugin,bench"}).sections,
              (unsigned)section_all);
    EXPECT_EXIT(parse({"--only=codec"}), testing::ExitedWithCode(2),
                "'codec' is not one of codecs sums collectives trainer processes plugin bench");
    EXPECT_EXIT(parse({"--only=codecs,,sums"}), testing::ExitedWithCode(2), "'' is not one of");
    EXPECT_EXIT(parse({"--only="}), testing::ExitedWithCode(2), "nothing is named");
}

TEST(Options, Quick)
{
    EXPECT_EQ(parse({"--quick"}).sections, (unsigned)section_tests);
    EXPECT_EQ(parse({"--quick", "--only=collectives"}).sections, (unsigned)section_collectives);
    EXPECT_EXIT(parse({"--only=processes", "--quick"}), testing::ExitedWithCode(2),
                "--quick has no processes");
    EXPECT_EXIT(parse({"--quick", "--only=sums,bench"}), testing::ExitedWithCode(2), "--quick has no bench");
}

TEST(Options, TheOthers)
{
    const Options options = parse({"--json", "a.jsonl", "--seconds=1.5", "--list", "--rank-of=ucx 2+2"});
    EXPECT_EQ(options.json, "a.jsonl");
    EXPECT_EQ(options.seconds, 1.5);
    EXPECT_TRUE(options.list);
    EXPECT_EQ(options.rank_of, "ucx 2+2");
}

TEST(Options, Refused)
{
    for (const char *bad : {"--seconds=0", "--seconds=-1", "--seconds=nan", "--seconds=1s", "--seconds="}) {
        EXPECT_EXIT(parse({bad}), testing::ExitedWithCode(2), "is not a number, from 1e-06 to 3600") << bad;
    }
    EXPECT_EXIT(parse({"codecs"}), testing::ExitedWithCode(2), "what is 'codecs'");
    EXPECT_EXIT(parse({"--jsom=x"}), testing::ExitedWithCode(2), "");
}

TEST(Options, SuitesAndParts)
{
    const std::vector<std::string> suites = {"QuantCuda", "GpuSum", "GpuCuda", "CudaNorm", "QuantTwins"};
    EXPECT_EQ(filter_of(suites, section_codecs, false), "QuantCuda.*:QuantTwins.*");
    EXPECT_EQ(filter_of(suites, section_sums | section_processes, false), "GpuSum.*");
    EXPECT_EQ(filter_of(suites, section_collectives, false), "GpuCuda.*");
    EXPECT_EQ(filter_of(suites, section_trainer, false), "CudaNorm.*");
    EXPECT_EQ(filter_of(suites, section_bench, false), "");
    EXPECT_EQ(filter_of(suites, section_bench, true), "");
    EXPECT_EQ(filter_of(suites, section_sums, true).find("GpuSum.*-*MoreThan2To31*:"), 0u);
    for (const SectionInfo &info : section_infos) {
        EXPECT_STREQ(section_name(info.section), info.name);
    }
}

} // namespace
