/** Communicators: their parameters, how they are made and destroyed, and which rank is on which node. Part
 *  of collectives/collectives.h. */
#ifndef TW_COLLECTIVES_SETUP_H
#define TW_COLLECTIVES_SETUP_H

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_coll tw_coll_t;
typedef struct tw_transport tw_transport_t; /* see transport/transport.h */
struct ncclComm;

/** What carries the bytes. */
typedef enum tw_coll_wire {
    /** The transport. If it takes GPU memory, it moves bytes straight from and to that memory. Otherwise
     *  bytes of GPU memory go through pinned host memory (TW_COLL_GPU_WORKSPACE). */
    TW_COLL_WIRE_TRANSPORT,
    /** NCCL, for GPU memory: posting an operation enqueues all of it. */
    TW_COLL_WIRE_NCCL,
} tw_coll_wire_t;

/** Keeps a communicator from calling NCCL once NCCL's communicator is about to end. Zeroed: open. */
typedef struct tw_coll_gate {
    int state;
} tw_coll_gate_t;

/** Parameters of a communicator. Zeroed: all ranks of the transport, host memory. For a communicator over
 *  one of NCCL's, see tw_coll_nccl_params_t. */
typedef struct tw_coll_params {
    /** Borrowed, must outlive the communicator. Over NCCL it only lets ranks meet and notice failures. */
    tw_transport_t *transport;
    const int *ranks; /**< [n_ranks] transport ranks in communicator order; NULL: all */
    int n_ranks;
    /** 0: the members take the lowest id that is free on all of them. 1 to 255: this id, on all members. */
    int id;
    tw_mem_t mem;        /**< memory of all tensors */
    tw_coll_wire_t wire; /**< NCCL: only with GPU memory */
    /** 1, or TW_COLL_DETERMINISTIC: results depend only on the input, the codec and the placement of ranks
     *  (see collectives.h). Equal on all members. */
    int deterministic;
    /** 1: a thread of the library owns the transport, until the last communicator with such a thread is
     *  destroyed. The thread makes progress on all operations, sleeps when there is nothing to do, and wakes
     *  up at a post. Either all communicators of a transport have it or none (else TW_ERR_INVALID). All
     *  ranks make them in one order. No other call may run while the first is made or the last destroyed. */
    int progress_thread;
    /** 1: once made, the communicator waits for living ranks without limit (no TW_COLL_TIMEOUT). */
    int patient;
    /** Above 0: overrides TW_COLL_TIMEOUT; see also tw_coll_timeout_set. */
    double timeout_sec;
} tw_coll_params_t;

/** Parameters of a communicator over one of NCCL's: for GPU memory, without a transport. */
typedef struct tw_coll_nccl_params {
    /** NCCL's communicator, as in PyTorch; the new one has the same ranks. Ranks are on one node if their
     *  TW_NODE_ID is equal; without it, their NCCL_HOSTID; without either, their host name and boot. */
    struct ncclComm *comm;
    /** 0: a new communicator of NCCL's is split off `comm`, so that neither disturbs the other. 1:
     *  operations are enqueued on `comm` itself, in order with its other calls. The library never ends
     *  `comm`, which must outlive the communicator. Each rank must then be a process of its own, as a thread
     *  with two ranks would wait for itself; else TW_ERR_UNSUPPORTED on all ranks (a warning is logged). */
    int shared;
    /** With `shared`: the owner of `comm` closes the gate before ending `comm`, even while another thread is
     *  in a call of this communicator or makes it. Must outlive the communicator. NULL: nobody does that. */
    tw_coll_gate_t *gate;
    /** A hash of the caller's settings that must be equal on all ranks. If the hashes differ, all ranks get
     *  TW_ERR_MISMATCH (logged with a rank). */
    uint64_t terms;
    int deterministic;  /**< see tw_coll_params_t */
    double timeout_sec; /**< see tw_coll_params_t */
} tw_coll_nccl_params_t;

/** Make a communicator. Collective over the ranks, blocks. Measures the links, unless TW_COLL_MODEL
 *  describes them or the communicator is deterministic. Ranks that share several communicators make them in
 *  the same order, one at a time. Errors:
 *  - TW_ERR_INVALID (logged): a wrong argument, or an id that a member already uses.
 *  - TW_ERR_MISMATCH (logged with the rank): members ask for different ids, have different settings, or list
 *    different ranks. In the last case the job ends.
 *  - TW_ERR_TIMEOUT (logged with the rank): nothing has come from a member for TW_COLL_TIMEOUT.
 *  - TW_ERR_UNSUPPORTED (logged): there is no GPU, the build lacks CUDA or NCCL, or TW_COLL_GPU_WORKSPACE is
 *    device and the transport takes no GPU memory.
 *  - TW_ERR_CONFIG (logged with the variable), TW_ERR_NCCL, TW_ERR_CUDA, TW_ERR_PEER. */
tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out);
/** Make a communicator over one of NCCL's. Collective over its ranks, blocks. TW_ERR_INVALID (logged) if
 *  params->comm is NULL; other errors as of tw_coll_create. */
tw_status_t tw_coll_nccl_create(const tw_coll_nccl_params_t *params, tw_coll_t **out);
/** Make a communicator of all ranks of the job, and a transport between them that it owns. The launcher's
 *  environment tells the ranks (torchrun, Open MPI, PMI, Slurm); without a launcher the job is one rank.
 *  params: memory, wire and so on, but no transport and no ranks; NULL: all zero. Collective, blocks until
 *  all ranks are there (TW_JOIN_TIMEOUT). Errors as of tw_coll_create, and TW_ERR_CONFIG, TW_ERR_TIMEOUT
 *  (logged with the variable, or with the ranks that are missing). */
tw_status_t tw_coll_world_create(const tw_coll_params_t *params, tw_coll_t **out);
/** Returns 1 if a launcher's variables are in the environment, so that this process is a rank of its job. */
int tw_coll_launched(void);
/** Make a communicator of some of the parent's ranks, such as the ranks of a node, a rail or a data-parallel
 *  group. ranks: [n_ranks] ranks of `parent`, in the order of the new ranks; the list is equal on all of
 *  them and contains the own rank. Collective over these ranks only. All other parameters are the parent's.
 *  If the parent owns the transport, destroy it last. TW_ERR_UNSUPPORTED (logged) if tw_coll_nccl_create
 *  made the parent; other errors as of tw_coll_create. */
tw_status_t tw_coll_group_create(tw_coll_t *parent, const int *ranks, int n_ranks, tw_coll_t **out);
/** tw_coll_group_create for tensors in memory of kind `mem`; GPU memory is on the current device. */
tw_status_t tw_coll_group_create_for(tw_coll_t *parent, tw_mem_t mem, const int *ranks, int n_ranks,
                                     tw_coll_t **out);
/** Destroy a communicator, and free all its requests. On host memory, operations in flight are canceled. On
 *  GPU memory, the call waits for them, at most for TW_COLL_TIMEOUT (without limit if one is patient).
 *  Accepts NULL. Does nothing in a process that was forked from the one that made the communicator. */
void tw_coll_destroy(tw_coll_t *coll);

int tw_coll_rank(const tw_coll_t *coll);
int tw_coll_size(const tw_coll_t *coll);
int tw_coll_n_nodes(const tw_coll_t *coll);
/** Seconds per byte of a node's link in the cost model; by default those of 1 Gb/s. */
double tw_coll_link_byte_sec(const tw_coll_t *coll);
/** The node of a rank: nodes are numbered from 0 in the order of their lowest rank. The local index of a
 *  rank: its place among its node's ranks. Both are -1 for a rank that does not exist. The ranks of one
 *  local index are a rail. */
int tw_coll_node_of(const tw_coll_t *coll, int rank);
int tw_coll_local_of(const tw_coll_t *coll, int rank);

/* ---- the gate ------------------------------------------------------------------------------------------ */

/** Close the gate before ending the communicator of NCCL. From now on the library does not call NCCL for it.
 *  Posts, and threads that wait in tw_coll_nccl_create, end with TW_ERR_CANCELED. Returns when no call of
 *  NCCL is under way, or after a second: a call that waits for other ranks ends only when NCCL's
 *  communicator does. Any thread may call this. */
void tw_coll_gate_close(tw_coll_gate_t *gate);
/** Called by the owner around its own calls of NCCL in threads that may run while another thread closes the
 *  gate. TW_ERR_CANCELED: the gate is closed. gate NULL counts as an open gate. */
tw_status_t tw_coll_gate_enter(tw_coll_gate_t *gate);
/** Called by the owner after its calls of NCCL, if tw_coll_gate_enter has returned TW_OK. Accepts NULL. */
void tw_coll_gate_leave(tw_coll_gate_t *gate);

TW_C_END

#endif
