/* The lossless delta on streams against the host's: messages byte for byte, values and states bit for bit,
 * verdicts. Linked with an emulated device, or with a GPU. */
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "quant/delta/delta.h"
#include "tests/quant/cuda/stream_world.h"
#include "tests/quant/delta/delta_data.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using Values = std::vector<uint16_t>;
using tw::Change;
using tw::DeviceBuffer;

constexpr size_t block = TW_DELTA_BLOCK_ELEMS;
using Cuts = std::vector<size_t>; /* elements of each segment */

Bytes bytes_of(const Values &values)
{
    Bytes bytes(2 * values.size());
    if (!values.empty()) {
        memcpy(bytes.data(), values.data(), bytes.size());
    }
    return bytes;
}

/* Runs of so many elements in the opposite order: so segments lie in memory, that nobody reads one's elements
 * behind another. */
Bytes turned(const Bytes &bytes, Cuts cuts, size_t elem_bytes, bool back = false)
{
    Bytes result;
    if (back) {
        std::reverse(cuts.begin(), cuts.end());
    }
    size_t end = bytes.size();
    for (auto n = cuts.rbegin(); n != cuts.rend(); n++) {
        const size_t begin = end - std::min(end, *n * elem_bytes); /* without states there is nothing */
        result.insert(result.end(), bytes.begin() + long(begin), bytes.begin() + long(end));
        end = begin;
    }
    return result;
}

/* Segments of memory in which the last one comes first. */
std::vector<tw_quant_delta_segment_t> segments_of(const Cuts &cuts, uint8_t *base, uint8_t *values,
                                                  uint8_t *states)
{
    std::vector<tw_quant_delta_segment_t> segments;
    size_t at = std::accumulate(cuts.begin(), cuts.end(), size_t(0));
    for (size_t n : cuts) {
        at -= n;
        segments.push_back(
            {base + 2 * at, values + 2 * at, values + 2 * at, states ? states + at : nullptr, n});
    }
    return segments;
}

class DeltaCuda : public tw::StreamFixture
{
  protected:
    void SetUp() override
    {
        StreamFixture::SetUp();
        if (!IsSkipped()) {
            ASSERT_EQ(tw::stream_world().create_delta(&codec_), TW_OK);
            ASSERT_EQ(tw_quant_delta_create(nullptr, &host_), TW_OK);
        }
    }
    void TearDown() override
    {
        tw_quant_delta_stream_destroy(codec_);
        tw_quant_delta_destroy(host_);
        StreamFixture::TearDown();
    }

    /* What a call made of a message and the states. */
    struct Made {
        tw_status_t status;
        Bytes message, states;
        Values values;
    };

    Made encode_on_host(const Values &old_values, const Values &new_values, const Bytes &states)
    {
        Made made = {TW_OK, Bytes(tw_quant_delta_bound_bytes(old_values.size())), states, {}};
        size_t bytes = 0;
        const tw_quant_delta_segment_t segment = {old_values.data(), new_values.data(), nullptr,
                                                  states.empty() ? nullptr : made.states.data(),
                                                  old_values.size()};
        EXPECT_EQ(tw_quant_delta_encode(host_, &segment, 1, made.message.data(), made.message.size(), &bytes),
                  TW_OK);
        made.message.resize(bytes);
        return made;
    }

    Made encode(const Values &old_values, const Values &new_values, const Bytes &before, const Cuts &cuts)
    {
        DeviceBuffer base(turned(bytes_of(old_values), cuts, 2), 2),
            values(turned(bytes_of(new_values), cuts, 2), 4), states(turned(before, cuts, 1), 3);
        DeviceBuffer message(tw_quant_delta_bound_bytes(old_values.size()));
        DeviceBuffer workspace(tw_quant_delta_encode_workspace_bytes(codec_, old_values.size(), cuts.size()));
        DeviceBuffer outcome(sizeof(tw_quant_outcome_t));
        const tw_quant_stream_args_t args = args_of(workspace, outcome);
        const auto segments =
            segments_of(cuts, base.data(), values.data(), before.empty() ? nullptr : states.data());
        EXPECT_EQ(tw_quant_delta_stream_encode(codec_, &args, segments.data(), segments.size(),
                                               message.data(), message.bytes()),
                  TW_OK);
        Made made = {said(outcome), message.get(), turned(states.get(), cuts, 1, true), {}};
        EXPECT_LE(said_->bytes, made.message.size());
        made.message.resize(std::min<size_t>(said_->bytes, made.message.size()));
        EXPECT_EQ(base.get(), turned(bytes_of(old_values), cuts, 2));
        return made;
    }

    /* Onto the old values, or beside them. `behind`: bytes behind the message that are not its own. */
    Made decode(const Values &old_values, const Bytes &message, const Bytes &before, const Cuts &cuts,
                bool in_place = true, size_t behind = 0)
    {
        Bytes longer = message;
        longer.resize(message.size() + behind, 0x5a);
        DeviceBuffer src(longer), base(turned(bytes_of(old_values), cuts, 2), 6),
            other(2 * old_values.size(), 2), states(turned(before, cuts, 1), 1);
        DeviceBuffer &values = in_place ? base : other;
        DeviceBuffer workspace(tw_quant_delta_decode_workspace_bytes(codec_, old_values.size(), cuts.size()));
        DeviceBuffer outcome(sizeof(tw_quant_outcome_t));
        const tw_quant_stream_args_t args = args_of(workspace, outcome);
        const auto segments =
            segments_of(cuts, base.data(), values.data(), before.empty() ? nullptr : states.data());
        EXPECT_EQ(tw_quant_delta_stream_decode(codec_, &args, segments.data(), segments.size(),
                                               {src.data(), longer.size(), behind != 0}),
                  TW_OK);
        Made made = {said(outcome), {}, turned(states.get(), cuts, 1, true), Values(old_values.size())};
        const Bytes got = turned(values.get(), cuts, 2, true);
        if (!got.empty()) {
            memcpy(made.values.data(), got.data(), got.size());
        }
        EXPECT_EQ(said_->bytes, made.status == TW_OK ? message.size() : 0);
        return made;
    }

    tw_status_t decode_on_host(const Values &old_values, const Bytes &message, Bytes states)
    {
        Values values(old_values.size());
        const tw_quant_delta_segment_t segment = {old_values.data(), nullptr, values.data(),
                                                  states.empty() ? nullptr : states.data(), values.size()};
        return tw_quant_delta_decode(host_, &segment, 1, message.data(), message.size());
    }

    /* A message after another, as the second one meets states. */
    void round_trips(Change change, size_t n, bool second, Cuts cuts = {}, size_t first = 0)
    {
        SCOPED_TRACE(name_of(change) + ", " + std::to_string(n) + " elements" + (second ? ", states" : ""));
        const auto steps = tw::make_steps(change, n, 2);
        cuts = cuts.empty() ? Cuts{n} : cuts;
        Bytes states(second ? n : 0);
        for (size_t step = 0; step < 2; step++) {
            const Values &old_values = steps[step], &new_values = steps[step + 1];
            const Made expected = encode_on_host(old_values, new_values, states);
            if (step < first) {
                states = expected.states;
                continue;
            }
            const Made got = encode(old_values, new_values, states, cuts);
            ASSERT_EQ(got.message.size(), expected.message.size());
            for (size_t i = 0; i < got.message.size(); i++) {
                ASSERT_EQ(got.message[i], expected.message[i]) << "byte " << i;
            }
            ASSERT_TRUE(got.states == expected.states);
            const Made decoded = decode(old_values, expected.message, states, cuts, step % 2);
            ASSERT_EQ(decoded.status, TW_OK);
            ASSERT_TRUE(decoded.values == new_values);
            ASSERT_TRUE(decoded.states == expected.states);
            states = expected.states;
        }
    }

    tw_quant_stream_args_t args_of(const DeviceBuffer &workspace, const DeviceBuffer &outcome)
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

    tw_quant_delta_stream_t *codec_ = nullptr;
    tw_quant_delta_t *host_ = nullptr;
};

TEST_F(DeltaCuda, EveryKindOfChange)
{
    for (Change change : tw::all_changes) {
        for (bool second : {false, true}) {
            round_trips(change, 1500, second);
        }
    }
}

/* Too short to be coded, whole groups and not, a sample that is not all elements. */
TEST_F(DeltaCuda, Lengths)
{
    for (size_t n : {0, 1, 31, 33, 1023, 1024, 1025, 9000}) {
        round_trips(Change::adam, n, true);
    }
    round_trips(Change::random, 1023, false);
}

/* Blocks that are coded and some that are not, a last one of few elements, segments with edges in blocks and
 * between them. */
TEST_F(DeltaCuda, SeveralBlocks)
{
    const size_t n = 2 * block + 40;
    round_trips(Change::mixed, n, true, {0, 1, 465, 0, block - 537, 5, block - 1, 40 + 67, 0}, 1);
    round_trips(Change::rare, block, false, {}, 1);
}

/* States may hold anything: they are the caller's memory. */
TEST_F(DeltaCuda, WhateverTheStates)
{
    const size_t n = 3000;
    const auto steps = tw::make_steps(Change::adam, n, 1);
    Bytes states(n);
    for (size_t i = 0; i < n; i++) {
        states[i] = uint8_t(i * 7);
    }
    const Made expected = encode_on_host(steps[0], steps[1], states);
    const Made got = encode(steps[0], steps[1], states, {n});
    EXPECT_EQ(got.message, expected.message);
    EXPECT_EQ(got.states, expected.states);
    const Made decoded = decode(steps[0], got.message, states, {1, n - 1});
    EXPECT_EQ(decoded.status, TW_OK);
    EXPECT_EQ(decoded.values, steps[1]);
}

/* A message that turns out to be dearer than plain when the states have already moved on. */
TEST_F(DeltaCuda, BlocksThatGainTooLittleMakeTheMessagePlain)
{
    const size_t n = block + 300, cheap = 120;
    auto steps = tw::make_steps(Change::random, n, 1);
    for (size_t i = 0; i < n; i++) {
        steps[0][i] = uint16_t((i < block ? 0x4200 : 0x3a00) | (i * 37 & 0xff));
        steps[1][i] = i < n - cheap ? steps[1][i] : uint16_t(steps[0][i] + 1);
    }
    const Made expected = encode_on_host(steps[0], steps[1], Bytes(n));
    const Made got = encode(steps[0], steps[1], Bytes(n), {n});
    ASSERT_FALSE(expected.message[2] & TW_DELTA_FLAG_CODED);
    ASSERT_TRUE(got.message == expected.message);
    ASSERT_TRUE(got.states == expected.states);
}

/* Words and escapes are fewer than values, but with the lanes they are not. */
TEST_F(DeltaCuda, ABlockThatWouldGainWithoutItsLanesIsNotCoded)
{
    const size_t n = block + 100;
    auto steps = tw::make_steps(Change::constant, n, 1);
    for (size_t i = 0; i < 40; i++) {
        steps[1][block + 2 * i] ^= 0xa000; /* an escape */
    }
    const Made expected = encode_on_host(steps[0], steps[1], {});
    ASSERT_TRUE(expected.message[2] & TW_DELTA_FLAG_CODED);
    ASSERT_EQ(memcmp(&steps[1][block], expected.message.data() + expected.message.size() - 200, 200), 0);
    ASSERT_TRUE(encode(steps[0], steps[1], {}, {n}).message == expected.message);
    const Made decoded = decode(steps[0], expected.message, {}, {n - 7, 7});
    EXPECT_EQ(decoded.status, TW_OK);
    EXPECT_TRUE(decoded.values == steps[1]);
}

/* ---- messages that lie --------------------------------------------------------------------------------- */

class DeltaCudaMessage : public DeltaCuda
{
  protected:
    static constexpr size_t n = 1500;

    void SetUp() override
    {
        DeltaCuda::SetUp();
        allow_log("quant: delta_decode"); /* the host's decoder says what it thinks */
    }

    Bytes message(Change change, bool second = false)
    {
        steps_ = tw::make_steps(change, n, 1);
        states_ = Bytes(second ? n : 0);
        return encode_on_host(steps_[0], steps_[1], states_).message;
    }

    /* The device's, and the values it made. */
    Made expect_same_verdict(const Bytes &bytes)
    {
        const Made made = decode(steps_[0], bytes, states_, {n}, false);
        EXPECT_EQ(made.status, decode_on_host(steps_[0], bytes, states_));
        EXPECT_TRUE(made.status != TW_OK || made.values == steps_[1]);
        return made;
    }

    /* Where the entries of a coded message are. */
    size_t entries_of(const Bytes &bytes)
    {
        tw_delta_stats_t stats;
        return 12 + tw_delta_stats_read(&stats, !states_.empty(), bytes.data() + 12, bytes.size() - 12);
    }

    std::vector<Values> steps_;
    Bytes states_;
};

TEST_F(DeltaCudaMessage, EveryLengthButItsOwnIsRefused)
{
    for (Change change : {Change::adam, Change::random}) {
        const Bytes good = message(change);
        for (size_t length = 0; length < good.size(); length += length < 20 ? 1 : 131) {
            Bytes part(good.begin(), good.begin() + long(length));
            EXPECT_EQ(expect_same_verdict(part).status, TW_ERR_TRUNCATED) << length;
            if (length >= 8) {
                const uint32_t claimed = uint32_t(length);
                memcpy(&part[4], &claimed, 4);
                EXPECT_NE(expect_same_verdict(part).status, TW_OK) << length;
            }
        }
        Bytes longer = good;
        longer.push_back(0);
        EXPECT_EQ(expect_same_verdict(longer).status, TW_ERR_FORMAT);
        longer[4]++; /* which the header knows of: behind the last block */
        EXPECT_NE(expect_same_verdict(longer).status, TW_OK);
        /* Who knows the bound alone has the message's word for its length. */
        const Made decoded = decode(steps_[0], good, states_, {n}, false, 100);
        EXPECT_EQ(decoded.status, TW_OK);
        EXPECT_EQ(decoded.values, steps_[1]);
        Bytes shorter(good.begin(), good.begin() + 7);
        EXPECT_EQ(expect_same_verdict(shorter).status, TW_ERR_TRUNCATED);
        shorter = good;
        shorter[4] = 7, shorter[5] = shorter[6] = shorter[7] = 0;
        EXPECT_EQ(decode(steps_[0], shorter, states_, {n}, false, 100).status, TW_ERR_FORMAT);
        EXPECT_EQ(decode(steps_[0], shorter, Bytes(n), {n}, false, 100).status, TW_ERR_FORMAT);
    }
}

TEST_F(DeltaCudaMessage, OthersElementsAndStatesAreMismatches)
{
    for (Change change : {Change::adam, Change::random}) {
        const Bytes good = message(change);
        Values more = steps_[0];
        more.push_back(0);
        EXPECT_EQ(decode(more, good, {}, {n + 1}).status, TW_ERR_MISMATCH);
        EXPECT_EQ(decode(steps_[0], good, Bytes(n), {n}).status, TW_ERR_MISMATCH);
        EXPECT_EQ(decode(steps_[0], message(change, true), {}, {n}).status, TW_ERR_MISMATCH);
        EXPECT_EQ(decode({}, good, {}, {}).status, TW_ERR_MISMATCH);
    }
}

/* Bits that are wrong, and bytes that are anything: in the header, in the tables, in the entries, behind
 * them. */
TEST_F(DeltaCudaMessage, SpoiltOnesAreJudgedAsOnTheHost)
{
    std::mt19937 random(3);
    const size_t times = tw::stream_world().slow ? 40 : 500;
    for (Change change : {Change::adam, Change::rare, Change::random}) {
        const Bytes good = message(change, true);
        const bool coded = good[2] & TW_DELTA_FLAG_CODED;
        const size_t edges[] = {0, 12, coded ? entries_of(good) : 12, coded ? entries_of(good) + 8 : 12,
                                good.size()};
        for (size_t turn = 0; turn < times; turn++) {
            const size_t part = turn % 4, from = edges[part], to = edges[part + 1];
            if (from == to) {
                continue;
            }
            Bytes bad = good;
            uint8_t &byte = bad[from + random() % (to - from)];
            byte = uint8_t(random() % 2 ? byte ^ 1u << random() % 8 : random());
            expect_same_verdict(bad);
        }
    }
}

/* A block with as many bytes, but one word less and one escape more, and the other way round; and a word that
 * nobody takes. */
TEST_F(DeltaCudaMessage, BlocksWithTooLittleOrTooMuchInThem)
{
    message(Change::adam);
    for (size_t i = 0; i < n; i += 50) {
        steps_[1][i] ^= 0xa000; /* an escape */
    }
    const Bytes good = encode_on_host(steps_[0], steps_[1], states_).message;
    const size_t at = entries_of(good);
    uint32_t sizes;
    memcpy(&sizes, &good[at], 4);
    ASSERT_GT(sizes >> 16, 2u);
    for (uint32_t lie : {sizes - 1 + 0x10000, sizes + 1 - 0x10000}) {
        Bytes bad = good;
        memcpy(&bad[at], &lie, 4);
        EXPECT_EQ(expect_same_verdict(bad).status, TW_ERR_FORMAT);
    }
    Bytes bad = good;
    sizes++;
    memcpy(&bad[at], &sizes, 4);
    bad.insert(bad.begin() + long(at + 8), {0, 0});
    const uint32_t claimed = uint32_t(bad.size());
    memcpy(&bad[4], &claimed, 4);
    EXPECT_EQ(expect_same_verdict(bad).status, TW_ERR_FORMAT);
}

/* Blocks and messages that are not coded have a checksum, too; what they would have changed is as it was. */
TEST_F(DeltaCudaMessage, SpoiltValuesAreNotApplied)
{
    Bytes bad = message(Change::random, true);
    ASSERT_FALSE(bad[2] & TW_DELTA_FLAG_CODED);
    bad[100] ^= 1;
    const Made made = decode(steps_[0], bad, states_, {n});
    EXPECT_EQ(made.status, TW_ERR_FORMAT);
    EXPECT_EQ(made.values, steps_[0]);
    EXPECT_EQ(made.states, states_);

    const size_t more = block + 70; /* 70 that are not coded */
    steps_ = tw::make_steps(Change::mixed, more, 1);
    bad = encode_on_host(steps_[0], steps_[1], {}).message;
    ASSERT_TRUE(bad[2] & TW_DELTA_FLAG_CODED);
    bad.back() ^= 1;
    const Made last = decode(steps_[0], bad, {}, {more});
    EXPECT_EQ(last.status, TW_ERR_FORMAT);
    EXPECT_EQ(last.values.back(), steps_[0].back());
}

/* ---- calls --------------------------------------------------------------------------------------------- */

TEST_F(DeltaCuda, CallsAreChecked)
{
    const size_t n = 1000;
    DeviceBuffer base(2 * n), values(2 * n), message(tw_quant_delta_bound_bytes(n)), outcome(8);
    auto segments = segments_of({500, 500}, base.data(), values.data(), nullptr);
    DeviceBuffer workspace(tw_quant_delta_encode_workspace_bytes(codec_, n, 2));
    tw_quant_stream_args_t args = args_of(workspace, outcome);
    const auto encode_into = [&](uint8_t *dst, size_t bytes) {
        return tw_quant_delta_stream_encode(codec_, &args, segments.data(), 2, dst, bytes);
    };
    expect_log("room for 2011 bytes, must be for 2012");
    EXPECT_EQ(encode_into(message.data(), 2011), TW_ERR_INVALID);
    expect_log("must be aligned to 16");
    EXPECT_EQ(encode_into(message.data() + 8, 2012), TW_ERR_INVALID);
    expect_log("bytes of workspace, aligned to 256");
    args.workspace_bytes--;
    EXPECT_EQ(encode_into(message.data(), 2012), TW_ERR_INVALID);
    expect_log("no message");
    EXPECT_EQ(tw_quant_delta_stream_decode(codec_, &args, segments.data(), 2, {nullptr, 16, 0}),
              TW_ERR_INVALID);
    expect_log("delta_stream_encode: 1 of 2 segments have a state");
    segments[1].state = values.data();
    EXPECT_EQ(encode_into(message.data(), 2012), TW_ERR_INVALID);
    EXPECT_EQ(tw_quant_delta_encode_workspace_bytes(codec_, TW_DELTA_ELEMS_MAX + 1, 1), SIZE_MAX);
    EXPECT_EQ(tw_quant_delta_decode_workspace_bytes(codec_, TW_DELTA_ELEMS_MAX + 1, 1), SIZE_MAX);
}

} // namespace
