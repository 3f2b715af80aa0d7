/** The lossless delta's codec, and its walk over the segments of a call. Private to the folder. */
#pragma once

#include "quant/delta/model.h"

TW_C_BEGIN

#define TW_DELTA_VECTOR_SLACK 32 /**< elements that SIMD code may write past the end */

struct tw_quant_delta {
    const tw_delta_backend_t *backend;
    tw_delta_stats_t stats;
    tw_delta_model_t model;
    uint16_t words[TW_DELTA_BLOCK_ELEMS + TW_DELTA_VECTOR_SLACK], escapes[TW_DELTA_BLOCK_ELEMS + 1];
    /* A copy of a block whose elements are in several segments. */
    uint16_t old_values[TW_DELTA_BLOCK_ELEMS], new_values[TW_DELTA_BLOCK_ELEMS];
    uint8_t state[TW_DELTA_BLOCK_ELEMS];
    tw_delta_sample_t sample;
    /** scratch for elements of 8 bits; NULL before the first call for them */
    struct tw_delta_narrow *narrow;
};

/** A place in the segments: element `at` of a segment. */
typedef struct tw_delta_cursor {
    const tw_quant_delta_segment_t *segment;
    size_t at;
} tw_delta_cursor_t;

/** Take the next contiguous elements, at most n, and move the cursor. At least n must be left. */
tw_delta_run_t tw_delta_next_run(tw_delta_cursor_t *cursor, size_t n, int encoding);
/** Take the next block, of n elements, and move the cursor. If its elements are in several segments, the run
 *  is a copy in the codec's memory, and *gathered is 1. */
tw_delta_run_t tw_delta_next_block(tw_quant_delta_t *delta, tw_delta_cursor_t *cursor, size_t n, int encoding,
                                   int *gathered);
/** Copy a gathered block's states, and if new_too its new values, back to the segments. `cursor` is at the
 *  block's beginning. */
void tw_delta_scatter(const tw_quant_delta_t *delta, tw_delta_cursor_t cursor, size_t n, int new_too);
/** The part of a checksum that n values, at any alignment, add. The first one has index `first`. */
uint32_t tw_delta_check_values(const void *values, size_t first, size_t n);

static inline size_t tw_delta_block_count(size_t n_elems)
{
    return (n_elems + TW_DELTA_BLOCK_ELEMS - 1) / TW_DELTA_BLOCK_ELEMS;
}

static inline size_t tw_delta_block_elems(size_t n_elems, size_t block)
{
    size_t left = n_elems - block * TW_DELTA_BLOCK_ELEMS;
    return left < TW_DELTA_BLOCK_ELEMS ? left : TW_DELTA_BLOCK_ELEMS;
}

TW_C_END
