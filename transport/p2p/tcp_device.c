/** A network device: its port, its part of the card, and progress. */
#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/control/socket.h"
#include "transport/p2p/tcp.h"

#define EVENTS_AT_ONCE 64

static tw_status_t device_failed(const tw_tcp_device_t *device, const char *what, int error)
{
    tw_error("%s: %s: %s: %s", device->worker->p2p->name, device->name, what, strerror(error));
    return tw_status_from_errno(error);
}

static int watch_listener(tw_tcp_device_t *device, int operation)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = device};
    return epoll_ctl(device->epoll_fd, operation, device->listener, &event);
}

/** Accept waiting connections. If descriptors have run out, stop listening for a while, as epoll would report
 *  the waiting ones again and again. */
static void accept_new(tw_tcp_device_t *device)
{
    tw_tcp_accept(device);
    if (device->accept_ns) {
        (void)watch_listener(device, EPOLL_CTL_DEL);
    }
}

static void accept_again(tw_tcp_device_t *device)
{
    if (device->listener >= 0 && device->accept_ns && tw_time_ns() > device->accept_ns) {
        device->accept_ns = 0;
        (void)watch_listener(device, EPOLL_CTL_ADD);
    }
}

static void note_event(const struct epoll_event *event)
{
    tw_tcp_link_t *link = event->data.ptr;
    if (link->stage == TW_TCP_CLOSED) {
        return;
    }
    link->can_write |= (event->events & EPOLLOUT) != 0;
    link->has_end |= (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    tw_tcp_set_ready(link,
                     link->is_ready || (event->events & ~(uint32_t)EPOLLOUT) || link->stage != TW_TCP_OPEN);
    if (link->stream && link->stage == TW_TCP_OPEN &&
        (link->out_end || !TAILQ_EMPTY(&link->stream->waiting))) {
        tw_p2p_stream_set_busy(link->stream, 1);
    }
}

static int device_serve(tw_tcp_link_t *link)
{
    if (link->stage == TW_TCP_OPEN) {
        return tw_tcp_receive(link);
    }
    return link->stage == TW_TCP_LEAVING ? tw_tcp_leave(link) : tw_tcp_greet(link);
}

static unsigned tcp_progress(tw_p2p_worker_t *worker)
{
    tw_tcp_device_t *device = worker->tcp;
    struct epoll_event events[EVENTS_AT_ONCE];
    tw_tcp_link_t *link, *next;
    unsigned n_done = 0;
    const int n = epoll_wait(device->epoll_fd, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == device) {
            accept_new(device);
        } else {
            note_event(&events[i]);
        }
        n_done++;
    }
    for (link = TAILQ_FIRST(&device->ready); link; link = next) {
        next = TAILQ_NEXT(link, ready);
        n_done += (unsigned)device_serve(link);
    }
    if (device->n_timed) {
        tw_tcp_look_at_clock(device);
    }
    if (device->n_aside) {
        tw_tcp_watch_again(device, 0);
    }
    accept_again(device);
    tw_tcp_free_closed(device);
    return n_done;
}

/** Prepare to sleep. Returns 1 if something happened: a connection that cannot return to epoll is broken. */
static int tcp_arm(tw_p2p_worker_t *worker)
{
    const int n_before = worker->p2p->n_events;
    if (worker->tcp->n_aside) {
        tw_tcp_watch_again(worker->tcp, 1);
    }
    return worker->p2p->n_events != n_before || !TAILQ_EMPTY(&worker->tcp->ready);
}

static void tcp_shut(tw_p2p_worker_t *worker)
{
    tw_tcp_device_t *device = worker->tcp;
    tw_tcp_link_t *link, *next;
    if (device->listener < 0) {
        return;
    }
    close(device->listener);
    device->listener = -1;
    for (link = TAILQ_FIRST(&device->links); link; link = next) {
        next = TAILQ_NEXT(link, entry);
        if (link->stage == TW_TCP_HELLO || link->stage == TW_TCP_PROOF) {
            tw_tcp_drop(link);
        }
    }
    tw_tcp_free_closed(device);
}

static void tcp_destroy(tw_p2p_worker_t *worker)
{
    tw_tcp_device_t *device = worker->tcp;
    tw_tcp_link_t *link;
    if (device->epoll_fd >= 0) {
        tw_tcp_await_leaving(device);
    }
    while ((link = TAILQ_FIRST(&device->links))) {
        tw_tcp_drop(link);
    }
    tw_tcp_free_closed(device);
    if (device->listener >= 0) {
        close(device->listener);
    }
    if (device->epoll_fd >= 0) {
        close(device->epoll_fd);
    }
    free(device->scratch);
    free(worker->address);
    free(device);
}

static const tw_p2p_carrier_t tcp = {.is_tcp = 1,
                                     .progress = tcp_progress,
                                     .arm = tcp_arm,
                                     .send = tw_tcp_send,
                                     .receive = tw_tcp_receive_now,
                                     .resume = tw_tcp_resume,
                                     .release = tw_tcp_release,
                                     .close = tw_tcp_close,
                                     .connect = tw_tcp_connect,
                                     .address_is_sound = tw_tcp_address_is_sound,
                                     .shut = tcp_shut,
                                     .hear_alive = tw_tcp_hear_alive,
                                     .destroy = tcp_destroy};

/** Set the device's part of the card: its port and addresses. */
static tw_status_t device_tell(tw_p2p_worker_t *worker)
{
    const tw_tcp_device_t *device = worker->tcp;
    const tw_tcp_address_t head = {.port = (uint16_t)tw_socket_port(device->listener),
                                   .n = (uint16_t)device->n_addresses};
    const size_t list_bytes = (size_t)device->n_addresses * sizeof(device->addresses[0]);
    worker->address = malloc(sizeof(head) + list_bytes);
    TW_FAIL_IF(!worker->address, TW_ERR_NO_MEMORY, "%s: out of memory for its addresses", worker->p2p->name);
    worker->address_bytes = sizeof(head) + list_bytes;
    memcpy(worker->address, &head, sizeof(head));
    memcpy((uint8_t *)worker->address + sizeof(head), device->addresses, list_bytes);
    return TW_OK;
}

static tw_status_t device_open(tw_tcp_device_t *device)
{
    device->scratch = malloc(TW_TCP_PIECE_BYTES);
    device->n_addresses = tw_net_device_addresses(device->name, device->addresses[0], TW_TCP_ADDRESSES_MAX);
    if (!device->scratch) {
        return device_failed(device, "no buffer", ENOMEM);
    }
    if (!device->n_addresses) {
        return device_failed(device, "no address", EADDRNOTAVAIL);
    }
    const int is_loopback = tw_net_address_kind(device->addresses[0]) >= TW_NET_KIND_LOOPBACK;
    device->listener = tw_socket_listen(is_loopback ? "localhost" : "", 0);
    if (device->listener < 0) {
        return device_failed(device, "cannot listen for peers", errno);
    }
    device->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (device->epoll_fd < 0 || watch_listener(device, EPOLL_CTL_ADD)) {
        return device_failed(device, "no descriptor to wait with", errno);
    }
    return TW_OK;
}

tw_status_t tw_tcp_create(tw_p2p_t *p2p, tw_p2p_worker_t *worker, const char *name)
{
    tw_tcp_device_t *device = calloc(1, sizeof(*device));
    TW_FAIL_IF(!device, TW_ERR_NO_MEMORY, "%s: out of memory for a device", p2p->name);
    device->worker = worker;
    device->listener = device->epoll_fd = -1;
    device->index = if_nametoindex(name);
    snprintf(device->name, sizeof(device->name), "%s", name);
    TAILQ_INIT(&device->links);
    TAILQ_INIT(&device->ready);
    TAILQ_INIT(&device->closed);
    worker->carrier = &tcp;
    worker->tcp = device;
    tw_status_t status = device_open(device);
    worker->event_fd = device->epoll_fd;
    return status ? status : device_tell(worker);
}
