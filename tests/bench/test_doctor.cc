/* The doctor on clusters in a box that have something. */
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <jansson.h>
#include <unistd.h>

#include "tests/common/process.h"

namespace
{

using process::Child;
using process::Result;

std::string temporary(const std::string &name)
{
    const char *folder = getenv("TEST_TMPDIR");
    return std::string(folder ? folder : "/tmp") + "/" + name;
}

/* Flags of the cluster, and a script that each rank runs before it becomes the doctor. */
std::vector<std::string> command(std::vector<std::string> flags, const std::string &script,
                                 const std::string &options)
{
    flags.insert(flags.begin(), "bench/cluster");
    flags.insert(flags.end(), {"--", "sh", "-c",
                               "PATH=$PATH:/usr/sbin:/sbin; " + script + " exec bench/doctor " + options});
    return flags;
}

class Doctor : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        const Result result = process::run({"bench/cluster", "--nodes", "1", "--", "true"});
        if (result.code != 0) {
            GTEST_SKIP() << "no cluster can be made here: " << result.err;
        }
        unlink(json_path.c_str());
    }

    void TearDown() override
    {
        json_decref(json);
    }

    /* Its text; `json` is what it has written. */
    std::string examine(const std::vector<std::string> &flags, const std::string &script,
                        const std::string &options = "")
    {
        const Result result =
            process::run(command(flags, script, "--seconds 1s --json " + json_path + " " + options));
        EXPECT_EQ(result.code, 0) << result.out << result.err;
        json = json_load_file(json_path.c_str(), 0, nullptr);
        EXPECT_NE(json, nullptr);
        return result.out;
    }

    std::string text(const json_t *object, const char *key)
    {
        const char *found = json_string_value(json_object_get(object, key));
        return found ? found : "";
    }

    /* How often something was found whose text has all these words. */
    int found(const std::vector<std::string> &words)
    {
        int n = 0;
        size_t i;
        json_t *one;
        json_array_foreach(json_object_get(json, "findings"), i, one)
        {
            bool has_all = true;
            for (const std::string &word : words) {
                has_all = has_all && text(one, "what").find(word) != std::string::npos;
            }
            n += has_all;
        }
        return n;
    }

    std::string json_path = temporary("doctor.json");
    json_t *json = nullptr;
};

/* What a line of the text that begins so says. */
std::string line_of(const std::string &out, const std::string &begin)
{
    const size_t at = out.rfind("\n" + begin);
    return at == std::string::npos ? "" : out.substr(at + 1, out.find('\n', at + 1) - at - 1);
}

TEST_F(Doctor, MeasuresEveryLinkAndReadsEveryRank)
{
    const std::string out = examine({"--nodes", "3", "--ranks-per-node", "2", "--link", "50mbit"}, "");
    EXPECT_EQ(json_array_size(json_object_get(json, "ranks")), 6u);
    EXPECT_EQ(json_array_size(json_object_get(json, "flows")), 6u + 3 + 3);
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(json, "flows"), i, one)
    {
        const double bps = json_number_value(json_object_get(one, "bps"));
        EXPECT_GT(bps, 0) << i;
        EXPECT_LT(bps, 75e6) << i; /* a link's rate, and what its bucket holds */
        EXPECT_EQ(text(one, "congestion"), "cubic");
    }
    json_array_foreach(json_object_get(json, "paths"), i, one)
    {
        EXPECT_EQ(json_integer_value(json_object_get(one, "passed_bytes")), 1500) << i;
    }
    json_array_foreach(json_object_get(json, "ranks"), i, one)
    {
        EXPECT_EQ(text(one, "host"), "node" + std::to_string(i / 2));
        EXPECT_EQ(text(json_array_get(json_object_get(one, "devices"), 0), "name"), "eth0");
        EXPECT_GT(json_number_value(json_object_get(json_object_get(one, "encode_GBps"), "int8")), 0);
        EXPECT_GT(json_integer_value(json_object_get(one, "memory_bytes")), 0);
        EXPECT_LT(std::abs(json_number_value(json_object_get(one, "clock_sec"))), 1);
    }
    for (const char *setting : {"MTU", "congestion", "uses", "clock", "passes"}) {
        EXPECT_EQ(found({setting}), 0) << setting;
    }
    for (const char *begin : {"slow: ", "why: ", "change: ", "thinwire: "}) {
        EXPECT_NE(line_of(out, begin), "") << out;
    }
}

/* A step on a link of 100 Mb/s: of so many sizes, or of the model that is asked about. The planner takes what
 * the doctor has measured. */
TEST_F(Doctor, SaysWhetherThinwireHelps)
{
    std::string out = examine({"--nodes", "2", "--link", "100mbit"}, "");
    EXPECT_NE(line_of(out, "  70 G "), "") << out;
    std::string help = line_of(out, "thinwire: a step of 1 G parameters takes ");
    EXPECT_NE(help.find(": type TW_FSDP=1 torchrun"), std::string::npos) << out;
    EXPECT_EQ(json_array_size(json_object_get(json, "steps")), 4u);
    json_decref(json);
    out = examine({"--nodes", "2", "--ranks-per-node", "2", "--link", "100mbit"}, "", "--params 124M");
    const json_t *step = json_array_get(json_object_get(json, "steps"), 0);
    EXPECT_EQ(json_number_value(json_object_get(step, "params")), 124e6);
    EXPECT_NE(line_of(out, "thinwire: a step of 124 M parameters takes "), "") << out;
    const Result plan = process::run(
        {"trainer/plan/main", "--cluster", json_path, "--params", "1M", "--device-flops", "1e12"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    EXPECT_NE(plan.out.find("the doctor's cluster: 2 nodes of 2 GPUs"), std::string::npos) << plan.out;
    EXPECT_NE(plan.out.find("\nlossless "), std::string::npos) << plan.out;
}

TEST_F(Doctor, NamesTheNodeThatSendsAtATenth)
{
    const std::string out =
        examine({"--nodes", "3", "--link", "50mbit"}, "[ $RANK != 1 ] || tc qdisc replace dev eth0 root tbf "
                                                      "rate 5mbit burst 65536 latency 200ms || exit 1;");
    EXPECT_EQ(found({"node 1 (node1) sends"}), 1) << out;
    EXPECT_NE(line_of(out, "slow: ").find("node 1 (node1) sends"), std::string::npos) << out;
    EXPECT_NE(line_of(out, "change: ").find("on node1: ethtool eth0; tc qdisc show dev eth0"),
              std::string::npos)
        << out;
}

TEST_F(Doctor, NamesNodesWithOtherSettings)
{
    const std::string out = examine(
        {"--nodes", "4", "--nics", "2", "--link", "50mbit"},
        "export TW_NET_DEVICES=eth0; case $RANK in 1) ip link set eth0 mtu 1300;; "
        "2) ip route replace 10.77.0.0/24 dev eth0 proto kernel scope link src 10.77.0.3 congctl reno;; "
        "3) TW_NET_DEVICES=eth1;; esac || exit 1;");
    EXPECT_EQ(found({"node 1 (node1): eth0 has an MTU of 1300, elsewhere it is 1500"}), 1) << out;
    EXPECT_EQ(found({"node 2 (node2) sends with the congestion control reno, others with cubic"}), 1) << out;
    EXPECT_EQ(found({"rank 3 of node 3 (node3) uses eth1, others eth0"}), 1) << out;
    EXPECT_EQ(found({"MTU"}) + found({"congestion"}) + found({" uses "}), 3) << out;
}

TEST_F(Doctor, ARankThatDiesIsAnErrorOfTheOthers)
{
    const std::string mark = temporary("doctor.mark");
    unlink(mark.c_str());
    Child child(command({"--nodes", "3", "--link", "50mbit"},
                        "[ $RANK != 2 ] || (while [ ! -e " + mark + " ]; do sleep 0.1; done; kill -9 $$) &",
                        "--seconds 60s"));
    while (child.pid() > 0 && child.out().find("measuring: 3 nodes") == std::string::npos) {
        process::listen({&child}, 100);
    }
    fclose(fopen(mark.c_str(), "w"));
    const Result result = child.wait();
    EXPECT_NE(result.code, 0);
    for (const char *rank : {"rank 0", "rank 1"}) {
        EXPECT_NE(result.err.find(std::string(rank) + ": peer 2 failed"), std::string::npos) << result.err;
    }
    EXPECT_EQ(result.out.find("slow: "), std::string::npos) << result.out;
    unlink(mark.c_str());
}

/* From some step on no connection is made, as its first packet is dropped: each step takes as long as it
 * may, until the time is over. The first steps, of which none is left out, are not all through by then. */
TEST_F(Doctor, WhatThereIsNoTimeForIsNotMeasured)
{
    const std::string mark = temporary("doctor.shut"),
                      drop = "tc qdisc replace dev eth0 root handle 1: htb && "
                             "tc class add dev eth0 parent 1: classid 1:2 htb rate 1mbit && "
                             "tc qdisc add dev eth0 parent 1:2 bfifo limit 1 && "
                             "tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 6 0xff "
                             "match u8 0x02 0x12 at 33 flowid 1:2";
    unlink(mark.c_str());
    Child child(command({"--nodes", "4"},
                        "(while [ ! -e " + mark + " ]; do sleep 0.05; done; " + drop + ") &",
                        "--seconds 4s --json " + json_path));
    while (child.pid() > 0 && child.out().find("measuring: 4 nodes") == std::string::npos) {
        process::listen({&child}, 100);
    }
    usleep(1000 * 1000);
    fclose(fopen(mark.c_str(), "w"));
    const Result result = child.wait();
    unlink(mark.c_str());
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    json = json_load_file(json_path.c_str(), 0, nullptr);
    const long long left = json_integer_value(json_object_get(json, "ways_not_measured"));
    EXPECT_GE(left, 1) << result.out;
    EXPECT_LT(left, 12) << result.out;
    EXPECT_NE(result.out.find("  not measured: " + std::to_string(left) + "\n"), std::string::npos)
        << result.out;
    EXPECT_EQ(found({std::to_string(left) + " of 12 ways from node to node are not measured"}), 1)
        << result.out;
    EXPECT_NE(line_of(result.out, "slow: ").find("are not measured"), std::string::npos) << result.out;
}

TEST(DoctorAlone, OneRankHasNoLinks)
{
    const Result result = process::run({"bench/doctor"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("links: one node, so there are none"), std::string::npos);
    EXPECT_EQ(line_of(result.out, "slow: "), "slow: nothing is, on one node") << result.out;
    EXPECT_NE(line_of(result.out, "thinwire: one node"), "") << result.out;
}

TEST(DoctorAlone, BadInputIsNamed)
{
    Result result = process::run({"bench/doctor", "--streams", "1"});
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("--streams: '1'"), std::string::npos) << result.err;
    result = process::run({"bench/doctor", "--params", "0"});
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("--params: '0'"), std::string::npos) << result.err;
    result = process::run({"bench/doctor", "--json", "/nowhere/doctor.json"});
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.err.find("/nowhere/doctor.json: cannot write"), std::string::npos) << result.err;
    process::Spec spec = {};
    spec.argv = {"bench/doctor"};
    spec.env = {{"TW_NET_DEVICES", "eth77"}};
    result = Child(spec).wait();
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.err.find("network device eth77: there is none of that name"), std::string::npos)
        << result.err;
}

} // namespace
