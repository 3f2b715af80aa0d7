/** Computes who owns which part of the weights, by arithmetic only. hpz/hpz.h includes it, and explains the
 *  words.
 *
 *  A tensor of n elements is split evenly over l (the first n % L parts one element more), each such part
 *  evenly over the nodes. So the piece of rank (node, local) is a run of the tensor, perhaps an empty one,
 *  and any n, N, L work. Where nodes have unequal numbers of ranks each rank is a node. A part of a unit is
 *  the pieces of its tensors, one after the other, without gaps; a whole unit likewise. */
#ifndef TW_HPZ_LAYOUT_H
#define TW_HPZ_LAYOUT_H

#include "quant/quant.h"

TW_C_BEGIN

typedef struct tw_hpz_tensor {
    size_t n_elems;
    int unit;         /**< 0, 1, ...; never less than that of the tensor before */
    int unquantized;  /**< 1: never quantized (norms, biases) */
    size_t row_elems; /**< row length of a matrix, its last dimension, for the lossless codec; 0: not known */
    int frozen;       /**< 1: its master never changes, so only full syncs send it, not deltas */
} tw_hpz_tensor_t;

/** A run of a tensor's elements in a part of its unit, or in the whole unit. */
typedef struct tw_hpz_piece {
    size_t first;   /**< its first element, in the tensor */
    size_t n_elems; /**< may be 0 */
    size_t offset;  /**< its first element, in the part */
} tw_hpz_piece_t;

/** The layout of a list of tensors. Any number of threads may read it at once. `_s`: in C++ a struct of the
 *  name tw_hpz_layout would hide the function tw_hpz_layout(). */
typedef struct tw_hpz_layout_s tw_hpz_layout_t;

/** Make a layout; `tensors` is copied. TW_ERR_INVALID (logged): units do not ascend by at most one from 0,
 *  n_nodes or ranks_per_node is below 1, or there are more elements than fit in memory
 *  (TW_MEMORY_BYTES_MAX); TW_ERR_NO_MEMORY. */
tw_status_t tw_hpz_layout_create(const tw_hpz_tensor_t *tensors, size_t n_tensors, int n_nodes,
                                 int ranks_per_node, tw_hpz_layout_t **out);
void tw_hpz_layout_destroy(tw_hpz_layout_t *layout);

int tw_hpz_layout_units(const tw_hpz_layout_t *layout);
/** Return how many tensors a unit has; *first is the index of the first. */
size_t tw_hpz_layout_tensors(const tw_hpz_layout_t *layout, int unit, size_t *first);
/** Return the elements of a whole unit; of its secondary part at `local`; of its primary part. */
size_t tw_hpz_full_elems(const tw_hpz_layout_t *layout, int unit);
size_t tw_hpz_secondary_elems(const tw_hpz_layout_t *layout, int unit, int local);
size_t tw_hpz_primary_elems(const tw_hpz_layout_t *layout, int unit, int node, int local);
/** Return a tensor's piece in each of the three; `tensor` is its index in the list. */
tw_hpz_piece_t tw_hpz_full_piece(const tw_hpz_layout_t *layout, size_t tensor);
tw_hpz_piece_t tw_hpz_secondary_piece(const tw_hpz_layout_t *layout, size_t tensor, int local);
tw_hpz_piece_t tw_hpz_primary_piece(const tw_hpz_layout_t *layout, size_t tensor, int node, int local);

/** A slice of a unit: elements first .. end - 1 of the primary part of rank (0, 0), whose pieces are the
 *  longest. At another rank it has the same elements of each piece, as far as the piece reaches. Slices that
 *  follow one another, from 0 to the end of rank (0, 0)'s part, make the unit. */
typedef struct tw_hpz_slice {
    size_t first, end;
} tw_hpz_slice_t;

/** A slice ends where a piece does, or after a multiple of `step` of the piece's elements. This is the usual
 *  step; smaller slices would be all latency. */
#define TW_HPZ_SLICE_ELEMS 32768
/** Return the `step` of slices: `elems` (0: the usual step), rounded up to whole blocks of the codec. */
size_t tw_hpz_slice_step(size_t elems, const tw_quant_codec_t *codec);
/** Return the slice that begins at `first`, where the one before ends, of at most `most` elements a rank, or
 *  `step` if that is more. The last one ends at the end of rank (0, 0)'s part. */
tw_hpz_slice_t tw_hpz_slice_next(const tw_hpz_layout_t *layout, int unit, size_t first, size_t most,
                                 size_t step);
/** Return the most elements of a slice at a rank, in a sync of a unit. sync_elems is that of tw_hpz_params_t;
 *  0: any number. A larger unit goes in slices of half of sync_elems: one is sent while the next is coded. */
size_t tw_hpz_sync_slice_most(const tw_hpz_layout_t *layout, int unit, int local, size_t sync_elems,
                              size_t step);
/** Return the elements of a tensor's piece at (node, local) in a slice; the offset is in the whole part. */
tw_hpz_piece_t tw_hpz_slice_piece(const tw_hpz_layout_t *layout, size_t tensor, int node, int local,
                                  tw_hpz_slice_t slice);
/** Return how many elements a slice of a unit has at (node, local); they are one run of that rank's part. */
size_t tw_hpz_slice_elems(const tw_hpz_layout_t *layout, int unit, int node, int local, tw_hpz_slice_t slice);

TW_C_END

#endif
