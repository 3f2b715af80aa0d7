/** The shards of an operation cut into chunks: a chunk is one message, encoded by one task and decoded by
 *  another.
 *
 *  All of a chunk has the same codec, or none: a shard's segments are taken codec by codec, each time in
 *  their order. With the lossless codec a chunk is one message, of a length that is known only once it has
 *  been encoded. A piece is what a chunk has of one segment: long segments are cut at whole frames, so that
 *  every piece is a valid encoded segment of its own; short ones share a chunk. The grid is the same on all
 *  ranks. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/form.h"

TW_C_BEGIN

/** Consecutive elements of one segment. */
typedef struct tw_grid_piece {
    size_t segment; /**< index in the operation's segments */
    size_t first;   /**< index in the whole tensor of the first element */
    size_t n_elems; /**< >= 1 */
} tw_grid_piece_t;

typedef struct tw_grid_chunk {
    size_t first_piece, n_pieces;
    size_t n_elems;
    int codec; /**< index in the grid's codecs; TW_GRID_PLAIN: none */
} tw_grid_chunk_t;

#define TW_GRID_PLAIN (-1)

/** What one rank owns; the first of its pieces begins at its first chunk. */
typedef struct tw_grid_shard {
    size_t first_chunk, n_chunks;
} tw_grid_shard_t;

typedef struct tw_grid {
    /** [n_shards] one of each rank; of an all-to-all, what goes to each rank, then what comes from each */
    tw_grid_shard_t *shards;
    tw_grid_chunk_t *chunks;         /**< [n_chunks] shard after shard */
    tw_grid_piece_t *pieces;         /**< [n_pieces] chunk after chunk */
    const tw_quant_codec_t **codecs; /**< [n_codecs] different ones; the segments', borrowed */
    size_t n_codecs;
    size_t n_chunks, n_pieces, max_chunks, max_pieces;
    size_t shard_chunks; /**< most chunks of a shard */
    int world, n_shards;
    const tw_quant_codec_t *inner; /**< of the hop inside the node, borrowed; NULL: plain there */
} tw_grid_t;

/** 1: what has a codec has one that loses nothing, so going plain gives the same bits. */
int tw_args_lose_nothing(const tw_coll_args_t *args);

/** args: counts NULL are the even split; pieces are whole frames of args->inner_codec, too. chunk_bytes: what
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

tw_coding_t tw_grid_coding(const tw_grid_t *grid, size_t chunk);
/** What a chunk's message in a form is made with; NULL: it is as it is. */
const tw_quant_codec_t *tw_grid_form_codec(const tw_grid_t *grid, size_t chunk, tw_form_t form);

/** Bytes of elements in a message: encoded, or as they are for a NULL codec and, but for its header, at most
 *  with the lossless one. */
static inline size_t tw_message_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems)
{
    int in_blocks = tw_quant_form(codec) == TW_QUANT_BLOCKS;

    return in_blocks ? tw_quant_encoded_bytes(codec, n_elems) : n_elems * tw_type_bytes(type);
}

/** Bytes of a chunk's message: its pieces encoded one after another, or as they are for a NULL codec; with
 *  the lossless one, the most that it may take. */
size_t tw_grid_chunk_bytes(const tw_grid_t *grid, size_t chunk, const tw_quant_codec_t *codec,
                           tw_type_t type);

/* ---- places -------------------------------------------------------------------------------------------- */

/** Where one segment lies: element `src_first` of the tensor is at src, element `dst_first` at dst. */
typedef struct tw_grid_tensor {
    const char *src;
    size_t src_first;
    char *dst;
    size_t dst_first;
    uint32_t tensor;
    uint64_t first_elem; /**< of the whole tensor that this is a piece of */
    size_t row_elems;    /**< of that tensor; 0: not known */
} tw_grid_tensor_t;

/** One piece of a chunk, where it lies. */
typedef struct tw_grid_placed {
    /** in the tensors: src and dst are of no meaning where this rank has none there */
    tw_quant_segment_t at;
    size_t in_at, out_at; /**< in messages that are read and written: bytes from their begin */
    size_t row_elems;
} tw_grid_placed_t;

/** A walk over the pieces of a chunk. */
typedef struct tw_grid_walk {
    const tw_grid_t *grid;
    size_t chunk;
    const tw_grid_tensor_t *tensors; /**< [n_segments] */
    tw_type_t type;                  /**< of the tensors and of what is written */
    tw_type_t in_type;               /**< of what is read, if that is as it is */
    tw_form_t in, out;               /**< of the messages */
    size_t next, in_at, out_at;      /**< the walk's own */
} tw_grid_walk_t;

/** Over what is plain; the forms of messages may be set then. */
tw_grid_walk_t tw_grid_walk_start(const tw_grid_t *grid, size_t chunk, const tw_grid_tensor_t *tensors,
                                  tw_type_t type);
/** 1 and the next piece; 0: there is none left. */
int tw_grid_walk_next(tw_grid_walk_t *walk, tw_grid_placed_t *piece);
/** A plain chunk for a codec of messages, in a cell, where its pieces follow each other, or (NULL) in the
 *  tensors, read from src or from dst. pieces: [n_pieces] to fill. Returns how many. */
size_t tw_grid_pieces(tw_grid_walk_t walk, char *cell, int from_src, tw_quant_message_segment_t *pieces);

/* ---- codecs -------------------------------------------------------------------------------------------- */

/** The codecs that a communicator has used: made once, kept with it. */
typedef struct tw_codecs {
    tw_quant_t **items;
    size_t n, max;
    tw_mem_t mem;                          /**< that all of them are bound to */
    tw_quant_messages_stream_t **messages; /**< of codecs of messages */
    size_t n_messages, max_messages;
} tw_codecs_t;

/** Borrow a codec; made if it is the first of its kind. Zeroed codecs are an empty set, bound to host
 *  memory. */
tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out);
/** Borrow a codec of messages, likewise. */
tw_status_t tw_codecs_messages(tw_codecs_t *codecs, const tw_quant_codec_t *codec,
                               tw_quant_messages_stream_t **out);
/** Blocks with NaN or Inf that their encoders have met. */
uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs);
void tw_codecs_cleanup(tw_codecs_t *codecs);

TW_C_END
