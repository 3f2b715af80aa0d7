/** Communicators: what they are made of, made, ended; which rank is where. In collectives/collectives.h,
 *  which says what they are for. */
#ifndef TW_COLLECTIVES_SETUP_H
#define TW_COLLECTIVES_SETUP_H

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_coll tw_coll_t;
typedef struct tw_transport tw_transport_t; /* transport/transport.h */
struct ncclComm;

/** What carries the bytes. */
typedef enum tw_coll_wire {
    /** The transport. GPU memory: straight from and to it if the transport takes it, else through pinned host
     *  memory (TW_COLL_GPU_WORKSPACE). */
    TW_COLL_WIRE_TRANSPORT,
    /** NCCL, for GPU memory: all of an operation is enqueued when it is posted. */
    TW_COLL_WIRE_NCCL,
} tw_coll_wire_t;

/** Between the calls of NCCL that a communicator makes and whoever ends NCCL's. Zeroed: open. */
typedef struct tw_coll_gate {
    int state;
} tw_coll_gate_t;

/** What a communicator is made of; over a communicator of NCCL: tw_coll_nccl_params_t. Zeroed: all ranks of
 *  the transport, host memory. */
typedef struct tw_coll_params {
    /** Borrowed, must outlive the communicator. Over NCCL the ranks only meet there, and hear of failures. */
    tw_transport_t *transport;
    const int *ranks; /**< [n_ranks] transport ranks in communicator order; NULL: all */
    int n_ranks;
    int id; /**< 0: agreed, the lowest that is free on all members; else 1 to 255, the same on all members */
    tw_mem_t mem;        /**< of all tensors */
    tw_coll_wire_t wire; /**< NCCL: only with GPU memory */
    /** 1, or TW_COLL_DETERMINISTIC: results depend on the input, the codec and where the ranks are alone; see
     *  collectives.h. The same on all members. */
    int deterministic;
    /** 1: a thread of the library owns the transport from now on, until the last such communicator of the
     *  transport has been destroyed: it moves all that is in flight, sleeps when there is nothing to do, and
     *  is woken by a post. All communicators of a transport have it or none (else TW_ERR_INVALID), and are
     *  made in the same order on all ranks; the first is made and the last destroyed while no other call is
     *  under way. */
    int progress_thread;
    /** 1: once it is made, it waits for ranks that are alive for as long as they take: TW_COLL_TIMEOUT does
     *  not count. */
    int patient;
    /** Above 0: instead of TW_COLL_TIMEOUT; see also tw_coll_timeout_set. */
    double timeout_sec;
} tw_coll_params_t;

/** What a communicator over one of NCCL's is made of: for GPU memory, without a transport. */
typedef struct tw_coll_nccl_params {
    /** The ranks are its ranks, as PyTorch has them. They are on one node if their TW_NODE_ID is the same, or
     *  else their NCCL_HOSTID, or else host name and boot. */
    struct ncclComm *comm;
    /** 0: an own communicator of NCCL is split off `comm`, so that neither disturbs the other. 1: operations
     *  are enqueued on `comm` itself, in order with its other calls; it is neither ended nor aborted here,
     *  and outlives the communicator. Each rank is a process of its own: TW_ERR_UNSUPPORTED on all ranks (a
     *  warning is logged) where one has several, as a thread that has two ranks would wait for itself. */
    int shared;
    /** With `shared`: closed by whoever ends `comm` while another thread may be in a call of this
     *  communicator, or making it; outlives it. NULL: nobody does that. */
    tw_coll_gate_t *gate;
    /** What else must be the same on all ranks, a hash. TW_ERR_MISMATCH on all of them (logged with a rank)
     *  if it is not. */
    uint64_t terms;
    int deterministic;  /**< as in tw_coll_params_t */
    double timeout_sec; /**< as in tw_coll_params_t */
} tw_coll_nccl_params_t;

/** Collective over the ranks, blocks: measures the links unless TW_COLL_MODEL gives them or it is
 *  deterministic. Ranks that share communicators make them in the same order, one at a time. TW_ERR_INVALID
 *  (logged), also for an id that is in use on a member; TW_ERR_MISMATCH (logged with the rank): members ask
 *  for different ids or kinds, or list different ranks: then the job is given up; TW_ERR_TIMEOUT (logged with
 *  the rank): nothing has come from a member for TW_COLL_TIMEOUT; TW_ERR_UNSUPPORTED (logged) where there is
 *  no GPU, this was built without CUDA or NCCL, or TW_COLL_GPU_WORKSPACE is device and the transport takes no
 *  GPU memory; TW_ERR_CONFIG (logged with the variable); TW_ERR_NCCL, TW_ERR_CUDA, TW_ERR_PEER. */
tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out);
/** The same over a communicator of NCCL. Collective over its ranks, blocks. TW_ERR_INVALID (logged): there is
 *  none; else as tw_coll_create. */
tw_status_t tw_coll_nccl_create(const tw_coll_nccl_params_t *params, tw_coll_t **out);
/** The ranks of the whole job, as the launcher's environment has them (torchrun, Open MPI, PMI, Slurm;
 *  without any, a job of one rank), and a transport between them, which the communicator owns. params:
 *  memory, wire and the like, without transport and ranks; NULL: all zero. Collective, blocks until all ranks
 *  are there (TW_JOIN_TIMEOUT). Errors as of tw_coll_create, and TW_ERR_CONFIG, TW_ERR_TIMEOUT (logged with
 *  the variable, or the ranks that are missing). */
tw_status_t tw_coll_world_create(const tw_coll_params_t *params, tw_coll_t **out);
/** 1 if a launcher's variables are in the environment: this process is a rank of its job. */
int tw_coll_launched(void);
/** Some of a communicator's ranks: those of a node, of a rail, of a data-parallel group. ranks: [n_ranks]
 *  ranks of `parent`, in the order of the new ones, the same list on all of them, own rank among them.
 *  Collective over these ranks alone. Like the parent but for the ranks, and destroyed before a parent that
 *  owns the transport. TW_ERR_UNSUPPORTED (logged) if the parent was made by tw_coll_nccl_create;
 *  errors as of tw_coll_create. */
tw_status_t tw_coll_group_create(tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out);
/** The same for tensors in memory of another kind than the parent's; GPU memory: of the current device. */
tw_status_t tw_coll_group_create_for(tw_coll_t *parent, tw_mem_t mem, const int *ranks, int n_ranks,
                                     tw_coll_t **out);
/** On host memory, cancels what is in flight; on GPU memory, waits for it, not longer than TW_COLL_TIMEOUT.
 *  Frees all requests. Accepts NULL. In a process that was forked from the one that made it: does nothing. */
void tw_coll_destroy(tw_coll_t *coll);

int tw_coll_rank(const tw_coll_t *coll);
int tw_coll_size(const tw_coll_t *coll);
int tw_coll_n_nodes(const tw_coll_t *coll);
/** The node of a rank, from 0 in the order of their lowest rank, and the rank's place on it in rank order.
 *  The ranks of equal local index, one per node, are a rail. */
int tw_coll_node_of(const tw_coll_t *coll, int rank);
int tw_coll_local_of(const tw_coll_t *coll, int rank);

/* ---- the gate ------------------------------------------------------------------------------------------ */

/** The communicator of NCCL is about to be ended: from here on NCCL is not called for it; posts, and whoever
 *  waits in tw_coll_nccl_create, end with TW_ERR_CANCELED. Returns when no call of NCCL is under way, or
 *  after a second: such a call waits for other ranks, and ends when NCCL's communicator does. Any thread. */
void tw_coll_gate_close(tw_coll_gate_t *gate);
/** For the owner's own calls of NCCL in such a thread: they begin, unless it is closed (TW_ERR_CANCELED).
 *  NULL: it is open. */
tw_status_t tw_coll_gate_enter(tw_coll_gate_t *gate);
/** They have ended. */
void tw_coll_gate_leave(tw_coll_gate_t *gate);

TW_C_END

#endif
