/* Which network devices are offered. */
#include "plugin/nccl/net/net.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "plugin/nccl/net/interfaces.h"
#include "plugin/plugin.h"
#include "tests/common/fixture.h"
#include "tests/common/process.h"

namespace
{

class Device : public tw::Fixture
{
  protected:
    static std::string pci(const char *path)
    {
        char text[512];
        snprintf(text, sizeof(text), "%s", path);
        tw_net_pci_path(text);
        return text;
    }
    tw_status_t find(const char *names, bool merged, double gbps = 0)
    {
        for (const char *name : {"TW_NET_DEVICES", "TW_NET_MERGE", "TW_NET_GBPS"}) {
            set_env(name, std::nullopt);
        }
        tw_net_options_t options;
        EXPECT_EQ(tw_net_options_init(&options), TW_OK);
        EXPECT_EQ(tw_config_set(&tw_net_config_table, &options, "TW_NET_DEVICES", names), TW_OK);
        options.merge = merged;
        options.gbps = gbps;
        const tw_status_t status = tw_net_devices_find(&options, &devices_);
        tw_config_cleanup(&tw_net_config_table, &options);
        return status;
    }

    tw_net_devices_t devices_ = {};
};

TEST_F(Device, PciPath)
{
    EXPECT_EQ(pci("/sys/devices/pci0000:00/0000:00:03.0/virtio2"), "/sys/devices/pci0000:00/0000:00:03.0");
    EXPECT_EQ(pci("/sys/devices/pci0000:00/0000:00:02.0/0000:3b:00.1"),
              "/sys/devices/pci0000:00/0000:00:02.0/0000:3b:00.1");
    EXPECT_EQ(pci("/sys/devices/virtual/net/lo"), "");
    EXPECT_EQ(pci("/sys/devices/vmbus/00000000-0000/x"), "");
    EXPECT_EQ(pci("/sys/0000:00:03.00"), "") << "too long for an address";
    EXPECT_EQ(pci("/sys/0000:00:03"), "");
    EXPECT_EQ(pci("/"), "");
    EXPECT_EQ(pci(""), "");
}

TEST_F(Device, TheLoopbackByName)
{
    ASSERT_EQ(find("lo", false), TW_OK);
    ASSERT_EQ(devices_.n, 1);
    EXPECT_STREQ(devices_.device[0].name, "lo");
    EXPECT_STREQ(devices_.device[0].pci_path, "");
    EXPECT_EQ(devices_.device[0].speed_mbps, 10000) << "nobody knows";
    const uint8_t localhost[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    EXPECT_EQ(memcmp(devices_.device[0].address, localhost, 16), 0) << "IPv4 where there is both";
    EXPECT_EQ(devices_.device[0].guid, 1u) << "no hardware address: its place";
}

TEST_F(Device, BlanksDoNotMatter)
{
    ASSERT_EQ(find(" lo ", false), TW_OK);
    EXPECT_EQ(devices_.n, 1);
}

TEST_F(Device, AllAreAtLeastOneAndNotTheLoopbackBesideOthers)
{
    ASSERT_EQ(find("", false), TW_OK);
    ASSERT_GE(devices_.n, 1);
    for (int i = 0; i < devices_.n; i++) {
        EXPECT_TRUE(devices_.n == 1 || strcmp(devices_.device[i].name, "lo") != 0);
        EXPECT_GT(devices_.device[i].speed_mbps, 0);
        EXPECT_NE(devices_.device[i].guid, 0u);
    }
}

TEST_F(Device, MergedIsOneWithAllNames)
{
    ASSERT_EQ(find("", false), TW_OK);
    const std::string first = devices_.device[0].name;
    const std::string names = first == "lo" ? "lo" : first + ",lo";
    ASSERT_EQ(find(names.c_str(), false, 4), TW_OK);
    int speed = 0;
    for (int i = 0; i < devices_.n; i++) {
        speed += devices_.device[i].speed_mbps;
    }
    ASSERT_EQ(find(names.c_str(), true, 4), TW_OK);
    ASSERT_EQ(devices_.n, 1);
    EXPECT_EQ(devices_.device[0].name, names);
    EXPECT_EQ(devices_.device[0].speed_mbps, speed);
}

TEST_F(Device, Unknown)
{
    expect_log("TW_NET_DEVICES: \"l0\" is not up, or has no address; the nearest name is lo");
    EXPECT_EQ(find("lo,l0", false), TW_ERR_CONFIG);
    expect_log("net: TW_NET_DEVICES: \"lo,\": between two commas, or at an end, there is no name");
    EXPECT_EQ(find("lo,", false), TW_ERR_CONFIG);
}

/* ---- as NCCL has it ------------------------------------------------------------------------------------ */

TEST_F(Device, NcclsSyntax)
{
    struct Case {
        const char *text;
        bool eth0, eth10, docker0;
    };
    for (const Case &c : {
             Case{"eth", true, true, false},
             Case{"eth0", true, false, false},
             Case{"eth1", false, true, false},
             Case{"=eth1", false, false, false},
             Case{"=eth0", true, false, false},
             Case{"=eth0,eth10", true, true, false},
             Case{"^docker", true, true, false},
             Case{"^docker,eth1", true, false, false},
             Case{"^=eth1", true, true, true},
             Case{"^=eth10,docker0", true, false, false},
             Case{"eth0:4000,docker", true, false, true},
             Case{",,eth10,", false, true, false},
             Case{"ib", false, false, false},
         }) {
        EXPECT_EQ(tw_net_interfaces_match(c.text, "eth0"), c.eth0) << c.text;
        EXPECT_EQ(tw_net_interfaces_match(c.text, "eth10"), c.eth10) << c.text;
        EXPECT_EQ(tw_net_interfaces_match(c.text, "docker0"), c.docker0) << c.text;
    }
}

/* A network of one's own with these interfaces; each has an IPv4 and an IPv6 address. */
class Zoo : public Device
{
  protected:
    using Env = std::map<std::string, std::string>;
    struct Found {
        std::string names; /**< each followed by a blank */
        std::string log;
    };

    void SetUp() override
    {
        Device::SetUp();
        const process::Result result = process::run({"unshare", "-n", "ip", "link", "show"});
        if (result.code != 0) {
            GTEST_SKIP() << "no network of one's own here: " << result.err;
        }
    }

    /** From now on no socket is bound to a device. */
    static void refuse_to_bind()
    {
        constexpr uint32_t at = offsetof(seccomp_data, args);
        sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_setsockopt, 0, 5),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 8),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_SOCKET, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 16),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_BINDTODEVICE, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
            _exit(5);
        }
    }

    /** lines: for ip, after all else. */
    static void make_world(const std::vector<std::string> &names, const std::string &lines)
    {
        if (unshare(CLONE_NEWNET) != 0) {
            _exit(3);
        }
        FILE *ip = popen("ip -batch -", "w");
        fprintf(ip, "link set lo up\n");
        for (size_t i = 0; i < names.size(); i++) {
            const char *name = names[i].c_str();
            fprintf(ip, "link add %s type veth peer name x%zu\nlink set %s up\nlink set x%zu up\n", name, i,
                    name, i);
            fprintf(ip, "addr add 10.0.%zu.1/24 dev %s\naddr add fd00:%zu::1/64 dev %s nodad\n", i, name, i,
                    name);
        }
        fprintf(ip, "%s", lines.c_str());
        if (pclose(ip) != 0) {
            _exit(4);
        }
    }

    static int look(const std::vector<std::string> &names, const Env &env, const std::string &lines)
    {
        make_world(names, lines);
        for (const char *name : {"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "TW_NET_DEVICES"}) {
            unsetenv(name);
        }
        for (const auto &[name, value] : env) {
            setenv(name.c_str(), value.c_str(), 1);
        }
        tw_net_options_t options;
        tw_net_devices_t devices;
        tw_log_set_sink(nullptr, nullptr);
        if (env.count("MAY_NOT_BIND") != 0) {
            refuse_to_bind();
        }
        if (tw_net_options_init(&options) != TW_OK || tw_net_devices_find(&options, &devices) != TW_OK) {
            return 1;
        }
        for (int i = 0; i < devices.n; i++) {
            printf("%s%s ", devices.device[i].name, devices.device[i].address[10] == 0xff ? "" : "/6");
        }
        fflush(stdout);
        tw_config_cleanup(&tw_net_config_table, &options);
        return 0;
    }

    /* "error": with what was logged. */
    static Found found(const std::vector<std::string> &names, const Env &env = {},
                       const std::string &lines = "")
    {
        process::Child child([&] { return look(names, env, lines); });
        const process::Result result = child.wait(60);
        EXPECT_LE(result.code, 1) << result.err;
        return {result.code == 0 ? result.out : "error", result.err};
    }
};

const std::vector<std::string> kAnimals = {"br-0a1b2c3d4e5f", "cni0",   "lxcbr0", "podman0", "flannel.1",
                                           "docker0",         "veth12", "virbr0", "calif00", "eth0",
                                           "enp3s0",          "ib0",    "br0"};

TEST_F(Zoo, WhatLeadsNowhereIsNotOffered)
{
    EXPECT_EQ(found(kAnimals).names, "eth0 enp3s0 ib0 br0 ");
    EXPECT_EQ(found({"cni0", "docker0"}).names, "cni0 docker0 ") << "there is nothing else but the loopback";
    EXPECT_EQ(found({}).names, "lo ");
}

/** Lines for ip: a device of this name with these addresses alone. */
std::string with(const std::string &name, const std::vector<std::string> &addresses)
{
    std::string lines = "link add " + name + " type veth peer name y" + name + "\nlink set " + name +
                        " up\nlink set y" + name + " up\n";
    for (const std::string &address : addresses) {
        lines += "addr add " + address + " dev " + name +
                 (address.find(':') != std::string::npos ? " nodad\n" : "\n");
    }
    return lines;
}

/* OpenShift's and OpenStack's bridges have the host's own address; Docker's have names of 12 digits. */
TEST_F(Zoo, HostsOwnBridges)
{
    EXPECT_EQ(found({"br-ex", "ovn-k8s-mp0", "docker0"}).names, "br-ex ");
    EXPECT_EQ(found({"eno1", "br-storage", "br-0a1b2c3d4e5f"}).names, "eno1 br-storage ");
    EXPECT_EQ(found({"br-0a1b2c3d4e5", "br-0a1b2c3d4e5g"}).names, "br-0a1b2c3d4e5 br-0a1b2c3d4e5g ");
}

TEST_F(Zoo, AddressesOfALinkAlone)
{
    EXPECT_EQ(found({"eno1"}, {}, with("idrac", {"169.254.1.2/24"})).names, "eno1 ");
    EXPECT_EQ(found({"docker0"}, {}, with("cable", {"169.254.1.2/24"})).names, "cable ")
        << "two hosts with a cable between them";
    EXPECT_NE(found({}, {}, with("cable", {"fe80::5/64"})).names.find(" cable/6 "), std::string::npos);
    EXPECT_EQ(found({}, {{"NCCL_SOCKET_IFNAME", "cable"}}, with("cable", {"fe80::5/64"})).names, "cable/6 ");
    EXPECT_EQ(found({"eth0"}, {{"NCCL_SOCKET_IFNAME", "eth"}}, with("eth1", {"fe80::5/64"})).names, "eth0 ");
    EXPECT_EQ(found({}, {}, with("eth0", {"169.254.1.2/24", "10.9.0.2/24"})).names, "eth0 ");
}

/* A host that tells its routers of an address of its own has it there, and none on its devices. */
TEST_F(Zoo, ALoopbackThatIsRoutedTo)
{
    const std::string routed = "addr add 10.200.0.7/32 dev lo\n";
    EXPECT_EQ(found({}, {}, routed).names, "lo ");
    EXPECT_EQ(found({"docker0"}, {}, routed + with("idrac", {"169.254.1.2/24"})).names, "lo ");
    EXPECT_EQ(found({"eth0"}, {}, routed).names, "eth0 ");
    const uint8_t address[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 200, 0, 7};
    process::Child child([&] {
        make_world({}, routed);
        tw_net_options_t options;
        tw_net_devices_t devices;
        unsetenv("TW_NET_DEVICES");
        bool is_right = tw_net_options_init(&options) == TW_OK &&
                        tw_net_devices_find(&options, &devices) == TW_OK &&
                        memcmp(devices.device[0].address, address, sizeof(address)) == 0;
        return is_right ? 0 : 1;
    });
    EXPECT_EQ(child.wait(60).code, 0);
}

/* Where a connection cannot keep to its device, two in one subnet are one link: who offers both, or their
 * sum, claims what is not there. */
TEST_F(Zoo, TwoInOneSubnet)
{
    const std::string lines = with("e0", {"10.77.0.1/24"}) + with("e1", {"10.77.0.2/24"});
    const Env no_bind = {{"MAY_NOT_BIND", "1"}}, merged = {{"TW_NET_MERGE", "y"}},
              both = {{"MAY_NOT_BIND", "1"}, {"TW_NET_MERGE", "y"}};
    EXPECT_EQ(found({"eth0"}, {}, lines).names, "eth0 e0 e1 ");
    EXPECT_EQ(found({"eth0"}, {}, lines).log, "");
    const Found one = found({"eth0"}, no_bind, lines);
    EXPECT_EQ(one.names, "eth0 e0 ");
    EXPECT_NE(one.log.find("net: e0 and e1 are in one subnet"), std::string::npos) << one.log;
    EXPECT_EQ(found({"eth0"}, merged, lines).names, "eth0,e0,e1 ");
    EXPECT_EQ(found({"eth0"}, both, lines).names, "eth0,e0 ");
    EXPECT_EQ(found({"eth0", "eth1"}, no_bind).log, "") << "each in its own";
}

TEST_F(Zoo, NcclsVariables)
{
    EXPECT_EQ(found(kAnimals, {{"NCCL_SOCKET_IFNAME", "et,en"}}).names, "eth0 enp3s0 ");
    EXPECT_EQ(found(kAnimals, {{"NCCL_SOCKET_IFNAME", "=cni0,lo"}}).names, "lo cni0 ");
    EXPECT_EQ(
        found({"eth0", "eth1"}, {{"NCCL_SOCKET_IFNAME", "^=lo"}, {"NCCL_SOCKET_FAMILY", "AF_INET6"}}).names,
        "eth0/6 eth1/6 ");
    EXPECT_EQ(found({"eth0"}, {{"NCCL_SOCKET_FAMILY", "AF_INET"}}).names, "eth0 ");
    EXPECT_EQ(found(kAnimals, {{"NCCL_SOCKET_IFNAME", "e"}, {"TW_NET_DEVICES", "ib0,docker0"}}).names,
              "ib0 docker0 ");
    const Found none = found({"eth0"}, {{"NCCL_SOCKET_IFNAME", "=eth"}});
    EXPECT_EQ(none.names, "error");
    EXPECT_NE(none.log.find("NCCL_SOCKET_IFNAME==eth: no network device"), std::string::npos) << none.log;
    EXPECT_NE(none.log.find("there are: lo eth0"), std::string::npos) << none.log;
}

TEST_F(Zoo, ManyOfThem)
{
    std::vector<std::string> names;
    std::string all, first;
    for (int i = 0; i < 18; i++) {
        names.push_back("docker" + std::to_string(i));
    }
    for (int i = 0; i < 17; i++) {
        names.push_back("eth" + std::to_string(i));
        all += (i > 0 ? "," : "") + names.back();
        first += i < 16 ? names.back() + " " : "";
    }
    const Found many = found(names);
    EXPECT_EQ(many.names, first);
    EXPECT_NE(many.log.find("of 17 network devices the first 16 are offered"), std::string::npos) << many.log;
    EXPECT_EQ(found(names, {{"TW_NET_DEVICES", "eth16"}}).names, "eth16 ");
    EXPECT_NE(found(names, {{"TW_NET_DEVICES", all}}).log.find("names 17 devices; at most 16"),
              std::string::npos);
}

} // namespace
