#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

struct Options {
    int64_t number;
};

const tw_config_field_t peer_fields[] = {
    {.name = "TW_PEER_TIMEOUT", .dflt = "1", .type = TW_CONFIG_INT, .offset = offsetof(Options, number)},
    {.name = "TW_NET_DEVICES", .dflt = "1", .type = TW_CONFIG_INT, .offset = offsetof(Options, number)},
};
const tw_config_field_t chunk_fields[] = {
    {.name = "TW_COLL_CHUNK", .dflt = "1", .type = TW_CONFIG_INT, .offset = offsetof(Options, number)},
};
const tw_config_table_t peer_table = {
    .module = "peer", .fields = peer_fields, .n_fields = 2, .options_bytes = sizeof(Options)};
const tw_config_table_t chunk_table = {
    .module = "chunk", .fields = chunk_fields, .n_fields = 1, .options_bytes = sizeof(Options)};
const tw_config_table_t *const tables[] = {&tw_log_config_table, &peer_table, &chunk_table};

class ConfigEnv : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        unset_env("TW_"); /* whatever the caller of the test has set */
    }
    size_t check()
    {
        return tw_config_check_environment(tables, std::size(tables));
    }
};

const char *nearest(const char *name, std::vector<const char *> candidates)
{
    return tw_nearest_name(name, candidates.data(), candidates.size());
}

} // namespace

TEST_F(ConfigEnv, KnownAndForeignNamesAreFine)
{
    set_env("TW_PEER_TIMEOUT", "1");
    set_env("TW_COLL_CHUNK", "");
    set_env("TW_LOG_LEVEL", "warn");
    set_env("TWX", "1");
    set_env("TW", "1");
    set_env("XTW_PEER", "1");
    set_env("tw_peer", "1");
    EXPECT_EQ(check(), 0u);
}

TEST_F(ConfigEnv, UnknownNamesTheNearest)
{
    set_env("TW_PEER_TIMEOT", "1");
    set_env("TW_NET_DEVICE", "1");
    set_env("TW_COLL_CHNUK", "1");
    set_env("TW_LOGLEVEL", "1");
    expect_log("config: unknown variable TW_PEER_TIMEOT; did you mean TW_PEER_TIMEOUT?");
    expect_log("config: unknown variable TW_NET_DEVICE; did you mean TW_NET_DEVICES?");
    expect_log("config: unknown variable TW_COLL_CHNUK; did you mean TW_COLL_CHUNK?");
    expect_log("config: unknown variable TW_LOGLEVEL; did you mean TW_LOG_LEVEL?");
    EXPECT_EQ(check(), 4u);
}

TEST_F(ConfigEnv, UnknownFarFromAll)
{
    set_env("TW_COMPLETELY_DIFFERENT", "1");
    set_env("TW_", "1");
    expect_log("config: unknown variable TW_COMPLETELY_DIFFERENT");
    expect_log("config: unknown variable TW_");
    EXPECT_EQ(check(), 2u);
    EXPECT_EQ(log_count("did you mean"), 0u);
}

TEST_F(ConfigEnv, LongNames)
{
    std::string known = "TW_PEER_TIMEOUT";
    for (size_t length : {size_t(120), size_t(127), size_t(128), size_t(129), size_t(5000)}) {
        std::string name = known + std::string(length - known.size(), 'T');
        tw::ScopedEnv env(name, "1");
        expect_log("config: unknown variable TW_PEER_TIMEOUTTTTTTT");
        EXPECT_EQ(check(), 1u) << length;
    }
}

TEST_F(ConfigEnv, NoTables)
{
    set_env("TW_LOG_LEVEL", "warn");
    expect_log("unknown variable TW_LOG_LEVEL");
    EXPECT_EQ(tw_config_check_environment(nullptr, 0), 1u);
}

TEST_F(ConfigEnv, NearestByDistance)
{
    EXPECT_STREQ(nearest("stage", {"stages", "stage", "sage"}), "stage");
    EXPECT_STREQ(nearest("stge", {"bits", "stage"}), "stage");
    EXPECT_STREQ(nearest("sttage", {"bits", "stage"}), "stage");
    EXPECT_STREQ(nearest("stsge", {"bits", "stage"}), "stage");
    EXPECT_STREQ(nearest("satge", {"bits", "stage"}), "stage");
    EXPECT_STREQ(nearest("STAGE", {"bits", "stage"}), "stage");
    EXPECT_STREQ(nearest("zero_quantised_weights", {"zero_quantized_gradients", "zero_quantized_weights"}),
                 "zero_quantized_weights");
}

TEST_F(ConfigEnv, NearestOfEqualsIsTheFirst)
{
    EXPECT_STREQ(nearest("bit", {"bits", "bite"}), "bits");
    EXPECT_STREQ(nearest("bit", {"bite", "bits"}), "bite");
}

TEST_F(ConfigEnv, NearestOrNone)
{
    EXPECT_EQ(nearest("stage", {}), nullptr);
    EXPECT_EQ(nearest("stage", {"bits", "chunk", ""}), nullptr);
    /* Of 6 letters 3 may differ: one third and one. */
    EXPECT_STREQ(nearest("abcdef", {"abcxyz"}), "abcxyz");
    EXPECT_EQ(nearest("abcdef", {"abwxyz"}), nullptr);
    EXPECT_STREQ(nearest("x", {"y"}), "y");
    EXPECT_STREQ(nearest("", {"y"}), "y");
    EXPECT_EQ(nearest("", {"yes"}), nullptr);
    std::string very_long(1000, 'a');
    EXPECT_EQ(nearest(very_long.c_str(), {very_long.c_str(), "a"}), nullptr);
    EXPECT_STREQ(nearest("a", {very_long.c_str(), "a"}), "a");
    const std::string longest(127, 'a'), too_long(128, 'a');
    EXPECT_STREQ(nearest(longest.c_str(), {longest.c_str()}), longest.c_str());
    EXPECT_EQ(nearest(too_long.c_str(), {longest.c_str()}), nullptr);
    EXPECT_EQ(nearest(longest.c_str(), {too_long.c_str()}), nullptr);
    /* Letters that have changed places are one mistake, also the first two. */
    EXPECT_STREQ(nearest("ba", {"ab"}), "ab");
}
