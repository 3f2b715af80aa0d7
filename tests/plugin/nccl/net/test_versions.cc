/* What NCCL reads by position, as it is on the machines that NCCL runs on; and the tables. */
#include "plugin/nccl/abi/net.h"

#include <cstddef>

#include "tests/common/fixture.h"

extern "C" {
extern const tw_nccl_net_v7_t ncclNetPlugin_v7;
extern const tw_nccl_net_v8_t ncclNetPlugin_v8;
extern const tw_nccl_net_v9_t ncclNetPlugin_v9;
extern const tw_nccl_net_v10_t ncclNetPlugin_v10;
extern const tw_nccl_net_v11_t ncclNetPlugin_v11;
extern const tw_nccl_net_v12_t ncclNetPlugin_v12;
}

#define AT(type, member, offset) static_assert(offsetof(type, member) == (offset), #type " " #member)

AT(tw_nccl_net_props_v7_t, guid, 16);
AT(tw_nccl_net_props_v7_t, ptr_support, 24);
AT(tw_nccl_net_props_v7_t, speed_mbps, 28);
AT(tw_nccl_net_props_v7_t, latency_us, 36);
AT(tw_nccl_net_props_v7_t, max_recvs, 44);
AT(tw_nccl_net_props_v7_t, net_device_version, 52);
static_assert(sizeof(tw_nccl_net_props_v7_t) == 56, "");

AT(tw_nccl_net_props_v8_t, reg_is_global, 28);
AT(tw_nccl_net_props_v8_t, speed_mbps, 32);
AT(tw_nccl_net_props_v8_t, net_device_version, 56);
static_assert(sizeof(tw_nccl_net_props_v8_t) == 64, "");

AT(tw_nccl_net_props_v9_t, force_flush, 32);
AT(tw_nccl_net_props_v9_t, speed_mbps, 36);
AT(tw_nccl_net_props_v9_t, max_recvs, 52);
AT(tw_nccl_net_props_v9_t, n_devs, 64);
AT(tw_nccl_net_props_v9_t, max_p2p_bytes, 88);
static_assert(sizeof(tw_nccl_net_props_v9_t) == 104, "");
AT(tw_nccl_net_props_v11_t, max_multi_request, 104);
static_assert(sizeof(tw_nccl_net_props_v11_t) == 112, "");

AT(tw_nccl_net_props_v12_t, n_devs, 64);
AT(tw_nccl_net_props_v12_t, max_p2p_bytes, 104);
AT(tw_nccl_net_props_v12_t, max_multi_request, 120);
AT(tw_nccl_net_props_v12_t, rail_id, 124);
AT(tw_nccl_net_props_v12_t, plane_id, 126);
static_assert(sizeof(tw_nccl_net_props_v12_t) == 128, "");

static_assert(sizeof(tw_nccl_net_config_t) == 4, "");
static_assert(sizeof(tw_nccl_profiler_socket_t) == 24, "");
AT(tw_nccl_profiler_socket_t, sock.fd, 8);
AT(tw_nccl_profiler_socket_t, sock.op, 12);
AT(tw_nccl_profiler_socket_t, sock.bytes, 16);
static_assert(sizeof(tw_nccl_net_v7_t) == 19 * 8, "");
static_assert(sizeof(tw_nccl_net_v8_t) == 19 * 8, "");
static_assert(sizeof(tw_nccl_net_v9_t) == 20 * 8, "");
static_assert(sizeof(tw_nccl_net_v10_t) == 20 * 8, "");
static_assert(sizeof(tw_nccl_net_v11_t) == 22 * 8, "");
static_assert(sizeof(tw_nccl_net_v12_t) == 22 * 8, "");
AT(tw_nccl_net_v12_t, isend, 10 * 8);
AT(tw_nccl_net_v12_t, test, 13 * 8);
AT(tw_nccl_net_v12_t, finalize, 20 * 8);

namespace
{

class Abi : public tw::Fixture
{
  protected:
    /* What no version may lack. */
    template <typename Table>
    static void whole(const Table &table)
    {
        EXPECT_STREQ(table.name, "Thinwire");
        EXPECT_TRUE(table.init && table.devices && table.properties && table.listen && table.connect);
        EXPECT_TRUE(table.accept && table.reg_mr && table.reg_mr_dma_buf && table.dereg_mr);
        EXPECT_TRUE(table.isend && table.irecv && table.iflush && table.test);
        EXPECT_TRUE(table.close_send && table.close_recv && table.close_listen);
        EXPECT_FALSE(table.device_mr || table.irecv_consumed) << "the GPU drives nothing";
    }
    template <typename Props>
    static void truthful(const Props &props)
    {
        EXPECT_STREQ(props.name, "lo");
        EXPECT_EQ(props.pci_path, nullptr) << "no PCI device";
        EXPECT_NE(props.guid, 0u);
        EXPECT_EQ(props.ptr_support, TW_NCCL_PTR_HOST);
        EXPECT_EQ(props.speed_mbps, 2500) << "as TW_NET_GBPS says";
        EXPECT_EQ(props.port, 0);
        EXPECT_EQ(props.latency_us, 12.5f);
        EXPECT_EQ(props.max_comms, 65536);
        EXPECT_EQ(props.max_recvs, 8);
        EXPECT_EQ(props.net_device_type, 0);
        EXPECT_EQ(props.net_device_version, 0);
    }
    template <typename Props>
    static void truthful_since_v9(const Props &props)
    {
        truthful(props);
        EXPECT_EQ(props.reg_is_global, 0);
        EXPECT_EQ(props.force_flush, 0);
        EXPECT_EQ(props.n_devs, 1);
        EXPECT_EQ(props.devs[0], 0);
        EXPECT_EQ(props.max_p2p_bytes, (size_t)1 << 30);
        EXPECT_EQ(props.max_coll_bytes, (size_t)1 << 30);
    }
};

TEST_F(Abi, NoTableLacksAnything)
{
    whole(ncclNetPlugin_v7);
    whole(ncclNetPlugin_v8);
    whole(ncclNetPlugin_v9);
    whole(ncclNetPlugin_v10);
    whole(ncclNetPlugin_v11);
    whole(ncclNetPlugin_v12);
    EXPECT_NE(ncclNetPlugin_v11.finalize, nullptr);
    EXPECT_NE(ncclNetPlugin_v12.finalize, nullptr);
}

/* In this order in one process: nothing yet; an init that fails, and is ended as 2.28 does; then one that
 * works. */
TEST_F(Abi, InitDevicesAndProperties)
{
    int n = -1;
    ASSERT_EQ(ncclNetPlugin_v12.devices(&n), TW_NCCL_SUCCESS);
    EXPECT_EQ(n, 0);

    void *context = &n;
    set_env("TW_NET_DEVICES", "no_such_device");
    expect_log("\"no_such_device\" is not up, or has no address");
    EXPECT_EQ(ncclNetPlugin_v11.init(&context, 1, nullptr, nullptr, nullptr), TW_NCCL_INVALID_USAGE);
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(ncclNetPlugin_v11.finalize(context), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclNetPlugin_v11.devices(&n), TW_NCCL_SUCCESS);
    EXPECT_EQ(n, 0);
    expect_log("\"no_such_device\" is not up, or has no address");
    EXPECT_EQ(ncclNetPlugin_v7.init(nullptr), TW_NCCL_INVALID_USAGE);

    set_env("TW_NET_DEVICES", "lo");
    set_env("TW_NET_GBPS", "2.5");
    set_env("TW_NET_ALPHA_US", "12.5");
    ASSERT_EQ(ncclNetPlugin_v12.init(&context, 1, nullptr, nullptr, nullptr), TW_NCCL_SUCCESS);
    ASSERT_NE(context, nullptr);
    ASSERT_EQ(ncclNetPlugin_v12.devices(&n), TW_NCCL_SUCCESS);
    EXPECT_EQ(n, 1);

    tw_nccl_net_props_v7_t v7;
    ASSERT_EQ(ncclNetPlugin_v7.properties(0, &v7), TW_NCCL_SUCCESS);
    truthful(v7);
    tw_nccl_net_props_v8_t v8;
    ASSERT_EQ(ncclNetPlugin_v8.properties(0, &v8), TW_NCCL_SUCCESS);
    truthful(v8);
    EXPECT_EQ(v8.reg_is_global, 0);
    tw_nccl_net_props_v9_t v9;
    ASSERT_EQ(ncclNetPlugin_v9.properties(0, &v9), TW_NCCL_SUCCESS);
    truthful_since_v9(v9);
    ASSERT_EQ(ncclNetPlugin_v10.properties(0, &v9), TW_NCCL_SUCCESS);
    truthful_since_v9(v9);
    tw_nccl_net_props_v11_t v11;
    ASSERT_EQ(ncclNetPlugin_v11.properties(0, &v11), TW_NCCL_SUCCESS);
    truthful_since_v9(v11.v9);
    EXPECT_EQ(v11.max_multi_request, 1);
    tw_nccl_net_props_v12_t v12;
    ASSERT_EQ(ncclNetPlugin_v12.properties(0, &v12), TW_NCCL_SUCCESS);
    truthful_since_v9(v12);
    EXPECT_EQ(v12.max_multi_request, 1);
    EXPECT_EQ(v12.rail_id, -1);
    EXPECT_EQ(v12.plane_id, -1);

    for (int dev : {-1, 1, 1 << 20}) {
        expect_log("there is no device " + std::to_string(dev));
        EXPECT_EQ(ncclNetPlugin_v7.properties(dev, &v7), TW_NCCL_INVALID_ARGUMENT);
        void *comm = &n;
        char handle[TW_NCCL_HANDLE_BYTES] = {};
        EXPECT_EQ(ncclNetPlugin_v12.listen(context, dev, handle, &comm), TW_NCCL_INVALID_ARGUMENT);
        EXPECT_EQ(comm, nullptr);
    }
    EXPECT_EQ(ncclNetPlugin_v12.finalize(context), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclNetPlugin_v9.init(nullptr), TW_NCCL_SUCCESS) << "again, without a context";
}

TEST_F(Abi, OnlyTheHostsMemory)
{
    int comm = 0;
    void *mhandle = nullptr;
    expect_log("only the host's was offered");
    EXPECT_EQ(ncclNetPlugin_v12.reg_mr(&comm, &comm, 4, TW_NCCL_PTR_CUDA, &mhandle),
              TW_NCCL_INVALID_ARGUMENT);
    expect_log("DMA-BUF was not offered");
    EXPECT_EQ(ncclNetPlugin_v12.reg_mr_dma_buf(&comm, &comm, 4, 2, 0, 3, &mhandle), TW_NCCL_INVALID_ARGUMENT);
    void *request = &comm;
    EXPECT_EQ(ncclNetPlugin_v12.iflush(&comm, 1, nullptr, nullptr, nullptr, &request), TW_NCCL_SUCCESS);
    EXPECT_EQ(request, nullptr) << "nothing to wait for";
}

} // namespace
