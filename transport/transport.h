/** Thinwire transport: rendezvous, tagged non-blocking messages between the ranks of a job, counters.
 *
 *  Only one thread at a time may use a transport, except for tw_transport_wake, which any thread may call.
 *  Different transports are independent. Only functions that say so block. Once a peer has failed, every call
 *  returns TW_ERR_PEER, and tw_transport_failed_rank names it.
 *
 *  Read the folders in this order: backend.h and transport.c (what a backend is); control/ (sockets and
 *  authenticated connections: messages.h, then token.h); rendezvous/ (how ranks find and authenticate each
 *  other: rendezvous.h); monitor/ (who is alive: monitor.h); p2p.h and p2p/ (messages over UCX or TCP between
 *  processes that know nothing of ranks: p2p/state.h); ranks/ (a job's ranks, on top of the others). */
#ifndef TW_TRANSPORT_TRANSPORT_H
#define TW_TRANSPORT_TRANSPORT_H

#include "core/core.h"

TW_C_BEGIN

/* ---- the job ------------------------------------------------------------------------------------------- */

#define TW_JOB_NAME_BYTES 256

/** Which rank of which job this process is, from the launcher. Plain data. */
typedef struct tw_job {
    int rank, world;
    int local_rank, local_world;         /**< -1 if the launcher does not say */
    char master_addr[TW_JOB_NAME_BYTES]; /**< host of rank 0 */
    int master_port;
    /** the shared secret, which is never sent: TW_JOB_TOKEN; if that is not set, made of the job's id */
    char token[TW_JOB_NAME_BYTES];
    const char *launcher; /**< "torchrun", "openmpi", "pmi", "slurm", "single"; static storage */
} tw_job_t;

/** Fill in a job from a launcher's variables. Looks in this order for torchrun's RANK WORLD_SIZE LOCAL_RANK
 *  LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT, Open MPI's OMPI_COMM_WORLD_*, PMI(x)'s PMI_RANK PMI_SIZE, and
 *  Slurm's SLURM_PROCID SLURM_STEP_NUM_TASKS ... Without any of them, the job has one rank. TW_ERR_CONFIG,
 *  logged with the variable's name, if a set is incomplete or makes no sense. */
tw_status_t tw_job_from_env(tw_job_t *job);
/** Returns 1 if a launcher's variables are set. */
int tw_job_launched(void);

/* ---- transport ----------------------------------------------------------------------------------------- */

typedef struct tw_transport tw_transport_t;
typedef struct tw_transport_request tw_transport_request_t;

/** Meet the other ranks and connect: by shared memory within a node, by TCP or UCX between nodes. Collective
 *  over the job. Blocks until all ranks have joined or TW_JOIN_TIMEOUT has passed (TW_ERR_TIMEOUT, logged
 *  with the missing ranks). Options come from the environment, see tw_transport_config_table. */
tw_status_t tw_transport_create(const tw_job_t *job, tw_transport_t **out);

/** Parameters for a job with ranks that have found each other without a launcher. */
typedef struct tw_transport_params {
    const tw_job_t *job;
    /** On rank 0: the socket that tw_transport_listen returned, with its port in job->master_port. The
     *  transport owns it from now on, also on failure. -1: the transport makes the socket. */
    int listener;
    const char *net_devices; /**< overrides TW_NET_DEVICES; NULL: use the variable */
    const char *node_id;     /**< overrides TW_NODE_ID; NULL: use the variable */
    double peer_timeout_sec; /**< overrides TW_PEER_TIMEOUT; 0: use the variable */
} tw_transport_params_t;

/** Do what tw_transport_create does, with these parameters. */
tw_status_t tw_transport_create_with(const tw_transport_params_t *params, tw_transport_t **out);
/* Names that version 0.2 had for the functions above. */
#define tw_transport_ucx_create tw_transport_create
#define tw_transport_ucx_create_with tw_transport_create_with
#define tw_transport_ucx_params_t tw_transport_params_t
/** Listen for other ranks as soon as this process knows that it is rank 0. Chooses a free port and stores it
 *  in *port. If `host` is a loopback address, listens on loopback only. Returns the socket, which the caller
 *  passes on in tw_transport_params_t or closes; -1 with errno set on failure. */
int tw_transport_listen(const char *host, int *port);

/** Leave the job and free the transport. Posted requests are canceled. Takes a bounded time, also after a
 *  failure. But rank 0, which watches over the others, stays until they have destroyed their transports or
 *  one of them has failed. Accepts NULL. In a process forked from the one that joined the job, this function
 *  does nothing, and all that return a status return TW_ERR_INVALID (logged). */
void tw_transport_destroy(tw_transport_t *transport);

int tw_transport_rank(const tw_transport_t *transport);
int tw_transport_world(const tw_transport_t *transport);
/** Return the node of a rank. Nodes are numbered from 0 in the order of their lowest rank. */
int tw_transport_node_of(const tw_transport_t *transport, int rank);
int tw_transport_n_nodes(const tw_transport_t *transport);
/** Return the backend's name, "network"; and a line that names the devices and protocols in use. */
const char *tw_transport_name(const tw_transport_t *transport);
const char *tw_transport_describe(const tw_transport_t *transport);

#define TW_TRANSPORT_TAG_BITS 48

/** Post a send or receive of `bytes` (0 allowed) to or from `peer` (own rank allowed). Sender and receiver
 *  must use the same tag (below 2^48) and bytes. Equal tags match in posting order. The buffer is borrowed
 *  until the request is done. A message of another size ends the receive with TW_ERR_TRUNCATED. */
tw_status_t tw_transport_send_post(tw_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                                   size_t bytes, tw_transport_request_t **request);
tw_status_t tw_transport_recv_post(tw_transport_t *transport, int peer, uint64_t tag, void *buffer,
                                   size_t bytes, tw_transport_request_t **request);

/** Return 1 if messages may be in this kind of memory; the same on all ranks. Host memory: always 1. CUDA: 1
 *  over UCX, if on every rank UCX was built with CUDA and finds a GPU, and all ranks are on one node or
 *  TW_NET_TLS is not tcp. If 0, the caller should send from pinned host memory. */
int tw_transport_takes(const tw_transport_t *transport, tw_mem_t mem);
/** Return 1 if a rank of this job needs UCX. It does not if TW_NET_TLS is tcp and it is alone on its node or
 *  TW_NODE_TLS is none. job NULL: use the launcher's variables. Without them, or if they do not say how many
 *  ranks a node has, assume that two ranks may share a node. */
int tw_transport_needs_ucx(const tw_job_t *job);
/** Return 1 if the UCX of this machine supports this kind of memory. */
int tw_transport_ucx_knows(tw_mem_t mem);

/** One message, to send or to receive. A send does not write to `buffer`. */
typedef struct tw_transport_message {
    int peer; /**< unused in p2p.h, where the peer is an argument of each call */
    uint64_t tag;
    void *buffer;
    size_t bytes;
    tw_mem_t mem;       /**< kind of memory of the buffer */
    int may_be_shorter; /**< receive: 1: `bytes` is the buffer's size, and the message may be shorter */
    int when_asked;     /**< send: 1: if longer than TW_EAGER, send only when the receiver asks */
} tw_transport_message_t;

/** Send and receive as the two calls above do, in any memory that the transport takes (TW_ERR_UNSUPPORTED,
 *  logged, for other memory, and for a message to this rank itself outside host memory). Until the request is
 *  done, no kernel may use the buffer in GPU memory, and its GPU must be current. Sender and receiver should
 *  use the same kind of memory: a short message from host memory into GPU memory ends the receive with
 *  TW_ERR_UNSUPPORTED (logged). */
tw_status_t tw_transport_message_send(tw_transport_t *transport, const tw_transport_message_t *message,
                                      tw_transport_request_t **request);
tw_status_t tw_transport_message_recv(tw_transport_t *transport, const tw_transport_message_t *message,
                                      tw_transport_request_t **request);
/** Test a request, without making progress. TW_OK: it is done and freed; TW_IN_PROGRESS; any error: it is
 *  freed, too. TW_ERR_PEER also if the peer has destroyed its transport without sending or receiving this
 *  message, which ends the job. */
tw_status_t tw_transport_test(tw_transport_t *transport, tw_transport_request_t *request);
/** Do what tw_transport_test does. With TW_OK *bytes is the message's size, for a receive with
 *  may_be_shorter. */
tw_status_t tw_transport_test_bytes(tw_transport_t *transport, tw_transport_request_t *request,
                                    size_t *bytes);
/** Cancel a request if it is not done, and free it; its buffer is no longer touched. A short message, or one
 *  of up to TW_NET_CHUNK bytes to another node, may have been sent already. The peer then still receives
 *  it. */
void tw_transport_cancel(tw_transport_t *transport, tw_transport_request_t *request);
/** Make progress on messages, then call the hook; never sleeps. TW_OK: something happened; TW_IN_PROGRESS:
 *  nothing did; or an error. */
tw_status_t tw_transport_progress(tw_transport_t *transport);
/** Sleep until something may have happened (TW_OK); or until the timeout has passed or the hook wants to poll
 *  (TW_IN_PROGRESS); or return an error. */
tw_status_t tw_transport_sleep(tw_transport_t *transport, double timeout_sec);
/** Make the current tw_transport_sleep, or if there is none the next one, return at once with TW_OK. Several
 *  calls before that return count as one. Any thread, at any time between creation and destruction. */
void tw_transport_wake(tw_transport_t *transport);

/** Work to do when messages have arrived or gone. Any user that makes progress on a transport calls the hook,
 *  and so works for all of its users. Otherwise a rank that waits for one thing could block a rank that waits
 *  for another. The user that sets the hook owns this struct. */
typedef struct tw_transport_hook {
    /** Do what is possible now, without waiting and without making progress on the transport. Sets *moved to
     *  1 if it did something. */
    void (*move)(void *arg, int *moved);
    /** Returns 1 if the hook also waits for an event that no message announces: sleeps must be short. */
    int (*polls)(void *arg);
    void *arg;
} tw_transport_hook_t;
/** Set the hook, or remove it (NULL). A transport has at most one. The user that sets it also removes it,
 *  before the transport is destroyed and not from within the hook. */
void tw_transport_hook_set(tw_transport_t *transport, tw_transport_hook_t *hook);
tw_transport_hook_t *tw_transport_hook_get(const tw_transport_t *transport);

/** End the job: on every rank, calls then return TW_ERR_PEER, and tw_transport_failed_rank names this rank or
 *  one that failed just before. Returns when that is so on this rank, within TW_PEER_TIMEOUT. */
void tw_transport_abort(tw_transport_t *transport, const char *reason);
/** Return the rank whose failure ended the job, or -1. If a rank has failed, all others name the same one. If
 *  the link of a node has failed, they name a rank behind it, and the ranks behind it may name one that they
 *  lost. Which of two links has failed can be seen only from a third node. With two nodes, a rank at either
 *  end is named. */
int tw_transport_failed_rank(const tw_transport_t *transport);

/** Payload bytes and messages, counted at the sender when a send is posted. */
typedef struct tw_transport_counters {
    uint64_t bytes, messages;
} tw_transport_counters_t;

/** Get the totals sent to one peer. */
void tw_transport_peer_counters(const tw_transport_t *transport, int peer, tw_transport_counters_t *out);
/** Get the totals sent to other nodes, and to the other ranks of this node. */
void tw_transport_inter_node_counters(const tw_transport_t *transport, tw_transport_counters_t *out);
void tw_transport_in_node_counters(const tw_transport_t *transport, tw_transport_counters_t *out);

extern const tw_config_table_t tw_transport_config_table;

TW_C_END

#endif
