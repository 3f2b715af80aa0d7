/** Messages between ranks, including those to or from a rank that has left. */
#include "transport/ranks/state.h"

/** Longest sleep while a rank that has left may still be needed: its silence is judged between sleeps. */
#define LEFT_SLEEP_SEC 0.1
/** Time between two checks of which ranks have sent something, as a share of the timeout. */
#define TELL_SHARE 0.02

tw_status_t tw_ranks_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                               tw_transport_request_t **out)
{
    tw_p2p_peer_t *peer = tw_p2p_peer_find(tw_ranks_of(transport)->p2p, message->peer);
    return tw_p2p_send(peer, message, (tw_p2p_request_t **)out);
}

tw_status_t tw_ranks_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                               tw_transport_request_t **out)
{
    tw_p2p_peer_t *peer = tw_p2p_peer_find(tw_ranks_of(transport)->p2p, message->peer);
    return tw_p2p_recv(peer, message, (tw_p2p_request_t **)out);
}

/** Return what is known of a peer that has left: whether all its messages have arrived, or it has been silent
 *  for so long that nothing more can come. Returns NULL if the peer has not left. */
static const tw_ranks_departed_t *look_at_departed(tw_ranks_t *ranks, const tw_p2p_peer_t *peer)
{
    uint64_t count;
    const int rank = tw_p2p_peer_id(peer);
    tw_ranks_departed_t *departed = &ranks->departed[rank];
    if (rank == ranks->base.rank || !tw_monitor_gone(ranks->monitor, rank, &count)) {
        return NULL;
    }
    const uint64_t now = tw_time_ns(), n_received = tw_p2p_peer_counts(peer).n_received;
    if (!departed->heard_ns || n_received != departed->n_received) {
        departed->heard_ns = now;
        departed->n_received = n_received;
    }
    departed->all_said = n_received >= count;
    departed->silent = (double)(now - departed->heard_ns) * 1e-9 > ranks->peer_timeout_sec;
    return departed;
}

/** Return 1 if a message can never end because its rank has left. The job must then end. */
static int is_hopeless(tw_ranks_t *ranks, const tw_p2p_request_t *request)
{
    const tw_ranks_departed_t *departed = look_at_departed(ranks, tw_p2p_request_peer(request));
    if (!departed) {
        return 0;
    }
    const tw_p2p_need_t needs = tw_p2p_request_needs(request);
    return departed->silent || needs == TW_P2P_NEEDS_LOST ||
           (departed->all_said && needs == TW_P2P_NEEDS_ANSWER);
}

tw_status_t tw_ranks_test(tw_transport_t *transport, tw_transport_request_t *opaque, size_t *bytes)
{
    tw_ranks_t *ranks = tw_ranks_of(transport);
    tw_p2p_request_t *request = (tw_p2p_request_t *)opaque;
    if (!tw_p2p_request_is_done(request) && !tw_ranks_job_failed(ranks) && is_hopeless(ranks, request)) {
        tw_monitor_fail(ranks->monitor, tw_p2p_peer_id(tw_p2p_request_peer(request)),
                        tw_p2p_request_is_send(request)
                            ? "it has left the job while a message was on its way to it"
                            : "it has left the job while a message was awaited from it");
    }
    return tw_p2p_test(ranks->p2p, request, bytes);
}

void tw_ranks_cancel(tw_transport_t *transport, tw_transport_request_t *opaque)
{
    tw_p2p_cancel(tw_ranks_of(transport)->p2p, (tw_p2p_request_t *)opaque);
}

/** Tell the monitor which ranks have sent something, more often than it sends heartbeats. Parts of messages
 *  count, because on a slow link a whole message takes longer than a rank may be silent. */
static void tell_heard(tw_ranks_t *ranks)
{
    const uint64_t now = tw_time_ns();
    if (now < ranks->tell_ns) {
        return;
    }
    ranks->tell_ns = now + (uint64_t)(ranks->peer_timeout_sec * 1e9 * TELL_SHARE);
    for (int r = 0; r < ranks->base.world; r++) {
        const tw_p2p_counts_t counts = tw_p2p_peer_counts(tw_p2p_peer_find(ranks->p2p, r));
        const uint64_t n = counts.n_received + counts.n_reads;
        if (n != ranks->n_heard[r]) {
            ranks->n_heard[r] = n;
            tw_monitor_heard(ranks->monitor, r);
        }
    }
}

tw_status_t tw_ranks_progress(tw_transport_t *transport)
{
    tw_ranks_t *ranks = tw_ranks_of(transport);
    tw_status_t status = tw_p2p_progress(ranks->p2p);
    if (status == TW_OK) {
        tell_heard(ranks);
    }
    return status;
}

static int any_left(const tw_ranks_t *ranks)
{
    uint64_t count;
    for (int r = 0; r < ranks->base.world; r++) {
        if (tw_monitor_gone(ranks->monitor, r, &count)) {
            return 1;
        }
    }
    return 0;
}

/** Sleep until a message or a wake-up call comes, a rank has failed or left, or the timeout has passed. */
static tw_status_t sleep_until(tw_ranks_t *ranks, double timeout_sec, int keeps_wakes)
{
    tw_p2p_sleep_args_t sleep = {
        .timeout_sec = timeout_sec, .fd = tw_monitor_event_fd(ranks->monitor), .keeps_wakes = keeps_wakes};
    if (timeout_sec > LEFT_SLEEP_SEC && any_left(ranks)) {
        sleep.timeout_sec = LEFT_SLEEP_SEC;
    }
    tw_status_t status = tw_p2p_sleep(ranks->p2p, &sleep);
    if (sleep.fd_is_ready) {
        tw_monitor_clear_event(ranks->monitor);
    }
    return status;
}

tw_status_t tw_ranks_sleep(tw_transport_t *transport, double timeout_sec)
{
    return sleep_until(tw_ranks_of(transport), timeout_sec, 0);
}

tw_status_t tw_ranks_nap(tw_ranks_t *ranks, double timeout_sec)
{
    return sleep_until(ranks, timeout_sec, 1);
}

void tw_ranks_wake(tw_transport_t *transport)
{
    tw_p2p_wake(tw_ranks_of(transport)->p2p);
}
