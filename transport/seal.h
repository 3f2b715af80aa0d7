/** Seals: authenticated encryption of what one end of a connection sends, by libsodium. A nonce is the number
 *  of the piece on this connection, and a key is used for one direction of one connection, so no nonce is
 *  used twice. Pieces that were changed, left out, repeated or reordered cannot be opened.
 *
 *  A key is renewed after a limit of bytes or pieces, at both ends before the same piece. The next key is a
 *  hash of the old one, which is erased, so someone who gets a key cannot open what was sealed before that
 *  key. AES-GCM's guarantees become weak from about 350 GB under one key on, in pieces of 16 KB (RFC 8446,
 *  5.5). Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_SEAL_KEY_BYTES 32
#define TW_SEAL_TAG_BYTES 16

typedef enum tw_cipher { TW_CIPHER_NONE, TW_CIPHER_AES256_GCM, TW_CIPHER_CHACHA20_POLY1305 } tw_cipher_t;

typedef struct tw_seal tw_seal_t;

/** Limits of one key, after which it is renewed. */
#define TW_SEAL_RENEW_BYTES ((uint64_t)16 << 30)
#define TW_SEAL_RENEW_PIECES ((uint64_t)1 << 26)

/** Return 1 if this processor has instructions for AES256_GCM. Initializes libsodium. */
int tw_seal_has_aes(void);

/** Make a seal for one direction. cipher must not be TW_CIPHER_NONE. Returns NULL if out of memory. */
tw_seal_t *tw_seal_create(tw_cipher_t cipher, const uint8_t key[TW_SEAL_KEY_BYTES]);
/** Set other limits, for tests: the same at both ends, from the same piece on. */
void tw_seal_renew_after(tw_seal_t *seal, uint64_t bytes, uint64_t pieces);
/** Return how many times the key was renewed. */
uint64_t tw_seal_renewals(const tw_seal_t *seal);
/** Accepts NULL. */
void tw_seal_destroy(tw_seal_t *seal);
/** Seal the next piece: write its encrypted bytes, then the tag, to `out`, which may be `data`. */
void tw_seal_close(tw_seal_t *seal, const void *data, size_t bytes, uint8_t *out);
/** Open the next piece: `bytes` encrypted bytes and then the tag. Writes the data to `out`, [bytes], which
 *  may be `piece`. TW_ERR_AUTH (silent): it is not what was sealed, and `out` is undefined. */
tw_status_t tw_seal_open(tw_seal_t *seal, const uint8_t *piece, size_t bytes, void *out);

TW_C_END
