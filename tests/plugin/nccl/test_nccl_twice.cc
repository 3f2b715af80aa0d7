/* Two copies of the plugin in one process, as two libraries that both bring their own use of sockets: what
 * the one sends, the other receives. */
#include <gtest/gtest.h>

#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "plugin/nccl/abi/net.h"
#include "tests/common/process.h"

namespace
{

std::string g_library;

class Copy
{
  public:
    explicit Copy(const std::string &path)
    {
        void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        EXPECT_NE(library, nullptr) << dlerror();
        if (library != nullptr) {
            net = (const tw_nccl_net_v12_t *)dlsym(library, "ncclNetPlugin_v12");
            EXPECT_EQ(net->init(&context, 1, nullptr, nullptr, nullptr), TW_NCCL_SUCCESS);
        }
    }
    ~Copy()
    {
        EXPECT_EQ(net->finalize(context), TW_NCCL_SUCCESS);
    }
    const tw_nccl_net_v12_t *net = nullptr;
    void *context = nullptr;
};

/* From a to b, in this one thread. */
void exchange(const Copy &a, const Copy &b, uint8_t seed)
{
    char handle[TW_NCCL_HANDLE_BYTES];
    void *listener = nullptr, *sender = nullptr, *receiver = nullptr, *device = nullptr;
    ASSERT_EQ(b.net->listen(b.context, 0, handle, &listener), TW_NCCL_SUCCESS);
    while (sender == nullptr || receiver == nullptr) {
        if (sender == nullptr) {
            ASSERT_EQ(a.net->connect(a.context, 0, handle, &sender, &device), TW_NCCL_SUCCESS);
        }
        if (receiver == nullptr) {
            ASSERT_EQ(b.net->accept(listener, &receiver, &device), TW_NCCL_SUCCESS);
        }
    }
    for (size_t bytes : {(size_t)0, (size_t)100, (size_t)1 << 20}) {
        std::vector<uint8_t> from(bytes + 1, seed), to(bytes + 1);
        void *out = nullptr, *in = nullptr, *at = to.data(), *mhandle = nullptr;
        int tag = 3, sent = 0, received = 0, size = 0;
        ASSERT_EQ(b.net->irecv(receiver, 1, &at, &bytes, &tag, &mhandle, nullptr, &in), TW_NCCL_SUCCESS);
        ASSERT_EQ(a.net->isend(sender, from.data(), bytes, tag, nullptr, nullptr, &out), TW_NCCL_SUCCESS);
        while (!sent || !received) {
            if (!sent) {
                ASSERT_EQ(a.net->test(out, &sent, &size), TW_NCCL_SUCCESS);
            }
            if (!received) {
                ASSERT_EQ(b.net->test(in, &received, &size), TW_NCCL_SUCCESS);
            }
        }
        from[bytes] = 0;
        EXPECT_EQ(to, from);
    }
    EXPECT_EQ(process::slurp("/proc/self/maps").find("libuc"), std::string::npos) << "UCX is of no use here";
    EXPECT_EQ(a.net->close_send(sender), TW_NCCL_SUCCESS);
    EXPECT_EQ(b.net->close_recv(receiver), TW_NCCL_SUCCESS);
    EXPECT_EQ(b.net->close_listen(listener), TW_NCCL_SUCCESS);
}

TEST(Twice, TwoCopiesInOneProcess)
{
    const std::string other =
        testing::TempDir() + "/libnccl-net-thinwire-other-" + std::to_string(getpid()) + ".so";
    ASSERT_EQ(process::run({"cp", g_library, other}).code, 0);
    setenv("TW_NET_DEVICES", "lo", 1);
    {
        const Copy one(g_library), two(other);
        ASSERT_NE(one.net, two.net) << "one library under two names";
        exchange(one, two, 1);
        exchange(two, one, 2);
        exchange(two, two, 3);
    }
    unlink(other.c_str());
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc < 2) {
        return 2;
    }
    g_library = argv[1];
    return RUN_ALL_TESTS();
}
