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
    size_t segment; /**< index among the operation's segments */
    size_t first;   /**< index of its first element in the whole tensor */
    size_t n_elems; /**< >= 1 */
} tw_grid_piece_t;

typedef struct tw_grid_chunk {
    size_t first_piece, n_pieces;
    size_t n_elems;
    int codec; /**< index among the grid's codecs; TW_GRID_PLAIN: none */
} tw_grid_chunk_t;

#define TW_GRID_PLAIN (-1)

/** What one rank owns; its first chunk begins with the first of its pieces. */
typedef struct tw_grid_shard {
    size_t first_chunk, n_chunks;
} tw_grid_shard_t;

typedef struct tw_grid {
    /** [n_shards], one of each rank; in an all-to-all, what goes to each rank, then what comes from each */
    tw_grid_shard_t *shards;
    tw_grid_chunk_t *chunks;         /**< [n_chunks], shard by shard */
    tw_grid_piece_t *pieces;         /**< [n_pieces], chunk by chunk */
    const tw_quant_codec_t **codecs; /**< [n_codecs], the different codecs; the segments', borrowed */
    size_t n_codecs;
    size_t n_chunks, n_pieces, max_chunks, max_pieces;
    size_t shard_chunks; /**< the most chunks of any shard */
    int world, n_shards;
    const tw_quant_codec_t *inner; /**< codec of the hop inside the node, borrowed; NULL: plain */
} tw_grid_t;

/** Returns 1 if all codecs are lossless, so that going plain gives the same bits. */
int tw_args_lose_nothing(const tw_coll_args_t *args);

/** Cut an operation into chunks. args: NULL counts are the even split; pieces are whole frames of
 *  args->inner_codec, too. chunk_bytes: target size of a message, which only exceeds it for a single frame.
 *  TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_grid_init(tw_grid_t *grid, const tw_coll_args_t *args, int world, size_t chunk_bytes);
void tw_grid_cleanup(tw_grid_t *grid);
/** Let lossless chunks of fewer elements travel plain. */
void tw_grid_unpack_short(tw_grid_t *grid, size_t least_elems);

/** The codec of a chunk, perhaps the lossless one; NULL: it travels plain. */
static inline const tw_quant_codec_t *tw_grid_chunk_codec(const tw_grid_t *grid, size_t chunk)
{
    int codec = grid->chunks[chunk].codec;

    return codec == TW_GRID_PLAIN ? NULL : grid->codecs[codec];
}

tw_coding_t tw_grid_coding(const tw_grid_t *grid, size_t chunk);
/** The codec that makes a chunk's message in a form; NULL: it is plain. */
const tw_quant_codec_t *tw_grid_form_codec(const tw_grid_t *grid, size_t chunk, tw_form_t form);

/** Bytes of elements in a message: encoded; plain for a NULL codec; with the lossless one the most that they
 *  may take without its header. */
static inline size_t tw_message_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems)
{
    int in_blocks = tw_quant_form(codec) == TW_QUANT_BLOCKS;

    return in_blocks ? tw_quant_encoded_bytes(codec, n_elems) : n_elems * tw_type_bytes(type);
}

/** Bytes of a chunk's message: its pieces encoded one after another; plain for a NULL codec; with the
 *  lossless one, the most that it may take. */
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
    uint64_t first_elem; /**< index in the whole tensor of which this is a part */
    size_t row_elems;    /**< elements in a row of that tensor; 0: not known */
} tw_grid_tensor_t;

/** One piece of a chunk, and where it lies. */
typedef struct tw_grid_placed {
    /** in the tensors: src and dst have no meaning if this rank has nothing there */
    tw_quant_segment_t at;
    /** bytes from the beginning of the message that is read, and of the one that is written */
    size_t in_at, out_at;
    size_t row_elems;
} tw_grid_placed_t;

/** A walk over the pieces of a chunk. */
typedef struct tw_grid_walk {
    const tw_grid_t *grid;
    size_t chunk;
    const tw_grid_tensor_t *tensors; /**< [n_segments] */
    tw_type_t type;                  /**< type of the tensors and of what is written */
    tw_type_t in_type;               /**< type of what is read, if that is plain */
    tw_form_t in, out;               /**< forms of the messages */
    size_t next, in_at, out_at;      /**< state of the walk */
} tw_grid_walk_t;

/** Start a walk over a plain chunk; the caller may then set the forms of messages. */
tw_grid_walk_t tw_grid_walk_start(const tw_grid_t *grid, size_t chunk, const tw_grid_tensor_t *tensors,
                                  tw_type_t type);
/** Returns 1 and the next piece; 0: there is none left. */
int tw_grid_walk_next(tw_grid_walk_t *walk, tw_grid_placed_t *piece);
/** List the pieces of a plain chunk for a codec of messages. They are in `cell`, one after another, or (NULL)
 *  in the tensors, to be read from src or from dst. pieces: [n_pieces] to fill. Returns how many there
 *  are. */
size_t tw_grid_pieces(tw_grid_walk_t walk, char *cell, int from_src, tw_quant_message_segment_t *pieces);

/* ---- codecs -------------------------------------------------------------------------------------------- */

/** The codecs that a communicator has used; they are made once and kept with it. */
typedef struct tw_codecs {
    tw_quant_t **items;
    size_t n, max;
    tw_mem_t mem;                          /**< memory to which all of them are bound */
    tw_quant_messages_stream_t **messages; /**< codecs of messages */
    size_t n_messages, max_messages;
} tw_codecs_t;

/** Borrow a codec, which is made at its first use. Zeroed codecs are an empty set, bound to host memory. */
tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out);
/** Borrow a codec of messages, likewise. */
tw_status_t tw_codecs_messages(tw_codecs_t *codecs, const tw_quant_codec_t *codec,
                               tw_quant_messages_stream_t **out);
/** Blocks with NaN or Inf that their encoders have met. */
uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs);
void tw_codecs_cleanup(tw_codecs_t *codecs);

TW_C_END
