/** Structs and functions that meet.c, worker.c and comm.c share. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

#include "plugin/nccl/collnet/collnet.h"
#include "transport/transport.h"

TW_C_BEGIN

/** The most requests of one communicator at a time. NCCL uses fewer: steps times groups of channels. */
#define TW_COLLNET_REQUESTS 128

/* ---- meet.c -------------------------------------------------------------------------------------------- */

/** All that a rank needs to join the others: rank 0's address and token from its handle (job), and the
 *  listener's device and settings. */
typedef struct tw_collnet_meeting {
    tw_job_t job;
    int listener; /**< rank 0: socket, owned, from its tw_collnet_listener_t; other ranks: -1 */
    const tw_net_device_t *device;
    tw_collnet_settings_t settings;
} tw_collnet_meeting_t;

/** Fill in a meeting from the ranks' handles. TW_ERR_FORMAT, TW_ERR_INVALID, logged. */
tw_status_t tw_collnet_meeting_init(tw_collnet_meeting_t *meeting, void **handles, int world, int rank,
                                    tw_collnet_listener_t *listener);
/** Make a transport between the ranks, on which each rank counts as a separate node, as NCCL has one collnet
 *  rank on a node. Collective, blocks. Errors as tw_transport_create. */
tw_status_t tw_collnet_meet(tw_collnet_meeting_t *meeting, tw_transport_t **out);

/* ---- worker.c, comm.c ---------------------------------------------------------------------------------- */

struct tw_collnet_request {
    TAILQ_ENTRY(tw_collnet_request) link; /**< in one of the lists below */
    tw_collnet_comm_t *comm;
    tw_collnet_work_t work;
    tw_status_t status;           /**< TW_IN_PROGRESS until the request has ended */
    tw_coll_request_t *operation; /**< used only by the worker */
};

typedef TAILQ_HEAD(tw_collnet_requests, tw_collnet_request) tw_collnet_requests_t;

struct tw_collnet_comm {
    tw_collnet_meeting_t meeting;
    pthread_t thread;
    pthread_mutex_t lock; /**< guards all below, up to is_orphan */
    pthread_cond_t changed;
    tw_status_t status; /**< TW_IN_PROGRESS until the ranks are connected; an error ends the communicator */
    tw_collnet_requests_t idle, posted, running;
    int is_asleep;  /**< the worker sleeps, and must be woken */
    int gives_up;   /**< the worker must cancel all operations */
    int is_closing; /**< the worker must end */
    int has_ended;  /**< the worker has ended */
    int is_orphan;  /**< tw_collnet_close has returned, so the worker frees this struct */
    /* Only the worker uses all below, but any thread may wake the transport once ranks are connected. */
    tw_transport_t *transport;
    tw_coll_t *coll;
    size_t *counts; /**< [world], scratch: each rank's elements in the window of an operation */
    uint32_t n_operations;
    tw_collnet_request_t requests[TW_COLLNET_REQUESTS];
};

/** Start the worker thread, which first connects to the other ranks. TW_ERR_INTERNAL, logged. */
tw_status_t tw_collnet_worker_start(tw_collnet_comm_t *comm);
/** Wake the worker if it sleeps. The caller holds the lock. */
void tw_collnet_worker_wake(tw_collnet_comm_t *comm);
/** Free memory and locks, after the worker has ended. */
void tw_collnet_comm_free(tw_collnet_comm_t *comm);

TW_C_END
