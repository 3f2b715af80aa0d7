/** The cluster in a box: N nodes on this machine, joined by bridges, each behind links of a given rate.
 *
 *  A node is a network, IPC, UTS, PID and mount namespace (host name node<n>, own /dev/shm, /proc and /sys),
 *  so that nothing takes a short cut between nodes; its interfaces, eth0 and on, are shaped to the link's
 *  rate in both directions. All of it lives in a network namespace of its own: this machine's interfaces are
 *  never touched, and when the caller ends, however it ends, the kernel takes everything away. TCP between
 *  nodes uses cubic, Linux's default, whatever this machine uses; where that cannot be had, tw_cluster_note
 *  says so.
 *
 *  A link that was idle lets tw_cluster_burst_bytes pass at once before its rate holds. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_CLUSTER_MAX_NODES 250
#define TW_CLUSTER_MAX_RANKS 4096
#define TW_CLUSTER_MAX_NICS 16
/** The first interface of each node. */
#define TW_CLUSTER_DEVICE "eth0"
#define TW_CLUSTER_ADDRESS_BYTES 24
#define TW_CLUSTER_TEXT_BYTES 256
/** Slower links carry no job: a packet would take longer than a peer may be silent. */
#define TW_CLUSTER_LINK_MIN_BPS 1e6
/** Within this time, a second signal that asks to end is the same request: launchers send two. */
#define TW_CLUSTER_SAME_REQUEST_SEC 3
/** Time that ranks get, beyond TW_PEER_TIMEOUT, to end by themselves after the first failure. */
#define TW_CLUSTER_GRACE_SEC 5.0

/** The cluster, and what runs on it. Zeros are defaults, except for the counts of nodes and ranks, and argv.
 *  Borrowed during the run. */
typedef struct tw_cluster_params {
    int n_nodes, ranks_per_node;
    int ipv6;        /**< 1: nodes have IPv6 addresses alone */
    int n_nics;      /**< interfaces of each node, each with a link of its own; 0: one */
    double link_bps; /**< rate of each link, each way, bits per second; 0: not shaped */
    /** Bytes that a TCP connection may have under way. The links' queues then hold that much of a connection
     *  from every rank of a node to every other rank, so nothing is dropped; and packets for different
     *  nodes take turns. 0: the system's windows, and one queue of 50 ms, which drops packets when full. */
    size_t window_bytes;
    /** Time from the first failure to the other ranks' end; 0: TW_PEER_TIMEOUT + TW_CLUSTER_GRACE_SEC. */
    double grace_sec;
    const char *path;        /**< program; NULL: argv[0], looked up in PATH */
    const char *const *argv; /**< NULL-terminated: what every rank runs */
    int no_loopback;         /**< 1: fail if no cluster can be made; 0: run on loopback then, unshaped */
} tw_cluster_params_t;

/** Run a command as the ranks of a job and wait for all of them. Each rank gets torchrun's variables (RANK,
 *  WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), a random TW_JOB_TOKEN, TW_NET_DEVICES
 *  (all interfaces of its node), TW_CLUSTER and TW_CLUSTER_NOTE. Rank 0 has the caller's terminal; what the
 *  others print appears line by line behind "[rank 3] ".
 *
 *  When a rank fails the others get grace_sec to end by themselves and are then killed. SIGTERM, SIGINT and
 *  SIGHUP to the caller are passed on to every rank, and the caller waits until all have ended; another one
 *  after TW_CLUSTER_SAME_REQUEST_SEC ends the caller at once, with all that it has started.
 *
 *  exit_code: 0, or that of the first rank that failed. If a signal killed a rank before the others' time was
 *  up: 128 + signal, as the other failures probably follow from it, even if they were reported first. Set
 *  only with TW_OK. Returns TW_OK when the command ran; TW_ERR_INVALID: params make no sense;
 *  TW_ERR_UNSUPPORTED: no cluster can be made here, and no_loopback is set; TW_ERR_IO or TW_ERR_INTERNAL: the
 *  system failed. All are logged with the reason. Without no_loopback the reason is a warning, and all nodes
 *  are processes on the loopback interface.
 *
 *  Works as root, or in an unprivileged user namespace; needs `ip` and `tc` (iproute2). It forks, so the
 *  caller must have a single thread. */
tw_status_t tw_cluster_run(const tw_cluster_params_t *params, int *exit_code);
/** Do the same with this program, whatever params->path says. */
tw_status_t tw_cluster_run_self(const tw_cluster_params_t *params, int *exit_code);

/** Parse a link's rate, as tw_parse_rate; TW_ERR_INVALID (silent) below TW_CLUSTER_LINK_MIN_BPS, too. */
tw_status_t tw_cluster_parse_link(const char *text, double *link_bps);

/** Where this process runs, as TW_CLUSTER says. */
typedef enum tw_cluster_kind {
    TW_CLUSTER_NONE,     /**< not in a cluster in a box */
    TW_CLUSTER_NODES,    /**< on a node of its own, behind a link */
    TW_CLUSTER_LOOPBACK, /**< all nodes share the loopback interface */
} tw_cluster_kind_t;
tw_cluster_kind_t tw_cluster_kind(void);
/** Get what could not be set up as it should, although measurements depend on it, or ""; return buf. */
const char *tw_cluster_note(char buf[TW_CLUSTER_TEXT_BYTES]);

/** Return how many bytes a link of this rate lets pass at once. It is at least one packet of the largest size
 *  that TCP hands down, which would otherwise be cut into frames at a multiple of the cost; and at least a
 *  quarter of a millisecond's, since timers are no finer. */
size_t tw_cluster_burst_bytes(double link_bps);

/** Get the address of a node's first interface, inside a cluster, as text; return buf. */
const char *tw_cluster_node_address(int node, char buf[TW_CLUSTER_ADDRESS_BYTES]);

/** Variables that the cluster sets for its ranks: TW_CLUSTER and TW_CLUSTER_NOTE. */
extern const tw_config_table_t tw_cluster_config_table;

TW_C_END
