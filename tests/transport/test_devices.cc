/* Lists of network devices. */
#include "transport/devices.h"

#include <string>
#include <vector>

#include "tests/common/fixture.h"

namespace
{

class Devices : public tw::Fixture
{
  protected:
    static std::vector<std::string> names_of(const char *list)
    {
        std::vector<std::string> names;
        char name[TW_DEVICES_NAME_BYTES];
        while (tw_devices_next(&list, name)) {
            names.push_back(name);
        }
        return names;
    }
};

TEST_F(Devices, NamesInTheirOrder)
{
    using Names = std::vector<std::string>;
    const struct {
        const char *list;
        Names names;
    } cases[] = {
        {"", {}},
        {"eth0", {"eth0"}},
        {"eth1,eth0", {"eth1", "eth0"}},
        {" mlx5_0:1 ,\tmlx5_1:1", {"mlx5_0:1", "mlx5_1:1"}},
        {"eth,eth0,eth00", {"eth", "eth0", "eth00"}},
    };
    for (const auto &c : cases) {
        EXPECT_EQ(tw_devices_check("rank 0", c.list), TW_OK) << c.list;
        EXPECT_EQ(names_of(c.list), c.names) << c.list;
    }
}

TEST_F(Devices, WhatIsNoList)
{
    for (const std::string list : {",", " ", "lo,", "lo, ", ",lo", "lo,,lo", " , ,"}) {
        expect_log("rank 3: TW_NET_DEVICES: \"" + list + "\": between two commas, or at an end");
        EXPECT_EQ(tw_devices_check("rank 3", list.c_str()), TW_ERR_CONFIG);
    }
    for (const char *list : {"lo,lo", "lo, lo", "eth0,lo,eth1,lo"}) {
        expect_log("net: TW_NET_DEVICES: \"lo\" stands there twice");
        EXPECT_EQ(tw_devices_check("net", list), TW_ERR_CONFIG) << list;
    }
    expect_log("no device has so long a name");
    EXPECT_EQ(tw_devices_check("net", ("lo," + std::string(5000, 'x')).c_str()), TW_ERR_CONFIG);
}

} // namespace
