/* The lossless codec on streams, for the host's memory: as the codec itself, and with outcomes. */
#include <cstring>
#include <vector>

#include "tests/common/fixture.h"
#include "tests/quant/lossless/lossless_data.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using tw::Values;

constexpr size_t n = 5003;

class LosslessStream : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        const tw_quant_codec_t lossless = {TW_QUANT_LOSSLESS, 0, {}, {}, 0, 0};
        ASSERT_EQ(tw_quant_messages_stream_create(&lossless, TW_MEM_HOST, &codec_), TW_OK);
        ASSERT_EQ(tw_quant_lossless_create(nullptr, &plain_codec_), TW_OK);
        call_ = {nullptr, nullptr, 0, &outcome_, &host_};
    }
    void TearDown() override
    {
        tw_quant_messages_stream_destroy(codec_);
        tw_quant_lossless_destroy(plain_codec_);
        tw::Fixture::TearDown();
    }

    Bytes encode(const Bytes &values)
    {
        Bytes message(tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n));
        const tw_quant_lossless_segment_t segment = {values.data(), nullptr, n, 100, 0};
        const tw_quant_message_args_t args = {TW_TYPE_BF16, &segment, 1, 0};
        EXPECT_EQ(tw_quant_messages_encode_workspace_bytes(codec_, &args), 0u);
        EXPECT_EQ(tw_quant_messages_stream_encode(codec_, &call_, &args, message.data(), message.size()),
                  TW_OK);
        EXPECT_EQ(outcome_.status, TW_OK);
        message.resize(outcome_.bytes);
        return message;
    }

    /* The verdict, which both outcomes have. */
    tw_status_t decode(const Bytes &message, tw_quant_sink_t sink, void *dst, int at_most = 0)
    {
        const tw_quant_lossless_segment_t segment = {nullptr, dst, n, 0, 0};
        outcome_ = host_ = {77, 77};
        const tw_quant_message_args_t args = {TW_TYPE_BF16, &segment, 1, 0};
        EXPECT_EQ(tw_quant_messages_decode_workspace_bytes(codec_, TW_TYPE_BF16, n, 1), 0u);
        EXPECT_EQ(tw_quant_messages_stream_decode(codec_, &call_, &args, sink,
                                                  {message.data(), message.size(), at_most}),
                  TW_OK);
        EXPECT_EQ(memcmp(&outcome_, &host_, sizeof(host_)), 0);
        return tw_status_t(outcome_.status);
    }

    tw_quant_messages_stream_t *codec_ = nullptr;
    tw_quant_lossless_t *plain_codec_ = nullptr;
    tw_quant_outcome_t outcome_ = {}, host_ = {};
    tw_quant_stream_args_t call_ = {};
};

TEST_F(LosslessStream, IsTheCodec)
{
    const Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 100);
    const tw_quant_lossless_segment_t segment = {values.data(), nullptr, n, 100, 0};
    Bytes expected(tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n)), got(2 * n);
    size_t bytes = 0;
    ASSERT_EQ(tw_quant_lossless_encode(plain_codec_, TW_TYPE_BF16, &segment, 1, expected.data(),
                                       expected.size(), &bytes),
              TW_OK);
    expected.resize(bytes);
    const Bytes message = encode(values);
    EXPECT_EQ(message, expected);
    EXPECT_EQ(decode(message, TW_QUANT_SINK_STORE, got.data()), TW_OK);
    EXPECT_EQ(got, values);
    EXPECT_EQ(outcome_.bytes, message.size());
    std::vector<float> wide(n), stored(n, 3), added(n, 1), sums(n, 1);
    tw_convert_to_fp32(TW_TYPE_BF16, values.data(), wide.data(), n);
    tw_convert_add_fp32(TW_TYPE_BF16, values.data(), sums.data(), n);
    EXPECT_EQ(decode(message, TW_QUANT_SINK_STORE_FP32, stored.data()), TW_OK);
    EXPECT_EQ(decode(message, TW_QUANT_SINK_ADD_FP32, added.data()), TW_OK);
    EXPECT_EQ(stored, wide);
    EXPECT_EQ(added, sums);
}

/* Who knows the bound alone has the message's word for its length. */
TEST_F(LosslessStream, LengthsAreJudged)
{
    const Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 100);
    Bytes message = encode(values), got(2 * n);
    const size_t bytes = message.size();
    message.resize(tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n), 0x5a);
    EXPECT_EQ(decode(message, TW_QUANT_SINK_STORE, got.data(), 1), TW_OK);
    EXPECT_EQ(got, values);
    EXPECT_EQ(outcome_.bytes, bytes);
    expect_log("bytes, the message says");
    EXPECT_EQ(decode(message, TW_QUANT_SINK_STORE, got.data()), TW_ERR_FORMAT);
    EXPECT_EQ(outcome_.bytes, 0u);
    message.resize(bytes - 1);
    EXPECT_EQ(decode(message, TW_QUANT_SINK_STORE, got.data(), 1), TW_ERR_TRUNCATED);
    message.resize(bytes);
    message[bytes / 2] ^= 4;
    expect_log("a block is spoilt");
    EXPECT_EQ(decode(message, TW_QUANT_SINK_STORE, got.data()), TW_ERR_FORMAT);
}

/* What the caller did wrong is said at once. */
TEST_F(LosslessStream, CallsAreChecked)
{
    const tw_quant_lossless_segment_t segment = {nullptr, nullptr, n, 0, 0};
    uint8_t message[100] = {};
    const tw_quant_message_args_t args = {TW_TYPE_BF16, &segment, 1, 0};
    expect_log("segment 0 has a NULL pointer");
    EXPECT_EQ(tw_quant_messages_stream_encode(codec_, &call_, &args, message, 100), TW_ERR_INVALID);
    EXPECT_EQ(tw_quant_messages_stream_decode(codec_, &call_, &args, TW_QUANT_SINK_STORE, {message, 100, 0}),
              TW_ERR_INVALID);
}

} // namespace
