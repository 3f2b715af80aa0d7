/* The lossless delta on streams, for the host's memory: as the codec itself, and with outcomes. */
#include <cstring>
#include <vector>

#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/quant/delta/delta_data.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using Values = std::vector<uint16_t>;

constexpr size_t n = 5003;

class DeltaStream : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(tw_quant_delta_stream_create(TW_MEM_HOST, &codec_), TW_OK);
        steps_ = tw::make_steps(tw::Change::adam, n, 1);
        message_.resize(tw_quant_delta_bound_bytes(n));
        const tw_quant_delta_segment_t segment = {steps_[0].data(), steps_[1].data(), nullptr, sent_.data(),
                                                  n};
        EXPECT_EQ(tw_quant_delta_encode_workspace_bytes(codec_, n, 1), 0u);
        ASSERT_EQ(tw_quant_delta_stream_encode(codec_, &args_, &segment, 1, message_.data(), message_.size()),
                  TW_OK);
        EXPECT_EQ(outcome_.status, TW_OK);
        EXPECT_EQ(memcmp(&outcome_, &host_, sizeof(host_)), 0);
        message_.resize(outcome_.bytes);
    }
    void TearDown() override
    {
        tw_quant_delta_stream_destroy(codec_);
        tw::Fixture::TearDown();
    }

    /* The verdict, which both outcomes have. */
    tw_status_t decode(const Bytes &message, int at_most = 0)
    {
        received_.assign(n, 0);
        got_ = steps_[0];
        const tw_quant_delta_segment_t segment = {got_.data(), nullptr, got_.data(), received_.data(), n};
        outcome_ = host_ = {77, 77};
        EXPECT_EQ(tw_quant_delta_decode_workspace_bytes(codec_, n, 1), 0u);
        EXPECT_EQ(tw_quant_delta_stream_decode(codec_, &args_, &segment, 1,
                                               {message.data(), message.size(), at_most}),
                  TW_OK);
        EXPECT_EQ(memcmp(&outcome_, &host_, sizeof(host_)), 0);
        return tw_status_t(outcome_.status);
    }

    tw_quant_delta_stream_t *codec_ = nullptr;
    tw_quant_outcome_t outcome_ = {}, host_ = {};
    tw_quant_stream_args_t args_ = {nullptr, nullptr, 0, &outcome_, &host_};
    std::vector<Values> steps_;
    Bytes message_, sent_ = Bytes(n), received_;
    Values got_;
};

TEST_F(DeltaStream, IsTheCodec)
{
    tw_quant_delta_t *codec;
    Bytes expected(tw_quant_delta_bound_bytes(n)), states(n);
    const tw_quant_delta_segment_t segment = {steps_[0].data(), steps_[1].data(), nullptr, states.data(), n};
    size_t bytes = 0;
    ASSERT_EQ(tw_quant_delta_create(nullptr, &codec), TW_OK);
    ASSERT_EQ(tw_quant_delta_encode(codec, &segment, 1, expected.data(), expected.size(), &bytes), TW_OK);
    tw_quant_delta_destroy(codec);
    expected.resize(bytes);
    EXPECT_EQ(message_, expected);
    EXPECT_EQ(sent_, states);
    EXPECT_EQ(decode(message_), TW_OK);
    EXPECT_EQ(outcome_.bytes, message_.size());
    EXPECT_EQ(got_, steps_[1]);
    EXPECT_EQ(received_, states);
}

/* Who knows the bound alone has the message's word for its length. */
TEST_F(DeltaStream, LengthsAreJudged)
{
    const size_t bytes = message_.size();
    Bytes longer = message_;
    longer.resize(tw_quant_delta_bound_bytes(n), 0x5a);
    EXPECT_EQ(decode(longer, 1), TW_OK);
    EXPECT_EQ(got_, steps_[1]);
    EXPECT_EQ(outcome_.bytes, bytes);
    expect_log("bytes, the message says");
    EXPECT_EQ(decode(longer), TW_ERR_FORMAT);
    EXPECT_EQ(outcome_.bytes, 0u);
    EXPECT_EQ(decode(Bytes(message_.begin(), message_.end() - 1), 1), TW_ERR_TRUNCATED);
    expect_log("is shorter than its header");
    EXPECT_EQ(decode(Bytes(message_.begin(), message_.begin() + 7), 1), TW_ERR_TRUNCATED);
    longer[4] = 7, longer[5] = longer[6] = longer[7] = 0;
    EXPECT_EQ(decode(longer, 1), TW_ERR_FORMAT);
    longer[0] ^= 1;
    expect_log("not a lossless delta");
    EXPECT_EQ(decode(longer, 1), TW_ERR_FORMAT);
}

/* What the caller did wrong is said at once. */
TEST_F(DeltaStream, CallsAreChecked)
{
    const tw_quant_delta_segment_t segment = {nullptr, nullptr, nullptr, nullptr, n};
    uint8_t message[100] = {};
    outcome_ = {77, 77};
    expect_log("segment 0 has a NULL pointer");
    EXPECT_EQ(tw_quant_delta_stream_encode(codec_, &args_, &segment, 1, message, 100), TW_ERR_INVALID);
    EXPECT_EQ(tw_quant_delta_stream_decode(codec_, &args_, &segment, 1, {message, 100, 0}), TW_ERR_INVALID);
    expect_log("no message");
    EXPECT_EQ(tw_quant_delta_stream_decode(codec_, &args_, &segment, 1, {nullptr, 100, 0}), TW_ERR_INVALID);
    EXPECT_EQ(outcome_.bytes, 77u) << "nothing was said";
}

} // namespace
