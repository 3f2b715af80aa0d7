/* Every system library compiles, links, and is the version its header says. */
#include <cstring>

#include <gtest/gtest.h>
#include <jansson.h>
#include <sodium.h>
#include <ucp/api/ucp.h>
#include <xxhash.h>

TEST(SystemLibs, Ucx)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    EXPECT_EQ(major, (unsigned)UCP_API_MAJOR);
    EXPECT_GE(minor, (unsigned)UCP_API_MINOR);

    ucp_params_t params;
    memset(&params, 0, sizeof(params));
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG;

    ucp_config_t *config;
    ASSERT_EQ(ucp_config_read(NULL, NULL, &config), UCS_OK);
    ucp_context_h context;
    ASSERT_EQ(ucp_init(&params, config, &context), UCS_OK);
    ucp_config_release(config);
    ucp_cleanup(context);
}

TEST(SystemLibs, Jansson)
{
    json_t *value = json_pack("{s:i}", "ranks", 4);
    ASSERT_NE(value, nullptr);
    EXPECT_EQ(json_integer_value(json_object_get(value, "ranks")), 4);
    json_decref(value);
}

TEST(SystemLibs, Sodium)
{
    EXPECT_GE(sodium_init(), 0);
}

TEST(SystemLibs, Xxhash)
{
    EXPECT_EQ(XXH_versionNumber(), (unsigned)XXH_VERSION_NUMBER);
}
