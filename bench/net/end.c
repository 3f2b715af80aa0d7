/* One end of the link. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/net/net.h"

#define MEET_SEC 20.0

extern const tw_nccl_net_v12_t ncclNetPlugin_v12;

/* ---- words between the ends --------------------------------------------------------------------------------- */

static tw_status_t failed(const char *what)
{
    tw_error("bench: %s: %s", what, strerror(errno));
    return TW_ERR_IO;
}

static struct sockaddr_in word_address(void)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    struct sockaddr_in address = {.sin_family = AF_INET};

    address.sin_port = htons((uint16_t)(port ? atoi(port) : 0));
    (void)inet_pton(AF_INET, host ? host : "127.0.0.1", &address.sin_addr);
    return address;
}

static tw_status_t wait_for_other(int *out)
{
    const struct sockaddr_in address = word_address();
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    int fd = -1;

    if (listener < 0) {
        return failed("socket");
    }
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!bind(listener, (const struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1)) {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    }
    tw_status_t status = fd < 0 ? failed("waiting for the other end") : TW_OK;
    close(listener);
    *out = fd;
    return status;
}

static tw_status_t go_to_other(int *out)
{
    const struct sockaddr_in address = word_address();
    const double until = tw_time_sec() + MEET_SEC;

    do {
        *out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*out >= 0 && !connect(*out, (const struct sockaddr *)&address, sizeof(address))) {
            return TW_OK;
        }
        if (*out >= 0) {
            close(*out);
        }
        *out = -1;
        usleep(20000);
    } while (tw_time_sec() < until);
    return failed("meeting the other end");
}

static tw_status_t swap(const net_end_t *end, const void *own, void *other, size_t bytes)
{
    if (send(end->word_fd, own, bytes, MSG_NOSIGNAL) != (ssize_t)bytes ||
        recv(end->word_fd, other, bytes, MSG_WAITALL) != (ssize_t)bytes) {
        return failed("a word with the other end");
    }
    return TW_OK;
}

tw_status_t net_end_swap(const net_end_t *end, double own, double *other)
{
    return swap(end, &own, other, sizeof(own));
}

tw_status_t net_end_meet(const net_end_t *end)
{
    double other;
    return net_end_swap(end, 0, &other);
}

/* ---- connections -------------------------------------------------------------------------------------------- */

static tw_status_t from_nccl(tw_nccl_result_t result, const char *what)
{
    if (result != TW_NCCL_SUCCESS) {
        tw_error("bench: %s: NCCL result %d", what, result);
        return TW_ERR_NCCL;
    }
    return TW_OK;
}

tw_status_t net_end_init(net_end_t *end)
{
    const char *rank = getenv("RANK");
    const int yes = 1;

    *end = (net_end_t){.rank = rank && rank[0] == '1', .word_fd = -1};
    tw_status_t status = end->rank ? go_to_other(&end->word_fd) : wait_for_other(&end->word_fd);
    if (status) {
        return status;
    }
    (void)setsockopt(end->word_fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    return from_nccl(ncclNetPlugin_v12.init(&end->context, 1, NULL, NULL, NULL), "init");
}

/* One in each direction. */
static tw_status_t connect_pair(net_end_t *end, int dev, void **sender, void **receiver)
{
    char own[TW_NCCL_HANDLE_BYTES], other[TW_NCCL_HANDLE_BYTES];
    void *listener = NULL, *device_handle = NULL;

    tw_status_t status = from_nccl(ncclNetPlugin_v12.listen(end->context, dev, own, &listener), "listen");
    if (status) {
        return status;
    }
    status = swap(end, own, other, sizeof(own));
    while (!status && (!*sender || !*receiver)) {
        if (!*sender) {
            status = from_nccl(ncclNetPlugin_v12.connect(end->context, dev, other, sender, &device_handle),
                               "connect");
        }
        if (!status && !*receiver) {
            status = from_nccl(ncclNetPlugin_v12.accept(listener, receiver, &device_handle), "accept");
        }
    }
    (void)ncclNetPlugin_v12.close_listen(listener);
    return status;
}

tw_status_t net_end_connect(net_end_t *end, int n_connections)
{
    int n_devices = 0;

    tw_status_t status = from_nccl(ncclNetPlugin_v12.devices(&n_devices), "devices");
    while (!status && end->n_connections < n_connections) {
        const int i = end->n_connections++;
        end->sender[i] = end->receiver[i] = NULL;
        status = connect_pair(end, i % n_devices, &end->sender[i], &end->receiver[i]);
    }
    return status;
}

void net_end_disconnect(net_end_t *end)
{
    for (; end->n_connections; end->n_connections--) {
        (void)ncclNetPlugin_v12.close_send(end->sender[end->n_connections - 1]);
        (void)ncclNetPlugin_v12.close_recv(end->receiver[end->n_connections - 1]);
    }
}

void net_end_cleanup(net_end_t *end)
{
    net_end_disconnect(end);
    (void)ncclNetPlugin_v12.finalize(end->context);
    if (end->word_fd >= 0) {
        close(end->word_fd);
    }
}
