/** Messages between ranks, and what becomes of those that need a rank which has left. */
#include "transport/ucx/state.h"

/** Longest sleep while a rank that has left may still be needed: its silence is judged when the caller
 *  tests. */
#define LEFT_SLEEP_SEC 0.1
/** Of the timeout: between looks at whom messages have come from. */
#define TELL_SHARE 0.02

static tw_p2p_message_t message_of(const tw_ucx_transport_t *ucx, const tw_transport_message_t *message)
{
    return (tw_p2p_message_t){.peer = tw_p2p_peer_find(ucx->p2p, message->peer),
                              .tag = message->tag,
                              .buffer = message->buffer,
                              .bytes = message->bytes,
                              .mem = message->mem,
                              .may_be_shorter = message->may_be_shorter,
                              .when_asked = message->when_asked};
}

tw_status_t tw_ucx_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    const tw_p2p_message_t between = message_of(ucx, message);
    return tw_p2p_send(ucx->p2p, &between, (tw_p2p_request_t **)out);
}

tw_status_t tw_ucx_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    const tw_p2p_message_t between = message_of(ucx, message);
    return tw_p2p_recv(ucx->p2p, &between, (tw_p2p_request_t **)out);
}

/* ---- looking ------------------------------------------------------------------------------------------- */

/** NULL: the peer has not left. Else whether nothing more can come of it: all it said is here, or it has been
 *  silent for too long. */
static const tw_ucx_departed_t *look_at_departed(tw_ucx_transport_t *ucx, const tw_p2p_peer_t *peer)
{
    uint64_t count;
    const int rank = tw_p2p_peer_id(peer);
    tw_ucx_departed_t *departed = &ucx->departed[rank];
    if (rank == ucx->base.rank || !tw_monitor_gone(ucx->monitor, rank, &count)) {
        return NULL;
    }
    const uint64_t now = tw_time_ns(), n_received = tw_p2p_peer_counts(peer).n_received;
    if (!departed->heard_ns || n_received != departed->n_received) {
        departed->heard_ns = now;
        departed->n_received = n_received;
    }
    departed->all_said = n_received >= count;
    departed->silent = (double)(now - departed->heard_ns) * 1e-9 > ucx->peer_timeout_sec;
    return departed;
}

/** A message that needs a rank which has left: to need it ends the job. */
static int is_hopeless(tw_ucx_transport_t *ucx, const tw_p2p_request_t *request)
{
    const tw_ucx_departed_t *departed = look_at_departed(ucx, tw_p2p_request_peer(request));
    if (!departed) {
        return 0;
    }
    const tw_p2p_need_t needs = tw_p2p_request_needs(request);
    return departed->silent || needs == TW_P2P_NEEDS_LOST ||
           (departed->all_said && needs == TW_P2P_NEEDS_ANSWER);
}

tw_status_t tw_ucx_test(tw_transport_t *transport, tw_transport_request_t *opaque, size_t *bytes)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    tw_p2p_request_t *request = (tw_p2p_request_t *)opaque;
    if (!tw_p2p_request_is_done(request) && !tw_ucx_job_failed(ucx) && is_hopeless(ucx, request)) {
        tw_monitor_fail(ucx->monitor, tw_p2p_peer_id(tw_p2p_request_peer(request)),
                        tw_p2p_request_is_send(request)
                            ? "it has left the job while a message was on its way to it"
                            : "it has left the job while a message was awaited from it");
    }
    return tw_p2p_test(ucx->p2p, request, bytes);
}

void tw_ucx_cancel(tw_transport_t *transport, tw_transport_request_t *opaque)
{
    tw_p2p_cancel(tw_ucx_of(transport)->p2p, (tw_p2p_request_t *)opaque);
}

/* ---- moving and sleeping ------------------------------------------------------------------------------- */

/** Whom something has come from, for the monitor: more often than it says so. Parts of messages count, which
 *  on a slow link take longer than a rank may be silent. */
static void tell_heard(tw_ucx_transport_t *ucx)
{
    const uint64_t now = tw_time_ns();
    if (now < ucx->tell_ns) {
        return;
    }
    ucx->tell_ns = now + (uint64_t)(ucx->peer_timeout_sec * 1e9 * TELL_SHARE);
    for (int r = 0; r < ucx->base.world; r++) {
        const tw_p2p_counts_t counts = tw_p2p_peer_counts(tw_p2p_peer_find(ucx->p2p, r));
        const uint64_t n = counts.n_received + counts.n_reads;
        if (n != ucx->n_heard[r]) {
            ucx->n_heard[r] = n;
            tw_monitor_heard(ucx->monitor, r);
        }
    }
}

tw_status_t tw_ucx_progress(tw_transport_t *transport)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    tw_status_t status = tw_p2p_progress(ucx->p2p);
    if (status == TW_OK) {
        tell_heard(ucx);
    }
    return status;
}

static int any_left(const tw_ucx_transport_t *ucx)
{
    uint64_t count;
    for (int r = 0; r < ucx->base.world; r++) {
        if (tw_monitor_gone(ucx->monitor, r, &count)) {
            return 1;
        }
    }
    return 0;
}

/** Until a message, a verdict or a wake-up. */
static tw_status_t sleep_until(tw_ucx_transport_t *ucx, double timeout_sec, int keeps_wakes)
{
    tw_p2p_sleep_args_t sleep = {
        .timeout_sec = timeout_sec, .fd = tw_monitor_event_fd(ucx->monitor), .keeps_wakes = keeps_wakes};
    if (timeout_sec > LEFT_SLEEP_SEC && any_left(ucx)) {
        sleep.timeout_sec = LEFT_SLEEP_SEC;
    }
    tw_status_t status = tw_p2p_sleep(ucx->p2p, &sleep);
    if (sleep.fd_is_ready) {
        tw_monitor_clear_event(ucx->monitor);
    }
    return status;
}

tw_status_t tw_ucx_sleep(tw_transport_t *transport, double timeout_sec)
{
    return sleep_until(tw_ucx_of(transport), timeout_sec, 0);
}

tw_status_t tw_ucx_nap(tw_ucx_transport_t *ucx, double timeout_sec)
{
    return sleep_until(ucx, timeout_sec, 1);
}

void tw_ucx_wake(tw_transport_t *transport)
{
    tw_p2p_wake(tw_ucx_of(transport)->p2p);
}
