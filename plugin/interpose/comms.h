/** The job's communicators: which of their ranks share a node, and our collectives on them. All ranks find
 *  that out together, once, at the first call that would be quantized; a communicator without such a call
 *  costs nothing. Before that, meet.h asks whether all ranks have the interposer; until it is known, only the
 *  job's own calls go to NCCL. */
#pragma once

#include <pthread.h>
#include <sys/queue.h>

#include "collectives/collectives.h"
#include "plugin/interpose/clock.h"
#include "plugin/interpose/meet.h"

TW_C_BEGIN

/** An operation that the job made with ncclRedOpCreatePreMulSum. */
typedef struct tw_ip_scale {
    LIST_ENTRY(tw_ip_scale) link;
    ncclRedOp_t op;
    ncclDataType_t type; /**< NCCL takes the operation only in calls of this type */
    float factor;
} tw_ip_scale_t;

typedef struct tw_ip_comm {
    LIST_ENTRY(tw_ip_comm) link;
    ncclComm_t nccl;
    int n_users; /**< the table, and each thread that uses it; under the table's lock */
    /** NULL: this library did not see the communicator being made; under the table's lock */
    tw_ip_meeting_t *meeting;
    tw_coll_gate_t gate;  /**< closed before `nccl` ends; any thread */
    pthread_mutex_t lock; /**< guards all below */
    int world;            /**< number of ranks; 0: not asked yet */
    int is_known;
    int has_gone;           /**< TW_IP_REPLACED: calls may be quantized. Valid once all ranks have met */
    tw_ip_reason_t why_not; /**< result of tw_ip_comm_learn, which later calls return again */
    ncclResult_t error;     /**< result of tw_ip_comm_learn */
    tw_coll_t *coll;        /**< NULL: none */
    double ring_share;      /**< one rank's share of what a ring sends between nodes */
    uint32_t step;          /**< calls replaced so far */
    tw_ip_clock_t clock;
    LIST_HEAD(, tw_ip_scale) scales;
} tw_ip_comm_t;

/** Get what is known of a handle; a new one is added. NULL: out of memory, or the handle is NULL. Give it
 *  back with put. Any thread. */
tw_ip_comm_t *tw_ip_comm_get(ncclComm_t nccl);
void tw_ip_comm_put(tw_ip_comm_t *comm);

/* With comm->lock. */
/** The number of ranks; 0: NCCL does not say. */
int tw_ip_comm_world(tw_ip_comm_t *comm);
/** Meet the other ranks, once. Collective, blocks. Later calls return the same error. */
ncclResult_t tw_ip_comm_learn(tw_ip_comm_t *comm);
/** Leave all calls on this communicator to NCCL from now on. */
void tw_ip_comm_rule_out(tw_ip_comm_t *comm, tw_ip_reason_t why);

/** A communicator was made, in a group or outside; its ranks meet at `meeting`. What was known of an older
 *  communicator with this handle is forgotten. */
void tw_ip_comm_made(ncclComm_t nccl, tw_ip_meeting_t *meeting);
/** The meeting at which the communicator's ranks have registered; NULL: none is known. */
tw_ip_meeting_t *tw_ip_comm_meeting(ncclComm_t nccl);
/** NCCL makes a communicator in the background, of `parent` (NULL: of none), and writes its handle to *out
 *  when that is done: the caller keeps *out until NCCL has said so. ncclSystemError: out of memory. */
ncclResult_t tw_ip_comm_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting);
/** NCCL has nothing more to do in the background for this one: those that were expected of it, or are it,
 *  have been made. */
void tw_ip_comm_arrived(ncclComm_t nccl);
/** The communicator is about to be aborted or revoked: its calls that are under way in other threads make no
 *  more calls of NCCL. */
void tw_ip_comm_close(ncclComm_t nccl);
/** Forget a communicator that ends. Waits for what is under way; if it was aborted, gives that up. */
void tw_ip_comm_forget(ncclComm_t nccl, int is_aborted);
/** A communicator was revoked: it still exists, but does no more work. What is under way is given up, and
 *  NCCL gets all further calls, which it refuses. */
void tw_ip_comm_revoke(ncclComm_t nccl);

/** The job's own operations, which scale and add: remember one, find one for a call of this type (with
 *  comm->lock; returns 0 if it is not known), forget one. */
void tw_ip_comm_scale_add(ncclComm_t nccl, ncclRedOp_t op, ncclDataType_t type, float factor);
int tw_ip_comm_scale_find(const tw_ip_comm_t *comm, ncclRedOp_t op, ncclDataType_t type, float *factor);
void tw_ip_comm_scale_drop(ncclComm_t nccl, ncclRedOp_t op);

TW_C_END
