/** Keys of a job and of a connection, derived from the job's token. Private to the folder.
 *
 *  The token itself is never sent. Each connection has two keys, one per direction, which are keyed hashes of
 *  both ends' random bytes. Every message from JOIN on carries a keyed hash of its sequence number, its
 *  header and its payload. So nobody without the token can join, and nothing can be replayed, reordered or
 *  changed. The hash is libsodium's BLAKE2b.
 *
 *  With TW_NET_ENCRYPT=y both ends also exchange X25519 public keys, new for each connection. Messages from
 *  JOIN on are then sealed (seal.h). Their keys are derived from the session's keys and the secret of the
 *  X25519 exchange, so someone who learns the token later cannot decrypt recorded traffic. */
#pragma once

#include "transport/control/messages.h"
#include "transport/seal.h"

TW_C_BEGIN

#define TW_TOKEN_KEY_BYTES 32
#define TW_TOKEN_MAC_BYTES 32
#define TW_TOKEN_SHARE_BYTES TW_MSG_SHARE_BYTES

typedef struct tw_token_key {
    uint8_t bytes[TW_TOKEN_KEY_BYTES];
} tw_token_key_t;

/** Which end of a connection this is. */
typedef enum tw_token_side { TW_TOKEN_CLIENT, TW_TOKEN_SERVER } tw_token_side_t;

/** The keys of one end of a connection. */
typedef struct tw_token_session {
    tw_token_key_t send_key, recv_key;
    uint64_t n_sent, n_received;
    tw_seal_t *seal[2]; /**< [0] for sending, [1] for receiving; NULL: messages are signed, not sealed */
} tw_token_session_t;

/** One end's half of a key exchange. */
typedef struct tw_token_share {
    uint8_t secret[TW_TOKEN_SHARE_BYTES];
    uint8_t open[TW_TOKEN_SHARE_BYTES]; /**< the public key, for the other end */
} tw_token_share_t;

/** Derive the job's key from its token. TW_ERR_INTERNAL (logged) if libsodium cannot be initialized. */
tw_status_t tw_token_key_init(tw_token_key_t *key, const char *token);
/** Returns 1 if an eavesdropper could find the token by brute force: its characters make fewer than 2^96
 *  texts of its length. */
int tw_token_is_weak(const char *token);
void tw_token_key_cleanup(tw_token_key_t *key);
void tw_token_random(void *out, size_t bytes);

void tw_token_session_init(tw_token_session_t *session, const tw_token_key_t *key, tw_token_side_t side,
                           const uint8_t client_nonce[TW_MSG_NONCE_BYTES],
                           const uint8_t server_nonce[TW_MSG_NONCE_BYTES]);
void tw_token_share_make(tw_token_share_t *share);
/** Seal messages from now on. theirs: the other end's public key. `own` is cleared. TW_ERR_AUTH (silent):
 *  `theirs` is no valid public key; TW_ERR_NO_MEMORY (silent). */
tw_status_t tw_token_session_seal(tw_token_session_t *session, tw_token_side_t side, tw_token_share_t *own,
                                  const uint8_t theirs[TW_TOKEN_SHARE_BYTES]);
void tw_token_session_cleanup(tw_token_session_t *session);
/** Derive a 32-byte key for another purpose. Both ends get the same key for the same `context`. */
void tw_token_session_key(const tw_token_session_t *session, tw_token_side_t side, const char *context,
                          uint8_t key[TW_TOKEN_KEY_BYTES]);
/** Compute the hash of the next message to be sent. */
void tw_token_sign(tw_token_session_t *session, const uint8_t *header, const uint8_t *payload,
                   size_t payload_bytes, uint8_t mac[TW_TOKEN_MAC_BYTES]);
/** Check that `mac` is the hash of the next message received; if not, TW_ERR_AUTH (silent). Takes constant
 *  time. */
tw_status_t tw_token_verify(tw_token_session_t *session, const uint8_t *header, const uint8_t *payload,
                            size_t payload_bytes, const uint8_t mac[TW_TOKEN_MAC_BYTES]);

TW_C_END
