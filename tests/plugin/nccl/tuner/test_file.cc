/* TW_TUNER_FILE, whole and broken, and the variables over it. */
#include "plugin/nccl/tuner/tuner.h"

#include <cstring>
#include <fstream>

#include "tests/common/fixture.h"

namespace
{

class File : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        for (const char *name : {"TW_TUNER_FILE", "TW_NET_ALPHA_US", "TW_NET_GBPS", "TW_TUNER_EXPLAIN"}) {
            set_env(name, std::nullopt);
        }
        tw_tuner_constants_init(&constants_);
    }
    std::string file(const std::string &text)
    {
        const char *folder = getenv("TEST_TMPDIR");
        const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/constants.json";
        std::ofstream(path) << text;
        return path;
    }
    tw_status_t read(const std::string &text)
    {
        return tw_tuner_file_read(file(text).c_str(), &constants_);
    }
    void refused(const std::string &text, const std::string &why)
    {
        tw_tuner_constants_t before;
        memcpy(&before, &constants_, sizeof(before));
        expect_log(why);
        EXPECT_EQ(read(text), TW_ERR_FORMAT) << text;
        EXPECT_EQ(memcmp(&before, &constants_, sizeof(before)), 0) << text;
    }

    tw_tuner_constants_t constants_;
};

TEST_F(File, Whole)
{
    ASSERT_EQ(read(R"({"inter": {"alpha_us": 31.5, "gbps": 25}, "node": {"alpha_us": 0, "gbps": 200},
        "protocols": {"ll": {"alpha_us": 1, "bytes": 2.5}, "ll128": {"alpha_us": 2, "bytes": 1.25},
                      "simple": {"alpha_us": 3, "bytes": 1}},
        "shares": {"tree": 0.5, "ring": 0.25, "collnet_direct": 0.1, "collnet_chain": 0.2, "nvls": 0.3,
                   "nvls_tree": 0.4, "pat": 0.6}, "collnet_min_bytes": 4096})"),
              TW_OK);
    EXPECT_EQ(constants_.inter.alpha_us, 31.5);
    EXPECT_EQ(constants_.inter.gbps, 25);
    EXPECT_EQ(constants_.node.alpha_us, 0);
    EXPECT_EQ(constants_.node.gbps, 200);
    EXPECT_EQ(constants_.proto[TW_NCCL_LL].alpha_us, 1);
    EXPECT_EQ(constants_.proto[TW_NCCL_LL].bytes, 2.5);
    EXPECT_EQ(constants_.proto[TW_NCCL_LL128].alpha_us, 2);
    EXPECT_EQ(constants_.proto[TW_NCCL_LL128].bytes, 1.25);
    EXPECT_EQ(constants_.proto[TW_NCCL_SIMPLE].alpha_us, 3);
    EXPECT_EQ(constants_.share[TW_NCCL_TREE], 0.5);
    EXPECT_EQ(constants_.share[TW_NCCL_RING], 0.25);
    EXPECT_EQ(constants_.share[TW_NCCL_COLLNET_DIRECT], 0.1);
    EXPECT_EQ(constants_.share[TW_NCCL_COLLNET_CHAIN], 0.2);
    EXPECT_EQ(constants_.share[TW_NCCL_NVLS], 0.3);
    EXPECT_EQ(constants_.share[TW_NCCL_NVLS_TREE], 0.4);
    EXPECT_EQ(constants_.share[TW_NCCL_PAT], 0.6);
    EXPECT_EQ(constants_.collnet_min_bytes, 4096u);
}

TEST_F(File, WhatIsNotThereStays)
{
    ASSERT_EQ(read("{}"), TW_OK);
    ASSERT_EQ(read(R"({"inter": {"gbps": 40}, "shares": {}})"), TW_OK);
    EXPECT_EQ(constants_.inter.alpha_us, 50);
    EXPECT_EQ(constants_.inter.gbps, 40);
}

TEST_F(File, Broken)
{
    refused("", "constants.json:1: ");
    refused("{\"inter\":\n {\"gbps\": }}", "constants.json:2: ");
    refused("[1]", "expected an object");
    refused("7", "constants.json");
    refused(R"({"inter": 3})", "\"inter\": expected an object");
    refused(R"({"inter": {"gbps": 1, "gbps": 2}})", "duplicate");
    refused(R"({"inter": {"gbps": 3, "gpbs": 3}})",
            "unknown key \"inter.gpbs\"; \"inter.gbps\" is the nearest");
    refused(R"({"zzzzzzzzzzzzzzz": 3})", "unknown key \"zzzzzzzzzzzzzzz\"");
    refused("{\"" + std::string(5000, 'a') + "\": {}}", "unknown key \"aaaa");
    refused("{\"inter\": " + std::string(100000, '[') + "}", "constants.json:1: ");
    refused(std::string("{\"in\0ter\": 1}", 13), "constants.json:1: ");
}

TEST_F(File, ValuesOutOfRange)
{
    for (const char *value : {"0", "-1", "1e300", "\"1\"", "null", "true", "[1]", "{\"x\": 1}"}) {
        refused(std::string("{\"inter\": {\"gbps\": ") + value + "}}", "\"inter.gbps\": expected a number");
    }
    refused(R"({"shares": {"tree": 1.01}})", "\"shares.tree\": expected a number from 0.01 to 1");
    refused(R"({"protocols": {"simple": {"bytes": 0.5}}})", "\"protocols.simple.bytes\"");
    refused(R"({"collnet_min_bytes": -1})", "\"collnet_min_bytes\"");
    refused(R"({"inter": {"gbps": 1e999}})", "constants.json:1: ");
}

TEST_F(File, NoFileAFolderOrTooMuch)
{
    expect_log("/no/such/file: ");
    EXPECT_EQ(tw_tuner_file_read("/no/such/file", &constants_), TW_ERR_NOT_FOUND);
    allow_log("/tmp: ");
    EXPECT_NE(tw_tuner_file_read("/tmp", &constants_), TW_OK);
    refused(std::string((1 << 20) + 1, ' ') + "{}", "too many");
}

TEST_F(File, VariablesComeFirst)
{
    tw_tuner_constants_t constants;
    int explain = 1;
    ASSERT_EQ(tw_tuner_configure(&constants, &explain), TW_OK);
    EXPECT_EQ(constants.inter.alpha_us, 50);
    EXPECT_EQ(constants.inter.gbps, 0) << "not said";
    EXPECT_EQ(explain, 0);
    set_env("TW_TUNER_FILE", file(R"({"inter": {"alpha_us": 20, "gbps": 25}})"));
    set_env("TW_NET_GBPS", "10");
    set_env("TW_TUNER_EXPLAIN", "1");
    ASSERT_EQ(tw_tuner_configure(&constants, &explain), TW_OK);
    EXPECT_EQ(constants.inter.alpha_us, 20);
    EXPECT_EQ(constants.inter.gbps, 10);
    EXPECT_EQ(explain, 1);
    set_env("TW_NET_ALPHA_US", "7.5");
    ASSERT_EQ(tw_tuner_configure(&constants, &explain), TW_OK);
    EXPECT_EQ(constants.inter.alpha_us, 7.5);
}

TEST_F(File, BrokenVariables)
{
    tw_tuner_constants_t constants;
    int explain;
    set_env("TW_NET_GBPS", "fast");
    expect_log("TW_NET_GBPS=fast");
    EXPECT_EQ(tw_tuner_configure(&constants, &explain), TW_ERR_CONFIG);
    set_env("TW_NET_GBPS", std::nullopt);
    set_env("TW_TUNER_FILE", "/no/such/file");
    expect_log("/no/such/file");
    EXPECT_EQ(tw_tuner_configure(&constants, &explain), TW_ERR_NOT_FOUND);
}

} // namespace
