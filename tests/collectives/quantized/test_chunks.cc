/* Chunks cover every shard once, in order, cut at whole frames. */
#include "collectives/quantized/chunks.h"

#include <set>

#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

using Grid = tw::Fixture;

struct Sizes {
    std::vector<size_t> segments;
    const char *codec, *inner;
    size_t chunk_bytes;
};

void check_grid(const Sizes &sizes, int world)
{
    tw_quant_codec_t codec = tw::parse_codec(sizes.codec);
    tw_quant_codec_t inner = tw::parse_codec(*sizes.inner != '\0' ? sizes.inner : "int8");
    std::vector<tw_coll_segment_t> segments(sizes.segments.size());
    for (size_t s = 0; s < segments.size(); s++) {
        segments[s].n_elems = sizes.segments[s];
    }
    tw_coll_args_t args = {};
    args.type = TW_TYPE_BF16;
    args.segments = segments.data();
    args.n_segments = segments.size();
    args.codec = &codec;
    args.inner_codec = *sizes.inner != '\0' ? &inner : nullptr;
    tw_grid_t grid;
    ASSERT_EQ(tw_grid_init(&grid, &args, world, sizes.chunk_bytes), TW_OK);

    size_t frame = tw_quant_frame_elems(&codec),
           inner_frame = args.inner_codec ? tw_quant_frame_elems(&inner) : frame;
    size_t next_chunk = 0, next_piece = 0;
    for (int r = 0; r < world; r++) {
        const tw_grid_shard_t &shard = grid.shards[r];
        std::vector<size_t> done(segments.size());
        size_t segment = 0;
        EXPECT_EQ(shard.first_chunk, next_chunk);
        EXPECT_LE(shard.n_chunks, grid.shard_chunks);
        for (size_t c = shard.first_chunk; c < shard.first_chunk + shard.n_chunks; c++, next_chunk++) {
            const tw_grid_chunk_t &chunk = grid.chunks[c];
            size_t n_elems = 0, largest = 0;
            EXPECT_EQ(chunk.first_piece, next_piece);
            EXPECT_GT(chunk.n_pieces, 0u);
            for (size_t p = chunk.first_piece; p < chunk.first_piece + chunk.n_pieces; p++, next_piece++) {
                const tw_grid_piece_t &piece = grid.pieces[p];
                size_t count = tw_coll_shard_elems(sizes.segments[piece.segment], world, r);
                ASSERT_GE(piece.segment, segment);
                segment = piece.segment;
                ASSERT_GT(piece.n_elems, 0u);
                ASSERT_EQ(piece.first,
                          tw_coll_shard_offset(sizes.segments[segment], world, r) + done[segment]);
                EXPECT_EQ(done[segment] % frame, 0u);
                EXPECT_EQ(done[segment] % inner_frame, 0u);
                done[segment] += piece.n_elems;
                ASSERT_LE(done[segment], count);
                n_elems += piece.n_elems;
                largest = std::max(largest, piece.n_elems);
            }
            EXPECT_EQ(chunk.n_elems, n_elems);
            size_t bytes = tw_grid_chunk_bytes(&grid, c, &codec, TW_TYPE_BF16);
            EXPECT_EQ(tw_grid_chunk_bytes(&grid, c, nullptr, TW_TYPE_FP32), 4 * n_elems);
            if (bytes > sizes.chunk_bytes) { /* only a single unit may be larger */
                EXPECT_EQ(chunk.n_pieces, 1u);
                EXPECT_LE(largest, frame * inner_frame);
            }
        }
        for (size_t s = 0; s < segments.size(); s++) {
            EXPECT_EQ(done[s], tw_coll_shard_elems(sizes.segments[s], world, r));
        }
    }
    EXPECT_EQ(next_chunk, grid.n_chunks);
    EXPECT_EQ(next_piece, grid.n_pieces);
    tw_grid_cleanup(&grid);
}

TEST_F(Grid, CoversEveryShardOnce)
{
    const Sizes all[] = {
        {{}, "int8", "", 1000},
        {{0}, "int8", "", 1000},
        {{1}, "int8", "", 1},
        {{1, 2, 3, 0, 5}, "int4:block=32", "", 100},
        {{100003}, "int4:block=32", "", 1},
        {{100003}, "int4:block=32", "", 5000},
        {{100003, 7, 4096, 50000}, "int8:block=64", "", 4096},
        {{100003, 7, 4096, 50000}, "int4:block=32", "int8:block=96", 4096},
        {{100003, 7, 4096, 50000}, "int4", "int8", 1 << 20},
    };
    for (const Sizes &sizes : all) {
        for (int world = 1; world <= 8; world++) {
            check_grid(sizes, world);
        }
    }
}

/* Small tensors share messages. */
TEST_F(Grid, TinySegmentsShareAChunk)
{
    tw_quant_codec_t codec = tw::parse_codec("int8");
    std::vector<tw_coll_segment_t> segments(100);
    for (tw_coll_segment_t &segment : segments) {
        segment.n_elems = 8;
    }
    tw_coll_args_t args = {};
    args.type = TW_TYPE_BF16;
    args.segments = segments.data();
    args.n_segments = segments.size();
    args.codec = &codec;
    tw_grid_t grid;
    ASSERT_EQ(tw_grid_init(&grid, &args, 4, 1 << 20), TW_OK);
    EXPECT_EQ(grid.n_chunks, 4u);
    EXPECT_EQ(grid.n_pieces, 400u);
    tw_grid_cleanup(&grid);
}

/* A chunk has one codec, or none: segments of the same one share chunks wherever they stand. */
TEST_F(Grid, SegmentsOfOneCodecShareChunks)
{
    tw_quant_codec_t codec = tw::parse_codec("int8"), other = tw::parse_codec("int4"), same = codec;
    std::vector<tw_coll_segment_t> segments(30);
    for (size_t s = 0; s < segments.size(); s++) {
        segments[s].n_elems = 8 + s;
        segments[s].unquantized = s % 3 == 1;
        segments[s].codec = s % 3 == 2 ? &other : s % 2 ? &same : nullptr;
    }
    tw_coll_args_t args = {};
    args.type = TW_TYPE_BF16;
    args.segments = segments.data();
    args.n_segments = segments.size();
    args.codec = &codec;
    tw_grid_t grid;
    ASSERT_EQ(tw_grid_init(&grid, &args, 4, 1 << 20), TW_OK);
    EXPECT_EQ(grid.n_codecs, 2u);
    EXPECT_EQ(grid.n_chunks, 12u);
    EXPECT_EQ(grid.n_pieces, 120u);
    for (size_t c = 0; c < grid.n_chunks; c++) {
        const tw_quant_codec_t *chunk_codec = tw_grid_chunk_codec(&grid, c);
        EXPECT_EQ(grid.chunks[c].n_pieces, 10u);
        for (size_t p = 0; p < grid.chunks[c].n_pieces; p++) {
            const tw_coll_segment_t &segment = segments[grid.pieces[grid.chunks[c].first_piece + p].segment];
            const tw_quant_codec_t *wanted = tw_segment_codec(&args, &segment);
            ASSERT_EQ(chunk_codec == nullptr, wanted == nullptr);
            EXPECT_TRUE(wanted == nullptr || tw_quant_codec_equal(chunk_codec, wanted));
        }
    }
    tw_grid_cleanup(&grid);
}

/* ---- codecs: what a communicator has used ---- */

using Codecs = tw::Fixture;

/* More of them than there is room for at first. */
TEST_F(Codecs, EachIsMadeOnce)
{
    const std::vector<std::string> texts = {"int8",
                                            "int4",
                                            "int4:block=32",
                                            "int4:block=64",
                                            "int4:hadamard",
                                            "int4:stochastic",
                                            "int8:scale=fp32",
                                            "int8:block=32",
                                            "int8:block=64"};
    tw_codecs_t codecs = {};
    std::vector<tw_quant_t *> made;
    for (const std::string &text : texts) {
        tw_quant_codec_t codec = tw::parse_codec(text);
        tw_quant_t *quant = nullptr;
        ASSERT_EQ(tw_codecs_get(&codecs, &codec, &quant), TW_OK);
        EXPECT_TRUE(tw_quant_codec_equal(tw_quant_codec_get(quant), &codec)) << text;
        made.push_back(quant);
    }
    EXPECT_EQ(std::set<tw_quant_t *>(made.begin(), made.end()).size(), texts.size());
    for (size_t i = 0; i < texts.size(); i++) {
        tw_quant_codec_t codec = tw::parse_codec(texts[i]);
        tw_quant_t *quant = nullptr;
        ASSERT_EQ(tw_codecs_get(&codecs, &codec, &quant), TW_OK);
        EXPECT_EQ(quant, made[i]) << texts[i];
    }
    EXPECT_EQ(codecs.n, texts.size());
    tw_codecs_cleanup(&codecs);
    EXPECT_EQ(codecs.n, 0u);
    tw_codecs_cleanup(&codecs); /* an empty set */
}

TEST_F(Codecs, ABadOneIsRefusedAndNotKept)
{
    tw_codecs_t codecs = {};
    tw_quant_t *quant = nullptr;
    tw_quant_codec_t codec = tw::parse_codec("int8");
    codec.block = 33;
    allow_log("block");
    EXPECT_LT(tw_codecs_get(&codecs, &codec, &quant), 0);
    EXPECT_EQ(codecs.n, 0u);
    EXPECT_EQ(quant, nullptr);
    tw_codecs_cleanup(&codecs);
}

/* Of all codecs together. */
TEST_F(Codecs, NonfiniteBlocksAddUp)
{
    tw_codecs_t codecs = {};
    EXPECT_EQ(tw_codecs_nonfinite_blocks(&codecs), 0u);
    uint64_t expected = 0;
    for (const char *text : {"int8:block=32", "int4:block=32"}) {
        tw_quant_codec_t codec = tw::parse_codec(text);
        tw_quant_t *quant = nullptr;
        ASSERT_EQ(tw_codecs_get(&codecs, &codec, &quant), TW_OK);
        std::vector<float> plain(97, 1.0f); /* 4 blocks, the last one short */
        plain[0] = plain[1] = NAN;
        plain[96] = INFINITY;
        std::vector<char> encoded(tw_quant_encoded_bytes(&codec, plain.size()));
        tw_quant_args_t args = {};
        args.type = TW_TYPE_FP32;
        args.factor = 1;
        tw_quant_segment_t segment = {};
        segment.src = plain.data();
        segment.dst = encoded.data();
        segment.n_elems = plain.size();
        ASSERT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
        EXPECT_EQ(tw_codecs_nonfinite_blocks(&codecs), expected += 2);
    }
    tw_codecs_cleanup(&codecs);
}

} // namespace
