/* Fused operations give what their parts give one after the other. */
#include <cmath>
#include <cstring>

#include "quant/arithmetic/block.h"
#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace
{

using tw::Data;

const tw_type_t types[] = {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16};
const size_t n = 1111;

class QuantCompose : public tw::Fixture, public testing::WithParamInterface<std::string>
{
  protected:
    using Operation = tw_status_t (*)(tw_quant_t *, const tw_quant_args_t *, const tw_quant_segment_t *,
                                      size_t);

    static std::vector<uint8_t> run_onto(Operation operation, tw_quant_t *quant, tw_type_t type,
                                         const std::vector<uint8_t> &encoded, std::vector<uint8_t> dst)
    {
        const tw_quant_args_t args = {type, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
        const tw_quant_segment_t segment = {encoded.data(), nullptr, dst.data(), n, 0, 0};
        EXPECT_EQ(operation(quant, &args, &segment, 1), TW_OK);
        return dst;
    }

    static std::vector<uint8_t> reduce(tw_quant_t *in, tw_quant_t *out, tw_type_t type, float factor,
                                       const std::vector<std::vector<uint8_t>> &inputs, int saturate = 0)
    {
        std::vector<const void *> srcs;
        for (const std::vector<uint8_t> &input : inputs) {
            srcs.push_back(input.data());
        }
        const size_t bytes =
            out ? tw_quant_encoded_bytes(tw_quant_codec_get(out), n) : n * tw_type_bytes(type);
        std::vector<uint8_t> dst(bytes, 0x5a);
        const tw_quant_args_t args = {type, 1, 2, factor, nullptr, nullptr, 0, saturate};
        const tw_quant_reduce_segment_t segment = {srcs.data(), srcs.size(), dst.data(), n, 3, 4};
        EXPECT_EQ(out ? tw_quant_reduce_encode(in, out, &args, &segment, 1)
                      : tw_quant_reduce_decode(in, &args, &segment, 1),
                  TW_OK);
        return dst;
    }

    static std::vector<std::vector<uint8_t>> make_inputs(tw_quant_t *quant, size_t k)
    {
        std::vector<std::vector<uint8_t>> inputs;
        for (size_t i = 0; i < k; i++) {
            inputs.push_back(
                tw::encode(quant, TW_TYPE_BF16, tw::make_data(TW_TYPE_BF16, Data::gauss, n, 20 + i)));
        }
        return inputs;
    }
};

TEST_P(QuantCompose, DecodeAddIsDecodeThenAdd)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 128})) {
        tw::Codec quant(codec, GetParam());
        const std::vector<uint8_t> encoded = make_inputs(quant, 1)[0];
        const std::vector<uint8_t> before = tw::make_data(TW_TYPE_FP32, Data::gauss, n, 11);
        std::vector<float> sum = tw::floats_of(TW_TYPE_FP32, before), z = tw::decode_fp32(quant, encoded, n);
        for (size_t i = 0; i < n; i++) {
            sum[i] += z[i];
        }
        EXPECT_EQ(run_onto(tw_quant_decode_add, quant, TW_TYPE_BYTE, encoded, before), tw::bytes_of(sum))
            << codec;
    }
}

TEST_P(QuantCompose, DecodeApplyIsDecodeAddRound)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 128})) {
        for (tw_type_t type : types) {
            tw::Codec quant(codec, GetParam());
            const std::vector<uint8_t> encoded = make_inputs(quant, 1)[0];
            const std::vector<uint8_t> before = tw::make_data(type, Data::gauss, n, 12);
            std::vector<uint8_t> expected = before;
            const std::vector<float> z = tw::decode_fp32(quant, encoded, n);
            for (size_t i = 0; i < n; i++) {
                tw_float_store(type, expected.data(), i, tw_float_load(type, before.data(), i) + z[i]);
            }
            EXPECT_EQ(run_onto(tw_quant_decode_apply, quant, type, encoded, before), expected) << codec;
        }
    }
}

/* A replica at the edge of its range saturates (bf16: by just over half a unit in its last place, so that
 * fp32 can hold the sum); one that is infinite or NaN already stays so. */
TEST_P(QuantCompose, DecodeApplySaturatesWhatIsFinite)
{
    for (const char *text : {"int8:block=64", "int4:block=64", "int8:block=64,hadamard"}) {
        for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16}) {
            tw_quant_codec_t codec;
            ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
            tw::Codec quant(codec, GetParam());
            const float top = tw_float_type_max(type), change = type == TW_TYPE_FP16 ? 4096.0f : 0x1.1p119f;
            const std::vector<uint8_t> encoded =
                tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(std::vector<float>(n, change)));
            std::vector<uint8_t> before(n * 2);
            const float values[] = {top, -top, INFINITY, -INFINITY, NAN};
            for (size_t i = 0; i < n; i++) {
                tw_float_store(type, before.data(), i, values[i % 5]);
            }
            const std::vector<float> after =
                tw::floats_of(type, run_onto(tw_quant_decode_apply, quant, type, encoded, before));
            for (size_t i = 0; i + 32 < n; i += 5) {
                ASSERT_EQ(after[i], top) << text;
                ASSERT_GT(after[i + 1], -top);
                ASSERT_EQ(after[i + 2], INFINITY);
                ASSERT_EQ(after[i + 3], -INFINITY);
                ASSERT_TRUE(std::isnan(after[i + 4]));
            }
        }
    }
}

TEST_P(QuantCompose, DeltaEncodeIsEncodeOfTheDifference)
{
    for (const tw_quant_codec_t &codec : tw::all_codecs({32, 128})) {
        for (tw_type_t type : types) {
            tw::Codec quant(codec, GetParam());
            const std::vector<uint8_t> src = tw::make_data(TW_TYPE_FP32, Data::gauss, n, 13);
            const std::vector<uint8_t> base = tw::make_data(type, Data::gauss, n, 14);
            std::vector<float> difference = tw::floats_of(TW_TYPE_FP32, src), b = tw::floats_of(type, base);
            for (size_t i = 0; i < n; i++) {
                difference[i] -= b[i];
            }
            std::vector<uint8_t> dst(tw_quant_encoded_bytes(&codec, n), 0x5a);
            const tw_quant_args_t args = {type, 1, 2, 1.0f, nullptr, nullptr, 0, 0};
            const tw_quant_segment_t segment = {src.data(), base.data(), dst.data(), n, 3, 4};
            ASSERT_EQ(tw_quant_encode_delta(quant, &args, &segment, 1), TW_OK);
            EXPECT_EQ(dst, tw::encode(quant, TW_TYPE_FP32, tw::bytes_of(difference), {1, 4, 2, 3})) << codec;
        }
    }
}

/* Repeated: the replica follows the master, because what one step rounds away the next one sends. */
TEST_P(QuantCompose, DeltasFeedTheErrorBack)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int4", &codec), TW_OK);
    tw::Codec quant(codec, GetParam());
    const std::vector<float> master =
        tw::floats_of(TW_TYPE_FP32, tw::make_data(TW_TYPE_FP32, Data::gauss, n, 15));
    std::vector<uint8_t> replica(n * 2, 0), dst(tw_quant_encoded_bytes(&codec, n));
    const tw_quant_args_t args = {TW_TYPE_BF16, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    for (int step = 0; step < 6; step++) {
        const tw_quant_segment_t segment = {master.data(), replica.data(), dst.data(), n, 0, 0};
        ASSERT_EQ(tw_quant_encode_delta(quant, &args, &segment, 1), TW_OK);
        replica = run_onto(tw_quant_decode_apply, quant, TW_TYPE_BF16, dst, replica);
    }
    /* To within the replica's own rounding, bf16's 8 bits, and the last step's grid, which is as fine. */
    const std::vector<float> got = tw::floats_of(TW_TYPE_BF16, replica);
    for (size_t i = 0; i < n; i++) {
        ASSERT_LE(std::fabs(got[i] - master[i]), 0x1p-7f * std::fabs(master[i]) + 0x1p-10f);
    }
}

/* Without rotation, bit for bit; any mix of codecs, with blocks that do not fit into each other. */
TEST_P(QuantCompose, ReduceEncodeIsDecodeSumEncode)
{
    for (const tw_quant_codec_t &in : tw::sum_codecs({32, 160})) {
        for (const tw_quant_codec_t &out : tw::sum_codecs({96, 2048})) {
            if (in.hadamard) {
                continue;
            }
            tw::Codec in_quant(in, GetParam()), out_quant(out, GetParam());
            const std::vector<std::vector<uint8_t>> inputs = make_inputs(in_quant, 3);
            std::vector<float> sum = tw::decode_fp32(in_quant, inputs[0], n);
            for (size_t k = 1; k < inputs.size(); k++) {
                const std::vector<float> z = tw::decode_fp32(in_quant, inputs[k], n);
                for (size_t i = 0; i < n; i++) {
                    sum[i] += z[i];
                }
            }
            for (float &value : sum) {
                value *= 0.3f;
            }
            EXPECT_EQ(reduce(in_quant, out_quant, TW_TYPE_FP32, 0.3f, inputs),
                      tw::encode(out_quant, TW_TYPE_FP32, tw::bytes_of(sum), {1, 4, 2, 3}))
                << in << " to " << out;
        }
    }
}

/* With rotation the sum is taken before it is undone: the same up to fp32 rounding. For K inputs, each of
 * which carries the roundings of two rotations: 14 * 2^-24 of the norm of what was summed, and K sums. */
TEST_P(QuantCompose, ReduceDecodeIsTheSum)
{
    for (const tw_quant_codec_t &codec : tw::sum_codecs({32, 160})) {
        for (size_t k : {1, 2, 7}) {
            tw::Codec quant(codec, GetParam());
            const std::vector<std::vector<uint8_t>> inputs = make_inputs(quant, k);
            std::vector<double> sum(n, 0.0), norm(n / 32 + 1, 0.0);
            for (const std::vector<uint8_t> &input : inputs) {
                const std::vector<float> z = tw::decode_fp32(quant, input, n);
                std::vector<double> squares(n / 32 + 1, 0.0);
                for (size_t i = 0; i < n; i++) {
                    sum[i] += double(z[i]);
                    squares[i / 32] += double(z[i]) * double(z[i]);
                }
                for (size_t g = 0; g < squares.size(); g++) {
                    norm[g] += std::sqrt(squares[g]);
                }
            }
            const std::vector<float> got =
                tw::floats_of(TW_TYPE_FP32, reduce(quant, nullptr, TW_TYPE_FP32, 0.5f, inputs));
            for (size_t i = 0; i < n; i++) {
                ASSERT_LE(std::fabs(double(got[i]) - 0.5 * sum[i]), (14 + double(k)) * 0x1p-24 * norm[i / 32])
                    << codec;
            }
        }
    }
}

/* Rotated in, rotated out: nothing is rotated in between, so one input with the same codec goes through
 * unchanged but for its scale, which was rounded up. */
TEST_P(QuantCompose, ReduceEncodeKeepsTheRotation)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8:block=64,hadamard,scale=fp32", &codec), TW_OK);
    tw::Codec quant(codec, GetParam());
    const std::vector<std::vector<uint8_t>> inputs = make_inputs(quant, 1);
    const std::vector<uint8_t> out = reduce(quant, quant, TW_TYPE_FP32, 2.0f, inputs);
    for (size_t b = 0; b < tw_layout_block_count(&codec, n); b++) {
        const float before =
            tw_layout_scale_get(inputs[0].data() + tw_layout_scale_offset(&codec, b), codec.scale);
        const float after = tw_layout_scale_get(out.data() + tw_layout_scale_offset(&codec, b), codec.scale);
        ASSERT_LE(std::fabs(after - 2 * before), 0x1p-22f * before);
        for (size_t i = 0; i < tw_layout_block_elems(&codec, n, b); i++) {
            ASSERT_EQ(tw_layout_code_get(out.data() + tw_layout_codes_offset(&codec, b), 8, i),
                      tw_layout_code_get(inputs[0].data() + tw_layout_codes_offset(&codec, b), 8, i));
        }
    }
}

/* A sum of gradients that does not fit is infinite, not the largest finite value. */
TEST_P(QuantCompose, ReduceDecodeShowsOverflow)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8:block=32", &codec), TW_OK);
    tw::Codec quant(codec, GetParam());
    std::vector<uint8_t> big(n * 2);
    for (size_t i = 0; i < n; i++) {
        tw_float_store(TW_TYPE_FP16, big.data(), i, i % 2 ? 40000.0f : -40000.0f);
    }
    const std::vector<uint8_t> input = tw::encode(quant, TW_TYPE_FP16, big);
    const std::vector<float> sum =
        tw::floats_of(TW_TYPE_FP16, reduce(quant, nullptr, TW_TYPE_FP16, 1.0f, {input, input}));
    const std::vector<float> mean =
        tw::floats_of(TW_TYPE_FP16, reduce(quant, nullptr, TW_TYPE_FP16, 0.5f, {input, input}));
    for (size_t i = 0; i < n; i++) {
        ASSERT_EQ(sum[i], i % 2 ? INFINITY : -INFINITY);
        ASSERT_TRUE(std::isfinite(mean[i]));
    }
}

/* The codec rounds the largest number up, beyond the type. What was no number before it is rounded stays
 * none. */
TEST_P(QuantCompose, ReduceDecodeSaturatesIfAsked)
{
    for (const tw_quant_codec_t &codec : tw::sum_codecs({32, 160})) {
        if (codec.scale != TW_QUANT_SCALE_BF16 || codec.hadamard || codec.round != TW_QUANT_ROUND_NEAREST) {
            continue;
        }
        tw::Codec quant(codec, GetParam());
        for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16}) {
            const float max = tw_float_type_max(type);
            std::vector<uint8_t> largest(n * 2);
            for (size_t i = 0; i < n; i++) {
                bool is_nan = i / size_t(codec.block) == 1;
                tw_float_store(type, largest.data(), i, is_nan ? NAN : i % 2 ? max : -max);
            }
            const std::vector<uint8_t> input = tw::encode(quant, type, largest);
            const std::vector<float> open =
                tw::floats_of(type, reduce(quant, nullptr, type, 1.0f, {input}, 0));
            const std::vector<float> held =
                tw::floats_of(type, reduce(quant, nullptr, type, 1.0f, {input}, 1));
            for (size_t i = 0; i < n; i++) {
                if (i / size_t(codec.block) == 1) {
                    ASSERT_TRUE(std::isnan(held[i])) << codec << " " << i;
                } else {
                    ASSERT_EQ(open[i], i % 2 ? INFINITY : -INFINITY) << codec << " " << i;
                    ASSERT_EQ(held[i], i % 2 ? max : -max) << codec << " " << i;
                }
            }
        }
    }
}

/* NaN in one input is NaN in the sum, and counted by the output's context. */
TEST_P(QuantCompose, NonfiniteInputsSpread)
{
    for (const char *text : {"int8:block=64", "int4:block=64,hadamard"}) {
        tw_quant_codec_t codec;
        ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        tw::Codec in(codec, GetParam()), out(codec, GetParam());
        std::vector<std::vector<uint8_t>> inputs = make_inputs(in, 2);
        std::vector<uint8_t> bad = tw::make_data(TW_TYPE_BF16, Data::gauss, n, 30);
        tw_float_store(TW_TYPE_BF16, bad.data(), 100, NAN);
        inputs.push_back(tw::encode(in, TW_TYPE_BF16, bad));
        const std::vector<float> y = tw::decode_fp32(out, reduce(in, out, TW_TYPE_FP32, 1.0f, inputs), n);
        for (size_t i = 0; i < n; i++) {
            ASSERT_EQ(std::isnan(y[i]), i / 64 == 1) << i;
        }
        EXPECT_EQ(tw_quant_nonfinite_blocks(out), 1u);
        EXPECT_EQ(tw_quant_nonfinite_blocks(in), 1u);
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantCompose, testing::ValuesIn(tw::host_backends(true)),
                         [](const testing::TestParamInfo<std::string> &backend) { return backend.param; });

} // namespace
