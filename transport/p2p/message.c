/** Sending messages. */
#include <stdlib.h>
#include <string.h>

#include "transport/p2p/state.h"

/** Chunks on the way per stream: in UCX's hands, one that it is at and one that follows; acknowledged, enough to fill a
 *  long wire. */
#define CHUNKS_IN_UCX 2
#define CHUNKS_TO_ACKNOWLEDGE 3
/** Chunks handed out before anything else gets its turn. */
#define CHUNKS_AT_ONCE 16

/* ---- operations -------------------------------------------------------------------------------------------- */

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

void tw_p2p_op_finish(tw_p2p_op_t *op, ucs_status_t status)
{
    tw_p2p_t *p2p = op->p2p;
    tw_p2p_request_t *request = op->request;
    op_move(op, &p2p->free_ops);
    p2p->n_events++;
    if (op->stream && op->header.kind == TW_P2P_DATA && !op->header.stream) {
        op->stream->n_chunks--;
    }
    if (status != UCS_OK && op->stream) {
        tw_p2p_stream_break(op->stream, status);
    }
    if (!request) {
        return;
    }
    request->n_ops--;
    if (status != UCS_OK) {
        request->lost = 1;
    } else if (!request->is_send) {
        request->moved += op->bytes;
    }
    tw_p2p_request_settle(p2p, request);
}

static void on_sent(void *handle, ucs_status_t status, void *arg)
{
    tw_p2p_op_finish(arg, status);
    ucp_request_free(handle);
}

void tw_p2p_ops_take_back(tw_p2p_request_t *request)
{
    tw_p2p_op_t *op, *next;
    for (int s = 0; s < request->peer->n_streams; s++) {
        for (op = TAILQ_FIRST(&request->peer->streams[s].waiting); op; op = next) {
            next = TAILQ_NEXT(op, entry);
            if (op->request != request) {
                continue;
            }
            if (op->header.kind == TW_P2P_EAGER && op->header.stream) {
                request->peer->credit_bytes += op->bytes;
                request->peer->n_sent_on_credit--;
            }
            tw_p2p_op_finish(op, UCS_OK);
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

/* ---- sending ----------------------------------------------------------------------------------------------- */

/** Returns UCX's handle, or a status in its place. */
static ucs_status_ptr_t op_send(tw_p2p_op_t *op, uint32_t when)
{
    tw_p2p_peer_t *peer = op->stream->peer;
    const int is_control = op->header.kind != TW_P2P_DATA && op->header.kind < TW_P2P_HELLO;
    const ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS | when,
        .flags = op->bytes && op->header.kind == TW_P2P_DATA ? 0 : UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_sent},
        .memory_type = op->memory,
        .user_data = op};
    op->header.sequence = is_control ? (uint32_t)peer->n_control_sent : 0;
    ucs_status_ptr_t handle = ucp_am_send_nbx(op->stream->endpoint, op->keep ? TW_P2P_AM_KEEP : TW_P2P_AM,
                                              &op->header, sizeof(op->header), op->data, op->bytes, &params);
    if (!UCS_PTR_IS_ERR(handle)) {
        peer->n_control_sent += (uint64_t)is_control;
        peer->counts.n_sent++;
    }
    return handle;
}

/** TW_OK: gone, or in UCX's hands; TW_IN_PROGRESS: not yet. */
static tw_status_t op_try(tw_p2p_op_t *op)
{
    const int at_once = op->stream->worker->at_once;
    ucs_status_ptr_t handle = op_send(op, at_once ? UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL : 0);
    const ucs_status_t status = UCS_PTR_STATUS(handle); /* a macro that looks twice */
    if (at_once && status == UCS_ERR_NO_RESOURCE) {
        return TW_IN_PROGRESS;
    }
    if (UCS_PTR_IS_PTR(handle)) {
        tw_p2p_op_hand_over(op);
    } else {
        tw_p2p_op_finish(op, status);
    }
    return TW_OK;
}

static void stream_set_busy(tw_p2p_t *p2p, tw_p2p_stream_t *stream, int is_busy)
{
    if (is_busy && !stream->is_busy) {
        TAILQ_INSERT_TAIL(&p2p->busy_streams, stream, busy);
    } else if (!is_busy && stream->is_busy) {
        TAILQ_REMOVE(&p2p->busy_streams, stream, busy);
    }
    stream->is_busy = is_busy;
}

/** Forget what waits on a broken stream: the owner has been told. */
static void stream_drop(tw_p2p_stream_t *stream)
{
    tw_p2p_op_t *op;
    while ((op = TAILQ_FIRST(&stream->waiting))) {
        tw_p2p_op_finish(op, UCS_ERR_CANCELED);
    }
}

/** Never from inside UCX: it may be delivering a message of the very connection that a send breaks, or that a new endpoint
 *  takes over. What comes up there is sent right after. */
static void stream_flush(tw_p2p_t *p2p, tw_p2p_stream_t *stream)
{
    tw_p2p_op_t *op;
    if (!stream->endpoint && !stream->broken && !p2p->in_ucx) {
        tw_p2p_stream_open(p2p, stream);
    }
    while (!p2p->in_ucx && !stream->broken && (op = TAILQ_FIRST(&stream->waiting)) && op_try(op) == TW_OK) {
        ;
    }
    if (stream->broken) {
        stream_drop(stream);
    }
    stream_set_busy(p2p, stream, !TAILQ_EMPTY(&stream->waiting));
}

/** A stream that is broken swallows the message. */
static void message_send(tw_p2p_op_t *op)
{
    tw_p2p_t *p2p = op->p2p;
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
        stream_flush(p2p, stream);
    }
}

tw_status_t tw_p2p_control_send(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                                tw_p2p_request_t *request)
{
    tw_p2p_op_t *op = tw_p2p_op_create(p2p);
    if (!op) {
        tw_error("%s: out of memory for a message", p2p->name);
        return TW_ERR_NO_MEMORY;
    }
    op->stream = &peer->streams[0];
    op->header = *header;
    op->request = request;
    op->data = request ? request->buffer : NULL;
    op->bytes = request ? request->bytes : 0;
    message_send(op);
    return TW_OK;
}

tw_status_t tw_p2p_streams_mark(tw_p2p_peer_t *peer, tw_p2p_kind_t kind)
{
    for (int s = 0; s < peer->n_streams; s++) {
        tw_p2p_op_t *op = tw_p2p_op_create(peer->p2p);
        if (!op) {
            tw_error("%s: out of memory for a message", peer->p2p->name);
            return TW_ERR_NO_MEMORY;
        }
        op->stream = &peer->streams[s];
        op->header = (tw_p2p_header_t){.kind = kind, .stream = (uint32_t)s};
        message_send(op);
    }
    return TW_OK;
}

tw_status_t tw_p2p_peer_greet(tw_p2p_peer_t *peer)
{
    peer->has_greeted = 1;
    return tw_p2p_peer_is_over_tcp(peer) ? tw_p2p_streams_mark(peer, TW_P2P_HELLO) : TW_OK;
}

static int chunk_limit(const tw_p2p_peer_t *peer, const tw_p2p_stream_t *stream)
{
    if (peer->n_streams > 2) {
        return CHUNKS_TO_ACKNOWLEDGE;
    }
    return stream->worker->at_once ? 1 : CHUNKS_IN_UCX;
}

/** The least busy of the data streams, each first in turn, or NULL. */
static tw_p2p_stream_t *free_stream(tw_p2p_peer_t *peer)
{
    const int first = peer->n_streams > 1, n = peer->n_streams - first;
    tw_p2p_stream_t *best = NULL;
    for (int i = 0; i < n; i++) {
        tw_p2p_stream_t *stream = &peer->streams[first + (peer->next_stream + i) % n];
        if (!stream->broken && stream->n_chunks < chunk_limit(peer, stream) &&
            (!best || stream->n_chunks < best->n_chunks)) {
            best = stream;
        }
    }
    peer->next_stream = best ? (int)(best - peer->streams) - first + 1 : peer->next_stream;
    return best;
}

/** 0: out of memory, for now. */
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
    op->memory = p2p->memory[request->mem];
    op->keep = request->keep;
    op->bytes = left < request->peer->chunk_bytes ? left : request->peer->chunk_bytes;
    op->header = (tw_p2p_header_t){.kind = TW_P2P_DATA, .id = request->their_number, .value = offset};
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

/** Returns 0 once there is nothing left to hand out. */
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
        stream_flush(p2p, stream);
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
