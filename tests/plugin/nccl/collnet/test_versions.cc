/* What NCCL reads by position, and the tables. */
#include <cstddef>

#include "plugin/nccl/abi/collnet.h"
#include "plugin/nccl/net/net.h"
#include "tests/common/fixture.h"

extern "C" {
extern const tw_nccl_collnet_v8_t ncclCollNetPlugin_v8;
extern const tw_nccl_collnet_v9_t ncclCollNetPlugin_v9;
extern const tw_nccl_collnet_v10_t ncclCollNetPlugin_v10;
extern const tw_nccl_collnet_v11_t ncclCollNetPlugin_v11;
extern const tw_nccl_collnet_v12_t ncclCollNetPlugin_v12;
}

#define AT(type, member, offset) static_assert(offsetof(type, member) == (offset), #type " " #member)

static_assert(sizeof(tw_nccl_sge_v8_t) == 24, "");
static_assert(sizeof(tw_nccl_sge_v9_t) == 24, "");
AT(tw_nccl_sge_v9_t, bytes, 16);
static_assert(sizeof(tw_nccl_collnet_v8_t) == 17 * 8, "");
static_assert(sizeof(tw_nccl_collnet_v9_t) == 18 * 8, "");
static_assert(sizeof(tw_nccl_collnet_v11_t) == 19 * 8, "");
static_assert(sizeof(tw_nccl_collnet_v12_t) == 19 * 8, "");
AT(tw_nccl_collnet_v8_t, listen, 4 * 8);
AT(tw_nccl_collnet_v8_t, support, 6 * 8);
AT(tw_nccl_collnet_v8_t, iallreduce, 10 * 8);
AT(tw_nccl_collnet_v8_t, close_listen, 16 * 8);
AT(tw_nccl_collnet_v12_t, test, 14 * 8);
AT(tw_nccl_collnet_v12_t, finalize, 18 * 8);

namespace
{

class Abi : public tw::Fixture
{
  protected:
    /* What no version may lack. */
    template <typename Table>
    static void whole(const Table &table)
    {
        EXPECT_STREQ(table.name, "Thinwire") << "the net's";
        EXPECT_TRUE(table.init && table.devices && table.properties && table.listen && table.connect);
        EXPECT_TRUE(table.support && table.reg_mr && table.reg_mr_dma_buf && table.dereg_mr);
        EXPECT_TRUE(table.iallreduce && table.iallgather && table.ireducescatter);
        EXPECT_TRUE(table.iflush && table.test && table.close_coll && table.close_listen);
    }
};

TEST_F(Abi, NoTableLacksAnything)
{
    whole(ncclCollNetPlugin_v8);
    whole(ncclCollNetPlugin_v9);
    whole(ncclCollNetPlugin_v10);
    whole(ncclCollNetPlugin_v11);
    whole(ncclCollNetPlugin_v12);
    EXPECT_NE(ncclCollNetPlugin_v11.finalize, nullptr);
    EXPECT_NE(ncclCollNetPlugin_v12.finalize, nullptr);
}

/* Also when NCCL asks the collnet before the net: nothing yet, an init that fails and is ended, then one that
 * works. */
TEST_F(Abi, InitDevicesAndProperties)
{
    void *context = &context;
    int n = -1;
    set_env("TW_NET_DEVICES", "no_such_device");
    expect_log("\"no_such_device\" is not up, or has no address");
    EXPECT_EQ(ncclCollNetPlugin_v12.init(&context, 1, nullptr), TW_NCCL_INVALID_USAGE);
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(ncclCollNetPlugin_v12.finalize(context), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclCollNetPlugin_v12.devices(&n), TW_NCCL_SUCCESS);
    EXPECT_EQ(n, 0);

    set_env("TW_NET_DEVICES", "lo");
    ASSERT_EQ(ncclCollNetPlugin_v11.init(&context, 1, nullptr), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclCollNetPlugin_v11.devices(&n), TW_NCCL_SUCCESS);
    EXPECT_EQ(n, 1);
    tw_nccl_net_props_v8_t v8;
    ASSERT_EQ(ncclCollNetPlugin_v8.properties(0, &v8), TW_NCCL_SUCCESS);
    EXPECT_STREQ(v8.name, "lo");
    tw_nccl_net_props_v12_t v12;
    ASSERT_EQ(ncclCollNetPlugin_v12.properties(0, &v12), TW_NCCL_SUCCESS);
    EXPECT_EQ(v12.max_coll_bytes, (size_t)1 << 30);
    EXPECT_EQ(v12.ptr_support, TW_NCCL_PTR_HOST);
    EXPECT_EQ(ncclCollNetPlugin_v11.finalize(context), TW_NCCL_SUCCESS);

    char handle[TW_NCCL_HANDLE_BYTES];
    void *listener = &n;
    expect_log("there is no device 7");
    EXPECT_EQ(ncclCollNetPlugin_v8.listen(7, handle, &listener), TW_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(listener, nullptr);
}

/* What goes here is not sealed with it. */
TEST_F(Abi, NotWithASecretOfNccls)
{
    void *context = nullptr, *listener = nullptr;
    char handle[TW_NCCL_HANDLE_BYTES];
    set_env("TW_NET_DEVICES", "lo");
    ASSERT_EQ(tw_net_begin(nullptr, "a secret"), TW_OK);
    ASSERT_EQ(ncclCollNetPlugin_v11.init(&context, 1, nullptr), TW_NCCL_SUCCESS);
    expect_log("collnet: what ncclSetEncryption was given seals the net alone");
    EXPECT_EQ(ncclCollNetPlugin_v11.listen(context, 0, handle, &listener), TW_NCCL_INVALID_USAGE);
    EXPECT_EQ(listener, nullptr);
    ASSERT_EQ(tw_net_begin(nullptr, nullptr), TW_OK);
    ASSERT_EQ(ncclCollNetPlugin_v11.listen(context, 0, handle, &listener), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclCollNetPlugin_v11.close_listen(listener), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclCollNetPlugin_v11.finalize(context), TW_NCCL_SUCCESS);
}

TEST_F(Abi, OnlyTheHostsMemory)
{
    int comm = 0;
    void *mhandle = nullptr;
    expect_log("only the host's was offered");
    EXPECT_EQ(ncclCollNetPlugin_v12.reg_mr(&comm, &comm, 4, TW_NCCL_PTR_CUDA, &mhandle),
              TW_NCCL_INVALID_ARGUMENT);
    expect_log("DMA-BUF was not offered");
    EXPECT_EQ(ncclCollNetPlugin_v12.reg_mr_dma_buf(&comm, &comm, 4, 2, 0, 3, &mhandle),
              TW_NCCL_INVALID_ARGUMENT);
}

} // namespace
