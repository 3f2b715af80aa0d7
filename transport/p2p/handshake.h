/** Two ends meet over a TCP connection of their own: each proves that it holds the listener's key, and tells
 *  where it can be reached; then the client makes the connections of the streams, with a key that follows
 *  from this one (greeting.h).
 *
 *      client                                             server
 *      HELLO      32 random bytes                     ->
 *                                                     <-  CHALLENGE  32 random bytes
 *      ADDRESS    id, card; signed                    ->
 *                                                     <-  ADDRESS    likewise
 *      connections                                    ->
 *
 *  Nothing here blocks. An end that has proven itself, and the server's first answer, are waited for as long
 *  as the connection is up, since a process may be stopped or busy. A stranger is not. */
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
    uint64_t until_ns; /**< when a stranger must have proven itself; 0: there is no limit */
    uint64_t hello_ns; /**< client: when HELLO was given to the socket */
    int id;            /**< id reserved for the peer that is to come; -1: none yet */
    tw_p2p_peer_t *peer;
} tw_handshake_t;

/** Takes the socket: connected (server), or just connecting (client). A busy server may close the connection
 *  before its first answer: that is TW_ERR_IO in stage PROVING, and worth another try. */
void tw_handshake_init(tw_handshake_t *handshake, tw_p2p_t *p2p, int fd, tw_token_side_t side,
                       const tw_token_key_t *key);
/** Do what can be done now. TW_OK: its peer is open, and can be taken; TW_IN_PROGRESS; TW_ERR_AUTH,
 *  TW_ERR_FORMAT, TW_ERR_CONFIG (logged), TW_ERR_IO (connection.error says which), TW_ERR_TIMEOUT,
 *  TW_ERR_PEER (it failed meanwhile, logged), TW_ERR_NO_MEMORY: silent. */
tw_status_t tw_handshake_step(tw_handshake_t *handshake);
/** Return the peer, which the caller owns from now on. */
tw_p2p_peer_t *tw_handshake_take(tw_handshake_t *handshake);
/** Give a handshake up, and close a peer that the caller has not taken. */
void tw_handshake_cleanup(tw_handshake_t *handshake);

TW_C_END
