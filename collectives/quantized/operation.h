/** The codec's share of a quantized operation: computations on the chunks of its grid.
 *
 *  An algorithm makes a tw_qop_t while it is built; from then on it works on chunks (chunks.h). A chunk's
 *  encoded bytes live in a scratch buffer of their own, so that they are sent on as they are. */
#pragma once

#include "collectives/communicator.h"

TW_C_BEGIN

/** The seed of an encoding. index: the rank or the node that encodes. In a reduction all seeds differ, as
 *  otherwise all would round the same way. */
uint64_t tw_qop_seed(tw_seed_t kind, tw_coll_op_t op, uint64_t seed, int index);
/** The seed of a chunk that is a message, from the operation's seed of its kind. */
uint64_t tw_qop_message_seed(uint64_t seed, uint32_t step, size_t chunk);

/** A quantized operation. It lives as long as the schedule. */
typedef struct tw_qop {
    tw_sched_t *sched;
    const tw_grid_t *grid;
    const tw_grid_tensor_t *tensors;       /**< [n_segments] */
    tw_quant_t **codecs;                   /**< [n_codecs of the grid], NULL for those of messages */
    tw_quant_messages_stream_t **messages; /**< [n_codecs of the grid], NULL for those of blocks */
    tw_quant_t *inner;                     /**< codec of the hop inside the node; NULL: plain */
    tw_quant_args_t args;                  /**< arguments for the codecs; the factor is 1 */
    uint64_t seeds[TW_N_SEEDS];            /**< by tw_seed_t */
    float limit;                           /**< limit of finite results: see tw_coll_limit */
    tw_sbuf_t work;                        /**< room for the fp32 sums of one computation at a time */
    size_t elem_bytes;
} tw_qop_t;

/** Make the operation for a request with a schedule, and its grid. args: the request's, but all segments
 *  may have other counts. chunk_bytes: see tw_grid_init. TW_ERR_NO_MEMORY. */
tw_status_t tw_qop_create(tw_coll_request_t *request, const tw_coll_args_t *args, size_t chunk_bytes,
                          tw_qop_t **out);

/** Take a scratch buffer for a chunk in a form; returns the message that it will hold. */
tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form);

/** Stand for a buffer: the chunk in the tensors. */
#define TW_QOP_SRC TW_SBUF_NONE
#define TW_QOP_DST (-2)

/** A computation on a chunk: it is converted to another form, or several are summed up. */
typedef struct tw_qop_work {
    size_t chunk;
    int is_sum;            /**< 1: sums the chunk over several ranks, in fp32 in the order of `from` */
    tw_form_t in, out;     /**< PACKED: only from and to PLAIN, without a sum; not both PLAIN */
    const tw_sbuf_t *from; /**< [n_from], copied; n_from is 1 but for a sum. PLAIN ones may be SRC or DST */
    int n_from;
    tw_sbuf_t to; /**< like `from` */
    float factor; /**< factor of a sum */
    tw_seed_t seed;
} tw_qop_work_t;

tw_task_t tw_qop_emit(const tw_qop_t *op, const tw_qop_work_t *is);

TW_C_END
