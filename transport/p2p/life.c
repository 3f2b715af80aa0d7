/** Making an end, letting everything go out, closing a peer. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "transport/p2p/state.h"

/* ---- create and destroy ------------------------------------------------------------------------------------ */

static void free_ops(struct tw_p2p_op_list *ops)
{
    tw_p2p_op_t *op;
    while ((op = TAILQ_FIRST(ops))) {
        TAILQ_REMOVE(ops, op, entry);
        free(op);
    }
}

static void free_requests(tw_p2p_t *p2p)
{
    tw_p2p_request_t *request;
    while ((request = TAILQ_FIRST(&p2p->requests))) {
        TAILQ_REMOVE(&p2p->requests, request, owned);
        free(request);
    }
}

static void free_peers(tw_p2p_t *p2p)
{
    for (int i = 0; i < p2p->n_peers; i++) {
        tw_p2p_op_t *op;
        tw_p2p_peer_t *peer = p2p->peers[i];
        for (int s = 0; peer && s < peer->n_streams; s++) {
            while ((op = TAILQ_FIRST(&peer->streams[s].waiting))) {
                TAILQ_REMOVE(&peer->streams[s].waiting, op, entry);
                free(op);
            }
        }
        if (peer) {
            tw_p2p_peer_free(peer);
        }
    }
    free(p2p->peers);
}

void tw_p2p_destroy(tw_p2p_t *p2p)
{
    if (!p2p) {
        return;
    }
    tw_p2p_workers_destroy(p2p); /* ends the operations */
    free_requests(p2p);
    free_peers(p2p);
    free_ops(&p2p->ops);
    free_ops(&p2p->free_ops);
    free(p2p->numbers.entries);
    free(p2p->admitted);
    tw_p2p_sleep_cleanup(p2p);
    free(p2p);
}

tw_status_t tw_p2p_create(const tw_p2p_params_t *params, tw_p2p_t **out)
{
    tw_p2p_t *p2p = calloc(1, sizeof(*p2p));
    if (!p2p) {
        tw_error("%s: out of memory", params->name);
        return TW_ERR_NO_MEMORY;
    }
    p2p->params = *params;
    snprintf(p2p->name, sizeof(p2p->name), "%s", params->name);
    p2p->params.name = p2p->name;
    p2p->memory[TW_MEM_HOST] = UCS_MEMORY_TYPE_HOST;
    p2p->memory[TW_MEM_CUDA] = UCS_MEMORY_TYPE_CUDA;
    p2p->wake_fd = -1;
    TAILQ_INIT(&p2p->requests);
    TAILQ_INIT(&p2p->ops);
    TAILQ_INIT(&p2p->free_ops);
    TAILQ_INIT(&p2p->busy_peers);
    TAILQ_INIT(&p2p->busy_streams);
    tw_status_t status = tw_p2p_workers_create(p2p);
    if (!status) {
        status = tw_p2p_handlers_set(p2p);
    }
    if (!status) {
        status = tw_p2p_sleep_init(p2p);
    }
    if (status) {
        tw_p2p_destroy(p2p);
        return status;
    }
    *out = p2p;
    return TW_OK;
}

/* ---- letting go -------------------------------------------------------------------------------------------- */

static uint64_t deadline(const tw_p2p_t *p2p)
{
    return tw_time_ns() + (uint64_t)(p2p->params.timeout_sec * 1e9);
}

static void turn(tw_p2p_t *p2p)
{
    tw_p2p_pump(p2p);
    if (!tw_p2p_workers_progress(p2p)) {
        sched_yield();
    }
}

/** Until UCX is done with it, the deadline, or it is over. What is not done is UCX's to free. */
static void await_handle(tw_p2p_t *p2p, ucs_status_ptr_t handle, uint64_t until_ns)
{
    if (!UCS_PTR_IS_PTR(handle)) {
        return;
    }
    while (ucp_request_check_status(handle) == UCS_INPROGRESS && tw_time_ns() < until_ns &&
           !tw_p2p_is_over(p2p)) {
        turn(p2p);
    }
    ucp_request_free(handle);
}

void tw_p2p_flush(tw_p2p_t *p2p)
{
    const ucp_request_param_t params = {0};
    const uint64_t until_ns = deadline(p2p);
    ucs_status_ptr_t handles[TW_P2P_WORKERS_MAX] = {NULL};
    while (!TAILQ_EMPTY(&p2p->busy_streams) && tw_time_ns() < until_ns && !tw_p2p_is_over(p2p)) {
        turn(p2p);
    }
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].worker) {
            handles[i] = ucp_worker_flush_nbx(p2p->workers[i].worker, &params);
        }
    }
    for (int i = 0; i < p2p->n_workers; i++) {
        await_handle(p2p, handles[i], until_ns);
    }
}

/* ---- closing a peer ---------------------------------------------------------------------------------------- */

static void cancel_its_requests(tw_p2p_peer_t *peer)
{
    tw_p2p_request_t *request, *next;
    for (request = TAILQ_FIRST(&peer->p2p->requests); request; request = next) {
        next = TAILQ_NEXT(request, owned);
        if (request->peer == peer) {
            tw_p2p_cancel(peer->p2p, request);
        }
    }
}

/** 1 if something is to go to it, or it owes an acknowledgement. */
static int is_busy(const tw_p2p_peer_t *peer)
{
    for (int s = 0; s < peer->n_streams; s++) {
        if (!peer->streams[s].broken && (peer->streams[s].is_busy || peer->streams[s].n_chunks)) {
            return 1;
        }
    }
    return 0;
}

/** 1 if it owes an answer to our BYE: with the connection closed, credit that it gives back would end it on its side with messages in it
 *  that it has not read. It may have closed itself meanwhile, and not read our BYE. */
static int is_awaited(const tw_p2p_peer_t *peer)
{
    return peer->n_sent_on_credit > 0 && !peer->streams[0].broken;
}

/** Nothing more is to be had from it, or not in time. */
static int is_over_for(const tw_p2p_peer_t *peer, uint64_t until_ns)
{
    return peer->has_failed || tw_p2p_peer_has_closed(peer) || tw_time_ns() >= until_ns ||
           tw_p2p_is_over(peer->p2p);
}

/** From here on nothing is sent to it, and nothing of it is heard. */
static void leave_lists(tw_p2p_peer_t *peer)
{
    tw_p2p_t *p2p = peer->p2p;
    tw_p2p_op_t *op;
    for (int s = 0; s < peer->n_streams; s++) {
        tw_p2p_stream_t *stream = &peer->streams[s];
        stream->broken = 1;
        while ((op = TAILQ_FIRST(&stream->waiting))) {
            tw_p2p_op_finish(op, UCS_ERR_CANCELED);
        }
        if (stream->is_busy) {
            TAILQ_REMOVE(&p2p->busy_streams, stream, busy);
        }
    }
    TAILQ_FOREACH(op, &p2p->ops, entry)
    {
        if (op->stream && op->stream->peer == peer) {
            op->stream = NULL;
        }
    }
    if (peer->is_busy) {
        TAILQ_REMOVE(&p2p->busy_peers, peer, busy);
    }
}

/** What was sent is in the sockets by now. Over TCP UCX is not let say farewell of its own, for which the peer would have to read;
 *  shared memory knows only that way, and is not waited for. */
static void close_endpoints(const tw_p2p_peer_t *peer)
{
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = tw_p2p_peer_is_over_tcp(peer) ? UCP_EP_CLOSE_FLAG_FORCE : 0};
    for (int s = 0; s < peer->n_streams; s++) {
        if (peer->streams[s].endpoint) {
            await_handle(peer->p2p, ucp_ep_close_nbx(peer->streams[s].endpoint, &params), 0);
        }
    }
}

void tw_p2p_peer_close(tw_p2p_peer_t *peer)
{
    if (!peer) {
        return;
    }
    tw_p2p_t *p2p = peer->p2p;
    const uint64_t until_ns = deadline(p2p);
    cancel_its_requests(peer);
    if (!peer->has_failed && !tw_p2p_is_over(p2p)) {
        (void)tw_p2p_streams_mark(peer, TW_P2P_BYE);
    }
    while (is_busy(peer) && !is_over_for(peer, until_ns)) {
        turn(p2p);
    }
    peer->has_said_bye = 1;
    while (is_awaited(peer) && !is_over_for(peer, until_ns)) {
        turn(p2p);
    }
    leave_lists(peer);
    if (!tw_p2p_is_over(p2p)) {
        close_endpoints(peer);
    }
    tw_p2p_peer_free(peer);
}
