/* What the kernel gives: send and recv in a loop, over one socket, nothing else. Bandwidth with calls that
 * wait, latency with calls that are repeated until something is there, as NCCL's thread does. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <netinet/tcp.h>

#include "bench/net/net.h"

/** As many buffers in turn as NCCL's steps. */
#define BUFFERS 8

static tw_status_t net_bare_failed(const char *what)
{
    return tw_fail(TW_ERR_IO, "bench: bare: %s: %s", what, strerror(errno));
}

/* ---- the connection ------------------------------------------------------------------------------------ */

/** On node 1. */
static int listen_any(const struct sockaddr_in6 *address, struct sockaddr_in6 *bound)
{
    socklen_t bytes = sizeof(*bound);
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && !bind(fd, (const struct sockaddr *)address, sizeof(*address)) && !listen(fd, 1) &&
        !getsockname(fd, (struct sockaddr *)bound, &bytes)) {
        return fd;
    }
    if (fd >= 0) {
        close(fd);
    }
    return -1;
}

static int connect_to(const struct sockaddr_in6 *address)
{
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address))) {
        close(fd);
        return -1;
    }
    return fd;
}

tw_status_t net_bare_open(const net_end_t *end, int *fd)
{
    char host[TW_CLUSTER_ADDRESS_BYTES];
    struct sockaddr_in6 address = net_end_address(tw_cluster_node_address(1, host), 0), bound = address;
    const int listener = end->rank ? listen_any(&address, &bound) : -1, yes = 1;
    double port = 0;

    *fd = -1;
    tw_status_t status = net_end_swap(end, listener >= 0 ? ntohs(bound.sin6_port) : 0, &port);
    if (!status && end->rank && listener >= 0) {
        *fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    } else if (!status && port > 0) {
        address.sin6_port = htons((uint16_t)port);
        *fd = connect_to(&address);
    } else {
        errno = ECONNREFUSED; /* of these two the one that listens cannot */
    }
    if (listener >= 0) {
        close(listener);
    }
    if (!status && *fd < 0) {
        return net_bare_failed("a connection");
    }
    (void)setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/** A whole message. flags: 0 to wait in the call, MSG_DONTWAIT to repeat it. */
static tw_status_t net_move(int fd, int is_send, uint8_t *data, size_t bytes, int flags)
{
    size_t done = 0;

    while (done < bytes) {
        const ssize_t n = is_send ? send(fd, data + done, bytes - done, flags | MSG_NOSIGNAL)
                                  : recv(fd, data + done, bytes - done, flags);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            errno = n == 0 ? ECONNRESET : errno;
            return net_bare_failed("a message");
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return TW_OK;
}

/** What comes does not lie where the next one goes from: that would be in the cache already. */
static tw_status_t measure_latency(const net_end_t *end, int fd, uint8_t *data, net_row_t *row, int n)
{
    tw_status_t status = net_end_meet(end);
    const double start = tw_time_sec();

    for (int i = 0; i < 2 * n && !status; i++) {
        const int is_send = i % 2 == end->rank;
        status = net_move(fd, is_send, is_send ? data : data + row->bytes, row->bytes, MSG_DONTWAIT);
    }
    row->latency_us = (tw_time_sec() - start) / (2 * n) * 1e6;
    return status;
}

static tw_status_t measure_bandwidth(const net_end_t *end, int fd, uint8_t *data, net_row_t *row, int n)
{
    double other = 0;
    tw_status_t status = net_end_meet(end);
    const double start = tw_time_sec();

    for (int i = 0; i < n && !status; i++) {
        status = net_move(fd, !end->rank, data + (size_t)(i % BUFFERS) * row->bytes, row->bytes, 0);
    }
    const double own = (double)row->bytes * n / (tw_time_sec() - start) * 1e-9;
    status = status ? status : net_end_swap(end, own, &other);
    row->bandwidth_GBps = end->rank ? own : other;
    return status;
}

tw_status_t net_bare_measure(const net_end_t *end, int fd, net_row_t *row, double seconds, double link_bps)
{
    const int n = net_n_messages(row, seconds, link_bps);
    uint8_t *data = tw_buffer_alloc_zero(BUFFERS * row->bytes);

    TW_FAIL_IF(!data, TW_ERR_NO_MEMORY, "bench: out of memory for messages of %zu bytes", row->bytes);
    tw_status_t status = measure_latency(end, fd, data, row, net_n_trips(n));
    status = status ? status : measure_bandwidth(end, fd, data, row, n);
    tw_buffer_free(data);
    return status;
}
