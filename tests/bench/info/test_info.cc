/* tw_info as a user runs it: a process, its output, its exit status. */
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <jansson.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

struct Result {
    int status = -1;
    std::string text; /* of stdout and stderr */
    bool has(const std::string &what) const
    {
        return text.find(what) != std::string::npos;
    }
};

using Record = std::map<std::string, std::string>;

class TwInfo : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        set_env("TW_LOG_LEVEL", std::nullopt);
        set_env("LD_LIBRARY_PATH", std::nullopt);
    }

    /* `environment`: NAME=VALUE words before the command; `after`: behind it. */
    Result run(const std::string &environment, const std::string &after)
    {
        Result result;
        std::string command = "env " + environment + " bench/tw_info " + after;
        FILE *pipe = popen(command.c_str(), "r");
        EXPECT_NE(pipe, nullptr);
        if (pipe == nullptr) {
            return result;
        }
        char piece[4096];
        while (size_t n = fread(piece, 1, sizeof(piece), pipe)) {
            result.text.append(piece, n);
        }
        int status = pclose(pipe);
        result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return result;
    }

    /* The records of a kind, every value as text. */
    std::vector<Record> records(const std::string &environment, const std::string &kind)
    {
        Result result = run(environment, "--json");
        EXPECT_EQ(result.status, 0) << result.text;
        std::vector<Record> found;
        for (size_t begin = 0, end; (end = result.text.find('\n', begin)) != std::string::npos;
             begin = end + 1) {
            json_t *object = json_loadb(&result.text[begin], end - begin, 0, nullptr);
            EXPECT_NE(object, nullptr) << result.text.substr(begin, end - begin);
            Record record;
            const char *key;
            json_t *value;
            json_object_foreach(object, key, value)
            {
                char *text = json_dumps(value, JSON_ENCODE_ANY);
                record[key] = json_is_string(value) ? json_string_value(value) : text;
                free(text);
            }
            json_decref(object);
            if (record["kind"] == kind) {
                found.push_back(record);
            }
        }
        return found;
    }
};

const char *const fakes = "LD_LIBRARY_PATH=tests/bench/fake";

} // namespace

TEST_F(TwInfo, TextHasEverySection)
{
    Result result = run("", "2>&1");
    EXPECT_EQ(result.status, 0) << result.text;
    EXPECT_EQ(result.text.find("build:\n"), 0u);
    for (const char *section :
         {"\nucx:\n", "\ncpu:\n", "\nquant:\n", "\nnic:\n", "\ntcp:\n", "\ncuda:\n", "\nnccl:\n",
          "\nvariables of log:\n", "\nvariables of transport:\n", "\nvariables of collectives:\n"}) {
        EXPECT_TRUE(result.has(section)) << section << result.text;
    }
    EXPECT_TRUE(result.has(TW_VERSION));
    EXPECT_TRUE(result.has("\n  TW_LOG_LEVEL=warn\n"));
}

TEST_F(TwInfo, BuildAndBackends)
{
    std::vector<Record> build = records("", "build");
    ASSERT_EQ(build.size(), 1u);
    EXPECT_EQ(build[0]["version"], TW_VERSION);
    EXPECT_NE(build[0]["config"], "unknown");
    EXPECT_NE(build[0]["compiler"], "");
    std::vector<Record> quant = records("", "quant");
    ASSERT_EQ(quant.size(), 1u);
    EXPECT_NE(quant[0]["host_backends"].find("ref"), std::string::npos);
}

TEST_F(TwInfo, CongestionControlIsThatOfAConnection)
{
    char name[32] = "";
    socklen_t bytes = sizeof(name);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(0, getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes));
    close(fd);
    std::vector<Record> tcp = records("", "tcp");
    ASSERT_EQ(tcp.size(), 1u);
    EXPECT_EQ(tcp[0]["congestion_control"], name);
}

TEST_F(TwInfo, ListsTheInterfacesThereAre)
{
    std::map<std::string, Record> listed;
    for (const Record &record : records("", "nic")) {
        listed[record.at("name")] = record;
    }
    struct if_nameindex *names = if_nameindex();
    ASSERT_NE(names, nullptr);
    for (struct if_nameindex *nic = names; nic->if_name != nullptr; nic++) {
        EXPECT_EQ(listed.count(nic->if_name), 1u) << nic->if_name;
    }
    if_freenameindex(names);
    ASSERT_EQ(listed.count("lo"), 1u);
    EXPECT_NE((" " + listed["lo"]["address"] + " ").find(" 127.0.0.1 "), std::string::npos);
    EXPECT_GT(atoi(listed["lo"]["mtu"].c_str()), 0);
}

TEST_F(TwInfo, GpusThroughTheDriver)
{
    std::vector<Record> gpus = records(fakes, "gpu");
    ASSERT_EQ(gpus.size(), 2u);
    EXPECT_EQ(gpus[1]["name"], "1");
    EXPECT_EQ(gpus[1]["model"], "Fake GPU 11");
    EXPECT_EQ(gpus[1]["memory_bytes"], std::to_string(size_t(11) << 30));
    EXPECT_EQ(gpus[1]["compute_capability"], "9.0");
    std::vector<Record> cuda = records(fakes, "cuda");
    ASSERT_EQ(cuda.size(), 1u);
    EXPECT_EQ(cuda[0]["gpus"], "2");
    EXPECT_EQ(cuda[0]["driver_cuda"], "12.8");
    EXPECT_EQ(cuda[0].count("reason"), 0u);
}

TEST_F(TwInfo, ADriverWithoutGpusIsNoError)
{
    std::string environment = std::string(fakes) + " FAKE_CUDA_ERROR=100";
    std::vector<Record> cuda = records(environment, "cuda");
    ASSERT_EQ(cuda.size(), 1u);
    EXPECT_EQ(cuda[0]["gpus"], "0");
    EXPECT_EQ(cuda[0]["reason"], "the driver answers with error 100");
    EXPECT_TRUE(records(environment, "gpu").empty());
}

TEST_F(TwInfo, NoDriverIsNoError)
{
    if (void *library = dlopen("libcuda.so.1", RTLD_LAZY)) {
        dlclose(library);
        GTEST_SKIP() << "this machine has a CUDA driver";
    }
    std::vector<Record> cuda = records("", "cuda");
    ASSERT_EQ(cuda.size(), 1u);
    EXPECT_EQ(cuda[0]["gpus"], "0");
    EXPECT_NE(cuda[0]["reason"].find("libcuda.so.1"), std::string::npos);
}

TEST_F(TwInfo, NcclVersions)
{
    const struct {
        const char *code, *version;
    } cases[] = {
        {"22809", "2.28.9"},
        {"21903", "2.19.3"},
        {"20901", "2.9.1"},
        {"2804", "2.8.4"},
    };
    for (const auto &item : cases) {
        std::vector<Record> nccl = records(std::string(fakes) + " FAKE_NCCL_VERSION=" + item.code, "nccl");
        ASSERT_EQ(nccl.size(), 1u);
        EXPECT_EQ(nccl[0]["found"], "true");
        EXPECT_EQ(nccl[0]["version"], item.version);
    }
}

TEST_F(TwInfo, VariablesWithValueDefaultAndMeaning)
{
    std::map<std::string, Record> variables;
    for (const Record &record : records("TW_LOG_LEVEL=info", "variable")) {
        variables[record.at("name")] = record;
    }
    ASSERT_EQ(variables.count("TW_LOG_LEVEL"), 1u);
    Record level = variables["TW_LOG_LEVEL"];
    EXPECT_EQ(level["module"], "log");
    EXPECT_EQ(level["value"], "info");
    EXPECT_EQ(level["default"], "warn");
    /* Whatever part reads it, the library takes none of them for misspelt. PyTorch's, the trainer's, and
     * the tests' own, have no table here. */
    std::set<std::string> known,
        listed = {"TW_DDP",          "TW_FSDP",        "TW_GRADS",       "TW_LIBRARY",
                  "TW_MIN_BYTES",    "TW_PYTHON",      "TW_REPLICA_MEM", "TW_REPORT",
                  "TW_TORCH_PYTHON", "TW_NET_ENCRYPT", "TW_WEIGHTS"};
    for (size_t i = 0; tw_config_name_get(i) != nullptr; i++) {
        known.insert(tw_config_name_get(i));
    }
    for (const auto &[name, record] : variables) {
        listed.insert(name);
    }
    EXPECT_EQ(known, listed);
    for (const auto &[name, record] : variables) {
        EXPECT_NE(record.at("doc"), "") << name;
        EXPECT_NE(record.at("allowed"), "") << name;
    }
}

TEST_F(TwInfo, TheTokenIsNotTold)
{
    for (const char *after : {"2>&1", "--json 2>&1"}) {
        Result result = run("TW_LOG_LEVEL=trace TW_JOB_TOKEN=correct-horse-battery", after);
        EXPECT_EQ(result.status, 0) << result.text;
        EXPECT_FALSE(result.has("correct-horse")) << result.text;
        EXPECT_TRUE(result.has("(set)")) << result.text;
    }
}

TEST_F(TwInfo, AnUnknownVariableWarns)
{
    Result result = run("TW_LOG_LEVLE=info", "2>&1 >/dev/null");
    EXPECT_EQ(result.status, 0);
    EXPECT_TRUE(result.has("unknown variable TW_LOG_LEVLE; did you mean TW_LOG_LEVEL?")) << result.text;
    result = run("TW_PEER_TIMOUT=1s TW_COLL_CHUNKS=1M", "2>&1 >/dev/null");
    EXPECT_TRUE(result.has("TW_PEER_TIMOUT; did you mean TW_PEER_TIMEOUT?")) << result.text;
    EXPECT_TRUE(result.has("TW_COLL_CHUNKS; did you mean TW_COLL_CHUNK?")) << result.text;
}

TEST_F(TwInfo, ABadValueIsAnErrorThatNamesIt)
{
    Result result = run("TW_LOG_LEVEL=loud", "2>&1");
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.has("TW_LOG_LEVEL=loud: expected one of error")) << result.text;
    EXPECT_TRUE(result.has("\n  TW_LOG_LEVEL=warn\n")) << result.text;
    result = run("TW_PEER_TIMEOUT=0", "2>&1");
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.has("TW_PEER_TIMEOUT=0: expected a time such as 10s")) << result.text;
    /* The rest is printed all the same. */
    EXPECT_TRUE(result.has("TW_COLL_CHUNK=")) << result.text;
}

TEST_F(TwInfo, AFullDiskIsAnError)
{
    EXPECT_EQ(run("", ">/dev/full 2>/dev/null").status, 1);
    EXPECT_EQ(run("", "--json >/dev/full 2>/dev/null").status, 1);
}

TEST_F(TwInfo, CommandLine)
{
    Result help = run("", "--help 2>&1");
    EXPECT_EQ(help.status, 0);
    EXPECT_TRUE(help.has("--json")) << help.text;
    EXPECT_EQ(run("", "--version").text, std::string("tw_info ") + TW_VERSION + "\n");
    for (const char *wrong : {"extra", "--jsom", "--json=1", "-x"}) {
        EXPECT_NE(run("", std::string(wrong) + " >/dev/null 2>&1").status, 0) << wrong;
    }
}
