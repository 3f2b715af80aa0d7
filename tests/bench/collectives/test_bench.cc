/* The benchmark programs as users run them: in a cluster in a box, in a job of another launcher, and
 * wrongly. */
#include <dirent.h>
#include <jansson.h>
#include <sched.h>

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "cluster/cluster.h"
#include "quant/quant.h"
#include "tests/common/process.h"

namespace
{

using process::Child;
using process::Result;

struct JsonFree {
    void operator()(json_t *json) const
    {
        json_decref(json);
    }
};
using Json = std::unique_ptr<json_t, JsonFree>;

std::string program(const std::string &op)
{
    return "bench/" + op;
}

class BenchTest : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        json_path_ = ::testing::TempDir() + "tw_bench." + std::to_string(getpid()) + ".json";
        unsetenv("TW_LOG_LEVEL");
    }
    void TearDown() override
    {
        unlink(json_path_.c_str());
    }
    void require_cluster()
    {
        Result result = process::run({"bench/cluster", "--nodes", "1", "--", "true"});
        if (result.code != 0) {
            GTEST_SKIP() << "no cluster can be made here: " << result.err;
        }
    }
    std::vector<std::string> args(const std::string &op, const std::vector<std::string> &flags) const
    {
        std::vector<std::string> all = {program(op), "--no-iperf", "--json", json_path_};
        all.insert(all.end(), flags.begin(), flags.end());
        return all;
    }
    Result run(const std::string &op, const std::vector<std::string> &flags) const
    {
        return process::run(args(op, flags));
    }
    std::vector<Json> rows() const
    {
        std::ifstream file(json_path_);
        std::vector<Json> out;
        for (std::string line; std::getline(file, line);) {
            out.emplace_back(json_loads(line.c_str(), 0, nullptr));
            EXPECT_TRUE(json_is_object(out.back().get())) << line;
        }
        return out;
    }
    std::string json_path_;
};

double number(const Json &row, const char *key)
{
    return json_number_value(json_object_get(row.get(), key));
}

std::string text(const Json &row, const char *key)
{
    const char *value = json_string_value(json_object_get(row.get(), key));
    return value ? value : "";
}

bool flag(const Json &row, const char *key)
{
    return json_is_true(json_object_get(row.get(), key));
}

void expect_ok(const std::vector<Json> &rows, const Result &result)
{
    EXPECT_EQ(0, result.code) << result.out << result.err;
    for (const Json &row : rows) {
        EXPECT_TRUE(flag(row, "ok")) << result.out << result.err;
        EXPECT_TRUE(flag(row, "identical")) << result.out;
    }
}

/* Modes that run where none are asked for: plain, and every codec that sums. */
size_t n_modes()
{
    size_t n = 0;
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        n += tw_quant_row_get(tw_quant_kind_t(kind))->sums != 0;
    }
    return n;
}

/* Bytes of one element on the wire, with blocks of 128 and a bf16 scale. */
double wire_bytes(const std::string &mode)
{
    if (mode == "lossless") {
        return 10.65 / 8; /* of such weights: a sign, 7 bits of mantissa, and what is left of 8 of exponent */
    }
    tw_quant_codec_t codec;
    EXPECT_EQ(TW_OK, tw_quant_codec_parse_any(mode.c_str(), &codec));
    codec.block = tw_quant_form(&codec) == TW_QUANT_BLOCKS ? 128 : 0;
    return tw_quant_usual_bytes(&codec, TW_TYPE_BF16, 1 << 20) / (1 << 20);
}

/* ---- in a cluster -------------------------------------------------------------------------------------- */

struct Shape {
    int nodes, ranks;
};

class BenchClusterTest : public BenchTest, public ::testing::WithParamInterface<std::string>
{
  protected:
    void SetUp() override
    {
        BenchTest::SetUp();
        require_cluster();
    }
    std::vector<std::string> shape_flags(Shape shape, const std::string &sizes) const
    {
        return {"--nodes",          std::to_string(shape.nodes),
                "--ranks-per-node", std::to_string(shape.ranks),
                "--sizes",          sizes,
                "--iters",          "3"};
    }
};

const char *const kKeys[] = {"op",
                             "mode",
                             "algo",
                             "type",
                             "nodes",
                             "ranks_per_node",
                             "link_bps",
                             "bytes",
                             "time_us_median",
                             "time_us_min",
                             "time_us_max",
                             "algbw_GBps",
                             "busbw_GBps",
                             "inter_node_bytes",
                             "link_utilization",
                             "speedup",
                             "rel_rmse",
                             "max_abs_err",
                             "identical",
                             "ok"};

TEST_P(BenchClusterTest, TwoNodesSendWhatArithmeticSays)
{
    constexpr double kBytes = 1 << 20;
    std::vector<std::string> flags = shape_flags({2, 1}, "1M");
    flags.push_back("--force");
    Result result = run(GetParam(), flags);
    std::vector<Json> all = rows();
    ASSERT_EQ(n_modes(), all.size()) << result.out << result.err;
    expect_ok(all, result);
    for (const Json &row : all) {
        for (const char *key : kKeys) {
            EXPECT_NE(nullptr, json_object_get(row.get(), key)) << key;
        }
        std::string mode = text(row, "mode");
        EXPECT_EQ(GetParam(), text(row, "op"));
        EXPECT_EQ("bf16", text(row, "type"));
        EXPECT_EQ(2, number(row, "nodes"));
        EXPECT_EQ(1, number(row, "ranks_per_node"));
        EXPECT_EQ(1e9, number(row, "link_bps"));
        EXPECT_EQ(kBytes, number(row, "bytes"));
        /* Each half crosses once; an all-reduce is a reduce-scatter and an all-gather. */
        double want = kBytes / 2 * wire_bytes(mode) * (GetParam() == "allreduce" ? 2 : 1);
        EXPECT_NEAR(want, number(row, "inter_node_bytes"), 0.05 * want) << mode;
        double us = number(row, "time_us_median");
        EXPECT_LE(number(row, "time_us_min"), us);
        EXPECT_GE(number(row, "time_us_max"), us);
        EXPECT_NEAR(kBytes / us * 1e-3, number(row, "algbw_GBps"), 1e-9);
        EXPECT_NEAR(number(row, "algbw_GBps") * (GetParam() == "allreduce" ? 1 : 0.5),
                    number(row, "busbw_GBps"), 1e-9);
        EXPECT_NEAR(8 * number(row, "inter_node_bytes") / 2 / (us * 1e-6) / 1e9,
                    number(row, "link_utilization"), 1e-3);
        EXPECT_EQ(mode != "plain", flag(row, "quantized"));
        EXPECT_GT(number(row, "rel_rmse"), mode == "plain" || mode == "lossless" ? -1 : 0);
        EXPECT_LT(number(row, "rel_rmse"), mode == "int4" || mode == "ecdq" ? 0.5 : 0.05);
    }
    EXPECT_EQ(1, number(all[0], "speedup"));
}

TEST_P(BenchClusterTest, TwoRanksOnEachOfTwoNodesCrossOnce)
{
    constexpr double kBytes = 1 << 20;
    std::vector<std::string> flags = shape_flags({2, 2}, "4,1M");
    flags.insert(flags.end(), {"--force", "--algo", GetParam() == "allgather" ? "hierarchical" : "two_hop"});
    Result result = run(GetParam(), flags);
    std::vector<Json> all = rows();
    ASSERT_EQ(2 * n_modes(), all.size()) << result.out << result.err;
    expect_ok(all, result);
    for (const Json &row : all) {
        if (number(row, "bytes") == kBytes && flag(row, "quantized")) {
            double want = kBytes / 2 * wire_bytes(text(row, "mode")) * (GetParam() == "allreduce" ? 2 : 1);
            EXPECT_NEAR(want, number(row, "inter_node_bytes"), 0.05 * want) << text(row, "mode");
        }
    }
}

TEST_P(BenchClusterTest, TheModelMayDeclineAndSaysSo)
{
    Result result = run(GetParam(), shape_flags({2, 1}, "4"));
    std::vector<Json> all = rows();
    ASSERT_EQ(n_modes(), all.size()) << result.out << result.err;
    expect_ok(all, result);
    for (const Json &row : all) {
        EXPECT_FALSE(flag(row, "quantized")) << "four bytes cannot get shorter";
        EXPECT_TRUE(text(row, "mode") == "plain" || !text(row, "note").empty());
    }
    EXPECT_NE(std::string::npos, result.out.find("plain ")) << result.out;
}

INSTANTIATE_TEST_SUITE_P(Ops, BenchClusterTest, ::testing::Values("allgather", "reduce_scatter", "allreduce"),
                         [](const auto &param) { return param.param; });

class BenchClusterOnceTest : public BenchClusterTest
{
};

/* Each rank's half crosses, encoded; what stays on a node is neither counted nor rounded. */
TEST_F(BenchClusterOnceTest, AlltoallSendsWhatArithmeticSays)
{
    for (Shape shape : {Shape{2, 1}, Shape{2, 2}}) {
        std::vector<std::string> flags = shape_flags(shape, "1M");
        flags.push_back("--force");
        Result result = run("alltoall", flags);
        std::vector<Json> all = rows();
        ASSERT_EQ(n_modes(), all.size()) << result.out << result.err;
        expect_ok(all, result);
        for (const Json &row : all) {
            double want = (1 << 20) / 2 * shape.ranks * wire_bytes(text(row, "mode"));
            EXPECT_NEAR(want, number(row, "inter_node_bytes"), 0.05 * want) << text(row, "mode");
            EXPECT_EQ(text(row, "mode") != "plain", flag(row, "quantized"));
        }
    }
}

TEST_F(BenchClusterOnceTest, OddWorldsAndSizes)
{
    for (Shape shape : {Shape{3, 1}, Shape{2, 3}, Shape{5, 1}}) {
        for (const char *op : {"allgather", "alltoall"}) {
            Result result = run(op, shape_flags(shape, "2,6,200006"));
            std::vector<Json> all = rows();
            ASSERT_EQ(3 * n_modes(), all.size()) << result.out << result.err;
            expect_ok(all, result);
        }
    }
}

TEST_F(BenchClusterOnceTest, TheTableHasUnitsAndOneLinePerRow)
{
    Result result = run("allgather", shape_flags({2, 1}, "64K"));
    EXPECT_EQ(0, result.code) << result.err;
    for (const char *said : {"# thinwire allgather: 2 ranks on 2 nodes, link 1000 Mb/s", "from seed 1",
                             "# congestion control of the TCP connections between nodes: cubic\n",
                             "median, us", "alg GB/s", "link, %", "RMSE"}) {
        EXPECT_NE(std::string::npos, result.out.find(said)) << said << "\n" << result.out;
    }
    const std::string foot = "# " + std::to_string(n_modes()) + " lines, 0 not ok";
    EXPECT_NE(std::string::npos, result.out.find(foot)) << result.out;
    EXPECT_EQ("", result.err) << "progress belongs on a terminal";
}

/* A file of 5000 floats; returns its path. */
std::string write_tensors(const std::function<float(int)> &value_of)
{
    std::string path = ::testing::TempDir() + "tw_bench." + std::to_string(getpid()) + ".safetensors";
    std::string header = R"({"w": {"dtype": "F32", "shape": [100, 50], "data_offsets": [0, 20000]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    bytes += header;
    for (int i = 0; i < 5000; i++) {
        float value = value_of(i);
        bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
    }
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
}

TEST_F(BenchClusterOnceTest, TensorsWithNanAreNamedAsSuch)
{
    std::string path = write_tensors([](int i) { return i == 1234 ? NAN : 0.5f; });
    for (const char *op : {"allgather", "reduce_scatter"}) {
        std::vector<std::string> flags = shape_flags({2, 1}, "20000");
        flags.insert(flags.end(), {"--tensors", path, "--force", "--type", "fp32"});
        Result result = run(op, flags);
        EXPECT_EQ(1, result.code);
        for (const Json &row : rows()) {
            EXPECT_EQ("NaN or Inf in the input", text(row, "note")) << result.out;
            EXPECT_TRUE(json_is_null(json_object_get(row.get(), "rel_rmse")));
        }
        EXPECT_EQ(n_modes(), rows().size());
    }
    unlink(path.c_str());
}

TEST_F(BenchClusterOnceTest, RealTensorsAreTaken)
{
    std::string path = write_tensors([](int i) { return std::sin(static_cast<float>(i)) * 0.1f; });
    for (const char *op : {"allgather", "reduce_scatter"}) {
        std::vector<std::string> flags = shape_flags({2, 1}, "64K");
        flags.insert(flags.end(), {"--tensors", path, "--force"});
        Result result = run(op, flags);
        expect_ok(rows(), result);
        EXPECT_EQ(n_modes(), rows().size());
        EXPECT_NE(std::string::npos, result.out.find("7 tensors of " + path)) << result.out;
    }
    unlink(path.c_str());
}

TEST_F(BenchClusterOnceTest, ATensorFileThatIsNotThereIsNamed)
{
    std::vector<std::string> flags = shape_flags({2, 1}, "64K");
    flags.insert(flags.end(), {"--tensors", "/nosuch.safetensors"});
    Result result = run("allgather", flags);
    EXPECT_EQ(1, result.code);
    EXPECT_NE(std::string::npos, result.err.find("/nosuch.safetensors: cannot open")) << result.err;
}

int count_processes(const std::string &mark)
{
    int n = 0;
    DIR *dir = opendir("/proc");
    while (const dirent *entry = readdir(dir)) {
        n += process::slurp(std::string("/proc/") + entry->d_name + "/cmdline").find(mark) !=
             std::string::npos;
    }
    closedir(dir);
    return n;
}

TEST_F(BenchClusterOnceTest, NothingIsLeftWhenItIsKilledInTheMiddle)
{
    std::vector<std::string> flags = shape_flags({2, 2}, "64M");
    flags.insert(flags.end(), {"--iters", "1000"});
    Child child(args("allgather", flags));
    /* The table's head is out: all ranks have met. */
    for (int i = 0; i < 3000 && child.out().find("bytes") == std::string::npos; i++) {
        usleep(10000);
    }
    EXPECT_GE(count_processes(json_path_), 8) << child.out();
    kill(child.pid(), SIGKILL);
    for (int i = 0; i < 1000 && count_processes(json_path_) > 0; i++) {
        usleep(10000);
    }
    EXPECT_EQ(0, count_processes(json_path_));
    EXPECT_EQ(128 + SIGKILL, child.wait().code);
}

/* The process of a rank: it has the program's arguments, and its rank in its environment. */
pid_t find_rank(const std::string &mark, int rank)
{
    std::string variable = std::string(1, '\0') + "RANK=" + std::to_string(rank) + std::string(1, '\0');
    pid_t found = -1;
    DIR *dir = opendir("/proc");
    while (const dirent *entry = readdir(dir)) {
        std::string folder = std::string("/proc/") + entry->d_name;
        if (process::slurp(folder + "/cmdline").find(mark) != std::string::npos &&
            (std::string(1, '\0') + process::slurp(folder + "/environ")).find(variable) !=
                std::string::npos) {
            found = atoi(entry->d_name);
        }
    }
    closedir(dir);
    return found;
}

TEST_F(BenchClusterOnceTest, AKilledRankEndsTheRunAndIsNamed)
{
    std::vector<std::string> flags = shape_flags({3, 1}, "64M");
    flags.insert(flags.end(), {"--iters", "1000"});
    Child child(args("allgather", flags));
    for (int i = 0; i < 3000 && child.out().find("bytes") == std::string::npos; i++) {
        usleep(10000);
    }
    pid_t victim = find_rank(json_path_, 1);
    ASSERT_GT(victim, 0) << child.out();
    kill(victim, SIGKILL);
    Result result = child.wait();
    EXPECT_NE(0, result.code);
    EXPECT_NE(std::string::npos, result.err.find("rank 1 (node 1): killed by signal 9")) << result.err;
    EXPECT_EQ(0, count_processes(json_path_));
}

/* ---- without one --------------------------------------------------------------------------------------- */

TEST_F(BenchTest, WithoutPrivilegesItRunsOnLoopbackAndSaysSo)
{
    std::vector<std::string> all =
        args("allgather", {"--nodes", "2", "--sizes", "64K", "--iters", "3", "--force"});
    Child child([&all]() {
        if (unshare(CLONE_NEWUSER) != 0) {
            return 97;
        }
        std::vector<char *> argv;
        for (std::string &arg : all) {
            argv.push_back(const_cast<char *>(arg.c_str()));
        }
        argv.push_back(nullptr);
        execv(argv[0], argv.data());
        return 96;
    });
    Result result = child.wait();
    if (result.code == 97) {
        GTEST_SKIP() << "cannot drop privileges here";
    }
    std::vector<Json> found = rows();
    ASSERT_EQ(n_modes(), found.size()) << result.out << result.err;
    expect_ok(found, result);
    EXPECT_NE(std::string::npos, result.err.find("no cluster can be made here (")) << result.err;
    EXPECT_EQ(0, number(found[0], "link_bps"));
    EXPECT_TRUE(json_is_null(json_object_get(found[0].get(), "link_utilization")));
    EXPECT_EQ(2, number(found[0], "nodes"));
}

TEST_F(BenchTest, JoinsTheJobOfALauncher)
{
    std::map<std::string, std::string> job = {{"RANK", "0"},
                                              {"WORLD_SIZE", "1"},
                                              {"LOCAL_RANK", "0"},
                                              {"LOCAL_WORLD_SIZE", "1"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", std::to_string(process::free_port())},
                                              {"TW_JOB_TOKEN", "secret"}};
    std::vector<std::string> all = {"env"};
    for (const auto &[name, value] : job) {
        all.push_back(name + "=" + value);
    }
    std::vector<std::string> rest = args("allreduce", {"--nodes", "7", "--sizes", "64K", "--iters", "3"});
    all.insert(all.end(), rest.begin(), rest.end());
    Result result = process::run(all);
    std::vector<Json> found = rows();
    ASSERT_EQ(n_modes(), found.size()) << result.out << result.err;
    expect_ok(found, result);
    EXPECT_EQ(1, number(found[0], "nodes"));
    EXPECT_EQ(0, number(found[0], "inter_node_bytes"));
    EXPECT_EQ(0, number(found[0], "link_bps"));
}

/* Ranks on GPUs, of which there may be fewer; without any: said in a line. */
class BenchGpuTest : public BenchTest, public ::testing::WithParamInterface<std::string>
{
};

INSTANTIATE_TEST_SUITE_P(Wires, BenchGpuTest, ::testing::Values("transport", "nccl"));

TEST_P(BenchGpuTest, EveryOperation)
{
    for (const char *op : {"allgather", "reduce_scatter", "allreduce"}) {
        Result result = run(op, {"--device", "cuda", "--nodes", "2", "--link", "none", "--sizes",
                                 "64K,1000000", "--iters", "3", "--force", "--wire", GetParam()});
        if (result.code != 0 &&
            (result.err.find("looking for a GPU") != std::string::npos ||
             result.err.find("there is no GPU here") != std::string::npos ||
             result.err.find("no CUDA was found when this was built") != std::string::npos)) {
            GTEST_SKIP() << "no GPU here";
        }
        std::vector<Json> all = rows();
        expect_ok(all, result);
        EXPECT_EQ(6u, all.size());
        for (const Json &row : all) {
            EXPECT_EQ("cuda", text(row, "device"));
        }
    }
}

TEST_F(BenchTest, MistakesAreNamed)
{
    struct {
        std::vector<std::string> flags;
        const char *said;
    } cases[] = {
        {{"--modes", "plain,int9"}, "--modes: 'int9' is not one of plain, int8, int4, int2, fp8, lossless"},
        {{"--modes", "int8,int8"}, "--modes: int8 twice"},
        {{"--modes", ""}, "--modes: '' is not one of"},
        {{"--inner", "int7"}, "--inner: 'int7' is not one of plain, int8"},
        {{"--sizes", "1M,12Q"}, "--sizes: '12Q'"},
        {{"--sizes", "1M,,2M"}, "--sizes: ''"},
        {{"--sizes", "0"}, "--sizes: '0'"},
        {{"--sizes", "3"}, "--sizes: 3 bytes"},
        {{"--sizes", "6", "--type", "fp32"}, "--sizes: 6 bytes"},
        {{"--sizes", "64K,99999T"}, "--sizes: 99999T on each of 4 ranks is more than this machine's memory"},
        {{"--link", "quick"}, "--link: 'quick'"},
        {{"--link", "1"}, "--link: '1' is not a rate from 1mbit on"},
        {{"--nodes", "0"}, "--nodes: '0'"},
        {{"--nodes", "4x"}, "--nodes: '4x'"},
        {{"--ranks-per-node", "-1"}, "--ranks-per-node: '-1'"},
        {{"--block", "100"}, "--block: '100' is not a multiple of 32"},
        {{"--block", "8192"}, "--block: '8192'"},
        {{"--type", "int32"}, "--type: 'int32'"},
        {{"--algo", "rnig"}, "--algo: allgather has no algorithm 'rnig'; there are auto, "},
        {{"--algo", "ring", "--device", "cuda"},
         "--algo: allgather has no algorithm 'ring'; there are auto, native"},
        {{"--device", "gpu"}, "--device: 'gpu'"},
        {{"--wire", "tin"}, "--wire: 'tin'"},
        {{"--iters", "0"}, "--iters: '0'"},
        {{"--seed", "x"}, "--seed: 'x'"},
        {{"--nonsense"}, "--nonsense"},
        {{"stray"}, "'stray'"},
    };
    for (const auto &c : cases) {
        Result result = run("allgather", c.flags);
        EXPECT_EQ(2, result.code) << c.said;
        EXPECT_NE(std::string::npos, result.err.find(c.said)) << c.said << "\n" << result.err;
    }
}

/* In the box a route names it. */
TEST_F(BenchClusterOnceTest, TwInfoSeesTheCongestionControlOfRoutes)
{
    Result info = process::run({"bench/cluster", "--nodes", "1", "--", "bench/tw_info"});
    ASSERT_EQ(0, info.code) << info.err;
    size_t nic = info.out.find("\n  eth0:");
    ASSERT_NE(std::string::npos, nic) << info.out;
    std::string line = info.out.substr(nic + 1, info.out.find('\n', nic + 1) - nic - 1);
    EXPECT_NE(std::string::npos, line.find("congestion_control cubic")) << line;
}

TEST_F(BenchTest, HelpListsEveryFlagWithItsDefault)
{
    for (const char *op : {"allgather", "reduce_scatter", "allreduce", "alltoall"}) {
        Result result = process::run({program(op), "--help"});
        EXPECT_EQ(0, result.code);
        EXPECT_NE(std::string::npos, result.out.find("Measures the plain and the quantized")) << result.out;
        for (const char *name :
             {"--nodes", "--ranks-per-node", "--link", "--sizes", "--modes", "--algo", "--block",
              "--hadamard", "--type", "--iters", "--tensors", "--json", "--seed", "--device", "--wire"}) {
            EXPECT_NE(std::string::npos, result.out.find(name)) << name;
        }
        size_t n_defaults = 0;
        for (size_t at = 0; (at = result.out.find("default:", at)) != std::string::npos; at++) {
            n_defaults++;
        }
        EXPECT_GE(n_defaults, 15u) << result.out;
    }
}

} // namespace
