/** Creates and destroys a tw_p2p_t, flushes it, and closes peers. */
#include <sched.h>
#include <stdlib.h>

#include "transport/p2p/state.h"

/* ---- create and destroy -------------------------------------------------------------------------------- */

static void free_ops(struct tw_p2p_op_list *ops)
{
    tw_p2p_op_t *op;
    while ((op = TAILQ_FIRST(ops))) {
        TAILQ_REMOVE(ops, op, entry);
        free(op->copy);
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
        tw_p2p_peer_t *peer = p2p->peers[i];
        for (int s = 0; peer && s < peer->n_streams; s++) {
            free_ops(&peer->streams[s].waiting);
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
    tw_p2p_workers_destroy(p2p); /* this ends the workers' operations */
    free_requests(p2p);
    free_peers(p2p);
    free_ops(&p2p->ops);
    free_ops(&p2p->free_ops);
    free(p2p->numbers.entries);
    tw_token_key_cleanup(&p2p->key);
    tw_p2p_sleep_cleanup(p2p);
    free(p2p);
}

static tw_status_t key_init(tw_p2p_t *p2p)
{
    const char *token = p2p->params.token;
    p2p->params.token = NULL;
    p2p->has_key = token != NULL;
    return token ? tw_token_key_init(&p2p->key, token) : TW_OK;
}

tw_status_t tw_p2p_create(const tw_p2p_params_t *params, tw_p2p_t **out)
{
    tw_p2p_t *p2p = calloc(1, sizeof(*p2p));
    TW_FAIL_IF(!p2p, TW_ERR_NO_MEMORY, "%s: out of memory", params->name);
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
    TAILQ_INIT(&p2p->listeners);
    TAILQ_INIT(&p2p->dials);
    tw_status_t status = key_init(p2p);
    status = status ? status : tw_p2p_workers_create(p2p);
    status = status ? status : tw_p2p_sleep_init(p2p);
    if (status) {
        tw_p2p_destroy(p2p);
        return status;
    }
    *out = p2p;
    return TW_OK;
}

/* ---- flushing ------------------------------------------------------------------------------------------ */

static void p2p_turn(tw_p2p_t *p2p)
{
    tw_p2p_pump(p2p);
    if (!tw_p2p_workers_progress(p2p)) {
        sched_yield();
    }
}

void tw_p2p_flush(tw_p2p_t *p2p)
{
    const uint64_t until_ns = tw_p2p_deadline(p2p);
    while (!TAILQ_EMPTY(&p2p->busy_streams) && tw_time_ns() < until_ns && !tw_p2p_is_over(p2p)) {
        p2p_turn(p2p);
    }
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier && p2p->workers[i].carrier->flush) {
            p2p->workers[i].carrier->flush(&p2p->workers[i], until_ns, p2p_turn);
        }
    }
}

/* ---- closing a peer ------------------------------------------------------------------------------------ */

/** Cancel all requests of a peer. Returns their number. */
static int cancel_its_requests(tw_p2p_peer_t *peer)
{
    int n = 0;
    tw_p2p_request_t *request, *next;
    for (request = TAILQ_FIRST(&peer->p2p->requests); request; request = next) {
        next = TAILQ_NEXT(request, owned);
        if (request->peer == peer) {
            tw_p2p_cancel(peer->p2p, request);
            n++;
        }
    }
    return n;
}

/** Remove the peer from all lists. After this nothing is sent to it or received from it. */
static void leave_lists(tw_p2p_peer_t *peer)
{
    tw_p2p_t *p2p = peer->p2p;
    tw_p2p_op_t *op;
    for (int s = 0; s < peer->n_streams; s++) {
        tw_p2p_stream_t *stream = &peer->streams[s];
        stream->broken = 1;
        while ((op = TAILQ_FIRST(&stream->waiting))) {
            tw_p2p_op_finish(op, "canceled");
        }
        tw_p2p_stream_set_busy(stream, 0);
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

void tw_p2p_peer_close(tw_p2p_peer_t *peer)
{
    if (!peer) {
        return;
    }
    tw_p2p_t *p2p = peer->p2p;
    const int n_canceled = cancel_its_requests(peer);
    const int is_orderly = !n_canceled && !peer->has_failed && !tw_p2p_is_over(p2p);
    peer->is_closing = 1;
    if (n_canceled) {
        p2p->aborted_ns = tw_time_ns();
    }
    if (is_orderly && tw_p2p_peer_is_over_tcp(peer)) {
        (void)tw_p2p_say_bye(peer);
    }
    for (int s = 0; s < peer->n_streams; s++) {
        const tw_p2p_carrier_t *carrier = peer->streams[s].worker->carrier;
        if (carrier && (carrier->is_tcp || !tw_p2p_is_over(p2p))) {
            carrier->close(&peer->streams[s], is_orderly);
        }
    }
    leave_lists(peer);
    tw_p2p_peer_free(peer);
}
