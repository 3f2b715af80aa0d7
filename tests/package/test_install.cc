/* What `./bazelw run //:install` leaves, and that a program of somebody else's compiles against it, links and
 * runs. */
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "core/core.h"
#include "tests/common/process.h"

namespace
{

std::vector<std::string> g_install; /* the installer with what the build tells it */

process::Result shell(const std::string &command)
{
    return process::run({"/bin/sh", "-c", command});
}

/* One installation for all tests. */
class Install : public testing::Test
{
  protected:
    static void SetUpTestSuite()
    {
        const char *folder = getenv("TEST_TMPDIR");
        prefix = std::string(folder != nullptr ? folder : "/tmp") + "/prefix";
        std::vector<std::string> args = g_install;
        args.insert(args.end(), {"--prefix", prefix});
        const process::Result result = process::run(args);
        ASSERT_EQ(result.code, 0) << result.err;
    }
    /* Compiles text as `language` ("c", "c++") with pkg-config's flags; returns what the compiler says. */
    static process::Result compile(const std::string &text, const std::string &language,
                                   const std::string &flags = "")
    {
        std::ofstream(prefix + "/program." + language) << text;
        const std::string pkg_config =
            "PKG_CONFIG_PATH=" + prefix + "/lib/pkgconfig pkg-config --cflags --libs thinwire";
        return shell("cd " + prefix + " && cc -Wall -Wextra -Werror -x " + language + " program." + language +
                     " -o program " + flags + " $(" + pkg_config + ")");
    }
    static process::Result run_program()
    {
        return shell("LD_LIBRARY_PATH=" + prefix + "/lib " + prefix + "/program");
    }

    static std::string prefix;
};

std::string Install::prefix;

TEST_F(Install, ProgramCompilesLinksAndRuns)
{
    const char *text = "#include <stdio.h>\n"
                       "#include \"collectives/collectives.h\"\n"
                       "int main(void)\n"
                       "{\n"
                       "    tw_quant_codec_t codec;\n"
                       "    char text[64];\n"
                       "    if (tw_quant_codec_parse(\"int4\", &codec) != TW_OK)\n"
                       "        return 1;\n"
                       "    tw_quant_codec_format(&codec, text, sizeof(text));\n"
                       "    puts(text);\n"
                       "    return 0;\n"
                       "}\n";
    const process::Result compiled = compile(text, "c", "-std=c11 -pedantic");
    ASSERT_EQ(compiled.code, 0) << compiled.err;
    const process::Result run = run_program();
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(run.out.rfind("int4", 0), 0u) << run.out;
}

/* The README's program. */
std::string program_of_readme()
{
    const std::string text = process::slurp("README.md");
    const size_t begin = text.find("```c\n") + 5;
    return text.substr(begin, text.find("\n```", begin) + 1 - begin);
}

TEST_F(Install, ReadmesProgramGathersBetweenTwoNodes)
{
    const std::string text = program_of_readme();
    ASSERT_NE(text.find("tw_coll_world_create"), std::string::npos) << text;
    const process::Result compiled = compile(text, "c", "-std=c11");
    ASSERT_EQ(compiled.code, 0) << compiled.err;

    const std::string port = std::to_string(process::free_port());
    std::vector<std::unique_ptr<process::Child>> ranks;
    for (int r = 0; r < 2; r++) {
        const std::string rank = std::to_string(r);
        ranks.push_back(std::make_unique<process::Child>(std::vector<std::string>{
            "/usr/bin/env", "LD_LIBRARY_PATH=" + prefix + "/lib", "RANK=" + rank, "WORLD_SIZE=2",
            "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
            "TW_RENDEZVOUS_PORT=" + port, "TW_NODE_ID=node" + rank, "TW_COLL_MODEL=inter:beta=1gbit",
            prefix + "/program"}));
    }
    for (int r = 0; r < 2; r++) {
        const process::Result run = ranks[static_cast<size_t>(r)]->wait();
        EXPECT_EQ(run.code, 0) << run.err;
        unsigned long long bytes = 0;
        const std::string form = "rank " + std::to_string(r) + " of 2: success, %llu bytes to other nodes\n";
        ASSERT_EQ(sscanf(run.out.c_str(), form.c_str(), &bytes), 1) << run.out << run.err;
        /* Half of 2^20 elements, four bits each, at most 5 % of scales and headers. */
        EXPECT_GE(bytes, (1u << 19) / 2);
        EXPECT_LE(static_cast<double>(bytes), (1u << 19) / 2 * 1.05);
    }
}

TEST_F(Install, HeadersAreCxxToo)
{
    const process::Result compiled =
        compile("#include \"collectives/collectives.h\"\n"
                "int main()\n{\n    return tw_status_string(TW_OK) == nullptr;\n}\n",
                "c++", "-std=c++17 -lstdc++");
    ASSERT_EQ(compiled.code, 0) << compiled.err;
    EXPECT_EQ(run_program().code, 0);
}

/* Names of functions with a prototype, as the preprocessor leaves them; an own way of finding them. */
std::set<std::string> declared_functions(const std::string &prefix)
{
    const process::Result text =
        shell("cd " + prefix + "/include/thinwire && for h in */*.h; do cc -E -P -I. $h; done");
    const std::regex prototype("\\b(tw_[a-z0-9_]+) ?\\((?!\\*)"); /* nor pointers to functions */
    std::set<std::string> names;
    std::istringstream lines(text.out);
    std::string statement;
    while (std::getline(lines, statement, ';')) {
        std::smatch match;
        /* Not what an inline function calls. */
        if (statement.find('{') == std::string::npos && statement.find("return") == std::string::npos &&
            std::regex_search(statement, match, prototype)) {
            names.insert(match[1]);
        }
    }
#ifndef TW_HAVE_CUDA
    names.erase("tw_quant_cuda_status"); /* for those who compile with CUDA */
#endif
    return names;
}

/* "0.3" of "libthinwire.so.0.3", as the build tells the installer. */
std::string abi_version()
{
    const auto name = std::find(g_install.begin(), g_install.end(), "--soname") + 1;
    return name < g_install.end() ? name->substr(std::string("libthinwire.so.").size()) : "";
}

TEST_F(Install, ExportsWhatTheHeadersDeclareAndNothingElse)
{
    const process::Result nm = shell("nm -D --defined-only " + prefix +
                                     "/lib/libthinwire.so | awk '{print $2, $3}' | sed 's/@.*//'");
    ASSERT_EQ(nm.code, 0) << nm.err;
    std::set<std::string> functions, others;
    std::istringstream lines(nm.out);
    std::string type, name;
    while (lines >> type >> name) {
        (type == "T" ? functions : others).insert(name);
    }
    EXPECT_EQ(functions, declared_functions(prefix));
    EXPECT_GT(functions.size(), 50u);
    for (const std::string &other : others) { /* variables, and the version's own name */
        EXPECT_TRUE(std::regex_match(other, std::regex("tw_\\w+_config_table|THINWIRE_" + abi_version())))
            << other;
    }
}

TEST_F(Install, SonameIsWhatTheLinksSay)
{
    const std::string soname = "libthinwire.so." + abi_version();
    const process::Result dynamic = shell("readelf -d " + prefix + "/lib/libthinwire.so");
    EXPECT_NE(dynamic.out.find("Library soname: [" + soname + "]"), std::string::npos) << dynamic.out;
    EXPECT_EQ(shell("readlink " + prefix + "/lib/libthinwire.so").out, soname + "\n");
    EXPECT_EQ(shell("test -f " + prefix + "/lib/" + soname).code, 0);
    EXPECT_EQ(std::string(TW_VERSION).rfind(abi_version() + ".", 0), 0u) << "0.N.x has the interface 0.N";
}

/* A program that was compiled against another interface must not find this library under its name. */
TEST_F(Install, InterfaceIsThatOfItsVersion)
{
    const process::Result text = shell("tests/package/abi.sh " + prefix);
    ASSERT_EQ(text.code, 0) << text.err;
    const std::string now = text.out, path = "tests/package/abi-" + abi_version() + ".txt";
    const std::string held = process::slurp(path);
    ASSERT_GT(now.size(), 20000u);
    ASSERT_NE(now.find("sizeof(tw_coll_args_t) "), std::string::npos);
    if (now == held) {
        return;
    }
    size_t at = std::mismatch(now.begin(), now.end(), held.begin(), held.end()).first - now.begin();
    at = at ? now.rfind('\n', at - 1) + 1 : 0;
    ADD_FAILURE() << "the interface differs from " << path << " at \""
                  << now.substr(at, now.find('\n', at) - at) << "\". Once " << abi_version()
                  << " has been released that needs another ABI (package/defs.bzl)"
                  << " and TW_VERSION; tests/package/abi.sh makes its file";
}

TEST_F(Install, SaysWhichVersionIsLoaded)
{
    const process::Result compiled =
        compile("#include <stdio.h>\n#include \"core/core.h\"\nint main(void)\n{\n    puts(tw_version());\n"
                "    return 0;\n}\n",
                "c");
    ASSERT_EQ(compiled.code, 0) << compiled.err;
    EXPECT_EQ(run_program().out, TW_VERSION "\n");
    EXPECT_EQ(shell("PKG_CONFIG_PATH=" + prefix + "/lib/pkgconfig pkg-config --modversion thinwire").out,
              TW_VERSION "\n");
}

/* A program of somebody's own names may link it: nothing but the interface is seen. */
TEST_F(Install, StaticLibraryHasTheSameInterface)
{
    const std::string archive = prefix + "/lib/libthinwire.a";
    const process::Result nm = shell("nm -g --defined-only " + archive + " | awk '$2 == \"T\" {print $3}'");
    std::istringstream lines(nm.out);
    std::set<std::string> functions;
    for (std::string name; lines >> name;) {
        functions.insert(name);
    }
    EXPECT_EQ(functions, declared_functions(prefix));

    std::ofstream(prefix + "/static.c") << program_of_readme();
    const std::string pkg_config = "PKG_CONFIG_PATH=" + prefix + "/lib/pkgconfig pkg-config ";
    const process::Result linked =
        shell("cd " + prefix + " && cc -std=c11 static.c -o static $(" + pkg_config +
              "--cflags thinwire) $(" + pkg_config + "--variable=archive thinwire)");
    ASSERT_EQ(linked.code, 0) << linked.err;
    EXPECT_EQ(shell("readelf -d " + prefix + "/static").out.find("libthinwire"), std::string::npos);
    const process::Result run = shell(prefix + "/static");
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_NE(run.out.find("rank 0 of 1: success"), std::string::npos) << run.out;
}

/** Whatever shared library is installed. */
std::vector<std::string> libraries(const std::string &prefix)
{
    std::istringstream lines(shell("find " + prefix + "/lib -name '*.so*' -type f").out);
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) {
        all.push_back(line);
    }
    return all;
}

TEST_F(Install, ThoseForNcclAreThere)
{
    EXPECT_EQ(shell("nm -D " + prefix + "/lib/libnccl-net-thinwire.so | grep -c ncclNetPlugin_v12").out,
              "1\n");
    EXPECT_GE(libraries(prefix).size(), 2u);
}

/* What the libraries ask the loader for. */
TEST_F(Install, NeedGlibcAlone)
{
    for (const std::string &path : libraries(prefix)) {
        const process::Result dynamic = shell("readelf -d " + path);
        ASSERT_EQ(dynamic.code, 0) << dynamic.err;
        std::istringstream lines(dynamic.out);
        const std::regex library("NEEDED.*\\[(.*)\\]");
        const std::regex expected(
            "(libc|libm|libpthread|libdl|librt|ld-linux-x86-64|libgcc_s)\\.so\\.[0-9]+");
        size_t n_libraries = 0;
        for (std::string line; std::getline(lines, line);) {
            std::smatch match;
            if (std::regex_search(line, match, library)) {
                EXPECT_TRUE(std::regex_match(match[1].str(), expected)) << path << line;
                n_libraries++;
            }
            EXPECT_EQ(line.find("PATH"), std::string::npos)
                << path << ": a folder of the machine that built it: " << line;
        }
        EXPECT_GE(n_libraries, 1u);
    }
}

/* That of RHEL 9; a newer one would leave its users out. */
TEST_F(Install, NeedNoNewerGlibc)
{
    for (const std::string &path : libraries(prefix)) {
        const process::Result newest =
            shell("objdump -T " + path + " | grep -o 'GLIBC_2[.][0-9]*' | sort -uV | tail -1");
        ASSERT_EQ(newest.out.rfind("GLIBC_2.", 0), 0u) << path << newest.err;
        EXPECT_LE(std::stoi(newest.out.substr(8)), 34) << path;
    }
}

TEST_F(Install, HaveNothingForDebuggers)
{
    for (const std::string &path : libraries(prefix)) {
        const process::Result sections = shell("readelf -SW " + path);
        EXPECT_EQ(sections.out.find(".debug"), std::string::npos) << path << sections.out;
        EXPECT_EQ(sections.out.find(".symtab"), std::string::npos) << path << sections.out;
    }
}

TEST_F(Install, SaysWhatIsWrong)
{
    std::vector<std::string> args = g_install;
    args.push_back("--perfix");
    process::Result result = process::run(args);
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("--perfix"), std::string::npos) << result.err;

    args = g_install;
    args.insert(args.end(), {"--prefix", "/proc/nowhere"});
    result = process::run(args);
    EXPECT_NE(result.code, 0);
    EXPECT_NE(result.err.find("/proc/nowhere"), std::string::npos) << result.err;
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    g_install.assign(1, "package/install");
    g_install.insert(g_install.end(), argv + 1, argv + argc);
    return RUN_ALL_TESTS();
}
