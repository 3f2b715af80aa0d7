/* Names of variables: looked at when the first communicator of a process is made, so this test has a process
 * of its own. */
#include "collectives/collectives.h"
#include "tests/common/fixture.h"
#include "tests/transport/local.h"

namespace
{

using Names = tw::Fixture;

TEST_F(Names, AMisspeltVariableIsNamed)
{
    set_env("TW_COLL_WINDO", "4M");
    expect_log("unknown variable TW_COLL_WINDO; did you mean TW_COLL_WINDOW?");
    tw_transport_t *transport = nullptr;
    tw_coll_t *coll = nullptr;
    ASSERT_EQ(tw_transport_local_create(1, nullptr, &transport), TW_OK);
    tw_coll_params_t params = {};
    params.transport = transport;
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_OK);
    tw_coll_destroy(coll);
    tw_transport_destroy(transport);
}

} // namespace
