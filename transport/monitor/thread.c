/** The monitor's thread, and the functions that its owner calls. */
#include "transport/monitor/monitor.h"

#include <errno.h>
#include <linux/pkt_sched.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/monitor/state.h"

#define HEARTBEATS_PER_TIMEOUT 10
/** Longest silence, as a share of the timeout: the verdict must also reach the others within the timeout. */
#define SILENCE_SHARE 0.7
/** This many missed heartbeats are no accident. It is less than half of the silence that leads to a verdict,
 *  because data resent after an outage is late by up to the outage's length. */
#define HEARTBEATS_MISSED 2.5
/** Longest time that a rank stays after its goodbye, until all others have said goodbye. All can then close
 *  without breaking any rank's connections. */
#define LINGER_SEC 2.0
/** Longest wait, after the last message, for the other end to close, so that nothing sent is lost. */
#define FAREWELL_SEC 1.0

static const tw_monitor_role_t *role_of(const tw_monitor_t *monitor)
{
    return monitor->rank == 0 ? &tw_monitor_server : &tw_monitor_client;
}

static void clear_fd(int fd)
{
    uint64_t count;
    const ssize_t got = read(fd, &count, sizeof(count));
    (void)got;
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void begin_to_leave(tw_monitor_t *monitor, const uint64_t *goodbye)
{
    const double linger_sec = monitor->peer_timeout_sec < LINGER_SEC ? monitor->peer_timeout_sec : LINGER_SEC;
    monitor->leaving = 1;
    monitor->leave_by_ns = tw_connection_deadline(linger_sec);
    if (goodbye && !tw_monitor_has_verdict(monitor)) {
        monitor->said_goodbye = 1;
        role_of(monitor)->goodbye(monitor, goodbye);
    }
}

static void take_orders(tw_monitor_t *monitor)
{
    const tw_monitor_role_t *role = role_of(monitor);
    pthread_mutex_lock(&monitor->lock);
    tw_monitor_orders_t orders = monitor->orders;
    for (int r = 0; r < monitor->world; r++) {
        if (orders.suspects[r]) {
            role->suspect(monitor, r, orders.why);
        }
        orders.suspects[r] = 0;
    }
    if (orders.own) {
        role->exchange(monitor, orders.own);
    }
    monitor->orders.blamed = -1;
    monitor->orders.own = NULL;
    pthread_mutex_unlock(&monitor->lock);
    if (orders.blamed >= 0 && !tw_monitor_has_verdict(monitor)) {
        role->blame(monitor, orders.blamed, orders.reason);
    }
    if (orders.stop && !monitor->leaving) {
        begin_to_leave(monitor, orders.goodbye);
    }
}

/** Return how late this thread runs: the time since the next heartbeat was due. */
static uint64_t late_by(const tw_monitor_t *monitor, uint64_t now)
{
    return now > monitor->next_heartbeat_ns ? now - monitor->next_heartbeat_ns : 0;
}

static void send_heartbeats(tw_monitor_t *monitor, uint64_t now)
{
    const uint64_t late_ms = late_by(monitor, now) / 1000000;
    tw_msg_writer_t heartbeat = {0};
    if (now < monitor->next_heartbeat_ns) {
        return;
    }
    monitor->next_heartbeat_ns = now + monitor->heartbeat_ns;
    const tw_msg_heartbeat_t says = {.late_ms = late_ms < UINT32_MAX ? (uint32_t)late_ms : UINT32_MAX,
                                     .heard = monitor->heard_bits,
                                     .heard_bytes = monitor->heard_bytes};
    tw_msg_heartbeat_write(&says, &heartbeat);
    memset(monitor->heard_bits, 0, monitor->heard_bytes);
    for (int i = 0; i < monitor->n_connections; i++) {
        tw_connection_t *connection = &monitor->connections[i];
        /* Send no more to a rank that does not read. */
        if (tw_connection_is_open(connection) && !tw_connection_wants_write(connection)) {
            (void)tw_connection_send(connection, TW_MSG_HEARTBEAT, heartbeat.data, heartbeat.bytes);
        }
    }
    tw_msg_writer_cleanup(&heartbeat);
}

static void take_heard(tw_monitor_t *monitor, uint64_t now)
{
    for (int r = 0; r < monitor->world; r++) {
        if (atomic_load(&monitor->heard[r])) {
            atomic_store(&monitor->heard[r], 0);
            tw_monitor_note_data(monitor, r, now);
            role_of(monitor)->hear(monitor, r, now);
        }
    }
}

static void wait_for_events(tw_monitor_t *monitor, int timeout_ms)
{
    nfds_t n = 0;
    monitor->pollfds[n++] = (struct pollfd){.fd = monitor->wake_fd, .events = POLLIN};
    for (int i = 0; i < monitor->n_connections; i++) {
        const tw_connection_t *connection = &monitor->connections[i];
        if (!tw_connection_is_open(connection)) {
            continue;
        }
        const short events = POLLIN | (tw_connection_wants_write(connection) ? POLLOUT : 0);
        monitor->pollfds[n++] = (struct pollfd){.fd = connection->fd, .events = events};
    }
    (void)poll(monitor->pollfds, n, timeout_ms);
    if (monitor->pollfds[0].revents) {
        clear_fd(monitor->wake_fd);
    }
}

static void flush_all(tw_monitor_t *monitor)
{
    for (int i = 0; i < monitor->n_connections; i++) {
        if (tw_connection_is_open(&monitor->connections[i])) {
            /* a broken connection is noticed when it is read */
            (void)tw_connection_flush(&monitor->connections[i]);
        }
    }
}

static int any_open(const tw_monitor_t *monitor)
{
    for (int i = 0; i < monitor->n_connections; i++) {
        if (tw_connection_is_open(&monitor->connections[i])) {
            return 1;
        }
    }
    return 0;
}

/** Stop sending, and wait briefly until the other ends close. Closing a socket with unread bytes would
 *  discard what was sent. */
static void farewell(tw_monitor_t *monitor)
{
    const uint64_t until_ns = tw_connection_deadline(FAREWELL_SEC);
    for (int i = 0; i < monitor->n_connections; i++) {
        tw_connection_t *connection = &monitor->connections[i];
        if (!tw_connection_is_open(connection)) {
            continue;
        }
        (void)tw_connection_drain(connection, until_ns);
        (void)shutdown(connection->fd, SHUT_WR);
    }
    while (any_open(monitor) && tw_time_ns() < until_ns) {
        for (int i = 0; i < monitor->n_connections; i++) {
            tw_connection_t *connection = &monitor->connections[i];
            char ignored[512];
            ssize_t got = -1;
            while (tw_connection_is_open(connection) &&
                   (got = recv(connection->fd, ignored, sizeof(ignored), MSG_DONTWAIT)) > 0) {
                ;
            }
            if (tw_connection_is_open(connection) && (got == 0 || (errno != EAGAIN && errno != EINTR))) {
                tw_connection_cleanup(connection);
            }
        }
        wait_for_events(monitor, 10);
    }
}

/** Excuse time in which this process did not run, because it was stopped: nobody was silent then. */
static void forgive_pause(tw_monitor_t *monitor)
{
    const uint64_t now = tw_time_ns();
    const uint64_t pause_ns = now - monitor->awake_ns;
    monitor->awake_ns = now;
    if (pause_ns < 2 * monitor->heartbeat_ns) {
        tw_outages_late(&monitor->outages, 0, late_by(monitor, now));
        return;
    }
    tw_debug("rank %d: this process did not run for %.1f s", monitor->rank, (double)pause_ns * 1e-9);
    for (int i = 0; i < monitor->n_connections; i++) {
        monitor->connections[i].heard_ns += pause_ns;
    }
    tw_outages_pause(&monitor->outages, pause_ns, now);
}

/** Returns 1 if this rank may leave. Rank 0 leaves last. */
static int may_leave(const tw_monitor_t *monitor)
{
    const int in_time = monitor->rank == 0 || tw_time_ns() < monitor->leave_by_ns;
    if (tw_monitor_has_verdict(monitor) || !monitor->said_goodbye || !in_time) {
        return 1;
    }
    return tw_monitor_everyone_is_gone(monitor) || !any_open(monitor);
}

static void *monitor_main(void *arg)
{
    tw_monitor_t *monitor = arg;
    const tw_monitor_role_t *role = role_of(monitor);
    for (;;) {
        /* Read before judging, so that what has arrived counts, but judge by the time before reading. Send
         * heartbeats first: a late one says that it is late. */
        forgive_pause(monitor);
        take_heard(monitor, monitor->awake_ns);
        send_heartbeats(monitor, monitor->awake_ns);
        role->receive(monitor);
        role->judge(monitor, monitor->awake_ns);
        take_orders(monitor);
        flush_all(monitor);
        if (monitor->leaving && may_leave(monitor)) {
            break;
        }
        const uint64_t now = tw_time_ns();
        const uint64_t pause_ns = monitor->next_heartbeat_ns > now ? monitor->next_heartbeat_ns - now : 0;
        wait_for_events(monitor, (int)(pause_ns / 1000000 + 1));
    }
    atomic_store(&monitor->has_left, 1);
    tw_monitor_signal(monitor->event_fd);
    farewell(monitor);
    return NULL;
}

/* ---- the owner's side ---------------------------------------------------------------------------------- */

int tw_monitor_failed_rank(const tw_monitor_t *monitor)
{
    return atomic_load(&monitor->failed_rank);
}

int tw_monitor_gone(const tw_monitor_t *monitor, int rank, uint64_t *count)
{
    *count = atomic_load(&monitor->gone[rank]);
    return *count != TW_MONITOR_STILL_HERE;
}

int tw_monitor_event_fd(const tw_monitor_t *monitor)
{
    return monitor->event_fd;
}

void tw_monitor_clear_event(tw_monitor_t *monitor)
{
    clear_fd(monitor->event_fd);
}

void tw_monitor_heard(tw_monitor_t *monitor, int rank)
{
    atomic_store(&monitor->heard[rank], 1);
}

void tw_monitor_fail(tw_monitor_t *monitor, int rank, const char *reason)
{
    pthread_mutex_lock(&monitor->lock);
    if (monitor->orders.blamed < 0) {
        monitor->orders.blamed = rank;
        snprintf(monitor->orders.reason, sizeof(monitor->orders.reason), "%s", reason);
    }
    pthread_mutex_unlock(&monitor->lock);
    tw_monitor_signal(monitor->wake_fd);
}

void tw_monitor_suspect(tw_monitor_t *monitor, int rank, const char *why)
{
    pthread_mutex_lock(&monitor->lock);
    monitor->orders.suspects[rank] = 1;
    snprintf(monitor->orders.why, sizeof(monitor->orders.why), "%s", why);
    pthread_mutex_unlock(&monitor->lock);
    tw_monitor_signal(monitor->wake_fd);
}

static void wait_for_lists(tw_monitor_t *monitor)
{
    struct pollfd event = {.fd = monitor->event_fd, .events = POLLIN};
    while (!atomic_load(&monitor->has_gathered) && !tw_monitor_has_verdict(monitor)) {
        (void)poll(&event, 1, -1);
        clear_fd(monitor->event_fd);
    }
}

tw_status_t tw_monitor_exchange(tw_monitor_t *monitor, const tw_msg_blob_t *own, tw_msg_blob_t *lists)
{
    uint32_t n_lists = 0;
    free(monitor->gathered);
    monitor->gathered = NULL;
    atomic_store(&monitor->has_gathered, 0);
    pthread_mutex_lock(&monitor->lock);
    monitor->orders.own = own;
    pthread_mutex_unlock(&monitor->lock);
    tw_monitor_signal(monitor->wake_fd);
    wait_for_lists(monitor);
    pthread_mutex_lock(&monitor->lock);
    monitor->orders.own = NULL; /* the caller may free its list now */
    pthread_mutex_unlock(&monitor->lock);
    if (!atomic_load(&monitor->has_gathered)) {
        return TW_ERR_PEER;
    }
    tw_status_t status = tw_msg_blobs_parse(monitor->gathered, monitor->gathered_bytes,
                                            (uint32_t)monitor->world, lists, &n_lists);
    if (!status && n_lists == (uint32_t)monitor->world) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_FORMAT, "rank %d: peer 0: it sent a malformed list of addresses", monitor->rank);
}

/* ---- create and destroy -------------------------------------------------------------------------------- */

static void monitor_free(tw_monitor_t *monitor)
{
    for (int i = 0; i < monitor->n_connections; i++) {
        tw_connection_cleanup(&monitor->connections[i]);
    }
    free(monitor->connections);
    if (monitor->wake_fd >= 0) {
        close(monitor->wake_fd);
    }
    if (monitor->event_fd >= 0) {
        close(monitor->event_fd);
    }
    pthread_mutex_destroy(&monitor->lock);
    free(monitor->pollfds);
    free(monitor->heard);
    free(monitor->heard_bits);
    free(monitor->orders.suspects);
    free(monitor->orders.goodbye);
    free(monitor->suspicions);
    tw_outages_cleanup(&monitor->outages);
    tw_monitor_lists_forget(monitor);
    free(monitor->lists);
    free(monitor->gathered);
    free(monitor->gone);
    free(monitor);
}

/** Start the thread with all signals blocked, so that only the program's threads handle signals. */
static int start_thread(tw_monitor_t *monitor)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&monitor->thread, NULL, monitor_main, monitor);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static int monitor_alloc(tw_monitor_t *monitor, const int *node_of)
{
    const size_t world = (size_t)monitor->world;
    const uint64_t missed_ns = (uint64_t)((double)monitor->heartbeat_ns * HEARTBEATS_MISSED);
    monitor->pollfds = calloc(1 + (size_t)monitor->n_connections, sizeof(*monitor->pollfds));
    monitor->heard = calloc(world, sizeof(*monitor->heard));
    const size_t heard_bytes = (world + 7) / 8;
    monitor->heard_bytes = monitor->rank && heard_bytes <= TW_MSG_HEARD_MAX ? (uint32_t)heard_bytes : 0;
    monitor->heard_bits = calloc(heard_bytes, 1);
    monitor->orders.suspects = calloc(world, 1);
    monitor->suspicions = calloc(world, sizeof(*monitor->suspicions));
    monitor->lists = calloc(world, sizeof(*monitor->lists));
    monitor->gone = malloc(world * sizeof(*monitor->gone));
    for (size_t r = 0; monitor->gone && r < world; r++) {
        atomic_init(&monitor->gone[r], TW_MONITOR_STILL_HERE);
    }
    return monitor->pollfds && monitor->heard && monitor->heard_bits && monitor->orders.suspects &&
           monitor->suspicions && monitor->lists && monitor->gone &&
           !tw_outages_init(&monitor->outages, monitor->world, node_of, missed_ns, tw_time_ns());
}

/** Open the descriptors. Returns 0, or the errno. */
static int monitor_open(tw_monitor_t *monitor, const int *node_of)
{
    monitor->wake_fd = monitor->event_fd = -1;
    if (!monitor_alloc(monitor, node_of)) {
        return ENOMEM;
    }
    monitor->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (monitor->wake_fd >= 0) {
        monitor->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    return monitor->event_fd < 0 ? errno : 0;
}

/** Give heartbeats priority over data in this machine's queues, if the queues have priorities. Resend a lost
 *  heartbeat without waiting longer each time. */
static void prefer(const tw_connection_t *connection)
{
    const int priority = TC_PRIO_INTERACTIVE, yes = 1;
    if (tw_connection_is_open(connection)) {
        (void)setsockopt(connection->fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &yes, sizeof(yes));
        (void)setsockopt(connection->fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
    }
}

static tw_status_t monitor_start(tw_monitor_t *monitor, const int *node_of)
{
    int error = monitor_open(monitor, node_of);
    monitor->awake_ns = monitor->next_heartbeat_ns = tw_time_ns();
    for (int i = 0; i < monitor->n_connections; i++) {
        monitor->connections[i].heard_ns = monitor->awake_ns;
        prefer(&monitor->connections[i]);
    }
    if (!error) {
        error = start_thread(monitor);
    }
    if (!error) {
        return TW_OK;
    }
    tw_error("rank %d: cannot start the monitor: %s", monitor->rank, strerror(error));
    monitor_free(monitor);
    return tw_status_from_errno(error);
}

tw_status_t tw_monitor_create(const tw_monitor_params_t *params, tw_monitor_t **out)
{
    tw_monitor_t *monitor = calloc(1, sizeof(*monitor));
    if (!monitor) {
        for (int i = 0; i < params->n_connections; i++) {
            tw_connection_cleanup(&params->connections[i]);
        }
        free(params->connections);
        return tw_fail(TW_ERR_NO_MEMORY, "rank %d: out of memory for the monitor", params->rank);
    }
    monitor->rank = params->rank;
    monitor->world = params->world;
    monitor->connections = params->connections;
    monitor->n_connections = params->n_connections;
    monitor->peer_timeout_sec = params->peer_timeout_sec;
    monitor->join_timeout_sec = params->join_timeout_sec;
    monitor->orders.blamed = -1;
    monitor->heartbeat_ns = (uint64_t)(params->peer_timeout_sec * 1e9 / HEARTBEATS_PER_TIMEOUT);
    monitor->silence_ns = (uint64_t)(params->peer_timeout_sec * 1e9 * SILENCE_SHARE);
    pthread_mutex_init(&monitor->lock, NULL);
    atomic_init(&monitor->failed_rank, -1);
    atomic_init(&monitor->has_left, 0);
    atomic_init(&monitor->has_gathered, 0);
    tw_status_t status = monitor_start(monitor, params->node_of);
    if (!status) {
        *out = monitor;
    }
    return status;
}

void tw_monitor_leave(tw_monitor_t *monitor, const uint64_t *counts)
{
    uint64_t *copy = counts ? malloc((size_t)monitor->world * sizeof(*copy)) : NULL;
    if (copy) {
        memcpy(copy, counts, (size_t)monitor->world * sizeof(*copy));
    }
    pthread_mutex_lock(&monitor->lock);
    if (monitor->orders.stop) {
        free(copy);
    } else {
        monitor->orders.goodbye = copy;
        monitor->orders.stop = 1;
    }
    pthread_mutex_unlock(&monitor->lock);
    tw_monitor_signal(monitor->wake_fd);
}

int tw_monitor_has_left(const tw_monitor_t *monitor)
{
    return atomic_load(&monitor->has_left);
}

void tw_monitor_destroy(tw_monitor_t *monitor)
{
    if (!monitor) {
        return;
    }
    tw_monitor_leave(monitor, NULL);
    pthread_join(monitor->thread, NULL);
    monitor_free(monitor);
}
