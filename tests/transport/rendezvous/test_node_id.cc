#include <gtest/gtest.h>

#include "transport/rendezvous/node_id.h"

namespace
{

TEST(NodeId, TheSameHereAndNow)
{
    EXPECT_EQ(tw_node_id(""), tw_node_id(""));
    EXPECT_EQ(tw_shm_id(5), tw_shm_id(5));
    EXPECT_NE(tw_shm_id(5), tw_shm_id(6));
}

TEST(NodeId, ANameOfItsOwn)
{
    EXPECT_EQ(tw_node_id("a"), tw_node_id("a"));
    EXPECT_NE(tw_node_id("a"), tw_node_id("b"));
    EXPECT_NE(tw_node_id("a"), tw_node_id(""));
}

} // namespace
