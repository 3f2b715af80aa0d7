#include "transport/control/token.h"

#include <sodium.h>
#include <string.h>

#define WAYS_ENOUGH 0x1p96

static const char job_context[] = "thinwire job 1";
static const char sealed_context[] = "thinwire sealed 1";
static const char direction_context[2][24] = {"thinwire client->server", "thinwire server->client"};

tw_status_t tw_token_key_init(tw_token_key_t *key, const char *token)
{
    crypto_generichash_state state;
    TW_FAIL_IF(sodium_init() < 0, TW_ERR_INTERNAL, "libsodium does not start: no source of random numbers");
    crypto_generichash_init(&state, (const uint8_t *)job_context, sizeof(job_context), sizeof(key->bytes));
    crypto_generichash_update(&state, (const uint8_t *)token, strlen(token));
    crypto_generichash_final(&state, key->bytes, sizeof(key->bytes));
    return TW_OK;
}

int tw_token_is_weak(const char *token)
{
    uint8_t is_there[UINT8_MAX + 1] = {0};
    double n_ways = 1;
    int n_different = 0;
    for (const char *c = token; *c; c++) {
        n_different += !is_there[(uint8_t)*c];
        is_there[(uint8_t)*c] = 1;
    }
    for (const char *c = token; *c && n_ways < WAYS_ENOUGH; c++) {
        n_ways *= n_different;
    }
    return n_ways < WAYS_ENOUGH;
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

void tw_token_share_make(tw_token_share_t *share)
{
    randombytes_buf(share->secret, sizeof(share->secret));
    crypto_scalarmult_base(share->open, share->secret);
}

/** Make the seal of one direction. Returns NULL if out of memory. */
static tw_seal_t *seal_of(const tw_token_key_t *key, const uint8_t *client, const uint8_t *server,
                          const uint8_t common[crypto_scalarmult_BYTES])
{
    uint8_t own[TW_SEAL_KEY_BYTES];
    crypto_generichash_state state;
    crypto_generichash_init(&state, key->bytes, sizeof(key->bytes), sizeof(own));
    crypto_generichash_update(&state, (const uint8_t *)sealed_context, sizeof(sealed_context));
    crypto_generichash_update(&state, client, TW_TOKEN_SHARE_BYTES);
    crypto_generichash_update(&state, server, TW_TOKEN_SHARE_BYTES);
    crypto_generichash_update(&state, common, crypto_scalarmult_BYTES);
    crypto_generichash_final(&state, own, sizeof(own));
    /* This cipher needs no special instructions. It is fast enough, as messages are few and short. */
    tw_seal_t *seal = tw_seal_create(TW_CIPHER_CHACHA20_POLY1305, own);
    sodium_memzero(own, sizeof(own));
    return seal;
}

tw_status_t tw_token_session_seal(tw_token_session_t *session, tw_token_side_t side, tw_token_share_t *own,
                                  const uint8_t theirs[TW_TOKEN_SHARE_BYTES])
{
    uint8_t common[crypto_scalarmult_BYTES];
    const uint8_t *client = side == TW_TOKEN_CLIENT ? own->open : theirs;
    const uint8_t *server = side == TW_TOKEN_CLIENT ? theirs : own->open;
    const int agreed = !crypto_scalarmult(common, own->secret, theirs);
    if (agreed) {
        session->seal[0] = seal_of(&session->send_key, client, server, common);
        session->seal[1] = seal_of(&session->recv_key, client, server, common);
    }
    sodium_memzero(common, sizeof(common));
    sodium_memzero(own, sizeof(*own));
    if (!agreed) {
        return TW_ERR_AUTH;
    }
    return session->seal[0] && session->seal[1] ? TW_OK : TW_ERR_NO_MEMORY;
}

void tw_token_session_cleanup(tw_token_session_t *session)
{
    tw_seal_destroy(session->seal[0]);
    tw_seal_destroy(session->seal[1]);
    sodium_memzero(session, sizeof(*session));
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
