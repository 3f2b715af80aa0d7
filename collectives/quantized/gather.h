/** Quantized all-gather, and the second half of an all-reduce: encoded shards spread to all ranks. Each is
 *  encoded once, by its owner, and travels, unchanged, along a tree of its own. Everybody decodes the same
 *  bytes, the owner too.
 *
 *  A route says from whom a rank gets a shard, and in which step. Trees of one route must agree on the order
 *  of messages between two ranks: what `parent` gives to a rank in step s, it gets itself in a step t(s),
 *  with t ascending. */
#ifndef TW_COLLECTIVES_QUANTIZED_GATHER_H
#define TW_COLLECTIVES_QUANTIZED_GATHER_H

#include "collectives/quantized/operation.h"

TW_C_BEGIN

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

/** Lives as long as the schedule. The arrays: [n_chunks of the grid]. */
typedef struct tw_spread {
    const tw_qop_t *op;
    const tw_route_t *route;
    tw_task_t *ready;      /**< who fills the buffer: of own chunks the caller's, of others made on the way */
    tw_sbuf_t *buffers;    /**< chunks as they travel */
    const tw_task_t *read; /**< who is the last to read the src that dst may lie in; NULL: nobody */
    int last_step;
    int *first_child; /**< [world + 1] of the shard of each owner, in `children`: who gets it from here */
    int *children;    /**< ranks, starting behind this one, so that not all turn to the same one */
} tw_spread_t;

/** NULL: the error sticks to the schedule. */
tw_spread_t *tw_spread_create(const tw_qop_t *op, const tw_route_t *route);
/** How many rounds it takes. */
size_t tw_spread_rounds(const tw_spread_t *spread);
/** Emit what a round has: chunks are sent on as the route says, and decoded into dst, the own ones too. Own
 *  chunk c is to be in its buffer from round c on. */
void tw_spread_round(const tw_spread_t *spread, size_t round);

TW_C_END

#endif
