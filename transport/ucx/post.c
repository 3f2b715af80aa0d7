/** Requests as the caller sees them: post, test, cancel. */
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/state.h"

/* ---- life -------------------------------------------------------------------------------------------------- */

static tw_ucx_request_t *request_create(tw_ucx_transport_t *ucx, const tw_transport_message_t *message,
                                        int is_send)
{
    tw_ucx_request_t *request = calloc(1, sizeof(*request));
    if (!request) {
        tw_error("rank %d: out of memory for a request", ucx->base.rank);
        return NULL;
    }
    request->peer = &ucx->peers[message->peer];
    request->is_send = is_send;
    request->status = TW_IN_PROGRESS;
    request->tag = message->tag;
    request->buffer = message->buffer;
    request->bytes = message->bytes;
    request->mem = message->bytes ? message->mem : TW_MEM_HOST;
    TAILQ_INSERT_TAIL(&ucx->requests, request, owned);
    return request;
}

/** What UCX still does with it happens without it; only once nothing can reach its buffer any more. */
static void request_destroy(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    if (request->n_ops) {
        tw_ucx_ops_take_back(request);
    }
    if (request->n_ops) {
        tw_ucx_ops_disown(ucx, request);
    }
    tw_ucx_request_unqueue(request);
    tw_ucx_slot_release(&ucx->slots, request);
    TAILQ_REMOVE(&ucx->requests, request, owned);
    free(request);
}

/* ---- posting ----------------------------------------------------------------------------------------------- */

static tw_ucx_arrival_t *find_arrival(tw_ucx_peer_t *peer, uint64_t tag)
{
    tw_ucx_arrival_t *arrival = TAILQ_FIRST(&peer->arrivals);
    while (arrival && arrival->tag != tag) {
        arrival = TAILQ_NEXT(arrival, entry);
    }
    return arrival;
}

static tw_ucx_request_t *find_receive(tw_ucx_peer_t *peer, uint64_t tag)
{
    tw_ucx_request_t *request = TAILQ_FIRST(&peer->receives);
    while (request && request->tag != tag) {
        request = TAILQ_NEXT(request, queued);
    }
    return request;
}

/** To this rank itself: it waits among the arrivals until a receive copies it. */
static tw_status_t send_to_self(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    tw_ucx_arrival_t *arrival = calloc(1, sizeof(*arrival));
    if (!arrival) {
        return TW_ERR_NO_MEMORY;
    }
    arrival->tag = request->tag;
    arrival->bytes = request->bytes;
    arrival->self = request;
    TAILQ_INSERT_TAIL(&request->peer->arrivals, arrival, entry);
    tw_ucx_request_t *receive = find_receive(request->peer, request->tag);
    if (receive) {
        tw_ucx_accept(ucx, receive, arrival);
    }
    return TW_OK;
}

static tw_status_t send_eager(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    const tw_ucx_header_t header = {.kind = TW_UCX_EAGER, .tag = request->tag, .value = request->bytes};
    request->stage = TW_UCX_STAGE_MOVING;
    request->moved = request->bytes;
    return tw_ucx_control_send(ucx, request->peer, &header, request);
}

static tw_status_t send_announced(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    tw_status_t status = tw_ucx_slot_take(&ucx->slots, request);
    if (status) {
        return status;
    }
    const tw_ucx_header_t header = {
        .kind = TW_UCX_RTS, .tag = request->tag, .id = request->slot, .value = request->bytes};
    return tw_ucx_control_send(ucx, request->peer, &header, NULL);
}

tw_status_t tw_ucx_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    if (tw_ucx_job_failed(ucx)) {
        return TW_ERR_PEER;
    }
    tw_ucx_request_t *request = request_create(ucx, message, 1);
    if (!request) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = message->peer == transport->rank ? send_to_self(ucx, request)
                         : message->bytes <= ucx->eager_bytes && request->mem == TW_MEM_HOST
                             ? send_eager(ucx, request)
                             : send_announced(ucx, request);
    if (status) {
        request_destroy(ucx, request);
    } else {
        *out = (tw_transport_request_t *)request;
    }
    return status;
}

tw_status_t tw_ucx_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    if (tw_ucx_job_failed(ucx)) {
        return TW_ERR_PEER;
    }
    tw_ucx_request_t *request = request_create(ucx, message, 0);
    if (!request) {
        return TW_ERR_NO_MEMORY;
    }
    tw_ucx_arrival_t *arrival = find_arrival(request->peer, message->tag);
    if (arrival) {
        tw_ucx_accept(ucx, request, arrival);
    } else {
        tw_ucx_request_queue(request, &request->peer->receives);
    }
    *out = (tw_transport_request_t *)request;
    return TW_OK;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

/** Whether the peer has left and nothing more can come of it: all it said is here, or it has been silent for too long. */
static int is_gone(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer)
{
    uint64_t count;
    if (peer->rank == ucx->base.rank || !tw_monitor_gone(ucx->monitor, peer->rank, &count)) {
        return 0;
    }
    const uint64_t now = tw_time_ns();
    if (!peer->heard_ns) {
        peer->heard_ns = now;
    }
    peer->all_said = peer->n_received >= count;
    peer->silent = (double)(now - peer->heard_ns) * 1e-9 > ucx->peer_timeout_sec;
    return 1;
}

/** A message that needs a rank which has left: to need it ends the job. */
static int is_hopeless(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    tw_ucx_peer_t *peer = request->peer;
    if (!is_gone(ucx, peer)) {
        return 0;
    }
    if (peer->silent || request->lost) {
        return 1;
    }
    if (!peer->all_said) {
        return 0;
    }
    /* What UCX has in hand may still come to an end; the rest waits for an answer that nobody will give. */
    return !request->n_ops && !(request->is_send && request->stage == TW_UCX_STAGE_MOVING && !request->queue);
}

tw_status_t tw_ucx_test(tw_transport_t *transport, tw_transport_request_t *opaque)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    tw_ucx_request_t *request = (tw_ucx_request_t *)opaque;
    if (request->stage == TW_UCX_STAGE_DONE && !request->n_ops) {
        tw_status_t status = request->status;
        request_destroy(ucx, request);
        return status;
    }
    if (!tw_ucx_job_failed(ucx) && is_hopeless(ucx, request)) {
        tw_monitor_fail(ucx->monitor, request->peer->rank,
                        request->is_send ? "it has left the job while a message was on its way to it"
                                         : "it has left the job while a message was awaited from it");
    }
    if (!tw_ucx_job_failed(ucx)) {
        return TW_IN_PROGRESS;
    }
    /* UCX is not called any more now, so the buffer is safe. */
    request_destroy(ucx, request);
    return TW_ERR_PEER;
}

/* ---- canceling --------------------------------------------------------------------------------------------- */

/** Tell the other side, if it knows of this message. */
static void withdraw(tw_ucx_transport_t *ucx, tw_ucx_request_t *request)
{
    tw_ucx_arrival_t *arrival;
    if (request->peer->rank == ucx->base.rank) {
        TAILQ_FOREACH(arrival, &request->peer->arrivals, entry)
        if (arrival->self == request) {
            break;
        }
        if (arrival) {
            TAILQ_REMOVE(&request->peer->arrivals, arrival, entry);
            free(arrival);
        }
    } else if (request->slot) {
        const tw_ucx_header_t header = {
            .kind = TW_UCX_CANCEL, .id = request->slot, .value = request->their_slot};
        if (tw_ucx_control_send(ucx, request->peer, &header, NULL)) {
            tw_monitor_fail(ucx->monitor, ucx->base.rank, "out of memory for a message");
        }
    }
}

/** Until UCX has let go of the buffer. A peer that takes nothing for too long ends the job; then UCX is called no more. */
static void drain(tw_ucx_transport_t *ucx, const tw_ucx_request_t *request)
{
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(ucx->peer_timeout_sec * 1e9);
    while (request->n_ops && !tw_ucx_job_failed(ucx)) {
        if (tw_time_ns() > until_ns) {
            tw_monitor_fail(ucx->monitor, request->peer->rank, "it takes no data");
        }
        if (tw_ucx_progress(&ucx->base) == TW_IN_PROGRESS) {
            (void)tw_ucx_nap(ucx, 0.01);
        }
    }
}

void tw_ucx_cancel(tw_transport_t *transport, tw_transport_request_t *opaque)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    tw_ucx_request_t *request = (tw_ucx_request_t *)opaque;
    if (request->is_send && request->stage != TW_UCX_STAGE_DONE && !tw_ucx_job_failed(ucx)) {
        withdraw(ucx, request);
    }
    tw_ucx_request_finish(ucx, request, TW_ERR_CANCELED);
    tw_ucx_ops_take_back(request);
    drain(ucx, request);
    request_destroy(ucx, request);
}
