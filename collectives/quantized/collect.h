/** How encoded contributions come together at the owner of each shard: one all-to-all hop, or one inside the
 *  nodes and one between them. Never a chain of re-quantized partial sums. */
#ifndef TW_COLLECTIVES_QUANTIZED_COLLECT_H
#define TW_COLLECTIVES_QUANTIZED_COLLECT_H

#include "collectives/quantized/operation.h"

TW_C_BEGIN

/** What a task adds up: buffers, and the tasks that fill them. */
typedef struct tw_collect_inputs {
    tw_sbuf_t *buffers;
    tw_task_t *tasks;
    int n;
} tw_collect_inputs_t;

/** Lives as long as the schedule. The arrays: [n_chunks of the grid]. */
typedef struct tw_collect {
    const tw_qop_t *op;
    int encodes;                         /**< 1: results are encoded into `results`; 0: they go to dst */
    tw_task_t *read;                     /**< the last to read a chunk of src */
    tw_task_t *done;                     /**< own chunks: who makes the result */
    tw_sbuf_t *results;                  /**< own chunks: buffers, made on the way */
    tw_task_t *sent[2];                  /**< [world] one hop: the last messages of even and of odd rounds */
    tw_collect_inputs_t inside, outside; /**< room, filled in again for each chunk */
} tw_collect_t;

/** NULL: the error sticks to the schedule. */
tw_collect_t *tw_collect_create(const tw_qop_t *op, int encodes);

/** Emit what one round has: a chunk of every shard. */
typedef void (*tw_collect_round_t)(const tw_collect_t *collect, size_t round);

/** Every rank encodes its contribution for every owner, who sums them up in rank order. */
void tw_collect_one_hop(const tw_collect_t *collect, size_t round);
/** Inside each node the contributions for an owner meet at one rank, op->inner or exact, which sums them up
 *  in rank order and sends the encoded sum to the owner, who sums up those of all nodes in node order. */
void tw_collect_two_hop(const tw_collect_t *collect, size_t round);

TW_C_END

#endif
