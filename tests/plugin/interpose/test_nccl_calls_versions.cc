/* The product itself in front of NVIDIA's libraries, as far as they go without a GPU: it loads, and answers
 * are NCCL's. */
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <link.h>

#include <gtest/gtest.h>

#include "tests/common/process.h"
#include "tests/plugin/interpose/preload.h"

namespace
{

std::string program, library;

/** Folders of the one that was found when this was built, and of those that the environment names, separated
 *  by colons. */
std::vector<std::string> folders()
{
    std::vector<std::string> found;
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    link_map *map = nullptr;
    if (nccl != nullptr && dlinfo(nccl, RTLD_DI_LINKMAP, &map) == 0) {
        found.push_back(std::filesystem::path(map->l_name).parent_path());
    }
    const char *more = getenv("TW_TEST_NCCL_LIBRARIES");
    for (const char *at = more != nullptr ? more : ""; *at != '\0';) {
        size_t n = strcspn(at, ":");
        found.push_back(std::filesystem::path(std::string(at, n)).parent_path());
        at += n + (at[n] == ':');
    }
    return found;
}

process::Result run(const std::string &folder, bool preload)
{
    process::Spec spec;
    spec.argv = {program};
    spec.env = {{"LD_LIBRARY_PATH", folder}, {"TW_INTERPOSE_GATHERS", "int8"}, {"TW_INTERPOSE_SUMS", "int4"}};
    if (preload) {
        spec.env["LD_PRELOAD"] = preload_with(library);
    }
    return process::Child(spec).wait(60);
}

TEST(Versions, AnswersAreNccls)
{
    if (folders().empty()) {
        GTEST_SKIP() << "no NCCL where this runs";
    }
    for (const std::string &folder : folders()) {
        process::Result plain = run(folder, false), with = run(folder, true);
        EXPECT_EQ(plain.code, 0) << folder << ": " << plain.out << plain.err;
        EXPECT_EQ(with.code, 0) << folder << ": " << with.out << with.err;
        EXPECT_EQ(with.out, plain.out) << folder;
        EXPECT_EQ(with.err, plain.err) << folder;
    }
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: test_versions PROGRAM LIBRARY\n");
        return 2;
    }
    program = std::filesystem::absolute(argv[1]);
    library = std::filesystem::absolute(argv[2]);
    return RUN_ALL_TESTS();
}
