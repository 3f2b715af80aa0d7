/** Sends messages: operations, streams and chunks. */
#include <stdlib.h>

#include "transport/p2p/state.h"

/** Most chunks under way on a stream. Without ACKs, those not fully written count; with ACKs, those not yet
 *  acknowledged, and more of them, to fill a long wire. */
#define CHUNKS_IN_HAND 2
#define CHUNKS_TO_ACKNOWLEDGE 3
/** Most chunks of a peer to hand out before other work gets its turn. */
#define CHUNKS_AT_ONCE 16
/** With sends_on_credit, a short message this soon after a write waits, so that others can go with it. A
 *  write takes about 6 us, for one message or for eight. */
#define GATHER_NS 2000

/* ---- operations ---------------------------------------------------------------------------------------- */

static void op_move(tw_p2p_op_t *op, struct tw_p2p_op_list *list)
{
    if (op->list) {
        TAILQ_REMOVE(op->list, op, entry);
    }
    op->list = list;
    TAILQ_INSERT_TAIL(list, op, entry);
}

tw_p2p_op_t *tw_p2p_op_create(tw_p2p_t *p2p)
{
    tw_p2p_op_t *op = TAILQ_FIRST(&p2p->free_ops);
    if (op) {
        TAILQ_REMOVE(&p2p->free_ops, op, entry);
    } else {
        op = malloc(sizeof(*op));
    }
    if (op) {
        *op = (tw_p2p_op_t){.p2p = p2p};
    }
    return op;
}

void tw_p2p_op_hand_over(tw_p2p_op_t *op)
{
    op_move(op, &op->p2p->ops);
}

void tw_p2p_op_disown(tw_p2p_op_t *op)
{
    tw_p2p_request_t *request = op->request;
    op->request = NULL;
    if (request) {
        request->n_ops--;
        tw_p2p_request_settle(op->p2p, request);
    }
}

void tw_p2p_op_finish(tw_p2p_op_t *op, const char *why)
{
    tw_p2p_t *p2p = op->p2p;
    op_move(op, &p2p->free_ops);
    free(op->copy);
    op->copy = NULL;
    p2p->n_events++;
    if (op->stream && op->header.kind == TW_P2P_DATA && !op->header.stream) {
        op->stream->n_chunks--;
    }
    if (why && op->stream) {
        tw_p2p_stream_break(op->stream, why);
    }
    if (op->request && why) {
        op->request->lost = 1;
    } else if (op->request && !op->request->is_send) {
        op->request->moved += op->bytes;
    }
    tw_p2p_op_disown(op);
}

/** Cancel an operation that has sent nothing yet, and take back its credit. */
static void op_take_back(tw_p2p_op_t *op)
{
    if (op->header.kind == TW_P2P_EAGER) {
        op->stream->peer->credit[tw_p2p_is_long(op->bytes)].left += op->bytes + TW_P2P_CREDIT_MESSAGE;
    }
    tw_p2p_op_finish(op, NULL);
}

void tw_p2p_ops_take_back(tw_p2p_request_t *request)
{
    tw_p2p_op_t *op, *next;
    for (int s = 0; s < request->peer->n_streams; s++) {
        tw_p2p_stream_t *stream = &request->peer->streams[s];
        for (op = TAILQ_FIRST(&stream->waiting); op; op = next) {
            next = TAILQ_NEXT(op, entry);
            if (op->request == request && !op->sent) {
                op_take_back(op);
            }
        }
        if (stream->worker->carrier->release) {
            stream->worker->carrier->release(stream, request);
        }
    }
}

void tw_p2p_ops_disown(tw_p2p_t *p2p, const tw_p2p_request_t *request)
{
    tw_p2p_op_t *op;
    TAILQ_FOREACH(op, &p2p->ops, entry)
    if (op->request == request) {
        op->request = NULL;
    }
}

/* ---- sending ------------------------------------------------------------------------------------------- */

int tw_p2p_has_unsent(const tw_p2p_t *p2p)
{
    return !TAILQ_EMPTY(&p2p->busy_streams) || !TAILQ_EMPTY(&p2p->busy_peers);
}

static int is_in_sequence(const tw_p2p_op_t *op)
{
    return op->header.kind != TW_P2P_DATA && op->header.kind != TW_P2P_CREDIT &&
           op->header.kind != TW_P2P_BYE && op->header.kind != TW_P2P_ALIVE;
}

uint32_t tw_p2p_op_number(tw_p2p_op_t *op, uint32_t n)
{
    const uint32_t counts = (uint32_t)is_in_sequence(op);
    op->header.sequence = counts ? (uint32_t)op->stream->peer->n_control_sent + n : 0;
    return n + counts;
}

void tw_p2p_op_count(tw_p2p_op_t *op)
{
    op->stream->peer->n_control_sent += (uint64_t)is_in_sequence(op);
    op->stream->peer->counts.n_sent += op->header.kind != TW_P2P_ALIVE;
}

void tw_p2p_stream_set_busy(tw_p2p_stream_t *stream, int is_busy)
{
    tw_p2p_t *p2p = stream->peer->p2p;
    if (is_busy && !stream->is_busy) {
        TAILQ_INSERT_TAIL(&p2p->busy_streams, stream, busy);
    } else if (!is_busy && stream->is_busy) {
        TAILQ_REMOVE(&p2p->busy_streams, stream, busy);
    }
    stream->is_busy = is_busy;
}

/** Drop the waiting operations of a broken stream. The owner has been told. */
static void stream_drop(tw_p2p_stream_t *stream)
{
    tw_p2p_op_t *op;
    while ((op = TAILQ_FIRST(&stream->waiting))) {
        tw_p2p_op_finish(op, "canceled");
    }
}

static int has_just_sent(const tw_p2p_stream_t *stream)
{
    return stream->peer->takes_long && tw_time_ns() - stream->sent_ns < GATHER_NS;
}

void tw_p2p_stream_flush(tw_p2p_stream_t *stream)
{
    int is_pending = 0;
    stream->gathers = stream->gathers && !stream->broken && has_just_sent(stream);
    if (stream->gathers) {
        return;
    }
    if (!stream->peer->p2p->in_callback && !stream->broken) {
        is_pending = stream->worker->carrier->send(stream);
        stream->sent_ns = stream->peer->takes_long ? tw_time_ns() : 0;
    }
    if (stream->broken) {
        stream_drop(stream);
    }
    tw_p2p_stream_set_busy(stream, !stream->broken && (is_pending || !TAILQ_EMPTY(&stream->waiting)));
}

/** Return 1 if an EAGER message waits for the next progress. One longer than the owner's eager_bytes does, so
 *  that its sender is not held up while the kernel copies it. With sends_on_credit the owner wants it sent
 *  now, but a short one soon after another waits, and goes with those that follow. */
static int is_put_off(const tw_p2p_op_t *op)
{
    const tw_p2p_peer_t *peer = op->stream->peer;
    if (op->header.kind != TW_P2P_EAGER) {
        return 0;
    }
    op->stream->gathers = !tw_p2p_is_long(op->bytes) && has_just_sent(op->stream);
    return op->stream->gathers || (op->bytes > peer->p2p->params.eager_bytes && !peer->takes_long);
}

/** Send a message, or drop it if its stream is broken. */
static void message_send(tw_p2p_op_t *op)
{
    tw_p2p_stream_t *stream = op->stream;
    if (op->request) {
        op->request->n_ops++;
    }
    if (op->header.kind == TW_P2P_DATA) {
        stream->n_chunks++;
    }
    op->header.source = (uint32_t)stream->peer->known_as;
    op_move(op, &stream->waiting);
    if (stream->broken) {
        stream_drop(stream);
    } else if (TAILQ_FIRST(&stream->waiting) == op) {
        if (is_put_off(op)) {
            tw_p2p_stream_set_busy(stream, 1);
        } else {
            tw_p2p_stream_flush(stream);
        }
    }
}

tw_status_t tw_p2p_stream_say(tw_p2p_stream_t *stream, const tw_p2p_header_t *header,
                              tw_p2p_request_t *request)
{
    tw_p2p_op_t *op = tw_p2p_op_create(stream->peer->p2p);
    TW_FAIL_IF(!op, TW_ERR_NO_MEMORY, "%s: out of memory for a message", stream->peer->p2p->name);
    op->stream = stream;
    op->header = *header;
    op->request = request;
    op->data = request ? request->buffer : NULL;
    op->bytes = request ? request->bytes : 0;
    message_send(op);
    return TW_OK;
}

tw_status_t tw_p2p_control_send(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, tw_p2p_request_t *request)
{
    return tw_p2p_stream_say(header->kind == TW_P2P_CREDIT ? tw_p2p_credit_stream(peer) : &peer->streams[0],
                             header, request);
}

tw_status_t tw_p2p_say_bye(tw_p2p_peer_t *peer)
{
    for (int s = 0; s < peer->n_streams; s++) {
        const tw_p2p_header_t bye = {.kind = TW_P2P_BYE, .stream = (uint32_t)s};
        TW_TRY(tw_p2p_stream_say(&peer->streams[s], &bye, NULL));
    }
    return TW_OK;
}

/** Find the least busy data stream, starting at a different one each time. Returns NULL if all are busy. */
static tw_p2p_stream_t *free_stream(tw_p2p_peer_t *peer)
{
    const int first = peer->n_streams > 1, n = peer->n_streams - first;
    const int limit = peer->n_streams > 2 ? CHUNKS_TO_ACKNOWLEDGE : CHUNKS_IN_HAND;
    tw_p2p_stream_t *best = NULL;
    for (int i = 0; i < n; i++) {
        tw_p2p_stream_t *stream = &peer->streams[first + (peer->next_stream + i) % n];
        if (!stream->broken && stream->n_chunks < limit && (!best || stream->n_chunks < best->n_chunks)) {
            best = stream;
        }
    }
    peer->next_stream = best ? (int)(best - peer->streams) - first + 1 : peer->next_stream;
    return best;
}

/** Send a request's next chunk. Returns 0 if out of memory, for now. */
static int chunk_send(tw_p2p_t *p2p, tw_p2p_request_t *request, tw_p2p_stream_t *stream)
{
    const size_t offset = request->moved;
    const size_t left = request->bytes - offset;
    tw_p2p_op_t *op = tw_p2p_op_create(p2p);
    if (!op) {
        return 0;
    }
    op->stream = stream;
    op->request = request;
    op->data = request->buffer + offset;
    op->mem = request->mem;
    op->keep = request->keep;
    op->bytes = left < request->peer->chunk_bytes ? left : request->peer->chunk_bytes;
    op->header = (tw_p2p_header_t){
        .kind = TW_P2P_DATA, .tag = op->bytes, .id = request->their_number, .value = offset};
    if (request->peer->n_streams > 2) {
        op->header.stream = (uint32_t)(stream - request->peer->streams);
    }
    request->moved += op->bytes;
    if (request->moved == request->bytes) {
        tw_p2p_request_unqueue(request);
    }
    message_send(op);
    return 1;
}

/** Hand out chunks of a peer's sends to its streams. Returns 0 if none are left. */
static int pump_peer(tw_p2p_t *p2p, tw_p2p_peer_t *peer)
{
    tw_p2p_request_t *request;
    for (int i = 0; i < CHUNKS_AT_ONCE && (request = TAILQ_FIRST(&peer->sending)); i++) {
        tw_p2p_stream_t *stream = free_stream(peer);
        if (!stream || !chunk_send(p2p, request, stream)) {
            return 1;
        }
    }
    return !TAILQ_EMPTY(&peer->sending);
}

void tw_p2p_pump(tw_p2p_t *p2p)
{
    tw_p2p_stream_t *stream, *next_stream;
    tw_p2p_peer_t *peer, *next_peer;
    for (stream = TAILQ_FIRST(&p2p->busy_streams); stream; stream = next_stream) {
        next_stream = TAILQ_NEXT(stream, busy);
        tw_p2p_stream_flush(stream);
    }
    for (peer = TAILQ_FIRST(&p2p->busy_peers); peer; peer = next_peer) {
        next_peer = TAILQ_NEXT(peer, busy);
        if (pump_peer(p2p, peer)) {
            continue;
        }
        TAILQ_REMOVE(&p2p->busy_peers, peer, busy);
        peer->is_busy = 0;
    }
}
