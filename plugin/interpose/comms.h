/** The job's communicators: which ranks share a node, and the collectives on them. What is learned is learned
 *  once, together with the other ranks, with the first call that would be quantized; one that has none costs
 *  nothing. Whether all ranks have the interposer is asked before, elsewhere (meet.h): until that is known,
 *  no other call of NCCL is made than the job's own. */
#ifndef TW_PLUGIN_INTERPOSE_COMMS_H
#define TW_PLUGIN_INTERPOSE_COMMS_H

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
    ncclDataType_t type; /**< NCCL takes it for calls of this type alone */
    float factor;
} tw_ip_scale_t;

typedef struct tw_ip_comm {
    LIST_ENTRY(tw_ip_comm) link;
    ncclComm_t nccl;
    int n_users;              /**< threads that look at it, and the table; under the table's lock */
    tw_ip_meeting_t *meeting; /**< NULL: not known; under the table's lock */
    tw_coll_gate_t gate;      /**< closed before `nccl` is ended; any thread */
    pthread_mutex_t lock;     /**< of all that follows */
    int world;                /**< 0: not asked yet */
    int is_known;
    int has_gone;           /**< `nccl` is no more, but a thread had a call of it */
    tw_ip_reason_t why_not; /**< TW_IP_REPLACED: calls may be quantized. Once known */
    ncclResult_t error;     /**< what learning has ended with */
    tw_coll_t *coll;        /**< NULL: none */
    double ring_share;      /**< of a ring's bytes between nodes, what one rank sends */
    uint32_t step;          /**< calls replaced so far */
    tw_ip_clock_t clock;
    LIST_HEAD(, tw_ip_scale) scales;
} tw_ip_comm_t;

/** The one of this handle, made if it is new; NULL: out of memory, or no handle. Give it back with put. Any
 *  thread. */
tw_ip_comm_t *tw_ip_comm_get(ncclComm_t nccl);
void tw_ip_comm_put(tw_ip_comm_t *comm);

/* With comm->lock. */
/** How many ranks; 0: NCCL does not say. */
int tw_ip_comm_world(tw_ip_comm_t *comm);
/** Meet the other ranks, unless that was done. Collective, blocks. An error stays. */
ncclResult_t tw_ip_comm_learn(tw_ip_comm_t *comm);
/** Nothing is quantized from now on. */
void tw_ip_comm_rule_out(tw_ip_comm_t *comm, tw_ip_reason_t why);

/** A communicator was made, in or outside of a group; its ranks meet there. What was known of an older one
 *  with this handle is gone. */
void tw_ip_comm_made(ncclComm_t nccl, tw_ip_meeting_t *meeting);
/** Where the ranks of one meet; NULL: not known. */
tw_ip_meeting_t *tw_ip_comm_meeting(ncclComm_t nccl);
/** It is about to be aborted or revoked: calls of it that are under way in other threads make no more of
 *  NCCL. */
void tw_ip_comm_close(ncclComm_t nccl);
/** A communicator ends: waits for what is under way, or, when it was aborted, gives it up. */
void tw_ip_comm_forget(ncclComm_t nccl, int is_aborted);
/** A communicator does nothing any more, but is there: what is under way is given up, and calls are NCCL's to
 *  refuse. */
void tw_ip_comm_revoke(ncclComm_t nccl);

/** What the job calls its sums: remember, look up for a call of this type (with comm->lock; 0: unknown),
 *  forget. */
void tw_ip_comm_scale_add(ncclComm_t nccl, ncclRedOp_t op, ncclDataType_t type, float factor);
int tw_ip_comm_scale_find(const tw_ip_comm_t *comm, ncclRedOp_t op, ncclDataType_t type, float *factor);
void tw_ip_comm_scale_drop(ncclComm_t nccl, ncclRedOp_t op);

TW_C_END

#endif
