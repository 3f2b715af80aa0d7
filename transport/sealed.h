/** One end of a connection of the caller's, between two who hold the same secret: each proves it, and what
 *  they send is sealed, under keys of this connection and direction alone (X25519, BLAKE2b, then AES-256-GCM
 *  or, where an end's processor has no instructions for it, ChaCha20-Poly1305; by libsodium).
 *
 *  Each end sends its hello, and gives the other's to tw_sealed_meet. Then who connects sends a piece of 0
 *  bytes, and, when that has opened, so does who listens: whoever cannot seal it lacks the secret. A piece
 *  that was changed, left out, repeated, or taken from elsewhere does not open, and neither does what comes
 *  after it. An end has two directions; a thread may have each. */
#ifndef TW_TRANSPORT_SEALED_H
#define TW_TRANSPORT_SEALED_H

#include "core/core.h"

TW_C_BEGIN

#define TW_SEALED_HELLO_BYTES 64
#define TW_SEALED_TAG_BYTES 16

typedef struct tw_sealed tw_sealed_t;

/** Make an end, and its hello, whose first byte is 0 if it does not ask for seals: that comes true or not at
 *  all, as the keys depend on both hellos. secret: text. TW_ERR_INTERNAL, TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_sealed_create(const char *secret, int connects, int asks_for_seals,
                             uint8_t hello[TW_SEALED_HELLO_BYTES], tw_sealed_t **out);
/** Make the keys of both hellos; call it once. TW_ERR_AUTH: theirs is none; TW_ERR_NO_MEMORY; silent. */
tw_status_t tw_sealed_meet(tw_sealed_t *end, const uint8_t theirs[TW_SEALED_HELLO_BYTES]);
/** Seal the next piece: its bytes, and then the tag, go to `out`, [bytes + TW_SEALED_TAG_BYTES]. */
void tw_sealed_wrap(tw_sealed_t *end, const void *data, size_t bytes, uint8_t *out);
/** Open the next piece, its bytes and then the tag, into `out`, [bytes]. TW_ERR_AUTH, silent: it is not what
 *  the other end has sealed, and `out` has no meaning. */
tw_status_t tw_sealed_unwrap(tw_sealed_t *end, const uint8_t *piece, size_t bytes, void *out);
/** Accepts NULL. */
void tw_sealed_destroy(tw_sealed_t *end);

TW_C_END

#endif
