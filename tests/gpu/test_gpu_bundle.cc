/* The bundle, unpacked and run as on a machine that has nothing else. */
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/common/process.h"

namespace
{

constexpr size_t max_bytes = 65000000;

class GpuBundle : public testing::Test
{
  protected:
    static std::string base()
    {
        const char *folder = getenv("TEST_TMPDIR");
        return std::string(folder ? folder : "/tmp") + "/bundle." + std::to_string(getpid());
    }
    static void SetUpTestSuite()
    {
        ASSERT_EQ(mkdir(base().c_str(), 0777), 0);
        const process::Result unpacked =
            process::run({"tar", "-C", base(), "-xzf", "bench/gpu_bundle.tar.gz"});
        ASSERT_EQ(unpacked.code, 0) << unpacked.err;
    }
    static void TearDownTestSuite()
    {
        process::run({"rm", "-rf", base()});
    }
    static std::string top()
    {
        return base() + "/gpu_bundle";
    }
    /* With an environment of its own. */
    static process::Result run(const std::vector<std::string> &args, const std::vector<std::string> &env = {})
    {
        std::vector<std::string> command = {"env", "-i", "HOME=" + base(), "PATH=/usr/bin:/bin"};
        command.insert(command.end(), env.begin(), env.end());
        command.push_back(top() + "/run");
        command.insert(command.end(), args.begin(), args.end());
        return process::run(command);
    }
    static bool has_gpu()
    {
        return access("/dev/nvidiactl", F_OK) == 0;
    }
    static std::vector<std::string> lines_of(const std::string &text)
    {
        std::vector<std::string> lines;
        std::istringstream in(text);
        for (std::string line; std::getline(in, line);) {
            lines.push_back(line);
        }
        return lines;
    }
    static bool has(const std::string &text, const std::string &part)
    {
        return text.find(part) != std::string::npos;
    }
    /* A program that says its arguments, and ends with `code`. */
    static void write_script(const std::string &path, int code)
    {
        std::ofstream(path) << "#!/bin/sh\necho \"$@\"\nexit " << code << "\n";
        ASSERT_EQ(chmod(path.c_str(), 0755), 0);
    }
};

TEST_F(GpuBundle, Contents)
{
    std::set<std::string> files;
    for (const std::string &line : lines_of(process::run({"tar", "-tzf", "bench/gpu_bundle.tar.gz"}).out)) {
        files.insert(line);
    }
    for (const char *name :
         {"run", "README.md", "bin/gpu_check", "bin/allgather", "bin/reduce_scatter", "bin/allreduce",
          "bin/codecs", "bin/train", "bin/tw_info", "bin/nccl_rank", "lib/libnccl-net-thinwire.so",
          "lib/libthinwire-nccl.so", "lib/libucp.so.0", "lib/libsodium.so.23", "lib/ucx/libuct_cma.so.0"}) {
        EXPECT_EQ(files.count(std::string("gpu_bundle/") + name), 1u) << name;
    }
    for (const std::string &name : files) {
        for (const char *system : {"/libc.so", "/libm.so", "/ld-linux", "/libcuda.so", "/libnccl.so"}) {
            EXPECT_FALSE(has(name, system)) << name;
        }
    }
    struct stat status = {};
    ASSERT_EQ(stat("bench/gpu_bundle.tar.gz", &status), 0);
    const bool is_release = std::string(TW_BUILD_CONFIG) == "release"; /* kernels for every GPU */
    EXPECT_TRUE(is_release || (size_t)status.st_size < max_bytes) << status.st_size;
}

/* Whatever a file in it loads comes with it, but for the C library, the compiler's, and NCCL, which are that
 * machine's. */
TEST_F(GpuBundle, IsComplete)
{
    const std::vector<std::string> system = {"libc.so.6",       "libm.so.6",      "libdl.so.2",
                                             "librt.so.1",      "libstdc++.so.6", "libgcc_s.so.1",
                                             "libpthread.so.0", "libnccl.so.2"};
    const std::string folders = "LD_LIBRARY_PATH=" + top() + "/lib:" + top() + "/lib/ucx";
    const process::Result found = process::run({"find", top() + "/bin", top() + "/lib", "-type", "f"});
    EXPECT_GT(lines_of(found.out).size(), 20u);
    for (const std::string &file : lines_of(found.out)) {
        const process::Result loads = process::run({"env", folders, "ldd", file});
        EXPECT_EQ(loads.code, 0) << file << loads.err;
        for (const std::string &line : lines_of(loads.out)) {
            std::string name, arrow, path;
            std::istringstream(line) >> name >> arrow >> path;
            const bool is_system = std::find(system.begin(), system.end(), name) != system.end();
            EXPECT_TRUE(arrow != "=>" || is_system || path.find(top()) == 0) << file << ": " << line;
        }
    }
}

/* Ubuntu 22.04's are 2.35 and 3.4.30; 3.4.29 is GCC 11's. */
TEST_F(GpuBundle, NeedsNoNewerGlibc)
{
    const process::Result found = process::run({"find", top() + "/bin", top() + "/lib", "-type", "f"});
    int newest = 0, newest_cxx = 0;
    for (const std::string &file : lines_of(found.out)) {
        std::istringstream symbols(process::run({"objdump", "-T", file}).out);
        for (std::string word; symbols >> word;) {
            int minor = 0;
            if (sscanf(word.c_str(), "(GLIBC_2.%d", &minor) == 1 ||
                sscanf(word.c_str(), "GLIBC_2.%d", &minor) == 1) {
                EXPECT_LE(minor, 35) << file << ": " << word;
                newest = std::max(newest, minor);
            } else if (sscanf(word.c_str(), "(GLIBCXX_3.4.%d", &minor) == 1 ||
                       sscanf(word.c_str(), "GLIBCXX_3.4.%d", &minor) == 1) {
                EXPECT_LE(minor, 29) << file << ": " << word;
                newest_cxx = std::max(newest_cxx, minor);
            }
        }
    }
    EXPECT_GE(newest, 30) << "objdump says nothing";
    EXPECT_GT(newest_cxx, 0) << "objdump says nothing";
}

TEST_F(GpuBundle, GpuCheckWithoutAGpu)
{
    if (has_gpu()) {
        GTEST_SKIP() << "there is a GPU here";
    }
    const process::Result result = run({"gpu_check"});
    EXPECT_EQ(result.code, 77) << result.err;
    EXPECT_TRUE(has(result.out, "there is no GPU here that CUDA can use")) << result.out;
    EXPECT_TRUE(has(result.out, "\n0 passed, 0 failed, 0 skipped\n")) << result.out;
}

TEST_F(GpuBundle, GpuCheckLists)
{
    const process::Result result = run({"gpu_check", "--list"});
    EXPECT_EQ(result.code, 0) << result.err;
    for (const char *line :
         {"codecs      QuantCuda.MoreThan2To31Elements\n", "sums        GpuSum.KernelsGiveTheSameBits\n",
          "collectives GpuCuda.OverTheTransport\n", "processes   ucx 2+2: allgather plain, bf16, sum\n",
          "processes   nccl 1+2 killed in allreduce: the others get an error\n",
          "plugin      net 4: all-gather, bf16\n", "bench       reduce_encode "}) {
        EXPECT_TRUE(has(result.out, line)) << line;
    }
    const process::Result some = run({"gpu_check", "--list", "--only=sums"});
    EXPECT_TRUE(has(some.out, "sums ")) << some.out;
    for (const char *other : {"codecs", "collectives", "processes", "plugin", "bench"}) {
        EXPECT_FALSE(has(some.out, std::string(other) + " ")) << some.out;
    }
}

TEST_F(GpuBundle, OtherPrograms)
{
    EXPECT_EQ(run({"allgather", "--help"}).code, 0);
    EXPECT_EQ(run({"codecs", "--help"}).code, 0);
    EXPECT_EQ(run({"train", "--help"}).code, 0);
    EXPECT_EQ(run({}).code, 2);
    EXPECT_EQ(run({"--help"}).code, 0);
    EXPECT_EQ(run({"all"}).code, 2);
    const process::Result none = run({"nothing"});
    EXPECT_EQ(none.code, 2);
    EXPECT_TRUE(has(none.err, "there is no 'nothing' here, but: allgather ")) << none.err;
}

/* UCX and its modules are those of the bundle. */
TEST_F(GpuBundle, CollectivesOverUcx)
{
    const process::Result result = run({"allgather", "--nodes=2", "--ranks-per-node=2", "--link=none",
                                        "--sizes=64K", "--iters=2", "--no-iperf"},
                                       {"TW_LOG_LEVEL=info"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(has(result.out, ", 0 not ok\n")) << result.out;
    EXPECT_TRUE(has(result.err, "posix,sysv,cma inside a node")) << result.err;
}

TEST_F(GpuBundle, FindsNccl)
{
    const std::string home = base() + "/nccl";
    ASSERT_EQ(process::run({"mkdir", "-p", home + "/lib"}).code, 0);
    ASSERT_EQ(process::run({"cp", "-L", "tests/bench/fake/libnccl.so.2", home + "/lib/"}).code, 0);
    EXPECT_TRUE(has(run({"tw_info"}, {"NCCL_HOME=" + home, "FAKE_NCCL_VERSION=21903"}).out, "2.19.3"));
    /* where a wheel has it */
    const std::string wheel = base() + "/.local/lib/python3.99/site-packages/nvidia/nccl";
    ASSERT_EQ(process::run({"mkdir", "-p", wheel}).code, 0);
    ASSERT_EQ(process::run({"mv", home + "/lib", wheel + "/lib"}).code, 0);
    const bool has_another = access("/usr/local/cuda/lib64/libnccl.so.2", F_OK) == 0 ||
                             has(process::run({"/sbin/ldconfig", "-p"}).out, "libnccl.so.2");
    const process::Result result = run({"tw_info"}, {"FAKE_NCCL_VERSION=21903"});
    EXPECT_TRUE(has(result.out, "2.19.3") || has_another) << result.out;
}

TEST_F(GpuBundle, AllSteps)
{
    const std::string out = base() + "/out", tools = base() + "/tools";
    ASSERT_EQ(mkdir(tools.c_str(), 0777), 0);
    write_script(tools + "/compute-sanitizer", 0);
    const std::vector<std::string> env = {"PATH=" + tools + ":/usr/bin:/bin"};
    process::Result result = run({"all", out, "info", "memcheck"}, env);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    std::vector<std::string> lines = lines_of(process::slurp(out + "/memcheck.txt"));
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[0].substr(0, 4), "# 20");
    EXPECT_TRUE(has(lines[1], "/compute-sanitizer --tool memcheck ")) << lines[1];
    EXPECT_EQ(lines[2].find("--tool memcheck --error-exitcode 9 --target-processes all "), 0u) << lines[2];
    EXPECT_TRUE(has(lines[2], "/bin/gpu_check --quick")) << lines[2];
    EXPECT_EQ(lines[3].find("# exit status 0 after "), 0u) << lines[3];
    EXPECT_TRUE(has(process::slurp(out + "/info.txt"), "variables of transport:"));

    write_script(tools + "/compute-sanitizer", 9);
    EXPECT_EQ(run({"all", out, "racecheck"}, env).code, 1);
    EXPECT_EQ(run({"all", out, "no_such_step"}, env).code, 1);
    write_script(tools + "/compute-sanitizer", 77);
    EXPECT_EQ(run({"all", out, "memcheck"}, env).code, 77);
    std::ofstream(tools + "/compute-sanitizer") << "#!/bin/sh\nexec sleep 100\n";
    std::vector<std::string> limited = env;
    limited.push_back("STEP_LIMIT=1");
    EXPECT_EQ(run({"all", out, "memcheck"}, limited).code, 1);
    lines = lines_of(process::slurp(out + "/summary.txt"));
    ASSERT_GE(lines.size(), 5u);
    EXPECT_TRUE(has(lines.back(), " memcheck       ended after 1 s exit 124,")) << lines.back();
    EXPECT_TRUE(has(lines[lines.size() - 2], "no GPU")) << lines[lines.size() - 2];
    EXPECT_TRUE(has(lines[lines.size() - 3], "racecheck      FAILED")) << lines[lines.size() - 3];
}

} // namespace
