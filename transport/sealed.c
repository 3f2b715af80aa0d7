#include "transport/sealed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "transport/seal.h"

#define NONCE_BYTES 32 /* start of a hello: the requested cipher, then random bytes */
#define SHARE_BYTES crypto_scalarmult_BYTES

static_assert(TW_SEALED_HELLO_BYTES == NONCE_BYTES + SHARE_BYTES, "a hello is both");
static_assert(TW_SEALED_TAG_BYTES == TW_SEAL_TAG_BYTES, "a piece has one tag");

struct tw_sealed {
    int connects;
    uint8_t key[crypto_generichash_KEYBYTES]; /**< a hash of the secret */
    uint8_t half[SHARE_BYTES];                /**< this end's secret half of the X25519 exchange */
    uint8_t hello[TW_SEALED_HELLO_BYTES];
    tw_seal_t *seal[2]; /**< [0] for sending, [1] for receiving */
};

static const char secret_context[] = "thinwire link 1, secret";
static const char keys_context[] = "thinwire link 1, keys";

tw_status_t tw_sealed_create(const char *secret, int connects, int asks_for_seals,
                             uint8_t hello[TW_SEALED_HELLO_BYTES], tw_sealed_t **out)
{
    TW_FAIL_IF(sodium_init() < 0, TW_ERR_INTERNAL, "libsodium does not start: no source of random numbers");
    tw_sealed_t *end = calloc(1, sizeof(*end));
    TW_FAIL_IF(!end, TW_ERR_NO_MEMORY, "no memory for an end of a connection");
    end->connects = connects;
    crypto_generichash(end->key, sizeof(end->key), (const uint8_t *)secret, strlen(secret),
                       (const uint8_t *)secret_context, sizeof(secret_context));
    randombytes_buf(end->half, sizeof(end->half));
    randombytes_buf(end->hello, NONCE_BYTES);
    end->hello[0] = (uint8_t)(!asks_for_seals     ? TW_CIPHER_NONE
                              : tw_seal_has_aes() ? TW_CIPHER_AES256_GCM
                                                  : TW_CIPHER_CHACHA20_POLY1305);
    crypto_scalarmult_base(end->hello + NONCE_BYTES, end->half);
    memcpy(hello, end->hello, sizeof(end->hello));
    *out = end;
    return TW_OK;
}

tw_status_t tw_sealed_meet(tw_sealed_t *end, const uint8_t theirs[TW_SEALED_HELLO_BYTES])
{
    /* keys: [0] for what the connecting end sends, [1] for what it receives */
    uint8_t common[SHARE_BYTES], keys[2][TW_SEAL_KEY_BYTES];
    crypto_generichash_state state;
    const int have_aes = end->hello[0] == TW_CIPHER_AES256_GCM && theirs[0] == TW_CIPHER_AES256_GCM;
    const tw_cipher_t cipher = have_aes ? TW_CIPHER_AES256_GCM : TW_CIPHER_CHACHA20_POLY1305;
    if (crypto_scalarmult(common, end->half, theirs + NONCE_BYTES)) {
        return TW_ERR_AUTH;
    }
    crypto_generichash_init(&state, end->key, sizeof(end->key), sizeof(keys));
    crypto_generichash_update(&state, (const uint8_t *)keys_context, sizeof(keys_context));
    crypto_generichash_update(&state, end->connects ? end->hello : theirs, TW_SEALED_HELLO_BYTES);
    crypto_generichash_update(&state, end->connects ? theirs : end->hello, TW_SEALED_HELLO_BYTES);
    crypto_generichash_update(&state, common, sizeof(common));
    crypto_generichash_final(&state, keys[0], sizeof(keys));
    end->seal[0] = tw_seal_create(cipher, keys[!end->connects]);
    end->seal[1] = tw_seal_create(cipher, keys[end->connects]);
    sodium_memzero(common, sizeof(common));
    sodium_memzero(keys, sizeof(keys));
    sodium_memzero(end->half, sizeof(end->half));
    return end->seal[0] && end->seal[1] ? TW_OK : TW_ERR_NO_MEMORY;
}

void tw_sealed_wrap(tw_sealed_t *end, const void *data, size_t bytes, uint8_t *out)
{
    tw_seal_close(end->seal[0], data, bytes, out);
}

tw_status_t tw_sealed_unwrap(tw_sealed_t *end, const uint8_t *piece, size_t bytes, void *out)
{
    return tw_seal_open(end->seal[1], piece, bytes, out);
}

void tw_sealed_destroy(tw_sealed_t *end)
{
    if (end) {
        tw_seal_destroy(end->seal[0]);
        tw_seal_destroy(end->seal[1]);
        sodium_memzero(end, sizeof(*end));
        free(end);
    }
}
