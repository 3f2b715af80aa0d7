/** Computes who owns what, as layout.h describes. */
#include "hpz/layout.h"

#include <limits.h>
#include <stdlib.h>

#include "collectives/collectives.h"

struct tw_hpz_layout_s {
    int n_nodes, ranks_per_node, n_units;
    size_t n_tensors;
    size_t *sizes;      /* [n_tensors] elements */
    size_t *first;      /* [n_units + 1] index of each unit's first tensor */
    size_t *full;       /* [n_tensors] offsets in the whole unit */
    size_t *secondary;  /* [n_tensors][ranks_per_node] offsets in the secondary parts */
    size_t *primary;    /* [n_tensors][n_nodes][ranks_per_node] offsets in the primary parts */
    size_t *unit_elems; /* [n_units][1 + L + N * L] elements of the whole, secondary and primary parts */
};

static size_t layout_places_of(const tw_hpz_layout_t *layout)
{
    return (size_t)layout->n_nodes * (size_t)layout->ranks_per_node;
}

static size_t parts_of(const tw_hpz_layout_t *layout)
{
    return 1 + (size_t)layout->ranks_per_node + layout_places_of(layout);
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

static tw_hpz_piece_t secondary_run(const tw_hpz_layout_t *layout, size_t tensor, int local)
{
    size_t n = layout->sizes[tensor];
    return (tw_hpz_piece_t){.first = tw_coll_shard_offset(n, layout->ranks_per_node, local),
                            .n_elems = tw_coll_shard_elems(n, layout->ranks_per_node, local)};
}

static tw_hpz_piece_t primary_run(const tw_hpz_layout_t *layout, size_t tensor, int node, int local)
{
    tw_hpz_piece_t outer = secondary_run(layout, tensor, local);
    return (tw_hpz_piece_t){.first = outer.first + tw_coll_shard_offset(outer.n_elems, layout->n_nodes, node),
                            .n_elems = tw_coll_shard_elems(outer.n_elems, layout->n_nodes, node)};
}

tw_hpz_piece_t tw_hpz_full_piece(const tw_hpz_layout_t *layout, size_t tensor)
{
    return (tw_hpz_piece_t){.n_elems = layout->sizes[tensor], .offset = layout->full[tensor]};
}

tw_hpz_piece_t tw_hpz_secondary_piece(const tw_hpz_layout_t *layout, size_t tensor, int local)
{
    tw_hpz_piece_t piece = secondary_run(layout, tensor, local);
    piece.offset = layout->secondary[tensor * (size_t)layout->ranks_per_node + (size_t)local];
    return piece;
}

static size_t layout_place_of(const tw_hpz_layout_t *layout, int node, int local)
{
    return (size_t)node * (size_t)layout->ranks_per_node + (size_t)local;
}

tw_hpz_piece_t tw_hpz_primary_piece(const tw_hpz_layout_t *layout, size_t tensor, int node, int local)
{
    tw_hpz_piece_t piece = primary_run(layout, tensor, node, local);
    piece.offset = layout->primary[tensor * layout_places_of(layout) + layout_place_of(layout, node, local)];
    return piece;
}

int tw_hpz_layout_units(const tw_hpz_layout_t *layout)
{
    return layout->n_units;
}

size_t tw_hpz_layout_tensors(const tw_hpz_layout_t *layout, int unit, size_t *first)
{
    *first = layout->first[unit];
    return layout->first[unit + 1] - layout->first[unit];
}

size_t tw_hpz_full_elems(const tw_hpz_layout_t *layout, int unit)
{
    return layout->unit_elems[(size_t)unit * parts_of(layout)];
}

size_t tw_hpz_secondary_elems(const tw_hpz_layout_t *layout, int unit, int local)
{
    return layout->unit_elems[(size_t)unit * parts_of(layout) + 1 + (size_t)local];
}

size_t tw_hpz_primary_elems(const tw_hpz_layout_t *layout, int unit, int node, int local)
{
    return layout->unit_elems[(size_t)unit * parts_of(layout) + 1 + (size_t)layout->ranks_per_node +
                              layout_place_of(layout, node, local)];
}

/* ---- slices -------------------------------------------------------------------------------------------- */

size_t tw_hpz_slice_step(size_t elems, const tw_quant_codec_t *codec)
{
    size_t block = tw_quant_form(codec) == TW_QUANT_BLOCKS ? (size_t)codec->block : 1;
    elems = elems > 0 ? elems : TW_HPZ_SLICE_ELEMS;
    elems = elems < TW_MEMORY_BYTES_MAX ? elems : TW_MEMORY_BYTES_MAX;
    return (elems + block - 1) / block * block;
}

/** Return the last place in (first, end] where a slice may end; if there is none, the first one after
 *  `first`. */
static size_t place_to_cut(const tw_hpz_layout_t *layout, int unit, size_t first, size_t end, size_t step)
{
    size_t tensor, n_tensors = tw_hpz_layout_tensors(layout, unit, &tensor);
    tw_hpz_piece_t piece = tw_hpz_primary_piece(layout, tensor, 0, 0);
    for (size_t t = tensor + 1; t < tensor + n_tensors; t++) {
        tw_hpz_piece_t next = tw_hpz_primary_piece(layout, t, 0, 0);
        piece = next.offset <= end ? next : piece;
    }
    size_t cut = piece.offset + (end - piece.offset) / step * step, after = first + step;
    size_t piece_end = piece.offset + piece.n_elems;
    if (cut > first) {
        return cut;
    }
    return after < piece_end ? after : piece_end;
}

tw_hpz_slice_t tw_hpz_slice_next(const tw_hpz_layout_t *layout, int unit, size_t first, size_t most,
                                 size_t step)
{
    size_t n_elems = tw_hpz_primary_elems(layout, unit, 0, 0);
    most = most > step ? most : step;
    if (n_elems - first <= most) {
        return (tw_hpz_slice_t){first, n_elems};
    }
    return (tw_hpz_slice_t){first, place_to_cut(layout, unit, first, first + most, step)};
}

size_t tw_hpz_sync_slice_most(const tw_hpz_layout_t *layout, int unit, int local, size_t sync_elems,
                              size_t step)
{
    size_t all = tw_hpz_primary_elems(layout, unit, 0, 0);
    size_t half = sync_elems / 2 / (size_t)layout->n_nodes, most = half > step ? half : step;
    if (sync_elems == 0 || tw_hpz_secondary_elems(layout, unit, local) <= sync_elems) {
        return all;
    }
    return most < all ? most : all;
}

static size_t clamp(size_t value, size_t least, size_t most)
{
    return value < least ? least : value < most ? value : most;
}

tw_hpz_piece_t tw_hpz_slice_piece(const tw_hpz_layout_t *layout, size_t tensor, int node, int local,
                                  tw_hpz_slice_t slice)
{
    tw_hpz_piece_t longest = tw_hpz_primary_piece(layout, tensor, 0, 0);
    tw_hpz_piece_t piece = tw_hpz_primary_piece(layout, tensor, node, local);
    size_t start = longest.offset;
    size_t from = clamp(slice.first, start, start + piece.n_elems) - start;
    size_t to = clamp(slice.end, start, start + piece.n_elems) - start;
    return (tw_hpz_piece_t){.first = piece.first + from, .n_elems = to - from, .offset = piece.offset + from};
}

size_t tw_hpz_slice_elems(const tw_hpz_layout_t *layout, int unit, int node, int local, tw_hpz_slice_t slice)
{
    size_t first, n_tensors = tw_hpz_layout_tensors(layout, unit, &first), n_elems = 0;
    for (size_t t = first; t < first + n_tensors; t++) {
        n_elems += tw_hpz_slice_piece(layout, t, node, local, slice).n_elems;
    }
    return n_elems;
}

/* ---- creating a layout --------------------------------------------------------------------------------- */

static tw_status_t layout_check(const tw_hpz_tensor_t *tensors, size_t n_tensors, int n_nodes,
                                int ranks_per_node)
{
    TW_FAIL_IF(n_nodes < 1 || ranks_per_node < 1, TW_ERR_INVALID, "a layout over %d nodes of %d ranks",
               n_nodes, ranks_per_node);
    TW_FAIL_IF(n_tensors >= INT_MAX, TW_ERR_INVALID, "a layout of %zu tensors: at most %d", n_tensors,
               INT_MAX - 1);
    size_t n_bytes = 0;
    for (size_t t = 0; t < n_tensors; t++) {
        int before = t == 0 ? 0 : tensors[t - 1].unit;
        int most = t == 0 ? 0 : before + 1;
        n_bytes = tw_size_add(n_bytes, tw_size_mul(tensors[t].n_elems, sizeof(float)));
        TW_FAIL_IF(n_bytes > TW_MEMORY_BYTES_MAX, TW_ERR_INVALID,
                   "tensor %zu has %zu elements: with those before it, more than fit in memory", t,
                   tensors[t].n_elems);
        TW_FAIL_IF(tensors[t].unit < before || tensors[t].unit > most, TW_ERR_INVALID,
                   "tensor %zu is of unit %d, after one of unit %d", t, tensors[t].unit, before);
    }
    return TW_OK;
}

/** Append n elements to a part that has *elems so far; return the offset of the first. */
static size_t layout_append(size_t *elems, size_t n)
{
    size_t offset = *elems;
    *elems += n;
    return offset;
}

static void place_tensor(tw_hpz_layout_t *layout, size_t t, size_t *elems)
{
    size_t *secondary = layout->secondary + t * (size_t)layout->ranks_per_node;
    size_t *primary = layout->primary + t * layout_places_of(layout);
    layout->full[t] = layout_append(&elems[0], layout->sizes[t]);
    for (int l = 0; l < layout->ranks_per_node; l++) {
        secondary[l] = layout_append(&elems[1 + l], secondary_run(layout, t, l).n_elems);
        for (int n = 0; n < layout->n_nodes; n++) {
            size_t place = layout_place_of(layout, n, l);
            primary[place] = layout_append(&elems[1 + (size_t)layout->ranks_per_node + place],
                                           primary_run(layout, t, n, l).n_elems);
        }
    }
}

static tw_status_t layout_allocate(tw_hpz_layout_t *layout)
{
    size_t n = layout->n_tensors + 1; /* so that no array has 0 bytes */
    size_t n_units = (size_t)layout->n_units + 1;
    layout->sizes = calloc(n, sizeof(size_t));
    layout->full = calloc(n, sizeof(size_t));
    layout->secondary = calloc(n * (size_t)layout->ranks_per_node, sizeof(size_t));
    layout->primary = calloc(tw_size_mul(n, layout_places_of(layout)), sizeof(size_t));
    layout->first = calloc(n_units, sizeof(size_t));
    layout->unit_elems = calloc(tw_size_mul(n_units, parts_of(layout)), sizeof(size_t));
    TW_FAIL_IF(!layout->sizes || !layout->full || !layout->secondary || !layout->primary || !layout->first ||
                   !layout->unit_elems,
               TW_ERR_NO_MEMORY, "out of memory for the layout of %zu tensors", layout->n_tensors);
    return TW_OK;
}

tw_status_t tw_hpz_layout_create(const tw_hpz_tensor_t *tensors, size_t n_tensors, int n_nodes,
                                 int ranks_per_node, tw_hpz_layout_t **out)
{
    TW_TRY(layout_check(tensors, n_tensors, n_nodes, ranks_per_node));
    tw_hpz_layout_t *layout = calloc(1, sizeof(*layout));
    TW_FAIL_IF(!layout, TW_ERR_NO_MEMORY, "out of memory for a layout");
    layout->n_nodes = n_nodes;
    layout->ranks_per_node = ranks_per_node;
    layout->n_tensors = n_tensors;
    layout->n_units = n_tensors > 0 ? tensors[n_tensors - 1].unit + 1 : 0;
    tw_status_t status = layout_allocate(layout);
    if (status != TW_OK) {
        tw_hpz_layout_destroy(layout);
        return status;
    }
    for (size_t t = 0; t < n_tensors; t++) {
        layout->sizes[t] = tensors[t].n_elems;
        layout->first[tensors[t].unit + 1] = t + 1;
        place_tensor(layout, t, layout->unit_elems + (size_t)tensors[t].unit * parts_of(layout));
    }
    *out = layout;
    return TW_OK;
}

void tw_hpz_layout_destroy(tw_hpz_layout_t *layout)
{
    if (!layout) {
        return;
    }
    free(layout->sizes);
    free(layout->first);
    free(layout->full);
    free(layout->secondary);
    free(layout->primary);
    free(layout->unit_elems);
    free(layout);
}
