/** The inside of the network backend: a job's ranks as peers of p2p.h, watched by the monitor. Read this
 *  header, then network.c (devices, and who is reached how), post.c (messages, and what becomes of those that
 *  need a rank which has left), ranks.c (life and failing). */
#pragma once

#include "transport/backend.h"
#include "transport/monitor/monitor.h"
#include "transport/options.h"
#include "transport/p2p.h"
#include "transport/rendezvous/rendezvous.h"

TW_C_BEGIN

/** What is known of a rank since it left. */
typedef struct tw_ranks_departed {
    uint64_t n_received; /**< how many messages had come from the rank at `heard_ns` */
    uint64_t heard_ns;   /**< when something last came from it; 0: not noted yet */
    /** all_said 1: all its messages are here; silent 1: nothing has come for too long */
    int all_said, silent;
} tw_ranks_departed_t;

typedef struct tw_ranks {
    tw_transport_t base;
    tw_transport_options_t options;
    tw_monitor_t *monitor;
    tw_rendezvous_t rendezvous;
    tw_p2p_t *p2p;                 /**< a peer's id is its rank */
    tw_ranks_departed_t *departed; /**< [world] */
    uint64_t *n_heard;             /**< [world], messages and reads when the monitor was last told */
    uint64_t tell_ns;              /**< when to tell the monitor again */
    int n_near, n_far; /**< how many other ranks share memory with this one, and how many do not */
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
/** The devices in use between nodes, separated by commas. */
const char *tw_ranks_device_list(const tw_ranks_t *ranks);
/** Connect to all ranks; token: the job's. Collective. TW_ERR_PEER: one has failed meanwhile; TW_ERR_CONFIG
 *  (devices), TW_ERR_UCX, TW_ERR_FORMAT, TW_ERR_NO_MEMORY, logged. */
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
/** Sleep for the transport's own purposes: a wake-up ends the caller's next sleep instead. */
tw_status_t tw_ranks_nap(tw_ranks_t *ranks, double timeout_sec);
void tw_ranks_wake(tw_transport_t *transport);

TW_C_END
