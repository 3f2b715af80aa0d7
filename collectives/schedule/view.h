/** A view: elements in the order in which an operation thinks of them, scattered over memory in extents.
 *  The tensors of an operation, seen shard by shard, are one view; a message is a range of it. */
#ifndef TW_COLLECTIVES_SCHEDULE_VIEW_H
#define TW_COLLECTIVES_SCHEDULE_VIEW_H

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_view_extent {
    char *base;
    size_t first; /**< index in the view of the element at base */
} tw_view_extent_t;

typedef struct tw_view {
    tw_view_extent_t *extents; /**< ascending; neighbours in memory are merged */
    size_t n_extents;
    size_t n_elems;
    size_t elem_bytes;
} tw_view_t;

/** An empty view. extents: the caller's, one for each tw_view_append. */
static inline void tw_view_init(tw_view_t *view, size_t elem_bytes, tw_view_extent_t *extents)
{
    tw_view_t empty = {extents, 0, 0, elem_bytes};
    *view = empty;
}

/** Append n elements at base; nothing for n = 0. Views that are only read take const memory, too. */
void tw_view_append(tw_view_t *view, const void *base, size_t n_elems);

/** Where element `first` lies, and how many elements from it on are contiguous (at most n); n >= 1. */
char *tw_view_at(const tw_view_t *view, size_t first, size_t n, size_t *contiguous);
/** The range's address if it is contiguous, else NULL; n >= 1. */
char *tw_view_contiguous(const tw_view_t *view, size_t first, size_t n);
/** Copy a range out of, or into, the view. */
void tw_view_read(const tw_view_t *view, size_t first, size_t n, void *dst);
void tw_view_write(const tw_view_t *view, size_t first, size_t n, const void *src);

TW_C_END

#endif
