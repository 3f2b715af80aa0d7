/** The inside of a monitor, shared by monitor.c (the thread and what both sides do), monitor_server.c (rank 0) and
 *  monitor_client.c (the others). */
#ifndef TW_TRANSPORT_MONITOR_STATE_H
#define TW_TRANSPORT_MONITOR_STATE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "transport/monitor/monitor.h"

#define TW_MONITOR_STILL_HERE UINT64_MAX

/** What the owner asks of the thread; under the lock. */
typedef struct tw_monitor_orders {
    int stop;
    uint64_t *goodbye; /**< [world] counts, with stop: leave in order */
    uint8_t *suspects; /**< [world] 1: newly suspected */
    int spread;        /**< a verdict of this rank's own is to be spread */
} tw_monitor_orders_t;

struct tw_monitor {
    int rank, world;
    double peer_timeout_sec;
    uint64_t heartbeat_ns, silence_ns;

    int wake_fd;  /**< owner -> thread */
    int event_fd; /**< thread -> owner */
    pthread_t thread;
    atomic_int failed_rank, has_left;
    _Atomic uint64_t *gone; /**< [world] count, or TW_MONITOR_STILL_HERE */
    pthread_mutex_t lock;   /**< orders and reason */
    tw_monitor_orders_t orders;
    char reason[TW_MSG_TEXT_BYTES];

    /* The thread's own. */
    tw_channel_t *channels;
    int n_channels;
    struct pollfd *pollfds; /**< [1 + n_channels] */
    uint64_t next_heartbeat_ns;
    uint64_t awake_ns;          /**< when the thread last looked around */
    uint64_t *suspect_until_ns; /**< [world] rank 0 only; 0: not suspected */
    int leaving;                /**< stop was ordered */
    int said_goodbye;
    uint64_t leave_by_ns;
};

/** The first verdict stands, is logged, and wakes the owner; returns 1 if this is it. Any thread. */
int tw_monitor_verdict(tw_monitor_t *monitor, int rank, const char *reason);
void tw_monitor_mark_gone(tw_monitor_t *monitor, int rank, uint64_t count);
int tw_monitor_is_gone(const tw_monitor_t *monitor, int rank);
/** Why a channel broke, in words. */
const char *tw_monitor_why(const tw_channel_t *channel, tw_status_t status);
/** Send {number, text}; a broken channel shows when it is read. */
void tw_monitor_send_notice(tw_channel_t *channel, tw_msg_type_t type, int32_t number, const char *text);

/** One side's reactions, called by the thread. */
typedef struct tw_monitor_role {
    void (*receive)(tw_monitor_t *monitor);                         /**< read all channels */
    void (*judge)(tw_monitor_t *monitor, uint64_t now);             /**< silence, suspicions */
    void (*suspect)(tw_monitor_t *monitor, int rank);               /**< the owner suspects */
    void (*spread)(tw_monitor_t *monitor);                          /**< the owner's own verdict */
    void (*goodbye)(tw_monitor_t *monitor, const uint64_t *counts); /**< the owner leaves in order */
} tw_monitor_role_t;

extern const tw_monitor_role_t tw_monitor_server, tw_monitor_client;

#endif
