/* The transport's variables: what they are without an environment, and that nonsense is refused by name. */
#include <cstdlib>

#include "tests/common/fixture.h"
#include "transport/options.h"
#include "transport/transport.h"

namespace
{

/* Who may share a node, or sends otherwise than over TCP, needs UCX. */
TEST(NeedsUcx, UnlessARankIsAloneOnItsNode)
{
    const auto needs = [](int world, int local_world) {
        tw_job_t job = {};
        job.world = world;
        job.local_world = local_world;
        return tw_transport_needs_ucx(&job);
    };
    tw::ScopedEnv tls("TW_NET_TLS", std::nullopt), node("TW_NODE_TLS", std::nullopt);
    EXPECT_EQ(needs(4, 1), 0);
    EXPECT_EQ(needs(1, -1), 0);
    EXPECT_EQ(needs(4, 2), 1);
    EXPECT_EQ(needs(4, -1), 1);
    {
        tw::ScopedEnv other("TW_NET_TLS", "rc");
        EXPECT_EQ(needs(4, 1), 1);
        EXPECT_EQ(needs(1, 1), 1);
    }
    {
        tw::ScopedEnv none("TW_NODE_TLS", "none");
        EXPECT_EQ(needs(4, 2), 0);
        EXPECT_EQ(tw_transport_needs_ucx(nullptr), 0);
    }
    tw::ScopedEnv rank("RANK", "0"), world("WORLD_SIZE", "2"), local("LOCAL_RANK", "0"),
        address("MASTER_ADDR", "127.0.0.1"), port("MASTER_PORT", "29500"), one("LOCAL_WORLD_SIZE", "1");
    EXPECT_EQ(tw_transport_needs_ucx(nullptr), 0);
    tw::ScopedEnv two("LOCAL_WORLD_SIZE", "2");
    EXPECT_EQ(tw_transport_needs_ucx(nullptr), 1);
    tw::ScopedEnv wrong("TW_NET_STREAMS", "many");
    EXPECT_EQ(tw_transport_needs_ucx(nullptr), 1);
}

class Options : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        for (size_t i = 0; i < tw_transport_config_table.n_fields; i++) {
            set_env(tw_transport_config_table.fields[i].name, std::nullopt);
        }
    }
};

TEST_F(Options, Defaults)
{
    tw_transport_options_t options;
    ASSERT_EQ(tw_config_init(&tw_transport_config_table, &options), TW_OK);
    EXPECT_STREQ(options.job_token, "");
    EXPECT_EQ(options.join_timeout, 60);
    EXPECT_EQ(options.peer_timeout, 10);
    EXPECT_EQ(options.net_streams, 1);
    EXPECT_EQ(options.net_chunk, 256u << 10);
    EXPECT_STREQ(options.net_tls, "tcp");
    tw_config_cleanup(&tw_transport_config_table, &options);
}

TEST_F(Options, OutOfRangeIsRefused)
{
    const char *const wrong[][2] = {
        {"TW_RENDEZVOUS_PORT", "65536"}, {"TW_JOIN_TIMEOUT", "0"}, {"TW_PEER_TIMEOUT", "-1"},
        {"TW_NET_STREAMS", "0"},         {"TW_NET_STREAMS", "65"}, {"TW_NET_CHUNK", "1K"},
        {"TW_NET_CHUNK", "2M"},          {"TW_EAGER", "2M"},       {"TW_SPIN", "2s"},
        {"TW_HANDSHAKE_TIMEOUT", "x"}};
    for (const auto &variable : wrong) {
        tw_transport_options_t options;
        set_env(variable[0], variable[1]);
        expect_log(variable[0]);
        EXPECT_EQ(tw_config_init(&tw_transport_config_table, &options), TW_ERR_CONFIG) << variable[0];
        set_env(variable[0], std::nullopt);
    }
}

TEST_F(Options, TheTokenIsNotPrinted)
{
    tw_transport_options_t options;
    char *text = nullptr;
    size_t bytes = 0;
    set_env("TW_JOB_TOKEN", "hush-hush");
    ASSERT_EQ(tw_config_init(&tw_transport_config_table, &options), TW_OK);
    FILE *out = open_memstream(&text, &bytes);
    tw_config_print(&tw_transport_config_table, &options, out);
    fclose(out);
    EXPECT_EQ(std::string(text).find("hush-hush"), std::string::npos);
    EXPECT_NE(std::string(text).find("TW_JOB_TOKEN"), std::string::npos);
    free(text);
    tw_config_cleanup(&tw_transport_config_table, &options);
}

} // namespace
