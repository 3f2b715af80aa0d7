#include "transport/p2p/handshake.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "transport/control/socket.h"

/** Parts of ADDRESS: what an end tells about itself. */
enum { TOLD_ID, TOLD_CARD, TOLD_COUNT };

void tw_handshake_init(tw_handshake_t *handshake, tw_p2p_t *p2p, int fd, tw_token_side_t side,
                       const tw_token_key_t *key)
{
    const int is_client = side == TW_TOKEN_CLIENT;
    *handshake = (tw_handshake_t){.p2p = p2p,
                                  .key = key,
                                  .side = side,
                                  .stage = is_client ? TW_HANDSHAKE_CONNECTING : TW_HANDSHAKE_PROVING,
                                  .until_ns = is_client ? 0 : tw_p2p_deadline(p2p),
                                  .id = -1};
    tw_connection_init(&handshake->connection, fd);
    tw_token_random(handshake->nonce, sizeof(handshake->nonce));
}

void tw_handshake_cleanup(tw_handshake_t *handshake)
{
    if (handshake->peer) {
        handshake->peer->has_failed = 1; /* so that closing the peer does not wait for it */
        tw_p2p_peer_close(handshake->peer);
    }
    tw_connection_cleanup(&handshake->connection);
    handshake->peer = NULL;
    handshake->stage = TW_HANDSHAKE_CONNECTING;
}

static tw_status_t send_told(tw_handshake_t *handshake, const tw_msg_blob_t *told)
{
    tw_msg_writer_t list = {0};
    tw_msg_blobs_write(told, TOLD_COUNT, &list);
    return tw_connection_send_written(&handshake->connection, TW_MSG_ADDRESS, &list);
}

static tw_status_t handshake_tell(tw_handshake_t *handshake)
{
    const uint32_t id = (uint32_t)handshake->id;
    const uint8_t raw[4] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16), (uint8_t)(id >> 24)};
    void *card = NULL;
    size_t card_bytes = 0;
    tw_status_t status = tw_p2p_card(handshake->p2p, &card, &card_bytes);
    const tw_msg_blob_t told[TOLD_COUNT] = {
        [TOLD_ID] = {raw, sizeof(raw)}, [TOLD_CARD] = {card, (uint32_t)card_bytes}};
    status = status ? status : send_told(handshake, told);
    free(card);
    return status;
}

static void note_where(tw_handshake_t *handshake)
{
    tw_p2p_peer_t *peer = handshake->peer;
    char name[TW_CONNECTION_NAME_BYTES];
    tw_socket_peer_name(handshake->connection.fd, name, sizeof(name));
    snprintf(peer->where, sizeof(peer->where), " at %s", name);
}

/** Add the other end as a peer, from the id and card in its ADDRESS. */
static tw_status_t hear_told(tw_handshake_t *handshake, const tw_connection_message_t *message)
{
    tw_msg_blob_t told[TOLD_COUNT] = {{0}};
    uint32_t n_told = 0;
    tw_status_t status = tw_msg_blobs_parse(message->payload, message->bytes, TOLD_COUNT, told, &n_told);
    if (status || n_told != TOLD_COUNT || told[TOLD_ID].bytes != 4) {
        return TW_ERR_FORMAT;
    }
    const uint8_t *raw = told[TOLD_ID].data;
    const uint32_t known_as =
        raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 | (uint32_t)raw[3] << 24;
    if (known_as > INT32_MAX) {
        return TW_ERR_FORMAT;
    }
    uint8_t key[TW_TOKEN_KEY_BYTES];
    tw_token_session_key(&handshake->connection.session, handshake->side, "thinwire streams 1", key);
    handshake->stage = TW_HANDSHAKE_OPENING;
    const tw_p2p_peer_params_t params = {.id = handshake->id,
                                         .known_as = (int)known_as,
                                         .connects = handshake->side == TW_TOKEN_CLIENT,
                                         .key = key,
                                         .card = told[TOLD_CARD].data,
                                         .card_bytes = told[TOLD_CARD].bytes};
    status = tw_p2p_peer_add(handshake->p2p, &params, &handshake->peer);
    sodium_memzero(key, sizeof(key));
    if (!status) {
        note_where(handshake);
    }
    return status;
}

/* ---- steps: each returns TW_OK when the next one may begin --------------------------------------------- */

static tw_status_t step_connecting(tw_handshake_t *handshake)
{
    tw_connection_t *connection = &handshake->connection;
    TW_TRY(tw_socket_begun(connection->fd, &connection->error));
    tw_socket_keep_alive(connection->fd, handshake->p2p->params.timeout_sec);
    handshake->stage = TW_HANDSHAKE_PROVING;
    handshake->hello_ns = tw_time_ns();
    return tw_connection_send(connection, TW_MSG_HELLO, handshake->nonce, sizeof(handshake->nonce));
}

static tw_status_t step_proving(tw_handshake_t *handshake)
{
    tw_connection_t *connection = &handshake->connection;
    const int is_client = handshake->side == TW_TOKEN_CLIENT;
    uint8_t theirs[TW_MSG_NONCE_BYTES];
    tw_connection_message_t message;
    TW_TRY(tw_connection_receive(
        connection, TW_CONNECTION_ACCEPTS(is_client ? TW_MSG_CHALLENGE : TW_MSG_HELLO), &message));
    if (message.bytes != sizeof(theirs)) {
        return TW_ERR_FORMAT;
    }
    memcpy(theirs, message.payload, sizeof(theirs));
    const uint8_t *own = handshake->nonce;
    tw_status_t status = TW_OK;
    if (!is_client) {
        status = tw_connection_send(connection, TW_MSG_CHALLENGE, own, sizeof(handshake->nonce));
    }
    tw_token_session_init(&connection->session, handshake->key, handshake->side, is_client ? own : theirs,
                          is_client ? theirs : own);
    handshake->id = status ? -1 : tw_p2p_id_reserve(handshake->p2p);
    if (!status && handshake->id < 0) {
        status = TW_ERR_NO_MEMORY;
    }
    handshake->stage = TW_HANDSHAKE_TELLING;
    return !status && is_client ? handshake_tell(handshake) : status;
}

/** Exchange ADDRESS. The server sends its own before it checks the client's. So if the two do not fit, both
 *  log why. */
static tw_status_t step_telling(tw_handshake_t *handshake)
{
    tw_connection_message_t message;
    TW_TRY(tw_connection_receive(&handshake->connection, TW_CONNECTION_ACCEPTS(TW_MSG_ADDRESS), &message));
    handshake->until_ns = 0;
    if (handshake->side == TW_TOKEN_SERVER) {
        TW_TRY(handshake_tell(handshake));
    }
    TW_TRY(hear_told(handshake, &message));
    return tw_p2p_peer_greet(handshake->peer);
}

/** Check whether the client has closed the handshake's connection. It does so when its streams are open. If
 *  this end's are not yet, their connections are on the way, and get a time limit. */
static void look_at_client(tw_handshake_t *handshake)
{
    tw_connection_message_t message;
    if (handshake->side == TW_TOKEN_SERVER && !handshake->until_ns &&
        tw_connection_receive(&handshake->connection, 0, &message) < 0) {
        handshake->until_ns = tw_p2p_deadline(handshake->p2p);
    }
}

static tw_status_t step_opening(tw_handshake_t *handshake)
{
    tw_p2p_peer_t *peer = handshake->peer;
    if (peer->has_failed) {
        return TW_ERR_PEER;
    }
    if (!tw_p2p_peer_is_open(peer)) {
        look_at_client(handshake);
        return TW_IN_PROGRESS;
    }
    handshake->stage = TW_HANDSHAKE_DONE;
    return TW_OK;
}

static tw_status_t take_steps(tw_handshake_t *handshake)
{
    static tw_status_t (*const steps[])(tw_handshake_t *) = {
        [TW_HANDSHAKE_CONNECTING] = step_connecting,
        [TW_HANDSHAKE_PROVING] = step_proving,
        [TW_HANDSHAKE_TELLING] = step_telling,
        [TW_HANDSHAKE_OPENING] = step_opening,
    };
    while (handshake->stage != TW_HANDSHAKE_DONE) {
        TW_TRY(steps[handshake->stage](handshake));
    }
    return TW_OK;
}

tw_status_t tw_handshake_step(tw_handshake_t *handshake)
{
    tw_status_t status = take_steps(handshake);
    if (status >= 0 && handshake->stage != TW_HANDSHAKE_CONNECTING) {
        const tw_status_t flushed = tw_connection_flush(&handshake->connection);
        status = flushed < 0 && handshake->stage < TW_HANDSHAKE_OPENING ? flushed : status;
    }
    if (status == TW_IN_PROGRESS && handshake->until_ns && tw_time_ns() > handshake->until_ns) {
        return TW_ERR_TIMEOUT;
    }
    return status;
}

tw_p2p_peer_t *tw_handshake_take(tw_handshake_t *handshake)
{
    tw_p2p_peer_t *peer = handshake->peer;
    handshake->peer = NULL;
    return peer;
}
