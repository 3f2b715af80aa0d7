/* Launch geometry: every strip, code and scale has exactly one thread, at the place the wire format says. */
#include <gtest/gtest.h>

#include <vector>

#include "quant/cuda/tiling.h"

namespace
{

tw_quant_codec_t codec_of(tw_quant_kind_t kind, int block, tw_quant_scale_t scale)
{
    return {kind, block, scale, TW_QUANT_ROUND_NEAREST, 0, 0};
}

/* Calls body for every block size, width and type of scale. */
template <class BODY>
void for_all_codecs(int step, BODY body)
{
    for (int block = TW_QUANT_BLOCK_MIN; block <= TW_QUANT_BLOCK_MAX; block += step) {
        for (tw_quant_kind_t kind : {TW_CODE_KINDS}) {
            for (tw_quant_scale_t scale : {TW_QUANT_SCALE_BF16, TW_QUANT_SCALE_FP32}) {
                body(codec_of(kind, block, scale));
            }
        }
    }
}

TEST(QuantCudaPlan, PlacesAgreeWithTheWireFormat)
{
    for_all_codecs(32, [](const tw_quant_codec_t &codec) {
        const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
        const uint32_t frame_strips = c.frame_elems / TW_STRIP_ELEMS;
        for (uint64_t frame : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 33}) {
            const uint64_t first_block = frame * TW_QUANT_FRAME_BLOCKS;
            const tw_cuda_origin_t origin = tw_cuda_origin_of_block(&c, first_block);
            ASSERT_EQ(origin.strip, 0u);
            for (uint32_t p = 0; p < frame_strips + TW_CUDA_TILE_STRIPS_MAX; p += 1 + p % 3) {
                const tw_cuda_place_t place = tw_cuda_place_of(&c, p);
                const uint64_t block = first_block + p / c.block_strips;
                const uint64_t in_block = p % c.block_strips * TW_STRIP_ELEMS;
                ASSERT_EQ(first_block + place.block, block);
                ASSERT_EQ(place.strip, p % c.block_strips);
                ASSERT_EQ(origin.frame_offset + place.scale_offset, tw_layout_scale_offset(&codec, block));
                ASSERT_EQ(origin.frame_offset + place.codes_offset,
                          tw_layout_codes_offset(&codec, block) +
                              tw_layout_code_bytes(TW_CODE_BITS(codec.kind), in_block));
            }
        }
    });
}

TEST(QuantCudaPlan, OriginsOfElementsAndBlocksAgree)
{
    for_all_codecs(32, [](const tw_quant_codec_t &codec) {
        const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
        for (uint64_t block :
             {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{29}, (uint64_t{1} << 32) + 5}) {
            const tw_cuda_origin_t a = tw_cuda_origin_of_block(&c, block),
                                   b = tw_cuda_origin_of_elem(&c, block * c.block);
            ASSERT_EQ(a.frame_offset, b.frame_offset);
            ASSERT_EQ(a.strip, b.strip);
            ASSERT_EQ(tw_cuda_origin_of_elem(&c, block * c.block + TW_STRIP_ELEMS).strip, a.strip + 1);
        }
    });
}

/* All tilings that a kernel may be launched with. */
std::vector<tw_cuda_tiling_t> tilings_of(const tw_cuda_codec_t &c, uint64_t n_elems)
{
    std::vector<tw_cuda_tiling_t> tilings;
    for (uint32_t rows : {1u, TW_CUDA_ROWS_MAX}) {
        for (uint64_t min_tiles : {0, 2, 100, 1000000}) {
            tilings.push_back(tw_cuda_tiling_choose(&c, rows, n_elems, min_tiles));
        }
    }
    return tilings;
}

TEST(QuantCudaPlan, TilingsHoldWholeBlocks)
{
    for_all_codecs(32, [](const tw_quant_codec_t &codec) {
        const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
        for (const tw_cuda_tiling_t &t : tilings_of(c, 100000)) {
            ASSERT_GE(t.tile_blocks, 1u);
            ASSERT_LE(t.tile_strips, t.threads * t.rows);
            ASSERT_LE(t.threads * t.rows, TW_CUDA_TILE_STRIPS_MAX);
            ASSERT_LE(t.tile_blocks, TW_CUDA_TILE_BLOCKS_MAX);
            ASSERT_EQ(t.threads % TW_CUDA_WARP, 0u);
            ASSERT_EQ(t.tile_elems, t.tile_blocks * c.block);
            /* a block more does not fit */
            ASSERT_GT((t.tile_blocks + 1) * c.block_strips, t.threads * t.rows);
        }
    });
}

TEST(QuantCudaPlan, LittleWorkMakesSmallTiles)
{
    const tw_quant_codec_t codec = codec_of(TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16);
    const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
    EXPECT_EQ(tw_cuda_tiling_choose(&c, 2, uint64_t{1} << 30, 1000).tile_elems, TW_CUDA_TILE_ELEMS_MAX);
    EXPECT_LT(tw_cuda_tiling_choose(&c, 2, 1 << 16, 1000).tile_elems, TW_CUDA_TILE_ELEMS_MAX);
}

/* Which lanes and rows share a block: what the exchanges of a maximum rely on. */
TEST(QuantCudaPlan, NeighboursShareABlock)
{
    for_all_codecs(32, [](const tw_quant_codec_t &codec) {
        const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
        for (const tw_cuda_tiling_t &t : tilings_of(c, 100000)) {
            const uint32_t lanes = 1u << t.lane_steps, rows = 1u << t.row_steps;
            ASSERT_LE(rows, t.rows);
            std::vector<uint32_t> strips_of_block(t.tile_blocks, 0);
            for (uint32_t thread = 0; thread < t.threads; thread++) {
                for (uint32_t row = 0; row < t.rows; row++) {
                    const uint32_t strip = tw_cuda_strip(&t, thread, row);
                    if (strip >= t.tile_strips) {
                        continue;
                    }
                    const uint32_t leader = tw_cuda_strip(&t, thread / lanes * lanes, row / rows * rows);
                    ASSERT_EQ(tw_cuda_tile_block(&c, strip), strip / c.block_strips);
                    ASSERT_EQ(tw_cuda_tile_block(&c, strip), tw_cuda_tile_block(&c, leader));
                    strips_of_block[strip / c.block_strips]++;
                }
            }
            for (uint32_t strips : strips_of_block) {
                ASSERT_EQ(strips, c.block_strips);
                if (!t.through_shared) {
                    ASSERT_EQ(strips, lanes * rows);
                }
            }
        }
    });
}

/* Who writes each byte of an encoded segment, as the kernels do it. */
std::vector<uint8_t> writers_of(const tw_quant_codec_t &codec, const tw_cuda_tiling_t &t, size_t n)
{
    const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
    std::vector<uint8_t> writers(tw_layout_encoded_bytes(&codec, n));
    auto mark = [&](size_t offset, size_t bytes) {
        for (size_t i = offset; i < offset + bytes; i++) {
            writers.at(i)++;
        }
    };
    for (uint64_t index = 0; index < tw_cuda_tile_count(&t, n); index++) {
        const tw_cuda_tile_t tile = tw_cuda_tile_at(&t, &c, n, index);
        const tw_cuda_origin_t origin = tw_cuda_origin_of_block(&c, tile.first_block);
        for (uint32_t thread = 0; thread < t.threads; thread++) {
            for (uint32_t row = 0; row < t.rows; row++) {
                const uint32_t strip = tw_cuda_strip(&t, thread, row);
                const tw_cuda_place_t place = tw_cuda_place_of(&c, origin.strip + strip);
                if (tw_cuda_strip_is_stored(&tile, strip)) {
                    mark(origin.frame_offset + place.codes_offset, 2 * c.bits);
                }
                if (place.strip == 0 && tw_cuda_strip_elems(&tile, strip) != 0) {
                    mark(origin.frame_offset + place.scale_offset, c.scale_bytes);
                }
            }
        }
        for (uint32_t slot = tw_cuda_first_unused_scale(&c, &tile, n); slot < TW_QUANT_FRAME_BLOCKS; slot++) {
            const tw_cuda_place_t place = tw_cuda_place_of(&c, tw_cuda_last_frame_strip(&c, &tile, slot));
            mark(origin.frame_offset + place.scale_offset, c.scale_bytes);
        }
    }
    return writers;
}

void expect_each_byte_once(const tw_quant_codec_t &codec, size_t n)
{
    const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
    for (const tw_cuda_tiling_t &t : tilings_of(c, n)) {
        const std::vector<uint8_t> writers = writers_of(codec, t, n);
        for (size_t i = 0; i < writers.size(); i++) {
            ASSERT_EQ(writers[i], 1) << "byte " << i << " of " << n << " elements, " << c.bits
                                     << " bits, block " << codec.block << ", " << t.threads << " x "
                                     << t.rows;
        }
    }
}

TEST(QuantCudaPlan, EachEncodedByteIsWrittenOnce)
{
    for (int block : {32, 96, 128, 2048}) {
        for (tw_quant_kind_t kind : {TW_CODE_KINDS}) {
            for (size_t n = 0; n <= 4200; n += n < 300 ? 1 : 97) {
                ASSERT_NO_FATAL_FAILURE(
                    expect_each_byte_once(codec_of(kind, block, tw_quant_scale_t(n & 1)), n));
            }
        }
    }
    for_all_codecs(160, [](const tw_quant_codec_t &codec) {
        const size_t block = size_t(codec.block);
        for (size_t n : {block - 1, block + 1, 8 * block, 9 * block + 17}) {
            ASSERT_NO_FATAL_FAILURE(expect_each_byte_once(codec, n));
        }
    });
}

TEST(QuantCudaPlan, EachElementBelongsToOneStrip)
{
    for_all_codecs(96, [](const tw_quant_codec_t &codec) {
        const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
        for (size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{4095}, size_t{9000}}) {
            for (const tw_cuda_tiling_t &t : tilings_of(c, n)) {
                uint64_t covered = 0;
                for (uint64_t index = 0; index < tw_cuda_tile_count(&t, n); index++) {
                    const tw_cuda_tile_t tile = tw_cuda_tile_at(&t, &c, n, index);
                    for (uint32_t strip = 0; strip < t.threads * t.rows; strip++) {
                        const uint32_t elems = tw_cuda_strip_elems(&tile, strip);
                        const uint64_t group_end =
                            tile.first_elem + (strip / 2 + 1) * TW_QUANT_HADAMARD_ELEMS;
                        covered += elems;
                        if (elems) {
                            ASSERT_EQ(tw_cuda_group_is_whole(&tile, strip), group_end <= n);
                        }
                    }
                }
                ASSERT_EQ(covered, n);
            }
        }
    });
}

TEST(QuantCudaPlan, MoreElementsThan32BitsCount)
{
    const tw_quant_codec_t codec = codec_of(TW_QUANT_INT8, 2048, TW_QUANT_SCALE_BF16);
    const tw_cuda_codec_t c = tw_cuda_codec_of(&codec);
    const uint64_t n = (uint64_t{1} << 36) + 5;
    const tw_cuda_tiling_t t = tw_cuda_tiling_choose(&c, 2, n, 1000);
    const uint64_t tiles = tw_cuda_tile_count(&t, n);
    const tw_cuda_tile_t tile = tw_cuda_tile_at(&t, &c, n, tiles - 1);
    EXPECT_EQ(tile.first_elem, uint64_t{1} << 36);
    EXPECT_EQ(tile.elems, 5u);
    EXPECT_EQ(tw_cuda_origin_of_block(&c, tile.first_block).frame_offset,
              tw_layout_scale_offset(&codec, tile.first_block));
}

} // namespace
