/* The lossless codec on streams against the host's: messages byte for byte, values bit for bit, verdicts.
 * Linked with an emulated device, or with a GPU. */
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/lossless/lossless.h"
#include "tests/quant/cuda/stream_world.h"
#include "tests/quant/lossless/lossless_data.h"
#include "tests/quant/lossless/wrong_messages.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using tw::DeviceBuffer;
using tw::Values;

constexpr size_t block = TW_LOSSLESS_BLOCK_ELEMS;
const tw_type_t types[] = {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32};

/* A part of a message: n elements of a tensor with rows of this length, from one of them on. */
struct Part {
    size_t n, row_elems, first_elem;
};
using Parts = std::vector<Part>;

size_t total(const Parts &parts)
{
    size_t n = 0;
    for (const Part &part : parts) {
        n += part.n;
    }
    return n;
}

/* Segments over memory in which the parts follow each other. */
std::vector<tw_quant_lossless_segment_t> segments_of(const Parts &parts, size_t elem_bytes, uint8_t *memory)
{
    std::vector<tw_quant_lossless_segment_t> segments;
    for (const Part &part : parts) {
        segments.push_back({memory, memory, part.n, part.row_elems, part.first_elem});
        memory += part.n * elem_bytes;
    }
    return segments;
}

class LosslessCuda : public tw::StreamFixture
{
  protected:
    void SetUp() override
    {
        StreamFixture::SetUp();
        if (!IsSkipped()) {
            ASSERT_EQ(tw::stream_world().create(&codec_), TW_OK);
            ASSERT_EQ(tw_quant_lossless_create(nullptr, &host_), TW_OK);
        }
    }
    void TearDown() override
    {
        tw_quant_lossless_stream_destroy(codec_);
        tw_quant_lossless_destroy(host_);
        StreamFixture::TearDown();
    }

    Bytes encode_on_host(tw_type_t type, const Bytes &values, const Parts &parts)
    {
        Bytes plain = values, message(tw_quant_lossless_bound_bytes(type, total(parts)));
        size_t bytes = 0;
        const auto segments = segments_of(parts, tw_type_bytes(type), plain.data());
        EXPECT_EQ(tw_quant_lossless_encode(host_, type, segments.data(), segments.size(), message.data(),
                                           message.size(), &bytes),
                  TW_OK);
        message.resize(bytes);
        return message;
    }

    /* In device memory, which the values begin `shift` bytes into. */
    Bytes encode(tw_type_t type, const Bytes &values, const Parts &parts, size_t shift = 0)
    {
        DeviceBuffer plain(values, shift), message(tw_quant_lossless_bound_bytes(type, total(parts)));
        const auto segments = segments_of(parts, tw_type_bytes(type), plain.data());
        DeviceBuffer workspace(
            tw_quant_lossless_encode_workspace_bytes(codec_, type, segments.data(), segments.size()));
        DeviceBuffer outcome(sizeof(tw_quant_outcome_t));
        const tw_quant_lossless_args_t args = args_of(type, workspace, outcome);
        EXPECT_EQ(tw_quant_lossless_stream_encode(codec_, &args, segments.data(), segments.size(),
                                                  message.data(), message.bytes()),
                  TW_OK);
        Bytes written = message.get();
        EXPECT_EQ(said(outcome), TW_OK);
        EXPECT_LE(said_->bytes, written.size());
        written.resize(std::min<size_t>(said_->bytes, written.size()));
        return written;
    }

    struct Decoded {
        tw_status_t status;
        Bytes values;
    };

    /* The message lies at the end of its memory, unless some bytes that are not its own follow. */
    Decoded decode(tw_type_t type, const Bytes &message, const Parts &parts,
                   tw_quant_sink_t sink = TW_QUANT_SINK_STORE, const Bytes &before = {}, size_t behind = 0)
    {
        const size_t elem_bytes = sink == TW_QUANT_SINK_STORE ? tw_type_bytes(type) : 4;
        Bytes longer = message;
        longer.resize(message.size() + behind, 0x5a);
        DeviceBuffer src(longer),
            plain(before.empty() ? Bytes(total(parts) * elem_bytes, 0xee) : before, elem_bytes);
        const auto segments = segments_of(parts, elem_bytes, plain.data());
        DeviceBuffer workspace(
            tw_quant_lossless_decode_workspace_bytes(codec_, type, total(parts), segments.size()));
        DeviceBuffer outcome(sizeof(tw_quant_outcome_t));
        const tw_quant_lossless_args_t args = args_of(type, workspace, outcome);
        EXPECT_EQ(tw_quant_lossless_stream_decode(codec_, &args, sink, segments.data(), segments.size(),
                                                  {src.data(), longer.size(), behind != 0}),
                  TW_OK);
        Decoded decoded = {said(outcome), plain.get()};
        EXPECT_EQ(said_->bytes, decoded.status == TW_OK ? message.size() : 0);
        return decoded;
    }

    tw_status_t decode_on_host(tw_type_t type, const Bytes &message, const Parts &parts)
    {
        Bytes values(total(parts) * tw_type_bytes(type));
        const auto segments = segments_of(parts, tw_type_bytes(type), values.data());
        return tw_quant_lossless_decode(host_, type, segments.data(), segments.size(), message.data(),
                                        message.size());
    }

    void round_trip(tw_type_t type, const Bytes &values, const Parts &parts)
    {
        const Bytes expected = encode_on_host(type, values, parts),
                    got = encode(type, values, parts, 2 * tw_type_bytes(type));
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); i++) {
            ASSERT_EQ(got[i], expected[i]) << "byte " << i << " of " << got.size();
        }
        const Decoded decoded = decode(type, expected, parts);
        ASSERT_EQ(decoded.status, TW_OK);
        ASSERT_TRUE(decoded.values == values);
    }

    void round_trip(Values kind, tw_type_t type, const Parts &parts)
    {
        const size_t columns = parts[0].row_elems ? parts[0].row_elems : 100;
        SCOPED_TRACE(tw::name_of(kind) + ", " + tw_type_name(type) + ", " + std::to_string(total(parts)) +
                     " elements in " + std::to_string(parts.size()) + " parts, rows of " +
                     std::to_string(parts[0].row_elems));
        round_trip(type, tw::make_values(kind, type, total(parts), columns), parts);
    }

    tw_quant_lossless_args_t args_of(tw_type_t type, const DeviceBuffer &workspace,
                                     const DeviceBuffer &outcome)
    {
        return {type,
                {nullptr, workspace.data(), workspace.bytes(),
                 reinterpret_cast<tw_quant_outcome_t *>(outcome.data()), said_}};
    }

    /* What stands on the device is what the host was told. */
    tw_status_t said(const DeviceBuffer &outcome)
    {
        EXPECT_EQ(memcmp(outcome.get().data(), said_, sizeof(*said_)), 0);
        return tw_status_t(said_->status);
    }

    tw_quant_lossless_stream_t *codec_ = nullptr;
    tw_quant_lossless_t *host_ = nullptr;
};

TEST_F(LosslessCuda, EveryKindOfValue)
{
    for (Values kind : tw::all_values) {
        for (size_t n : {0, 1, 31, 33, 255, 256, 257, 5000}) {
            round_trip(kind, TW_TYPE_BF16, {{n, 100, 0}});
            round_trip(kind, TW_TYPE_BF16, {{n, 0, 0}});
        }
    }
}

TEST_F(LosslessCuda, EveryTypeAndRow)
{
    for (tw_type_t type : types) {
        for (Values kind : tw::all_values) {
            for (size_t columns : {3, 64, 129}) {
                round_trip(kind, type, {{5003, columns, 0}});
            }
        }
    }
}

TEST_F(LosslessCuda, SeveralBlocks)
{
    for (Values kind : {Values::gradient, Values::mixed, Values::sparse, Values::patches, Values::crowded}) {
        for (tw_type_t type : types) {
            round_trip(kind, type, {{2 * block + 77, 512, 0}});
        }
    }
    for (size_t n : {block - 1, block, block + 1}) {
        round_trip(Values::gradient, TW_TYPE_BF16, {{n, 100, 0}});
    }
}

/* Tensors of many shapes in one message, cut anywhere, some with nothing in them. */
TEST_F(LosslessCuda, SegmentsAndCuts)
{
    const Parts many = {{3000, 100, 50}, {7, 0, 0},     {0, 64, 0},     {129, 0, 0},  {5000, 129, 128},
                        {64, 64, 0},     {6400, 1, 17}, {4096, 256, 3}, {1, 1000, 0}, {20000, 1000, 999}};
    for (tw_type_t type : types) {
        for (Values kind : {Values::gradient, Values::sparse, Values::special, Values::zero}) {
            round_trip(kind, type, many);
        }
    }
    Parts long_list;
    for (size_t i = 0; i < 700; i++) {
        long_list.push_back({i * 37 % 90 + (i % 50 == 0 ? 1100 : 0), i % 3 ? 64 : size_t(0), i});
    }
    round_trip(Values::gradient, TW_TYPE_BF16, long_list);
}

/* The receiver cuts the same elements differently. */
TEST_F(LosslessCuda, TheReceiverHasOtherSegments)
{
    const size_t n = block + 3000;
    const Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 100);
    const Bytes message = encode(TW_TYPE_BF16, values, {{n, 100, 0}});
    const Decoded decoded =
        decode(TW_TYPE_BF16, message, {{1, 0, 0}, {60000, 0, 0}, {0, 0, 0}, {n - 60001, 0, 0}});
    EXPECT_EQ(decoded.status, TW_OK);
    EXPECT_TRUE(decoded.values == values);
}

/* Rows of a matrix that is wide, rows of zeros at blocks' edges, scales that are far from the others. */
TEST_F(LosslessCuda, RowsAndColumns)
{
    for (size_t columns : {33, 700, 3000}) {
        round_trip(Values::gradient, TW_TYPE_BF16, {{columns * 40 + 5, columns, 0}});
        round_trip(Values::sparse, TW_TYPE_FP32, {{columns * 40 + 5, columns, columns - 1}});
    }
    const size_t n = 3 * block;
    Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 256);
    std::fill(values.begin() + long(2 * (block - 300)), values.begin() + long(2 * (block + 300)), uint8_t(0));
    for (size_t r = 0; r < n / 256; r += 9) {
        for (size_t i = 0; i < 256; i++) {
            const float far = (r % 2 ? 1e-30f : 1e30f) * float(i + 1);
            tw_convert_from_fp32(TW_TYPE_BF16, &far, 1.0f, &values[2 * (r * 256 + i)], 1);
        }
    }
    round_trip(TW_TYPE_BF16, values, {{n, 256, 0}});
}

TEST_F(LosslessCuda, SumsAreThoseOfTheHost)
{
    const size_t n = block + 1000;
    for (tw_type_t type : types) {
        for (Values kind : {Values::gradient, Values::sparse, Values::random}) {
            Bytes values = tw::make_values(kind, type, n, 100);
            std::vector<float> wide(n), sums(n);
            /* Which NaN a sum becomes is the device's to say. */
            tw_convert_to_fp32(type, values.data(), wide.data(), n);
            for (size_t i = 0; i < n; i++) {
                sums[i] = i % 7 ? float(i) : -0.0f;
                if (std::isnan(wide[i]) || std::isinf(wide[i])) {
                    memset(&values[i * tw_type_bytes(type)], 0, tw_type_bytes(type));
                }
            }
            Bytes before(4 * n);
            memcpy(before.data(), sums.data(), 4 * n);
            tw_convert_to_fp32(type, values.data(), wide.data(), n);
            tw_convert_add_fp32(type, values.data(), sums.data(), n);
            const Bytes message = encode_on_host(type, values, {{n, 100, 0}});
            const Decoded stored = decode(type, message, {{n, 0, 0}}, TW_QUANT_SINK_STORE_FP32);
            const Decoded added = decode(type, message, {{n, 0, 0}}, TW_QUANT_SINK_ADD_FP32, before);
            EXPECT_EQ(stored.status, TW_OK);
            EXPECT_EQ(added.status, TW_OK);
            EXPECT_EQ(memcmp(stored.values.data(), wide.data(), 4 * n), 0) << tw_type_name(type);
            EXPECT_EQ(memcmp(added.values.data(), sums.data(), 4 * n), 0) << tw_type_name(type);
        }
    }
}

/* ---- messages that lie --------------------------------------------------------------------------------- */

class LosslessCudaMessage : public LosslessCuda
{
  protected:
    static constexpr size_t n = 3000;

    void SetUp() override
    {
        LosslessCuda::SetUp();
        allow_log("quant: lossless"); /* the host's decoder says what it thinks */
    }

    Bytes message(Values kind, tw_type_t type = TW_TYPE_BF16)
    {
        return encode_on_host(type, tw::make_values(kind, type, n, 100), {{n, 100, 0}});
    }

    void expect_same_verdict(const Bytes &bytes, tw_type_t type = TW_TYPE_BF16)
    {
        ASSERT_EQ(decode(type, bytes, {{n, 0, 0}}).status, decode_on_host(type, bytes, {{n, 0, 0}}));
    }

    static uint32_t checksum(const uint8_t *words, size_t bytes)
    {
        return tw_lossless_ref.check(words, bytes / 2, 0);
    }

    /* Make the header's checksum right, and those of blocks, as far as the message goes: what is behind them
     * is reached. */
    void make_right(Bytes &bytes, tw_type_t type)
    {
        const size_t header = TW_QUANT_LOSSLESS_HEADER_BYTES;
        uint32_t head_bytes = uint32_t(bytes.size() - header), check, length = uint32_t(bytes.size());
        size_t taken = 0;
        memcpy(&bytes[4], &length, 4);
        host_->tails_are.tailed = bytes[3] == TW_LOSSLESS_TAILED;
        if (bytes[3] != TW_LOSSLESS_PLAIN) {
            memcpy(&head_bytes, &bytes[header], 4);
            if (head_bytes > bytes.size() - header || head_bytes % 2) {
                return;
            }
            const tw_status_t status = tw_lossless_head_read(host_, &bytes[header], head_bytes, n, &taken);
            tw_entropy_entry_t entry; /* all that is before tails */
            size_t at = header + head_bytes;
            if (status == TW_OK && taken + sizeof(entry) <= head_bytes && at < bytes.size()) {
                memcpy(&entry, &bytes[header + taken], sizeof(entry));
                entry.check = checksum(&bytes[at], bytes.size() - at);
                memcpy(&bytes[header + taken], &entry, sizeof(entry));
            }
        }
        check = checksum(&bytes[header], head_bytes);
        memcpy(&bytes[12], &check, 4);
        (void)type;
    }
};

TEST_F(LosslessCudaMessage, EveryLengthButItsOwnIsRefused)
{
    for (Values kind : {Values::gradient, Values::random}) {
        const Bytes good = message(kind);
        for (size_t length = 0; length < good.size(); length += length < 200 ? 1 : 97) {
            ASSERT_NO_FATAL_FAILURE(expect_same_verdict(Bytes(good.begin(), good.begin() + long(length))))
                << length;
        }
        Bytes longer = good;
        longer.push_back(0);
        expect_same_verdict(longer);
        /* Who knows the bound alone has the message's word for its length. */
        const Decoded decoded = decode(TW_TYPE_BF16, good, {{n, 0, 0}}, TW_QUANT_SINK_STORE, {}, 100);
        EXPECT_EQ(decoded.status, TW_OK);
        EXPECT_TRUE(decoded.values == tw::make_values(kind, TW_TYPE_BF16, n, 100));
    }
}

TEST_F(LosslessCudaMessage, OthersElementsAndTypesAreMismatches)
{
    const Bytes good = message(Values::gradient);
    EXPECT_EQ(decode(TW_TYPE_BF16, good, {{n + 1, 0, 0}}).status, TW_ERR_MISMATCH);
    EXPECT_EQ(decode(TW_TYPE_FP16, good, {{n, 0, 0}}).status, TW_ERR_MISMATCH);
}

/* Pieces and columns that a head may not have, and the last ones that it may. */
TEST_F(LosslessCudaMessage, PiecesAreAsOnTheHost)
{
    const std::vector<tw::ZeroPiece> good[] = {std::vector<tw::ZeroPiece>(6, {5, 100, false}),
                                               {{16, 100, true}, {14, 100, false}}};
    const std::vector<tw::ZeroPiece> bad[] = {{{5, 100, false},
                                               {5, 100, false},
                                               {5, 100, false},
                                               {5, 100, false},
                                               {5, 100, false},
                                               {3, 100, false},
                                               {2, 100, false}},
                                              {{15, 100, true}, {15, 100, false}}};
    for (const auto &pieces : good) {
        const Decoded decoded =
            decode(TW_TYPE_BF16, tw::make_zero_message(TW_TYPE_BF16, pieces), {{n, 0, 0}});
        EXPECT_EQ(decoded.status, TW_OK);
        EXPECT_TRUE(decoded.values == Bytes(2 * n));
    }
    for (const auto &pieces : bad) {
        const Bytes message = tw::make_zero_message(TW_TYPE_BF16, pieces);
        EXPECT_EQ(decode(TW_TYPE_BF16, message, {{n, 0, 0}}).status, TW_ERR_FORMAT);
        expect_same_verdict(message);
    }
}

TEST_F(LosslessCudaMessage, EachThingThatIsWrongIsNoticed)
{
    for (const tw::WrongMessage &message : tw::make_wrong_messages()) {
        EXPECT_EQ(decode(message.type, message.bytes, {{message.n_elems, 0, 0}}).status,
                  message.is_right ? TW_OK : TW_ERR_FORMAT)
            << message.what;
    }
}

/* Bits that are wrong, and bytes that are anything, in messages whose checksums are then made right or
 * not. */
TEST_F(LosslessCudaMessage, SpoiltOnesAreJudgedAsOnTheHost)
{
    std::mt19937 random(3);
    const size_t times = tw::stream_world().slow ? 60 : 500;
    size_t refused = 0;
    for (Values kind : {Values::gradient, Values::sparse, Values::special, Values::few, Values::sums}) {
        for (tw_type_t type : types) {
            const Bytes good = message(kind, type);
            uint32_t head_bytes = 0;
            memcpy(&head_bytes, &good[TW_QUANT_LOSSLESS_HEADER_BYTES], 4);
            for (size_t turn = 0; turn < times; turn++) {
                Bytes bad = good;
                /* The head is short, and where most can go wrong. */
                const size_t part = turn % 4 ? std::min<size_t>(head_bytes + 16, bad.size()) : bad.size();
                for (size_t k = 0; k < 1 + random() % 3; k++) {
                    uint8_t &byte = bad[16 + random() % (part - 16)];
                    byte = uint8_t(random() % 2 ? byte ^ 1u << random() % 8 : random());
                }
                if (turn % 8) {
                    make_right(bad, type);
                }
                ASSERT_NO_FATAL_FAILURE(expect_same_verdict(bad, type)) << tw::name_of(kind) << " " << turn;
                refused += said_->status != TW_OK;
            }
        }
    }
    EXPECT_GT(refused, times);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

TEST_F(LosslessCuda, CallsAreChecked)
{
    const size_t n = 1000;
    DeviceBuffer plain(2 * n), message(tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n)), outcome(8);
    const auto segments = segments_of({{n, 100, 0}}, 2, plain.data());
    DeviceBuffer workspace(
        tw_quant_lossless_encode_workspace_bytes(codec_, TW_TYPE_BF16, segments.data(), 1));
    tw_quant_lossless_args_t args = args_of(TW_TYPE_BF16, workspace, outcome);
    const auto encode_into = [&](uint8_t *dst, size_t bytes) {
        return tw_quant_lossless_stream_encode(codec_, &args, segments.data(), 1, dst, bytes);
    };
    expect_log("room for 2015 bytes, must be for 2016");
    EXPECT_EQ(encode_into(message.data(), 2015), TW_ERR_INVALID);
    expect_log("must be aligned to 16");
    EXPECT_EQ(encode_into(message.data() + 8, 2016), TW_ERR_INVALID);
    expect_log("bytes of workspace, aligned to 256");
    args.call.workspace_bytes--;
    EXPECT_EQ(encode_into(message.data(), 2016), TW_ERR_INVALID);
    expect_log("has no exponents");
    args.type = TW_TYPE_BYTE;
    EXPECT_EQ(encode_into(message.data(), 2016), TW_ERR_INVALID);
    expect_log("no message");
    args.type = TW_TYPE_BF16;
    EXPECT_EQ(tw_quant_lossless_stream_decode(codec_, &args, TW_QUANT_SINK_STORE, segments.data(), 1,
                                              {nullptr, 16, 0}),
              TW_ERR_INVALID);
    const tw_quant_lossless_segment_t huge = {plain.data(), nullptr, TW_LOSSLESS_ELEMS_MAX + 1, 0, 0};
    EXPECT_EQ(tw_quant_lossless_encode_workspace_bytes(codec_, TW_TYPE_BF16, &huge, 1), SIZE_MAX);
    EXPECT_EQ(tw_quant_lossless_decode_workspace_bytes(codec_, TW_TYPE_BF16, TW_LOSSLESS_ELEMS_MAX + 1, 1),
              SIZE_MAX);
}

} // namespace
