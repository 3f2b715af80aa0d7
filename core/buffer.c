#include "core/core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define HUGE_FROM_BYTES ((size_t)4 << 20)

void *tw_buffer_alloc(size_t bytes)
{
    int huge = bytes >= HUGE_FROM_BYTES;
    size_t unit = bytes >= TW_BUFFER_OWN_PAGES_FROM ? (size_t)sysconf(_SC_PAGESIZE) : TW_CACHE_LINE_BYTES;
    size_t whole = tw_size_mul(tw_size_add(bytes > 0 ? bytes : 1, unit - 1) / unit, unit);
    void *buffer;
    if (posix_memalign(&buffer, huge ? HUGE_PAGE_BYTES : unit, whole) != 0) {
        return NULL;
    }
    /* Advise only whole huge pages of the buffer. A kernel without huge pages ignores the advice. */
    if (huge) {
        (void)madvise(buffer, bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    }
    return buffer;
}

void *tw_buffer_alloc_zero(size_t bytes)
{
    void *buffer = tw_buffer_alloc(bytes);
    if (buffer) {
        memset(buffer, 0, bytes);
    }
    return buffer;
}

void tw_buffer_free(void *buffer)
{
    free(buffer);
}

#define LEAST_ITEMS 64

int tw_grow(void *items, size_t *max, size_t n, size_t item_bytes)
{
    size_t wanted = *max > 0 ? tw_size_mul(*max, 2) : LEAST_ITEMS;
    void *array;
    if (n <= *max) {
        return 1;
    }
    wanted = wanted > n ? wanted : n;
    memcpy(&array, items, sizeof(array));
    size_t bytes = tw_size_mul(wanted, item_bytes);
    array = bytes == SIZE_MAX ? NULL : realloc(array, bytes);
    if (!array) {
        return 0;
    }
    memcpy(items, &array, sizeof(array));
    *max = wanted;
    return 1;
}
