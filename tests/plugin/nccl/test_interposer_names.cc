/* A misspelt variable under NCCL: whichever part of the plugin begins first names it, in NCCL's log. */
#include <gtest/gtest.h>

#include <cstdarg>
#include <cstring>
#include <functional>

#include <dlfcn.h>

#include "plugin/nccl/abi/collnet.h"
#include "plugin/nccl/abi/net.h"
#include "plugin/nccl/abi/tuner.h"
#include "tests/common/process.h"

namespace
{

std::string g_library;
int n_named;

void logger(tw_nccl_log_level_t level, unsigned long, const char *, int, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    n_named += level == TW_NCCL_LOG_WARN &&
               strstr(text, "unknown variable TW_NET_STREAM; did you mean TW_NET_STREAMS?") != nullptr;
}

template <typename Table>
const Table *find(const char *name)
{
    void *library = dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
    return library != nullptr ? (const Table *)dlsym(library, name) : nullptr;
}

/* Each is 0 for success. */
int begin_net()
{
    auto net = find<tw_nccl_net_v12_t>("ncclNetPlugin_v12");
    void *context = nullptr;
    return net->init(&context, 1, nullptr, logger, nullptr) | net->finalize(context);
}

int begin_old_net()
{
    return find<tw_nccl_net_v8_t>("ncclNetPlugin_v8")->init(logger);
}

int begin_collnet()
{
    auto collnet = find<tw_nccl_collnet_v12_t>("ncclCollNetPlugin_v12");
    void *context = nullptr;
    return collnet->init(&context, 1, logger) | collnet->finalize(context);
}

int begin_tuner()
{
    auto tuner = find<tw_nccl_tuner_v5_t>("ncclTunerPlugin_v5");
    void *context = nullptr;
    return tuner->init(&context, 1, 2, 2, logger, nullptr, nullptr) | tuner->finalize(context);
}

/* How often it was named in a process that begins with these; -1: they do not begin. */
int named_by(const std::vector<std::function<int()>> &parts)
{
    process::Result result = process::Child([&] {
                                 setenv("TW_NET_DEVICES", "lo", 1);
                                 setenv("TW_NET_STREAM", "4", 1);
                                 for (const auto &part : parts) {
                                     if (part() != TW_NCCL_SUCCESS) {
                                         return 100;
                                     }
                                 }
                                 return n_named;
                             }).wait(60);
    return result.code == 100 ? -1 : result.code;
}

TEST(Names, EachPartNamesAMisspeltVariable)
{
    EXPECT_EQ(named_by({begin_net}), 1);
    EXPECT_EQ(named_by({begin_old_net}), 1);
    EXPECT_EQ(named_by({begin_collnet}), 1);
    EXPECT_EQ(named_by({begin_tuner}), 1);
}

TEST(Names, OnceInAProcess)
{
    EXPECT_EQ(named_by({begin_net, begin_collnet, begin_tuner, begin_old_net, begin_net}), 1);
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
