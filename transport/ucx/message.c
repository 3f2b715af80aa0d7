/** The messages on the wire: sending them, and what is done when one comes. */
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/state.h"

/** Chunks on the way per stream: in UCX's hands, one that it is at and one that follows; acknowledged, enough to fill a
 *  long wire. */
#define CHUNKS_IN_UCX 2
#define CHUNKS_TO_ACKNOWLEDGE 3
/** Chunks handed out before anything else gets its turn. */
#define CHUNKS_AT_ONCE 16
/** Handlers: the usual one, and the same for chunks that UCX keeps. */
#define AM_ID 1
#define AM_ID_KEEP 2

/* ---- operations -------------------------------------------------------------------------------------------- */

static void op_move(tw_ucx_op_t *op, struct tw_ucx_op_list *list)
{
    if (op->list) {
        TAILQ_REMOVE(op->list, op, entry);
    }
    op->list = list;
    TAILQ_INSERT_TAIL(list, op, entry);
}

static tw_ucx_op_t *op_create(tw_ucx_transport_t *ucx)
{
    tw_ucx_op_t *op = TAILQ_FIRST(&ucx->free_ops);
    if (op) {
        TAILQ_REMOVE(&ucx->free_ops, op, entry);
    } else {
        op = malloc(sizeof(*op));
    }
    if (op) {
        *op = (tw_ucx_op_t){.transport = ucx};
    }
    return op;
}

/** It is over, one way or the other. */
static void op_finish(tw_ucx_op_t *op, ucs_status_t status)
{
    tw_ucx_transport_t *ucx = op->transport;
    tw_ucx_request_t *request = op->request;
    op_move(op, &ucx->free_ops);
    ucx->n_events++;
    if (op->stream && op->header.kind == TW_UCX_DATA && !op->header.stream) {
        op->stream->n_chunks--;
    }
    if (status != UCS_OK && op->stream) {
        tw_ucx_stream_break(op->stream, status);
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
    tw_ucx_request_settle(ucx, request);
}

static void on_sent(void *handle, ucs_status_t status, void *arg)
{
    op_finish(arg, status);
    ucp_request_free(handle);
}

static void on_received(void *handle, ucs_status_t status, size_t bytes, void *arg)
{
    (void)bytes;
    op_finish(arg, status);
    ucp_request_free(handle);
}

void tw_ucx_ops_take_back(tw_ucx_request_t *request)
{
    tw_ucx_op_t *op, *next;
    for (int s = 0; s < request->peer->n_streams; s++) {
        for (op = TAILQ_FIRST(&request->peer->streams[s].waiting); op; op = next) {
            next = TAILQ_NEXT(op, entry);
            if (op->request == request) {
                op_finish(op, UCS_OK);
            }
        }
    }
}

void tw_ucx_ops_disown(tw_ucx_transport_t *ucx, const tw_ucx_request_t *request)
{
    tw_ucx_op_t *op;
    TAILQ_FOREACH(op, &ucx->ops, entry)
    if (op->request == request) {
        op->request = NULL;
    }
}

/* ---- sending ----------------------------------------------------------------------------------------------- */

/** Returns UCX's handle, or a status in its place. */
static ucs_status_ptr_t op_send(tw_ucx_op_t *op, uint32_t when)
{
    tw_ucx_peer_t *peer = op->stream->peer;
    const int is_control = op->header.kind != TW_UCX_DATA && op->header.kind != TW_UCX_HELLO;
    const ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS | when,
        .flags = op->bytes && op->header.kind == TW_UCX_DATA ? 0 : UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_sent},
        .memory_type = op->memory,
        .user_data = op};
    op->header.sequence = is_control ? (uint32_t)peer->n_control_sent : 0;
    ucs_status_ptr_t handle = ucp_am_send_nbx(op->stream->endpoint, op->keep ? AM_ID_KEEP : AM_ID,
                                              &op->header, sizeof(op->header), op->data, op->bytes, &params);
    if (!UCS_PTR_IS_ERR(handle)) {
        peer->n_control_sent += (uint64_t)is_control;
        peer->n_sent++;
    }
    return handle;
}

/** TW_OK: gone, or in UCX's hands; TW_IN_PROGRESS: not yet. */
static tw_status_t op_try(tw_ucx_transport_t *ucx, tw_ucx_op_t *op)
{
    const int at_once = op->stream->worker->at_once;
    ucs_status_ptr_t handle = op_send(op, at_once ? UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL : 0);
    const ucs_status_t status = UCS_PTR_STATUS(handle); /* a macro that looks twice */
    if (at_once && status == UCS_ERR_NO_RESOURCE) {
        return TW_IN_PROGRESS;
    }
    if (UCS_PTR_IS_PTR(handle)) {
        op_move(op, &ucx->ops);
    } else {
        op_finish(op, status);
    }
    return TW_OK;
}

static void stream_set_busy(tw_ucx_transport_t *ucx, tw_ucx_stream_t *stream, int is_busy)
{
    if (is_busy && !stream->is_busy) {
        TAILQ_INSERT_TAIL(&ucx->busy_streams, stream, busy);
    } else if (!is_busy && stream->is_busy) {
        TAILQ_REMOVE(&ucx->busy_streams, stream, busy);
    }
    stream->is_busy = is_busy;
}

/** Forget what waits on a broken stream: the monitor has been told. */
static void stream_drop(tw_ucx_stream_t *stream)
{
    tw_ucx_op_t *op;
    while ((op = TAILQ_FIRST(&stream->waiting))) {
        op_finish(op, UCS_ERR_CANCELED);
    }
}

/** Never from inside UCX: it may be delivering a message of the very connection that a send breaks, or that a new endpoint
 *  takes over. What comes up there is sent right after. */
static void stream_flush(tw_ucx_transport_t *ucx, tw_ucx_stream_t *stream)
{
    tw_ucx_op_t *op;
    if (!stream->endpoint && !stream->broken && !ucx->in_ucx) {
        tw_ucx_stream_open(ucx, stream);
    }
    while (!ucx->in_ucx && !stream->broken && (op = TAILQ_FIRST(&stream->waiting)) &&
           op_try(ucx, op) == TW_OK) {
        ;
    }
    if (stream->broken) {
        stream_drop(stream);
    }
    stream_set_busy(ucx, stream, !TAILQ_EMPTY(&stream->waiting));
}

/** A stream that is broken swallows the message. */
static void message_send(tw_ucx_op_t *op)
{
    tw_ucx_transport_t *ucx = op->transport;
    tw_ucx_stream_t *stream = op->stream;
    if (op->request) {
        op->request->n_ops++;
    }
    if (op->header.kind == TW_UCX_DATA) {
        stream->n_chunks++;
    }
    op->header.source = (uint32_t)ucx->base.rank;
    op_move(op, &stream->waiting);
    if (stream->broken) {
        stream_drop(stream);
    } else if (TAILQ_FIRST(&stream->waiting) == op) {
        stream_flush(ucx, stream);
    }
}

tw_status_t tw_ucx_control_send(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, const tw_ucx_header_t *header,
                                tw_ucx_request_t *request)
{
    tw_ucx_op_t *op = op_create(ucx);
    if (!op) {
        tw_error("rank %d: out of memory for a message", ucx->base.rank);
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

static int is_over_tcp(const tw_ucx_peer_t *peer)
{
    return peer->n_streams > 0 && peer->streams[0].worker->at_once;
}

tw_status_t tw_ucx_hellos_send(tw_ucx_transport_t *ucx)
{
    for (int r = 0; r < ucx->base.world; r++) {
        tw_ucx_peer_t *peer = &ucx->peers[r];
        for (int s = 0; is_over_tcp(peer) && s < peer->n_streams; s++) {
            tw_ucx_op_t *op = op_create(ucx);
            if (!op) {
                tw_error("rank %d: out of memory for a message", ucx->base.rank);
                return TW_ERR_NO_MEMORY;
            }
            op->stream = &peer->streams[s];
            op->header = (tw_ucx_header_t){.kind = TW_UCX_HELLO, .stream = (uint32_t)s};
            message_send(op);
        }
    }
    return TW_OK;
}

static int chunk_limit(const tw_ucx_peer_t *peer, const tw_ucx_stream_t *stream)
{
    if (peer->n_streams > 2) {
        return CHUNKS_TO_ACKNOWLEDGE;
    }
    return stream->worker->at_once ? 1 : CHUNKS_IN_UCX;
}

/** The least busy of the data streams, each first in turn, or NULL. */
static tw_ucx_stream_t *free_stream(tw_ucx_peer_t *peer)
{
    const int first = peer->n_streams > 1, n = peer->n_streams - first;
    tw_ucx_stream_t *best = NULL;
    for (int i = 0; i < n; i++) {
        tw_ucx_stream_t *stream = &peer->streams[first + (peer->next_stream + i) % n];
        if (!stream->broken && stream->n_chunks < chunk_limit(peer, stream) &&
            (!best || stream->n_chunks < best->n_chunks)) {
            best = stream;
        }
    }
    peer->next_stream = best ? (int)(best - peer->streams) - first + 1 : peer->next_stream;
    return best;
}

/** 0: out of memory, for now. */
static int chunk_send(tw_ucx_transport_t *ucx, tw_ucx_request_t *request, tw_ucx_stream_t *stream)
{
    const size_t offset = request->moved;
    const size_t left = request->bytes - offset;
    tw_ucx_op_t *op = op_create(ucx);
    if (!op) {
        return 0;
    }
    op->stream = stream;
    op->request = request;
    op->data = request->buffer + offset;
    op->memory = ucx->memory[request->mem];
    op->keep = request->keep;
    op->bytes = left < request->peer->chunk_bytes ? left : request->peer->chunk_bytes;
    op->header = (tw_ucx_header_t){.kind = TW_UCX_DATA, .id = request->their_slot, .value = offset};
    if (request->peer->n_streams > 2) {
        op->header.stream = (uint32_t)(stream - request->peer->streams);
    }
    request->moved += op->bytes;
    if (request->moved == request->bytes) {
        tw_ucx_request_unqueue(request);
    }
    message_send(op);
    return 1;
}

/** Returns 0 once there is nothing left to hand out. */
static int pump_peer(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer)
{
    tw_ucx_request_t *request;
    for (int i = 0; i < CHUNKS_AT_ONCE && (request = TAILQ_FIRST(&peer->sending)); i++) {
        tw_ucx_stream_t *stream = free_stream(peer);
        if (!stream || !chunk_send(ucx, request, stream)) {
            return 1;
        }
    }
    return !TAILQ_EMPTY(&peer->sending);
}

void tw_ucx_pump(tw_ucx_transport_t *ucx)
{
    tw_ucx_stream_t *stream, *next_stream;
    tw_ucx_peer_t *peer, *next_peer;
    for (stream = TAILQ_FIRST(&ucx->busy_streams); stream; stream = next_stream) {
        next_stream = TAILQ_NEXT(stream, busy);
        stream_flush(ucx, stream);
    }
    for (peer = TAILQ_FIRST(&ucx->busy_peers); peer; peer = next_peer) {
        next_peer = TAILQ_NEXT(peer, busy);
        if (pump_peer(ucx, peer)) {
            continue;
        }
        TAILQ_REMOVE(&ucx->busy_peers, peer, busy);
        peer->is_busy = 0;
    }
}

/* ---- receiving --------------------------------------------------------------------------------------------- */

/** A message as UCX delivers it. */
typedef struct tw_ucx_incoming {
    tw_ucx_header_t header;
    void *data; /**< the bytes, or UCX's handle of them */
    size_t bytes;
    int in_ucx;  /**< to be fetched */
    int is_kept; /**< may be fetched */
} tw_ucx_incoming_t;

/** A peer that breaks the rules ends the job. */
static void refuse(tw_ucx_transport_t *ucx, int rank, const char *why)
{
    tw_monitor_fail(ucx->monitor, rank, why);
}

static int size_fits(tw_ucx_transport_t *ucx, const tw_ucx_request_t *receive, size_t bytes)
{
    if (bytes == receive->bytes) {
        return 1;
    }
    tw_error("rank %d: peer %d: a message of %zu bytes came where %zu were expected (tag %llu)",
             ucx->base.rank, receive->peer->rank, bytes, receive->bytes, (unsigned long long)receive->tag);
    return 0;
}

static void accept_eager(tw_ucx_transport_t *ucx, tw_ucx_request_t *receive, const void *data, size_t bytes)
{
    tw_status_t status = size_fits(ucx, receive, bytes) ? TW_OK : TW_ERR_TRUNCATED;
    if (!status && receive->mem != TW_MEM_HOST) {
        tw_error("rank %d: peer %d: a short message from host memory came where one from the memory of a GPU "
                 "was expected (tag %llu)",
                 ucx->base.rank, receive->peer->rank, (unsigned long long)receive->tag);
        status = TW_ERR_UNSUPPORTED;
    }
    if (!status && bytes) {
        memcpy(receive->buffer, data, bytes);
    }
    tw_ucx_request_finish(ucx, receive, status);
}

static void accept_self(tw_ucx_transport_t *ucx, tw_ucx_request_t *receive, tw_ucx_request_t *send)
{
    accept_eager(ucx, receive, send->buffer, send->bytes);
    tw_ucx_request_finish(ucx, send, TW_OK);
}

/** Clear the sender to send; a message of the wrong size is sent nowhere. */
static void accept_rts(tw_ucx_transport_t *ucx, tw_ucx_request_t *receive, uint64_t id, size_t bytes)
{
    tw_ucx_header_t header = {.kind = TW_UCX_CTS, .id = id};
    tw_status_t status = TW_OK;
    if (!size_fits(ucx, receive, bytes)) {
        tw_ucx_request_finish(ucx, receive, TW_ERR_TRUNCATED);
    } else {
        status = tw_ucx_slot_take(&ucx->slots, receive);
        receive->stage = TW_UCX_STAGE_MOVING;
        header.value = receive->slot;
        header.stream = receive->mem != TW_MEM_HOST;
    }
    if (status || tw_ucx_control_send(ucx, receive->peer, &header, NULL)) {
        refuse(ucx, ucx->base.rank, "out of memory for a message");
    }
}

void tw_ucx_accept(tw_ucx_transport_t *ucx, tw_ucx_request_t *receive, tw_ucx_arrival_t *arrival)
{
    TAILQ_REMOVE(&receive->peer->arrivals, arrival, entry);
    if (arrival->self) {
        accept_self(ucx, receive, arrival->self);
    } else if (arrival->id) {
        accept_rts(ucx, receive, arrival->id, arrival->bytes);
    } else {
        accept_eager(ucx, receive, arrival->data, arrival->bytes);
    }
    free(arrival);
}

static tw_ucx_request_t *find_receive(tw_ucx_peer_t *peer, uint64_t tag)
{
    tw_ucx_request_t *request = TAILQ_FIRST(&peer->receives);
    while (request && request->tag != tag) {
        request = TAILQ_NEXT(request, queued);
    }
    if (request) {
        tw_ucx_request_unqueue(request);
    }
    return request;
}

static int keep_arrival(tw_ucx_peer_t *peer, const tw_ucx_header_t *header, const void *data,
                        size_t data_bytes)
{
    tw_ucx_arrival_t *arrival = malloc(sizeof(*arrival) + data_bytes);
    if (!arrival) {
        return 0;
    }
    *arrival = (tw_ucx_arrival_t){.tag = header->tag, .bytes = (size_t)header->value, .id = header->id};
    if (data_bytes) {
        memcpy(arrival->data, data, data_bytes);
    }
    TAILQ_INSERT_TAIL(&peer->arrivals, arrival, entry);
    return 1;
}

static const char *on_eager(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, const tw_ucx_header_t *header,
                            const void *data, size_t bytes)
{
    if (header->id || header->value != bytes) {
        return "it sent a malformed message";
    }
    tw_ucx_request_t *receive = find_receive(peer, header->tag);
    if (receive) {
        accept_eager(ucx, receive, data, bytes);
    } else if (!keep_arrival(peer, header, data, bytes)) {
        return "its messages do not fit into memory";
    }
    return NULL;
}

static const char *on_rts(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, const tw_ucx_header_t *header)
{
    if (!header->id) {
        return "it announced a malformed message";
    }
    tw_ucx_request_t *receive = find_receive(peer, header->tag);
    if (receive) {
        accept_rts(ucx, receive, header->id, (size_t)header->value);
    } else if (!keep_arrival(peer, header, NULL, 0)) {
        return "its messages do not fit into memory";
    }
    return NULL;
}

static const char *on_cts(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, const tw_ucx_header_t *header)
{
    tw_ucx_request_t *send = tw_ucx_slot_find(&ucx->slots, header->id);
    if (!send) { /* canceled meanwhile: tell the receive that waits for it */
        const tw_ucx_header_t cancel = {.kind = TW_UCX_CANCEL, .id = header->id, .value = header->value};
        return header->value && tw_ucx_control_send(ucx, peer, &cancel, NULL)
                   ? "no memory is left to answer it"
                   : NULL;
    }
    if (!send->is_send || send->peer != peer || send->stage != TW_UCX_STAGE_UNMATCHED) {
        return "it cleared a message that does not wait for it";
    }
    if (!header->value) {
        tw_ucx_request_finish(ucx, send, TW_OK);
        return NULL;
    }
    send->their_slot = header->value;
    send->keep = header->stream != 0;
    send->stage = TW_UCX_STAGE_MOVING;
    tw_ucx_request_queue(send, &peer->sending);
    if (!peer->is_busy) {
        TAILQ_INSERT_TAIL(&ucx->busy_peers, peer, busy);
    }
    peer->is_busy = 1;
    return NULL;
}

static const char *on_cancel(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, const tw_ucx_header_t *header)
{
    tw_ucx_arrival_t *arrival;
    tw_ucx_request_t *receive = tw_ucx_slot_find(&ucx->slots, header->value);
    if (receive && !receive->is_send && receive->peer == peer) {
        tw_ucx_request_finish(ucx, receive, TW_ERR_CANCELED);
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

/** Data in UCX's hands still: let it write to the place. Done is done: what UCX has written to the memory of a GPU through
 *  copies has ended on the GPU before it says so. */
static const char *data_fetch(const tw_ucx_worker_t *worker, tw_ucx_request_t *receive,
                              const tw_ucx_incoming_t *in)
{
    tw_ucx_op_t *op = op_create(worker->ucx);
    if (!op) {
        return "its data does not fit into memory";
    }
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA |
                                                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                        .cb = {.recv_am = on_received},
                                        .memory_type = worker->ucx->memory[receive->mem],
                                        .user_data = op};
    op->request = receive;
    op->bytes = in->bytes;
    op_move(op, &worker->ucx->ops);
    receive->n_ops++;
    ucs_status_ptr_t handle = ucp_am_recv_data_nbx(worker->worker, in->data,
                                                   receive->buffer + in->header.value, in->bytes, &params);
    if (!UCS_PTR_IS_PTR(handle)) {
        op_finish(op, UCS_PTR_STATUS(handle));
    }
    return NULL;
}

/** A chunk has arrived; whether it is still wanted is another matter. */
static const char *acknowledge(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, uint32_t stream)
{
    const tw_ucx_header_t ack = {.kind = TW_UCX_ACK, .stream = stream};
    return tw_ucx_control_send(ucx, peer, &ack, NULL) ? "no memory is left to answer it" : NULL;
}

static const char *on_ack(tw_ucx_peer_t *peer, const tw_ucx_header_t *header)
{
    if (!header->stream || header->stream >= (uint32_t)peer->n_streams ||
        !peer->streams[header->stream].n_chunks) {
        return "it acknowledged what was not sent";
    }
    peer->streams[header->stream].n_chunks--;
    return NULL;
}

static const char *on_data(const tw_ucx_worker_t *worker, tw_ucx_peer_t *peer, const tw_ucx_incoming_t *in)
{
    const uint64_t offset = in->header.value;
    tw_ucx_request_t *receive = tw_ucx_slot_find(&worker->ucx->slots, in->header.id);
    const char *wrong = in->header.stream ? acknowledge(worker->ucx, peer, in->header.stream) : NULL;
    if (wrong || !receive) { /* canceled meanwhile */
        return wrong;
    }
    if (receive->is_send || receive->peer != peer) {
        return "it sent data for a message that is not its own";
    }
    if (offset > receive->bytes || in->bytes > receive->bytes - offset ||
        in->bytes > receive->bytes - receive->moved) {
        return "it sent data beyond the end of a message";
    }
    if (in->in_ucx || (receive->mem != TW_MEM_HOST && in->is_kept)) {
        return data_fetch(worker, receive, in);
    }
    if (receive->mem != TW_MEM_HOST) {
        return "it sent data that cannot be copied to a GPU";
    }
    memcpy(receive->buffer + offset, in->data, in->bytes);
    receive->moved += in->bytes;
    tw_ucx_request_settle(worker->ucx, receive);
    return NULL;
}

static const char *on_hello(tw_ucx_peer_t *peer)
{
    if (!is_over_tcp(peer) || peer->n_hellos == peer->n_streams) {
        return "it greets more often than it has connections";
    }
    peer->n_hellos++;
    return NULL;
}

/** NULL, or what is wrong with the message. */
static const char *dispatch(const tw_ucx_worker_t *worker, const tw_ucx_incoming_t *in)
{
    tw_ucx_transport_t *ucx = worker->ucx;
    const tw_ucx_header_t *header = &in->header;
    tw_ucx_peer_t *peer = &ucx->peers[header->source];
    peer->n_received++;
    peer->heard_ns = 0;
    if (header->kind == TW_UCX_DATA) {
        return on_data(worker, peer, in);
    }
    if (header->kind == TW_UCX_HELLO) {
        return on_hello(peer);
    }
    if (in->in_ucx || header->sequence != (uint32_t)peer->n_control_received) {
        return "its messages do not come in order";
    }
    peer->n_control_received++;
    switch (header->kind) {
    case TW_UCX_EAGER:
        return on_eager(ucx, peer, header, in->data, in->bytes);
    case TW_UCX_RTS:
        return on_rts(ucx, peer, header);
    case TW_UCX_CTS:
        return on_cts(ucx, peer, header);
    case TW_UCX_ACK:
        return on_ack(peer, header);
    case TW_UCX_CANCEL:
        return on_cancel(ucx, peer, header);
    default:
        return "it sent a message of an unknown kind";
    }
}

static ucs_status_t on_message(void *arg, const void *raw, size_t raw_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *params)
{
    const tw_ucx_worker_t *worker = arg;
    tw_ucx_transport_t *ucx = worker->ucx;
    tw_ucx_incoming_t in = {.data = data, .bytes = bytes};
    ucx->n_events++;
    if (raw_bytes != sizeof(in.header)) {
        return UCS_OK; /* from no rank of this job */
    }
    memcpy(&in.header, raw, sizeof(in.header));
    in.in_ucx = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    in.is_kept = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    if (in.header.source >= (uint32_t)ucx->base.world || in.header.source == (uint32_t)ucx->base.rank) {
        return UCS_OK;
    }
    const char *wrong = dispatch(worker, &in);
    if (wrong) {
        refuse(ucx, (int)in.header.source, wrong);
    }
    return UCS_OK;
}

static ucs_status_t handler_set(tw_ucx_worker_t *worker, unsigned id, uint32_t flags)
{
    const ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = flags,
        .cb = on_message,
        .arg = worker};
    return ucp_worker_set_am_recv_handler(worker->worker, &params);
}

static tw_status_t handlers_set(tw_ucx_worker_t *worker)
{
    ucs_status_t status = handler_set(worker, AM_ID, 0);
    if (status == UCS_OK) {
        status = handler_set(worker, AM_ID_KEEP, UCP_AM_FLAG_PERSISTENT_DATA);
    }
    if (status == UCS_OK) {
        return TW_OK;
    }
    tw_error("rank %d: UCX: no handler: %s", worker->ucx->base.rank, ucs_status_string(status));
    return TW_ERR_UCX;
}

tw_status_t tw_ucx_handlers_set(tw_ucx_transport_t *ucx)
{
    tw_status_t status = TW_OK;
    for (int i = 0; i < ucx->n_workers && !status; i++) {
        status = ucx->workers[i].worker ? handlers_set(&ucx->workers[i]) : TW_OK;
    }
    return status;
}

tw_status_t tw_ucx_progress(tw_transport_t *transport)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    if (tw_ucx_job_failed(ucx)) {
        return TW_ERR_PEER;
    }
    ucx->n_events = 0;
    const unsigned n_ucx = tw_ucx_workers_progress(ucx);
    tw_ucx_pump(ucx);
    return n_ucx || ucx->n_events ? TW_OK : TW_IN_PROGRESS;
}
