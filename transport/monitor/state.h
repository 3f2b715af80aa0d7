/** Internals of a monitor: state.c (common to both sides), outage.c (whose link is down), server.c (rank 0),
 *  client.c (the other ranks), thread.c (the thread, and the functions of monitor.h). */
#pragma once

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "transport/monitor/monitor.h"
#include "transport/monitor/outage.h"

TW_C_BEGIN

#define TW_MONITOR_STILL_HERE UINT64_MAX
#define TW_MONITOR_WHY_BYTES 96

/** Requests of the monitor's owner to its thread; guarded by the lock. */
typedef struct tw_monitor_orders {
    int stop;
    uint64_t *goodbye;              /**< with `stop`: messages sent, [world]; NULL: no goodbye */
    uint8_t *suspects;              /**< [world] 1: newly suspected */
    char why[TW_MONITOR_WHY_BYTES]; /**< why the last suspect is suspected */
    int blamed;                     /**< a rank that the owner declares failed, or -1 */
    char reason[TW_MSG_TEXT_BYTES];
    const tw_msg_blob_t *own; /**< this rank's bytes for an exchange; NULL: no exchange is requested */
} tw_monitor_orders_t;

/** One rank's report that it cannot reach another. */
typedef struct tw_suspicion {
    /** if the suspect has not said goodbye at this time, it or `by` has failed; 0: no report */
    uint64_t until_ns;
    int by; /**< the rank that reports it */
    char why[TW_MONITOR_WHY_BYTES];
} tw_suspicion_t;

struct tw_monitor {
    int rank, world;
    double peer_timeout_sec, join_timeout_sec;
    uint64_t heartbeat_ns, silence_ns;

    int wake_fd;  /**< owner -> thread */
    int event_fd; /**< thread -> owner */
    pthread_t thread;
    atomic_int failed_rank, has_left, has_gathered;
    /** [world] messages that a rank had sent when it left, or TW_MONITOR_STILL_HERE */
    _Atomic uint64_t *gone;
    atomic_uchar *heard;  /**< [world] 1: data has come from the rank since the thread's last check */
    pthread_mutex_t lock; /**< guards `orders` */
    tw_monitor_orders_t orders;
    uint8_t *gathered; /**< lists of all ranks; owned by the monitor's owner once has_gathered is set */
    size_t gathered_bytes;

    /* Only the thread uses the members below. */
    tw_connection_t *connections;
    int n_connections;
    struct pollfd *pollfds; /**< [1 + n_connections] */
    /** [heard_bytes] a bit for each rank, 1 if its data has come since the last heartbeat */
    uint8_t *heard_bits;
    uint32_t heard_bytes; /**< 0 on rank 0, and if a heartbeat has no room for all ranks */
    uint64_t next_heartbeat_ns;
    uint64_t awake_ns; /**< when the thread last ran */
    uint64_t data_ns;  /**< when data last came here from another node; 0: never */
    int leaving;       /**< `stop` was ordered */
    int said_goodbye;
    uint64_t leave_by_ns;

    /* Only rank 0 uses the members below. */
    tw_outages_t outages;
    tw_suspicion_t *suspicions; /**< [world] */
    /** [world] each rank's bytes of the exchange; data NULL: not received yet */
    tw_msg_blob_t *lists;
    int n_lists;
    uint64_t lists_by_ns; /**< time limit of the exchange; 0: none has begun */
    int said_who_stays;
};

void tw_monitor_signal(int fd);
/** Log the verdict, then show it to the owner. The owner may then end the process, so tell other ranks before
 *  this. Only the thread calls it, once. */
void tw_monitor_publish(tw_monitor_t *monitor, int rank, const char *reason);
int tw_monitor_has_verdict(const tw_monitor_t *monitor);
/** Note that data has come here from `rank`. */
void tw_monitor_note_data(tw_monitor_t *monitor, int rank, uint64_t now);
/** Return how long `rank` may be silent, in ns: longer if its heartbeats may wait behind incoming data. */
uint64_t tw_monitor_patience_ns(const tw_monitor_t *monitor, int rank, uint64_t now);
void tw_monitor_mark_gone(tw_monitor_t *monitor, int rank, uint64_t count);
int tw_monitor_is_gone(const tw_monitor_t *monitor, int rank);
int tw_monitor_everyone_is_gone(const tw_monitor_t *monitor);
/** Give the lists of all ranks to the owner. TW_ERR_NO_MEMORY. */
tw_status_t tw_monitor_gathered(tw_monitor_t *monitor, const void *lists, size_t bytes);
/** Free the lists of an exchange. Only rank 0 has them. */
void tw_monitor_lists_forget(tw_monitor_t *monitor);
/** Return in words why a connection broke. */
const char *tw_monitor_why(const tw_connection_t *connection, tw_status_t status);
/** Send {number, text}. Errors are ignored here: if the connection is broken, the next read reports it. */
void tw_monitor_send_notice(tw_connection_t *connection, tw_msg_type_t type, int32_t number,
                            const char *text);

/** One side's reactions, called by the thread. */
typedef struct tw_monitor_role {
    void (*receive)(tw_monitor_t *monitor);                             /**< read all connections */
    void (*hear)(tw_monitor_t *monitor, int rank, uint64_t now);        /**< data has come from a rank */
    void (*judge)(tw_monitor_t *monitor, uint64_t now);                 /**< judge silences and suspicions */
    void (*suspect)(tw_monitor_t *monitor, int rank, const char *why);  /**< the owner suspects a rank */
    void (*blame)(tw_monitor_t *monitor, int rank, const char *reason); /**< the owner says it failed */
    void (*goodbye)(tw_monitor_t *monitor, const uint64_t *counts);     /**< the owner leaves in order */
    void (*exchange)(tw_monitor_t *monitor, const tw_msg_blob_t *own);  /**< the owner gives its list */
} tw_monitor_role_t;

extern const tw_monitor_role_t tw_monitor_server, tw_monitor_client;

TW_C_END
