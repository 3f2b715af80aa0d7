/** How encoded contributions come together at the owner of each shard: one all-to-all hop, or one inside the nodes and one
 *  between them. Never a chain of re-quantized partial sums. */
#ifndef TW_COLLECTIVES_QUANTIZED_COLLECT_H
#define TW_COLLECTIVES_QUANTIZED_COLLECT_H

#include "collectives/quantized/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/** [n_chunks of the grid] each. */
typedef struct tw_collect {
    const tw_qop_t *op;
    tw_task_t *read;          /**< out: the last to read a chunk of src */
    tw_task_t *done;          /**< out: own chunks: who makes the result */
    const tw_sbuf_t *results; /**< own chunks: the result goes here, encoded with op->codec; NULL: into dst */
} tw_collect_t;

/** Emit: every rank encodes its piece for every owner, who sums them up in rank order. */
void tw_collect_one_hop(const tw_collect_t *collect);
/** Emit: inside each node the pieces for an owner meet at one rank, op->inner or exact, which sums them up in rank order
 *  and sends the encoded sum to the owner, who sums up those of all nodes in node order. */
void tw_collect_two_hop(const tw_collect_t *collect);

#ifdef __cplusplus
}
#endif

#endif
