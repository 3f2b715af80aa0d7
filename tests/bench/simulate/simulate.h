/** tests/bench/simulate: the library's own algorithms on hundreds of ranks, on a virtual clock.
 *
 *  It runs the flows that the library's programs are made of (collectives/program/flow.h), of all owners and
 *  all ranks at once, chunk by chunk. Two ranks have a connection, on which messages follow one another in
 *  the order of the sender's program, as in the library: one that is ready waits for those before it.
 *  Connections that leave by the same port (a node's link, or a rank's inside its node) take turns, packet by
 *  packet; a packet passes through that port, the switches' uplinks and the receiver's port at once, each at
 *  its own rate, behind what came there first. As TCP's, a connection has SIM_WINDOW_PACKETS under way at
 *  most, and a packet's acknowledgement waits in the queues of the ports on its way back; so, where several
 *  connections share a port, those with free paths get more of it. A message arrives a latency after its last
 *  packet. Sums and codecs take a rank's processor, one after the other. Nothing is ever lost. The same seed
 *  gives the same run.
 *
 *  It simulates operations alone. trainer/plan simulates training steps: one rank's threads in the engine's
 *  order, as all ranks are alike. That takes milliseconds, and has neither ports nor other ranks; to simulate
 *  packets of hundreds of ranks would take hours for its many steps and settings.
 *
 *  Files: net.c ports and connections, events.c the queue of events; graph.c turns flows into operations that
 *  wait for one another; options.c flags, main.c the program. */
#pragma once

#include <math.h>

#include "collectives/algorithms/algorithm.h"
#include "collectives/model/model.h"

TW_C_BEGIN

/** Bytes that a system hands to a network device at once. */
#define SIM_PACKET_BYTES ((size_t)64 << 10)
/** Packets that a connection may have sent without acknowledgement, beyond those that the latencies take. */
#define SIM_WINDOW_PACKETS 4

/** All times are multiples of this, so that sums of up to half an hour are exact: what takes equally long
 *  ends at the same time, to the bit. */
#define SIM_TICK_SEC 0x1p-42

static inline double sim_ticks(double sec)
{
    return rint(sec / SIM_TICK_SEC) * SIM_TICK_SEC;
}

/** Rates in bytes a second, each way; INFINITY: no bottleneck. */
typedef struct sim_cluster {
    int n_nodes, ranks_per_node;
    double link_Bps, in_node_Bps;            /**< rate of a node's link, and of a rank inside its node */
    double latency_sec, in_node_latency_sec; /**< latency of a message between nodes, and inside one */
    double turn_sec, in_node_turn_sec; /**< time before a message of TW_COLL_TURN_BYTES or more leaves */
    double packet_bytes; /**< bytes that a connection sends before others get their turn; 0: whole messages */
    double message_sec;  /**< processor time for a message, at either end */
    double add_sec;      /**< processor time for adding a plain byte */
    double encode_sec[TW_FORM_COUNT], decode_sec[TW_FORM_COUNT]; /**< processor time for a plain byte */
    double ratio[TW_FORM_COUNT];                                 /**< bytes on the wire over plain bytes */
    int nodes_per_switch;                                        /**< 0: one switch that holds all rates */
    double oversubscription; /**< rate of a switch's nodes' links over that of its uplink: 1 or more */
    int slow_node;           /**< node whose link is slowed; below 0: none */
    double slow_factor;
    int straggler; /**< rank whose processor is slowed; below 0: none */
    double straggler_factor;
    double jitter_sec; /**< mean of each message's extra time, which is distributed exponentially */
    uint64_t seed;
    const double *post_sec; /**< [world] when each rank posts the operation; NULL: at once */
    /** Called now and then during a run, with the share of the steps that are done; NULL: not called. */
    void (*watch)(void *ctx, double share);
    void *watch_ctx;
} sim_cluster_t;

typedef struct sim_result {
    double sec;         /**< when the last rank is done */
    double *done;       /**< [world] when each rank is done */
    double node_bytes;  /**< bytes that the busiest node sends, or receives if those are more */
    double messages;    /**< messages that the busiest rank sends */
    int peers;          /**< ranks that a rank sends to or receives from: of the rank with the most */
    int remote_peers;   /**< those of them that are on other nodes */
    double chunk_bytes; /**< as asked, or larger if memory cannot hold so many chunks */
} sim_result_t;

/** Run an operation of `bytes` of the whole tensor in chunks. The caller provides result->done, [world].
 *  TW_ERR_NO_MEMORY (logged). */
tw_status_t sim_run(const sim_cluster_t *cluster, const tw_algo_t *algo, double bytes, double chunk_bytes,
                    sim_result_t *result);

/** Return the library's algorithm `index` for an operation, as tw_coll_algo_get; NULL past the end. */
const tw_algo_t *sim_algo(tw_coll_op_t op, int quantized, size_t index);

TW_C_END
