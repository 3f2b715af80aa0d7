/* The plainest peer: one TCP socket for each connection, a length before each message, nothing else. A
 * transport that is to be worth its while must not be slower. In the form of a plugin's table, so that it is
 * driven as the others are.
 *
 * It keeps what NCCL's interface asks for, as NCCL's own sockets do: messages with their real size (so a
 * length comes first, and what follows is read once that is known), no copies, no call that waits. It is
 * quicker than those where they leave room: it begins in isend and irecv and not in the first test, sends
 * length and data by one call, in one packet (NCCL's: up to 128 bytes only), and goes on with the next
 * message in the same call. Tags and groups of receives it has not. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bench/net/net.h"

#define REQUESTS 64

typedef struct tcp_comm tcp_comm_t;

typedef struct tcp_request {
    tcp_comm_t *comm;
    int is_used;
    uint64_t length; /* as it travels */
    char *data;
    size_t bytes, moved; /* moved: the length's bytes included */
} tcp_request_t;

/* Requests are done in the order in which they were made: a ring. */
struct tcp_comm {
    int fd, is_send;
    unsigned first, next;
    tcp_request_t ring[REQUESTS];
};

typedef struct tcp_handle {
    struct sockaddr_in6 address;
    int fd; /* of whoever connects, while it does; 0: not begun */
} tcp_handle_t;

static tw_nccl_result_t failed(const char *what)
{
    tw_error("bench: tcp: %s: %s", what, strerror(errno));
    return TW_NCCL_SYSTEM_ERROR;
}

/* ---- connections --------------------------------------------------------------------------------------- */

static tw_nccl_result_t tcp_init(void **context, uint64_t id, tw_nccl_net_config_t *config,
                                 tw_nccl_logger_t logger, tw_nccl_profiler_t profiler)
{
    (void)id, (void)config, (void)logger, (void)profiler;
    *context = NULL;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t tcp_devices(int *n)
{
    *n = 1;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t tcp_listen(void *context, int dev, void *handle_bytes, void **out)
{
    tcp_handle_t handle = {.fd = 0};
    socklen_t bytes = sizeof(handle.address);
    char host[TW_CLUSTER_ADDRESS_BYTES];
    const char *rank = getenv("RANK");
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    (void)context, (void)dev;
    handle.address = net_end_address(tw_cluster_node_address(rank ? atoi(rank) : 0, host), 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&handle.address, bytes) || listen(fd, 1) ||
        getsockname(fd, (struct sockaddr *)&handle.address, &bytes)) {
        return failed("listen");
    }
    memset(handle_bytes, 0, TW_NCCL_HANDLE_BYTES);
    memcpy(handle_bytes, &handle, sizeof(handle));
    *out = (void *)(uintptr_t)(unsigned)fd;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t make_comm(int fd, int is_send, void **out)
{
    tcp_comm_t *comm = calloc(1, sizeof(*comm));
    const int yes = 1;

    if (!comm) {
        return failed("calloc");
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    comm->fd = fd;
    comm->is_send = is_send;
    *out = comm;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t tcp_connect(void *context, int dev, void *handle_bytes, void **out, void **device)
{
    tcp_handle_t handle;

    (void)context, (void)dev, (void)device;
    memcpy(&handle, handle_bytes, sizeof(handle));
    if (!handle.fd) {
        handle.fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        memcpy(handle_bytes, &handle, sizeof(handle));
    }
    if (connect(handle.fd, (const struct sockaddr *)&handle.address, sizeof(handle.address)) &&
        errno != EISCONN) {
        return errno == EINPROGRESS || errno == EALREADY ? TW_NCCL_SUCCESS : failed("connect");
    }
    return make_comm(handle.fd, 1, out);
}

static tw_nccl_result_t tcp_accept(void *listener, void **out, void **device)
{
    const int fd = accept4((int)(uintptr_t)listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)device;
    if (fd < 0) {
        return errno == EAGAIN ? TW_NCCL_SUCCESS : failed("accept");
    }
    return make_comm(fd, 0, out);
}

static tw_nccl_result_t tcp_close(void *comm)
{
    close(((tcp_comm_t *)comm)->fd);
    free(comm);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t tcp_close_listen(void *listener)
{
    close((int)(uintptr_t)listener);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t tcp_finalize(void *context)
{
    (void)context;
    return TW_NCCL_SUCCESS;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static int is_done(const tcp_request_t *request)
{
    return request->moved == sizeof(request->length) + request->bytes;
}

/** As much as the socket takes: of the length first, then of the data. */
static ssize_t send_some(const tcp_comm_t *comm, tcp_request_t *request)
{
    const size_t head = sizeof(request->length);
    const size_t of_head = request->moved < head ? request->moved : head, of_data = request->moved - of_head;
    struct iovec spans[] = {{(char *)&request->length + of_head, head - of_head},
                            {request->data + of_data, request->bytes - of_data}};
    const struct msghdr message = {.msg_iov = spans, .msg_iovlen = 2};

    return sendmsg(comm->fd, &message, MSG_NOSIGNAL);
}

/** Of the length first: it says how much data there is. */
static ssize_t receive_some(const tcp_comm_t *comm, tcp_request_t *request)
{
    const size_t head = sizeof(request->length);

    return request->moved < head
               ? recv(comm->fd, (char *)&request->length + request->moved, head - request->moved, 0)
               : recv(comm->fd, request->data + (request->moved - head),
                      request->bytes - (request->moved - head), 0);
}

/** The length has come: the message is as long. 0: there is no room for it. */
static int take_length(tcp_request_t *request)
{
    const int fits = request->length <= request->bytes;

    request->bytes = fits ? (size_t)request->length : request->bytes;
    return fits;
}

/** Bytes, 0 for none, -1. */
static ssize_t move_some(const tcp_comm_t *comm, tcp_request_t *request)
{
    const ssize_t n = comm->is_send ? send_some(comm, request) : receive_some(comm, request);

    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        return -1;
    }
    return n < 0 ? 0 : n;
}

static tw_nccl_result_t progress(tcp_comm_t *comm)
{
    while (comm->first != comm->next) {
        tcp_request_t *request = &comm->ring[comm->first % REQUESTS];
        const ssize_t n = is_done(request) ? 1 : move_some(comm, request);
        if (n <= 0) {
            return n < 0 ? failed("a message") : TW_NCCL_SUCCESS;
        }
        request->moved += is_done(request) ? 0 : (size_t)n;
        if (!comm->is_send && request->moved == sizeof(request->length) && !take_length(request)) {
            return failed("a message longer than its receive");
        }
        comm->first += is_done(request);
    }
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t post(tcp_comm_t *comm, void *data, size_t bytes, void **out)
{
    tcp_request_t *request = &comm->ring[comm->next % REQUESTS];

    *out = NULL;
    if (request->is_used) {
        return TW_NCCL_SUCCESS;
    }
    *request = (tcp_request_t){
        .comm = comm, .is_used = 1, .length = bytes, .data = data, .bytes = bytes, .moved = 0};
    comm->next++;
    *out = request;
    return progress(comm);
}

static tw_nccl_result_t tcp_send(void *comm, void *data, size_t bytes, int tag, void *mhandle, void *phandle,
                                 void **request)
{
    (void)tag, (void)mhandle, (void)phandle;
    return post(comm, data, bytes, request);
}

static tw_nccl_result_t tcp_recv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                 void **phandles, void **request)
{
    (void)n, (void)tags, (void)mhandles, (void)phandles;
    return post(comm, data[0], sizes[0], request);
}

static tw_nccl_result_t tcp_test(void *opaque, int *done, int *size)
{
    tcp_request_t *request = opaque;
    const tw_nccl_result_t result = progress(request->comm);

    *done = is_done(request);
    if (*done) {
        *size = (int)request->length;
        request->is_used = 0;
    }
    return result;
}

const tw_nccl_net_v12_t net_tcp = {
    .name = "tcp",
    .init = tcp_init,
    .devices = tcp_devices,
    .listen = tcp_listen,
    .connect = tcp_connect,
    .accept = tcp_accept,
    .isend = tcp_send,
    .irecv = tcp_recv,
    .test = tcp_test,
    .close_send = tcp_close,
    .close_recv = tcp_close,
    .close_listen = tcp_close_listen,
    .finalize = tcp_finalize,
};
