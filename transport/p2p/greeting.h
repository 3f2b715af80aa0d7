/** How both ends of a TCP connection prove that they hold the peer's key, before any message counts. Pure
 *  functions on bytes: no sockets.
 *
 *      who connects                                       who listens
 *      HELLO      which stream of whom; 32 random bytes ->
 *                                                       <-  CHALLENGE  32 random bytes
 *      PROOF      keyed hash                            ->
 *                                                       <-  WELCOME    keyed hash; zeros: that was no proof
 *
 *  The hashes cover all that was said before them but hashes, and who says it; so nobody without the key
 *  comes in, a recorded connection cannot be played again, and one for another stream or rank does not fit.
 *  Who connects proves first: a stranger gets nothing that a token could be guessed by. The key itself is
 *  never sent. BLAKE2b, by libsodium.
 *
 *  Sealed connections also exchange public keys of X25519 that are made for this connection alone: whoever
 *  learns the job's token later cannot open what was recorded. Private to the folder. */
#pragma once

#include "core/core.h"
#include "transport/seal.h"

TW_C_BEGIN

#define TW_GREETING_HELLO_BYTES 88
#define TW_GREETING_CHALLENGE_BYTES 64
#define TW_GREETING_PROOF_BYTES 32
#define TW_GREETING_WELCOME_BYTES 32
#define TW_GREETING_KEY_BYTES 32

typedef struct tw_greeting_hello {
    uint32_t source; /**< the id of who connects, at who listens */
    uint32_t target; /**< the id of who listens, at who connects */
    uint32_t stream;
    uint32_t cipher; /**< tw_cipher_t */
} tw_greeting_hello_t;

/** One end's; kept until the greeting is over, then cleared. */
typedef struct tw_greeting {
    uint8_t said[TW_GREETING_HELLO_BYTES + TW_GREETING_CHALLENGE_BYTES]; /**< HELLO, CHALLENGE */
    uint8_t secret[32]; /**< this end's secret half of the X25519 exchange */
    uint8_t key[TW_GREETING_KEY_BYTES];
    uint32_t cipher;
} tw_greeting_t;

/** Who connects: begin, and write HELLO. */
void tw_greeting_hello_write(tw_greeting_t *greeting, const tw_greeting_hello_t *who,
                             const uint8_t key[TW_GREETING_KEY_BYTES], uint8_t out[TW_GREETING_HELLO_BYTES]);
/** Who listens: whose key is needed? TW_ERR_CONFIG: it is of another version; TW_ERR_FORMAT; silent. */
tw_status_t tw_greeting_hello_parse(const uint8_t in[TW_GREETING_HELLO_BYTES], tw_greeting_hello_t *who);
/** Who listens: begin with that HELLO, and write CHALLENGE. */
void tw_greeting_challenge_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_HELLO_BYTES],
                                 const uint8_t key[TW_GREETING_KEY_BYTES],
                                 uint8_t out[TW_GREETING_CHALLENGE_BYTES]);
/** Who connects: write PROOF. */
void tw_greeting_proof_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_CHALLENGE_BYTES],
                             uint8_t out[TW_GREETING_PROOF_BYTES]);
/** Who listens: is it who it should be? Write WELCOME either way. TW_ERR_AUTH, silent: it is not. */
tw_status_t tw_greeting_welcome_write(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_PROOF_BYTES],
                                      uint8_t out[TW_GREETING_WELCOME_BYTES]);
/** Who connects: is it? TW_ERR_AUTH, silent. */
tw_status_t tw_greeting_welcome_check(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_WELCOME_BYTES]);
/** The keys that follow from it: [0] what who connects sends, [1] what it receives. TW_ERR_AUTH, silent: the
 *  other's public key is none. */
tw_status_t tw_greeting_keys(const tw_greeting_t *greeting, int connects, uint8_t keys[2][TW_SEAL_KEY_BYTES]);
void tw_greeting_cleanup(tw_greeting_t *greeting);

TW_C_END
