/** Makes progress on everything, sleeps until there is work, and wakes up sleepers. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "transport/p2p/state.h"

/** After this many calls for one request, there is one round of progress for everything. */
#define ALL_EVERY 16

tw_status_t tw_p2p_sleep_init(tw_p2p_t *p2p)
{
    p2p->pollfds = calloc(2 + (size_t)p2p->n_workers, sizeof(*p2p->pollfds));
    TW_FAIL_IF(!p2p->pollfds, TW_ERR_NO_MEMORY, "%s: out of memory for what to sleep on", p2p->name);
    p2p->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p2p->wake_fd >= 0) {
        return TW_OK;
    }
    const int error = errno;
    tw_error("%s: no descriptor to be woken by: %s", p2p->name, strerror(error));
    return tw_status_from_errno(error);
}

void tw_p2p_sleep_cleanup(tw_p2p_t *p2p)
{
    free(p2p->pollfds);
    if (p2p->wake_fd >= 0) {
        close(p2p->wake_fd);
    }
}

tw_status_t tw_p2p_progress(tw_p2p_t *p2p)
{
    if (tw_p2p_is_over(p2p)) {
        return TW_ERR_PEER;
    }
    p2p->n_events = 0;
    const unsigned n_done = tw_p2p_workers_progress(p2p) + (p2p->meet ? p2p->meet(p2p) : 0);
    tw_p2p_pump(p2p);
    return n_done || p2p->n_events ? TW_OK : TW_IN_PROGRESS;
}

/** Return the only stream that a request needs, for its data or for the answer; NULL if there are several. */
static tw_p2p_stream_t *stream_of(const tw_p2p_request_t *request)
{
    tw_p2p_peer_t *peer = request->peer;
    const int goes_in_chunks = request->is_send && request->stage == TW_P2P_STAGE_MOVING && request->number;
    if (goes_in_chunks || !tw_p2p_peer_is_over_tcp(peer) || peer->n_streams > 2) {
        return NULL;
    }
    return !request->is_send && request->number ? &peer->streams[peer->n_streams - 1] : &peer->streams[0];
}

/** Send, or read, on a stream. Returns the number of things done that n_events does not count. */
static unsigned move_stream(tw_p2p_t *p2p, tw_p2p_stream_t *stream, int is_sending)
{
    if (is_sending) {
        tw_p2p_stream_flush(stream);
        return 0;
    }
    p2p->in_callback = 1;
    const unsigned n_done = stream->worker->carrier->receive(stream, 1);
    p2p->in_callback = 0;
    tw_p2p_pump(p2p);
    return n_done;
}

tw_status_t tw_p2p_progress_for(tw_p2p_t *p2p, const tw_p2p_request_t *request)
{
    tw_p2p_stream_t *stream = stream_of(request);
    if (!stream || ++p2p->n_for_one == ALL_EVERY) {
        p2p->n_for_one = 0;
        return tw_p2p_progress(p2p);
    }
    if (tw_p2p_is_over(p2p)) {
        return TW_ERR_PEER;
    }
    p2p->n_events = 0;
    const unsigned n_done =
        move_stream(p2p, stream, request->is_send && request->stage == TW_P2P_STAGE_MOVING);
    return n_done || p2p->n_events ? TW_OK : TW_IN_PROGRESS;
}

/** Prepare to sleep. Returns 1 if there is something to read or to send already, so do not sleep. */
static int arm(tw_p2p_t *p2p)
{
    const tw_p2p_stream_t *stream;
    TAILQ_FOREACH(stream, &p2p->busy_streams, busy)
    if (stream->gathers) {
        return 1;
    }
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier && p2p->workers[i].carrier->arm(&p2p->workers[i])) {
            return 1;
        }
    }
    return 0;
}

static tw_status_t spin(tw_p2p_t *p2p, double sec)
{
    const uint64_t until_ns = tw_connection_deadline(sec);
    tw_status_t status;
    do {
        status = tw_p2p_progress(p2p);
    } while (status == TW_IN_PROGRESS && tw_time_ns() < until_ns);
    return status;
}

/** Return the seconds until the next check of TCP connections. */
static double until_watch_sec(const tw_p2p_t *p2p)
{
    const uint64_t now = tw_time_ns();
    return p2p->watch_ns > now ? (double)(p2p->watch_ns - now) * 1e-9 : 0;
}

/** Sleep until a message arrives, or wake_fd or sleep->fd is readable. Either descriptor may be -1. */
static tw_status_t sleep_until(tw_p2p_t *p2p, int wake_fd, tw_p2p_sleep_args_t *sleep)
{
    const double spin_sec = p2p->params.spin_sec;
    double timeout_sec = sleep->timeout_sec;
    nfds_t n = 0;
    tw_status_t status = spin(p2p, spin_sec < timeout_sec ? spin_sec : timeout_sec);
    if (status != TW_IN_PROGRESS) {
        return status;
    }
    if (arm(p2p)) {
        return TW_OK;
    }
    const int is_cut = p2p->n_watched && until_watch_sec(p2p) < timeout_sec;
    timeout_sec = is_cut ? until_watch_sec(p2p) : timeout_sec;
    p2p->pollfds[n++] = (struct pollfd){.fd = sleep->fd, .events = POLLIN};
    p2p->pollfds[n++] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (int i = 0; i < p2p->n_workers; i++) {
        if (p2p->workers[i].carrier) {
            p2p->pollfds[n++] = (struct pollfd){.fd = p2p->workers[i].event_fd, .events = POLLIN};
        }
    }
    const struct timespec timeout = {(time_t)timeout_sec,
                                     (long)((timeout_sec - (double)(time_t)timeout_sec) * 1e9)};
    const int ready = ppoll(p2p->pollfds, n, &timeout, NULL);
    sleep->fd_is_ready = ready > 0 && p2p->pollfds[0].revents != 0;
    if (p2p->pollfds[1].revents) {
        (void)eventfd_read(wake_fd, &(eventfd_t){0});
    }
    if (tw_p2p_is_over(p2p)) {
        return TW_ERR_PEER;
    }
    return ready > 0 || is_cut ? TW_OK : TW_IN_PROGRESS;
}

tw_status_t tw_p2p_sleep(tw_p2p_t *p2p, tw_p2p_sleep_args_t *sleep)
{
    sleep->fd_is_ready = 0;
    return sleep_until(p2p, sleep->keeps_wakes ? -1 : p2p->wake_fd, sleep);
}

void tw_p2p_nap(tw_p2p_t *p2p, double timeout_sec)
{
    tw_p2p_sleep_args_t sleep = {.timeout_sec = timeout_sec, .fd = -1, .keeps_wakes = 1};
    (void)tw_p2p_sleep(p2p, &sleep);
}

void tw_p2p_wake(tw_p2p_t *p2p)
{
    (void)eventfd_write(p2p->wake_fd, 1); /* fails only if the descriptor is readable already */
}
