/** Internals of the network backend: a job's ranks as peers of p2p.h, watched by the monitor. Read this
 *  header, then network.c (devices, and how each rank is reached), post.c (messages, including those to or
 *  from a rank that has left), ranks.c (creating, destroying and failing). */
#pragma once

#include "transport/backend.h"
#include "transport/monitor/monitor.h"
#include "transport/options.h"
#include "transport/p2p.h"
#include "transport/rendezvous/rendezvous.h"

TW_C_BEGIN

/** What this rank knows of a rank that has left. */
typedef struct tw_ranks_departed {
    uint64_t n_received; /**< number of messages that had come from the rank at `heard_ns` */
    uint64_t heard_ns;   /**< when anything last came from the rank; 0: not noted yet */
    /** all_said 1: all its messages have arrived; silent 1: nothing has come for too long */
    int all_said, silent;
} tw_ranks_departed_t;

typedef struct tw_ranks {
    tw_transport_t base;
    tw_transport_options_t options;
    tw_monitor_t *monitor;
    tw_rendezvous_t rendezvous;
    tw_p2p_t *p2p;                 /**< a peer's id is its rank */
    tw_ranks_departed_t *departed; /**< [world] */
    uint64_t *n_heard;             /**< [world] messages and reads, as last told to the monitor */
    uint64_t tell_ns;              /**< when to tell the monitor next */
    int n_near, n_far; /**< numbers of other ranks that share memory with this one, and that do not */
    double peer_timeout_sec;
} tw_ranks_t;

static inline tw_ranks_t *tw_ranks_of(tw_transport_t *transport)
{
    return (tw_ranks_t *)transport;
}

static inline int tw_ranks_job_failed(const tw_ranks_t *ranks)
{
    return tw_monitor_failed_rank(ranks->monitor) >= 0;
}

/* ---- network.c ----------------------------------------------------------------------------------------- */

int tw_ranks_shares_memory(const tw_ranks_t *ranks, int rank);
/** Return the devices that are used between nodes, separated by commas. */
const char *tw_ranks_device_list(const tw_ranks_t *ranks);
/** Connect to all ranks. token: the job's. Collective. TW_ERR_PEER: a rank has failed meanwhile;
 *  TW_ERR_CONFIG (devices), TW_ERR_UCX, TW_ERR_FORMAT, TW_ERR_NO_MEMORY; all logged. */
tw_status_t tw_ranks_network_open(tw_ranks_t *ranks, const char *token);

/* ---- post.c -------------------------------------------------------------------------------------------- */

tw_status_t tw_ranks_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                               tw_transport_request_t **out);
tw_status_t tw_ranks_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                               tw_transport_request_t **out);
tw_status_t tw_ranks_test(tw_transport_t *transport, tw_transport_request_t *opaque, size_t *bytes);
void tw_ranks_cancel(tw_transport_t *transport, tw_transport_request_t *opaque);
tw_status_t tw_ranks_progress(tw_transport_t *transport);
tw_status_t tw_ranks_sleep(tw_transport_t *transport, double timeout_sec);
/** Sleep for internal reasons. tw_transport_wake does not end this sleep, but the caller's next one. */
tw_status_t tw_ranks_nap(tw_ranks_t *ranks, double timeout_sec);
void tw_ranks_wake(tw_transport_t *transport);

TW_C_END
