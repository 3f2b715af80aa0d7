/* One end of a flow: streams of plain TCP, with a thread for each. The receiver measures the rate. It counts
 * bytes after the first quarter of the time, when TCP has reached its speed. Then it sends the rate to the
 * sender, and that ends the stream. So bytes that wait in the sender's buffers are neither counted nor waited
 * for. This file also sends and receives probes: UDP packets that no router may fragment. */
#include <errno.h>
#include <linux/tcp.h> /* netinet/tcp.h lacks some fields of tcp_info */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "doctor/state.h"

/* Enough for two more SYNs if the first is lost. A pair that cannot connect delays its slot by this time. */
#define CONNECT_SEC 3.5
#define GREETING_SEC 2.0
#define GRACE_SEC 10.0 /* a sender gives up this long after its flow's planned end, a receiver after half */
#define TICK_MS 50
#define PIECE_BYTES ((size_t)256 << 10)
#define UNSENT_BYTES (256 << 10) /* the most bytes that may wait unsent in the sender's socket */
#define WARM_SHARE 0.25
#define PROBES_BYTES (4 << 20) /* the most bytes of probes that may wait to be received */

/* What the sender sends first: the run and the flow to which the stream belongs. */
typedef struct greeting {
    uint8_t nonce[TW_DOCTOR_NONCE_BYTES];
    int32_t slot, stream;
} greeting_t;

typedef struct stream {
    tw_doctor_end_t *end;
    pthread_t thread;
    int fd, index, error;
    double bps;
    struct tcp_info info;
    char congestion[16];
} stream_t;

static int doctor_wait_for(int fd, short events)
{
    struct pollfd one = {.fd = fd, .events = events};
    return poll(&one, 1, TICK_MS) > 0 ? one.revents : 0;
}

static int is_late(const tw_doctor_end_t *end, double deadline)
{
    return __atomic_load_n(end->stop, __ATOMIC_ACQUIRE) || tw_time_sec() > deadline;
}

/** Send or receive all bytes of data. Returns 0 or an errno. */
static int move_all(const stream_t *stream, void *data, size_t bytes, int is_sent, double limit_sec)
{
    const double deadline = tw_time_sec() + limit_sec;
    for (size_t moved = 0; moved < bytes;) {
        char *at = (char *)data + moved;
        const ssize_t n = is_sent ? send(stream->fd, at, bytes - moved, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : recv(stream->fd, at, bytes - moved, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            return n == 0 ? ECONNRESET : errno;
        }
        if (n < 0 && is_late(stream->end, deadline)) {
            return ETIMEDOUT;
        }
        if (n < 0) {
            doctor_wait_for(stream->fd, is_sent ? POLLOUT : POLLIN);
        }
        moved += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* An address for system calls. A mapped IPv4 address becomes AF_INET, since a host may lack IPv6. */
typedef union place {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} place_t;

/** Fill in a place from an address. Returns its size in bytes. */
static socklen_t doctor_place_of(const struct sockaddr_in6 *address, place_t *place)
{
    if (!IN6_IS_ADDR_V4MAPPED(&address->sin6_addr)) {
        place->v6 = *address;
        return sizeof(place->v6);
    }
    place->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = address->sin6_port};
    memcpy(&place->v4.sin_addr, &address->sin6_addr.s6_addr[12], sizeof(place->v4.sin_addr));
    return sizeof(place->v4);
}

/* ---- the sender ---------------------------------------------------------------------------------------- */

static int connect_stream(stream_t *stream)
{
    const tw_doctor_end_t *end = stream->end;
    const double deadline = tw_time_sec() + CONNECT_SEC;
    const int unsent = UNSENT_BYTES;
    int error = 0;
    place_t to;
    socklen_t bytes = sizeof(error), to_bytes = doctor_place_of(&end->to, &to);
    stream->fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (stream->fd < 0) {
        return errno;
    }
    (void)setsockopt(stream->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    if (connect(stream->fd, &to.any, to_bytes) != 0 && errno != EINPROGRESS) {
        return errno;
    }
    while (!doctor_wait_for(stream->fd, POLLOUT)) {
        if (is_late(end, deadline)) {
            return ETIMEDOUT;
        }
    }
    return getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

/** Send until the receiver answers. Returns 0 or an errno. */
static int send_data(stream_t *stream)
{
    static char piece[PIECE_BYTES]; /* static zeros, which take no bytes in the library's file */
    const double deadline = tw_time_sec() + stream->end->seconds + GRACE_SEC;
    for (;;) {
        const int ready = doctor_wait_for(stream->fd, POLLIN | POLLOUT);
        if (ready & (POLLIN | POLLERR | POLLHUP)) {
            return move_all(stream, &stream->bps, sizeof(stream->bps), 0, GREETING_SEC);
        }
        if ((ready & POLLOUT) && send(stream->fd, piece, sizeof(piece), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
            errno != EAGAIN) {
            return errno;
        }
        if (is_late(stream->end, deadline)) {
            return ETIMEDOUT;
        }
    }
}

/** Close a stream, and discard bytes that it has not sent yet. */
static void close_stream(stream_t *stream)
{
    const struct linger drop = {.l_onoff = 1};
    if (stream->fd >= 0) {
        (void)setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &drop, sizeof(drop));
        close(stream->fd);
    }
    stream->fd = -1;
}

static void *run_sender(void *arg)
{
    stream_t *stream = arg;
    greeting_t greeting = {.slot = stream->end->flow->slot, .stream = stream->index};
    socklen_t info_bytes = sizeof(stream->info), name_bytes = sizeof(stream->congestion) - 1;
    memcpy(greeting.nonce, stream->end->rank->nonce, sizeof(greeting.nonce));
    stream->error = connect_stream(stream);
    if (!stream->error) {
        stream->error = move_all(stream, &greeting, sizeof(greeting), 1, GREETING_SEC);
    }
    if (!stream->error) {
        stream->error = send_data(stream);
        (void)getsockopt(stream->fd, IPPROTO_TCP, TCP_INFO, &stream->info, &info_bytes);
        (void)getsockopt(stream->fd, IPPROTO_TCP, TCP_CONGESTION, stream->congestion, &name_bytes);
    }
    close_stream(stream);
    return NULL;
}

static void add_stream(tw_doctor_flow_t *flow, const stream_t *stream)
{
    flow->error = flow->error ? flow->error : stream->error;
    flow->bps += stream->bps;
    flow->segments += stream->info.tcpi_data_segs_out;
    flow->repeated += stream->info.tcpi_total_retrans;
    flow->segment_bytes = (int32_t)stream->info.tcpi_snd_mss;
    if (stream->info.tcpi_min_rtt != 0 && stream->info.tcpi_min_rtt != UINT32_MAX &&
        (flow->rtt_us <= 0 || stream->info.tcpi_min_rtt < flow->rtt_us)) {
        flow->rtt_us = stream->info.tcpi_min_rtt;
    }
    if (stream->congestion[0]) {
        memcpy(flow->congestion, stream->congestion, sizeof(flow->congestion));
    }
}

static void run_streams(stream_t *streams, int n, void *(*run)(void *))
{
    int n_started = 0;
    while (n_started < n && pthread_create(&streams[n_started].thread, NULL, run, &streams[n_started]) == 0) {
        n_started++;
    }
    for (int i = n_started; i < n; i++) {
        streams[i].error = EAGAIN;
        close_stream(&streams[i]);
    }
    for (int i = 0; i < n_started; i++) {
        pthread_join(streams[i].thread, NULL);
    }
}

void tw_doctor_send(tw_doctor_end_t *end)
{
    stream_t streams[TW_DOCTOR_STREAMS_MAX] = {0};
    const int n = end->flow->n_streams;
    for (int i = 0; i < n; i++) {
        streams[i].end = end;
        streams[i].fd = -1;
        streams[i].index = i;
    }
    run_streams(streams, n, run_sender);
    for (int i = 0; i < n; i++) {
        add_stream(end->flow, &streams[i]);
    }
}

/* ---- the receiver -------------------------------------------------------------------------------------- */

/** Bytes that have arrived, read or not. So the rate does not depend on when this thread gets a processor. */
static double arrived_bytes(const stream_t *stream)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    (void)getsockopt(stream->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes);
    return (double)info.tcpi_bytes_received;
}

/** Receive until the time is over. The first quarter is not counted. The other three quarters are counted in
 *  full even if data came late, since a few packets in a short time give no rate. Returns 0 or an errno. */
static int receive_data(stream_t *stream)
{
    const double seconds = stream->end->seconds, deadline = tw_time_sec() + seconds + GRACE_SEC / 2;
    double first = 0, counted_from = 0, before = 0, counted = 0, now;
    char *piece = malloc(PIECE_BYTES);
    int error = piece ? 0 : ENOMEM;
    while (!error) {
        const ssize_t n = recv(stream->fd, piece, PIECE_BYTES, MSG_DONTWAIT);
        now = tw_time_sec();
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            error = n == 0 ? ECONNRESET : errno;
        } else if (n < 0) {
            error = is_late(stream->end, deadline) ? ETIMEDOUT : 0;
            doctor_wait_for(stream->fd, POLLIN);
        } else {
            first = first > 0 ? first : now;
            if (counted_from <= 0 && now >= first + WARM_SHARE * seconds) {
                counted_from = now;
                before = arrived_bytes(stream);
            }
        }
        if (counted_from > 0 && now > counted_from + (1 - WARM_SHARE) * seconds) {
            now = tw_time_sec(); /* again: this thread may have waited for a processor */
            counted = arrived_bytes(stream) - before;
        }
        if (counted > 0) {
            stream->bps = 8 * counted / (now - counted_from);
            break;
        }
    }
    free(piece);
    return error;
}

static void *run_receiver(void *arg)
{
    stream_t *stream = arg;
    stream->error = receive_data(stream);
    if (!stream->error) {
        stream->error = move_all(stream, &stream->bps, sizeof(stream->bps), 1, GREETING_SEC);
    }
    /* The sender closes the stream when it has read the rate. Discard what it sends until then. */
    char rest[4096];
    for (const double deadline = tw_time_sec() + GREETING_SEC;
         !stream->error && !is_late(stream->end, deadline);) {
        const ssize_t n = recv(stream->fd, rest, sizeof(rest), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            break;
        }
        if (n < 0) {
            doctor_wait_for(stream->fd, POLLIN);
        }
    }
    close_stream(stream);
    return NULL;
}

/** Whether a new connection is a stream of this flow. */
static int is_ours(stream_t *stream)
{
    greeting_t greeting;
    const tw_doctor_flow_t *flow = stream->end->flow;
    if (move_all(stream, &greeting, sizeof(greeting), 0, GREETING_SEC) != 0 ||
        memcmp(greeting.nonce, stream->end->rank->nonce, sizeof(greeting.nonce)) != 0) {
        return 0;
    }
    return greeting.slot == flow->slot && greeting.stream >= 0 && greeting.stream < flow->n_streams;
}

void tw_doctor_receive(tw_doctor_end_t *end)
{
    stream_t streams[TW_DOCTOR_STREAMS_MAX] = {0};
    const int listener = end->rank->listeners[end->flow->device], n = end->flow->n_streams;
    const double deadline = tw_time_sec() + CONNECT_SEC;
    int n_there = 0;
    while (n_there < n && !is_late(end, deadline)) {
        stream_t *stream = &streams[n_there];
        *stream = (stream_t){.end = end, .fd = -1};
        if (doctor_wait_for(listener, POLLIN)) {
            stream->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        }
        if (stream->fd >= 0 && is_ours(stream)) {
            n_there++;
        } else {
            close_stream(stream);
        }
    }
    run_streams(streams, n_there, run_receiver);
}

/* ---- sockets of a leader ------------------------------------------------------------------------------- */

static tw_status_t open_socket(const tw_doctor_facts_t *facts, int type, const struct sockaddr_in6 *address,
                               int *out, in_port_t *port)
{
    place_t place;
    struct sockaddr_in6 any_port = *address;
    any_port.sin6_port = 0;
    socklen_t bytes = doctor_place_of(&any_port, &place);
    const int fd = socket(place.any.sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), room = PROBES_BYTES;
    *out = fd;
    if (fd >= 0 && type == SOCK_DGRAM) {
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
    }
    TW_FAIL_IF(fd < 0 || bind(fd, &place.any, bytes) != 0 ||
                   (type == SOCK_STREAM && listen(fd, TW_DOCTOR_STREAMS_MAX) != 0) ||
                   getsockname(fd, &place.any, &bytes) != 0,
               TW_ERR_IO, "rank %d: cannot listen: %s", facts->rank, strerror(errno));
    *port = place.any.sa_family == AF_INET ? place.v4.sin_port : place.v6.sin6_port;
    return TW_OK;
}

tw_status_t tw_doctor_listen(tw_doctor_rank_t *rank, tw_doctor_facts_t *facts)
{
    for (int i = 0; i < facts->n_devices; i++) {
        tw_doctor_device_t *device = &facts->devices[i];
        TW_TRY(open_socket(facts, SOCK_STREAM, &device->address, &rank->listeners[i],
                           &device->address.sin6_port));
        TW_TRY(open_socket(facts, SOCK_DGRAM, &device->address, &rank->probes[i], &device->probe_port));
    }
    return TW_OK;
}

void tw_doctor_close(tw_doctor_rank_t *rank)
{
    for (int i = 0; i < TW_DOCTOR_DEVICES_MAX; i++) {
        if (rank->listeners[i] >= 0) {
            close(rank->listeners[i]);
        }
        if (rank->probes[i] >= 0) {
            close(rank->probes[i]);
        }
        rank->listeners[i] = rank->probes[i] = -1;
    }
}

/* ---- probes -------------------------------------------------------------------------------------------- */

#define PROBE_TIMES 3
#define PROBE_PAUSE_NS 200000
#define PROBE_MAX_BYTES 65536

/* Common sizes of packets on networks and in tunnels, in bytes. */
static const int sizes[] = {9000, 8942, 8192, 4470, 4096, 2044, 1500, 1492, 1480, 1476, 1472,
                            1462, 1454, 1450, 1442, 1430, 1420, 1412, 1400, 1380, 1360, 1340,
                            1320, 1300, 1280, 1240, 1200, 1100, 1000, 900,  800,  700,  576};

static int headers_bytes(const place_t *place)
{
    return place->any.sa_family == AF_INET ? 20 + 8 : 40 + 8;
}

/** Set a socket's "do not fragment", so that packets above the MTU that this host assumes are sent, too. */
static void forbid_fragments(int fd)
{
    const int probe4 = IP_PMTUDISC_PROBE, probe6 = IPV6_PMTUDISC_PROBE;
    (void)setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &probe4, sizeof(probe4));
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probe6, sizeof(probe6));
}

static void send_probe(int fd, const tw_doctor_rank_t *rank, const struct sockaddr_in6 *address,
                       int packet_bytes)
{
    static char nothing[PROBE_MAX_BYTES];
    char head[TW_DOCTOR_NONCE_BYTES];
    place_t to;
    const socklen_t to_bytes = doctor_place_of(address, &to);
    memcpy(head, rank->nonce, sizeof(head));
    struct iovec spans[] = {{head, sizeof(head)},
                            {nothing, (size_t)(packet_bytes - headers_bytes(&to)) - sizeof(head)}};
    const struct msghdr message = {
        .msg_name = &to, .msg_namelen = to_bytes, .msg_iov = spans, .msg_iovlen = 2};
    const struct timespec pause = {.tv_nsec = PROBE_PAUSE_NS};
    /* a probe that cannot be sent counts as one that did not arrive */
    (void)sendmsg(fd, &message, MSG_DONTWAIT);
    nanosleep(&pause, NULL);
}

void tw_doctor_probe_send(const tw_doctor_rank_t *rank, const tw_doctor_path_t *path,
                          const struct sockaddr_in6 *to)
{
    const int fd = rank->probes[path->device], most = path->asked_bytes;
    forbid_fragments(fd);
    /* The receiver's socket holds few probes, so the largest go first. */
    for (int k = 0; k < PROBE_TIMES && most > 0 && most < PROBE_MAX_BYTES; k++) {
        send_probe(fd, rank, to, most);
    }
    for (int k = 0; k < PROBE_TIMES; k++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            if (sizes[i] < most || most >= PROBE_MAX_BYTES) {
                send_probe(fd, rank, to, sizes[i]);
            }
        }
    }
}

int tw_doctor_probe_receive(const tw_doctor_rank_t *rank, int device, double seconds)
{
    char packet[PROBE_MAX_BYTES];
    const int fd = rank->probes[device];
    int largest = 0;
    for (const double deadline = tw_time_sec() + seconds; tw_time_sec() < deadline;) {
        place_t from;
        socklen_t bytes = sizeof(from);
        const ssize_t n = recvfrom(fd, packet, sizeof(packet), MSG_DONTWAIT, &from.any, &bytes);
        if (n < 0) {
            doctor_wait_for(fd, POLLIN);
        } else if (n >= TW_DOCTOR_NONCE_BYTES && memcmp(packet, rank->nonce, TW_DOCTOR_NONCE_BYTES) == 0 &&
                   (int)n + headers_bytes(&from) > largest) {
            largest = (int)n + headers_bytes(&from);
        }
    }
    return largest;
}
