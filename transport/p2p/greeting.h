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
 *  sends it. So nobody without the key gets in, a recorded connection cannot be replayed, and one for another
 *  stream or rank is refused. The client proves itself first, so a stranger gets nothing that helps to guess
 *  a token. The key itself is never sent. The hash is libsodium's BLAKE2b.
 *
 *  For sealed connections, both ends also exchange X25519 public keys, new for each connection, so someone
 *  who learns the job's token later cannot decrypt recorded traffic. Private to the folder. */
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

/** State of one end. It lasts until the greeting is over and is then erased. */
typedef struct tw_greeting {
    /** HELLO and CHALLENGE, as sent */
    uint8_t said[TW_GREETING_HELLO_BYTES + TW_GREETING_CHALLENGE_BYTES];
    uint8_t secret[32]; /**< this end's secret half of the X25519 exchange */
    uint8_t key[TW_GREETING_KEY_BYTES];
    uint32_t cipher;
} tw_greeting_t;

/** Client: initialize the greeting, and write HELLO. */
void tw_greeting_hello_write(tw_greeting_t *greeting, const tw_greeting_hello_t *who,
                             const uint8_t key[TW_GREETING_KEY_BYTES], uint8_t out[TW_GREETING_HELLO_BYTES]);
/** Server: read from HELLO who the client is, so that its key can be found. Errors, silent: TW_ERR_CONFIG:
 *  another version; TW_ERR_FORMAT. */
tw_status_t tw_greeting_hello_parse(const uint8_t in[TW_GREETING_HELLO_BYTES], tw_greeting_hello_t *who);
/** Server: initialize the greeting from that HELLO, and write CHALLENGE. */
void tw_greeting_challenge_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_HELLO_BYTES],
                                 const uint8_t key[TW_GREETING_KEY_BYTES],
                                 uint8_t out[TW_GREETING_CHALLENGE_BYTES]);
/** Client: write PROOF. */
void tw_greeting_proof_write(tw_greeting_t *greeting, const uint8_t in[TW_GREETING_CHALLENGE_BYTES],
                             uint8_t out[TW_GREETING_PROOF_BYTES]);
/** Server: check PROOF. Writes WELCOME in any case. TW_ERR_AUTH (silent): the proof is wrong. */
tw_status_t tw_greeting_welcome_write(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_PROOF_BYTES],
                                      uint8_t out[TW_GREETING_WELCOME_BYTES]);
/** Client: check WELCOME. TW_ERR_AUTH (silent): its hash is wrong. */
tw_status_t tw_greeting_welcome_check(const tw_greeting_t *greeting,
                                      const uint8_t in[TW_GREETING_WELCOME_BYTES]);
/** Derive the connection's keys: [0] from client to server, [1] from server to client. TW_ERR_AUTH (silent):
 *  the other end's public key is invalid. */
tw_status_t tw_greeting_keys(const tw_greeting_t *greeting, int connects, uint8_t keys[2][TW_SEAL_KEY_BYTES]);
void tw_greeting_cleanup(tw_greeting_t *greeting);

TW_C_END
