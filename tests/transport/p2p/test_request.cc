#include <cstdlib>

#include <gtest/gtest.h>

#include "transport/control/messages.h"
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

/* A card has room for as many workers as there may be. */
TEST(P2pCard, NamesEveryWorker)
{
    for (int n : {0, 1, TW_P2P_WORKERS_MAX}) {
        tw_p2p_t p2p = {};
        uint8_t addresses[TW_P2P_WORKERS_MAX];
        p2p.n_workers = n;
        for (int i = 0; i < n; i++) {
            addresses[i] = (uint8_t)(100 + i);
            p2p.workers[i].address = &addresses[i];
            p2p.workers[i].address_bytes = 1;
        }
        void *card = nullptr;
        size_t bytes = 0;
        ASSERT_EQ(tw_p2p_card(&p2p, &card, &bytes), TW_OK);
        tw_msg_blob_t parts[1 + TW_P2P_WORKERS_MAX];
        uint32_t n_parts = 0;
        EXPECT_EQ(tw_msg_blobs_parse((uint8_t *)card, bytes, 1 + TW_P2P_WORKERS_MAX, parts, &n_parts), TW_OK);
        ASSERT_EQ(n_parts, 1 + (uint32_t)n);
        for (int i = 0; i < n; i++) {
            ASSERT_EQ(parts[1 + i].bytes, 1u);
            EXPECT_EQ(*parts[1 + i].data, addresses[i]);
        }
        free(card);
    }
}

} // namespace
