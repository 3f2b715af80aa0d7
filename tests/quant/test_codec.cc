/* Codecs as text and as data. */
#include <string>

#include "quant/arithmetic/block.h"
#include "quant/quant.h"
#include "tests/common/fixture.h"

namespace
{

using QuantCodec = tw::Fixture;

tw_quant_codec_t parse(const char *text)
{
    tw_quant_codec_t codec = {};
    EXPECT_EQ(tw_quant_codec_parse(text, &codec), TW_OK) << text;
    return codec;
}

std::string format(const tw_quant_codec_t &codec)
{
    char buf[80];
    return tw_quant_codec_format(&codec, buf, sizeof(buf));
}

TEST_F(QuantCodec, ParsesNamesAndOptions)
{
    const tw_quant_codec_t int8 = {TW_QUANT_INT8, 2048, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
    const tw_quant_codec_t int4 = {TW_QUANT_INT4, 128, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
    const tw_quant_codec_t all = {TW_QUANT_INT4, 4096, TW_QUANT_SCALE_FP32, TW_QUANT_ROUND_STOCHASTIC, 1, 0};
    const tw_quant_codec_t last_wins = {TW_QUANT_INT8, 64, TW_QUANT_SCALE_BF16, TW_QUANT_ROUND_NEAREST, 0, 0};
    const tw_quant_codec_t got[] = {parse("int8"), parse("int4"),
                                    parse("int4:block=4096,hadamard,stochastic,scale=fp32"),
                                    parse("int8:block=32,stochastic,nearest,scale=bf16,block=64")};
    EXPECT_TRUE(tw_quant_codec_equal(&got[0], &int8));
    EXPECT_TRUE(tw_quant_codec_equal(&got[1], &int4));
    EXPECT_TRUE(tw_quant_codec_equal(&got[2], &all));
    EXPECT_TRUE(tw_quant_codec_equal(&got[3], &last_wins));
}

TEST_F(QuantCodec, LosslessHasNoOptions)
{
    tw_quant_codec_t codec = parse("lossless");
    const tw_quant_codec_t zeros = {};
    tw_quant_t *quant = nullptr;
    EXPECT_EQ(codec.kind, TW_QUANT_LOSSLESS);
    EXPECT_EQ(tw_quant_codec_check(&codec), TW_OK);
    EXPECT_FALSE(tw_quant_codec_equal(&codec, &zeros));
    EXPECT_EQ(format(codec), "lossless");
    expect_log("no blocks of one size");
    const tw_quant_params_t params = {codec, TW_MEM_HOST, nullptr};
    EXPECT_EQ(tw_quant_create(&params, &quant), TW_ERR_INVALID);
    expect_log("neither blocks nor options");
    codec.block = 128;
    EXPECT_EQ(tw_quant_codec_check(&codec), TW_ERR_INVALID);
}

TEST_F(QuantCodec, EcdqHasAStepAlone)
{
    tw_quant_codec_t codec;
    expect_log("codec ecdq has no option but step");
    EXPECT_EQ(tw_quant_codec_parse("ecdq:step=2", &codec), TW_OK);
    EXPECT_EQ(tw_quant_codec_parse("ecdq:hadamard", &codec), TW_ERR_INVALID);
    EXPECT_EQ(tw_quant_codec_parse("ecdq:block=64", &codec), TW_ERR_INVALID);
}

TEST_F(QuantCodec, RefusesWhatItDoesNotKnow)
{
    expect_log("codec");
    expect_log("block is");
    const tw_quant_codec_t before = {TW_QUANT_INT8, 32, TW_QUANT_SCALE_FP32, TW_QUANT_ROUND_NEAREST, 1, 0};
    for (const char *text : {"",
                             "int",
                             "int5",
                             "int88",
                             "int4:",
                             "int4,hadamard",
                             "int4:hadamard,",
                             "int4:,hadamard",
                             "int4:block",
                             "int4:block=",
                             "int4:block=0",
                             "int4:block=16",
                             "int4:block=33",
                             "int4:block=4128",
                             "int4:block=-32",
                             "int4:block=128x",
                             "int4:block=99999999999999999999",
                             "int4:scale=fp16",
                             "int4:scale=",
                             "int4:rotate",
                             "lossless:",
                             "lossless:block=64",
                             "int4:hadamard=1",
                             " int4",
                             "int4 "}) {
        tw_quant_codec_t codec = before;
        EXPECT_EQ(tw_quant_codec_parse(text, &codec), TW_ERR_INVALID) << text;
        EXPECT_TRUE(tw_quant_codec_equal(&codec, &before)) << text;
    }
}

TEST_F(QuantCodec, FormatIsParsedBack)
{
    EXPECT_EQ(format(parse("int4")), "int4:block=128");
    for (tw_quant_kind_t kind : {TW_CODE_KINDS}) {
        for (int block = 32; block <= 4096; block += 32) {
            for (int options = 0; options < 8; options++) {
                const tw_quant_codec_t codec = {
                    kind,         block, tw_quant_scale_t(options & 1), tw_quant_round_t(options >> 1 & 1),
                    options >> 2, 0};
                const unsigned has = tw_quant_row_get(kind)->has;
                if (codec.round == TW_QUANT_ROUND_STOCHASTIC && !(has & TW_QUANT_HAS_STOCHASTIC)) {
                    continue;
                }
                const tw_quant_codec_t again = parse(format(codec).c_str());
                ASSERT_TRUE(tw_quant_codec_equal(&codec, &again)) << format(codec);
            }
        }
    }
}

TEST_F(QuantCodec, FormatKeepsToTheBuffer)
{
    const tw_quant_codec_t codec = parse("int4:block=4096,hadamard,stochastic,scale=fp32");
    char buf[8] = "1234567";
    EXPECT_STREQ(tw_quant_codec_format(&codec, buf, 5), "int4");
    EXPECT_EQ(buf[5], '6');
}

TEST_F(QuantCodec, CheckNamesTheField)
{
    const tw_quant_codec_t good = {TW_QUANT_INT8, 32, TW_QUANT_SCALE_FP32, TW_QUANT_ROUND_NEAREST, 1, 0};
    EXPECT_EQ(tw_quant_codec_check(&good), TW_OK);
    tw_quant_codec_t bad = good;
    bad.kind = TW_QUANT_KINDS;
    expect_log("there is no codec");
    EXPECT_EQ(tw_quant_codec_check(&bad), TW_ERR_INVALID);
    bad = good;
    bad.block = 48;
    expect_log("block is 48");
    EXPECT_EQ(tw_quant_codec_check(&bad), TW_ERR_INVALID);
    bad = good;
    bad.scale = tw_quant_scale_t(2);
    expect_log("scale is 2");
    EXPECT_EQ(tw_quant_codec_check(&bad), TW_ERR_INVALID);
    bad = good;
    bad.round = tw_quant_round_t(3);
    expect_log("round is 3");
    EXPECT_EQ(tw_quant_codec_check(&bad), TW_ERR_INVALID);
    bad = good;
    bad.hadamard = 2;
    expect_log("hadamard is 2");
    EXPECT_EQ(tw_quant_codec_check(&bad), TW_ERR_INVALID);
}

TEST_F(QuantCodec, EqualComparesEveryField)
{
    const tw_quant_codec_t base = parse("int8");
    for (const char *text :
         {"int4:block=2048", "int8:block=64", "int8:scale=fp32", "int8:stochastic", "int8:hadamard"}) {
        const tw_quant_codec_t other = parse(text);
        EXPECT_FALSE(tw_quant_codec_equal(&base, &other)) << text;
    }
    EXPECT_TRUE(tw_quant_codec_equal(&base, &base));
}

TEST_F(QuantCodec, TwoBits)
{
    const tw_quant_codec_t codec = parse("int2:hadamard");
    EXPECT_EQ(format(codec), "int2:block=64,hadamard");
    EXPECT_EQ(tw_quant_encoded_bytes(&codec, 512), 512 / 4 + 16U);
    EXPECT_GE(tw_quant_error_bound(&codec, 1.0), 0.5);
    EXPECT_LE(tw_quant_error_bound(&codec, 1.0), 0.5 * (1 + 0x1p-7));
}

/* Half a step of the grid, which a bf16 scale may widen by 2^-7. */
TEST_F(QuantCodec, ErrorBoundIsHalfAStep)
{
    for (const char *text : {"int8", "int4", "int8:scale=fp32", "int4:scale=fp32"}) {
        const tw_quant_codec_t codec = parse(text);
        const int qmax = codec.kind == TW_QUANT_INT8 ? 127 : 7;
        const double widest = codec.scale == TW_QUANT_SCALE_BF16 ? 1 + 0x1p-7 : 1 + 0x1p-23;
        for (double amax : {1e-30, 1e-3, 1.0, 3.14159, 65504.0, 3e38}) {
            EXPECT_GE(tw_quant_error_bound(&codec, amax), amax / qmax / 2) << text;
            EXPECT_LE(tw_quant_error_bound(&codec, amax), amax / qmax * widest * (0.5 + qmax * 0x1p-21))
                << text;
        }
        EXPECT_GE(tw_quant_error_bound(&codec, 0), 0x1p-126);
        EXPECT_GE(tw_quant_error_bound(&codec, 1e-40), 0x1p-126);
    }
}

} // namespace
