#include "transport/seal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#define NONCE_BYTES crypto_aead_aes256gcm_NPUBBYTES

static_assert(crypto_aead_chacha20poly1305_ietf_NPUBBYTES == NONCE_BYTES, "one nonce for both");
static_assert(crypto_aead_aes256gcm_ABYTES == TW_SEAL_TAG_BYTES, "one tag for both");
static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == TW_SEAL_TAG_BYTES, "one tag for both");

struct tw_seal {
    crypto_aead_aes256gcm_state aes; /**< must be first: libsodium needs the alignment that malloc gives */
    uint8_t key[TW_SEAL_KEY_BYTES];
    tw_cipher_t cipher;
    uint64_t n_pieces;
    uint64_t max_bytes, max_pieces; /**< most that one key may seal */
    uint64_t key_bytes, key_pieces; /**< sealed with this key so far */
    uint64_t n_renewals;
};

static const char next_context[] = "thinwire next key 1";

int tw_seal_has_aes(void)
{
    return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available();
}

static void set_key(tw_seal_t *seal, const uint8_t key[TW_SEAL_KEY_BYTES])
{
    memcpy(seal->key, key, sizeof(seal->key));
    if (seal->cipher == TW_CIPHER_AES256_GCM) {
        crypto_aead_aes256gcm_beforenm(&seal->aes, key);
    }
}

tw_seal_t *tw_seal_create(tw_cipher_t cipher, const uint8_t key[TW_SEAL_KEY_BYTES])
{
    tw_seal_t *seal = calloc(1, sizeof(*seal));
    if (!seal) {
        return NULL;
    }
    seal->cipher = cipher;
    tw_seal_renew_after(seal, TW_SEAL_RENEW_BYTES, TW_SEAL_RENEW_PIECES);
    set_key(seal, key);
    return seal;
}

void tw_seal_renew_after(tw_seal_t *seal, uint64_t bytes, uint64_t pieces)
{
    seal->max_bytes = bytes;
    seal->max_pieces = pieces;
}

uint64_t tw_seal_renewals(const tw_seal_t *seal)
{
    return seal->n_renewals;
}

void tw_seal_destroy(tw_seal_t *seal)
{
    if (seal) {
        sodium_memzero(seal, sizeof(*seal));
        free(seal);
    }
}

static void renew(tw_seal_t *seal)
{
    uint8_t next[TW_SEAL_KEY_BYTES];
    crypto_generichash(next, sizeof(next), (const uint8_t *)next_context, sizeof(next_context), seal->key,
                       sizeof(seal->key));
    set_key(seal, next);
    sodium_memzero(next, sizeof(next));
    seal->key_bytes = seal->key_pieces = 0;
    seal->n_renewals++;
}

/** Make the nonce of the next piece, of `bytes`: its number, so no nonce is used twice. Renew the key first,
 *  if it has sealed enough. */
static void next_nonce(tw_seal_t *seal, size_t bytes, uint8_t nonce[NONCE_BYTES])
{
    if (seal->key_pieces && (bytes > seal->max_bytes || seal->key_bytes > seal->max_bytes - bytes ||
                             seal->key_pieces >= seal->max_pieces)) {
        renew(seal);
    }
    seal->key_bytes += bytes;
    seal->key_pieces++;
    const uint64_t number = seal->n_pieces++;
    memset(nonce, 0, NONCE_BYTES);
    for (int i = 0; i < 8; i++) {
        nonce[4 + i] = (uint8_t)(number >> (8 * i));
    }
}

void tw_seal_close(tw_seal_t *seal, const void *data, size_t bytes, uint8_t *out)
{
    uint8_t nonce[NONCE_BYTES];
    next_nonce(seal, bytes, nonce);
    if (seal->cipher == TW_CIPHER_AES256_GCM) {
        crypto_aead_aes256gcm_encrypt_detached_afternm(out, out + bytes, NULL, data, bytes, NULL, 0, NULL,
                                                       nonce, &seal->aes);
    } else {
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(out, out + bytes, NULL, data, bytes, NULL, 0, NULL,
                                                           nonce, seal->key);
    }
}

tw_status_t tw_seal_open(tw_seal_t *seal, const uint8_t *piece, size_t bytes, void *out)
{
    uint8_t nonce[NONCE_BYTES];
    const uint8_t *tag = piece + bytes;
    next_nonce(seal, bytes, nonce);
    const int failed = seal->cipher == TW_CIPHER_AES256_GCM
                           ? crypto_aead_aes256gcm_decrypt_detached_afternm(out, NULL, piece, bytes, tag,
                                                                            NULL, 0, nonce, &seal->aes)
                           : crypto_aead_chacha20poly1305_ietf_decrypt_detached(out, NULL, piece, bytes, tag,
                                                                                NULL, 0, nonce, seal->key);
    return failed ? TW_ERR_AUTH : TW_OK;
}
