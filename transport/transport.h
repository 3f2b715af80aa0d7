/** Thinwire transport: rendezvous, tagged non-blocking messages between the ranks of a job, counters.
 *
 *  A transport belongs to one thread at a time, but for tw_transport_wake, which any thread may call;
 *  different transports are independent. Nothing here blocks except where it says so. Once a peer has failed,
 *  every call returns TW_ERR_PEER, and tw_transport_failed_rank names it.
 *
 *  The folders, in the order in which to read them: backend.h and transport.c, what a backend is; control/,
 *  sockets and proven connections (messages.h, then token.h); rendezvous/, how ranks find and prove
 *  themselves (rendezvous.h); monitor/, who is alive (monitor.h); p2p.h and p2p/, messages over UCX or TCP
 *  between processes that know nothing of ranks (p2p/state.h); ranks/, a job's ranks on top of all that. */
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
    /** shared secret, which is never sent: TW_JOB_TOKEN, else made of the job's id */
    char token[TW_JOB_NAME_BYTES];
    const char *launcher; /**< "torchrun", "openmpi", "pmi", "slurm", "single"; static storage */
} tw_job_t;

/** Read the environment: torchrun's RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT, Open
 *  MPI's OMPI_COMM_WORLD_*, PMI(x)'s PMI_RANK PMI_SIZE, Slurm's SLURM_PROCID SLURM_NTASKS ...; in that order;
 *  without any of them it is a job of one rank. TW_ERR_CONFIG, logged with the variable's name, when a set is
 *  incomplete or makes no sense. */
tw_status_t tw_job_from_env(tw_job_t *job);
/** Returns 1 if a launcher's variables are set. */
int tw_job_launched(void);

/* ---- transport ----------------------------------------------------------------------------------------- */

typedef struct tw_transport tw_transport_t;
typedef struct tw_transport_request tw_transport_request_t;

/** Meet the other ranks and connect: by shared memory within a node, by TCP or UCX between nodes. Collective
 *  over the job, blocks until all ranks are there or TW_JOIN_TIMEOUT has passed (TW_ERR_TIMEOUT, logged with
 *  the ranks that are missing).
 *  Options: the environment, see tw_transport_config_table. */
tw_status_t tw_transport_create(const tw_job_t *job, tw_transport_t **out);

/** How to make a transport for a job whose ranks have found each other in a way of their own. */
typedef struct tw_transport_params {
    const tw_job_t *job;
    /** On rank 0 the socket of tw_transport_listen, whose port is in the job; the transport owns it, also on
     *  failure. -1: there is none yet. */
    int listener;
    const char *net_devices; /**< overrides TW_NET_DEVICES; NULL: does not */
    const char *node_id;     /**< overrides TW_NODE_ID; NULL: does not */
    double peer_timeout_sec; /**< overrides TW_PEER_TIMEOUT; 0: does not */
} tw_transport_params_t;

/** Do what tw_transport_create does, with these parameters. */
tw_status_t tw_transport_create_with(const tw_transport_params_t *params, tw_transport_t **out);
/* Names of version 0.2. */
#define tw_transport_ucx_create tw_transport_create
#define tw_transport_ucx_create_with tw_transport_create_with
#define tw_transport_ucx_params_t tw_transport_params_t
/** Listen for other ranks as soon as it is known that this is rank 0: on any free port, on the loopback
 *  device alone if `host` is its address. The socket is for tw_transport_params_t, or for the caller to
 *  close. -1: errno says why. */
int tw_transport_listen(const char *host, int *port);

/** Leave the job, and free the transport; posted requests are canceled. That takes a bounded time, also after
 *  a failure; but rank 0, which watches over the others, stays until they have destroyed theirs or one of
 *  them has failed. Accepts NULL. A process that was forked from the one that joined the job has no part in
 *  it: nothing is done there, and all other calls are TW_ERR_INVALID (logged). */
void tw_transport_destroy(tw_transport_t *transport);

int tw_transport_rank(const tw_transport_t *transport);
int tw_transport_world(const tw_transport_t *transport);
/** Nodes are numbered from 0 in the order of their lowest rank. */
int tw_transport_node_of(const tw_transport_t *transport, int rank);
int tw_transport_n_nodes(const tw_transport_t *transport);
/** The backend's name, "network"; and a line about the devices and protocols in use. */
const char *tw_transport_name(const tw_transport_t *transport);
const char *tw_transport_describe(const tw_transport_t *transport);

#define TW_TRANSPORT_TAG_BITS 48

/** Post a send or receive of `bytes` (0 allowed) to or from `peer` (own rank allowed). Sender and receiver
 *  must agree on tag (below 2^48) and bytes; equal tags match in posting order. The buffer is borrowed until
 *  the request is done. A message of another size than posted ends the receive with TW_ERR_TRUNCATED; see
 *  may_be_shorter. */
tw_status_t tw_transport_send_post(tw_transport_t *transport, int peer, uint64_t tag, const void *buffer,
                                   size_t bytes, tw_transport_request_t **request);
tw_status_t tw_transport_recv_post(tw_transport_t *transport, int peer, uint64_t tag, void *buffer,
                                   size_t bytes, tw_transport_request_t **request);

/** 1 if messages may be in such memory; the same on all ranks. Host memory: always. CUDA: over UCX, if on
 *  every rank it was built with CUDA and finds a GPU, and all are on one node or TW_NET_TLS is not tcp:
 *  sockets cannot read GPU memory, so the caller should send from pinned host memory. */
int tw_transport_takes(const tw_transport_t *transport, tw_mem_t mem);
/** 1 if a rank of this job needs UCX: unless it is the only one on its node, and TW_NET_TLS is tcp. job NULL:
 *  the launcher's variables decide. Without them, or if they do not say how many ranks a node has, two ranks
 *  may share a node. */
int tw_transport_needs_ucx(const tw_job_t *job);
/** Returns 1 if the UCX of this machine supports such memory. */
int tw_transport_ucx_knows(tw_mem_t mem);

/** One message. `buffer` is not written to when it is sent. */
typedef struct tw_transport_message {
    int peer; /**< unused in p2p.h, whose calls name the peer beside the message */
    uint64_t tag;
    void *buffer;
    size_t bytes;
    tw_mem_t mem;       /**< where the buffer is */
    int may_be_shorter; /**< receive: `bytes` is the room there is; the message may be shorter */
    int when_asked;     /**< send: if longer than TW_EAGER, it is sent only when the receiver asks for it */
} tw_transport_message_t;

/** Send and receive as the two calls above, in any memory that the transport takes (TW_ERR_UNSUPPORTED,
 *  logged, for other memory, and for own rank outside host memory). No kernel may use GPU memory meanwhile;
 *  the GPU must be current. Both sides should name the same kind: a short message from host memory into
 *  another's ends the receive with TW_ERR_UNSUPPORTED (logged). */
tw_status_t tw_transport_message_send(tw_transport_t *transport, const tw_transport_message_t *message,
                                      tw_transport_request_t **request);
tw_status_t tw_transport_message_recv(tw_transport_t *transport, const tw_transport_message_t *message,
                                      tw_transport_request_t **request);
/** Test a request. TW_OK: it is done and freed; TW_IN_PROGRESS; an error: it is freed, too. It makes no
 *  progress by itself. TW_ERR_PEER also if the peer has destroyed its transport without this message: that
 *  ends the job. */
tw_status_t tw_transport_test(tw_transport_t *transport, tw_transport_request_t *request);
/** Do what tw_transport_test does; on TW_OK *bytes is the message's size, for a receive that may be
 *  shorter. */
tw_status_t tw_transport_test_bytes(tw_transport_t *transport, tw_transport_request_t *request,
                                    size_t *bytes);
/** Cancel the request if it is not done, and free it; then the buffer is no longer touched. A short message,
 *  or one of up to TW_NET_CHUNK to another node, may have been sent already: then the peer still receives
 *  it. */
void tw_transport_cancel(tw_transport_t *transport, tw_transport_request_t *request);
/** Move everything forward, messages and then the hook; never sleeps. TW_OK if something happened,
 *  TW_IN_PROGRESS if nothing did, or an error. */
tw_status_t tw_transport_progress(tw_transport_t *transport);
/** Sleep until something may have happened (TW_OK), or until the timeout or the time when the hook polls
 *  (TW_IN_PROGRESS), or an error. */
tw_status_t tw_transport_sleep(tw_transport_t *transport, double timeout_sec);
/** Make the running tw_transport_sleep, or else the next one, return at once with TW_OK. Several calls before
 *  that count as one. Any thread, at any time between creation and destruction. */
void tw_transport_wake(tw_transport_t *transport);

/** Work to do when messages have come or gone. Whoever makes progress on a transport does it for all of its
 *  users; otherwise a rank that waits for one thing would let another rank wait for something else. The owner
 *  keeps it in memory. */
typedef struct tw_transport_hook {
    /** Do what can be done now, without making progress on the transport and without waiting; *moved = 1 if
     *  there was anything. */
    void (*move)(void *arg, int *moved);
    /** Returns 1 if the hook also waits for something that no message announces, so sleeps must be short. */
    int (*polls)(void *arg);
    void *arg;
} tw_transport_hook_t;
/** Set or remove (NULL) the hook, of which a transport has one at most: whoever sets it also removes it,
 *  before the transport is destroyed and not from within the hook. */
void tw_transport_hook_set(tw_transport_t *transport, tw_transport_hook_t *hook);
tw_transport_hook_t *tw_transport_hook_get(const tw_transport_t *transport);

/** End the job: every rank's calls then return TW_ERR_PEER and name this rank, or one that failed just
 *  before. Returns once this rank's calls do, within TW_PEER_TIMEOUT. */
void tw_transport_abort(tw_transport_t *transport, const char *reason);
/** The rank whose failure ended the job, or -1. If a rank has failed, all ranks that are left name the same
 *  one. If the link of a node has failed, they name a rank behind it, and those behind it may name one that
 *  they lost. A third node shows which of two links it was: with two nodes nobody can know, and a rank at
 *  either end is named. */
int tw_transport_failed_rank(const tw_transport_t *transport);

/** Counted at the sender when a send is posted: payload bytes and messages. */
typedef struct tw_transport_counters {
    uint64_t bytes, messages;
} tw_transport_counters_t;

/** Totals sent to one peer. */
void tw_transport_peer_counters(const tw_transport_t *transport, int peer, tw_transport_counters_t *out);
/** Totals sent to other nodes, and to other ranks of this node. Messages to the own rank count in neither. */
void tw_transport_inter_node_counters(const tw_transport_t *transport, tw_transport_counters_t *out);
void tw_transport_in_node_counters(const tw_transport_t *transport, tw_transport_counters_t *out);

extern const tw_config_table_t tw_transport_config_table;

TW_C_END

#endif
