/* A program of its own: what is said is said once in a process. */
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

class ConfigNames : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        unset_env("TW_"); /* whatever the caller of the test has set */
    }
};

TEST_F(ConfigNames, AreSortedAndEachThereOnce)
{
    ASSERT_NE(tw_config_name_get(0), nullptr);
    for (size_t i = 1; tw_config_name_get(i) != nullptr; i++) {
        EXPECT_LT(strcmp(tw_config_name_get(i - 1), tw_config_name_get(i)), 0) << tw_config_name_get(i);
    }
    EXPECT_EQ(tw_config_name_get(SIZE_MAX), nullptr);
}

TEST_F(ConfigNames, AMisspeltOneIsNamedOnce)
{
    set_env("TW_PEER_TIMEOT", "1");
    set_env("TW_WEIGHTS", "int8");          /* of another part */
    set_env("TW_QUITE_ANOTHER_THING", "1"); /* of somebody else, who may have chosen the same prefix */
    set_env("TW_" + std::string(500, 'X'), "1");
    set_env("W_PEER_TIMEOUT", "1"); /* near one of ours, but without its prefix */
    expect_log("config: unknown variable TW_PEER_TIMEOT; did you mean TW_PEER_TIMEOUT?");
    tw_config_check_names();
    tw_config_check_names();
    EXPECT_EQ(log_count("unknown variable"), 1u);
}

} // namespace
