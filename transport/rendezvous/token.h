/** Keys of a job and of a connection, made of the job's token. Private to the folder.
 *
 *  The token itself is never sent. Each connection has two keys, one per direction, that are keyed hashes of both sides'
 *  random bytes; every message from JOIN on carries a keyed hash of its place in the sequence, its header and its
 *  payload. So nobody without the token can join, and nothing can be replayed, reordered or changed. Nothing is hidden:
 *  what is said is no secret. BLAKE2b, by libsodium. */
#ifndef TW_TRANSPORT_RENDEZVOUS_TOKEN_H
#define TW_TRANSPORT_RENDEZVOUS_TOKEN_H

#include "transport/rendezvous/messages.h"

TW_C_BEGIN

#define TW_TOKEN_KEY_BYTES 32
#define TW_TOKEN_MAC_BYTES 32

typedef struct tw_token_key {
    uint8_t bytes[TW_TOKEN_KEY_BYTES];
} tw_token_key_t;

/** Which end of a connection this is. */
typedef enum tw_token_side { TW_TOKEN_CLIENT, TW_TOKEN_SERVER } tw_token_side_t;

/** One end of a connection. */
typedef struct tw_token_session {
    tw_token_key_t send_key, recv_key;
    uint64_t n_sent, n_received;
} tw_token_session_t;

/** TW_ERR_INTERNAL, logged, if libsodium cannot be started. */
tw_status_t tw_token_key_init(tw_token_key_t *key, const char *token);
void tw_token_key_cleanup(tw_token_key_t *key);
void tw_token_random(void *out, size_t bytes);

void tw_token_session_init(tw_token_session_t *session, const tw_token_key_t *key, tw_token_side_t side,
                           const uint8_t client_nonce[TW_MSG_NONCE_BYTES],
                           const uint8_t server_nonce[TW_MSG_NONCE_BYTES]);
/** A key of 32 bytes for something else that both ends do together. */
void tw_token_session_key(const tw_token_session_t *session, tw_token_side_t side, const char *context,
                          uint8_t key[TW_TOKEN_KEY_BYTES]);
/** The hash of the next message sent. */
void tw_token_sign(tw_token_session_t *session, const uint8_t *header, const uint8_t *payload,
                   size_t payload_bytes, uint8_t mac[TW_TOKEN_MAC_BYTES]);
/** Whether `mac` is the hash of the next message received; TW_ERR_AUTH, silent, if not. Takes the same time either way. */
tw_status_t tw_token_verify(tw_token_session_t *session, const uint8_t *header, const uint8_t *payload,
                            size_t payload_bytes, const uint8_t mac[TW_TOKEN_MAC_BYTES]);

TW_C_END

#endif
