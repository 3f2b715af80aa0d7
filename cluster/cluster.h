/** The cluster in a box: N nodes on this machine, joined by bridges, each behind links of a given rate.
 *
 *  A node is a network, IPC, UTS, PID and mount namespace (host name node<n>, own /dev/shm, /proc and /sys),
 *  so that no traffic between nodes can bypass the links. The node's interfaces, eth0 and on, are shaped to
 *  the link's rate in both directions. All nodes and bridges live in a separate network namespace, so this
 *  machine's interfaces are never touched. However the caller ends, the kernel then removes everything. TCP
 *  between nodes uses cubic, Linux's default, whatever this machine uses. If cubic is not available,
 *  tw_cluster_note says so.
 *
 *  A link that was idle lets a burst of tw_cluster_burst_bytes pass before its rate takes effect. */
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
/** Slowest link allowed. On a slower one, one packet takes longer than the timeout for a silent peer. */
#define TW_CLUSTER_LINK_MIN_BPS 1e6
/** Launchers often send two signals to end a job. A second one this soon counts as the same request. */
#define TW_CLUSTER_SAME_REQUEST_SEC 3
/** Time that the other ranks get, beyond TW_PEER_TIMEOUT, to end by themselves after the first failure. */
#define TW_CLUSTER_GRACE_SEC 5.0

/** Shape of the cluster, and the command that its ranks run. Zero in a field means the default, except in
 *  n_nodes, ranks_per_node and argv, which must be set. Everything is borrowed during the run. */
typedef struct tw_cluster_params {
    int n_nodes, ranks_per_node;
    int ipv6;        /**< 1: nodes have IPv6 addresses alone */
    int n_nics;      /**< interfaces of each node, each with its own link; 0: one */
    double link_bps; /**< rate of each link, each way, bits per second; 0: not shaped */
    /** Most bytes that one TCP connection may have in flight. A link's queue then has room for this many
     *  bytes of every connection from the node's ranks to all other ranks, so no packet is dropped, and
     *  packets for different nodes take turns. 0: the system's TCP windows, and a queue of 50 ms per link
     *  that drops packets when full. */
    size_t window_bytes;
    /** Time that other ranks get to end after a failure; 0: TW_PEER_TIMEOUT + TW_CLUSTER_GRACE_SEC. */
    double grace_sec;
    const char *path;        /**< program file; NULL: search PATH for argv[0] */
    const char *const *argv; /**< the command of every rank, NULL-terminated */
    int no_loopback;         /**< if no cluster can be made: 1: fail; 0: run on loopback, without shaping */
} tw_cluster_params_t;

/** Run a command as the ranks of a job and wait for all of them. Each rank gets torchrun's variables (RANK,
 *  WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), a random TW_JOB_TOKEN, TW_NET_DEVICES
 *  (all interfaces of its node), TW_CLUSTER and TW_CLUSTER_NOTE. Rank 0 has the caller's terminal; what the
 *  others print appears line by line behind "[rank 3] ".
 *
 *  When a rank fails, the others get grace_sec to end by themselves and are then killed. The caller passes
 *  SIGTERM, SIGINT and SIGHUP on to every rank and waits until all have ended. If a further signal arrives
 *  more than TW_CLUSTER_SAME_REQUEST_SEC later, the caller ends at once, with all that it has started.
 *
 *  exit_code is set only with TW_OK. It is 0 if all ranks succeeded, otherwise the exit code of the first
 *  rank that failed. But if a signal killed a rank within the grace time, it is 128 + that signal, even if
 *  other failures were reported first, as they probably follow from the kill. Returns TW_OK when the command
 *  ran; TW_ERR_INVALID: params make no sense; TW_ERR_UNSUPPORTED: no cluster can be made here, and
 *  no_loopback is set; TW_ERR_IO or TW_ERR_INTERNAL: a system call failed. Each error is logged with its
 *  reason. If no cluster can be made and no_loopback is 0, the reason is a warning, and all ranks run on
 *  loopback.
 *
 *  Works as root, or in an unprivileged user namespace; needs `ip` and `tc` (iproute2). It forks, so the
 *  caller must have a single thread. */
tw_status_t tw_cluster_run(const tw_cluster_params_t *params, int *exit_code);
/** Call tw_cluster_run with this program's own file, whatever params->path says. */
tw_status_t tw_cluster_run_self(const tw_cluster_params_t *params, int *exit_code);

/** Parse a link's rate as tw_parse_rate does. TW_ERR_INVALID (silent) also if it is below
 *  TW_CLUSTER_LINK_MIN_BPS. */
tw_status_t tw_cluster_parse_link(const char *text, double *link_bps);

/** Where this process runs, as TW_CLUSTER says. */
typedef enum tw_cluster_kind {
    TW_CLUSTER_NONE,     /**< not in a cluster in a box */
    TW_CLUSTER_NODES,    /**< on a node with its own namespaces, behind a link */
    TW_CLUSTER_LOOPBACK, /**< all nodes share the loopback interface */
} tw_cluster_kind_t;
tw_cluster_kind_t tw_cluster_kind(void);
/** Write to buf what the cluster could not set up although it affects measurements ("" if nothing). */
const char *tw_cluster_note(char buf[TW_CLUSTER_TEXT_BYTES]);

/** Return how many bytes an idle link of this rate lets pass at once. It is at least one packet of the
 *  largest size that TCP hands down, because cutting such a packet into frames costs several times more. It
 *  is also at least what the link carries in a quarter of a millisecond, since timers are no finer. */
size_t tw_cluster_burst_bytes(double link_bps);

/** For a rank in a cluster: write the address of a node's first interface to buf as text; return buf. */
const char *tw_cluster_node_address(int node, char buf[TW_CLUSTER_ADDRESS_BYTES]);

/** Variables that the cluster sets for its ranks: TW_CLUSTER and TW_CLUSTER_NOTE. */
extern const tw_config_table_t tw_cluster_config_table;

TW_C_END
