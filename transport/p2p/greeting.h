/** How both ends of a TCP connection prove that they hold the peer's key, before any message counts. Pure
 *  functions on bytes: no sockets.
 *
 *      client                                             server
 *      HELLO      which stream of whom; 32 random bytes ->
 *                                                       <-  CHALLENGE  32 random bytes
 *      PROOF      keyed hash                            ->
 *                                                       <-  WELCOME    keyed hash; zeros: that was no proof
 *
 *  The client connects, the server listens. Each hash covers all random bytes and names so far, and which end
 *  says it; so nobody without the key comes in, a recorded connection cannot be replayed, and one for another
 *  stream or rank does not fit. The client proves first, so a stranger gets nothing from which a token could
 *  be guessed. The key itself is never sent. BLAKE2b, by libsodium.
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
    uint32_t source; /**< the client's id at the server */
    uint32_t target; /**< the server's id at the client */
    uint32_t stream;
    uint32_t cipher; /**< a tw_cipher_t */
} tw_greeting_hello_t;

/** The state of one end; it is kept until the greeting is over, then cleared. */
typedef struct tw_greeting {
    /** HELLO and CHALLENGE as they were sent */
    uint8_t said[TW_GREETING_HELLO_BYTES + TW_GREETING_CHALLENGE_BYTES];
    uint8_t secret[32]; /**< this end's secret half of the X25519 exchange */
    uint8_t key[TW_GREETING_KEY_BYTES];
    uint32_t cipher;
} tw_greeting_t;

/** Client: begin, and write HELLO. */
void tw_greeting_hello_write(tw_greeting_t *greeting, const tw_greeting_hello_t *who,
                             const uint8_t key[TW_GREETING_KEY_BYTES], uint8_t out[TW_GREETING_HELLO_BYTES]);
/** Server: read from HELLO whose key is needed. TW_ERR_CONFIG: it is of another version; TW_ERR_FORMAT;
 *  silent. */
tw_status_t tw_greeting_hello_parse(const uint8_t in[TW_GREETING_HELLO_BYTES], tw_greeting_hello_t *who);
/** Server: begin with that HELLO, and write CHALLENGE. */
void tw_greeting_challenge_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_HELLO_BYTES],
                                 const uint8_t key[TW_GREETING_KEY_BYTES],
                                 uint8_t out[TW_GREETING_CHALLENGE_BYTES]);
/** Client: write PROOF. */
void tw_greeting_proof_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_CHALLENGE_BYTES],
                             uint8_t out[TW_GREETING_PROOF_BYTES]);
/** Server: check PROOF, and write WELCOME either way. TW_ERR_AUTH, silent: it is wrong. */
tw_status_t tw_greeting_welcome_write(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_PROOF_BYTES],
                                      uint8_t out[TW_GREETING_WELCOME_BYTES]);
/** Client: check WELCOME. TW_ERR_AUTH, silent: it is wrong. */
tw_status_t tw_greeting_welcome_check(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_WELCOME_BYTES]);
/** Derive the keys of the connection: [0] for what the client sends, [1] for what it receives. TW_ERR_AUTH,
 *  silent: the other end's public key is none. */
tw_status_t tw_greeting_keys(const tw_greeting_t *greeting, int connects, uint8_t keys[2][TW_SEAL_KEY_BYTES]);
void tw_greeting_cleanup(tw_greeting_t *greeting);

TW_C_END
