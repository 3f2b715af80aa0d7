/** Closes connections. */
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/p2p/tcp.h"

/** Pause between two checks whether all bytes have gone out. */
#define LOOK_MS 1

void tw_tcp_close(tw_p2p_stream_t *stream, int is_orderly)
{
    tw_tcp_link_t *link = stream->link;
    if (!link) {
        return;
    }
    const int leaves =
        is_orderly && link->stage == TW_TCP_OPEN && !stream->broken && tw_tcp_out_add_waiting(link);
    tw_tcp_let_go(link);
    if (!leaves) {
        tw_tcp_drop(link);
        return;
    }
    if (link->is_aside && !tw_tcp_watch(link)) {
        tw_tcp_drop(link);
        return;
    }
    link->stage = TW_TCP_LEAVING;
    link->device->n_timed++;
    link->until_ns = tw_p2p_deadline(link->device->worker->p2p);
    tw_tcp_set_ready(link, 1);
    (void)tw_tcp_leave(link);
}

int tw_tcp_leave(tw_tcp_link_t *link)
{
    int error = 0;
    const struct iovec nowhere = {link->device->scratch, TW_TCP_PIECE_BYTES};
    tw_status_t status = tw_tcp_out_flush(link, &error);
    if (!status && !link->is_shut) {
        link->is_shut = 1;
        (void)shutdown(link->fd, SHUT_WR);
    }
    const ssize_t got = tw_tcp_read(link, &nowhere, 1, &error);
    if (status < 0 || got < 0) {
        tw_tcp_drop(link);
    }
    return got > 0;
}

/** Return 1 if some sent bytes have not reached the other end's kernel yet. */
static int has_more(const tw_tcp_link_t *link)
{
    int unsent = 0;
    return link->stage == TW_TCP_LEAVING &&
           (!link->is_shut || (!ioctl(link->fd, SIOCOUTQ, &unsent) && unsent));
}

static int any_has_more(const tw_tcp_device_t *device)
{
    const tw_tcp_link_t *link;
    TAILQ_FOREACH(link, &device->links, entry)
    {
        if (has_more(link)) {
            return 1;
        }
    }
    return 0;
}

/** Wait for closing connections, each until its own deadline. Do not wait if a peer with messages under way
 *  was closed recently. */
void tw_tcp_await_leaving(tw_tcp_device_t *device)
{
    const tw_p2p_t *p2p = device->worker->p2p;
    const uint64_t recent_ns = (uint64_t)(p2p->params.timeout_sec * 1e9);
    if (p2p->aborted_ns && tw_time_ns() - p2p->aborted_ns < recent_ns) {
        return;
    }
    while (any_has_more(device)) {
        (void)device->worker->carrier->progress(device->worker);
        (void)poll(NULL, 0, LOOK_MS);
    }
}
