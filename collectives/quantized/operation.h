/** The codec's share of a quantized operation: computations on the chunks of its grid.
 *
 *  An algorithm makes a tw_qop_t while it is built; from then on it thinks in chunks (chunks.h). A chunk's
 *  encoded bytes live in a scratch buffer of their own, so that they are sent on as they are. */
#ifndef TW_COLLECTIVES_QUANTIZED_OPERATION_H
#define TW_COLLECTIVES_QUANTIZED_OPERATION_H

#include "collectives/algorithms/algorithm.h"
#include "collectives/quantized/chunks.h"

TW_C_BEGIN

/** Seeds of what a rank encodes, and of a node's sum: in a reduction all different, lest all round the same
 *  way. */
uint64_t tw_qop_rank_seed(tw_coll_op_t op, uint64_t seed, int rank);
uint64_t tw_qop_node_seed(uint64_t seed, int node);

/** All chunks that exist here, as one run of elements. */
typedef struct tw_qop_view {
    tw_view_t view;
    size_t *first; /**< [n_chunks] where a chunk begins in it */
} tw_qop_view_t;

/** Lives as long as the schedule. */
typedef struct tw_qop {
    tw_sched_t *sched;
    const tw_topo_t *topo;
    const tw_grid_t *grid;
    tw_grid_tensor_t *tensors;     /**< [n_segments] */
    tw_quant_t **codecs;           /**< [n_codecs of the grid] NULL for the lossless one */
    tw_quant_lossless_t *lossless; /**< NULL: no chunk is */
    tw_quant_t *inner;             /**< of the hop inside the node; NULL: plain there */
    tw_quant_args_t args;          /**< factor: 1 */
    uint64_t own_seed;             /**< of what this rank encodes */
    uint64_t node_seed;            /**< of its node's sums */
    float limit;                   /**< tw_build_t's */
    tw_sbuf_t work;                /**< fp32 sums that are being made: of one computation at a time */
    size_t elem_bytes;
    tw_qop_view_t in, out; /**< src and dst */
} tw_qop_t;

/** NULL: the error sticks to the schedule. */
tw_qop_t *tw_qop_create(const tw_build_t *build);

/** Elements that a plain sum of what is then encoded makes at a time: whole frames of the codec. */
size_t tw_qop_sum_elems(const tw_quant_codec_t *codec);

/** A scratch buffer for a chunk in a form, as the message that it holds. */
tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form);
/** A chunk of src, and of dst. */
tw_span_t tw_qop_in(const tw_qop_t *op, size_t chunk);
tw_span_t tw_qop_out(const tw_qop_t *op, size_t chunk);

/** Instead of a buffer: the chunk where it is in the tensors. */
#define TW_QOP_SRC TW_SBUF_NONE
#define TW_QOP_DST (-2)

/** A plain chunk -> buffer, in a form that is not plain. from: src or dst; a buffer, too, if it is packed. */
tw_task_t tw_qop_encode(const tw_qop_t *op, size_t chunk, tw_form_t form, uint64_t seed, tw_sbuf_t from,
                        tw_sbuf_t to);
/** And back. to: dst; a buffer, too, if it is packed. */
tw_task_t tw_qop_decode(const tw_qop_t *op, size_t chunk, tw_form_t form, tw_sbuf_t from, tw_sbuf_t to);

/** A sum of the same chunk from several ranks, in fp32 in the order of `from`. */
typedef struct tw_qop_sum {
    size_t chunk;          /**< quantized */
    tw_form_t form;        /**< of the inputs; not PACKED */
    const tw_sbuf_t *from; /**< [n_from] copied; TW_QOP_SRC only if they are plain */
    int n_from;
    float factor;  /**< of the sum */
    uint64_t seed; /**< of its encoding */
} tw_qop_sum_t;

/** The sum -> buffer, quantized with the chunk's codec; or -> TW_QOP_DST, of inputs that are not plain. */
tw_task_t tw_qop_add(const tw_qop_t *op, const tw_qop_sum_t *sum, tw_sbuf_t to);

TW_C_END

#endif
