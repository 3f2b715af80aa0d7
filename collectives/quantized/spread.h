/** How encoded shards spread to all ranks: each travels, unchanged, along a tree of its own.
 *
 *  A route says from whom a rank gets a shard, and in which step. Trees of one route must agree on the order of messages
 *  between two ranks: what `parent` gives to a rank in step s, it gets itself in a step t(s), with t ascending. */
#ifndef TW_COLLECTIVES_QUANTIZED_SPREAD_H
#define TW_COLLECTIVES_QUANTIZED_SPREAD_H

#include "collectives/quantized/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_route {
    /** From whom `rank` gets the shard of `owner` (another rank). */
    int (*parent)(const tw_topo_t *topo, int owner, int rank);
    /** In which step; 0 for the owner itself. */
    int (*step)(const tw_topo_t *topo, int owner, int rank);
} tw_route_t;

/** From rank to rank along the ring. */
extern const tw_route_t tw_route_ring;
/** From node to node, to one rank of each, which gives it to the others of its node. */
extern const tw_route_t tw_route_nodes;
/** From the owner to everyone. */
extern const tw_route_t tw_route_direct;

/** What the spread starts from and what it must wait for; [n_chunks of the grid] each. */
typedef struct tw_spread {
    const tw_qop_t *op;
    const tw_route_t *route;
    const tw_task_t *encoded; /**< own chunks: who fills the buffer */
    const tw_sbuf_t *buffers; /**< own chunks: encoded with op->codec */
    const tw_task_t
        *read; /**< all chunks: who is the last to read the src that dst may lie in; NULL: nobody */
} tw_spread_t;

/** Emit: every shard is sent on as the route says and decoded into dst, the own one too. */
void tw_spread_build(const tw_spread_t *spread);

#ifdef __cplusplus
}
#endif

#endif
