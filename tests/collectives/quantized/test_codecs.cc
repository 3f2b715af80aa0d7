/* The codecs that a communicator has used. */
#include <cmath>
#include <set>

#include "collectives/quantized/codecs.h"
#include "tests/common/fixture.h"

namespace
{

using Codecs = tw::Fixture;

tw_quant_codec_t parse(const std::string &text)
{
    tw_quant_codec_t codec;
    EXPECT_EQ(tw_quant_codec_parse(text.c_str(), &codec), TW_OK) << text;
    return codec;
}

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
        tw_quant_codec_t codec = parse(text);
        tw_quant_t *quant = nullptr;
        ASSERT_EQ(tw_codecs_get(&codecs, &codec, &quant), TW_OK);
        EXPECT_TRUE(tw_quant_codec_equal(tw_quant_codec_get(quant), &codec)) << text;
        made.push_back(quant);
    }
    EXPECT_EQ(std::set<tw_quant_t *>(made.begin(), made.end()).size(), texts.size());
    for (size_t i = 0; i < texts.size(); i++) {
        tw_quant_codec_t codec = parse(texts[i]);
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
    tw_quant_codec_t codec = parse("int8");
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
        tw_quant_codec_t codec = parse(text);
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
