/** A connection's socket: watching, reading, writing and dropping it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/p2p/tcp.h"

/** A link leaves epoll after this many polls, and returns after this many rounds without a poll. */
#define ASKED_OFTEN 32
#define ROUNDS_UNASKED 4

tw_tcp_link_t *tw_tcp_link_create(tw_tcp_device_t *device, int fd, tw_tcp_stage_t stage)
{
    tw_tcp_link_t *link = calloc(1, sizeof(*link));
    TW_FAIL_IF(!link, NULL, "%s: out of memory for a connection", device->worker->p2p->name);
    link->device = device;
    link->fd = fd;
    link->stage = stage;
    device->n_timed++;
    TAILQ_INSERT_TAIL(&device->links, link, entry);
    return link;
}

int tw_tcp_watch(tw_tcp_link_t *link)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = link};
    link->device->n_aside -= link->is_aside;
    link->is_aside = link->n_asked = 0;
    if (!epoll_ctl(link->device->epoll_fd, EPOLL_CTL_ADD, link->fd, &event)) {
        return 1;
    }
    return tw_fail(0, "%s: no way to be told of a connection: %s", link->device->worker->p2p->name,
                   strerror(errno));
}

void tw_tcp_note_asked(tw_tcp_link_t *link)
{
    link->n_rounds = 0;
    if (!link->is_aside && ++link->n_asked >= ASKED_OFTEN &&
        !epoll_ctl(link->device->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL)) {
        link->is_aside = 1;
        link->device->n_aside++;
    }
}

void tw_tcp_watch_again(tw_tcp_device_t *device, int all)
{
    tw_tcp_link_t *link, *next;
    for (link = TAILQ_FIRST(&device->links); link; link = next) {
        next = TAILQ_NEXT(link, entry);
        if (link->is_aside && (++link->n_rounds > ROUNDS_UNASKED || all) && !tw_tcp_watch(link)) {
            tw_tcp_break(link, "out of memory");
        }
    }
}

void tw_tcp_set_ready(tw_tcp_link_t *link, int is_ready)
{
    if (is_ready && !link->is_ready) {
        TAILQ_INSERT_TAIL(&link->device->ready, link, ready);
    } else if (!is_ready && link->is_ready) {
        TAILQ_REMOVE(&link->device->ready, link, ready);
    }
    link->is_ready = is_ready;
}

void tw_tcp_free_closed(tw_tcp_device_t *device)
{
    tw_tcp_link_t *link;
    while ((link = TAILQ_FIRST(&device->closed))) {
        TAILQ_REMOVE(&device->closed, link, entry);
        tw_greeting_cleanup(&link->greeting);
        tw_seal_destroy(link->seal[0]);
        tw_seal_destroy(link->seal[1]);
        free(link->piece);
        free(link->out);
        free(link);
    }
}

static int is_stranger(const tw_tcp_link_t *link)
{
    return (link->stage == TW_TCP_HELLO || link->stage == TW_TCP_PROOF) && !link->stream;
}

void tw_tcp_drop(tw_tcp_link_t *link)
{
    tw_tcp_device_t *device = link->device;
    if (link->stage == TW_TCP_CLOSED) {
        return;
    }
    device->n_strangers -= is_stranger(link);
    device->n_timed -= link->stage != TW_TCP_OPEN;
    device->n_aside -= link->is_aside;
    link->is_aside = 0;
    tw_tcp_set_ready(link, 0);
    if (link->fd >= 0) {
        close(link->fd);
    }
    link->fd = -1;
    link->stage = TW_TCP_CLOSED;
    TAILQ_REMOVE(&device->links, link, entry);
    TAILQ_INSERT_TAIL(&device->closed, link, entry);
}

void tw_tcp_let_go(tw_tcp_link_t *link)
{
    tw_p2p_stream_t *stream = link->stream;
    if (stream) {
        tw_p2p_landing_lose(stream->peer, &link->landing);
        stream->link = NULL;
    }
    link->stream = NULL;
}

void tw_tcp_break(tw_tcp_link_t *link, const char *why)
{
    tw_p2p_stream_t *stream = link->stream;
    tw_tcp_drop(link);
    tw_tcp_let_go(link);
    if (stream) {
        tw_p2p_stream_break(stream, why);
    }
}

/* ---- reading and writing ------------------------------------------------------------------------------- */

ssize_t tw_tcp_read(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)pieces, .msg_iovlen = (size_t)n_pieces};
    ssize_t got;
    do { /* recvmsg takes longer for a single piece */
        got = n_pieces == 1 ? recv(link->fd, pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                            : recvmsg(link->fd, &message, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        link->n_read += (uint64_t)got;
        return got;
    }
    tw_tcp_set_ready(link, 0);
    *error = got < 0 ? errno : 0;
    return got < 0 && errno == EAGAIN ? 0 : -1;
}

int tw_tcp_out_reserve(tw_tcp_link_t *link, size_t capacity)
{
    return tw_grow(&link->out, &link->out_capacity, capacity, 1);
}

int tw_tcp_out_add(tw_tcp_link_t *link, const void *data, size_t bytes)
{
    if (!tw_tcp_out_reserve(link, link->out_end + bytes)) {
        return 0;
    }
    memcpy(link->out + link->out_end, data, bytes);
    link->out_end += bytes;
    return 1;
}

ssize_t tw_tcp_write(tw_tcp_link_t *link, const struct iovec *pieces, int n_pieces, int *error)
{
    const struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)pieces,
                                   .msg_iovlen = (size_t)n_pieces};
    ssize_t sent;
    do {
        sent = n_pieces == 1
                   ? send(link->fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                   : sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        link->n_written += (uint64_t)sent;
        return sent;
    }
    link->can_write = 0;
    *error = errno;
    return errno == EAGAIN ? 0 : -1;
}

tw_status_t tw_tcp_out_flush(tw_tcp_link_t *link, int *error)
{
    while (link->out_start < link->out_end) {
        const struct iovec piece = {link->out + link->out_start, link->out_end - link->out_start};
        const ssize_t sent = tw_tcp_write(link, &piece, 1, error);
        if (sent <= 0) {
            return sent ? TW_ERR_IO : TW_IN_PROGRESS;
        }
        link->out_start += (size_t)sent;
    }
    link->out_start = link->out_end = 0;
    return TW_OK;
}
