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
/** So long a signal that asks to end is the same request: launchers and terminals send it twice. */
#define TW_CLUSTER_SAME_REQUEST_SEC 3
/** Beyond TW_PEER_TIMEOUT, that ranks get to end by themselves after the first failure. */
#define TW_CLUSTER_GRACE_SEC 5.0

/** What to run on what. Zeros are defaults, but for the counts of nodes and ranks, and argv. Borrowed during
 *  the run. */
typedef struct tw_cluster_params {
    int n_nodes, ranks_per_node;
    int ipv6;        /**< 1: nodes have IPv6 addresses alone */
    int n_nics;      /**< interfaces of each node, each with a link of its own; 0: one */
    double link_bps; /**< each link, each way, bits per second; 0: not shaped */
    /** that a TCP connection may have under way, with links whose queues hold so much of one connection from
     *  every rank of a node to every other rank: nothing is dropped; and what a node sends to others takes
     *  turns. 0: as the system has it, and one queue of 50 ms, where what comes to a full one is
     *  dropped */
    size_t window_bytes;
    /** from the first failure to the others' end; 0: TW_PEER_TIMEOUT + TW_CLUSTER_GRACE_SEC */
    double grace_sec;
    const char *path;        /**< program; NULL: argv[0], looked up in PATH */
    const char *const *argv; /**< NULL-terminated: what every rank runs */
    int no_loopback;         /**< 1: where no cluster can be made, fail; 0: run on loopback, unshaped */
} tw_cluster_params_t;

/** Run a command as the ranks of a job and wait for all of them. Each rank gets torchrun's variables (RANK,
 *  WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), a random TW_JOB_TOKEN, TW_NET_DEVICES
 *  (all interfaces of its node), TW_CLUSTER and TW_CLUSTER_NOTE. Rank 0 has the caller's terminal; what the
 *  others print appears line by line behind "[rank 3] ".
 *
 *  When a rank fails the others get grace_sec to end by themselves and are then killed. SIGTERM, SIGINT and
 *  SIGHUP to the caller are sent to every rank, which then ends as it likes and is waited for; another one
 *  after TW_CLUSTER_SAME_REQUEST_SEC ends the caller at once, and all that it has started.
 *
 *  exit_code: 0, or that of the first rank that failed. If a signal has killed one, before the others' time
 *  is up, 128 + signal: that others failed is likely to come of it, and may be heard of first. Set only with
 *  TW_OK. Returns TW_OK when the command ran; TW_ERR_INVALID: params make no sense; TW_ERR_UNSUPPORTED: no
 *  cluster can be made here, and no_loopback is set; TW_ERR_IO or TW_ERR_INTERNAL: the system failed. All are
 *  logged with the reason. Without no_loopback the reason is a warning, and all nodes are processes on the
 *  loopback interface.
 *
 *  Works as root, or in an unprivileged user namespace; needs `ip` and `tc` (iproute2). Forks: to be called
 *  from a process with one thread. */
tw_status_t tw_cluster_run(const tw_cluster_params_t *params, int *exit_code);
/** The same with this program, whatever params->path says. */
tw_status_t tw_cluster_run_self(const tw_cluster_params_t *params, int *exit_code);

/** A link's rate from the command line: as tw_parse_rate, but TW_ERR_INVALID (silent) also below
 *  TW_CLUSTER_LINK_MIN_BPS. */
tw_status_t tw_cluster_parse_link(const char *text, double *link_bps);

/** Where this process runs, by TW_CLUSTER. */
typedef enum tw_cluster_kind {
    TW_CLUSTER_NONE,     /**< not in a cluster in a box */
    TW_CLUSTER_NODES,    /**< on a node of its own, behind a link */
    TW_CLUSTER_LOOPBACK, /**< all nodes share the loopback interface */
} tw_cluster_kind_t;
tw_cluster_kind_t tw_cluster_kind(void);
/** What the cluster could not set up as it should though figures depend on it, or ""; returns buf. */
const char *tw_cluster_note(char buf[TW_CLUSTER_TEXT_BYTES]);

/** What a link of this rate lets pass at once: one packet of the largest size that TCP hands down, which
 *  would else be cut into frames at a multiple of the cost, or a quarter of a millisecond, for timers are no
 *  finer. */
size_t tw_cluster_burst_bytes(double link_bps);

/** Address of a node's first interface, inside a cluster, as text; returns buf. */
const char *tw_cluster_node_address(int node, char buf[TW_CLUSTER_ADDRESS_BYTES]);

/** TW_CLUSTER and TW_CLUSTER_NOTE, set by the cluster for its ranks. */
extern const tw_config_table_t tw_cluster_config_table;

TW_C_END
