/** Communicators: what they are made from, how they are made and ended, and which rank is where. Part of
 *  collectives/collectives.h, which says what they are for. */
#ifndef TW_COLLECTIVES_SETUP_H
#define TW_COLLECTIVES_SETUP_H

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_coll tw_coll_t;
typedef struct tw_transport tw_transport_t; /* see transport/transport.h */
struct ncclComm;

/** What carries the bytes. */
typedef enum tw_coll_wire {
    /** The transport. For GPU memory it carries bytes straight from and to it if it takes such memory, else
     *  through pinned host memory (TW_COLL_GPU_WORKSPACE). */
    TW_COLL_WIRE_TRANSPORT,
    /** NCCL, for GPU memory: all of an operation is enqueued when it is posted. */
    TW_COLL_WIRE_NCCL,
} tw_coll_wire_t;

/** A gate between a communicator's calls of NCCL and whoever ends NCCL's communicator. Zeroed: open. */
typedef struct tw_coll_gate {
    int state;
} tw_coll_gate_t;

/** What a communicator is made from; over a communicator of NCCL that is tw_coll_nccl_params_t. Zeroed: all
 *  ranks of the transport, host memory. */
typedef struct tw_coll_params {
    /** Borrowed, must outlive the communicator. Over NCCL it only serves the ranks to meet and to hear of
     *  failures. */
    tw_transport_t *transport;
    const int *ranks; /**< [n_ranks] transport ranks in communicator order; NULL: all */
    int n_ranks;
    /** 0: the members agree on the lowest that is free on all of them; else 1 to 255, the same on all
     *  members */
    int id;
    tw_mem_t mem;        /**< memory of all tensors */
    tw_coll_wire_t wire; /**< NCCL: only with GPU memory */
    /** 1, or TW_COLL_DETERMINISTIC: results depend only on the input, the codec and the placement of ranks;
     *  see collectives.h. The same on all members. */
    int deterministic;
    /** 1: a thread of the library owns the transport from now on, until the last such communicator of the
     *  transport has been destroyed: it moves all that is in flight, sleeps when there is nothing to do, and
     *  is woken by a post. Either all communicators of a transport have it or none (else TW_ERR_INVALID), and
     *  all ranks make them in the same order; the first is made and the last destroyed while no other call is
     *  under way. */
    int progress_thread;
    /** 1: the communicator, once it is made, waits for living ranks as long as they take: TW_COLL_TIMEOUT
     *  does not apply. */
    int patient;
    /** Above 0: overrides TW_COLL_TIMEOUT; see also tw_coll_timeout_set. */
    double timeout_sec;
} tw_coll_params_t;

/** What a communicator over one of NCCL's is made from: for GPU memory, without a transport. */
typedef struct tw_coll_nccl_params {
    /** NCCL's communicator, whose ranks are the new one's, as in PyTorch. They are on one node if their
     *  TW_NODE_ID is the same, or else their NCCL_HOSTID, or else host name and boot. */
    struct ncclComm *comm;
    /** 0: a communicator of NCCL's is split off `comm`, so that neither disturbs the other. 1: operations are
     *  enqueued on `comm` itself, in order with its other calls; it is neither ended nor aborted here, and
     *  outlives the communicator. Each rank must be a process of its own, as a thread with two ranks would
     *  wait for itself: otherwise TW_ERR_UNSUPPORTED on all ranks (a warning is logged). */
    int shared;
    /** With `shared`: whoever ends `comm` closes it, while another thread may be in a call of this
     *  communicator, or making it; it outlives the communicator. NULL: nobody does that. */
    tw_coll_gate_t *gate;
    /** A hash of what else must be the same on all ranks. TW_ERR_MISMATCH on all of them (logged with a rank)
     *  if it is not. */
    uint64_t terms;
    int deterministic;  /**< see tw_coll_params_t */
    double timeout_sec; /**< see tw_coll_params_t */
} tw_coll_nccl_params_t;

/** Make a communicator. Collective over the ranks, blocks: measures the links unless TW_COLL_MODEL gives them
 *  or it is deterministic. Ranks that share communicators make them in the same order, one at a time.
 *  TW_ERR_INVALID (logged), also for an id that is in use on a member; TW_ERR_MISMATCH (logged with the
 *  rank): members ask for different ids or kinds, or list different ranks: then the job is given up;
 *  TW_ERR_TIMEOUT (logged with the rank): nothing has come from a member for TW_COLL_TIMEOUT;
 *  TW_ERR_UNSUPPORTED (logged) where there is no GPU, this was built without CUDA or NCCL, or
 *  TW_COLL_GPU_WORKSPACE is device and the transport takes no GPU memory; TW_ERR_CONFIG (logged with the
 *  variable); TW_ERR_NCCL, TW_ERR_CUDA, TW_ERR_PEER. */
tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out);
/** The same over a communicator of NCCL. Collective over its ranks, blocks. TW_ERR_INVALID (logged): there is
 *  none; else as tw_coll_create. */
tw_status_t tw_coll_nccl_create(const tw_coll_nccl_params_t *params, tw_coll_t **out);
/** Make a communicator of the whole job's ranks, which the launcher's environment names (torchrun, Open MPI,
 *  PMI, Slurm; without any, a job of one rank), and a transport between them, which it owns. params: memory,
 *  wire and the like, without transport and ranks; NULL: all zero. Collective, blocks until all ranks are
 *  there (TW_JOIN_TIMEOUT). Errors as of tw_coll_create, and TW_ERR_CONFIG, TW_ERR_TIMEOUT (logged with the
 *  variable, or the ranks that are missing). */
tw_status_t tw_coll_world_create(const tw_coll_params_t *params, tw_coll_t **out);
/** 1 if a launcher's variables are in the environment: this process is a rank of its job. */
int tw_coll_launched(void);
/** Make a communicator of some of another one's ranks: those of a node, of a rail, of a data-parallel group.
 *  ranks: [n_ranks] ranks of `parent`, in the order of the new ones, the same list on all of them, own rank
 *  among them. Collective over these ranks alone. All else is as in the parent; if that one owns the
 *  transport, it must be destroyed last. TW_ERR_UNSUPPORTED (logged) if the parent was made by
 *  tw_coll_nccl_create; errors as of tw_coll_create. */
tw_status_t tw_coll_group_create(tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out);
/** The same for tensors in another kind of memory than the parent's; GPU memory is that of the current
 *  device. */
tw_status_t tw_coll_group_create_for(tw_coll_t *parent, tw_mem_t mem, const int *ranks, int n_ranks,
                                     tw_coll_t **out);
/** Destroy a communicator, and free all requests. On host memory, cancels what is in flight; on GPU memory,
 *  waits for it, not longer than TW_COLL_TIMEOUT. Accepts NULL. Does nothing in a process that was forked
 *  from the one that made it. */
void tw_coll_destroy(tw_coll_t *coll);

int tw_coll_rank(const tw_coll_t *coll);
int tw_coll_size(const tw_coll_t *coll);
int tw_coll_n_nodes(const tw_coll_t *coll);
/** Seconds that the cost model has for a byte through a node's link; 1 Gb/s if nothing is said of it. */
double tw_coll_link_byte_sec(const tw_coll_t *coll);
/** The node of a rank, from 0 in the order of their lowest rank, and the rank's place on it in rank order.
 *  The ranks of equal local index, one per node, are a rail. */
int tw_coll_node_of(const tw_coll_t *coll, int rank);
int tw_coll_local_of(const tw_coll_t *coll, int rank);

/* ---- the gate ------------------------------------------------------------------------------------------ */

/** Close the gate before ending the communicator of NCCL: from now on NCCL is not called for it; posts, and
 *  whoever waits in tw_coll_nccl_create, end with TW_ERR_CANCELED. Returns when no call of NCCL is under way,
 *  or after a second: such a call waits for other ranks, and ends when NCCL's communicator does. Any
 *  thread. */
void tw_coll_gate_close(tw_coll_gate_t *gate);
/** Begin calls of NCCL that the owner itself makes in such a thread. TW_ERR_CANCELED: the gate is closed.
 *  NULL counts as open. */
tw_status_t tw_coll_gate_enter(tw_coll_gate_t *gate);
/** End such calls. */
void tw_coll_gate_leave(tw_coll_gate_t *gate);

TW_C_END

#endif
