/** The shards of an operation cut into chunks. A chunk is one message, encoded by one task and decoded by
 *  another.
 *
 *  All elements of a chunk have the same codec, or none. So the segments of a shard are taken codec by
 *  codec, each time in their order. A piece is the part of a chunk that belongs to one segment. Long
 *  segments are cut at whole frames of the codec, so that every piece can be encoded like a segment; short
 *  segments share a chunk. A lossless chunk's length is known only when it has been encoded. The grid is
 *  equal on all ranks. */
#pragma once

#include "collectives/collectives.h"
#include "collectives/program/form.h"

TW_C_BEGIN

/** Consecutive elements of one segment. */
typedef struct tw_grid_piece {
    size_t segment; /**< index among the operation's segments */
    size_t first;   /**< index of the piece's first element in the whole segment */
    size_t n_elems; /**< >= 1 */
} tw_grid_piece_t;

typedef struct tw_grid_chunk {
    size_t first_piece, n_pieces;
    size_t n_elems;
    int codec; /**< index in the grid's codecs, or TW_GRID_PLAIN */
} tw_grid_chunk_t;

#define TW_GRID_PLAIN (-1)

/** The chunks of the part that one rank owns. */
typedef struct tw_grid_shard {
    size_t first_chunk, n_chunks;
} tw_grid_shard_t;

typedef struct tw_grid {
    /** [n_shards], by rank; in an all-to-all the data for each rank, then the data from each rank */
    tw_grid_shard_t *shards;
    tw_grid_chunk_t *chunks;         /**< [n_chunks], shard by shard */
    tw_grid_piece_t *pieces;         /**< [n_pieces], chunk by chunk */
    const tw_quant_codec_t **codecs; /**< [n_codecs], the different codecs; borrowed from the segments */
    size_t n_codecs;
    size_t n_chunks, n_pieces, max_chunks, max_pieces;
    size_t shard_chunks; /**< the most chunks of a shard */
    int world, n_shards;
    const tw_quant_codec_t *inner; /**< codec of the hop inside the node, borrowed; NULL: plain */
} tw_grid_t;

/** Returns 1 if there are codecs and all are lossless, so that going plain gives the same bits. */
int tw_args_lose_nothing(const tw_coll_args_t *args);

/** Cut an operation into chunks. args: NULL counts are the even split; pieces are whole frames of both the
 *  segment's codec and args->inner_codec. chunk_bytes: target size of a message; a message is larger only if
 *  the smallest piece is. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_grid_init(tw_grid_t *grid, const tw_coll_args_t *args, int world, size_t chunk_bytes);
void tw_grid_cleanup(tw_grid_t *grid);
/** Let chunks of a message codec travel plain if they have fewer than least_elems elements. */
void tw_grid_unpack_short(tw_grid_t *grid, size_t least_elems);

/** Returns the codec of a chunk; NULL: the chunk travels plain. */
static inline const tw_quant_codec_t *tw_grid_chunk_codec(const tw_grid_t *grid, size_t chunk)
{
    int codec = grid->chunks[chunk].codec;

    return codec == TW_GRID_PLAIN ? NULL : grid->codecs[codec];
}

tw_coding_t tw_grid_coding(const tw_grid_t *grid, size_t chunk);
/** Returns the codec that makes a chunk's message in a form; NULL: the form is plain. */
const tw_quant_codec_t *tw_grid_form_codec(const tw_grid_t *grid, size_t chunk, tw_form_t form);

/** Returns the bytes that n_elems elements take in a message: encoded in blocks, or else plain. With a codec
 *  of messages they count as plain, because its messages have no fixed length. */
static inline size_t tw_message_bytes(const tw_quant_codec_t *codec, tw_type_t type, size_t n_elems)
{
    int in_blocks = tw_quant_form(codec) == TW_QUANT_BLOCKS;

    return in_blocks ? tw_quant_encoded_bytes(codec, n_elems) : n_elems * tw_type_bytes(type);
}

/** Returns the bytes of a chunk's message: all its pieces encoded, or plain for a NULL codec. With a codec of
 *  messages it is an upper bound. */
size_t tw_grid_chunk_bytes(const tw_grid_t *grid, size_t chunk, const tw_quant_codec_t *codec,
                           tw_type_t type);

/* ---- places -------------------------------------------------------------------------------------------- */

/** Where a segment is: its element `src_first` is at src, its element `dst_first` at dst. */
typedef struct tw_grid_tensor {
    const char *src;
    size_t src_first;
    char *dst;
    size_t dst_first;
    uint32_t tensor;
    uint64_t first_elem; /**< index of the segment's first element in its tensor */
    size_t row_elems;    /**< elements in the tensor's last dimension; 0: not known */
} tw_grid_tensor_t;

/** One piece of a chunk, and where it is. */
typedef struct tw_grid_placed {
    /** in the tensors: src or dst is not valid if this rank does not have the elements there */
    tw_quant_segment_t at;
    /** offsets of the piece in the message that is read, and in the message that is written */
    size_t in_at, out_at;
    size_t row_elems;
} tw_grid_placed_t;

/** A walk over the pieces of a chunk. */
typedef struct tw_grid_walk {
    const tw_grid_t *grid;
    size_t chunk;
    const tw_grid_tensor_t *tensors; /**< [n_segments] */
    tw_type_t type;                  /**< type of the tensors and of plain output */
    tw_type_t in_type;               /**< type of plain input */
    tw_form_t in, out;               /**< forms of the messages that are read and written */
    size_t next, in_at, out_at;      /**< state of the walk */
} tw_grid_walk_t;

/** Start a walk over a plain chunk. The caller may then change the forms and in_type. */
tw_grid_walk_t tw_grid_walk_start(const tw_grid_t *grid, size_t chunk, const tw_grid_tensor_t *tensors,
                                  tw_type_t type);
/** Get the next piece. Returns 0 if there is none. */
int tw_grid_walk_next(tw_grid_walk_t *walk, tw_grid_placed_t *piece);
/** List a chunk's pieces, as plain elements, for a codec of messages to encode or to decode to. They lie one
 *  after another in `cell`. If cell is NULL they are in the tensors, and are read from src (from_src) or from
 *  dst. pieces: [n_pieces] to fill. Returns their number. */
size_t tw_grid_pieces(tw_grid_walk_t walk, char *cell, int from_src, tw_quant_message_segment_t *pieces);

/* ---- codecs -------------------------------------------------------------------------------------------- */

/** The codecs that a communicator has used. They are made once and kept. */
typedef struct tw_codecs {
    tw_quant_t **items;
    size_t n, max;
    tw_mem_t mem;                          /**< kind of memory that all of them work on */
    tw_quant_messages_stream_t **messages; /**< codecs of messages */
    size_t n_messages, max_messages;
} tw_codecs_t;

/** Borrow a codec; the first call makes it. A zeroed tw_codecs_t is an empty set for host memory. */
tw_status_t tw_codecs_get(tw_codecs_t *codecs, const tw_quant_codec_t *codec, tw_quant_t **out);
/** Borrow a codec of messages; the first call makes it. */
tw_status_t tw_codecs_messages(tw_codecs_t *codecs, const tw_quant_codec_t *codec,
                               tw_quant_messages_stream_t **out);
/** Returns the number of blocks with NaN or Inf that the encoders have met. */
uint64_t tw_codecs_nonfinite_blocks(const tw_codecs_t *codecs);
void tw_codecs_cleanup(tw_codecs_t *codecs);

TW_C_END
