#include <cstdlib>

#include <gtest/gtest.h>

#include "transport/p2p/state.h"

namespace
{

/* What comes for a request that has ended finds none: not its buffer, and not that of who has its number
 * next. */
TEST(P2pRequest, WhoHasEndedIsNotFoundByItsNumber)
{
    tw_p2p_t p2p = {};
    tw_p2p_peer_t peer = {};
    tw_p2p_request_t request = {}, next = {};
    request.peer = &peer;
    request.stage = TW_P2P_STAGE_MOVING;
    peer.n_pending = 1;
    ASSERT_EQ(tw_p2p_number_take(&p2p.numbers, &request), TW_OK);
    const uint64_t number = request.number;
    EXPECT_EQ(tw_p2p_number_find(&p2p.numbers, number), &request);
    tw_p2p_request_finish(&p2p, &request, TW_ERR_CANCELED);
    EXPECT_EQ(request.number, 0u);
    EXPECT_EQ(tw_p2p_number_find(&p2p.numbers, number), nullptr);
    ASSERT_EQ(tw_p2p_number_take(&p2p.numbers, &next), TW_OK);
    EXPECT_NE(next.number, number);
    EXPECT_EQ(tw_p2p_number_find(&p2p.numbers, number), nullptr);
    EXPECT_EQ(tw_p2p_number_find(&p2p.numbers, next.number), &next);
    tw_p2p_request_finish(&p2p, &request, TW_OK); /* it ends once */
    EXPECT_EQ(request.status, TW_ERR_CANCELED);
    EXPECT_EQ(peer.n_pending, 0);
    free(p2p.numbers.entries);
}

} // namespace
