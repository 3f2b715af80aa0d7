/** Internals of the cluster in a box. Read cluster.c (the caller's side) first, then supervisor.c, node.c
 *  (ranks and their output), network.c (namespaces and links) and message.c.
 *
 *  caller -- supervisor (PID 1 of the outer namespaces, owns the bridge)
 *                |-- node 0 (PID 1 of its namespaces) -- ranks
 *                |-- node 1 ...
 *  Each line is also a socket pair, which carries tw_cluster_message_t down to the nodes and up to the
 *  caller. A process that sees its other end closed ends, too. */
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "cluster/cluster.h"

TW_C_BEGIN

#define TW_CLUSTER_TOKEN_BYTES 33
/** How long the transport waits for a silent peer unless TW_PEER_TIMEOUT is set. */
#define TW_CLUSTER_PEER_TIMEOUT_SEC 10.0

typedef enum tw_cluster_event {
    TW_CLUSTER_GO,       /**< down: go on to the next stage */
    TW_CLUSTER_STOP,     /**< down: end now */
    TW_CLUSTER_SIGNAL,   /**< down, while ranks run: send them this signal */
    TW_CLUSTER_READY,    /**< up: this stage is done */
    TW_CLUSTER_FAILED,   /**< up: no cluster can be made; text says why */
    TW_CLUSTER_EXITED,   /**< up: a rank ended, wait_status says how */
    TW_CLUSTER_FINISHED, /**< up, from the supervisor: the command ran */
} tw_cluster_event_t;

typedef struct tw_cluster_message {
    tw_cluster_event_t event;
    /** TW_CLUSTER_EXITED: the rank that ended, and its wait status. TW_CLUSTER_FINISHED: rank holds the exit
     *  code. TW_CLUSTER_SIGNAL: rank holds the signal. */
    int rank, wait_status;
    /** TW_CLUSTER_FAILED: the reason. TW_CLUSTER_READY and TW_CLUSTER_GO: what could not be set up as it
     *  should be, or "" if nothing. */
    char text[TW_CLUSTER_TEXT_BYTES];
} tw_cluster_message_t;

/** Settings that the supervisor and the nodes inherit from the caller when they are forked. */
typedef struct tw_cluster {
    const tw_cluster_params_t *params;
    int isolated; /**< 1: nodes have namespaces; 0: all on loopback */
    int n_nics;
    double grace_sec;
    int requests;     /**< signalfd that reports signals asking the caller to end */
    sigset_t signals; /**< the caller's original signal mask, which ranks get back */
    int master_port;
    char token[TW_CLUSTER_TOKEN_BYTES];
} tw_cluster_t;

/** Send a message; return 0, or -1 with errno. */
int tw_cluster_send(int fd, const tw_cluster_message_t *message);
/** Wait for a message. Return 1, or 0 if the other end is closed or reading failed. */
int tw_cluster_receive(int fd, tw_cluster_message_t *message);
/** Send an event with a text, which may be NULL. */
void tw_cluster_tell(int fd, tw_cluster_event_t event, const char *text);

/** Fork, into new namespaces if `namespaces` has CLONE_NEW* flags. Return -1 with errno if it fails. The
 *  kernel kills the child when the caller's thread ends. Libraries' fork handlers do not run, because they
 *  might wait for threads that do not exist in the child. */
pid_t tw_cluster_fork(int namespaces);
/** Become root, in a child of tw_cluster_fork with CLONE_NEWUSER. Return 0, or -1 with a reason. */
int tw_cluster_map_user(uid_t uid, gid_t gid, char reason[TW_CLUSTER_TEXT_BYTES]);
/* The network. Nic k of every node is on bridge k. Each bridge has its own subnet. */

/** In the supervisor: make the bridge of a nic. */
int tw_cluster_make_bridge(int nic, char reason[TW_CLUSTER_TEXT_BYTES]);
/** In the supervisor: make the virtual cable of a node's nic. One end is shaped and on the nic's bridge. The
 *  other end becomes eth<nic> in the network namespace of process `pid`. */
int tw_cluster_make_port(const tw_cluster_t *cluster, int node, int nic, pid_t pid,
                         char reason[TW_CLUSTER_TEXT_BYTES]);
/** In a node: set host name, mounts and loopback. */
int tw_cluster_enter_node(const tw_cluster_t *cluster, int node, char reason[TW_CLUSTER_TEXT_BYTES]);
/** In a node: set address, rate and state of eth<nic>. If that works only in part, `note` says so. */
int tw_cluster_make_device(const tw_cluster_t *cluster, int node, int nic, char reason[TW_CLUSTER_TEXT_BYTES],
                           char note[TW_CLUSTER_TEXT_BYTES]);
/** Write the address of node 0's first interface to buf as text; returns buf. */
const char *tw_cluster_master_address(const tw_cluster_t *cluster, char buf[TW_CLUSTER_ADDRESS_BYTES]);

/** Run a node, from entering its namespaces until its last rank has ended. `fd` is the socket to the
 *  supervisor. */
int tw_cluster_node_main(const tw_cluster_t *cluster, int node, int fd);

/** Make the nodes and watch them until they end. Return the last message for the caller (socket `up`). */
tw_cluster_message_t tw_cluster_supervise(const tw_cluster_t *cluster, int up);

TW_C_END
