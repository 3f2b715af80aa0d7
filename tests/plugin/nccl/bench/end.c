/* One end of the link: it meets the other one, and connects. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/plugin/nccl/bench/net.h"

#define MEET_SEC 20.0

/* ---- words between the ends ---------------------------------------------------------------------------- */

static tw_status_t net_failed(const char *what)
{
    return tw_fail(TW_ERR_IO, "bench: %s: %s", what, strerror(errno));
}

/** Convert an IPv4 or IPv6 address from text to an IPv6 address. */
static struct sockaddr_in6 net_address(const char *text, int port)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    char mapped[INET6_ADDRSTRLEN];
    (void)snprintf(mapped, sizeof(mapped), strchr(text, ':') ? "%s" : "::ffff:%s", text);
    (void)inet_pton(AF_INET6, mapped, &address.sin6_addr);
    return address;
}

static struct sockaddr_in6 word_address(void)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    return net_address(host ? host : "127.0.0.1", port ? atoi(port) : 0);
}

static tw_status_t wait_for_other(int *out)
{
    const struct sockaddr_in6 address = word_address();
    const int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    int fd = -1;
    if (listener < 0) {
        return net_failed("socket");
    }
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!bind(listener, (const struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1)) {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    }
    tw_status_t status = fd < 0 ? net_failed("waiting for the other end") : TW_OK;
    close(listener);
    *out = fd;
    return status;
}

static tw_status_t go_to_other(int *out)
{
    const struct sockaddr_in6 address = word_address();
    const double until = tw_time_sec() + MEET_SEC;
    do {
        *out = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*out >= 0 && !connect(*out, (const struct sockaddr *)&address, sizeof(address))) {
            return TW_OK;
        }
        if (*out >= 0) {
            close(*out);
        }
        *out = -1;
        usleep(20000);
    } while (tw_time_sec() < until);
    return net_failed("meeting the other end");
}

static tw_status_t swap(const net_end_t *end, const void *own, void *other, size_t bytes)
{
    if (send(end->word_fd, own, bytes, MSG_NOSIGNAL) != (ssize_t)bytes ||
        recv(end->word_fd, other, bytes, MSG_WAITALL) != (ssize_t)bytes) {
        return net_failed("a word with the other end");
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

/* ---- connections --------------------------------------------------------------------------------------- */

static tw_status_t from_nccl(tw_nccl_result_t result, const char *what)
{
    return result == TW_NCCL_SUCCESS ? TW_OK
                                     : tw_fail(TW_ERR_NCCL, "bench: %s: NCCL result %d", what, result);
}

static void log_line(tw_nccl_log_level_t level, unsigned long subsystems, const char *file, int line,
                     const char *format, ...)
{
    va_list args;
    (void)subsystems, (void)file, (void)line;
    if (level > TW_NCCL_LOG_WARN) {
        return;
    }
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
}

static tw_status_t meet_other(net_end_t *end)
{
    const int yes = 1;
    const char *rank = getenv("RANK");
    end->rank = rank && rank[0] == '1';
    end->owns_word = 1;
    tw_status_t status = end->rank ? go_to_other(&end->word_fd) : wait_for_other(&end->word_fd);
    if (!status) {
        (void)setsockopt(end->word_fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    }
    return status;
}

tw_status_t net_end_init(net_end_t *end, const tw_nccl_net_v12_t *net, const net_end_t *beside)
{
    tw_nccl_logger_t logger = beside ? log_line : NULL; /* our plugin has the log already */
    tw_status_t status = TW_OK;
    tw_nccl_net_config_t config = {.traffic_class = -1};
    *end = (net_end_t){.net = net, .word_fd = -1};
    if (beside) {
        end->rank = beside->rank;
        end->word_fd = beside->word_fd;
    } else {
        status = meet_other(end);
    }
    return status ? status : from_nccl(net->init(&end->context, 1, &config, logger, NULL), "init");
}

/** Make a connection in each direction. */
static tw_status_t connect_pair(net_end_t *end, int dev, void **sender, void **receiver)
{
    char own[TW_NCCL_HANDLE_BYTES], other[TW_NCCL_HANDLE_BYTES];
    void *listener = NULL, *device_handle = NULL;
    TW_TRY(from_nccl(end->net->listen(end->context, dev, own, &listener), "listen"));
    tw_status_t status = swap(end, own, other, sizeof(own));
    while (!status && (!*sender || !*receiver)) {
        if (!*sender) {
            status =
                from_nccl(end->net->connect(end->context, dev, other, sender, &device_handle), "connect");
        }
        if (!status && !*receiver) {
            status = from_nccl(end->net->accept(listener, receiver, &device_handle), "accept");
        }
    }
    (void)end->net->close_listen(listener);
    return status;
}

tw_status_t net_end_connect(net_end_t *end, int n_connections)
{
    int n_devices = 0;
    tw_status_t status = from_nccl(end->net->devices(&n_devices), "devices");
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
        const int i = end->n_connections - 1;
        if (end->sender[i]) {
            (void)end->net->close_send(end->sender[i]);
        }
        if (end->receiver[i]) {
            (void)end->net->close_recv(end->receiver[i]);
        }
    }
}

void net_end_cleanup(net_end_t *end)
{
    net_end_disconnect(end);
    (void)end->net->finalize(end->context);
    if (end->owns_word && end->word_fd >= 0) {
        close(end->word_fd);
    }
}
