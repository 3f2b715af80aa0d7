#include "transport/p2p/greeting.h"

#include <assert.h>
#include <string.h>

#include <sodium.h>

/** "TWC", version 4. */
#define MAGIC 0x04435754u
#define MAGIC_NAME_MASK 0x00ffffffu
#define NONCE_BYTES 32
#define SHARE_BYTES crypto_scalarmult_BYTES
#define HASH_BYTES 32

/** The messages as sent, on little-endian machines only, like UCX. */
typedef struct hello {
    uint32_t magic, zero;
    tw_greeting_hello_t who;
    uint8_t nonce[NONCE_BYTES], share[SHARE_BYTES];
} hello_t;

typedef struct challenge {
    uint8_t nonce[NONCE_BYTES], share[SHARE_BYTES];
} challenge_t;

static_assert(sizeof(hello_t) == TW_GREETING_HELLO_BYTES, "HELLO has no holes");
static_assert(sizeof(challenge_t) == TW_GREETING_CHALLENGE_BYTES, "CHALLENGE has no holes");

static_assert(TW_GREETING_PROOF_BYTES == HASH_BYTES && TW_GREETING_WELCOME_BYTES == HASH_BYTES,
              "what proves is a hash");

static const char listener_context[] = "thinwire connection 2, who listens";
static const char connector_context[] = "thinwire connection 2, who connects";
static const char keys_context[] = "thinwire connection 2, keys";

/** Compute a keyed hash of a context and of the HELLO and CHALLENGE of this greeting. */
static void hash_said(const tw_greeting_t *greeting, const char *context, uint8_t out[HASH_BYTES])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, greeting->key, sizeof(greeting->key), HASH_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)context, strlen(context) + 1);
    crypto_generichash_update(&state, greeting->said, sizeof(greeting->said));
    crypto_generichash_final(&state, out, HASH_BYTES);
}

static void greeting_begin(tw_greeting_t *greeting, const uint8_t key[TW_GREETING_KEY_BYTES], uint32_t cipher,
                           uint8_t nonce[NONCE_BYTES], uint8_t share[SHARE_BYTES])
{
    memcpy(greeting->key, key, sizeof(greeting->key));
    greeting->cipher = cipher;
    randombytes_buf(nonce, NONCE_BYTES);
    if (cipher != TW_CIPHER_NONE) {
        randombytes_buf(greeting->secret, sizeof(greeting->secret));
        crypto_scalarmult_base(share, greeting->secret);
    }
}

void tw_greeting_hello_write(tw_greeting_t *greeting, const tw_greeting_hello_t *who,
                             const uint8_t key[TW_GREETING_KEY_BYTES], uint8_t out[TW_GREETING_HELLO_BYTES])
{
    hello_t hello = {.magic = MAGIC, .who = *who};
    *greeting = (tw_greeting_t){0};
    greeting_begin(greeting, key, who->cipher, hello.nonce, hello.share);
    memcpy(greeting->said, &hello, sizeof(hello));
    memcpy(out, &hello, sizeof(hello));
}

tw_status_t tw_greeting_hello_parse(const uint8_t in[TW_GREETING_HELLO_BYTES], tw_greeting_hello_t *who)
{
    hello_t hello;
    memcpy(&hello, in, sizeof(hello));
    *who = hello.who;
    if (hello.magic != MAGIC && (hello.magic & MAGIC_NAME_MASK) == (MAGIC & MAGIC_NAME_MASK)) {
        return TW_ERR_CONFIG;
    }
    return hello.magic == MAGIC && !hello.zero && hello.who.cipher <= TW_CIPHER_CHACHA20_POLY1305
               ? TW_OK
               : TW_ERR_FORMAT;
}

void tw_greeting_challenge_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_HELLO_BYTES],
                                 const uint8_t key[TW_GREETING_KEY_BYTES],
                                 uint8_t out[TW_GREETING_CHALLENGE_BYTES])
{
    hello_t hello;
    challenge_t challenge = {{0}, {0}};
    memcpy(&hello, in, sizeof(hello));
    *greeting = (tw_greeting_t){0};
    greeting_begin(greeting, key, hello.who.cipher, challenge.nonce, challenge.share);
    memcpy(greeting->said, &hello, sizeof(hello));
    memcpy(greeting->said + sizeof(hello), &challenge, sizeof(challenge));
    memcpy(out, &challenge, sizeof(challenge));
}

void tw_greeting_proof_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_CHALLENGE_BYTES],
                             uint8_t out[TW_GREETING_PROOF_BYTES])
{
    memcpy(greeting->said + sizeof(hello_t), in, sizeof(challenge_t));
    hash_said(greeting, connector_context, out);
}

static tw_status_t greeting_check(const tw_greeting_t *greeting, const char *context,
                                  const uint8_t in[HASH_BYTES])
{
    uint8_t expected[HASH_BYTES];
    hash_said(greeting, context, expected);
    return sodium_memcmp(expected, in, sizeof(expected)) ? TW_ERR_AUTH : TW_OK;
}

tw_status_t tw_greeting_welcome_write(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_PROOF_BYTES],
                                      uint8_t out[TW_GREETING_WELCOME_BYTES])
{
    memset(out, 0, TW_GREETING_WELCOME_BYTES);
    TW_TRY(greeting_check(greeting, connector_context, in));
    hash_said(greeting, listener_context, out);
    return TW_OK;
}

tw_status_t tw_greeting_welcome_check(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_WELCOME_BYTES])
{
    return greeting_check(greeting, listener_context, in);
}

tw_status_t tw_greeting_keys(const tw_greeting_t *greeting, int connects, uint8_t keys[2][TW_SEAL_KEY_BYTES])
{
    hello_t hello;
    challenge_t challenge;
    uint8_t common[SHARE_BYTES], both[2 * TW_SEAL_KEY_BYTES];
    crypto_generichash_state state;
    memcpy(&hello, greeting->said, sizeof(hello));
    memcpy(&challenge, greeting->said + sizeof(hello), sizeof(challenge));
    if (crypto_scalarmult(common, greeting->secret, connects ? challenge.share : hello.share)) {
        return TW_ERR_AUTH;
    }
    crypto_generichash_init(&state, greeting->key, sizeof(greeting->key), sizeof(both));
    crypto_generichash_update(&state, (const uint8_t *)keys_context, sizeof(keys_context));
    crypto_generichash_update(&state, greeting->said, sizeof(greeting->said));
    crypto_generichash_update(&state, common, sizeof(common));
    crypto_generichash_final(&state, both, sizeof(both));
    memcpy(keys, both, sizeof(both));
    sodium_memzero(common, sizeof(common));
    sodium_memzero(both, sizeof(both));
    return TW_OK;
}

void tw_greeting_cleanup(tw_greeting_t *greeting)
{
    sodium_memzero(greeting, sizeof(*greeting));
}
