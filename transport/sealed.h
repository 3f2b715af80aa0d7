/** One end of a connection that the caller makes. Both ends hold the same secret. Each proves that it does,
 *  and what they send is sealed: encrypted and authenticated, with keys for this connection and direction
 *  only (X25519, BLAKE2b, then AES-256-GCM, or ChaCha20-Poly1305 if an end's processor has no instructions
 *  for AES; by libsodium).
 *
 *  Each end sends its hello, and passes the other end's hello to tw_sealed_meet. Then the connecting end
 *  sends a piece of 0 bytes. When the listening end has opened that piece, it sends one, too. An end without
 *  the secret cannot seal it. A piece that was changed, left out, repeated, or taken from elsewhere cannot be
 *  opened, and neither can any later piece. One thread may wrap while another unwraps. */
#ifndef TW_TRANSPORT_SEALED_H
#define TW_TRANSPORT_SEALED_H

#include "core/core.h"

TW_C_BEGIN

#define TW_SEALED_HELLO_BYTES 64
#define TW_SEALED_TAG_BYTES 16

typedef struct tw_sealed tw_sealed_t;

/** Make an end and its hello. The hello's first byte is 0 if !asks_for_seals. If an attacker changes it,
 *  nothing can be opened, as the keys depend on both hellos. secret: text. TW_ERR_INTERNAL, TW_ERR_NO_MEMORY
 *  (logged). */
tw_status_t tw_sealed_create(const char *secret, int connects, int asks_for_seals,
                             uint8_t hello[TW_SEALED_HELLO_BYTES], tw_sealed_t **out);
/** Derive the keys from both hellos. Call it once. Silent: TW_ERR_AUTH: `theirs` is invalid;
 *  TW_ERR_NO_MEMORY. */
tw_status_t tw_sealed_meet(tw_sealed_t *end, const uint8_t theirs[TW_SEALED_HELLO_BYTES]);
/** Seal the next piece: write its bytes, then the tag, to `out`, [bytes + TW_SEALED_TAG_BYTES]. */
void tw_sealed_wrap(tw_sealed_t *end, const void *data, size_t bytes, uint8_t *out);
/** Open the next piece: `bytes` encrypted bytes and then the tag. Writes the data to `out`, [bytes].
 *  TW_ERR_AUTH (silent): it is not what the other end has sealed, and `out` is undefined. */
tw_status_t tw_sealed_unwrap(tw_sealed_t *end, const uint8_t *piece, size_t bytes, void *out);
/** Accepts NULL. */
void tw_sealed_destroy(tw_sealed_t *end);

TW_C_END

#endif
