/* libnccl-net-thinwire.so as a file: what it exports, that it opens in a plain C program, and that it
 * stays. */
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "tests/common/process.h"

namespace
{

std::string g_library, g_opener;

const std::set<std::string> exported = {
    "ncclNetPlugin_v7",      "ncclNetPlugin_v8",      "ncclNetPlugin_v9",      "ncclNetPlugin_v10",
    "ncclNetPlugin_v11",     "ncclNetPlugin_v12",     "ncclCollNetPlugin_v8",  "ncclCollNetPlugin_v9",
    "ncclCollNetPlugin_v10", "ncclCollNetPlugin_v11", "ncclCollNetPlugin_v12", "ncclTunerPlugin_v2",
    "ncclTunerPlugin_v3",    "ncclTunerPlugin_v4",    "ncclTunerPlugin_v5",    "ncclTunerPlugin_v6",
    "ncclTunerPlugin_v7",
};

TEST(Library, ExportsThePluginsSymbolsAndNothingElse)
{
    const process::Result nm =
        process::run({"nm", "-D", "--defined-only", "--format=just-symbols", g_library});
    ASSERT_EQ(nm.code, 0) << nm.err;
    std::set<std::string> found;
    std::istringstream lines(nm.out);
    for (std::string line; std::getline(lines, line);) {
        found.insert(line);
    }
    EXPECT_EQ(found, exported);
}

/* UCX is loaded where it is asked for, and what else is needed is inside, but for a sanitizer's own. */
TEST(Library, NeedsGlibcAlone)
{
    const process::Result dynamic = process::run({"readelf", "-d", g_library});
    ASSERT_EQ(dynamic.code, 0) << dynamic.err;
    const std::regex expected(
        ".*\\[(libc|libm|libpthread|libdl|librt|ld-linux-x86-64|libgcc_s|lib[aut]b?san)\\.so\\.[0-9]+\\]");
    std::istringstream lines(dynamic.out);
    int n_needed = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.find("(NEEDED)") != std::string::npos) {
            n_needed++;
            EXPECT_TRUE(std::regex_match(line, expected)) << line;
        }
    }
    EXPECT_GE(n_needed, 1);
}

TEST(Library, OpensInAPlainProgramAndStays)
{
    std::vector<std::string> argv = {g_opener, g_library};
    argv.insert(argv.end(), exported.begin(), exported.end());
    const process::Result result = process::run(argv);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), (long)exported.size()) << result.out;
    EXPECT_NE(result.out.find("ncclTunerPlugin_v6 is \"Thinwire\""), std::string::npos) << result.out;
}

TEST(Library, TheOpenerNoticesWhatIsNotThere)
{
    EXPECT_NE(process::run({g_opener, g_library, "ncclTunerPlugin_v99"}).code, 0);
    EXPECT_NE(process::run({g_opener, "/no/such/library.so", "x"}).code, 0);
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc < 3) {
        return 2;
    }
    g_library = argv[1];
    g_opener = argv[2];
    return RUN_ALL_TESTS();
}
