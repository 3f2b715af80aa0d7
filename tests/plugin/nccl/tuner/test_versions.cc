/* The tuner as NCCL calls it, through the table of every version. */
#include "plugin/nccl/abi/tuner.h"

#include <array>
#include <cstdarg>
#include <functional>
#include <string>

#include "tests/common/fixture.h"

extern "C" {
extern const tw_nccl_tuner_v2_t ncclTunerPlugin_v2;
extern const tw_nccl_tuner_v3_t ncclTunerPlugin_v3;
extern const tw_nccl_tuner_v4_t ncclTunerPlugin_v4;
extern const tw_nccl_tuner_v5_t ncclTunerPlugin_v5;
extern const tw_nccl_tuner_v6_t ncclTunerPlugin_v6;
extern const tw_nccl_tuner_v7_t ncclTunerPlugin_v7;
}

/* NCCL reads these by position. */
static_assert(sizeof(tw_nccl_tuner_v2_t) == 4 * sizeof(void *), "");
static_assert(sizeof(tw_nccl_tuner_v3_t) == 4 * sizeof(void *), "");
static_assert(sizeof(tw_nccl_tuner_v4_t) == 4 * sizeof(void *), "");
static_assert(sizeof(tw_nccl_tuner_v5_t) == 4 * sizeof(void *), "");
static_assert(sizeof(tw_nccl_tuner_v6_t) == 5 * sizeof(void *), "");
static_assert(offsetof(tw_nccl_tuner_v6_t, get_coll_info) == 2 * sizeof(void *), "");
static_assert(offsetof(tw_nccl_tuner_v6_t, finalize) == 3 * sizeof(void *), "");
static_assert(TW_NCCL_ALL_REDUCE == 4 && TW_NCCL_PAT == 6 && TW_NCCL_SIMPLE == 2, "");

namespace
{

std::string logged;

void logger(tw_nccl_log_level_t level, unsigned long, const char *, int, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    logged += (level == TW_NCCL_LOG_WARN ? "W " : "I ") + std::string(text) + "\n";
}

using Table = std::array<float, TW_NCCL_ALGOS * TW_NCCL_PROTOS>;

Table rings_and_trees()
{
    Table table;
    table.fill(-1);
    for (int i :
         {TW_NCCL_RING * TW_NCCL_PROTOS + TW_NCCL_LL, TW_NCCL_RING * TW_NCCL_PROTOS + TW_NCCL_SIMPLE,
          TW_NCCL_TREE * TW_NCCL_PROTOS + TW_NCCL_LL, TW_NCCL_TREE * TW_NCCL_PROTOS + TW_NCCL_SIMPLE}) {
        table[i] = 3;
    }
    return table;
}

/* From v3 on: what NCCL gets for one all-reduce. */
template <typename Ask>
Table ask(Ask get, void *context, size_t bytes)
{
    Table table = rings_and_trees();
    int n_channels = 77;
    EXPECT_EQ(get(context, TW_NCCL_ALL_REDUCE, bytes, (float **)(void *)table.data(), &n_channels),
              TW_NCCL_SUCCESS);
    EXPECT_EQ(n_channels, 77) << "left to NCCL";
    return table;
}

class Versions : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        logged.clear();
        for (const char *name : {"TW_TUNER_FILE", "TW_NET_ALPHA_US", "TW_NET_GBPS", "TW_TUNER_EXPLAIN",
                                 "TW_LOG_LEVEL", "NCCL_ALGO", "NCCL_PROTO"}) {
            set_env(name, std::nullopt);
        }
        set_env("TW_NET_GBPS", "1");
    }
};

/* Ranks whose devices differ would choose otherwise: NCCL's own times are of the slowest. */
TEST_F(Versions, WithoutTheSpeedNcclsTimesStay)
{
    set_env("TW_NET_GBPS", std::nullopt);
    void *v2, *v5;
    int algo = -1, proto = -1, channels = 0;
    ASSERT_EQ(ncclTunerPlugin_v2.init(8, 8, logger, &v2), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclTunerPlugin_v5.init(&v5, 1, 8, 8, logger, nullptr, nullptr), TW_NCCL_SUCCESS);
    EXPECT_EQ(
        ncclTunerPlugin_v2.get_coll_info(v2, TW_NCCL_ALL_REDUCE, 1 << 20, 1, 1, 1, &algo, &proto, &channels),
        TW_NCCL_SUCCESS);
    EXPECT_TRUE(algo == -1 && proto == -1);
    Table table = rings_and_trees(), want = table;
    table[TW_NCCL_COLLNET_CHAIN * TW_NCCL_PROTOS + TW_NCCL_SIMPLE] = 1;
    EXPECT_EQ(ncclTunerPlugin_v5.get_coll_info(v5, TW_NCCL_ALL_REDUCE, 1000, 1,
                                               (float **)(void *)table.data(), TW_NCCL_ALGOS, TW_NCCL_PROTOS,
                                               0, &channels),
              TW_NCCL_SUCCESS);
    EXPECT_EQ(table, want) << "but for short all-reduces, which stay off the collnet";
    EXPECT_NE(logged.find("NCCL's own times are kept"), std::string::npos) << logged;
    EXPECT_EQ(ncclTunerPlugin_v2.destroy(v2), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(v5), TW_NCCL_SUCCESS);
}

TEST_F(Versions, AllFillTheSameTable)
{
    void *v3, *v4, *v5, *v6, *v7;
    ASSERT_EQ(ncclTunerPlugin_v3.init(4, 4, logger, &v3), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclTunerPlugin_v4.init(4, 4, logger, &v4), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclTunerPlugin_v5.init(&v5, 1, 4, 4, logger, nullptr, nullptr), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclTunerPlugin_v6.init(&v6, 1, 4, 4, logger, nullptr, nullptr), TW_NCCL_SUCCESS);
    ASSERT_EQ(ncclTunerPlugin_v7.init(&v7, 1, 4, 4, logger, nullptr, nullptr), TW_NCCL_SUCCESS);
    for (size_t bytes : {(size_t)0, (size_t)1, (size_t)65536, (size_t)1 << 30}) {
        const Table table = ask(
            [](void *context, int func, size_t size, float **t, int *channels) {
                return ncclTunerPlugin_v3.get_coll_info(context, func, size, 1, t, TW_NCCL_ALGOS,
                                                        TW_NCCL_PROTOS, channels);
            },
            v3, bytes);
        EXPECT_NE(table, rings_and_trees());
        auto later = [](auto &plugin) {
            return [&plugin](void *context, int func, size_t size, float **t, int *channels) {
                return plugin.get_coll_info(context, func, size, 1, t, TW_NCCL_ALGOS, TW_NCCL_PROTOS, 1,
                                            channels);
            };
        };
        EXPECT_EQ(ask(later(ncclTunerPlugin_v4), v4, bytes), table);
        EXPECT_EQ(ask(later(ncclTunerPlugin_v5), v5, bytes), table);
        EXPECT_EQ(ask(later(ncclTunerPlugin_v6), v6, bytes), table);
        EXPECT_EQ(ask(later(ncclTunerPlugin_v7), v7, bytes), table);
    }
    EXPECT_EQ(ncclTunerPlugin_v3.destroy(v3), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclTunerPlugin_v4.destroy(v4), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(v5), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclTunerPlugin_v6.finalize(v6), TW_NCCL_SUCCESS);
    EXPECT_EQ(ncclTunerPlugin_v7.finalize(v7), TW_NCCL_SUCCESS);
}

TEST_F(Versions, V2NamesOnlyWhatIsAlwaysAllowed)
{
    void *context;
    ASSERT_EQ(ncclTunerPlugin_v2.init(8, 8, logger, &context), TW_NCCL_SUCCESS);
    for (int func = 0; func < TW_NCCL_FUNCS; func++) {
        for (int bits = 0; bits < 34; bits++) {
            int algo = -1, proto = -1, channels = 0;
            ASSERT_EQ(ncclTunerPlugin_v2.get_coll_info(context, func, (size_t)1 << bits, 1, 1, 1, &algo,
                                                       &proto, &channels),
                      TW_NCCL_SUCCESS);
            EXPECT_TRUE(algo == TW_NCCL_RING || (algo == TW_NCCL_TREE && func == TW_NCCL_ALL_REDUCE));
            EXPECT_TRUE(proto == TW_NCCL_LL || proto == TW_NCCL_SIMPLE);
            EXPECT_EQ(channels, 0);
        }
    }
    int algo = -1, proto = -1, channels = 0;
    ncclTunerPlugin_v2.get_coll_info(context, TW_NCCL_ALL_REDUCE, 8, 0, 0, 1, &algo, &proto, &channels);
    EXPECT_EQ(algo, TW_NCCL_TREE);
    EXPECT_EQ(proto, TW_NCCL_LL);
    EXPECT_EQ(ncclTunerPlugin_v2.destroy(context), TW_NCCL_SUCCESS);
}

TEST_F(Versions, V2LeavesTheUsersChoiceAndOtherFunctions)
{
    void *context;
    ASSERT_EQ(ncclTunerPlugin_v2.init(8, 8, logger, &context), TW_NCCL_SUCCESS);
    int algo = -1, proto = -1, channels = 0;
    ncclTunerPlugin_v2.get_coll_info(context, 5, 8, 0, 0, 1, &algo, &proto, &channels);
    EXPECT_EQ(algo, -1);
    set_env("NCCL_ALGO", "Ring");
    ncclTunerPlugin_v2.get_coll_info(context, TW_NCCL_ALL_REDUCE, 8, 0, 0, 1, &algo, &proto, &channels);
    EXPECT_EQ(algo, -1);
    EXPECT_EQ(proto, -1);
    EXPECT_EQ(ncclTunerPlugin_v2.destroy(context), TW_NCCL_SUCCESS);
}

TEST_F(Versions, EverythingIsSaidThroughNcclsLogger)
{
    set_env("TW_TUNER_EXPLAIN", "1");
    void *context;
    ASSERT_EQ(ncclTunerPlugin_v6.init(&context, 1, 4, 4, logger, nullptr, nullptr), TW_NCCL_SUCCESS);
    EXPECT_NE(logged.find("I thinwire: tuner: 50 us and 1 Gb/s between nodes"), std::string::npos) << logged;
    Table table = rings_and_trees();
    int n_channels = 0;
    ncclTunerPlugin_v6.get_coll_info(context, TW_NCCL_ALL_REDUCE, 64, 1, (float **)(void *)table.data(),
                                     TW_NCCL_ALGOS, TW_NCCL_PROTOS, 0, &n_channels);
    EXPECT_NE(logged.find("so tree/ll"), std::string::npos) << logged;
    ncclTunerPlugin_v6.finalize(context);
}

TEST_F(Versions, ABrokenFileEndsTheCommunicatorsStart)
{
    set_env("TW_TUNER_FILE", "/no/such/file");
    void *context = nullptr;
    EXPECT_EQ(ncclTunerPlugin_v5.init(&context, 1, 4, 4, logger, nullptr, nullptr), TW_NCCL_INVALID_USAGE);
    EXPECT_EQ(context, nullptr);
    EXPECT_NE(logged.find("W thinwire: /no/such/file: "), std::string::npos) << logged;
    EXPECT_EQ(ncclTunerPlugin_v5.finalize(nullptr), TW_NCCL_SUCCESS) << "2.28 ends also what did not begin";
}

TEST_F(Versions, NotACommunicator)
{
    void *context = nullptr;
    EXPECT_EQ(ncclTunerPlugin_v2.init(0, 0, logger, &context), TW_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(ncclTunerPlugin_v2.init(2, 3, logger, &context), TW_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(context, nullptr);
    Table table = rings_and_trees();
    int n_channels = 0;
    EXPECT_EQ(
        ncclTunerPlugin_v3.get_coll_info(nullptr, 4, 8, 1, (float **)(void *)table.data(), 7, 3, &n_channels),
        TW_NCCL_SUCCESS);
    EXPECT_EQ(table, rings_and_trees());
}

} // namespace
