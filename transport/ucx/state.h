/** The inside of the ucx backend: a job's ranks as peers of p2p.h, watched by the monitor. Read this header,
 *  then network.c (devices, and who is reached how), post.c (messages, and what becomes of those that need a
 *  rank which has left), transport_ucx.c (life and failing). */
#ifndef TW_TRANSPORT_UCX_STATE_H
#define TW_TRANSPORT_UCX_STATE_H

#include "transport/backend.h"
#include "transport/monitor/monitor.h"
#include "transport/options.h"
#include "transport/p2p.h"
#include "transport/rendezvous/rendezvous.h"

TW_C_BEGIN

/** What has come of a rank since it has left. */
typedef struct tw_ucx_departed {
    uint64_t n_received;  /**< messages, when `heard_ns` was noted */
    uint64_t heard_ns;    /**< 0: not noted yet */
    int all_said, silent; /**< all its messages are here; nothing came for too long */
} tw_ucx_departed_t;

typedef struct tw_ucx_transport {
    tw_transport_t base;
    tw_transport_options_t options;
    tw_monitor_t *monitor;
    tw_rendezvous_t rendezvous;
    tw_p2p_t *p2p;               /**< peers' ids are their ranks */
    tw_ucx_departed_t *departed; /**< [world] */
    uint64_t *n_heard; /**< [world] messages and reads, when the monitor was last told who was heard */
    uint64_t tell_ns;  /**< when it is told again */
    int n_near, n_far; /**< other ranks that share memory with this one, or do not */
    double peer_timeout_sec;
} tw_ucx_transport_t;

static inline tw_ucx_transport_t *tw_ucx_of(tw_transport_t *transport)
{
    return (tw_ucx_transport_t *)transport;
}

static inline int tw_ucx_job_failed(const tw_ucx_transport_t *ucx)
{
    return tw_monitor_failed_rank(ucx->monitor) >= 0;
}

/* ---- network.c ----------------------------------------------------------------------------------------- */

int tw_ucx_shares_memory(const tw_ucx_transport_t *ucx, int rank);
/** The devices in use between nodes, separated by commas. */
const char *tw_ucx_device_list(const tw_ucx_transport_t *ucx);
/** Reach all ranks, and be reached by them; token: the job's. Collective. TW_ERR_PEER: one has failed
 *  meanwhile; TW_ERR_CONFIG (devices), TW_ERR_UCX, TW_ERR_FORMAT, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_ucx_network_open(tw_ucx_transport_t *ucx, const char *token);

/* ---- post.c -------------------------------------------------------------------------------------------- */

tw_status_t tw_ucx_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out);
tw_status_t tw_ucx_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out);
tw_status_t tw_ucx_test(tw_transport_t *transport, tw_transport_request_t *opaque, size_t *bytes);
void tw_ucx_cancel(tw_transport_t *transport, tw_transport_request_t *opaque);
tw_status_t tw_ucx_progress(tw_transport_t *transport);
tw_status_t tw_ucx_sleep(tw_transport_t *transport, double timeout_sec);
/** Sleep as the transport's own business: a wake-up is left to the caller's next sleep. */
tw_status_t tw_ucx_nap(tw_ucx_transport_t *ucx, double timeout_sec);
void tw_ucx_wake(tw_transport_t *transport);

TW_C_END

#endif
