/** What is done when a message comes. */
#include <stdlib.h>
#include <string.h>

#include "transport/p2p/state.h"

/** A message as UCX delivers it. */
typedef struct tw_p2p_incoming {
    tw_p2p_header_t header;
    void *data; /**< the bytes, or UCX's handle of them */
    size_t bytes;
    int in_ucx;  /**< to be fetched */
    int is_kept; /**< may be fetched */
} tw_p2p_incoming_t;

/** A message of `bytes` for a receive, which from now on is as long. */
static int size_fits(const tw_p2p_t *p2p, tw_p2p_request_t *receive, size_t bytes)
{
    if (bytes == receive->bytes || (receive->may_be_shorter && bytes < receive->bytes)) {
        receive->bytes = bytes;
        return 1;
    }
    tw_error("%s: peer %d: a message of %zu bytes came where %zu were expected (tag %llu)", p2p->name,
             receive->peer->id, bytes, receive->bytes, (unsigned long long)receive->tag);
    return 0;
}

static void accept_eager(tw_p2p_t *p2p, tw_p2p_request_t *receive, const void *data, size_t bytes)
{
    tw_status_t status = size_fits(p2p, receive, bytes) ? TW_OK : TW_ERR_TRUNCATED;
    if (!status && receive->mem != TW_MEM_HOST) {
        tw_error("%s: peer %d: a short message from host memory came where one from the memory of a GPU "
                 "was expected (tag %llu)",
                 p2p->name, receive->peer->id, (unsigned long long)receive->tag);
        status = TW_ERR_UNSUPPORTED;
    }
    if (!status && bytes) {
        memcpy(receive->buffer, data, bytes);
    }
    tw_p2p_request_finish(p2p, receive, status);
}

static void send_credit(tw_p2p_peer_t *peer, int is_last)
{
    const tw_p2p_header_t header = {
        .kind = TW_P2P_CREDIT, .stream = (uint32_t)is_last, .value = peer->owed_bytes};
    peer->owed_bytes = 0;
    if (tw_p2p_control_send(peer->p2p, peer, &header, NULL)) {
        tw_p2p_peer_fail(peer->p2p, NULL, "out of memory for a message");
    }
}

/** What has come on credit has been taken. */
static void give_back(tw_p2p_peer_t *peer, size_t bytes)
{
    peer->owed_bytes += bytes;
    if (peer->owed_bytes >= TW_P2P_CREDIT_STEP && !peer->streams[0].is_ended) {
        send_credit(peer, 0);
    }
}

static void accept_self(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_request_t *send)
{
    accept_eager(p2p, receive, send->buffer, send->bytes);
    tw_p2p_request_finish(p2p, send, TW_OK);
}

/** Clear the sender to send; a message of the wrong size is sent nowhere. */
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
    if (status || tw_p2p_control_send(p2p, receive->peer, &header, NULL)) {
        tw_p2p_peer_fail(p2p, NULL, "out of memory for a message");
    }
}

void tw_p2p_arrival_accept(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival)
{
    TAILQ_REMOVE(&receive->peer->arrivals, arrival, entry);
    if (arrival->self) {
        accept_self(p2p, receive, arrival->self);
    } else if (arrival->id) {
        accept_rts(p2p, receive, arrival->id, arrival->bytes);
    } else {
        tw_p2p_peer_t *peer = receive->peer;
        accept_eager(p2p, receive, arrival->data, arrival->bytes);
        give_back(peer, arrival->on_credit ? arrival->bytes : 0);
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

static int keep_arrival(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, const void *data,
                        size_t data_bytes)
{
    tw_p2p_arrival_t *arrival = malloc(sizeof(*arrival) + data_bytes);
    if (!arrival) {
        return 0;
    }
    *arrival = (tw_p2p_arrival_t){.tag = header->tag,
                                  .bytes = (size_t)header->value,
                                  .id = header->id,
                                  .on_credit = header->kind == TW_P2P_EAGER && header->stream};
    if (data_bytes) {
        memcpy(arrival->data, data, data_bytes);
    }
    TAILQ_INSERT_TAIL(&peer->arrivals, arrival, entry);
    return 1;
}

static const char *on_eager(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                            const void *data, size_t bytes)
{
    if (header->id || header->value != bytes) {
        return "it sent a malformed message";
    }
    tw_p2p_request_t *receive = take_receive(peer, header->tag);
    peer->got_on_credit |= header->stream != 0;
    if (receive) {
        accept_eager(p2p, receive, data, bytes);
        give_back(peer, header->stream ? bytes : 0);
    } else if (!keep_arrival(peer, header, data, bytes)) {
        return "its messages do not fit into memory";
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
    } else if (!keep_arrival(peer, header, NULL, 0)) {
        return "its messages do not fit into memory";
    }
    return NULL;
}

static const char *on_cts(tw_p2p_t *p2p, tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    tw_p2p_request_t *send = tw_p2p_number_find(&p2p->numbers, header->id);
    if (!send) { /* canceled meanwhile: tell the receive that waits for it */
        const tw_p2p_header_t cancel = {.kind = TW_P2P_CANCEL, .id = header->id, .value = header->value};
        return header->value && tw_p2p_control_send(p2p, peer, &cancel, NULL)
                   ? "no memory is left to answer it"
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
    if (header->value > TW_P2P_CREDIT_BYTES - peer->credit_bytes) {
        return "it gave back credit that it had not given";
    }
    peer->credit_bytes += (size_t)header->value;
    peer->n_sent_on_credit = header->stream ? 0 : peer->n_sent_on_credit;
    return NULL;
}

static void on_received(void *handle, ucs_status_t status, size_t bytes, void *arg)
{
    (void)bytes;
    tw_p2p_op_finish(arg, status);
    ucp_request_free(handle);
}

/** Data in UCX's hands still: let it write to the place. Done is done: what UCX has written to the memory of a GPU through
 *  copies has ended on the GPU before it says so. */
static const char *data_fetch(const tw_p2p_worker_t *worker, tw_p2p_request_t *receive,
                              const tw_p2p_incoming_t *in)
{
    tw_p2p_op_t *op = tw_p2p_op_create(worker->p2p);
    if (!op) {
        return "its data does not fit into memory";
    }
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA |
                                                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                        .cb = {.recv_am = on_received},
                                        .memory_type = worker->p2p->memory[receive->mem],
                                        .user_data = op};
    op->request = receive;
    op->bytes = in->bytes;
    tw_p2p_op_hand_over(op);
    receive->n_ops++;
    ucs_status_ptr_t handle = ucp_am_recv_data_nbx(worker->worker, in->data,
                                                   receive->buffer + in->header.value, in->bytes, &params);
    if (!UCS_PTR_IS_PTR(handle)) {
        tw_p2p_op_finish(op, UCS_PTR_STATUS(handle));
    }
    return NULL;
}

/** A chunk has arrived; whether it is still wanted is another matter. */
static const char *acknowledge(tw_p2p_t *p2p, tw_p2p_peer_t *peer, uint32_t stream)
{
    const tw_p2p_header_t ack = {.kind = TW_P2P_ACK, .stream = stream};
    return tw_p2p_control_send(p2p, peer, &ack, NULL) ? "no memory is left to answer it" : NULL;
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

static const char *on_data(const tw_p2p_worker_t *worker, tw_p2p_peer_t *peer, const tw_p2p_incoming_t *in)
{
    const uint64_t offset = in->header.value;
    tw_p2p_request_t *receive = tw_p2p_number_find(&worker->p2p->numbers, in->header.id);
    const char *wrong = in->header.stream ? acknowledge(worker->p2p, peer, in->header.stream) : NULL;
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
    tw_p2p_request_settle(worker->p2p, receive);
    return NULL;
}

static const char *on_hello(tw_p2p_peer_t *peer)
{
    if (!tw_p2p_peer_is_over_tcp(peer) || peer->n_hellos == peer->n_streams) {
        return "it greets more often than it has connections";
    }
    peer->n_hellos++;
    return NULL;
}

/** The last one on its stream. */
static const char *on_bye(tw_p2p_peer_t *peer, const tw_p2p_header_t *header)
{
    if (peer->p2p->params.hooks || header->stream >= (uint32_t)peer->n_streams ||
        peer->streams[header->stream].is_ended) {
        return "it closed what is not its to close";
    }
    peer->streams[header->stream].is_ended = 1;
    peer->n_byes++;
    if (header->stream == 0 && peer->got_on_credit) {
        send_credit(peer, 1);
    }
    return NULL;
}

/** NULL, or what is wrong with the message. */
static const char *dispatch(const tw_p2p_worker_t *worker, tw_p2p_peer_t *peer, const tw_p2p_incoming_t *in)
{
    tw_p2p_t *p2p = worker->p2p;
    const tw_p2p_header_t *header = &in->header;
    peer->counts.n_received++;
    if (header->kind == TW_P2P_DATA) {
        return on_data(worker, peer, in);
    }
    if (header->kind == TW_P2P_HELLO) {
        return on_hello(peer);
    }
    if (header->kind == TW_P2P_BYE) {
        return on_bye(peer, header);
    }
    if (in->in_ucx || header->sequence != (uint32_t)peer->n_control_received) {
        return "its messages do not come in order";
    }
    peer->n_control_received++;
    switch (header->kind) {
    case TW_P2P_EAGER:
        return on_eager(p2p, peer, header, in->data, in->bytes);
    case TW_P2P_RTS:
        return on_rts(p2p, peer, header);
    case TW_P2P_CTS:
        return on_cts(p2p, peer, header);
    case TW_P2P_ACK:
        return on_ack(peer, header);
    case TW_P2P_CANCEL:
        return on_cancel(p2p, peer, header);
    case TW_P2P_CREDIT:
        return on_credit(peer, header);
    default:
        return "it sent a message of an unknown kind";
    }
}

static ucs_status_t on_message(void *arg, const void *raw, size_t raw_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *params)
{
    const tw_p2p_worker_t *worker = arg;
    tw_p2p_t *p2p = worker->p2p;
    tw_p2p_incoming_t in = {.data = data, .bytes = bytes};
    p2p->n_events++;
    if (raw_bytes != sizeof(in.header)) {
        return UCS_OK; /* from no peer */
    }
    memcpy(&in.header, raw, sizeof(in.header));
    in.in_ucx = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    in.is_kept = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    tw_p2p_peer_t *peer = in.header.source <= INT32_MAX ? tw_p2p_peer_find(p2p, (int)in.header.source) : NULL;
    if (!peer || !peer->n_streams || peer->has_failed) {
        return UCS_OK;
    }
    const char *wrong = dispatch(worker, peer, &in);
    if (wrong) {
        tw_p2p_peer_fail(p2p, peer, wrong);
    }
    return UCS_OK;
}

static ucs_status_t handler_set(tw_p2p_worker_t *worker, unsigned id, uint32_t flags)
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

static tw_status_t handlers_set(tw_p2p_worker_t *worker)
{
    ucs_status_t status = handler_set(worker, TW_P2P_AM, 0);
    if (status == UCS_OK) {
        status = handler_set(worker, TW_P2P_AM_KEEP, UCP_AM_FLAG_PERSISTENT_DATA);
    }
    if (status == UCS_OK) {
        return TW_OK;
    }
    tw_error("%s: UCX: no handler: %s", worker->p2p->name, ucs_status_string(status));
    return TW_ERR_UCX;
}

tw_status_t tw_p2p_handlers_set(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_workers; i++) {
        TW_TRY(p2p->workers[i].worker ? handlers_set(&p2p->workers[i]) : TW_OK);
    }
    return TW_OK;
}
