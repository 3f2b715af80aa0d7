#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/ecdq/ecdq.h"
#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/quant/lossless/lossless_data.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;
using tw::Values;

constexpr size_t block = TW_LOSSLESS_BLOCK_ELEMS;
const size_t lengths[] = {0, 1, 33, 255, 256, 5000, block - 1, block + 1, 2 * block + 77};
const tw_type_t types[] = {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32};

std::vector<std::string> backends()
{
    tw_quant_codec_t codec = {};
    codec.kind = TW_QUANT_ECDQ;
    const char *names[8];
    return {names, names + tw_quant_messages_backends(&codec, names, 8)};
}

tw_quant_codec_t parsed(const std::string &text)
{
    tw_quant_codec_t codec;
    EXPECT_EQ(tw_quant_codec_parse(text.c_str(), &codec), TW_OK) << text;
    return codec;
}

/* A codec of a backend. */
class Codec
{
  public:
    explicit Codec(const std::string &backend, tw_type_t type, const std::string &text = "ecdq") : type_(type)
    {
        const tw_quant_codec_t codec = parsed(text);
        EXPECT_EQ(tw_quant_messages_create(&codec, backend.c_str(), &codec_), TW_OK);
        EXPECT_EQ(tw_quant_messages_backend_name(codec_), backend);
    }
    ~Codec()
    {
        tw_quant_messages_destroy(codec_);
    }
    Codec(const Codec &) = delete;
    Codec &operator=(const Codec &) = delete;

    Bytes encode(const Bytes &values, size_t row_elems, uint64_t seed = 1)
    {
        const size_t n = values.size() / tw_type_bytes(type_);
        const tw_quant_message_segment_t segment = {values.data(), nullptr, n, row_elems, 0};
        const tw_quant_message_args_t args = {type_, &segment, 1, seed};
        const tw_quant_codec_t codec = *tw_quant_messages_codec(codec_);
        const size_t bound = tw_quant_bound_bytes(&codec, type_, n);
        Bytes dst(bound + 4096, 0xee);
        size_t bytes = 0;
        EXPECT_EQ(tw_quant_messages_encode(codec_, &args, dst.data(), bound, &bytes), TW_OK);
        EXPECT_LE(bytes, bound);
        for (size_t i = bound; i < dst.size(); i++) {
            EXPECT_EQ(dst[i], 0xee) << "written behind the bound";
        }
        dst.resize(bytes);
        return dst;
    }

    /* The message lies at the very end of its memory, so that a sanitizer sees what reads beyond it; the
     * elements are cut in two. */
    tw_status_t decode(const Bytes &message, size_t n, tw_quant_sink_t sink, Bytes *values)
    {
        const Bytes exact_size(message);
        const size_t elem_bytes = sink == TW_QUANT_SINK_STORE ? tw_type_bytes(type_) : sizeof(float);
        values->resize(n * elem_bytes + 64, 0xee);
        const tw_quant_message_segment_t segments[] = {
            {nullptr, values->data(), n / 3, 0, 0},
            {nullptr, values->data() + n / 3 * elem_bytes, n - n / 3, 0, 0}};
        const tw_quant_message_args_t args = {type_, segments, 2, 0};
        const tw_status_t status =
            tw_quant_messages_decode(codec_, &args, sink, exact_size.data(), exact_size.size());
        for (size_t i = n * elem_bytes; i < values->size(); i++) {
            EXPECT_EQ((*values)[i], 0xee) << "written behind the values";
        }
        values->resize(n * elem_bytes);
        return status;
    }

    Floats decoded(const Bytes &message, size_t n)
    {
        Bytes bytes;
        EXPECT_EQ(decode(message, n, TW_QUANT_SINK_STORE_FP32, &bytes), TW_OK);
        Floats values(n);
        if (n > 0) {
            memcpy(values.data(), bytes.data(), bytes.size());
        }
        return values;
    }

  private:
    tw_quant_messages_t *codec_ = nullptr;
    tw_type_t type_;
};

Floats to_fp32(const Bytes &values, tw_type_t type)
{
    Floats floats(values.size() / tw_type_bytes(type));
    tw_convert_to_fp32(type, values.data(), floats.data(), floats.size());
    return floats;
}

double bits_an_element(const Bytes &message, size_t n)
{
    return 8.0 * double(message.size()) / double(n);
}

class Ecdq : public tw::Fixture
{
};

/* Every backend against the oracle, byte for byte, there and back, and in all three sinks. */
void round_trip(Values kind, tw_type_t type, size_t n, size_t columns)
{
    const Bytes values = tw::make_values(kind, type, n, std::max<size_t>(columns, 1));
    Codec oracle("ref", type);
    const Bytes message = oracle.encode(values, columns);
    const Floats exact = to_fp32(values, type), decoded = oracle.decoded(message, n);
    Bytes stored, sums(4 * n), expected(values.size());
    tw_convert_from_fp32(type, decoded.data(), 1.0f, expected.data(), n);
    for (size_t i = 0; i < n; i++) {
        if (!std::isfinite(exact[i])) {
            ASSERT_EQ(memcmp(&exact[i], &decoded[i], 4), 0) << i << ": " << exact[i] << ", " << decoded[i];
        }
    }
    for (const std::string &backend : backends()) {
        Codec codec(backend, type);
        ASSERT_EQ(codec.encode(values, columns), message) << backend;
        const Floats again = codec.decoded(message, n);
        ASSERT_TRUE(n == 0 || memcmp(again.data(), decoded.data(), 4 * n) == 0) << backend;
        ASSERT_EQ(codec.decode(message, n, TW_QUANT_SINK_STORE, &stored), TW_OK);
        const Floats kept = to_fp32(stored, type), rounded = to_fp32(expected, type);
        for (size_t i = 0; i < n; i++) {
            ASSERT_TRUE(kept[i] == rounded[i] || (std::isnan(exact[i]) && std::isnan(kept[i])))
                << backend << i;
        }
        for (size_t i = 0; i < n; i++) {
            const float one = 1.0f;
            memcpy(sums.data() + 4 * i, &one, 4);
        }
        ASSERT_EQ(codec.decode(message, n, TW_QUANT_SINK_ADD_FP32, &sums), TW_OK);
        for (size_t i = 0; i < n; i++) {
            float sum;
            memcpy(&sum, sums.data() + 4 * i, 4);
            ASSERT_TRUE(sum == 1.0f + decoded[i] || std::isnan(decoded[i])) << i;
        }
    }
}

TEST_F(Ecdq, EveryBackendHasTheOraclesBytes)
{
    for (Values kind : tw::all_values) {
        for (tw_type_t type : types) {
            SCOPED_TRACE(tw::name_of(kind) + " of type " + std::to_string(type));
            round_trip(kind, type, 2 * block + 77, 300);
        }
    }
    for (size_t n : lengths) {
        for (size_t columns : {0, 7, 48, 4096}) {
            SCOPED_TRACE(std::to_string(n) + " elements, rows of " + std::to_string(columns));
            round_trip(Values::gradient, TW_TYPE_BF16, n, columns);
            round_trip(Values::special, TW_TYPE_FP32, n, columns);
        }
    }
}

/* A Gaussian of 512 rows and columns, each with a scale of its own. */
Bytes gaussian(tw_type_t type, size_t n)
{
    return tw::make_values(Values::gradient, type, n, 512);
}

/* Entropies of a Gaussian under a dithered step of its standard deviation times 1/4, 1/2, 1, 2 are 4.05,
 * 3.05, 2.1 and 1.4 bits; 0.15 are allowed for scales, tables, and a standard deviation that is only about
 * right. */
TEST_F(Ecdq, TakesTheEntropysBits)
{
    const size_t n = 512 * 512;
    for (auto [text, bits] : {std::pair("ecdq:step=0.25", 4.05), std::pair("ecdq:step=0.5", 3.05),
                              std::pair("ecdq", 2.1), std::pair("ecdq:step=2", 1.4)}) {
        Codec codec(backends()[0], TW_TYPE_BF16, text);
        const double taken = bits_an_element(codec.encode(gaussian(TW_TYPE_BF16, n), 512), n);
        EXPECT_NEAR(taken, bits, 0.15) << text;
        const tw_quant_codec_t description = parsed(text);
        EXPECT_NEAR(taken, tw_quant_usual_bits(&description, TW_TYPE_BF16), 0.15) << text;
    }
}

/* Each element's mean over many messages is the element, and its error is never more than half a step. */
TEST_F(Ecdq, ErrorsHaveAMeanOfZeroAndABound)
{
    const size_t n = 64 * 512, rounds = 256;
    const Bytes values = gaussian(TW_TYPE_FP32, n);
    const Floats exact = to_fp32(values, TW_TYPE_FP32);
    Codec codec(backends()[0], TW_TYPE_FP32);
    std::vector<double> sum(n), squares(n), largest(n);
    for (uint64_t seed = 0; seed < rounds; seed++) {
        const Floats decoded = codec.decoded(codec.encode(values, 512, seed), n);
        for (size_t i = 0; i < n; i++) {
            const double error = double(decoded[i]) - exact[i];
            sum[i] += error;
            squares[i] += error * error;
            largest[i] = std::max(largest[i], std::fabs(error));
        }
    }
    double worst = 0, all = 0, variance = 0;
    for (size_t i = 0; i < n; i++) {
        const double deviation = std::sqrt(squares[i] / rounds);
        worst = std::max(worst, std::fabs(sum[i]) / rounds / (deviation / std::sqrt(double(rounds))));
        all += sum[i] / deviation;
        variance += squares[i] / rounds;
        /* uniform over a step: the largest of many is sqrt(3) standard deviations, never much more */
        ASSERT_LT(largest[i], 2.0 * deviation) << i;
    }
    EXPECT_LT(worst, 5.0); /* of 32,768 normal numbers the largest is about 4.2 */
    EXPECT_LT(std::fabs(all) / std::sqrt(double(n) * rounds), 4.0);
    double power = 0;
    for (float x : exact) {
        power += double(x) * x;
    }
    EXPECT_NEAR(variance / power, 1.0 / 12, 0.02); /* of a step that is the standard deviation */
}

/* A feature 100 times the others, in a column: the others' gradients come through. */
TEST_F(Ecdq, AnOutliersNeighboursAreNotRoundedAway)
{
    const size_t rows = 256, columns = 128, n = rows * columns;
    Floats values(n);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; i++) {
        values[i] = normal(random) * (i % columns ? 1.0f : 100.0f);
    }
    Bytes bytes(4 * n);
    memcpy(bytes.data(), values.data(), bytes.size());
    Codec codec(backends()[0], TW_TYPE_FP32);
    const Floats decoded = codec.decoded(codec.encode(bytes, columns), n);
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % columns) {
            error += std::pow(double(decoded[i]) - values[i], 2);
            power += std::pow(double(values[i]), 2);
        }
    }
    EXPECT_LT(error / power, 0.13);
}

TEST_F(Ecdq, ZerosTakeNothing)
{
    const size_t n = 512 * 512;
    for (tw_type_t type : types) {
        Codec codec(backends()[0], type);
        const Bytes values(n * tw_type_bytes(type));
        const Bytes message = codec.encode(values, 512);
        EXPECT_LT(message.size(), 200u);
        EXPECT_EQ(codec.decoded(message, n), Floats(n));
    }
}

/* The same seed gives the same message, another one another, and the step stands in the message. */
TEST_F(Ecdq, AMessageStandsForItself)
{
    const size_t n = 64 * 512;
    const Bytes values = gaussian(TW_TYPE_BF16, n);
    Codec fine(backends()[0], TW_TYPE_BF16, "ecdq:step=0.25"),
        coarse(backends()[0], TW_TYPE_BF16, "ecdq:step=4");
    const Bytes message = fine.encode(values, 512, 7);
    EXPECT_EQ(fine.encode(values, 512, 7), message);
    EXPECT_NE(fine.encode(values, 512, 8), message);
    EXPECT_EQ(coarse.decoded(message, n), fine.decoded(message, n));
}

/* What is not a whole message of an encoder is an error, and nothing outside is read or written. */
TEST_F(Ecdq, RefusesWhatNoEncoderWrites)
{
    const size_t n = 4096 + 77;
    allow_log("ecdq_decode: ");
    for (const std::string &backend : backends()) {
        Codec codec(backend, TW_TYPE_BF16);
        const Bytes message = codec.encode(gaussian(TW_TYPE_BF16, n), 128);
        Bytes values;
        for (size_t bytes = 0; bytes < message.size(); bytes += bytes < 64 ? 1 : 37) {
            EXPECT_NE(codec.decode(Bytes(message.begin(), message.begin() + long(bytes)), n,
                                   TW_QUANT_SINK_STORE, &values),
                      TW_OK)
                << bytes;
        }
        for (size_t at = 0; at < message.size(); at++) {
            Bytes wrong = message;
            wrong[at] ^= uint8_t(1u << at % 8);
            EXPECT_NE(codec.decode(wrong, n, TW_QUANT_SINK_STORE, &values), TW_OK) << at;
        }
        Bytes longer = message;
        longer.push_back(0);
        EXPECT_EQ(codec.decode(longer, n, TW_QUANT_SINK_STORE, &values), TW_ERR_FORMAT);
        EXPECT_EQ(codec.decode(message, n + 1, TW_QUANT_SINK_STORE, &values), TW_ERR_MISMATCH);
    }
}

/* A checksum of words as encoders write it. */
uint32_t check_of(const Bytes &message, size_t from, size_t to)
{
    uint32_t check = 0;
    for (size_t i = from; i + 1 < to; i += 2) {
        check += tw_entropy_check((i - from) / 2, uint16_t(message[i] | message[i + 1] << 8));
    }
    return check;
}

/* Any bytes under right checksums: decoders must hold out without them. A message of one block. */
TEST_F(Ecdq, HoldsOutWithoutChecksums)
{
    const size_t n = 4096 + 77, header = sizeof(tw_lossless_header_t);
    Codec writer(backends()[0], TW_TYPE_FP32);
    Bytes values = gaussian(TW_TYPE_FP32, n);
    const float huge[] = {1e30f, -INFINITY, 1e20f};
    memcpy(values.data() + 4000, huge, sizeof(huge)); /* which are listed */
    const Bytes message = writer.encode(values, 128);
    uint32_t head_bytes;
    memcpy(&head_bytes, message.data() + header, 4);
    std::mt19937 random(5);
    allow_log("ecdq_decode: ");
    allow_log("lossless_decode: bad scales or tables");
    for (const std::string &backend : backends()) {
        Codec codec(backend, TW_TYPE_FP32);
        random.seed(5);
        size_t refused = 0;
        for (int round = 0; round < 4000; round++) {
            Bytes wrong = message, decoded;
            for (uint32_t k = 0; k <= random() % 3; k++) {
                const size_t from = header + 4, at = from + random() % (wrong.size() - from);
                wrong[at] = uint8_t(random());
            }
            const uint32_t block_check = check_of(wrong, header + head_bytes, wrong.size());
            memcpy(wrong.data() + header + head_bytes - 4, &block_check, 4);
            const uint32_t head_check = check_of(wrong, header, header + head_bytes);
            memcpy(wrong.data() + offsetof(tw_lossless_header_t, check), &head_check, 4);
            refused += codec.decode(wrong, n, TW_QUANT_SINK_STORE, &decoded) != TW_OK;
        }
        EXPECT_GT(refused, 3000u) << backend;
    }
}

TEST_F(Ecdq, ItsTextHasAStep)
{
    char text[64];
    for (const char *step : {"0.25", "0.4375", "0.5", "1", "1.25", "1.75", "3.5", "4"}) {
        const std::string whole = std::string("ecdq:step=") + step;
        const tw_quant_codec_t codec = parsed(whole);
        EXPECT_EQ(tw_quant_codec_format(&codec, text, sizeof(text)), whole);
        EXPECT_EQ(tw_quant_loses(&codec), TW_QUANT_LOSES_UNBIASED);
    }
    EXPECT_EQ(parsed("ecdq").step, 0);
    tw_quant_codec_t codec;
    allow_log("quant: codec ");
    for (const char *wrong : {"ecdq:step=0.2", "ecdq:step=5", "ecdq:step=1.1", "ecdq:step=", "ecdq:step=-1",
                              "ecdq:block=64", "ecdq:hadamard", "int4:step=1", "lossless:step=1"}) {
        EXPECT_EQ(tw_quant_codec_parse(wrong, &codec), TW_ERR_INVALID) << wrong;
    }
}

} // namespace
