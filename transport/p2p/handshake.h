/** Two ends meet over a separate TCP connection. Each proves that it holds the listener's key, and tells its
 *  addresses. Then the client makes the streams' connections, with a key derived from the handshake's key
 *  (greeting.h).
 *
 *      client                                             server
 *      HELLO      32 random bytes                     ->
 *                                                     <-  CHALLENGE  32 random bytes
 *      ADDRESS    id, card; signed                    ->
 *                                                     <-  ADDRESS    likewise
 *      connections                                    ->
 *
 *  Nothing here blocks. While the connection is up, there is no time limit for the server's first answer or
 *  for an end that has proven itself, since a process may be stopped or busy. A stranger has a time limit. */
#pragma once

#include "transport/control/connection.h"
#include "transport/p2p/state.h"

TW_C_BEGIN

typedef enum tw_handshake_stage {
    TW_HANDSHAKE_CONNECTING, /**< client: the TCP connection is being made */
    TW_HANDSHAKE_PROVING,    /**< waits for HELLO or CHALLENGE */
    TW_HANDSHAKE_TELLING,    /**< waits for ADDRESS */
    TW_HANDSHAKE_OPENING,    /**< waits for the streams' connections */
    TW_HANDSHAKE_DONE
} tw_handshake_stage_t;

typedef struct tw_handshake {
    tw_p2p_t *p2p;
    const tw_token_key_t *key; /**< borrowed */
    tw_token_side_t side;
    tw_handshake_stage_t stage;
    tw_connection_t connection;
    uint8_t nonce[TW_MSG_NONCE_BYTES];
    uint64_t until_ns; /**< time limit for a stranger's proof; 0: no limit */
    uint64_t hello_ns; /**< client: when HELLO was written to the socket */
    int id;            /**< id reserved for the new peer; -1: none yet */
    tw_p2p_peer_t *peer;
} tw_handshake_t;

/** Begin a handshake, which owns the socket: connected (server), or still connecting (client). If a busy
 *  server closes the connection before its first answer, that is TW_ERR_IO in stage PROVING, and worth
 *  another try. */
void tw_handshake_init(tw_handshake_t *handshake, tw_p2p_t *p2p, int fd, tw_token_side_t side,
                       const tw_token_key_t *key);
/** Advance as far as possible now. TW_OK: the peer is open and can be taken; TW_IN_PROGRESS. Silent errors:
 *  TW_ERR_AUTH, TW_ERR_FORMAT, TW_ERR_IO (see connection.error), TW_ERR_TIMEOUT, TW_ERR_NO_MEMORY. Logged
 *  errors: TW_ERR_CONFIG, TW_ERR_PEER (the peer failed meanwhile). */
tw_status_t tw_handshake_step(tw_handshake_t *handshake);
/** Return the peer. The caller owns it from now on. */
tw_p2p_peer_t *tw_handshake_take(tw_handshake_t *handshake);
/** End a handshake, and close its peer if the caller has not taken it. */
void tw_handshake_cleanup(tw_handshake_t *handshake);

TW_C_END
