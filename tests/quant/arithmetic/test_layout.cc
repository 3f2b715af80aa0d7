/* Wire layout: every size, against a count made block by block. */
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "quant/arithmetic/layout.h"

namespace
{

std::vector<tw_quant_codec_t> codecs()
{
    std::vector<tw_quant_codec_t> all;
    for (tw_quant_kind_t kind : {TW_CODE_KINDS}) {
        for (int block : {32, 64, 96, 128, 160, 2048, 4064, 4096}) {
            for (tw_quant_scale_t scale : {TW_QUANT_SCALE_BF16, TW_QUANT_SCALE_FP32}) {
                all.push_back({kind, block, scale, TW_QUANT_ROUND_NEAREST, 0, 0});
            }
        }
    }
    return all;
}

/* Walks the format as the header describes it. */
size_t count_bytes(const tw_quant_codec_t &codec, size_t n_elems)
{
    size_t bytes = 0, block = size_t(codec.block);
    for (size_t at = 0, b = 0; at < n_elems; at += block, b++) {
        if (b % 8 == 0) {
            bytes += codec.scale == TW_QUANT_SCALE_BF16 ? 16 : 32;
        }
        const size_t n = n_elems - at < block ? n_elems - at : block;
        bytes += (n * size_t(tw_quant_row_get(codec.kind)->bits) + 7) / 8;
    }
    return (bytes + 15) / 16 * 16;
}

TEST(QuantLayout, EncodedBytesOfEverySize)
{
    for (const tw_quant_codec_t &codec : codecs()) {
        for (size_t n = 0; n <= 4100; n++) {
            ASSERT_EQ(tw_quant_encoded_bytes(&codec, n), count_bytes(codec, n)) << codec.block << " " << n;
        }
    }
}

TEST(QuantLayout, EncodedBytesBeyond32Bits)
{
    const tw_quant_codec_t codec = {TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
    const size_t n = size_t{5} << 32;
    EXPECT_EQ(tw_quant_encoded_bytes(&codec, n), n / 2 + n / 128 * 2);
    EXPECT_EQ(tw_layout_codes_offset(&codec, n / 128), n / 2 + n / 128 * 2 + 16);
}

TEST(QuantLayout, OverheadOfInt4InBlocksOf128)
{
    const tw_quant_codec_t codec = {TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
    const double n = 1 << 20;
    EXPECT_DOUBLE_EQ(double(tw_quant_encoded_bytes(&codec, 1 << 20)) / (n / 2), 1 + 2.0 / 64);
}

TEST(QuantLayout, FramesAreSegments)
{
    for (const tw_quant_codec_t &codec : codecs()) {
        EXPECT_EQ(tw_quant_frame_elems(&codec), 8 * size_t(codec.block));
        EXPECT_EQ(tw_quant_frame_bytes(&codec) % TW_QUANT_ALIGN_BYTES, 0u);
        EXPECT_EQ(tw_quant_frame_bytes(&codec), tw_quant_encoded_bytes(&codec, tw_quant_frame_elems(&codec)));
        for (size_t frames : {1, 2, 7}) {
            for (size_t rest : {size_t{0}, size_t{1}, size_t(codec.block), size_t(codec.block) * 8 - 1}) {
                EXPECT_EQ(tw_quant_encoded_bytes(&codec, frames * tw_quant_frame_elems(&codec) + rest),
                          frames * tw_quant_frame_bytes(&codec) + tw_quant_encoded_bytes(&codec, rest));
            }
        }
    }
}

/* Scales and codes of all blocks tile the payload: no overlap, no hole but the unused scales. */
TEST(QuantLayout, BlocksTileTheSegment)
{
    for (const tw_quant_codec_t &codec : codecs()) {
        for (size_t n : {1, 31, 33, 127, 129, 4100}) {
            std::vector<int> used(tw_quant_encoded_bytes(&codec, n));
            const size_t blocks = tw_layout_block_count(&codec, n);
            size_t elems = 0;
            for (size_t b = 0; b < blocks; b++) {
                const size_t in_block = tw_layout_block_elems(&codec, n, b);
                elems += in_block;
                for (size_t i = 0; i < tw_layout_scale_bytes(codec.scale); i++) {
                    used.at(tw_layout_scale_offset(&codec, b) + i)++;
                }
                for (size_t i = 0; i < tw_layout_code_bytes(TW_CODE_BITS(codec.kind), in_block); i++) {
                    used.at(tw_layout_codes_offset(&codec, b) + i)++;
                }
            }
            ASSERT_EQ(elems, n);
            size_t holes = 0;
            for (size_t i = 0; i < tw_layout_payload_bytes(&codec, n); i++) {
                ASSERT_LE(used[i], 1);
                holes += used[i] == 0;
            }
            ASSERT_EQ(holes, (8 - blocks % 8) % 8 * tw_layout_scale_bytes(codec.scale));
        }
    }
}

TEST(QuantLayout, CodesPackLowFirstAndKeepTheirSign)
{
    for (int bits : {8, 4, 2}) {
        const int lowest = -(1 << (bits - 1)), highest = (1 << (bits - 1)) - 1;
        const size_t n = size_t(highest - lowest + 1);
        std::vector<uint8_t> codes(tw_layout_code_bytes(bits, n));
        for (size_t i = 0; i < n; i++) {
            tw_layout_code_put(codes.data(), bits, i, lowest + int(i));
        }
        for (size_t i = 0; i < n; i++) {
            EXPECT_EQ(tw_layout_code_get(codes.data(), bits, i), lowest + int(i));
        }
    }
    uint8_t byte = 0;
    tw_layout_code_put(&byte, 4, 0, -1);
    tw_layout_code_put(&byte, 4, 1, 3);
    EXPECT_EQ(byte, 0x3f);
}

TEST(QuantLayout, ScalesAreLittleEndian)
{
    uint8_t at[4] = {0};
    tw_layout_scale_put(at, TW_QUANT_SCALE_FP32, tw_float_of_bits(0x44332211));
    EXPECT_EQ(memcmp(at, "\x11\x22\x33\x44", 4), 0);
    EXPECT_EQ(tw_layout_scale_get(at, TW_QUANT_SCALE_FP32), tw_float_of_bits(0x44332211));
    tw_layout_scale_put(at, TW_QUANT_SCALE_BF16, tw_float_of_bits(0x3f800000));
    EXPECT_EQ(memcmp(at, "\x80\x3f\x33\x44", 4), 0) << "two bytes, no more";
    EXPECT_EQ(tw_layout_scale_get(at, TW_QUANT_SCALE_BF16), 1.0f);
}

} // namespace
