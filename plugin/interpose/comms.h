/** The job's communicators, and the library's own communicator (tw_coll_t) over each. At the first call that
 *  would be quantized, all ranks find out together whether they span nodes; a communicator without such a
 *  call costs nothing. First of all meet.h asks whether all ranks have the interposer. Until the answer is
 *  yes, the interposer itself sends nothing over NCCL's communicator. */
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
    int n_users; /**< references: the table's, and one for each tw_ip_comm_get; under the table's lock */
    /** NULL if the communicator was made without a call of this library; under the table's lock */
    tw_ip_meeting_t *meeting;
    tw_coll_gate_t gate;    /**< closed before `nccl` ends; any thread */
    pthread_mutex_t lock;   /**< guards all below */
    int world;              /**< number of ranks; 0: NCCL was not asked yet */
    int is_known;           /**< 1: tw_ip_comm_learn has run, or the communicator was ruled out */
    int has_gone;           /**< 1: the communicator was destroyed or aborted */
    tw_ip_reason_t why_not; /**< TW_IP_REPLACED: calls may be quantized. Valid if is_known */
    ncclResult_t error;     /**< what tw_ip_comm_learn returned, and returns again */
    tw_coll_t *coll;        /**< NULL: nothing is quantized */
    double ring_share;      /**< part of a ring's inter-node bytes that one rank sends */
    uint32_t step;          /**< calls replaced so far */
    tw_ip_clock_t clock;
    LIST_HEAD(, tw_ip_scale) scales;
} tw_ip_comm_t;

/** Get the entry of a communicator; a handle without one gets a new entry. Returns NULL if the handle is NULL
 *  or memory is short. The caller releases the entry with tw_ip_comm_put. Any thread. */
tw_ip_comm_t *tw_ip_comm_get(ncclComm_t nccl);
void tw_ip_comm_put(tw_ip_comm_t *comm);

/* The caller of these three holds comm->lock. */
/** Returns the number of ranks, or 0 if NCCL does not tell it. */
int tw_ip_comm_world(tw_ip_comm_t *comm);
/** Find out together with the other ranks whether calls may be quantized (comm->why_not), and create
 *  comm->coll if so. Collective; blocks. Only the first call does this; later ones return its result. */
ncclResult_t tw_ip_comm_learn(tw_ip_comm_t *comm);
/** Leave all calls on this communicator to NCCL from now on. */
void tw_ip_comm_rule_out(tw_ip_comm_t *comm, tw_ip_reason_t why);

/** Tell that NCCL has made a communicator; its ranks meet at `meeting`. Drops an old entry of the handle. */
void tw_ip_comm_made(ncclComm_t nccl, tw_ip_meeting_t *meeting);
/** Returns the meeting at which the communicator's ranks have registered, or NULL if none is known. */
tw_ip_meeting_t *tw_ip_comm_meeting(ncclComm_t nccl);
/** Tell that NCCL derives a communicator from `parent` in the background. NCCL writes the handle to *out when
 *  it is done; *out must exist until tw_ip_comm_arrived(parent), or tw_ip_comm_arrived(*out) if `parent` is
 *  NULL, as on a rank that ncclCommGrow adds. ncclSystemError: out of memory. */
ncclResult_t tw_ip_comm_expect(ncclComm_t parent, ncclComm_t *out, tw_ip_meeting_t *meeting);
/** Tell that NCCL has no more work in the background for `nccl`. The communicators that were expected from
 *  it, and `nccl` itself if it was expected, are now made. */
void tw_ip_comm_arrived(ncclComm_t nccl);
/** Call this before aborting or revoking: quantized calls in other threads then stop calling NCCL. */
void tw_ip_comm_close(ncclComm_t nccl);
/** Drop the entry of a communicator that ends. Waits for its operations; cancels them if is_aborted. */
void tw_ip_comm_forget(ncclComm_t nccl, int is_aborted);
/** Tell that a communicator was revoked: it still exists, but does no more work. Cancels its running
 *  operations. Further calls go to NCCL, which refuses them. */
void tw_ip_comm_revoke(ncclComm_t nccl);

/** Add, find or drop an operation that the job made with ncclRedOpCreatePreMulSum: it multiplies by a factor,
 *  then adds. `find` returns 0 if none is known for a call of `type`; its caller holds comm->lock. */
void tw_ip_comm_scale_add(ncclComm_t nccl, ncclRedOp_t op, ncclDataType_t type, float factor);
int tw_ip_comm_scale_find(const tw_ip_comm_t *comm, ncclRedOp_t op, ncclDataType_t type, float *factor);
void tw_ip_comm_scale_drop(ncclComm_t nccl, ncclRedOp_t op);

TW_C_END
