/** The shards of an operation cut into chunks: a chunk is one message, encoded by one task and decoded by
 *  another.
 *
 *  All of a chunk has the same codec, or none: a shard's segments are taken codec by codec, each time in
 *  their order. With the lossless codec a chunk is one message, of a length that is known only once it has
 *  been encoded. Long ones are cut at whole frames, so that every part is a valid encoded segment of its own;
 *  short ones share a chunk. The grid is the same on all ranks. */
#ifndef TW_COLLECTIVES_QUANTIZED_CHUNKS_H
#define TW_COLLECTIVES_QUANTIZED_CHUNKS_H

#include "collectives/collectives.h"

TW_C_BEGIN

/** Consecutive elements of one segment. */
typedef struct tw_grid_part {
    size_t segment; /**< index in the operation's segments */
    size_t first;   /**< index in the whole tensor of the first element */
    size_t n_elems; /**< >= 1 */
} tw_grid_part_t;

typedef struct tw_grid_chunk {
    size_t first_part, n_parts;
    size_t n_elems;
    int codec; /**< index in the grid's codecs; TW_GRID_PLAIN: none */
} tw_grid_chunk_t;

#define TW_GRID_PLAIN (-1)

/** What one rank owns; the first of its parts begins at its first chunk. */
typedef struct tw_grid_shard {
    size_t first_chunk, n_chunks;
} tw_grid_shard_t;

typedef struct tw_grid {
    /** [n_shards] one of each rank; of an all-to-all, what goes to each rank, then what comes from each */
    tw_grid_shard_t *shards;
    tw_grid_chunk_t *chunks;         /**< [n_chunks] shard after shard */
    tw_grid_part_t *parts;           /**< [n_parts] chunk after chunk */
    const tw_quant_codec_t **codecs; /**< [n_codecs] different ones; the segments', borrowed */
    size_t n_codecs;
    size_t n_chunks, n_parts, max_chunks, max_parts;
    size_t shard_chunks; /**< most chunks of a shard */
    int world, n_shards;
} tw_grid_t;

/** The codec of a segment; NULL: it travels as it is. What may lose nothing can be a lossless message. */
static inline const tw_quant_codec_t *tw_segment_codec(const tw_coll_args_t *args,
                                                       const tw_coll_segment_t *segment)
{
    if (!args->codec || (segment->unquantized && !args->codec->lossless)) {
        return NULL;
    }
    return segment->codec && !segment->unquantized ? segment->codec : args->codec;
}

/** 1: what has a codec has the lossless one, so going plain gives the same bits. */
int tw_args_lose_nothing(const tw_coll_args_t *args);

/** args: counts NULL are the even split; parts are whole frames of args->inner_codec, too. chunk_bytes: what
 *  a message is aimed at; it is larger only where a single frame is. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_grid_init(tw_grid_t *grid, const tw_coll_args_t *args, int world, size_t chunk_bytes);
void tw_grid_cleanup(tw_grid_t *grid);
/** Lossless chunks of fewer elements travel as they are. */
void tw_grid_unpack_short(tw_grid_t *grid, size_t least_elems);

/** The codec of a chunk, the lossless one too; NULL: it travels as it is. */
static inline const tw_quant_codec_t *tw_grid_chunk_codec(const tw_grid_t *grid, size_t chunk)
{
    int codec = grid->chunks[chunk].codec;

    return codec == TW_GRID_PLAIN ? NULL : grid->codecs[codec];
}

/** The codec of blocks that a chunk is quantized with; NULL: it is plain, though its messages may be lossless
 *  ones. */
static inline const tw_quant_codec_t *tw_grid_codec(const tw_grid_t *grid, size_t chunk)
{
    const tw_quant_codec_t *codec = tw_grid_chunk_codec(grid, chunk);

    return codec && codec->lossless ? NULL : codec;
}

/** Bytes of elements in a message: encoded, or as they are for a NULL codec and, but for its header, at most
 *  with the lossless one. */
static inline size_t tw_message_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems)
{
    int in_blocks = codec && !codec->lossless;

    return in_blocks ? tw_quant_encoded_bytes(codec, n_elems) : n_elems * tw_type_bytes(type);
}

/** Bytes of a chunk's message: its parts encoded one after another, or as they are for a NULL codec; with the
 *  lossless one, the most that it may take. */
size_t tw_grid_chunk_bytes(const tw_grid_t *grid, size_t chunk, const tw_quant_codec_t *codec,
                           tw_type_t type);

/* ---- codecs -------------------------------------------------------------------------------------------- */

/** The codecs that a communicator has used: made once, kept with it. */
typedef struct tw_codecs {
    tw_quant_t **items;
    size_t n, max;
    tw_mem_t mem;                  /**< that all of them are bound to */
    tw_quant_lossless_t *lossless; /**< NULL: not used yet */
} tw_codecs_t;

/** Borrow a codec; made if it is the first of its kind. Zeroed codecs are an empty set, bound to host
 *  memory. */
tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out);
/** Likewise the lossless one, for host memory. */
tw_status_t tw_codecs_lossless(tw_codecs_t *codecs, tw_quant_lossless_t **out);
/** Blocks with NaN or Inf that their encoders have met. */
uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs);
void tw_codecs_cleanup(tw_codecs_t *codecs);

TW_C_END

#endif
