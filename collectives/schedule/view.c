/** A view: elements numbered in the order of an operation, which are scattered over memory in extents. All
 *  tensors of an operation, shard by shard, are one view. A message is a range of a view. */
#include "collectives/schedule/schedule.h"

#include <string.h>

void tw_view_append(tw_view_t *view, const void *base, size_t n_elems)
{
    if (n_elems == 0) {
        return;
    }
    size_t first = view->n_elems;
    const tw_view_extent_t *last = &view->extents[view->n_extents - (view->n_extents > 0)];

    view->n_elems += n_elems;
    if (view->n_extents > 0 && last->base + (first - last->first) * view->elem_bytes == (const char *)base) {
        return;
    }
    view->extents[view->n_extents++] = (tw_view_extent_t){(char *)base, first};
}

static size_t find_extent(const tw_view_t *view, size_t first)
{
    size_t low = 0, high = view->n_extents;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (view->extents[middle].first <= first) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static char *extent_at(const tw_view_t *view, size_t index, size_t first, size_t n, size_t *contiguous)
{
    const tw_view_extent_t *extent = &view->extents[index];
    size_t end = index + 1 < view->n_extents ? extent[1].first : view->n_elems;
    *contiguous = end - first < n ? end - first : n;
    return extent->base + (first - extent->first) * view->elem_bytes;
}

char *tw_view_at(const tw_view_t *view, size_t first, size_t n, size_t *contiguous)
{
    return extent_at(view, find_extent(view, first), first, n, contiguous);
}

char *tw_view_contiguous(const tw_view_t *view, size_t first, size_t n)
{
    size_t contiguous;
    char *at = tw_view_at(view, first, n, &contiguous);
    return contiguous == n ? at : NULL;
}

/** Copy a range of the view to contiguous memory (reads), or from it. */
static void view_copy(const tw_view_t *view, size_t first, size_t n, char *packed, int reads)
{
    for (size_t index = n > 0 ? find_extent(view, first) : 0; n > 0; index++) {
        size_t run;
        char *at = extent_at(view, index, first, n, &run);
        memcpy(reads ? packed : at, reads ? at : packed, run * view->elem_bytes);
        packed += run * view->elem_bytes;
        first += run;
        n -= run;
    }
}

void tw_view_read(const tw_view_t *view, size_t first, size_t n, void *dst)
{
    view_copy(view, first, n, dst, 1);
}

void tw_view_write(const tw_view_t *view, size_t first, size_t n, const void *src)
{
    view_copy(view, first, n, (char *)src, 0);
}
