/* What the format promises, on every backend: golden bytes, special values, symmetry, chunks. */
#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/arithmetic/block.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;

const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};

class QuantRef : public tw::Fixture, public testing::WithParamInterface<std::string>
{
  protected:
    static tw_quant_codec_t parse(const char *text)
    {
        tw_quant_codec_t codec = {};
        EXPECT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        return codec;
    }
};

std::string hex_of(const std::vector<uint8_t> &bytes)
{
    std::string text;
    char digits[3];
    for (uint8_t byte : bytes) {
        snprintf(digits, sizeof(digits), "%02x", byte);
        text += digits;
    }
    return text;
}

/* n elements whose values any reader can make again: small fractions of both signs, growing. */
std::vector<float> ramp(size_t n)
{
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) {
        x[i] = (i % 3 == 1 ? -0.0625f : 0.0625f) * float(i + 1);
    }
    return x;
}

/* ---- golden bytes: written out, so that the format can not drift; the ramps by a program of their own -- */

TEST_P(QuantRef, GoldenInt8WithScaleOne)
{
    tw::Codec quant(parse("int8:block=32,scale=fp32"), GetParam());
    const std::vector<float> x = {127, -127, 1, -1, 0.5, 1.5, 2.5};
    EXPECT_EQ(hex_of(tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x))), "0000803f"
                                                                        "00000000"
                                                                        "00000000"
                                                                        "00000000"
                                                                        "00000000"
                                                                        "00000000"
                                                                        "00000000"
                                                                        "00000000"
                                                                        "7f8101ff000202"
                                                                        "000000000000000000");
}

TEST_P(QuantRef, GoldenInt4WithScaleOne)
{
    tw::Codec quant(parse("int4:block=32"), GetParam());
    const std::vector<float> x = {7, -7, 3, -1, 0.5};
    EXPECT_EQ(hex_of(tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x))), "803f"
                                                                        "0000"
                                                                        "0000"
                                                                        "0000"
                                                                        "0000"
                                                                        "0000"
                                                                        "0000"
                                                                        "0000"
                                                                        "97f300"
                                                                        "00000000000000000000000000");
}

struct Golden {
    const char *codec;
    size_t n;
    const char *hex;
};

const Golden goldens[] = {
    {"int8:block=32", 5, "223b000000000000000000000000000019cd4c65820000000000000000000000"},
    {"int4:block=32,scale=fp32", 37,
     "2549923e9224a93e000000000000000000000000000000000000000000000000"
     "00111fe2223ed3334cc4555ba5667a9766790700000000000000000000000000"},
    {"int8:block=32,hadamard", 40,
     "ec3ca23c0000000000000000000000003b07f4e50212ea1eebdc29f4e115f09d"
     "f0fffc30fbc635f4f327ddd42c10e27f686b917275887b7e0000000000000000"},
    {"int8:block=32,stochastic", 19,
     "1a3c000000000000000000000000000007f3141bdf282eca3c42b75056a3636a"
     "8f787f00000000000000000000000000"},
    {"int4:block=32,hadamard,stochastic,scale=fp32", 70,
     "1357053fdb296b3f0000203f0000000000000000000000000000000000000000"
     "13e0101eef021eaf0f30d0f32fee137e0720d0033fed137fdff31e9f03709007"
     "79977700000000000000000000000000"},
};

TEST_P(QuantRef, GoldenRamps)
{
    for (const Golden &golden : goldens) {
        tw::Codec quant(parse(golden.codec), GetParam());
        const std::vector<float> x = ramp(golden.n);
        EXPECT_EQ(hex_of(tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x), {0x0123456789abcdef, 6, 3, 2})),
                  golden.hex)
            << golden.codec;
    }
}

/* ---- special values ------------------------------------------------------------------------------------ */

TEST_P(QuantRef, ZeroBlocksAreZeroBytesAndExactZeros)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 160})) {
        for (tw_type_t type : types) {
            tw::Codec quant(codec, GetParam());
            const std::vector<uint8_t> encoded =
                tw::encode(quant, type, tw::make_data(type, Data::zeros, 333, 1));
            EXPECT_EQ(encoded, std::vector<uint8_t>(encoded.size(), 0)) << codec;
            const std::vector<uint8_t> decoded = tw::decode(quant, type, encoded, 333);
            EXPECT_EQ(decoded, std::vector<uint8_t>(decoded.size(), 0)) << codec;
        }
    }
}

/* A block with NaN or infinity decodes to the quiet NaN throughout; the blocks beside it are as if it were
 * not there. */
TEST_P(QuantRef, NonfiniteBlocksBecomeNanAndAreCounted)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 128})) {
        for (tw_type_t type : types) {
            for (float bad : {NAN, INFINITY, -INFINITY}) {
                const size_t block = size_t(codec.block), n = 20 * block + 5, bad_blocks[] = {3, 9, 20};
                const std::vector<uint8_t> good = tw::make_data(type, Data::gauss, n, 2);
                std::vector<uint8_t> plain = good;
                for (size_t b : bad_blocks) {
                    tw_float_store(type, plain.data(), b * block + b % 5, bad);
                }
                tw::Codec quant(codec, GetParam()), clean(codec, GetParam());
                const std::vector<uint8_t> got = tw::decode(quant, type, tw::encode(quant, type, plain), n);
                const std::vector<uint8_t> expected =
                    tw::decode(clean, type, tw::encode(clean, type, good), n);
                const uint32_t nan = type == TW_TYPE_FP32   ? 0x7fc00000
                                     : type == TW_TYPE_BF16 ? 0x7fc0
                                                            : 0x7e00;
                for (size_t i = 0; i < n; i++) {
                    const size_t bytes = tw_type_bytes(type), b = i / block;
                    const bool is_bad = b == 3 || b == 9 || b == 20;
                    const uint8_t *want =
                        is_bad ? reinterpret_cast<const uint8_t *>(&nan) : expected.data() + i * bytes;
                    ASSERT_EQ(memcmp(got.data() + i * bytes, want, bytes), 0) << codec << " element " << i;
                }
                EXPECT_EQ(tw_quant_nonfinite_blocks(quant), 3u);
                EXPECT_EQ(tw_quant_nonfinite_blocks(clean), 0u);
            }
        }
    }
}

TEST_P(QuantRef, RotatedBlocksBeyondTheLimitCountAsOverflown)
{
    tw::Codec quant(parse("int8:block=32,hadamard"), GetParam());
    std::vector<float> x(32, 0x1p120f); /* rotated: 2^120 * 2^2.5 in the first element */
    x[0] = 0x1p122f;
    const std::vector<float> decoded =
        tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), 32);
    EXPECT_EQ(tw_quant_nonfinite_blocks(quant), 1u);
    for (float y : decoded) {
        EXPECT_TRUE(std::isnan(y));
    }
    const std::vector<float> edge(32, 0x1p119f);
    for (float y : tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(edge)), 32)) {
        EXPECT_TRUE(std::isfinite(y));
    }
    EXPECT_EQ(tw_quant_nonfinite_blocks(quant), 1u);
}

TEST_P(QuantRef, LargestValuesSaturate)
{
    for (const char *text :
         {"int8:block=32", "int4:block=32", "int8:block=32,scale=fp32", "int4:block=32,scale=fp32"}) {
        for (tw_type_t type : types) {
            tw::Codec quant(parse(text), GetParam());
            const float top = tw_float_type_max(type);
            std::vector<uint8_t> plain(40 * tw_type_bytes(type));
            for (size_t i = 0; i < 40; i++) {
                tw_float_store(type, plain.data(), i, i % 2 ? top : -top);
            }
            const std::vector<float> decoded =
                tw::floats_of(type, tw::decode(quant, type, tw::encode(quant, type, plain), 40));
            /* the bf16 scale may be 2^-7 too large, which leaves the top code 126 of 127 */
            for (size_t i = 0; i < 40; i++) {
                EXPECT_LE(std::fabs(decoded[i]), top) << text;
                EXPECT_GE(std::fabs(decoded[i]),
                          top * (1 - 0.5f / float(tw_block_qmax(tw_quant_codec_get(quant)->kind)) - 0x1p-7f))
                    << text;
                EXPECT_EQ(std::signbit(decoded[i]), i % 2 == 0);
            }
        }
    }
}

/* ---- symmetry ------------------------------------------------------------------------------------------ */

TEST_P(QuantRef, NegatedDataGivesNegatedValues)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 2048})) {
        if (codec.round == TW_QUANT_ROUND_STOCHASTIC) {
            continue; /* floor is not symmetric; the distribution is */
        }
        tw::Codec quant(codec, GetParam());
        for (Data data : {Data::gauss, Data::outlier, Data::constant, Data::denormal}) {
            std::vector<float> x = tw::floats_of(TW_TYPE_FP32, tw::make_data(TW_TYPE_FP32, data, 2500, 3));
            const std::vector<float> plus =
                tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), 2500);
            for (float &value : x) {
                value = -value;
            }
            const std::vector<float> minus =
                tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), 2500);
            for (size_t i = 0; i < 2500; i++) {
                ASSERT_EQ(plus[i], -minus[i]) << codec;
            }
        }
    }
}

TEST_P(QuantRef, PlusMaxAndMinusMaxAreRepresentedAlike)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32})) {
        if (codec.hadamard) {
            continue;
        }
        tw::Codec quant(codec, GetParam());
        const int qmax = tw_block_qmax(codec.kind);
        const float top = float(tw_block_reach(codec.kind)); /* of which 2 bits keep half */
        const std::vector<float> x = {top, -top, 1.0f}, expected = {float(qmax), -float(qmax), 1.0f};
        const std::vector<float> decoded =
            tw::decode_fp32(quant, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(x)), 3);
        EXPECT_EQ(decoded, expected) << codec;
    }
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

TEST_P(QuantRef, WholeFramesAreSegmentsOfTheirOwn)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 96})) {
        tw::Codec quant(codec, GetParam());
        const size_t frame = tw_quant_frame_elems(&codec), n = 5 * frame + 77;
        const std::vector<uint8_t> plain = tw::make_data(TW_TYPE_BF16, Data::gauss, n, 4);
        const std::vector<uint8_t> whole = tw::encode(quant, TW_TYPE_BF16, plain, {9, 1000, 2, 3});
        std::vector<uint8_t> joined, decoded;
        for (size_t first = 0, chunk = 1; first < n; first += chunk * frame, chunk = 3 - chunk) {
            const size_t end = std::min(n, first + chunk * frame);
            const std::vector<uint8_t> part(plain.begin() + long(2 * first), plain.begin() + long(2 * end));
            const std::vector<uint8_t> encoded =
                tw::encode(quant, TW_TYPE_BF16, part, {9, 1000 + first, 2, 3});
            joined.insert(joined.end(), encoded.begin(), encoded.end());
            const std::vector<uint8_t> back = tw::decode(quant, TW_TYPE_BF16, encoded, end - first);
            decoded.insert(decoded.end(), back.begin(), back.end());
        }
        EXPECT_EQ(joined, whole) << codec;
        EXPECT_EQ(decoded, tw::decode(quant, TW_TYPE_BF16, whole, n)) << codec;
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantRef, testing::ValuesIn(tw::host_backends(true)),
                         [](const testing::TestParamInfo<std::string> &backend) { return backend.param; });

} // namespace
