/* Which network devices are offered. */
#include "plugin/nccl/net/net.h"

#include <cstring>
#include <memory>

#include "plugin/plugin.h"
#include "tests/common/fixture.h"

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

TEST_F(Device, TwiceIsOnceAndBlanksDoNotMatter)
{
    ASSERT_EQ(find(" lo, lo", false), TW_OK);
    EXPECT_EQ(devices_.n, 1);
}

TEST_F(Device, AllAreAtLeastOneAndNotTheLoopbackBesideOthers)
{
    ASSERT_EQ(find("", false), TW_OK);
    ASSERT_GE(devices_.n, 1);
    for (int i = 0; i < devices_.n; ++i) {
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
    for (int i = 0; i < devices_.n; ++i) {
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
    expect_log("TW_NET_DEVICES is too long");
    EXPECT_EQ(find(std::string(2000, 'x').c_str(), false), TW_ERR_CONFIG);
    expect_log("there is no network device");
    EXPECT_EQ(find(" , ,", false), TW_ERR_NOT_FOUND);
}

} // namespace
