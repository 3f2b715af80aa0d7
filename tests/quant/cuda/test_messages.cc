/* Codecs of messages on streams against the host's: messages byte for byte, values bit for bit, verdicts.
 * Linked with an emulated device, or with a GPU. */
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "quant/ecdq/ecdq.h"
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
std::vector<tw_quant_message_segment_t> segments_of(const Parts &parts, size_t elem_bytes, uint8_t *memory)
{
    std::vector<tw_quant_message_segment_t> segments;
    for (const Part &part : parts) {
        segments.push_back({memory, memory, part.n, part.row_elems, part.first_elem});
        memory += part.n * elem_bytes;
    }
    return segments;
}

class MessagesCuda : public tw::StreamFixture, public ::testing::WithParamInterface<const char *>
{
  protected:
    void SetUp() override
    {
        StreamFixture::SetUp();
        ASSERT_EQ(tw_quant_codec_parse(GetParam(), &is_), TW_OK);
        if (!IsSkipped()) {
            ASSERT_EQ(tw::stream_world().create(&is_, &codec_), TW_OK);
            ASSERT_EQ(tw_quant_messages_create(&is_, nullptr, &host_), TW_OK);
        }
    }
    void TearDown() override
    {
        tw_quant_messages_stream_destroy(codec_);
        tw_quant_messages_destroy(host_);
        StreamFixture::TearDown();
    }

    size_t bound(tw_type_t type, size_t n) const
    {
        return tw_quant_bound_bytes(&is_, type, n);
    }

    Bytes encode_on_host(tw_type_t type, const Bytes &values, const Parts &parts)
    {
        Bytes plain = values, message(bound(type, total(parts)));
        size_t bytes = 0;
        const auto segments = segments_of(parts, tw_type_bytes(type), plain.data());
        const tw_quant_message_args_t args = {type, segments.data(), segments.size(), seed};
        EXPECT_EQ(tw_quant_messages_encode(host_, &args, message.data(), message.size(), &bytes), TW_OK);
        message.resize(bytes);
        return message;
    }

    /* In device memory, which the values begin `shift` bytes into. */
    Bytes encode(tw_type_t type, const Bytes &values, const Parts &parts, size_t shift = 0)
    {
        DeviceBuffer plain(values, shift), message(bound(type, total(parts)));
        const auto segments = segments_of(parts, tw_type_bytes(type), plain.data());
        const tw_quant_message_args_t args = {type, segments.data(), segments.size(), seed};
        DeviceBuffer workspace(tw_quant_messages_encode_workspace_bytes(codec_, &args));
        DeviceBuffer outcome(sizeof(tw_quant_outcome_t));
        const tw_quant_stream_args_t call = call_of(workspace, outcome);
        EXPECT_EQ(tw_quant_messages_stream_encode(codec_, &call, &args, message.data(), message.bytes()),
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
            tw_quant_messages_decode_workspace_bytes(codec_, type, total(parts), segments.size()));
        DeviceBuffer outcome(sizeof(tw_quant_outcome_t));
        const tw_quant_message_args_t args = {type, segments.data(), segments.size(), 0};
        const tw_quant_stream_args_t call = call_of(workspace, outcome);
        EXPECT_EQ(tw_quant_messages_stream_decode(codec_, &call, &args, sink,
                                                  {src.data(), longer.size(), behind != 0}),
                  TW_OK);
        Decoded decoded = {said(outcome), plain.get()};
        EXPECT_EQ(said_->bytes, decoded.status == TW_OK ? message.size() : 0);
        return decoded;
    }

    Decoded decode_on_host(tw_type_t type, const Bytes &message, const Parts &parts,
                           tw_quant_sink_t sink = TW_QUANT_SINK_STORE, const Bytes &before = {})
    {
        const size_t elem_bytes = sink == TW_QUANT_SINK_STORE ? tw_type_bytes(type) : 4;
        Bytes values = before;
        values.resize(total(parts) * elem_bytes);
        const auto segments = segments_of(parts, elem_bytes, values.data());
        const tw_quant_message_args_t args = {type, segments.data(), segments.size(), 0};
        return {tw_quant_messages_decode(host_, &args, sink, message.data(), message.size()), values};
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
        ASSERT_TRUE(decoded.values ==
                    (is_.kind == TW_QUANT_LOSSLESS ? values : decode_on_host(type, expected, parts).values));
    }

    void round_trip(Values kind, tw_type_t type, const Parts &parts)
    {
        const size_t columns = parts[0].row_elems ? parts[0].row_elems : 100;
        SCOPED_TRACE(tw::name_of(kind) + ", " + tw_type_name(type) + ", " + std::to_string(total(parts)) +
                     " elements in " + std::to_string(parts.size()) + " parts, rows of " +
                     std::to_string(parts[0].row_elems));
        round_trip(type, tw::make_values(kind, type, total(parts), columns), parts);
    }

    tw_quant_stream_args_t call_of(const DeviceBuffer &workspace, const DeviceBuffer &outcome)
    {
        return {nullptr, workspace.data(), workspace.bytes(),
                reinterpret_cast<tw_quant_outcome_t *>(outcome.data()), said_};
    }

    /* What stands on the device is what the host was told. */
    tw_status_t said(const DeviceBuffer &outcome)
    {
        EXPECT_EQ(memcmp(outcome.get().data(), said_, sizeof(*said_)), 0);
        return tw_status_t(said_->status);
    }

    /* Of a sample one of n cases, another one for each `which`. */
    static bool is_taken(size_t which, size_t n, size_t i)
    {
        return !tw::stream_world().sampled || which % n == i;
    }

    static constexpr uint64_t seed = 0x123456789abcdef0; /* of what rounds at random */
    tw_quant_codec_t is_ = {};
    tw_quant_messages_stream_t *codec_ = nullptr;
    tw_quant_messages_t *host_ = nullptr;
};

TEST_P(MessagesCuda, EveryKindOfValue)
{
    for (Values kind : tw::all_values) {
        for (size_t n : {0, 1, 31, 33, 255, 256, 257, 5000}) {
            if (is_taken(size_t(kind), 2, 0) || n < 5000) {
                round_trip(kind, TW_TYPE_BF16, {{n, 100, 0}});
            }
            if (is_taken(size_t(kind), 2, 1) || n < 5000) {
                round_trip(kind, TW_TYPE_BF16, {{n, 0, 0}});
            }
        }
    }
}

TEST_P(MessagesCuda, EveryTypeAndRow)
{
    for (tw_type_t type : types) {
        for (Values kind : tw::all_values) {
            const size_t columns[] = {3, 64, 129};
            for (size_t i = 0; i < 3; i++) {
                if (is_taken(size_t(type) + size_t(kind), 3, i)) {
                    round_trip(kind, type, {{5003, columns[i], 0}});
                }
            }
        }
    }
}

TEST_P(MessagesCuda, SeveralBlocks)
{
    const size_t blocks = tw::stream_world().sampled ? 1 : 2;
    for (Values kind : {Values::gradient, Values::mixed, Values::sparse, Values::patches, Values::crowded}) {
        for (tw_type_t type : types) {
            if (is_taken(size_t(type) + size_t(kind), 3, 0) || kind == Values::gradient) {
                round_trip(kind, type, {{(kind == Values::gradient ? 2 : blocks) * block + 77, 512, 0}});
            }
        }
    }
    for (size_t n : {block - 1, block, block + 1}) {
        round_trip(Values::gradient, TW_TYPE_BF16, {{n, 100, 0}});
    }
}

/* Tensors of many shapes in one message, cut anywhere, some with nothing in them. */
TEST_P(MessagesCuda, SegmentsAndCuts)
{
    const Parts many = {{3000, 100, 50}, {7, 0, 0},     {0, 64, 0},     {129, 0, 0},  {5000, 129, 128},
                        {64, 64, 0},     {6400, 1, 17}, {4096, 256, 3}, {1, 1000, 0}, {20000, 1000, 999}};
    for (tw_type_t type : types) {
        for (Values kind : {Values::gradient, Values::sparse, Values::special, Values::zero}) {
            if (is_taken(size_t(kind), 3, size_t(type) % 3) || type == TW_TYPE_BF16) {
                round_trip(kind, type, many);
            }
        }
    }
    Parts long_list;
    for (size_t i = 0; i < 700; i++) {
        long_list.push_back({i * 37 % 90 + (i % 50 == 0 ? 1100 : 0), i % 3 ? 64 : size_t(0), i});
    }
    round_trip(Values::gradient, TW_TYPE_BF16, long_list);
}

/* The receiver cuts the same elements differently. */
TEST_P(MessagesCuda, TheReceiverHasOtherSegments)
{
    const size_t n = block + 3000;
    const Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 100);
    const Bytes message = encode(TW_TYPE_BF16, values, {{n, 100, 0}});
    const Decoded decoded =
        decode(TW_TYPE_BF16, message, {{1, 0, 0}, {60000, 0, 0}, {0, 0, 0}, {n - 60001, 0, 0}});
    EXPECT_EQ(decoded.status, TW_OK);
    EXPECT_TRUE(decoded.values == decode_on_host(TW_TYPE_BF16, message, {{n, 0, 0}}).values);
}

/* Rows of a matrix that is wide, rows of zeros at blocks' edges, scales that are far from the others. */
TEST_P(MessagesCuda, RowsAndColumns)
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

TEST_P(MessagesCuda, SumsAreThoseOfTheHost)
{
    const size_t n = block + 1000;
    for (tw_type_t type : types) {
        for (Values kind : {Values::gradient, Values::sparse, Values::random, Values::special}) {
            const Bytes values = tw::make_values(kind, type, n, 100);
            const Bytes message = encode_on_host(type, values, {{n, 100, 0}});
            Bytes before(4 * n);
            for (size_t i = 0; i < n; i++) {
                const float sum = i % 7 ? float(i) : -0.0f;
                memcpy(&before[4 * i], &sum, 4);
            }
            for (tw_quant_sink_t sink : {TW_QUANT_SINK_STORE_FP32, TW_QUANT_SINK_ADD_FP32}) {
                const Decoded expected = decode_on_host(type, message, {{n, 0, 0}}, sink, before),
                              got = decode(type, message, {{n, 0, 0}}, sink, before);
                EXPECT_EQ(got.status, TW_OK);
                EXPECT_TRUE(got.values == expected.values) << tw_type_name(type) << " " << sink;
            }
        }
    }
}

/* The seed decides about the dither, and stands in the message, as the step does. */
TEST_P(MessagesCuda, AMessageStandsForItself)
{
    const size_t n = 5003;
    const Bytes values = tw::make_values(Values::gradient, TW_TYPE_BF16, n, 100);
    const Parts parts = {{n, 100, 0}};
    const Bytes message = encode(TW_TYPE_BF16, values, parts);
    tw_quant_codec_t other = {};
    ASSERT_EQ(tw_quant_codec_parse("ecdq:step=2", &other), TW_OK);
    if (is_.kind == TW_QUANT_ECDQ) {
        tw_quant_messages_stream_destroy(codec_);
        ASSERT_EQ(tw::stream_world().create(&other, &codec_), TW_OK);
    }
    EXPECT_TRUE(decode(TW_TYPE_BF16, message, parts).values ==
                decode_on_host(TW_TYPE_BF16, message, parts).values);
}

/* ---- messages that lie --------------------------------------------------------------------------------- */

class WrongMessagesCuda : public MessagesCuda
{
  protected:
    static constexpr size_t n = 3000;

    void SetUp() override
    {
        MessagesCuda::SetUp();
        ASSERT_EQ(tw_quant_lossless_create("ref", &scales_), TW_OK);
        /* the host's decoder says what it thinks */
        allow_log("quant: lossless");
        allow_log("quant: ecdq");
    }
    void TearDown() override
    {
        tw_quant_lossless_destroy(scales_);
        MessagesCuda::TearDown();
    }

    Bytes message(Values kind, tw_type_t type = TW_TYPE_BF16)
    {
        return encode_on_host(type, tw::make_values(kind, type, n, 100), {{n, 100, 0}});
    }

    void expect_same_verdict(const Bytes &bytes, tw_type_t type = TW_TYPE_BF16)
    {
        ASSERT_EQ(decode(type, bytes, {{n, 0, 0}}).status, decode_on_host(type, bytes, {{n, 0, 0}}).status);
    }

    static uint32_t checksum(const uint8_t *words, size_t bytes)
    {
        return tw_lossless_ref.check(words, bytes / 2, 0);
    }

    /* Make the header's checksum right, and those of blocks, as far as the message goes: what is behind them
     * is reached. */
    void make_right(Bytes &bytes)
    {
        const size_t header = TW_QUANT_LOSSLESS_HEADER_BYTES;
        const bool ecdq = is_.kind == TW_QUANT_ECDQ;
        const size_t at_head = header + (ecdq ? TW_ECDQ_HEAD_BYTES : 0);
        uint32_t head_bytes = uint32_t(bytes.size() - header), check, length = uint32_t(bytes.size());
        size_t taken = 0;
        memcpy(&bytes[4], &length, 4);
        scales_->tails_are.tailed = !ecdq && bytes[3] == TW_LOSSLESS_TAILED;
        if (bytes[3] != TW_LOSSLESS_PLAIN) {
            memcpy(&head_bytes, &bytes[header], 4);
            if (head_bytes > bytes.size() - header || head_bytes % 2 || header + head_bytes < at_head) {
                return;
            }
            const size_t rest = header + head_bytes - at_head;
            const tw_status_t status = tw_lossless_head_read(scales_, &bytes[at_head], rest, n, &taken);
            tw_entropy_entry_t entry; /* all that is before tails */
            size_t at = header + head_bytes;
            if (status == TW_OK && taken + sizeof(entry) <= rest && at < bytes.size()) {
                memcpy(&entry, &bytes[at_head + taken], sizeof(entry));
                entry.check = checksum(&bytes[at], bytes.size() - at);
                memcpy(&bytes[at_head + taken], &entry, sizeof(entry));
            }
        }
        check = checksum(&bytes[header], head_bytes);
        memcpy(&bytes[12], &check, 4);
    }

    tw_quant_lossless_t *scales_ = nullptr; /* reads heads */
};

TEST_P(WrongMessagesCuda, EveryLengthButItsOwnIsRefused)
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
        EXPECT_TRUE(decoded.values == decode_on_host(TW_TYPE_BF16, good, {{n, 0, 0}}).values);
    }
}

TEST_P(WrongMessagesCuda, OthersElementsAndTypesAreMismatches)
{
    const Bytes good = message(Values::gradient);
    EXPECT_EQ(decode(TW_TYPE_BF16, good, {{n + 1, 0, 0}}).status, TW_ERR_MISMATCH);
    EXPECT_EQ(decode(TW_TYPE_FP16, good, {{n, 0, 0}}).status, TW_ERR_MISMATCH);
}

/* Bits that are wrong, and bytes that are anything, in messages whose checksums are then made right or
 * not. */
TEST_P(WrongMessagesCuda, SpoiltOnesAreJudgedAsOnTheHost)
{
    std::mt19937 random(3);
    const size_t times = tw::stream_world().slow ? 60 : 500;
    size_t refused = 0;
    for (Values kind :
         {Values::gradient, Values::sparse, Values::special, Values::few, Values::sums, Values::outliers}) {
        for (tw_type_t type : types) {
            const Bytes good = message(kind, type);
            uint32_t head_bytes = 0;
            memcpy(&head_bytes, &good[TW_QUANT_LOSSLESS_HEADER_BYTES], 4);
            head_bytes = std::min<uint32_t>(head_bytes, 2000); /* of a plain message, too */
            for (size_t turn = 0; turn < times; turn++) {
                Bytes bad = good;
                /* The head is short, and where most can go wrong; blocks of ecdq have tables and lists. */
                const size_t part = turn % (is_.kind == TW_QUANT_ECDQ ? 2 : 4)
                                        ? std::min<size_t>(head_bytes + 16, bad.size())
                                        : bad.size();
                for (size_t k = 0; k < 1 + random() % 3; k++) {
                    uint8_t &byte = bad[16 + random() % (part - 16)];
                    byte = uint8_t(random() % 2 ? byte ^ 1u << random() % 8 : random());
                }
                if (turn % 8) {
                    make_right(bad);
                }
                ASSERT_NO_FATAL_FAILURE(expect_same_verdict(bad, type)) << tw::name_of(kind) << " " << turn;
                refused += said_->status != TW_OK;
            }
        }
    }
    EXPECT_GT(refused, times);
}

class WrongLosslessCuda : public WrongMessagesCuda
{
};

/* Pieces and columns that a head may not have, and the last ones that it may. */
TEST_P(WrongLosslessCuda, PiecesAreAsOnTheHost)
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

TEST_P(WrongLosslessCuda, EachThingThatIsWrongIsNoticed)
{
    for (const tw::WrongMessage &message : tw::make_wrong_messages()) {
        EXPECT_EQ(decode(message.type, message.bytes, {{message.n_elems, 0, 0}}).status,
                  message.is_right ? TW_OK : TW_ERR_FORMAT)
            << message.what;
    }
}

class WrongEcdqCuda : public WrongMessagesCuda
{
};

/* Tables of a block that no encoder writes, under right checksums. */
TEST_P(WrongEcdqCuda, TablesAreAsOnTheHost)
{
    const Bytes good = message(Values::gradient);
    uint32_t head_bytes = 0;
    memcpy(&head_bytes, &good[TW_QUANT_LOSSLESS_HEADER_BYTES], 4);
    const size_t block_at = TW_QUANT_LOSSLESS_HEADER_BYTES + head_bytes, table = block_at + 2;
    const uint8_t classes = good[block_at];
    ASSERT_FALSE(classes & 0x80);
    size_t end = table;
    for (int c = 0; c < 8; c++) {
        end += classes >> c & 1 ? 2 + 2 * size_t(good[end + 1]) : 0;
    }
    const auto expect = [&](const char *what, const std::function<void(Bytes &)> &change) {
        Bytes bad = good;
        change(bad);
        make_right(bad);
        EXPECT_EQ(decode(TW_TYPE_BF16, bad, {{n, 0, 0}}).status, TW_ERR_FORMAT) << what;
        expect_same_verdict(bad);
    };
    expect("sum above 1024", [&](Bytes &bad) { bad[table + 3] = 4; });
    expect("nothing at an edge", [&](Bytes &bad) {
        bad.insert(bad.begin() + long(table + 2 + 2 * size_t(bad[table + 1])), 2, uint8_t(0));
        bad[table + 1]++;
    });
    expect("symbols behind the last", [&](Bytes &bad) { bad[table] = 31; });
    expect("a table that no element has", [&](Bytes &bad) {
        bad[block_at] |= 0x80;
        bad.insert(bad.begin() + long(end), 2, uint8_t(0));
    });
    expect("an odd mask", [&](Bytes &bad) { bad[block_at + 1] = 1; });
}

/* ---- calls --------------------------------------------------------------------------------------------- */

TEST_P(MessagesCuda, CallsAreChecked)
{
    const size_t n = 1000;
    DeviceBuffer plain(2 * n), message(bound(TW_TYPE_BF16, n)), outcome(8);
    const auto segments = segments_of({{n, 100, 0}}, 2, plain.data());
    tw_quant_message_args_t args = {TW_TYPE_BF16, segments.data(), 1, 0};
    DeviceBuffer workspace(tw_quant_messages_encode_workspace_bytes(codec_, &args));
    tw_quant_stream_args_t call = call_of(workspace, outcome);
    const auto encode_into = [&](uint8_t *dst, size_t bytes) {
        return tw_quant_messages_stream_encode(codec_, &call, &args, dst, bytes);
    };
    expect_log("room for 2015 bytes, must be for 2016");
    EXPECT_EQ(encode_into(message.data(), 2015), TW_ERR_INVALID);
    expect_log("must be aligned to 16");
    EXPECT_EQ(encode_into(message.data() + 8, 2016), TW_ERR_INVALID);
    expect_log("bytes of workspace, aligned to 256");
    call.workspace_bytes--;
    EXPECT_EQ(encode_into(message.data(), 2016), TW_ERR_INVALID);
    expect_log("has no exponents");
    args.type = TW_TYPE_BYTE;
    EXPECT_EQ(encode_into(message.data(), 2016), TW_ERR_INVALID);
    expect_log("no message");
    args.type = TW_TYPE_BF16;
    EXPECT_EQ(tw_quant_messages_stream_decode(codec_, &call, &args, TW_QUANT_SINK_STORE, {nullptr, 16, 0}),
              TW_ERR_INVALID);
    const tw_quant_message_segment_t huge = {plain.data(), nullptr, TW_LOSSLESS_ELEMS_MAX + 1, 0, 0};
    args.segments = &huge;
    EXPECT_EQ(tw_quant_messages_encode_workspace_bytes(codec_, &args), SIZE_MAX);
    EXPECT_EQ(tw_quant_messages_decode_workspace_bytes(codec_, TW_TYPE_BF16, TW_LOSSLESS_ELEMS_MAX + 1, 1),
              SIZE_MAX);
    expect_log("codec int8 has no messages on streams");
    tw_quant_messages_stream_t *none = nullptr;
    EXPECT_EQ(tw_quant_codec_parse("int8", &is_), TW_OK);
    EXPECT_EQ(tw::stream_world().create(&is_, &none), TW_ERR_INVALID);
}

const auto name_of_codec = [](const ::testing::TestParamInfo<const char *> &info) {
    return std::string(info.param, strcspn(info.param, ":")) + (strchr(info.param, ':') ? "Half" : "");
};
INSTANTIATE_TEST_SUITE_P(Codec, MessagesCuda, ::testing::Values("lossless", "ecdq", "ecdq:step=0.5"),
                         name_of_codec);
INSTANTIATE_TEST_SUITE_P(Codec, WrongMessagesCuda, ::testing::Values("lossless", "ecdq"), name_of_codec);
INSTANTIATE_TEST_SUITE_P(Codec, WrongEcdqCuda, ::testing::Values("ecdq"), name_of_codec);
INSTANTIATE_TEST_SUITE_P(Codec, WrongLosslessCuda, ::testing::Values("lossless"), name_of_codec);

} // namespace
