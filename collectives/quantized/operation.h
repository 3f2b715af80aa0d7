/** The codec's share of a quantized operation: computations on the chunks of its grid.
 *
 *  An algorithm makes a tw_qop_t while it is built; from then on it thinks in chunks (chunks.h). A chunk's
 *  encoded bytes live in a scratch buffer of their own, so that they are sent on as they are. */
#ifndef TW_COLLECTIVES_QUANTIZED_OPERATION_H
#define TW_COLLECTIVES_QUANTIZED_OPERATION_H

#include "collectives/algorithms/algorithm.h"
#include "collectives/quantized/chunks.h"

TW_C_BEGIN

/** Where one segment lies: element `src_first` of the tensor is at src, element `dst_first` at dst. */
typedef struct tw_qop_tensor {
    const char *src;
    size_t src_first;
    char *dst;
    size_t dst_first;
    uint32_t tensor;
    uint64_t first_elem; /**< of the whole tensor that this is a part of */
    size_t row_elems;    /**< of that tensor; 0: not known */
} tw_qop_tensor_t;

/** In place, the side that is not given lies inside the other one. The segment's counts are never NULL but
 *  for an all-reduce. */
tw_qop_tensor_t tw_qop_place(const tw_coll_segment_t *segment, tw_coll_op_t op, int rank, size_t elem_bytes);

/** One part of a chunk, where it lies. */
typedef struct tw_qop_part {
    const char *src; /**< in the tensors; of no meaning where this rank has no such elements there */
    char *dst;
    size_t in_at, out_at; /**< in messages that are read and written: bytes from their begin */
    size_t n_elems;
    uint32_t tensor;
    uint64_t first_elem; /**< of the whole tensor */
    size_t row_elems;
} tw_qop_part_t;

/** A walk over the parts of a chunk; what is not named is zero at the start. */
typedef struct tw_qop_walk {
    const tw_grid_t *grid;
    size_t chunk;
    const tw_qop_tensor_t *tensors;   /**< [n_segments] */
    tw_type_t type;                   /**< of the tensors and of what is written */
    tw_type_t in_type;                /**< of what is read, if that is as it is */
    const tw_quant_codec_t *in, *out; /**< of the messages; NULL: as it is */
    size_t next, in_at, out_at;       /**< the walk's own */
} tw_qop_walk_t;

/** 1 and the next part; 0: there is none left. */
int tw_qop_walk_next(tw_qop_walk_t *walk, tw_qop_part_t *part);

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
    tw_grid_t grid;
    tw_qop_tensor_t *tensors;      /**< [n_segments] */
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

tw_coding_t tw_qop_coding(const tw_qop_t *op, size_t chunk);
/** What a chunk is quantized with in a form; NULL: it is not. */
tw_quant_t *tw_qop_codec(const tw_qop_t *op, size_t chunk, tw_form_t form);

/** A scratch buffer for a chunk in a form, as the message that it holds. */
tw_span_t tw_qop_buffer(const tw_qop_t *op, size_t chunk, tw_form_t form);
/** A chunk of src, and of dst. */
tw_span_t tw_qop_in(const tw_qop_t *op, size_t chunk);
tw_span_t tw_qop_out(const tw_qop_t *op, size_t chunk);

/* ---- compute.c ----------------------------------------------------------------------------------------- */

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
