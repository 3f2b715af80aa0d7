/* The real NCCL takes the plugin, as far as that goes without a GPU. */
#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

std::string g_folder, g_loader;

process::Result load(const std::map<std::string, std::string> &env)
{
    process::Spec spec;
    spec.argv = {g_loader};
    spec.env = {{"LD_LIBRARY_PATH", g_folder}, {"NCCL_NET_PLUGIN", "thinwire"}, {"NCCL_NET", "Thinwire"},
                {"NCCL_COLLNET_ENABLE", "1"},  {"NCCL_DEBUG", "INFO"},          {"NCCL_DEBUG_SUBSYS", "ALL"},
                {"TW_NET_DEVICES", "lo"}};
    for (const auto &[name, value] : env) {
        spec.env[name] = value;
    }
    spec.stderr_to = process::Stderr::with_stdout;
    return process::Child(spec).wait(60);
}

bool contains(const std::string &text, const std::string &what)
{
    return text.find(what) != std::string::npos;
}

#define SKIP_WITHOUT_NCCL(result)                                       \
    if ((result).code == 77) {                                          \
        GTEST_SKIP() << "no NCCL to load the plugin: " << (result).out; \
    }

TEST(Nccl, TakesNetCollnetAndTuner)
{
    const process::Result result = load({{"TW_ALLREDUCE_CODEC", "int8"}});
    SKIP_WITHOUT_NCCL(result);
    EXPECT_EQ(result.code, 0) << result.out;
    for (const char *line : {"Loaded net plugin Thinwire (v1", "Loaded collnet plugin Thinwire (v1",
                             "thinwire: net: device 0: lo", "Initialized NET plugin Thinwire",
                             "Assigned NET plugin Thinwire to comm", "Using Thinwire"}) {
        EXPECT_TRUE(contains(result.out, line)) << line << " is not in:\n" << result.out;
    }
}

/* The net stays, and NCCL's log has the reason. */
TEST(Nccl, GoesOnWithoutACollnetThatIsSetWrongly)
{
    const process::Result result = load({{"TW_ALLREDUCE_CODEC", "int7"}, {"NCCL_TUNER_PLUGIN", "none"}});
    SKIP_WITHOUT_NCCL(result);
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_TRUE(contains(result.out, "thinwire: collnet: TW_ALLREDUCE_CODEC=int7")) << result.out;
    EXPECT_TRUE(contains(result.out, "Assigned NET plugin Thinwire to comm")) << result.out;
}

/* 2.28 also ends what failed to begin. */
TEST(Nccl, SurvivesAnInitThatFails)
{
    const process::Result result = load({{"TW_NET_DEVICES", "nowhere"}});
    SKIP_WITHOUT_NCCL(result);
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_TRUE(contains(result.out, "\"nowhere\" is not up, or has no address")) << result.out;
    EXPECT_TRUE(contains(result.out, "Failed to initialize NET plugin Thinwire")) << result.out;
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc < 3) {
        return 2;
    }
    const std::string library = argv[1];
    g_folder = library.substr(0, library.rfind('/'));
    g_loader = argv[2];
    return RUN_ALL_TESTS();
}
