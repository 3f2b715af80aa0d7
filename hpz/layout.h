/** Computes who owns which part of the weights, by arithmetic only. hpz/hpz.h includes this header and
 *  explains its words.
 *
 *  A tensor of n elements is split evenly over the L places on a node (the first n % L parts get one element
 *  more). Each of these parts is split evenly over the nodes. So the piece of rank (node, local) is a run of
 *  the tensor, perhaps an empty one, and any n, N and L work. If nodes have unequal numbers of ranks, the
 *  layout treats each rank as a node. A part of a unit consists of the pieces of its tensors, one after the
 *  other, without gaps. A whole unit consists of its tensors in the same way. */
#ifndef TW_HPZ_LAYOUT_H
#define TW_HPZ_LAYOUT_H

#include "quant/quant.h"

TW_C_BEGIN

typedef struct tw_hpz_tensor {
    size_t n_elems;
    int unit;         /**< index of its unit; equal to the previous tensor's, or one more */
    int unquantized;  /**< 1: never quantized (norms, biases) */
    size_t row_elems; /**< last dimension of a matrix, for the lossless codec; 0: not known */
    int frozen;       /**< 1: its master never changes, so full syncs send it, but deltas do not */
} tw_hpz_tensor_t;

/** A run of a tensor's elements in a part of its unit, or in the whole unit. */
typedef struct tw_hpz_piece {
    size_t first;   /**< index of its first element in the tensor */
    size_t n_elems; /**< may be 0 */
    size_t offset;  /**< index of its first element in the part, or in the whole unit */
} tw_hpz_piece_t;

/** The layout of a list of tensors. Any number of threads may read it at once. The struct's name ends in `_s`
 *  because a struct tw_hpz_layout would hide the function tw_hpz_layout() in C++. */
typedef struct tw_hpz_layout_s tw_hpz_layout_t;

/** Make a layout; `tensors` is copied. TW_ERR_INVALID (logged): unit numbers do not start at 0 or skip a
 *  number, n_nodes or ranks_per_node is below 1, or there are more elements than fit in memory
 *  (TW_MEMORY_BYTES_MAX); TW_ERR_NO_MEMORY. */
tw_status_t tw_hpz_layout_create(const tw_hpz_tensor_t *tensors, size_t n_tensors, int n_nodes,
                                 int ranks_per_node, tw_hpz_layout_t **out);
void tw_hpz_layout_destroy(tw_hpz_layout_t *layout);

int tw_hpz_layout_units(const tw_hpz_layout_t *layout);
/** Return how many tensors a unit has; *first is the index of the first. */
size_t tw_hpz_layout_tensors(const tw_hpz_layout_t *layout, int unit, size_t *first);
/** Return the number of elements of a whole unit; of its secondary part at `local`; of a primary part. */
size_t tw_hpz_full_elems(const tw_hpz_layout_t *layout, int unit);
size_t tw_hpz_secondary_elems(const tw_hpz_layout_t *layout, int unit, int local);
size_t tw_hpz_primary_elems(const tw_hpz_layout_t *layout, int unit, int node, int local);
/** Return a tensor's piece in the whole unit; in the secondary part at `local`; in a primary part. */
tw_hpz_piece_t tw_hpz_full_piece(const tw_hpz_layout_t *layout, size_t tensor);
tw_hpz_piece_t tw_hpz_secondary_piece(const tw_hpz_layout_t *layout, size_t tensor, int local);
tw_hpz_piece_t tw_hpz_primary_piece(const tw_hpz_layout_t *layout, size_t tensor, int node, int local);

/** A slice of a unit: at rank (0, 0), which has the longest pieces, elements first .. end - 1 of the primary
 *  part. At another rank, it has the same element range of each piece, as far as the piece reaches.
 *  Consecutive slices from 0 to the end of rank (0, 0)'s part make up the unit. */
typedef struct tw_hpz_slice {
    size_t first, end;
} tw_hpz_slice_t;

/** Usual step of slices. A slice ends at the end of a piece, or after a multiple of the step inside a piece.
 *  With smaller slices, latency would dominate. */
#define TW_HPZ_SLICE_ELEMS 32768
/** Return the step of slices: `elems` (0: the usual step), rounded up to whole blocks of the codec. */
size_t tw_hpz_slice_step(size_t elems, const tw_quant_codec_t *codec);
/** Return the slice that begins at `first`, the end of the previous slice. It has at most max(most, step)
 *  elements a rank. The last slice ends at the end of rank (0, 0)'s part. */
tw_hpz_slice_t tw_hpz_slice_next(const tw_hpz_layout_t *layout, int unit, size_t first, size_t most,
                                 size_t step);
/** Return the most elements that a slice has at one rank when a unit is synced. sync_elems: as in
 *  tw_hpz_params_t. A unit above it goes in slices of sync_elems / 2: one is sent while the next is coded. */
size_t tw_hpz_sync_slice_most(const tw_hpz_layout_t *layout, int unit, int local, size_t sync_elems,
                              size_t step);
/** Return a tensor's piece at (node, local) inside a slice; its offset is in the whole primary part. */
tw_hpz_piece_t tw_hpz_slice_piece(const tw_hpz_layout_t *layout, size_t tensor, int node, int local,
                                  tw_hpz_slice_t slice);
/** Return how many elements a slice of a unit has at (node, local). They are consecutive there. */
size_t tw_hpz_slice_elems(const tw_hpz_layout_t *layout, int unit, int node, int local, tw_hpz_slice_t slice);

TW_C_END

#endif
