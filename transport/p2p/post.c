/** Requests as the caller uses them: post, test, cancel. */
#include <stdlib.h>

#include "transport/p2p/state.h"

/* ---- creating and freeing ------------------------------------------------------------------------------ */

static tw_p2p_request_t *request_create(tw_p2p_peer_t *peer, const tw_transport_message_t *message,
                                        int is_send)
{
    tw_p2p_request_t *request = malloc(sizeof(*request));
    TW_FAIL_IF(!request, NULL, "%s: out of memory for a request", peer->p2p->name);
    *request = (tw_p2p_request_t){.peer = peer,
                                  .is_send = is_send,
                                  .may_be_shorter = !is_send && message->may_be_shorter,
                                  .status = TW_IN_PROGRESS,
                                  .tag = message->tag,
                                  .buffer = message->buffer,
                                  .bytes = message->bytes,
                                  .mem = message->bytes ? message->mem : TW_MEM_HOST};
    peer->n_pending++;
    TAILQ_INSERT_TAIL(&peer->p2p->requests, request, owned);
    return request;
}

/** Free a request. Afterwards nothing touches its buffer: operations that a carrier still has go on without
 *  the buffer. */
static void request_destroy(tw_p2p_t *p2p, tw_p2p_request_t *request)
{
    if (request->n_ops) {
        tw_p2p_ops_take_back(request);
    }
    if (request->n_ops) {
        tw_p2p_ops_disown(p2p, request);
    }
    tw_p2p_request_unqueue(request);
    tw_p2p_number_release(&p2p->numbers, request);
    request->peer->n_pending -= request->stage != TW_P2P_STAGE_DONE;
    TAILQ_REMOVE(&p2p->requests, request, owned);
    free(request);
}

/* ---- posting ------------------------------------------------------------------------------------------- */

static tw_p2p_arrival_t *find_arrival(tw_p2p_peer_t *peer, uint64_t tag)
{
    tw_p2p_arrival_t *arrival = TAILQ_FIRST(&peer->arrivals);
    while (arrival && arrival->tag != tag) {
        arrival = TAILQ_NEXT(arrival, entry);
    }
    return arrival;
}

/** Send to this end itself: the message stays in `arrivals` until a receive copies it. */
static tw_status_t send_to_self(tw_p2p_t *p2p, tw_p2p_request_t *request)
{
    tw_p2p_arrival_t *arrival = calloc(1, sizeof(*arrival));
    if (!arrival) {
        return TW_ERR_NO_MEMORY;
    }
    arrival->tag = request->tag;
    arrival->bytes = request->bytes;
    arrival->self = request;
    TAILQ_INSERT_TAIL(&request->peer->arrivals, arrival, entry);
    tw_p2p_request_t *receive = tw_p2p_receive_find(request->peer, request->tag);
    if (receive) {
        tw_p2p_arrival_accept(p2p, receive, arrival);
    }
    return TW_OK;
}

static tw_status_t send_eager(tw_p2p_request_t *request)
{
    const tw_p2p_header_t header = {.kind = TW_P2P_EAGER, .tag = request->tag, .value = request->bytes};
    const size_t cost = request->bytes + TW_P2P_CREDIT_MESSAGE;
    tw_p2p_credit_t *credit = &request->peer->credit[tw_p2p_is_long(request->bytes)];
    request->stage = TW_P2P_STAGE_MOVING;
    request->moved = request->bytes;
    credit->left -= cost;
    tw_status_t status = tw_p2p_control_send(request->peer, &header, request);
    credit->left += status ? cost : 0;
    return status;
}

static tw_status_t send_announced(tw_p2p_t *p2p, tw_p2p_request_t *request)
{
    TW_TRY(tw_p2p_number_take(&p2p->numbers, request));
    const tw_p2p_header_t header = {
        .kind = TW_P2P_RTS, .tag = request->tag, .id = request->number, .value = request->bytes};
    return tw_p2p_control_send(request->peer, &header, NULL);
}

/** Return 1 if a message is sent without asking: short ones, and long ones if the owner wants it. */
static int goes_at_once(const tw_p2p_request_t *request, int when_asked)
{
    const tw_p2p_peer_t *peer = request->peer;
    const int is_longer = request->bytes > peer->p2p->params.eager_bytes;
    return request->mem == TW_MEM_HOST && request->bytes <= peer->eager_bytes && !(is_longer && when_asked) &&
           request->bytes + TW_P2P_CREDIT_MESSAGE <= peer->credit[tw_p2p_is_long(request->bytes)].left;
}

/** Read on if a message was left unread on the connection: the new request may need one behind it. */
static void resume(const tw_p2p_peer_t *peer)
{
    if (peer->n_streams && peer->streams[0].worker->carrier->resume) {
        peer->streams[0].worker->carrier->resume(&peer->streams[0]);
    }
}

static tw_status_t send_start(tw_p2p_t *p2p, tw_p2p_request_t *request, int when_asked)
{
    if (!request->peer->n_streams) {
        return send_to_self(p2p, request);
    }
    return goes_at_once(request, when_asked) ? send_eager(request) : send_announced(p2p, request);
}

/** Read CREDIT messages: a sender that only sends messages without asking has no other reason to read. */
static void look_for_credit(tw_p2p_t *p2p, tw_p2p_peer_t *peer, size_t bytes)
{
    const tw_p2p_credit_t *credit = &peer->credit[tw_p2p_is_long(bytes)];
    tw_p2p_stream_t *stream = tw_p2p_credit_stream(peer);
    if (credit->left < credit->limit / 2 && !p2p->in_callback && stream->worker->carrier->receive) {
        p2p->in_callback = 1;
        (void)stream->worker->carrier->receive(stream, 0);
        p2p->in_callback = 0;
    }
}

/** Return 1 if a request can be posted. Messages that a peer sent before it closed can still be received. */
static int can_post(tw_p2p_t *p2p, tw_p2p_peer_t *peer, int is_send)
{
    if (is_send && tw_p2p_peer_has_closed(peer)) {
        tw_p2p_peer_fail(p2p, peer, "it has closed, and is sent a message");
    }
    return !tw_p2p_is_over(p2p) && !peer->has_failed;
}

tw_status_t tw_p2p_send(tw_p2p_peer_t *peer, const tw_transport_message_t *message, tw_p2p_request_t **out)
{
    tw_p2p_t *p2p = peer->p2p;
    if (peer->n_streams) {
        look_for_credit(p2p, peer, message->bytes);
    }
    if (!can_post(p2p, peer, 1)) {
        return TW_ERR_PEER;
    }
    tw_p2p_request_t *request = request_create(peer, message, 1);
    if (!request) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = send_start(p2p, request, message->when_asked);
    resume(peer);
    if (status) {
        request_destroy(p2p, request);
    } else {
        *out = request;
    }
    return status;
}

tw_status_t tw_p2p_recv(tw_p2p_peer_t *peer, const tw_transport_message_t *message, tw_p2p_request_t **out)
{
    if (!can_post(peer->p2p, peer, 0)) {
        return TW_ERR_PEER;
    }
    tw_p2p_request_t *request = request_create(peer, message, 0);
    if (!request) {
        return TW_ERR_NO_MEMORY;
    }
    tw_p2p_arrival_t *arrival = find_arrival(peer, message->tag);
    if (arrival) {
        tw_p2p_arrival_accept(peer->p2p, request, arrival);
    } else {
        tw_p2p_request_queue(request, &peer->receives);
        resume(peer);
    }
    *out = request;
    return TW_OK;
}

/* ---- test and queries ---------------------------------------------------------------------------------- */

tw_p2p_need_t tw_p2p_request_needs(const tw_p2p_request_t *request)
{
    if (request->lost) {
        return TW_P2P_NEEDS_LOST;
    }
    return request->n_ops || (request->is_send && request->stage == TW_P2P_STAGE_MOVING && !request->queue)
               ? TW_P2P_NEEDS_CARRIER
               : TW_P2P_NEEDS_ANSWER;
}

tw_p2p_peer_t *tw_p2p_request_peer(const tw_p2p_request_t *request)
{
    return request->peer;
}

int tw_p2p_request_is_done(const tw_p2p_request_t *request)
{
    return request->stage == TW_P2P_STAGE_DONE && !request->n_ops;
}

int tw_p2p_request_is_send(const tw_p2p_request_t *request)
{
    return request->is_send;
}

tw_status_t tw_p2p_test(tw_p2p_t *p2p, tw_p2p_request_t *request, size_t *bytes)
{
    const int is_done = tw_p2p_request_is_done(request);
    if (!is_done && tw_p2p_peer_has_closed(request->peer) &&
        tw_p2p_request_needs(request) != TW_P2P_NEEDS_CARRIER) {
        tw_p2p_peer_fail(p2p, request->peer, "it has closed, and a message needs it");
    }
    if (!is_done && request->peer->has_failed) {
        tw_p2p_ops_take_back(request);
    }
    if (!is_done && !tw_p2p_is_over(p2p) && !(request->peer->has_failed && !request->n_ops)) {
        return TW_IN_PROGRESS;
    }
    /* After the job has ended, no carrier is called any more, so nothing touches the buffer. */
    tw_status_t status = is_done ? request->status : TW_ERR_PEER;
    if (bytes) {
        *bytes = request->bytes;
    }
    request_destroy(p2p, request);
    return status;
}

/* ---- canceling ----------------------------------------------------------------------------------------- */

/** Tell the peer that a request is canceled, if the peer knows of the message. */
static void withdraw(tw_p2p_t *p2p, tw_p2p_request_t *request)
{
    tw_p2p_arrival_t *arrival;
    if (!request->peer->n_streams) {
        TAILQ_FOREACH(arrival, &request->peer->arrivals, entry)
        if (arrival->self == request) {
            break;
        }
        if (arrival) {
            TAILQ_REMOVE(&request->peer->arrivals, arrival, entry);
            free(arrival);
        }
    } else if (request->number) {
        const tw_p2p_header_t header = {
            .kind = TW_P2P_CANCEL, .id = request->number, .value = request->their_number};
        if (tw_p2p_control_send(request->peer, &header, NULL)) {
            tw_p2p_peer_fail(p2p, NULL, "out of memory for a message");
        }
    }
}

/** Wait until UCX does not use the buffer any more; TCP already does not. A peer that takes nothing for too
 *  long has failed. With hooks, the job has then ended, and UCX is not called any more. */
static void drain(tw_p2p_t *p2p, const tw_p2p_request_t *request)
{
    const uint64_t until_ns = tw_p2p_deadline(p2p);
    while (request->n_ops && !tw_p2p_is_over(p2p) && !request->peer->has_failed) {
        if (tw_time_ns() > until_ns) {
            tw_p2p_peer_fail(p2p, request->peer, "it takes no data");
        }
        if (tw_p2p_progress(p2p) == TW_IN_PROGRESS) {
            tw_p2p_nap(p2p, 0.01);
        }
    }
}

void tw_p2p_cancel(tw_p2p_t *p2p, tw_p2p_request_t *request)
{
    if (request->is_send && request->stage != TW_P2P_STAGE_DONE && !tw_p2p_is_over(p2p)) {
        withdraw(p2p, request);
    }
    tw_p2p_request_finish(p2p, request, TW_ERR_CANCELED);
    tw_p2p_ops_take_back(request);
    drain(p2p, request);
    request_destroy(p2p, request);
}

void tw_p2p_cancel_all(tw_p2p_t *p2p)
{
    tw_p2p_request_t *request;
    while ((request = TAILQ_FIRST(&p2p->requests))) {
        tw_p2p_cancel(p2p, request);
    }
}
