/* Two ends with the same token understand each other, and nobody else. */
#include <cstring>

#include <gtest/gtest.h>

#include "transport/control/token.h"

namespace
{

TEST(TokenStrength, WhatCanBeFoundByTrying)
{
    for (const char *weak :
         {"", "a", "secret", "a secret", "hunter2hunter2", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
          "0123456789abcdef", "20251126-1200", "00000000000000000000000000000001"}) {
        EXPECT_TRUE(tw_token_is_weak(weak)) << weak;
    }
    for (const char *strong :
         {"9f86d081884c7d659a2feaa0c55ad015", "k3J/9pQz1xW7vTn2LcY8hGdM", /* 16 bytes in hex, 18 in base64 */
          "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}) {
        EXPECT_FALSE(tw_token_is_weak(strong)) << strong;
    }
}

class Token : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        tw_token_random(client_nonce, sizeof(client_nonce));
        tw_token_random(server_nonce, sizeof(server_nonce));
        start(client, TW_TOKEN_CLIENT, "secret");
        start(server, TW_TOKEN_SERVER, "secret");
    }
    void start(tw_token_session_t &session, tw_token_side_t side, const char *token)
    {
        tw_token_key_t key;
        ASSERT_EQ(tw_token_key_init(&key, token), TW_OK);
        tw_token_session_init(&session, &key, side, client_nonce, server_nonce);
    }
    void sign(tw_token_session_t &session)
    {
        tw_token_sign(&session, header, payload, sizeof(payload), mac);
    }
    tw_status_t verify(tw_token_session_t &session)
    {
        return tw_token_verify(&session, header, payload, sizeof(payload), mac);
    }
    uint8_t client_nonce[TW_MSG_NONCE_BYTES], server_nonce[TW_MSG_NONCE_BYTES];
    uint8_t header[TW_MSG_HEADER_BYTES] = {'T', 'W'}, payload[40] = {1, 2, 3}, mac[TW_TOKEN_MAC_BYTES];
    tw_token_session_t client, server;
};

TEST_F(Token, BothWaysInOrder)
{
    for (int i = 0; i < 5; i++) {
        payload[0] = (uint8_t)i;
        sign(client);
        EXPECT_EQ(verify(server), TW_OK);
        sign(server);
        EXPECT_EQ(verify(client), TW_OK);
    }
}

TEST_F(Token, EveryBitCounts)
{
    sign(client);
    const auto flip_all = [&](uint8_t *data, size_t bytes) {
        for (size_t i = 0; i < bytes * 8; i++) {
            data[i / 8] ^= (uint8_t)(1 << i % 8);
            EXPECT_EQ(verify(server), TW_ERR_AUTH) << "bit " << i;
            data[i / 8] ^= (uint8_t)(1 << i % 8);
        }
    };
    flip_all(header, sizeof(header));
    flip_all(payload, sizeof(payload));
    flip_all(mac, sizeof(mac));
    EXPECT_EQ(tw_token_verify(&server, header, payload, sizeof(payload) - 1, mac), TW_ERR_AUTH);
    EXPECT_EQ(verify(server), TW_OK);
}

TEST_F(Token, NothingTwiceAndNothingLeftOut)
{
    uint8_t first[TW_TOKEN_MAC_BYTES];
    sign(client);
    memcpy(first, mac, sizeof(first));
    sign(client);
    EXPECT_EQ(verify(server), TW_ERR_AUTH); /* the second first */
    memcpy(mac, first, sizeof(mac));
    EXPECT_EQ(verify(server), TW_OK);
    EXPECT_EQ(verify(server), TW_ERR_AUTH); /* the first again */
}

TEST_F(Token, NotBackToItsSender)
{
    sign(client);
    EXPECT_EQ(verify(client), TW_ERR_AUTH);
}

TEST_F(Token, AnotherTokenOrConversationIsWorthless)
{
    for (const char *token : {"", "secre", "secret ", "Secret"}) {
        tw_token_session_t stranger;
        start(stranger, TW_TOKEN_CLIENT, token);
        sign(stranger);
        EXPECT_EQ(verify(server), TW_ERR_AUTH) << token;
    }
    for (uint8_t *nonce : {client_nonce, server_nonce}) {
        tw_token_session_t replayed;
        nonce[31] ^= 1;
        start(replayed, TW_TOKEN_CLIENT, "secret");
        nonce[31] ^= 1;
        sign(replayed);
        EXPECT_EQ(verify(server), TW_ERR_AUTH);
    }
}

} // namespace
