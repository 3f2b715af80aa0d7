#include "transport/rendezvous/token.h"

#include <sodium.h>
#include <string.h>

static const char job_context[] = "thinwire job 1";
static const char direction_context[2][24] = {"thinwire client->server", "thinwire server->client"};

tw_status_t tw_token_key_init(tw_token_key_t *key, const char *token)
{
    crypto_generichash_state state;
    if (sodium_init() < 0) {
        tw_error("libsodium does not start: no source of random numbers");
        return TW_ERR_INTERNAL;
    }
    crypto_generichash_init(&state, (const uint8_t *)job_context, sizeof(job_context), sizeof(key->bytes));
    crypto_generichash_update(&state, (const uint8_t *)token, strlen(token));
    crypto_generichash_final(&state, key->bytes, sizeof(key->bytes));
    return TW_OK;
}

void tw_token_key_cleanup(tw_token_key_t *key)
{
    sodium_memzero(key, sizeof(*key));
}

void tw_token_random(void *out, size_t bytes)
{
    randombytes_buf(out, bytes);
}

void tw_token_session_init(tw_token_session_t *session, const tw_token_key_t *key, tw_token_side_t side,
                           const uint8_t client_nonce[TW_MSG_NONCE_BYTES],
                           const uint8_t server_nonce[TW_MSG_NONCE_BYTES])
{
    tw_token_key_t keys[2];
    for (int direction = 0; direction < 2; direction++) {
        crypto_generichash_state state;
        crypto_generichash_init(&state, key->bytes, sizeof(key->bytes), sizeof(keys[0].bytes));
        crypto_generichash_update(&state, (const uint8_t *)direction_context[direction],
                                  sizeof(direction_context[0]));
        crypto_generichash_update(&state, client_nonce, TW_MSG_NONCE_BYTES);
        crypto_generichash_update(&state, server_nonce, TW_MSG_NONCE_BYTES);
        crypto_generichash_final(&state, keys[direction].bytes, sizeof(keys[0].bytes));
    }
    *session = (tw_token_session_t){.send_key = keys[side == TW_TOKEN_SERVER],
                                    .recv_key = keys[side == TW_TOKEN_CLIENT]};
    sodium_memzero(keys, sizeof(keys));
}

void tw_token_session_key(const tw_token_session_t *session, tw_token_side_t side, const char *context,
                          uint8_t key[TW_TOKEN_KEY_BYTES])
{
    const int is_client = side == TW_TOKEN_CLIENT;
    const tw_token_key_t *to_server = is_client ? &session->send_key : &session->recv_key;
    const tw_token_key_t *to_client = is_client ? &session->recv_key : &session->send_key;
    crypto_generichash_state state;
    crypto_generichash_init(&state, to_server->bytes, sizeof(to_server->bytes), TW_TOKEN_KEY_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)context, strlen(context) + 1);
    crypto_generichash_update(&state, to_client->bytes, sizeof(to_client->bytes));
    crypto_generichash_final(&state, key, TW_TOKEN_KEY_BYTES);
}

static void message_mac(const tw_token_key_t *key, uint64_t sequence, const uint8_t *header,
                        const uint8_t *payload, size_t payload_bytes, uint8_t mac[TW_TOKEN_MAC_BYTES])
{
    crypto_generichash_state state;
    uint8_t number[8];
    for (int i = 0; i < 8; i++) {
        number[i] = (uint8_t)(sequence >> (8 * i));
    }
    crypto_generichash_init(&state, key->bytes, sizeof(key->bytes), TW_TOKEN_MAC_BYTES);
    crypto_generichash_update(&state, number, sizeof(number));
    crypto_generichash_update(&state, header, TW_MSG_HEADER_BYTES);
    crypto_generichash_update(&state, payload, payload_bytes);
    crypto_generichash_final(&state, mac, TW_TOKEN_MAC_BYTES);
}

void tw_token_sign(tw_token_session_t *session, const uint8_t *header, const uint8_t *payload,
                   size_t payload_bytes, uint8_t mac[TW_TOKEN_MAC_BYTES])
{
    message_mac(&session->send_key, session->n_sent++, header, payload, payload_bytes, mac);
}

tw_status_t tw_token_verify(tw_token_session_t *session, const uint8_t *header, const uint8_t *payload,
                            size_t payload_bytes, const uint8_t mac[TW_TOKEN_MAC_BYTES])
{
    uint8_t expected[TW_TOKEN_MAC_BYTES];
    message_mac(&session->recv_key, session->n_received, header, payload, payload_bytes, expected);
    if (sodium_memcmp(expected, mac, sizeof(expected))) {
        return TW_ERR_AUTH;
    }
    session->n_received++;
    return TW_OK;
}
