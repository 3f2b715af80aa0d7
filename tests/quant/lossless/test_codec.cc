#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "quant/lossless/model.h"
#include "tests/common/fixture.h"
#include "tests/quant/lossless/lossless_data.h"
#include "tests/quant/lossless/wrong_messages.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using tw::Values;

constexpr size_t block = TW_LOSSLESS_BLOCK_ELEMS;
const size_t lengths[] = {0, 1, 31, 32, 33, 255, 256, 257, 5000, block - 1, block, block + 1, 2 * block + 77};
const tw_type_t types[] = {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32};

std::vector<std::string> backends()
{
    const char *names[8];
    return {names, names + tw_quant_lossless_backends(names, 8)};
}

/* A codec of a backend. */
class Codec
{
  public:
    explicit Codec(const std::string &backend, tw_type_t type = TW_TYPE_BF16) : type_(type)
    {
        EXPECT_EQ(tw_quant_lossless_create(backend.c_str(), &codec_), TW_OK);
        EXPECT_EQ(tw_quant_lossless_backend_name(codec_), backend);
    }
    ~Codec()
    {
        tw_quant_lossless_destroy(codec_);
    }
    Codec(const Codec &) = delete;
    Codec &operator=(const Codec &) = delete;

    Bytes encode(const std::vector<tw_quant_lossless_segment_t> &segments)
    {
        size_t n = 0, bytes = 0;
        for (const auto &segment : segments) {
            n += segment.n_elems;
        }
        const size_t bound = tw_quant_lossless_bound_bytes(type_, n);
        Bytes dst(bound + 4096, 0xee);
        EXPECT_EQ(tw_quant_lossless_encode(codec_, type_, segments.data(), segments.size(), dst.data(), bound,
                                           &bytes),
                  TW_OK);
        EXPECT_LE(bytes, bound);
        for (size_t i = bound; i < dst.size(); i++) {
            EXPECT_EQ(dst[i], 0xee) << "written behind the bound";
        }
        dst.resize(bytes);
        size_t said = 0;
        EXPECT_EQ(tw_quant_lossless_message_bytes(dst.data(), TW_QUANT_LOSSLESS_HEADER_BYTES, &said), TW_OK);
        EXPECT_EQ(said, bytes);
        return dst;
    }

    Bytes encode(const Bytes &values, size_t row_elems, uint64_t first_elem = 0)
    {
        return encode(
            {{values.data(), nullptr, values.size() / tw_type_bytes(type_), row_elems, first_elem}});
    }

    /* The message lies at the very end of its memory, so that a sanitizer sees what reads beyond it. */
    tw_status_t decode(const Bytes &message, size_t n, Bytes *values)
    {
        const Bytes exact_size(message);
        const size_t bytes = n * tw_type_bytes(type_);
        values->assign(bytes + 64, 0xee);
        const tw_quant_lossless_segment_t segment = {nullptr, values->data(), n, 0, 0};
        const tw_status_t status =
            tw_quant_lossless_decode(codec_, type_, &segment, 1, exact_size.data(), exact_size.size());
        for (size_t i = bytes; i < values->size(); i++) {
            EXPECT_EQ((*values)[i], 0xee) << "written behind the values";
        }
        values->resize(bytes);
        return status;
    }

    tw_status_t decode_fp32(const Bytes &message, bool add, std::vector<float> *acc)
    {
        const tw_quant_lossless_segment_t segment = {nullptr, acc->data(), acc->size(), 0, 0};
        const tw_quant_message_args_t args = {type_, &segment, 1, 0};
        return tw_lossless_decode(codec_, &args, add ? TW_QUANT_SINK_ADD_FP32 : TW_QUANT_SINK_STORE_FP32,
                                  message.data(), message.size());
    }

    tw_quant_lossless_t *get()
    {
        return codec_;
    }

  private:
    tw_quant_lossless_t *codec_ = nullptr;
    tw_type_t type_;
};

bool same(const std::vector<float> &a, const std::vector<float> &b)
{
    return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

double bits_an_element(const Bytes &message, size_t n)
{
    return 8.0 * double(message.size()) / double(n);
}

class LosslessCodec : public tw::Fixture
{
};

/* Every backend against the oracle, byte for byte, and every bit back; sums as those of the conversions. */
void round_trip(Values kind, tw_type_t type, size_t n, size_t columns)
{
    SCOPED_TRACE(name_of(kind) + ", " + tw_type_name(type) + ", " + std::to_string(n) +
                 " elements, rows of " + std::to_string(columns));
    const Bytes values = tw::make_values(kind, type, n, columns);
    const Bytes expected = Codec("ref", type).encode(values, columns);
    std::vector<float> wide(n), sums(n);
    for (size_t i = 0; i < n; i++) {
        sums[i] = i % 7 ? float(i) : -0.0f;
    }
    const std::vector<float> before = sums;
    tw_convert_to_fp32(type, values.data(), wide.data(), n);
    tw_convert_add_fp32(type, values.data(), sums.data(), n);
    for (const std::string &backend : backends()) {
        Codec codec(backend, type);
        ASSERT_EQ(codec.encode(values, columns), expected) << backend;
        Bytes got;
        ASSERT_EQ(codec.decode(expected, n, &got), TW_OK) << backend;
        ASSERT_EQ(got, values) << backend;
        std::vector<float> acc(n, 3.0f), added = before;
        ASSERT_EQ(codec.decode_fp32(expected, false, &acc), TW_OK) << backend;
        ASSERT_EQ(codec.decode_fp32(expected, true, &added), TW_OK) << backend;
        ASSERT_TRUE(same(acc, wide)) << backend;
        ASSERT_TRUE(same(added, sums)) << backend;
    }
}

TEST_F(LosslessCodec, EveryBitComesBackOnEveryBackend)
{
    for (Values kind : tw::all_values) {
        for (size_t n : lengths) {
            round_trip(kind, TW_TYPE_BF16, n, 100);
        }
    }
}

/* Blocks whose tails are coded, listed and random, in one message. */
TEST_F(LosslessCodec, TailsOfManyBlocks)
{
    round_trip(Values::patches, TW_TYPE_FP32, 3 * block + 77, 128);
    for (Values kind : {Values::few, Values::sums, Values::halves, Values::integers, Values::crowded}) {
        round_trip(kind, TW_TYPE_FP32, 2 * block + 77, 500);
    }
    const Bytes crowded = tw::make_values(Values::crowded, TW_TYPE_FP32, block, 500);
    EXPECT_EQ(Codec("ref", TW_TYPE_FP32).encode(crowded, 500)[3], TW_LOSSLESS_TAILED) << "as it is meant";
}

TEST_F(LosslessCodec, EveryTypeAndRow)
{
    for (Values kind : tw::all_values) {
        for (tw_type_t type : types) {
            for (size_t columns : {1, 3, 64, 129, 1000}) {
                round_trip(kind, type, 5003, columns);
            }
            round_trip(kind, type, block + 40, 128);
        }
    }
}

/* Rows of 100 of which every other one has magnitudes of many octaves: the elements that are coded together
 * are of several classes. */
TEST_F(LosslessCodec, ClassesChangeAnywhere)
{
    const size_t rows = 400, columns = 100;
    Bytes values(2 * rows * columns);
    uint32_t state = 1;
    for (size_t i = 0; i < rows * columns; i++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t octave = i / columns % 2 ? 100 + (state >> 27) : 120;
        const auto bits = uint16_t((state >> 8 & 0x8000) | octave << 7 | (state >> 13 & 0x7f));
        memcpy(&values[2 * i], &bits, 2);
    }
    const Bytes expected = Codec("ref").encode(values, columns);
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        EXPECT_EQ(codec.encode(values, columns), expected) << backend;
        EXPECT_GT(__builtin_popcount(codec.get()->classes), 1) << backend;
        Bytes got;
        ASSERT_EQ(codec.decode(expected, rows * columns, &got), TW_OK) << backend;
        EXPECT_EQ(got, values) << backend;
    }
}

TEST_F(LosslessCodec, CodesHaveTheirDensitiesLogarithms)
{
    for (uint32_t code = 0; code < 256; code++) {
        const auto byte = uint8_t(code);
        EXPECT_EQ(tw_lossless_code_log(byte), tw_lossless_log2(tw_lossless_density_of(byte) + 1)) << code;
    }
}

/* All 65,536 values there are. */
TEST_F(LosslessCodec, EveryValueOfSixteenBits)
{
    Bytes values(2 * 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        const auto bits = uint16_t(i * 40503);
        memcpy(&values[2 * i], &bits, 2);
    }
    for (const std::string &backend : backends()) {
        for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16}) {
            Codec codec(backend, type);
            Bytes got;
            ASSERT_EQ(codec.decode(codec.encode(values, 256), 65536, &got), TW_OK);
            EXPECT_EQ(got, values) << backend;
        }
    }
}

/* Segments of these lengths over one matrix, as senders and receivers cut it. */
std::vector<tw_quant_lossless_segment_t> cut(const std::vector<size_t> &sizes, const Bytes &src, Bytes &dst,
                                             size_t elem_bytes, size_t row_elems)
{
    std::vector<tw_quant_lossless_segment_t> segments;
    size_t at = 0;
    for (size_t n : sizes) {
        segments.push_back({src.data() + at * elem_bytes, dst.data() + at * elem_bytes, n, row_elems, at});
        at += n;
    }
    EXPECT_EQ(at * elem_bytes, src.size());
    return segments;
}

TEST_F(LosslessCodec, SegmentsAreCutAnywhereAtBothEnds)
{
    const size_t n = 2 * block + 500;
    for (tw_type_t type : types) {
        for (Values kind : {Values::gradient, Values::sparse}) {
            const size_t bytes = tw_type_bytes(type);
            const Bytes values = tw::make_values(kind, type, n, 96);
            Bytes none(values.size());
            const auto sent = cut({0, 1, 1280, 0, block - 1352, 5, block - 1, n - 2 * block + 67, 0}, values,
                                  none, bytes, 96);
            const Bytes expected = Codec("ref", type).encode(sent);
            for (const std::string &backend : backends()) {
                Codec codec(backend, type);
                EXPECT_EQ(codec.encode(sent), expected) << backend;
                Bytes got(values.size(), 0xee);
                const auto received = cut({block + 7, 3, 0, n - block - 10}, values, got, bytes, 0);
                ASSERT_EQ(tw_quant_lossless_decode(codec.get(), type, received.data(), received.size(),
                                                   expected.data(), expected.size()),
                          TW_OK);
                EXPECT_EQ(got, values) << backend;
            }
        }
    }
}

/* What a codec keeps of the message before does no harm to the next one. */
TEST_F(LosslessCodec, ManyMessagesByOneCodec)
{
    const size_t n = 5000;
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        for (Values kind : {Values::gradient, Values::mostly_zero, Values::weight, Values::gradient}) {
            const Bytes values = tw::make_values(kind, TW_TYPE_BF16, n, 100);
            const Bytes message = Codec(backend).encode(values, 100);
            EXPECT_EQ(codec.encode(values, 100), message) << backend << ", " << name_of(kind);
            Bytes got;
            ASSERT_EQ(codec.decode(message, n, &got), TW_OK) << backend << ", " << name_of(kind);
            EXPECT_EQ(got, values) << backend << ", " << name_of(kind);
        }
    }
}

/* Messages may lie anywhere. */
TEST_F(LosslessCodec, OddAddressesAreAsGood)
{
    const size_t n = block + 100;
    for (Values kind : {Values::gradient, Values::random}) {
        for (tw_type_t type : types) {
            const Bytes values = tw::make_values(kind, type, n, 128);
            Codec codec(backends()[0], type);
            Bytes message = codec.encode(values, 128);
            std::vector<float> wide(n), expected(n);
            tw_convert_to_fp32(type, values.data(), expected.data(), n);
            message.insert(message.begin(), 0);
            const tw_quant_lossless_segment_t segment = {nullptr, wide.data(), n, 0, 0};
            const tw_quant_message_args_t args = {type, &segment, 1, 0};
            ASSERT_EQ(tw_lossless_decode(codec.get(), &args, TW_QUANT_SINK_STORE_FP32, message.data() + 1,
                                         message.size() - 1),
                      TW_OK);
            EXPECT_TRUE(same(wide, expected));
        }
    }
}

/* ---- bits ---------------------------------------------------------------------------------------------- */

/* The rest of the bound is in Codec::encode: what is random goes plain. */
TEST_F(LosslessCodec, NothingCostsMoreThanPlain)
{
    for (tw_type_t type : types) {
        for (size_t n : lengths) {
            const Bytes values = tw::make_values(Values::random, type, n, 128);
            EXPECT_EQ(Codec("ref", type).encode(values, 128).size(),
                      values.size() + TW_QUANT_LOSSLESS_HEADER_BYTES);
        }
    }
    /* By turns: the random blocks are raw, the others pay for that. */
    const Bytes mixed = tw::make_values(Values::mixed, TW_TYPE_BF16, 4 * block, 128);
    const Bytes good = tw::make_values(Values::gradient, TW_TYPE_BF16, 4 * block, 128);
    const size_t half = Codec("ref").encode(good, 128).size() / 2;
    EXPECT_LT(Codec("ref").encode(mixed, 128).size(), 4 * block + half + half / 5);
}

/* A head that takes more than what the last block has room for: its 7 bits are not packed where they go. */
TEST_F(LosslessCodec, TheLastBlockWritesNothingBehindTheBound)
{
    for (size_t last : {200, 400, 600, 800, 1000}) {
        const size_t n = block + last;
        for (tw_type_t type : types) {
            const Bytes values = tw::make_values(Values::random, type, n, 64);
            std::vector<tw_quant_lossless_segment_t> segments;
            for (size_t at = 0; at < n;) { /* matrices, and what lies between them */
                const size_t size = std::min(n - at, segments.size() % 2 ? size_t(1) : size_t(1024));
                segments.push_back(
                    {&values[at * tw_type_bytes(type)], nullptr, size, segments.size() % 2 ? 0u : 64u, 0});
                at += size;
            }
            for (const std::string &backend : backends()) {
                EXPECT_EQ(Codec(backend, type).encode(segments).size(),
                          values.size() + TW_QUANT_LOSSLESS_HEADER_BYTES);
            }
        }
    }
}

/* Sizes that fit no memory have no bound that does. */
TEST_F(LosslessCodec, BoundsDoNotOverflow)
{
    for (tw_type_t type : types) {
        EXPECT_EQ(tw_quant_lossless_bound_bytes(type, size_t(1) << 62),
                  type == TW_TYPE_FP32 ? SIZE_MAX : (size_t(1) << 63) + 16);
        EXPECT_EQ(tw_quant_lossless_bound_bytes(type, SIZE_MAX), SIZE_MAX);
        EXPECT_EQ(tw_quant_lossless_bound_bytes(type, SIZE_MAX / tw_type_bytes(type)), SIZE_MAX);
        EXPECT_EQ(tw_quant_lossless_bound_bytes(type, 1000), 1000 * tw_type_bytes(type) + 16);
    }
}

/* A normal distribution of a known scale takes 10.2 bits in bf16. */
TEST_F(LosslessCodec, GradientsAndWeightsTakeWhatTheyShould)
{
    const size_t n = 1024 * 256;
    const Bytes gradient = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 256);
    const Bytes weight = tw::make_values(Values::weight, TW_TYPE_BF16, n, 256);
    const double with_rows = bits_an_element(Codec("ref").encode(gradient, 256), n);
    const double without = bits_an_element(Codec("ref").encode(gradient, 0), n);
    EXPECT_LT(with_rows, 10.6);
    EXPECT_GT(without, with_rows + 0.5) << "rows and columns are what it is about";
    EXPECT_LT(bits_an_element(Codec("ref").encode(weight, 256), n), 10.6);
    EXPECT_LT(bits_an_element(Codec("ref").encode(weight, 0), n), 10.6);
    const Bytes wide = tw::make_values(Values::gradient, TW_TYPE_FP32, n, 256);
    EXPECT_NEAR(bits_an_element(Codec("ref", TW_TYPE_FP32).encode(wide, 256), n), with_rows + 16, 0.1);
    const Bytes widened = tw::make_values(Values::widened, TW_TYPE_FP32, n, 256);
    const Bytes narrow = tw::make_values(Values::widened, TW_TYPE_BF16, n, 256);
    EXPECT_NEAR(bits_an_element(Codec("ref", TW_TYPE_FP32).encode(widened, 256), n),
                bits_an_element(Codec("ref").encode(narrow, 256), n), 0.002);
    const struct {
        Values kind;
        double bits; /* of a tail */
    } cases[] = {{Values::few, 0.1}, {Values::sums, 4.1}, {Values::halves, 3.03}, {Values::integers, 2.6}};
    for (const auto &c : cases) {
        Bytes values = tw::make_values(c.kind, TW_TYPE_FP32, n, 256);
        const double all = bits_an_element(Codec("ref", TW_TYPE_FP32).encode(values, 256), n);
        for (size_t i = 0; i < n; i++) {
            memset(&values[4 * i], 0, 2);
        }
        const double heads = bits_an_element(Codec("ref", TW_TYPE_FP32).encode(values, 256), n);
        EXPECT_LT(all - heads, c.bits) << name_of(c.kind);
        EXPECT_GT(all - heads, c.bits - 0.5) << name_of(c.kind);
    }
    const Bytes half = tw::make_values(Values::weight, TW_TYPE_FP16, n, 256);
    EXPECT_LT(bits_an_element(Codec("ref", TW_TYPE_FP16).encode(half, 256), n), 13.7);
}

/* A change of the encoder that makes these longer is to be meant. */
TEST_F(LosslessCodec, MessagesDoNotGrow)
{
    const struct {
        Values kind;
        size_t columns, bytes;
    } cases[] = {{Values::gradient, 64, 6724}, {Values::gradient, 129, 6748}, {Values::sparse, 64, 408},
                 {Values::sparse, 100, 468},   {Values::sparse, 129, 408},    {Values::outliers, 100, 6782}};
    for (const auto &c : cases) {
        const Bytes values = tw::make_values(c.kind, TW_TYPE_BF16, 5003, c.columns);
        EXPECT_LE(Codec("ref").encode(values, c.columns).size(), c.bytes)
            << name_of(c.kind) << " " << c.columns;
    }
}

/* Of fewer rows than the one before, some of them zeros. */
TEST_F(LosslessCodec, RowsOfTheMessageBeforeAreForgotten)
{
    Codec codec("ref");
    const Bytes many(2 * 64 * 100);
    (void)codec.encode(many, 100);
    for (size_t n_rows : {17, 20, 23}) {
        const Bytes values = tw::make_values(Values::sparse, TW_TYPE_BF16, n_rows * 100, 100);
        const Bytes expected = Codec("ref").encode(values, 100);
        (void)codec.encode(many, 100);
        EXPECT_EQ(codec.encode(values, 100), expected) << n_rows;
    }
}

/* Cut anywhere, in the middle of rows, and sent piece by piece. */
TEST_F(LosslessCodec, PiecesCostLittleMoreThanTheWhole)
{
    const size_t n = 512 * 1000, columns = 512;
    const Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, columns);
    Codec codec("ref");
    const size_t whole = codec.encode(values, columns).size();
    size_t parts = 0;
    for (size_t at = 0; at < n; at += 65000) {
        const size_t end = at + 65000 < n ? at + 65000 : n;
        const Bytes part(values.begin() + long(2 * at), values.begin() + long(2 * end));
        parts += codec.encode(part, columns, at).size();
    }
    EXPECT_LT(double(parts - whole) * 8 / double(n), 0.15);
}

TEST_F(LosslessCodec, ZerosCostNextToNothing)
{
    const size_t n = 512 * 1024;
    for (size_t row : {size_t(0), size_t(100), size_t(512)}) {
        EXPECT_LT(Codec("ref").encode(Bytes(2 * n), row).size(), n / 500) << row;
    }
    const Bytes sparse = tw::make_values(Values::sparse, TW_TYPE_BF16, n, 512);
    EXPECT_LT(Codec("ref").encode(sparse, 512).size(), 2 * n / 20 * 0.7 + 1000);
    /* A short message has a table of its own where that pays. */
    const Bytes mostly = tw::make_values(Values::mostly_zero, TW_TYPE_BF16, 1500, 512);
    EXPECT_LT(Codec("ref").encode(mostly, 512).size(), mostly.size() * 6 / 10);
    /* What is not all +0 is not a row of zeros. */
    Bytes signs(2 * n);
    signs[2 * 1000 + 1] = 0x80;
    signs[2 * 100000] = 1;
    Bytes got;
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        const Bytes message = codec.encode(signs, 512);
        EXPECT_LT(message.size(), n / 200);
        ASSERT_EQ(codec.decode(message, n, &got), TW_OK);
        EXPECT_EQ(got, signs);
    }
}

/* ---- errors -------------------------------------------------------------------------------------------- */

TEST_F(LosslessCodec, CallsAreChecked)
{
    Codec codec("ref");
    uint16_t values[4] = {};
    uint8_t message[100];
    size_t bytes = 0;
    tw_quant_lossless_segment_t segment = {values, values, 4, 0, 0};
    expect_log("no backend 'sse9'");
    tw_quant_lossless_t *none = nullptr;
    EXPECT_EQ(tw_quant_lossless_create("sse9", &none), TW_ERR_UNSUPPORTED);
    tw_quant_lossless_destroy(nullptr);
    expect_log("room for 23 bytes, must be for 24");
    EXPECT_EQ(tw_quant_lossless_encode(codec.get(), TW_TYPE_BF16, &segment, 1, message, 23, &bytes),
              TW_ERR_INVALID);
    expect_log("has no exponents");
    EXPECT_EQ(tw_quant_lossless_encode(codec.get(), TW_TYPE_BYTE, &segment, 1, message, 100, &bytes),
              TW_ERR_INVALID);
    expect_log("segment 0 has a NULL pointer");
    segment.src = nullptr;
    EXPECT_EQ(tw_quant_lossless_encode(codec.get(), TW_TYPE_BF16, &segment, 1, message, 100, &bytes),
              TW_ERR_INVALID);
    expect_log("a message of 3 bytes is shorter than its header");
    EXPECT_EQ(tw_quant_lossless_decode(codec.get(), TW_TYPE_BF16, &segment, 1, message, 3), TW_ERR_TRUNCATED);
    expect_log("is shorter than its header");
    EXPECT_EQ(tw_quant_lossless_message_bytes(message, 15, &bytes), TW_ERR_TRUNCATED);
}

class LosslessMessage : public LosslessCodec
{
  protected:
    static constexpr size_t n = 3000;
    Bytes message(Values kind)
    {
        return Codec("ref").encode(tw::make_values(kind, TW_TYPE_BF16, n, 100), 100);
    }
    tw_status_t decode(const Bytes &bytes, size_t elems = n, tw_type_t type = TW_TYPE_BF16)
    {
        Bytes got;
        return Codec("ref", type).decode(bytes, elems, &got);
    }
};

TEST_F(LosslessMessage, OthersElementsAndTypesAreMismatches)
{
    for (Values kind : {Values::gradient, Values::random}) {
        const Bytes good = message(kind);
        expect_log("the message has 3000 elements of type 1, the segments 3001 of 1");
        EXPECT_EQ(decode(good, n + 1), TW_ERR_MISMATCH);
        expect_log("the segments 3000 of 2");
        EXPECT_EQ(decode(good, n, TW_TYPE_FP16), TW_ERR_MISMATCH);
    }
}

TEST_F(LosslessMessage, EveryLengthButItsOwnIsRefused)
{
    allow_log("quant: lossless");
    for (Values kind : {Values::gradient, Values::random}) {
        const Bytes good = message(kind);
        for (size_t length = 0; length < good.size(); length++) {
            const Bytes part(good.begin(), good.begin() + long(length));
            ASSERT_EQ(decode(part), TW_ERR_TRUNCATED) << length;
        }
        Bytes longer = good;
        longer.push_back(0);
        EXPECT_EQ(decode(longer), TW_ERR_FORMAT);
    }
}

/* Checksums are over everything that a message has. */
TEST_F(LosslessMessage, EveryBitThatIsWrongIsNoticed)
{
    allow_log("quant: lossless");
    for (Values kind : {Values::gradient, Values::random, Values::sparse}) {
        const Bytes good = message(kind);
        Codec codec("ref");
        Bytes bad = good, got;
        for (size_t bit = 0; bit < 8 * good.size(); bit += bit < 8 * 100 ? 1 : 7) {
            bad[bit / 8] = uint8_t(bad[bit / 8] ^ 1 << bit % 8);
            ASSERT_NE(codec.decode(bad, n, &got), TW_OK) << "bit " << bit;
            bad[bit / 8] = good[bit / 8];
        }
        EXPECT_EQ(codec.decode(good, n, &got), TW_OK);
    }
}

/* Whatever no encoder writes, though checksums are right. */
TEST_F(LosslessMessage, EachThingThatIsWrongIsNoticed)
{
    allow_log("quant: lossless_decode");
    for (const tw::WrongMessage &message : tw::make_wrong_messages()) {
        for (const std::string &backend : backends()) {
            Bytes got;
            EXPECT_EQ(Codec(backend, message.type).decode(message.bytes, message.n_elems, &got),
                      message.is_right ? TW_OK : TW_ERR_FORMAT)
                << message.what << ", " << backend;
        }
    }
}

/* An older reader knows two forms, and names what it does not know. */
TEST_F(LosslessMessage, UnknownFormsAreNamed)
{
    Bytes bytes =
        Codec("ref", TW_TYPE_FP32).encode(tw::make_values(Values::widened, TW_TYPE_FP32, n, 100), 100);
    EXPECT_EQ(bytes[3], TW_LOSSLESS_TAILED);
    bytes[3] = TW_LOSSLESS_TAILED + 1;
    expect_log("not a message of version 2 (bytes d6 02 00 03");
    EXPECT_EQ(decode(bytes, n, TW_TYPE_FP32), TW_ERR_FORMAT);
}

/* What could make a decoder's memory large beside the elements. */
TEST_F(LosslessMessage, NoMorePiecesThanElementsAreWorth)
{
    const std::vector<tw::ZeroPiece> most(6, {5, 100, false});
    std::vector<tw::ZeroPiece> more = most;
    more[5].n_rows = 3;
    more.push_back({2, 100, false});
    EXPECT_EQ(tw_lossless_pieces_max(n), most.size());
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        Bytes got;
        EXPECT_EQ(codec.decode(tw::make_zero_message(TW_TYPE_BF16, most), n, &got), TW_OK) << backend;
        EXPECT_EQ(got, Bytes(2 * n)) << backend;
        expect_log("bad scales or tables");
        EXPECT_EQ(codec.decode(tw::make_zero_message(TW_TYPE_BF16, more), n, &got), TW_ERR_FORMAT) << backend;
    }
}

TEST_F(LosslessMessage, ColumnsOfFewRowsHaveNoScales)
{
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        Bytes got;
        EXPECT_EQ(
            codec.decode(tw::make_zero_message(TW_TYPE_BF16, {{16, 100, true}, {14, 100, false}}), n, &got),
            TW_OK)
            << backend;
        EXPECT_EQ(got, Bytes(2 * n)) << backend;
        expect_log("bad scales or tables");
        EXPECT_EQ(
            codec.decode(tw::make_zero_message(TW_TYPE_BF16, {{15, 100, true}, {15, 100, false}}), n, &got),
            TW_ERR_FORMAT)
            << backend;
    }
}

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

TEST(LosslessModel, LogarithmsOfAnything)
{
    for (int whole = 0; whole < 64; whole++) {
        for (uint64_t part : {0, 1, 3, 5, 7}) {
            const uint64_t x = (uint64_t(1) << whole) + (whole > 3 ? part << (whole - 3) : 0);
            const double expected = 256 * std::log2(double(x));
            EXPECT_LE(double(tw_lossless_log2(x)), expected + 1e-9) << x;
            EXPECT_GT(double(tw_lossless_log2(x)), expected - 1.01) << x;
        }
    }
}

} // namespace
