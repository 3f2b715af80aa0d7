/** Sends and receives messages as UCX's active messages. */
#include <string.h>

#include "transport/p2p/state.h"
#include "transport/p2p/ucx_load.h"

/* ---- sending ------------------------------------------------------------------------------------------- */

static void on_endpoint_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    tw_p2p_stream_break(arg, tw_ucx->ucs_status_string(status));
}

static void stream_open(tw_p2p_stream_t *stream)
{
    const tw_p2p_t *p2p = stream->peer->p2p;
    /* Shared memory reports no errors, and asking for error handling would exclude UCX's transport CMA. */
    const int is_shm = stream->worker == &p2p->workers[TW_P2P_SHM_WORKER];
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = stream->address,
        .err_mode = is_shm ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_endpoint_error, .arg = stream},
    };
    ucs_status_t status = tw_ucx->ucp_ep_create(stream->worker->worker, &params, &stream->endpoint);
    if (status == UCS_OK) {
        return;
    }
    stream->endpoint = NULL;
    tw_error("%s: peer %d: UCX: no way to it: %s", p2p->name, stream->peer->id,
             tw_ucx->ucs_status_string(status));
    tw_p2p_stream_break(stream, tw_ucx->ucs_status_string(status));
}

static void op_finish(tw_p2p_op_t *op, ucs_status_t status)
{
    tw_p2p_op_finish(op, status == UCS_OK ? NULL : tw_ucx->ucs_status_string(status));
}

static void on_sent(void *handle, ucs_status_t status, void *arg)
{
    op_finish(arg, status);
    tw_ucx->ucp_request_free(handle);
}

/** Send an operation. Afterwards it is done, or UCX executes it. */
static void op_send(tw_p2p_op_t *op)
{
    const ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = op->bytes && op->header.kind == TW_P2P_DATA ? 0 : UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_sent},
        .memory_type = op->p2p->memory[op->mem],
        .user_data = op};
    tw_p2p_op_number(op, 0);
    ucs_status_ptr_t handle =
        tw_ucx->ucp_am_send_nbx(op->stream->endpoint, op->keep ? TW_P2P_AM_KEEP : TW_P2P_AM, &op->header,
                                sizeof(op->header), op->data, op->bytes, &params);
    if (!UCS_PTR_IS_ERR(handle)) {
        tw_p2p_op_count(op);
    }
    if (UCS_PTR_IS_PTR(handle)) {
        tw_p2p_op_hand_over(op);
    } else {
        op_finish(op, UCS_PTR_STATUS(handle));
    }
}

int tw_ucx_send(tw_p2p_stream_t *stream)
{
    tw_p2p_op_t *op;
    if (!stream->endpoint) {
        stream_open(stream);
    }
    while (!stream->broken && (op = TAILQ_FIRST(&stream->waiting))) {
        op_send(op);
    }
    return 0;
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

static void on_received(void *handle, ucs_status_t status, size_t bytes, void *arg)
{
    (void)bytes;
    op_finish(arg, status);
    tw_ucx->ucp_request_free(handle);
}

/** Let UCX write data that it still holds to its destination. When UCX reports the end, copies to GPU memory
 *  have ended on the GPU, too. */
static const char *data_fetch(const tw_p2p_worker_t *worker, tw_p2p_landing_t *landing, void *data)
{
    tw_p2p_op_t *op = tw_p2p_op_create(worker->p2p);
    if (!op) {
        return "its data does not fit into memory";
    }
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA |
                                                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                        .cb = {.recv_am = on_received},
                                        .memory_type = worker->p2p->memory[landing->request->mem],
                                        .user_data = op};
    op->request = landing->request; /* the request counts this operation already */
    op->bytes = landing->bytes;
    landing->request = NULL;
    tw_p2p_op_hand_over(op);
    ucs_status_ptr_t handle =
        tw_ucx->ucp_am_recv_data_nbx(worker->worker, data, landing->to, landing->bytes, &params);
    if (!UCS_PTR_IS_PTR(handle)) {
        op_finish(op, UCS_PTR_STATUS(handle));
    }
    return NULL;
}

/** Move the data of a landing to its destination. Returns NULL, or what is wrong. */
static const char *land(const tw_p2p_worker_t *worker, tw_p2p_landing_t *landing, void *data,
                        uint64_t attributes)
{
    const int in_ucx = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    const int is_kept = (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    const int is_gpu = landing->request && landing->request->mem != TW_MEM_HOST;
    if (landing->request && (in_ucx || (is_gpu && is_kept))) {
        return data_fetch(worker, landing, data);
    }
    if (is_gpu) {
        return "it sent data that cannot be copied to a GPU";
    }
    if (landing->to && landing->bytes) {
        memcpy(landing->to, data, landing->bytes);
    }
    return NULL;
}

static const char *dispatch(const tw_p2p_worker_t *worker, tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                            void *data, size_t bytes, uint64_t attributes)
{
    tw_p2p_landing_t landing;
    if (header->kind != TW_P2P_DATA && (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        return "its messages do not come in order";
    }
    const char *wrong = tw_p2p_message_begin(peer, header, bytes, &landing);
    if (!wrong) {
        wrong = land(worker, &landing, data, attributes);
    }
    if (wrong) {
        tw_p2p_landing_lose(peer, &landing);
        return wrong;
    }
    return tw_p2p_message_end(peer, header, &landing);
}

static ucs_status_t on_message(void *arg, const void *raw, size_t raw_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *params)
{
    const tw_p2p_worker_t *worker = arg;
    tw_p2p_t *p2p = worker->p2p;
    tw_p2p_header_t header;
    p2p->n_events++;
    if (raw_bytes != sizeof(header)) {
        return UCS_OK; /* not from a peer of this process */
    }
    memcpy(&header, raw, sizeof(header));
    tw_p2p_peer_t *peer = header.source <= INT32_MAX ? tw_p2p_peer_find(p2p, (int)header.source) : NULL;
    if (!peer || !peer->n_streams || peer->has_failed || tw_p2p_peer_is_over_tcp(peer)) {
        return UCS_OK;
    }
    const char *wrong = dispatch(worker, peer, &header, data, bytes, params->recv_attr);
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
    return tw_ucx->ucp_worker_set_am_recv_handler(worker->worker, &params);
}

tw_status_t tw_ucx_handlers_set(tw_p2p_worker_t *worker)
{
    ucs_status_t status = handler_set(worker, TW_P2P_AM, 0);
    if (status == UCS_OK) {
        status = handler_set(worker, TW_P2P_AM_KEEP, UCP_AM_FLAG_PERSISTENT_DATA);
    }
    return status == UCS_OK ? TW_OK
                            : tw_fail(TW_ERR_UCX, "%s: UCX: no handler: %s", worker->p2p->name,
                                      tw_ucx->ucs_status_string(status));
}
