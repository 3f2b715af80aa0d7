/** Launch geometry of the CUDA kernels: which tile, strip and byte belongs to which thread. Pure arithmetic,
 *  tested on the CPU over every ragged size. Compiles as C11, C++17 and CUDA.
 *
 *  Terms: a strip is 16 consecutive elements of a block, held by one thread. A thread holds `rows` strips;
 *  strip number u is in row u. Two strips, in neighbouring lanes, are a Hadamard group. A tile is whole
 *  blocks of one segment, which a thread block handles at a time. A warp's strips are contiguous: the
 *  thread's strip in `row` is number (warp * rows + row) * 32 + lane of the tile. */
#pragma once

#include "quant/arithmetic/block.h"

#define TW_STRIP_ELEMS 16
#define TW_CUDA_WARP 32u
#define TW_CUDA_ROWS_MAX 2u
#define TW_CUDA_TILE_ELEMS_MAX 4096u /**< the size of the largest block */
#define TW_CUDA_TILE_STRIPS_MAX (TW_CUDA_TILE_ELEMS_MAX / TW_STRIP_ELEMS)
#define TW_CUDA_TILE_BLOCKS_MAX (TW_CUDA_TILE_ELEMS_MAX / TW_QUANT_BLOCK_MIN)

/* ---- a codec as the kernels see it --------------------------------------------------------------------- */

typedef struct tw_cuda_codec {
    uint32_t kind, bits, block;
    uint32_t scale; /**< tw_quant_scale_t */
    uint32_t stochastic, hadamard;
    uint32_t block_strips, block_magic; /**< p / block_strips = (p * block_magic) >> 32 for p < 2^16 */
    uint32_t scale_bytes, header_bytes, frame_bytes;
    uint32_t frame_elems;
    /** number of elements whose codes fill 16 bytes, minus 1; codes are padded to 16 bytes */
    uint32_t pad_mask;
    float reach, reach_inv; /**< tw_block_reach; 1 / reach rounded to nearest */
} tw_cuda_codec_t;

static inline tw_cuda_codec_t tw_cuda_codec_of(const tw_quant_codec_t *codec)
{
    tw_cuda_codec_t c;
    c.kind = (uint32_t)codec->kind;
    c.bits = TW_CODE_BITS(codec->kind);
    c.block = (uint32_t)codec->block;
    c.scale = (uint32_t)codec->scale;
    c.stochastic = codec->round == TW_QUANT_ROUND_STOCHASTIC;
    c.hadamard = codec->hadamard != 0;
    c.block_strips = c.block / TW_STRIP_ELEMS;
    c.block_magic = (uint32_t)(((1ull << 32) + c.block_strips - 1) / c.block_strips);
    c.scale_bytes = (uint32_t)tw_layout_scale_bytes(codec->scale);
    c.header_bytes = (uint32_t)tw_layout_frame_scales_bytes(codec);
    c.frame_bytes = (uint32_t)tw_layout_frame_bytes(codec);
    c.frame_elems = (uint32_t)tw_layout_frame_elems(codec);
    c.pad_mask = TW_QUANT_ALIGN_BYTES * 8 / c.bits - 1;
    c.reach = (float)tw_block_reach(codec->kind);
    c.reach_inv = 1.0f / c.reach;
    return c;
}

/** Where a strip is in an encoded segment, relative to the frame in which its tile begins. */
typedef struct tw_cuda_place {
    uint32_t block;        /**< index from that frame's first block */
    uint32_t strip;        /**< index in its block */
    uint32_t scale_offset; /**< in bytes from the frame's beginning */
    uint32_t codes_offset;
} tw_cuda_place_t;

/** The place of strip p; p counts from the frame's first element. */
TW_HD static inline tw_cuda_place_t tw_cuda_place_of(const tw_cuda_codec_t *codec, uint32_t p)
{
    tw_cuda_place_t place;
    place.block = (uint32_t)(((uint64_t)p * codec->block_magic) >> 32);
    place.strip = p - place.block * codec->block_strips;
    uint32_t frame = place.block / TW_QUANT_FRAME_BLOCKS, in_frame = place.block % TW_QUANT_FRAME_BLOCKS;
    place.scale_offset = frame * codec->frame_bytes + in_frame * codec->scale_bytes;
    place.codes_offset = p * (TW_STRIP_ELEMS / 8) * codec->bits + (frame + 1) * codec->header_bytes;
    return place;
}

/** Where a tile begins in an encoded segment: a frame's offset, and strips from the frame's beginning. */
typedef struct tw_cuda_origin {
    uint64_t frame_offset; /**< in bytes */
    uint32_t strip;
} tw_cuda_origin_t;

TW_HD static inline tw_cuda_origin_t tw_cuda_origin_of_block(const tw_cuda_codec_t *codec, uint64_t block)
{
    tw_cuda_origin_t origin;
    origin.frame_offset = block / TW_QUANT_FRAME_BLOCKS * codec->frame_bytes;
    origin.strip = (uint32_t)(block % TW_QUANT_FRAME_BLOCKS) * codec->block_strips;
    return origin;
}

/** The origin of element `elem`, a multiple of 16. For an input whose blocks differ from the tile's
 *  blocks. */
TW_HD static inline tw_cuda_origin_t tw_cuda_origin_of_elem(const tw_cuda_codec_t *codec, uint64_t elem)
{
    tw_cuda_origin_t origin;
    uint64_t frame = elem / codec->frame_elems;
    origin.frame_offset = frame * codec->frame_bytes;
    origin.strip = (uint32_t)(elem - frame * codec->frame_elems) / TW_STRIP_ELEMS;
    return origin;
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

typedef struct tw_cuda_tiling {
    uint32_t threads, rows;
    uint32_t tile_blocks, tile_strips, tile_elems;
    uint32_t lane_steps;     /**< 2^lane_steps neighbouring lanes always share a block */
    uint32_t row_steps;      /**< 2^row_steps neighbouring rows always share a block */
    uint32_t through_shared; /**< 1: a block has more strips than these lanes and rows hold */
} tw_cuda_tiling_t;

static inline tw_cuda_tiling_t tw_cuda_tiling_of_rows(const tw_cuda_codec_t *codec, uint32_t threads,
                                                      uint32_t rows)
{
    tw_cuda_tiling_t t;
    t.threads = threads;
    t.rows = rows;
    t.tile_blocks = threads * rows / codec->block_strips;
    t.tile_strips = t.tile_blocks * codec->block_strips;
    t.tile_elems = t.tile_strips * TW_STRIP_ELEMS;
    t.lane_steps = t.row_steps = 0;
    while (t.lane_steps < 5 && codec->block_strips % (2u << t.lane_steps) == 0) {
        t.lane_steps++;
    }
    while ((1u << t.row_steps) < rows && codec->block_strips % (TW_CUDA_WARP << (t.row_steps + 1)) == 0) {
        t.row_steps++;
    }
    t.through_shared = codec->block_strips != (1u << t.lane_steps) << t.row_steps;
    return t;
}

/** Choose the tiling of a kernel whose threads hold up to rows_max strips. If there would be fewer than
 *  min_tiles tiles, which fill the GPU, tiles are made smaller. */
static inline tw_cuda_tiling_t tw_cuda_tiling_choose(const tw_cuda_codec_t *codec, uint32_t rows_max,
                                                     uint64_t n_elems, uint64_t min_tiles)
{
    uint32_t threads = TW_CUDA_TILE_STRIPS_MAX / rows_max, rows = rows_max;
    tw_cuda_tiling_t tiling = tw_cuda_tiling_of_rows(codec, threads, rows);
    while (threads * rows > 2 * TW_CUDA_WARP && n_elems / tiling.tile_elems < min_tiles &&
           codec->block_strips <= threads * rows / 2) {
        if (rows > 1) {
            rows /= 2;
        } else {
            threads /= 2;
        }
        tiling = tw_cuda_tiling_of_rows(codec, threads, rows);
    }
    return tiling;
}

TW_HD static inline uint64_t tw_cuda_tile_count(const tw_cuda_tiling_t *tiling, uint64_t n_elems)
{
    return n_elems / tiling->tile_elems + (n_elems % tiling->tile_elems != 0);
}

TW_HD static inline uint32_t tw_cuda_strip(const tw_cuda_tiling_t *tiling, uint32_t thread, uint32_t row)
{
    return (thread / TW_CUDA_WARP * tiling->rows + row) * TW_CUDA_WARP + thread % TW_CUDA_WARP;
}

/** One tile of one segment. */
typedef struct tw_cuda_tile {
    uint64_t first_block, first_elem; /**< indices in the segment */
    uint32_t elems;                   /**< elements of the segment in this tile */
    uint32_t padded_elems;            /**< elements, with the padding of the last codes to 16 bytes */
} tw_cuda_tile_t;

/** Tile `index` of a segment of n_elems. */
TW_HD static inline tw_cuda_tile_t tw_cuda_tile_at(const tw_cuda_tiling_t *tiling,
                                                   const tw_cuda_codec_t *codec, uint64_t n_elems,
                                                   uint64_t index)
{
    tw_cuda_tile_t tile;
    tile.first_block = index * tiling->tile_blocks;
    tile.first_elem = index * tiling->tile_elems;
    uint64_t left = n_elems - tile.first_elem;
    tile.elems = left < tiling->tile_elems ? (uint32_t)left : tiling->tile_elems;
    /* Frames begin at multiples of pad_mask + 1 elements; with 2 bits, blocks and tiles may not. */
    uint32_t phase = (uint32_t)tile.first_elem & codec->pad_mask;
    uint32_t end = (phase + tile.elems + codec->pad_mask) & ~codec->pad_mask;
    tile.padded_elems = left > tiling->tile_elems ? tile.elems : end - phase;
    return tile;
}

/** The block of a tile's strip o, counted from the tile's first block. */
TW_HD static inline uint32_t tw_cuda_tile_block(const tw_cuda_codec_t *codec, uint32_t o)
{
    return (uint32_t)(((uint64_t)o * codec->block_magic) >> 32);
}

/** The number of the segment's elements in strip o of a tile: 0 to 16. */
TW_HD static inline uint32_t tw_cuda_strip_elems(const tw_cuda_tile_t *tile, uint32_t o)
{
    uint32_t first = o * TW_STRIP_ELEMS;
    if (first >= tile->elems) {
        return 0;
    }
    return tile->elems - first < TW_STRIP_ELEMS ? tile->elems - first : TW_STRIP_ELEMS;
}

/** Whether strip o's Hadamard group has 32 elements. */
TW_HD static inline int tw_cuda_group_is_whole(const tw_cuda_tile_t *tile, uint32_t o)
{
    return (o / 2 + 1) * TW_QUANT_HADAMARD_ELEMS <= tile->elems;
}

/** Whether codes are stored for strip o: those of elements, or zeros as the segment's padding. */
TW_HD static inline int tw_cuda_strip_is_stored(const tw_cuda_tile_t *tile, uint32_t o)
{
    return o * TW_STRIP_ELEMS < tile->padded_elems;
}

/** The first unused scale of the tile's last frame, or 8 if none is unused. Scales from it to 7 are written
 *  as zeros. Only a segment's last tile has any. */
TW_HD static inline uint32_t tw_cuda_first_unused_scale(const tw_cuda_codec_t *codec,
                                                        const tw_cuda_tile_t *tile, uint64_t n_elems)
{
    if (tile->first_elem + tile->elems < n_elems) {
        return TW_QUANT_FRAME_BLOCKS;
    }
    uint32_t last = (uint32_t)(tile->first_block % TW_QUANT_FRAME_BLOCKS) +
                    tw_cuda_tile_block(codec, (tile->elems - 1) / TW_STRIP_ELEMS);
    return last % TW_QUANT_FRAME_BLOCKS + 1;
}

/** The first strip of block `slot` of the tile's last frame, counted from the frame of
 *  tw_cuda_origin_of_block. */
TW_HD static inline uint32_t tw_cuda_last_frame_strip(const tw_cuda_codec_t *codec,
                                                      const tw_cuda_tile_t *tile, uint32_t slot)
{
    uint32_t last = (uint32_t)(tile->first_block % TW_QUANT_FRAME_BLOCKS) +
                    tw_cuda_tile_block(codec, (tile->elems - 1) / TW_STRIP_ELEMS);
    return (last / TW_QUANT_FRAME_BLOCKS * TW_QUANT_FRAME_BLOCKS + slot) * codec->block_strips;
}

TW_HD static inline int tw_cuda_is_aligned(const void *pointer)
{
    return ((uintptr_t)pointer & (TW_QUANT_ALIGN_BYTES - 1)) == 0;
}
