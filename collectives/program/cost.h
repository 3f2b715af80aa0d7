/** What an operation costs, derived from its flows.
 *
 *  Traffic is what the flows of all owners need together on the busiest rank and node, counted in shards. It
 *  depends only on the topology, so it is computed once. The sizes, the chunk and the cost model turn it into
 *  a cost. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/model/model.h"
#include "collectives/program/form.h"

TW_C_BEGIN

/** How often each computation is done, in shards (or in chunks). */
typedef struct tw_work_count {
    double encodes[TW_FORM_COUNT], decodes[TW_FORM_COUNT];
    double adds; /**< inputs of plain sums */
} tw_work_count_t;

#define TW_TRAFFIC_HOPS 32 /**< the most hops of flows that merge */

typedef struct tw_traffic {
    int inter_rounds, node_rounds; /**< moves on the longest path, between nodes and inside nodes */
    int crowded;                   /**< 1: a node receives from several other nodes */
    /** through the busiest node's link: the larger of received and sent */
    double inter_shards[TW_FORM_COUNT];
    double node_shards[TW_FORM_COUNT]; /**< moved inside the busiest node */
    int inter_moves[TW_FORM_COUNT];    /**< moves by the busiest rank; each is one message or several */
    int node_moves[TW_FORM_COUNT];
    /** if flows merge: shards in the row that a rank sends in each hop */
    int inter_row[TW_TRAFFIC_HOPS], node_row[TW_TRAFFIC_HOPS];
    tw_work_count_t work; /**< computations of the busiest rank */
    tw_work_count_t fill; /**< computations on the first and the last chunk, along the longest path */
} tw_traffic_t;

/** Derive the traffic. codec: 1 if the operation is encoded. inner: 1 if its hop inside the node is, too.
 *  TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_traffic_read(const tw_topo_t *topo, const tw_flows_t *flows, int codec, int inner,
                            tw_traffic_t *traffic);

/** What determines an operation's cost. Equal on all ranks. */
typedef struct tw_case {
    const tw_coll_model_t *model;
    const tw_topo_t *topo;
    const tw_coll_args_t *args; /**< checked arguments, or arguments with a size to plan with */
    double bytes;               /**< plain bytes of the whole tensor: all shards of all segments */
    double encoded_bytes;       /**< bytes encoded with args->codec; without one, plain bytes */
    double inner_bytes;         /**< bytes encoded with args->inner_codec; without one, plain bytes */
    double chunk_bytes;
} tw_case_t;

void tw_cost_read(const tw_case_t *c, const tw_flows_t *flows, const tw_traffic_t *traffic,
                  tw_coll_cost_t *cost);

/** Bytes of all shards of all segments, encoded with `codec` or the segment's own one. Plain segments, and a
 *  NULL codec, count plain bytes. */
double tw_cost_encoded_bytes(const tw_case_t *c, const tw_quant_codec_t *codec);
/** Plain bytes of one chunk of a shard. */
double tw_cost_plain_chunk(const tw_case_t *c);
/** Number of messages that `bytes` bytes take. */
double tw_cost_messages(const tw_case_t *c, double bytes);

TW_C_END
