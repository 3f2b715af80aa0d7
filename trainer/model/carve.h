/** Private to trainer/model: divides a buffer into parts that begin on cache lines. */
#pragma once

#include "core/core.h"

/** Hands out parts of a buffer. If base is NULL, it only counts bytes, saturating at SIZE_MAX. */
typedef struct tw_carver {
    char *base;
    size_t used;
} tw_carver_t;

static inline void *tw_carve_bytes(tw_carver_t *carver, size_t bytes)
{
    void *piece = carver->base ? carver->base + carver->used : NULL;
    size_t lines = bytes / TW_CACHE_LINE_BYTES + (bytes % TW_CACHE_LINE_BYTES > 0);
    carver->used = tw_size_add(carver->used, tw_size_mul(lines, TW_CACHE_LINE_BYTES));
    return piece;
}

static inline float *tw_carve(tw_carver_t *carver, size_t n_floats)
{
    return (float *)tw_carve_bytes(carver, tw_size_mul(n_floats, sizeof(float)));
}

/** Allocate scratch of the size that a carver counted for B x T tokens. tw_buffer_free frees it. NULL: no
 *  memory, logged. */
static inline char *tw_carve_alloc(size_t bytes, size_t batch, size_t seq_len)
{
    char *memory = bytes <= TW_MEMORY_BYTES_MAX ? (char *)tw_buffer_alloc(bytes) : NULL;
    if (!memory) {
        tw_error("model: out of memory for %zu bytes of scratch (%zu sequences of %zu tokens)", bytes, batch,
                 seq_len);
    }
    return memory;
}
