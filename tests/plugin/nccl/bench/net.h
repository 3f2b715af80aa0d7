/** Measures latency and bandwidth of the net plugin between two nodes, called through its table as NCCL calls
 *  it, beside NCCL's own sockets. Read in this order:
 *    net.h             this
 *    nccl_library.[ch] what is inside NCCL's library
 *    peer.c            NCCL's own transport as such a table
 *    end.c             one end: the two connect
 *    measure.c         a row of figures
 *    ratio.[ch]        rounds' ratios, and how sure their median is
 *    main.c            options, the cluster, the table of figures
 *
 *  Node 0 measures the latency, and node 1, which receives, the bandwidth. They exchange figures over a TCP
 *  connection of their own. */
#pragma once

#include "cluster/cluster.h"
#include "core/core.h"
#include "plugin/nccl/abi/net.h"

TW_C_BEGIN

#define NET_CONNECTIONS_MAX 64

/** NCCL's own socket transport (2.28 to 2.32, whose table is that of v12 plugins), out of `library`, a path
 *  or a name for the loader. NULL: it cannot be reached, and `why` says so. */
const tw_nccl_net_v12_t *net_peer_open(const char *library, char *why, size_t why_bytes);

typedef struct net_end {
    const tw_nccl_net_v12_t *net;
    int rank;    /**< 0 or 1 */
    int word_fd; /**< control connection to the other end */
    int owns_word;
    void *context;     /**< what the transport's init has made */
    int n_connections; /**< in each direction; devices take turns */
    void *sender[NET_CONNECTIONS_MAX];
    void *receiver[NET_CONNECTIONS_MAX];
} net_end_t;

/** Start a transport and meet the other end. `beside` is an end whose control connection this one shares; it
 *  must be cleaned up after this one. NULL: open a control connection. TW_ERR_IO, TW_ERR_NCCL, logged. */
tw_status_t net_end_init(net_end_t *end, const tw_nccl_net_v12_t *net, const net_end_t *beside);
tw_status_t net_end_connect(net_end_t *end, int n_connections);
void net_end_disconnect(net_end_t *end);
void net_end_cleanup(net_end_t *end);
/** Exchange a number with the other end. */
tw_status_t net_end_swap(const net_end_t *end, double own, double *other);
/** Wait until the other end calls this, too. */
tw_status_t net_end_meet(const net_end_t *end);

typedef struct net_row {
    size_t bytes;
    int connections, both_ways;
    double latency_us;     /**< half a round trip, the mean */
    double bandwidth_GBps; /**< one way; both ways: the slower direction */
    int ok;                /**< sizes and stamps of all messages were right */
} net_row_t;

/** Measure a row, at both ends, which get the same figures. The caller sets bytes, connections and both_ways
 *  of the row. The bandwidth takes about `seconds` at link_bps (0: unknown). */
tw_status_t net_measure(net_end_t *end, net_row_t *row, double seconds, double link_bps);

TW_C_END
