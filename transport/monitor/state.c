/** What both sides of a monitor need: publish a verdict, note a goodbye, send a notice. */
#include "transport/monitor/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

/** Longest time that data waits in a network queue: to fill it, and to resend what did not fit. */
#define QUEUE_NS 5000000000ull

void tw_monitor_signal(int fd)
{
    (void)eventfd_write(fd, 1); /* fails only if the event is set already */
}

void tw_monitor_publish(tw_monitor_t *monitor, int rank, const char *reason)
{
    if (rank == monitor->rank) {
        tw_error("rank %d: this rank failed: %s", monitor->rank, reason);
    } else {
        tw_error("rank %d: peer %d failed: %s", monitor->rank, rank, reason);
    }
    atomic_store(&monitor->failed_rank, rank);
    tw_monitor_signal(monitor->event_fd);
}

static int rank_is_far(const tw_monitor_t *monitor, int rank)
{
    const int *node_of = monitor->outages.node_of;
    return rank != monitor->rank && (!node_of || node_of[rank] != node_of[monitor->rank]);
}

void tw_monitor_note_data(tw_monitor_t *monitor, int rank, uint64_t now)
{
    if (rank_is_far(monitor, rank)) {
        monitor->data_ns = now;
    }
}

uint64_t tw_monitor_patience_ns(const tw_monitor_t *monitor, int rank, uint64_t now)
{
    const int is_busy = monitor->data_ns && now < monitor->data_ns + monitor->outages.long_ns;
    return monitor->silence_ns + (is_busy && rank_is_far(monitor, rank) ? QUEUE_NS : 0);
}

void tw_monitor_mark_gone(tw_monitor_t *monitor, int rank, uint64_t count)
{
    atomic_store(&monitor->gone[rank], count);
    tw_debug("rank %d: peer %d has left", monitor->rank, rank);
    tw_monitor_signal(monitor->event_fd);
}

int tw_monitor_is_gone(const tw_monitor_t *monitor, int rank)
{
    return atomic_load(&monitor->gone[rank]) != TW_MONITOR_STILL_HERE;
}

int tw_monitor_everyone_is_gone(const tw_monitor_t *monitor)
{
    for (int r = 0; r < monitor->world; r++) {
        if (!tw_monitor_is_gone(monitor, r)) {
            return 0;
        }
    }
    return 1;
}

int tw_monitor_has_verdict(const tw_monitor_t *monitor)
{
    return atomic_load(&monitor->failed_rank) >= 0;
}

tw_status_t tw_monitor_gathered(tw_monitor_t *monitor, const void *lists, size_t bytes)
{
    /* Allocate one byte more than the lists have: malloc(0) may return NULL without a failure. */
    monitor->gathered = malloc(bytes + 1);
    if (!monitor->gathered) {
        return TW_ERR_NO_MEMORY;
    }
    memcpy(monitor->gathered, lists, bytes);
    monitor->gathered_bytes = bytes;
    atomic_store(&monitor->has_gathered, 1);
    tw_monitor_signal(monitor->event_fd);
    return TW_OK;
}

void tw_monitor_lists_forget(tw_monitor_t *monitor)
{
    for (int r = 0; monitor->lists && r < monitor->world; r++) {
        free((void *)(uintptr_t)monitor->lists[r].data);
        monitor->lists[r] = (tw_msg_blob_t){0};
    }
    monitor->n_lists = 0;
    monitor->lists_by_ns = 0;
}

const char *tw_monitor_why(const tw_connection_t *connection, tw_status_t status)
{
    if (status != TW_ERR_IO) {
        return tw_status_string(status);
    }
    return connection->error ? strerror(connection->error) : "it closed its connection without a goodbye";
}

void tw_monitor_send_notice(tw_connection_t *connection, tw_msg_type_t type, int32_t number, const char *text)
{
    tw_msg_writer_t notice = {0};
    tw_msg_notice_write(number, text, &notice);
    (void)tw_connection_send_written(connection, type, &notice);
}
