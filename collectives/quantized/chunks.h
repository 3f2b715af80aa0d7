/** The shards of an operation cut into chunks: a chunk is one message, encoded by one task and decoded by another.
 *
 *  A shard's chunks cover its pieces of all segments in order. Long pieces are cut at whole frames, so that every part
 *  is a valid encoded segment of its own; short ones share a chunk. The grid is the same on all ranks. */
#ifndef TW_COLLECTIVES_QUANTIZED_CHUNKS_H
#define TW_COLLECTIVES_QUANTIZED_CHUNKS_H

#include "collectives/collectives.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Consecutive elements of one segment. */
typedef struct tw_grid_part {
    size_t segment; /**< index in the operation's segments */
    size_t first;   /**< index in the whole tensor of the first element */
    size_t n_elems; /**< >= 1 */
} tw_grid_part_t;

typedef struct tw_grid_chunk {
    size_t first_part, n_parts;
    size_t n_elems;
} tw_grid_chunk_t;

/** What one rank owns; the first of its parts begins at its first chunk. */
typedef struct tw_grid_shard {
    size_t first_chunk, n_chunks;
} tw_grid_shard_t;

typedef struct tw_grid {
    tw_grid_shard_t *shards; /**< [world] */
    tw_grid_chunk_t *chunks; /**< [n_chunks] shard after shard */
    tw_grid_part_t *parts;   /**< [n_parts] chunk after chunk */
    size_t n_chunks, n_parts, max_chunks, max_parts;
    size_t shard_chunks; /**< most chunks of a shard */
    int world;
} tw_grid_t;

typedef struct tw_grid_params {
    const tw_coll_segment_t *segments; /**< counts NULL: the even split */
    size_t n_segments;
    int world;
    const tw_quant_codec_t *codec;       /**< the codec that chunk_bytes is about */
    const tw_quant_codec_t *inner_codec; /**< parts are whole frames of this one, too; may be NULL */
    size_t chunk_bytes; /**< encoded bytes aimed at: a chunk is larger only where a single frame is */
} tw_grid_params_t;

/** TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_grid_init(tw_grid_t *grid, const tw_grid_params_t *params);
void tw_grid_cleanup(tw_grid_t *grid);

/** Bytes of a chunk's message: its parts encoded one after another, or as they are for a NULL codec. */
size_t tw_grid_chunk_bytes(const tw_grid_t *grid, size_t chunk, const tw_quant_codec_t *codec,
                           tw_type_t type);

#ifdef __cplusplus
}
#endif

#endif
