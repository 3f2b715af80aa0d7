/** The codec's share of a quantized operation: computations on the chunks of its grid.
 *
 *  An algorithm makes a tw_qop_t while it is built; from then on it thinks in chunks (chunks.h). A chunk's
 *  encoded bytes live in a scratch buffer of their own, so that they are sent on as they are. */
#pragma once

#include "collectives/communicator.h"

TW_C_BEGIN

/** The seed of what is encoded. index: the rank or the node that it is of. In a reduction all are different,
 *  lest all round the same way. */
uint64_t tw_qop_seed(tw_seed_t kind, tw_coll_op_t op, uint64_t seed, int index);
/** And of a chunk that is a message, of the operation's seed of its kind. */
uint64_t tw_qop_message_seed(uint64_t seed, uint32_t step, size_t chunk);

/** Lives as long as the schedule. */
typedef struct tw_qop {
    tw_sched_t *sched;
    const tw_grid_t *grid;
    const tw_grid_tensor_t *tensors;       /**< [n_segments] */
    tw_quant_t **codecs;                   /**< [n_codecs of the grid] NULL for those of messages */
    tw_quant_messages_stream_t **messages; /**< [n_codecs of the grid] NULL for the others */
    tw_quant_t *inner;                     /**< of the hop inside the node; NULL: plain there */
    tw_quant_args_t args;                  /**< factor: 1 */
    uint64_t seeds[TW_N_SEEDS];            /**< by kind */
    float limit;                           /**< of finite results: see tw_coll_limit */
    tw_sbuf_t work;                        /**< fp32 sums that are being made: of one computation at a time */
    size_t elem_bytes;
} tw_qop_t;

/** Of a request that has its schedule; its grid is made. args: the request's, of which all segments may have
 *  other counts. chunk_bytes: as in tw_grid_init. TW_ERR_NO_MEMORY. */
tw_status_t tw_qop_create(tw_coll_request_t *request, const tw_coll_args_t *args, size_t chunk_bytes,
                          tw_qop_t **out);

/** Take a scratch buffer for a chunk in a form; returns the message that it will hold. */
tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form);

/** Instead of a buffer: the chunk where it is in the tensors. */
#define TW_QOP_SRC TW_SBUF_NONE
#define TW_QOP_DST (-2)

/** What is computed on a chunk: it is brought from one form to another, or a sum of several. */
typedef struct tw_qop_work {
    size_t chunk;
    int is_sum;            /**< of the chunk from several ranks, in fp32 in the order of `from` */
    tw_form_t in, out;     /**< PACKED: only from and to PLAIN, and no sum; not both PLAIN */
    const tw_sbuf_t *from; /**< [n_from] copied; n_from 1 but for a sum. What is PLAIN: also SRC, DST */
    int n_from;
    tw_sbuf_t to; /**< likewise */
    float factor; /**< of the sum */
    tw_seed_t seed;
} tw_qop_work_t;

tw_task_t tw_qop_emit(const tw_qop_t *op, const tw_qop_work_t *is);

TW_C_END
