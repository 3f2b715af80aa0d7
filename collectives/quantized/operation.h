/** The computations of a quantized operation on the chunks of its grid (chunks.h).
 *
 *  The engine makes a tw_qop_t before it emits an operation's tasks. A chunk's encoded bytes have a scratch
 *  buffer, from which they can be sent on unchanged. */
#pragma once

#include "collectives/communicator.h"

TW_C_BEGIN

/** Returns the seed of an encoding. index: the rank or node that encodes. In a reduction every encoder needs
 *  another seed, as otherwise all would round in the same direction. */
uint64_t tw_qop_seed(tw_seed_t kind, tw_coll_op_t op, uint64_t seed, int index);
/** Returns the seed of a chunk that is a message. seed: the operation's seed of its kind. */
uint64_t tw_qop_message_seed(uint64_t seed, uint32_t step, size_t chunk);

/** A quantized operation. It lives as long as the schedule. */
typedef struct tw_qop {
    tw_sched_t *sched;
    const tw_grid_t *grid;
    const tw_grid_tensor_t *tensors;       /**< [n_segments] */
    tw_quant_t **codecs;                   /**< [n_codecs of the grid], NULL for codecs of messages */
    tw_quant_messages_stream_t **messages; /**< [n_codecs of the grid], NULL for codecs of blocks */
    tw_quant_t *inner;                     /**< codec of the hop inside the node; NULL: plain */
    tw_quant_args_t args;                  /**< arguments for the codecs; the factor is 1 */
    uint64_t seeds[TW_N_SEEDS];            /**< one seed for each tw_seed_t */
    float limit;                           /**< limit of finite results: see tw_coll_limit */
    tw_sbuf_t work; /**< scratch buffer for the fp32 sums of one computation at a time */
    size_t elem_bytes;
} tw_qop_t;

/** Make the operation, and the request's grid, for a request that has a schedule. args: the request's
 *  arguments, perhaps with other counts. chunk_bytes: see tw_grid_init. TW_ERR_NO_MEMORY. */
tw_status_t tw_qop_create(tw_coll_request_t *request, const tw_coll_args_t *args, size_t chunk_bytes,
                          tw_qop_t **out);

/** Make a scratch buffer for a chunk in a form. Returns the span of the message in it. */
tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form);

/** These stand for a buffer: the chunk in the source or target tensors. */
#define TW_QOP_SRC TW_SBUF_NONE
#define TW_QOP_DST (-2)

/** A computation on a chunk: a conversion to another form, or a sum. */
typedef struct tw_qop_work {
    size_t chunk;
    int is_sum;        /**< 1: adds the inputs up in fp32, in the order of `from` */
    tw_form_t in, out; /**< never both PLAIN; PACKED only occurs together with PLAIN, and not in a sum */
    /** [n_from], copied; 1 unless it is a sum. A PLAIN input may be TW_QOP_SRC or TW_QOP_DST. */
    const tw_sbuf_t *from;
    int n_from;
    tw_sbuf_t to; /**< a buffer; a PLAIN output may be TW_QOP_DST */
    float factor; /**< factor of a sum */
    tw_seed_t seed;
} tw_qop_work_t;

tw_task_t tw_qop_emit(const tw_qop_t *op, const tw_qop_work_t *is);

TW_C_END
