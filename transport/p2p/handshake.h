/** Two ends meet over a TCP connection of their own: each proves that it holds the key, and tells where it can be reached; then their
 *  UCX connections are opened, while UCX's ports are open to both.
 *
 *      client                                             server
 *      HELLO      32 random bytes                     ->
 *                                                     <-  CHALLENGE  32 random bytes
 *      ADDRESS    id, IP addresses, card; signed      ->
 *                                                     <-  ADDRESS    likewise
 *      HELLO over UCX, on each stream                 ->
 *                                                     <-  likewise, once all have come
 *
 *  The server connects last: by then the client has let it in. Nothing here blocks. */
#ifndef TW_TRANSPORT_P2P_HANDSHAKE_H
#define TW_TRANSPORT_P2P_HANDSHAKE_H

#include "transport/p2p/state.h"
#include "transport/rendezvous/connection.h"

TW_C_BEGIN

typedef enum tw_handshake_stage {
    TW_HANDSHAKE_CONNECTING, /**< client: the TCP connection is being made */
    TW_HANDSHAKE_PROVING,    /**< HELLO or CHALLENGE is awaited */
    TW_HANDSHAKE_TELLING,    /**< ADDRESS is awaited */
    TW_HANDSHAKE_OPENING,    /**< UCX's connections are being made */
    TW_HANDSHAKE_DONE
} tw_handshake_stage_t;

typedef struct tw_handshake {
    tw_p2p_t *p2p;
    const tw_token_key_t *key; /**< borrowed */
    tw_token_side_t side;
    tw_handshake_stage_t stage;
    tw_connection_t connection;
    uint8_t nonce[TW_MSG_NONCE_BYTES];
    uint64_t until_ns;
    int id; /**< of the peer to come; -1: none yet */
    tw_p2p_peer_t *peer;
} tw_handshake_t;

/** Takes the socket: connected (server), or just connecting (client). */
void tw_handshake_init(tw_handshake_t *handshake, tw_p2p_t *p2p, int fd, tw_token_side_t side,
                       const tw_token_key_t *key);
/** Do what can be done now. TW_OK: *out is open, and the caller's; TW_IN_PROGRESS; TW_ERR_AUTH, TW_ERR_FORMAT, TW_ERR_IO
 *  (connection.error says which), TW_ERR_TIMEOUT, TW_ERR_PEER (it failed meanwhile, logged), TW_ERR_NO_MEMORY: silent. */
tw_status_t tw_handshake_step(tw_handshake_t *handshake, tw_p2p_peer_t **out);
/** Give it up, with a peer that is not the caller's yet. */
void tw_handshake_cleanup(tw_handshake_t *handshake);

TW_C_END

#endif
