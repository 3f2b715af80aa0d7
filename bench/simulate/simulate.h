/** bench/simulate: the library's own algorithms on hundreds of ranks, on a virtual clock.
 *
 *  What runs are the flows that the library's programs are made of (collectives/program/flow.h), of all
 *  owners and all ranks at once, chunk by chunk. Between two ranks is a connection, on which messages follow
 *  one another in the order of the sender's program, as they do in the library: what is ready waits for what
 *  comes before it. Connections that leave by the same port (a node's link, or a rank's inside its node)
 *  take turns, packet by packet; a packet passes through that port, the switches' uplinks and the receiver's
 *  port at once, each at its own rate, behind what came there first. As TCP's, a connection has
 *  SIM_WINDOW_PACKETS under way at most, and the word that one is through stands in the queues of the ports
 *  on its way back: whose way is free gets more of a port where several meet. A message that is all there
 *  takes a latency. Sums and codecs take a rank's processor, one after the other. Nothing is ever lost. The
 *  same seed gives the same run.
 *
 *  Files: net.c ports and connections, events.c what happens when; graph.c from flows to what depends on
 *  what; kept.c runs that have been seen before; step.c a training step, server.c one over a parameter
 *  server; box.c real ranks; options.c flags, main.c the program. */
#ifndef TW_BENCH_SIMULATE_SIMULATE_H
#define TW_BENCH_SIMULATE_SIMULATE_H

#include <math.h>

#include "collectives/algorithms/algorithm.h"
#include "collectives/model/model.h"

TW_C_BEGIN

/** What a system hands to a network device at once. */
#define SIM_PACKET_BYTES ((size_t)64 << 10)
/** Packets that a connection has under way until it hears that they are through. What covers the latencies
 *  comes on top of it. */
#define SIM_WINDOW_PACKETS 4

/** All times are multiples of it, so their sums are exact, up to half an hour: an operation that begins as an
 *  earlier one did goes on as that did, to the bit, whenever it is. */
#define SIM_TICK_SEC 0x1p-42

static inline double sim_ticks(double sec)
{
    return rint(sec / SIM_TICK_SEC) * SIM_TICK_SEC;
}

/** Rates in bytes a second, each way; INFINITY: no bottleneck. */
typedef struct sim_cluster {
    int n_nodes, ranks_per_node;
    double link_Bps, in_node_Bps;            /**< of a node, and of a rank inside one */
    double latency_sec, in_node_latency_sec; /**< of a message */
    double turn_sec, in_node_turn_sec;       /**< before a message of TW_COLL_TURN_BYTES or more leaves */
    double packet_bytes; /**< that a connection sends before others get their turn; 0: whole messages */
    double message_sec;  /**< of a processor, for a message, at either end */
    double add_sec;      /**< of a processor, for a plain byte that is added */
    double encode_sec[TW_FORM_COUNT], decode_sec[TW_FORM_COUNT]; /**< likewise, for a plain byte */
    double ratio[TW_FORM_COUNT];                                 /**< bytes on the wire, of plain ones */
    int nodes_per_switch;                                        /**< 0: one switch that holds all rates */
    double oversubscription; /**< the nodes' links of a switch over its uplink: 1 and more */
    int slow_node;           /**< whose link is slowed; below 0: none */
    double slow_factor;
    int straggler; /**< the rank whose processor is slowed; below 0: none */
    double straggler_factor;
    double jitter_sec; /**< mean of what each message takes longer, exponentially distributed */
    uint64_t seed;
    /** While an operation is run: called now and then with the share of its steps that is done. NULL: nobody
     *  looks */
    void (*watch)(void *ctx, double share);
    void *watch_ctx;
} sim_cluster_t;

typedef struct sim_result {
    double sec;         /**< when the last rank is done */
    double *done;       /**< [world] when each is */
    double node_bytes;  /**< out of the busiest node, or into it */
    double messages;    /**< of the busiest rank, sent */
    int peers;          /**< ranks that the rank with most of them sends to or receives from */
    int remote_peers;   /**< of other nodes */
    double chunk_bytes; /**< as asked, or larger where memory would not hold so many */
    size_t n_events;    /**< 0: it was known already, see sim_kept_run */
} sim_result_t;

/** An algorithm on a cluster: who does what after what. */
typedef struct sim_graph sim_graph_t;

/** row_shards: shards that go in one message, where a rank sends several to another one in a hop and the
 *  algorithm joins them. TW_ERR_NO_MEMORY (logged). */
tw_status_t sim_graph_create(const sim_cluster_t *cluster, const tw_algo_t *algo, int row_shards,
                             sim_graph_t **out);
/** Shards that the library joins in one message: of a tensor of `bytes`, in messages of at most
 *  chunk_bytes. */
int sim_row_shards(const sim_cluster_t *cluster, double bytes, double chunk_bytes);
/** Accepts NULL. */
void sim_graph_destroy(sim_graph_t *graph);

/** Ports and processors of a cluster, which stay busy from one operation to the next. */
typedef struct sim_net sim_net_t;

tw_status_t sim_net_create(const sim_cluster_t *cluster, sim_net_t **out);
/** Accepts NULL. */
void sim_net_destroy(sim_net_t *net);

/** Run an operation of `bytes` of the whole tensor in chunks. start: [world] when each rank posts it; NULL:
 *  at once. result->done is the caller's memory, [world]. TW_ERR_NO_MEMORY (logged). */
tw_status_t sim_run(sim_net_t *net, const sim_graph_t *graph, double bytes, double chunk_bytes,
                    const double *start, sim_result_t *result);

/** When each port and each processor is free; they may be changed between two runs. The net's memory. */
double *sim_net_times(sim_net_t *net, size_t *n);

/** Runs seen before. If an operation is posted as in an earlier run, and finds ports and processors as
 *  that did, it gets that run's result, bit for bit. With jitter_sec nothing is kept. */
typedef struct sim_kept sim_kept_t;

/** Both are borrowed; the cluster's ratios may change between two runs. TW_ERR_NO_MEMORY (logged). */
tw_status_t sim_kept_create(const sim_cluster_t *cluster, sim_net_t *net, sim_kept_t **out);
/** Accepts NULL. */
void sim_kept_destroy(sim_kept_t *kept);
/** As sim_run, or from memory. start: each rank's is no earlier than the end of its run before. */
tw_status_t sim_kept_run(sim_kept_t *kept, const sim_graph_t *graph, double bytes, double chunk_bytes,
                         const double *start, sim_result_t *result);

/** All algorithms of the library's for an operation, as tw_coll_algo_get knows them; NULL past the end. */
const tw_algo_t *sim_algo(tw_coll_op_t op, int quantized, size_t index);
const tw_algo_t *sim_algo_find(tw_coll_op_t op, int quantized, const char *name);

/* ---- a training step ----------------------------------------------------------------------------------- */

typedef struct sim_step {
    double n_params;
    int n_layers;
    double compute_sec; /**< of a rank, for a step */
    int quantized;      /**< 0: ZeRO-3; 1: ZeRO++: int8 gathers, replicas in the nodes, int4 reductions */
    int overlap;        /**< 0: computing waits for the network, and the other way round */
    double chunk_bytes;
    /** a parameter server: the layer that is ready first goes first; or the first layer goes first */
    enum { SIM_SERVER_NONE, SIM_SERVER_FIFO, SIM_SERVER_PRIORITY } server;
} sim_step_t;

/** Backwards computes three times what forwards does: activations are computed again. */
#define SIM_FORWARD_SHARE 0.25

/** sec of a step, and bytes out of the busiest node, or into it. TW_ERR_NO_MEMORY (logged). */
tw_status_t sim_step_run(const sim_cluster_t *cluster, const sim_step_t *step, double *sec,
                         double *node_bytes);

/** Likewise with all weights on every rank: gradients are pushed to a parameter server, whose shards are on
 *  all ranks, and weights pulled, layer by layer; a layer is computed when its weights are there. The network
 *  moves one layer after the other. Source of the priority: A. Jayarajan et al., "Priority-based parameter
 *  propagation for distributed DNN training", MLSys 2019. */
tw_status_t sim_server_run(const sim_cluster_t *cluster, const sim_step_t *step, double *sec,
                           double *node_bytes);

TW_C_END

#endif
