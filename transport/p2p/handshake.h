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
 *  Nothing here blocks. Who has proven itself is waited for as long as the connection is up, since a process
 *  may be stopped, or have other things to do; so is the server's first answer. A stranger is not. */
#pragma once

#include "transport/control/connection.h"
#include "transport/p2p/state.h"

TW_C_BEGIN

typedef enum tw_handshake_stage {
    TW_HANDSHAKE_CONNECTING, /**< client: the TCP connection is being made */
    TW_HANDSHAKE_PROVING,    /**< HELLO or CHALLENGE is awaited */
    TW_HANDSHAKE_TELLING,    /**< ADDRESS is awaited */
    TW_HANDSHAKE_OPENING,    /**< the streams' connections are being made */
    TW_HANDSHAKE_DONE
} tw_handshake_stage_t;

typedef struct tw_handshake {
    tw_p2p_t *p2p;
    const tw_token_key_t *key; /**< borrowed */
    tw_token_side_t side;
    tw_handshake_stage_t stage;
    tw_connection_t connection;
    uint8_t nonce[TW_MSG_NONCE_BYTES];
    uint64_t until_ns; /**< 0: it is waited for */
    uint64_t hello_ns; /**< client: when HELLO was handed over */
    int id;            /**< reserved for the peer to come; -1: none yet */
    tw_p2p_peer_t *peer;
} tw_handshake_t;

/** Takes the socket: connected (server), or just connecting (client). The first answer of a server may be
 *  given by a process that has no time for us: that it sends us away before that is TW_ERR_IO in stage
 *  PROVING, and worth another try. */
void tw_handshake_init(tw_handshake_t *handshake, tw_p2p_t *p2p, int fd, tw_token_side_t side,
                       const tw_token_key_t *key);
/** Do what can be done now. TW_OK: its peer is open, and can be taken; TW_IN_PROGRESS; TW_ERR_AUTH,
 *  TW_ERR_FORMAT, TW_ERR_CONFIG (logged), TW_ERR_IO (connection.error says which), TW_ERR_TIMEOUT,
 *  TW_ERR_PEER (it failed meanwhile, logged), TW_ERR_NO_MEMORY: silent. */
tw_status_t tw_handshake_step(tw_handshake_t *handshake);
/** Return the peer, which the caller owns from now on. */
tw_p2p_peer_t *tw_handshake_take(tw_handshake_t *handshake);
/** Give it up, with a peer that is not the caller's yet. */
void tw_handshake_cleanup(tw_handshake_t *handshake);

TW_C_END
