/** What an operation costs, derived from its flows.
 *
 *  Traffic is what the flows of all owners amount to on the busiest rank and node, counted in shards: it
 *  depends on the topology alone, so it is read once. With sizes, a chunk and the cost model it becomes a
 *  cost. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/model/model.h"
#include "collectives/program/form.h"

TW_C_BEGIN

/** Counts of each kind of computation, in shards (or chunks). */
typedef struct tw_work_count {
    double encodes[TW_FORM_COUNT], decodes[TW_FORM_COUNT];
    double adds; /**< inputs of plain sums */
} tw_work_count_t;

#define TW_TRAFFIC_HOPS 32 /**< the most hops of flows that merge */

typedef struct tw_traffic {
    int inter_rounds, node_rounds;      /**< moves on the longest path, between nodes and inside nodes */
    int crowded;                        /**< 1: a node gets something from several others */
    double inter_shards[TW_FORM_COUNT]; /**< through the busiest node's link: the larger of in and out */
    double node_shards[TW_FORM_COUNT];  /**< moved inside the busiest node */
    int inter_moves[TW_FORM_COUNT];     /**< moves by the busiest rank, each a message or several */
    int node_moves[TW_FORM_COUNT];
    /** if flows merge: shards in the row of each hop */
    int inter_row[TW_TRAFFIC_HOPS], node_row[TW_TRAFFIC_HOPS];
    tw_work_count_t work; /**< computations of the busiest rank */
    tw_work_count_t fill; /**< computations on the first chunk, and on the last one, along the longest path */
} tw_traffic_t;

/** Derive the traffic. codec: the operation is encoded; inner: its hop inside the node, too. TW_ERR_NO_MEMORY
 *  (logged). */
tw_status_t tw_traffic_read(const tw_topo_t *topo, const tw_flows_t *flows, int codec, int inner,
                            tw_traffic_t *traffic);

/** What determines an operation's cost: the same on all ranks. */
typedef struct tw_case {
    const tw_coll_model_t *model;
    const tw_topo_t *topo;
    const tw_coll_args_t *args; /**< checked arguments, or a size to plan with */
    double bytes;               /**< bytes of the whole tensor in its type: all segments, all shards */
    double encoded_bytes;       /**< the same, encoded with args->codec; without one, plain bytes */
    double inner_bytes;         /**< the same, encoded with args->inner_codec */
    double chunk_bytes;
} tw_case_t;

void tw_cost_read(const tw_case_t *c, const tw_flows_t *flows, const tw_traffic_t *traffic,
                  tw_coll_cost_t *cost);

/** Bytes of all shards of all segments, encoded with the operation's codec (or their own) or its inner one;
 *  plain bytes for a NULL codec, and for plain segments. */
double tw_cost_encoded_bytes(const tw_case_t *c, const tw_quant_codec_t *codec);
/** Plain bytes of one chunk of a shard. */
double tw_cost_plain_chunk(const tw_case_t *c);
/** Number of messages that `bytes` bytes take. */
double tw_cost_messages(const tw_case_t *c, double bytes);

TW_C_END
