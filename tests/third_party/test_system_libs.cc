/* Every system library compiles, links or loads, and is the version its header says. */
#include <cstring>

#include <dlfcn.h>

#include <gtest/gtest.h>
#include <jansson.h>
#include <sodium.h>
#include <ucp/api/ucp.h>
#include <xxhash.h>

TEST(SystemLibs, Ucx)
{
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto get_version = (decltype(&ucp_get_version))dlsym(library, "ucp_get_version");
    const auto config_read = (decltype(&ucp_config_read))dlsym(library, "ucp_config_read");
    const auto config_release = (decltype(&ucp_config_release))dlsym(library, "ucp_config_release");
    const auto init = (decltype(&ucp_init_version))dlsym(library, "ucp_init_version");
    const auto cleanup = (decltype(&ucp_cleanup))dlsym(library, "ucp_cleanup");
    unsigned major, minor, release;
    get_version(&major, &minor, &release);
    EXPECT_EQ(major, (unsigned)UCP_API_MAJOR);
    EXPECT_GE(minor, (unsigned)UCP_API_MINOR);

    ucp_params_t params;
    memset(&params, 0, sizeof(params));
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG;

    ucp_config_t *config;
    ASSERT_EQ(config_read(NULL, NULL, &config), UCS_OK);
    ucp_context_h context;
    ASSERT_EQ(init(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context), UCS_OK);
    config_release(config);
    cleanup(context);
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
