/** Sealing what goes over a connection, in one direction: authenticated encryption by libsodium. A nonce is
 *  the number of the piece on this connection, and a key belongs to one direction of one connection, so no
 *  nonce is used twice; pieces that are changed, left out, repeated or exchanged do not open.
 *
 *  A key is renewed after so many bytes or pieces, at both ends before the same piece: the next key is a hash
 *  of it, and the old one is erased, so whoever gets hold of a key cannot open what was sealed before.
 *  AES-GCM's guarantees become thin from about 350 GB under one key on, in pieces of 16 KB (RFC 8446, 5.5).
 *  Private to the folder. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_SEAL_KEY_BYTES 32
#define TW_SEAL_TAG_BYTES 16

typedef enum tw_cipher { TW_CIPHER_NONE, TW_CIPHER_AES256_GCM, TW_CIPHER_CHACHA20_POLY1305 } tw_cipher_t;

typedef struct tw_seal tw_seal_t;

/** Limits of what one key seals. */
#define TW_SEAL_RENEW_BYTES ((uint64_t)16 << 30)
#define TW_SEAL_RENEW_PIECES ((uint64_t)1 << 26)

/** Returns 1 if this processor has instructions for AES256_GCM. Starts libsodium. */
int tw_seal_has_aes(void);

/** Make a seal. NULL: out of memory. cipher: not NONE. */
tw_seal_t *tw_seal_create(tw_cipher_t cipher, const uint8_t key[TW_SEAL_KEY_BYTES]);
/** Set other limits, the same at both ends and from the same piece on; tests do. */
void tw_seal_renew_after(tw_seal_t *seal, uint64_t bytes, uint64_t pieces);
/** How often the key was renewed. */
uint64_t tw_seal_renewals(const tw_seal_t *seal);
/** Accepts NULL. */
void tw_seal_destroy(tw_seal_t *seal);
/** Seal the next piece: its bytes and then the tag go to `out`, which may be `data`. */
void tw_seal_close(tw_seal_t *seal, const void *data, size_t bytes, uint8_t *out);
/** Open the next piece, its bytes and then the tag, into `out`, [bytes], which may be `piece`. TW_ERR_AUTH,
 *  silent: it is not what was sealed, and `out` has no meaning. */
tw_status_t tw_seal_open(tw_seal_t *seal, const uint8_t *piece, size_t bytes, void *out);

TW_C_END
