/** Handles arriving messages. */
#include <stdlib.h>
#include <string.h>

#include "transport/p2p/state.h"

/** Check that a message of `bytes` fits a receive. If so, set the receive's length to it and return 1. */
static int size_fits(const tw_p2p_t *p2p, tw_p2p_request_t *receive, size_t bytes)
{
    if (bytes == receive->bytes || (receive->may_be_shorter && bytes < receive->bytes)) {
        receive->bytes = bytes;
        return 1;
    }
    return tw_fail(0, "%s: peer %d: a message of %zu bytes came where %zu were expected (tag %llu)",
                   p2p->name, receive->peer->id, bytes, receive->bytes, (unsigned long long)receive->tag);
}

/** Check that an EAGER message fits a receive. Returns TW_OK, or the error that the receive ends with. */
static tw_status_t eager_fits(const tw_p2p_t *p2p, tw_p2p_request_t *receive, size_t bytes)
{
    if (!size_fits(p2p, receive, bytes)) {
        return TW_ERR_TRUNCATED;
    }
    if (receive->mem == TW_MEM_HOST) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_UNSUPPORTED,
                   "%s: peer %d: a short message from host memory came where one from the memory of a GPU "
                   "was expected (tag %llu)",
                   p2p->name, receive->peer->id, (unsigned long long)receive->tag);
}

static void accept_eager(tw_p2p_t *p2p, tw_p2p_request_t *receive, const void *data, size_t bytes)
{
    tw_status_t status = eager_fits(p2p, receive, bytes);
    if (!status && bytes) {
        memcpy(receive->buffer, data, bytes);
    }
    tw_p2p_request_finish(p2p, receive, status);
}

/** Count the credit of a message that a receive has taken. Return credit to the sender in steps. */
static void early_give_back(tw_p2p_peer_t *peer, size_t bytes)
{
    const int is_long = tw_p2p_is_long(bytes);
    tw_p2p_credit_t *credit = &peer->credit[is_long];
    credit->owed += bytes + TW_P2P_CREDIT_MESSAGE;
    if (credit->owed < credit->step || tw_p2p_credit_stream(peer)->is_ended || tw_p2p_peer_has_left(peer)) {
        return;
    }
    const tw_p2p_header_t header = {
        .kind = TW_P2P_CREDIT, .stream = (uint32_t)is_long, .value = credit->owed};
    credit->held -= credit->owed;
    credit->owed = 0;
    if (tw_p2p_control_send(peer, &header, NULL)) {
        tw_p2p_peer_fail(peer->p2p, NULL, "out of memory for a message");
    }
}

/** Direct the data of `landing` to the receive's buffer from now on. */
static void land_at(tw_p2p_request_t *receive, uint8_t *to, tw_p2p_landing_t *landing)
{
    landing->to = to;
    landing->request = receive;
    receive->n_ops++;
}

static void accept_self(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_request_t *send)
{
    accept_eager(p2p, receive, send->buffer, send->bytes);
    tw_p2p_request_finish(p2p, send, TW_OK);
}

/** Answer RTS with CTS. If the message has the wrong size, the answer asks for no data. */
static void accept_rts(tw_p2p_t *p2p, tw_p2p_request_t *receive, uint64_t id, size_t bytes)
{
    tw_p2p_header_t header = {.kind = TW_P2P_CTS, .id = id};
    tw_status_t status = TW_OK;
    if (!size_fits(p2p, receive, bytes)) {
        tw_p2p_request_finish(p2p, receive, TW_ERR_TRUNCATED);
    } else {
        status = tw_p2p_number_take(&p2p->numbers, receive);
        receive->stage = TW_P2P_STAGE_MOVING;
        header.value = receive->number;
        header.stream = receive->mem != TW_MEM_HOST;
    }
    if (status || tw_p2p_control_send(receive->peer, &header, NULL)) {
        tw_p2p_peer_fail(p2p, NULL, "out of memory for a message");
    }
}

/** Match a receive with a message that is still arriving. Bytes that are here are copied to the receive's
 *  buffer. The rest goes there directly. */
static void accept_landing(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival)
{
    tw_p2p_landing_t *landing = arrival->landing;
    tw_status_t status = eager_fits(p2p, receive, arrival->bytes);
    landing->arrival = NULL;
    landing->to = NULL;
    if (status) {
        tw_p2p_request_finish(p2p, receive, status);
        return;
    }
    memcpy(receive->buffer, arrival->data, landing->done);
    receive->stage = TW_P2P_STAGE_MOVING;
    land_at(receive, receive->buffer, landing);
}

void tw_p2p_arrival_accept(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival)
{
    tw_p2p_peer_t *peer = receive->peer;
    TAILQ_REMOVE(&peer->arrivals, arrival, entry);
    if (arrival->self) {
        accept_self(p2p, receive, arrival->self);
    } else if (arrival->id) {
        accept_rts(p2p, receive, arrival->id, arrival->bytes);
    } else if (arrival->landing) {
        accept_landing(p2p, receive, arrival);
    } else {
        accept_eager(p2p, receive, arrival->data, arrival->bytes);
        early_give_back(peer, arrival->bytes);
    }
    free(arrival);
}

static tw_p2p_request_t *take_receive(tw_p2p_peer_t *peer, uint64_t tag)
{
    tw_p2p_request_t *request = tw_p2p_receive_find(peer, tag);
    if (request) {
        tw_p2p_request_unqueue(request);
    }
    return request;
}

/** Store a message without a receive as an arrival. Returns NULL if out of memory. */
static tw_p2p_arrival_t *keep_arrival(tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    const size_t bytes = (size_t)header->value;
    tw_p2p_arrival_t *arrival = malloc(sizeof(*arrival) + (header->kind == TW_P2P_EAGER ? bytes : 0));
    if (arrival) {
        *arrival = (tw_p2p_arrival_t){.tag = header->tag, .bytes = bytes, .id = header->id};
        TAILQ_INSERT_TAIL(&peer->arrivals, arrival, entry);
    }
    return arrival;
}

static const char *on_eager(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                            tw_p2p_landing_t *landing)
{
    const size_t bytes = (size_t)header->value;
    if (header->id || header->value > TW_P2P_EAGER_MAX) {
        return "it sent a malformed message";
    }
    tw_p2p_credit_t *credit = &peer->credit[tw_p2p_is_long(bytes)];
    credit->held += bytes + TW_P2P_CREDIT_MESSAGE;
    if (credit->held > credit->limit) {
        return "it sent more than it has credit for";
    }
    tw_p2p_request_t *receive = take_receive(peer, header->tag);
    const tw_status_t status = receive ? eager_fits(p2p, receive, bytes) : TW_OK;
    if (status) {
        tw_p2p_request_finish(p2p, receive, status);
    } else if (receive) {
        receive->stage = TW_P2P_STAGE_MOVING;
        land_at(receive, receive->buffer, landing);
    } else {
        landing->arrival = keep_arrival(peer, header);
        if (!landing->arrival) {
            return "its messages do not fit into memory";
        }
        landing->arrival->landing = landing;
        landing->to = landing->arrival->data;
    }
    return NULL;
}

static const char *on_rts(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    if (!header->id) {
        return "it announced a malformed message";
    }
    tw_p2p_request_t *receive = take_receive(peer, header->tag);
    if (receive) {
        accept_rts(p2p, receive, header->id, (size_t)header->value);
    } else if (!keep_arrival(peer, header)) {
        return "its messages do not fit into memory";
    }
    return NULL;
}

static const char *on_cts(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    tw_p2p_request_t *send = tw_p2p_number_find(&p2p->numbers, header->id);
    if (!send) { /* the send was canceled meanwhile, so tell the receive */
        const tw_p2p_header_t cancel = {.kind = TW_P2P_CANCEL, .id = header->id, .value = header->value};
        return header->value && tw_p2p_control_send(peer, &cancel, NULL) ? "no memory is left to answer it"
                                                                         : NULL;
    }
    if (!send->is_send || send->peer != peer || send->stage != TW_P2P_STAGE_UNMATCHED) {
        return "it cleared a message that does not wait for it";
    }
    if (!header->value) {
        tw_p2p_request_finish(p2p, send, TW_OK);
        return NULL;
    }
    send->their_number = header->value;
    send->keep = header->stream != 0;
    send->stage = TW_P2P_STAGE_MOVING;
    tw_p2p_request_queue(send, &peer->sending);
    if (!peer->is_busy) {
        TAILQ_INSERT_TAIL(&p2p->busy_peers, peer, busy);
    }
    peer->is_busy = 1;
    return NULL;
}

static const char *on_cancel(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    tw_p2p_arrival_t *arrival;
    tw_p2p_request_t *receive = tw_p2p_number_find(&p2p->numbers, header->value);
    if (receive && !receive->is_send && receive->peer == peer) {
        tw_p2p_request_finish(p2p, receive, TW_ERR_CANCELED);
    }
    TAILQ_FOREACH(arrival, &peer->arrivals, entry)
    {
        if (arrival->id != header->id || arrival->self) {
            continue;
        }
        TAILQ_REMOVE(&peer->arrivals, arrival, entry);
        free(arrival);
        break;
    }
    return NULL;
}

static const char *on_credit(tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    if (header->stream > 1 ||
        header->value > peer->credit[header->stream].limit - peer->credit[header->stream].left) {
        return "it gave back credit that it had not given";
    }
    peer->credit[header->stream].left += (size_t)header->value;
    return NULL;
}

/** Acknowledge a chunk, even if its receive was canceled. */
static const char *acknowledge(tw_p2p_peer_t *peer, uint32_t stream)
{
    const tw_p2p_header_t ack = {.kind = TW_P2P_ACK, .stream = stream};
    return tw_p2p_control_send(peer, &ack, NULL) ? "no memory is left to answer it" : NULL;
}

static const char *on_ack(tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    if (!header->stream || header->stream >= (uint32_t)peer->n_streams ||
        !peer->streams[header->stream].n_chunks) {
        return "it acknowledged what was not sent";
    }
    peer->streams[header->stream].n_chunks--;
    return NULL;
}

static const char *on_data(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header, size_t bytes,
                           tw_p2p_landing_t *landing)
{
    const uint64_t offset = header->value;
    tw_p2p_request_t *receive = tw_p2p_number_find(&p2p->numbers, header->id);
    if (header->stream >= (uint32_t)peer->n_streams) {
        return "it sent data on a connection that it does not have";
    }
    if (!receive) { /* the receive was canceled meanwhile */
        return NULL;
    }
    if (receive->is_send || receive->peer != peer) {
        return "it sent data for a message that is not its own";
    }
    if (offset > receive->bytes || bytes > receive->bytes - offset ||
        bytes > receive->bytes - receive->landed) {
        return "it sent data beyond the end of a message";
    }
    receive->landed += bytes;
    land_at(receive, receive->buffer + offset, landing);
    return NULL;
}

/** Handle BYE, the last message on its stream. */
static const char *on_bye(tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    if (peer->p2p->params.hooks || header->stream >= (uint32_t)peer->n_streams ||
        peer->streams[header->stream].is_ended) {
        return "it closed what is not its to close";
    }
    peer->streams[header->stream].is_ended = 1;
    peer->n_byes++;
    return NULL;
}

static const char *in_sequence(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                               tw_p2p_landing_t *landing)
{
    if (header->sequence != (uint32_t)peer->n_control_received) {
        return "its messages do not come in order";
    }
    peer->n_control_received++;
    switch (header->kind) {
    case TW_P2P_EAGER:
        return on_eager(p2p, peer, header, landing);
    case TW_P2P_RTS:
        return on_rts(p2p, peer, header);
    case TW_P2P_CTS:
        return on_cts(p2p, peer, header);
    case TW_P2P_ACK:
        return on_ack(peer, header);
    case TW_P2P_CANCEL:
        return on_cancel(p2p, peer, header);
    default:
        return "it sent a message of an unknown kind";
    }
}

int tw_p2p_message_can_wait(const tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    return header->kind == TW_P2P_EAGER && tw_p2p_is_long(header->value) &&
           header->value <= TW_P2P_EAGER_MAX && !peer->n_pending;
}

const char *tw_p2p_message_begin(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, size_t bytes,
                                 tw_p2p_landing_t *landing)
{
    tw_p2p_t *p2p = peer->p2p;
    *landing = (tw_p2p_landing_t){.bytes = bytes};
    p2p->n_events++;
    if (tw_p2p_header_data(header) != bytes) {
        return "it sent a malformed message";
    }
    if (header->kind == TW_P2P_DATA) {
        return on_data(p2p, peer, header, bytes, landing);
    }
    if (header->kind == TW_P2P_CREDIT) {
        return on_credit(peer, header);
    }
    if (header->kind == TW_P2P_ALIVE && peer->streams[0].worker->carrier->hear_alive) {
        return peer->streams[0].worker->carrier->hear_alive(peer, header);
    }
    return header->kind == TW_P2P_BYE ? on_bye(peer, header) : in_sequence(p2p, peer, header, landing);
}

/** End a landing: all of its data has arrived. */
static void landing_end(tw_p2p_landing_t *landing)
{
    tw_p2p_request_t *request = landing->request;
    if (landing->arrival) {
        landing->arrival->landing = NULL;
    }
    if (request) {
        request->n_ops--;
        request->moved += landing->bytes;
        tw_p2p_request_settle(request->peer->p2p, request);
    }
}

const char *tw_p2p_message_end(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, tw_p2p_landing_t *landing)
{
    const int is_kept = landing->arrival != NULL;
    landing_end(landing);
    *landing = (tw_p2p_landing_t){0};
    peer->counts.n_received += header->kind != TW_P2P_ALIVE;
    if (header->kind == TW_P2P_EAGER && !is_kept) {
        early_give_back(peer, (size_t)header->value);
    }
    return header->kind == TW_P2P_DATA && header->stream ? acknowledge(peer, header->stream) : NULL;
}

void tw_p2p_landing_lose(tw_p2p_peer_t *peer, tw_p2p_landing_t *landing)
{
    if (landing->request) {
        landing->request->n_ops--;
        landing->request->lost = 1;
    }
    if (landing->arrival) {
        TAILQ_REMOVE(&peer->arrivals, landing->arrival, entry);
        free(landing->arrival);
    }
    *landing = (tw_p2p_landing_t){0};
}
