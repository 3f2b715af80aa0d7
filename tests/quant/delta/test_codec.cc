#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "quant/delta/delta.h"
#include "tests/common/fixture.h"
#include "tests/quant/delta/delta_data.h"

namespace
{

using Bytes = std::vector<uint8_t>;
using Values = std::vector<uint16_t>;
using tw::Change;

constexpr size_t block = TW_DELTA_BLOCK_ELEMS;
const size_t lengths[] = {0, 1, 31, 32, 33, 1023, 1024, 1025, block - 1, block, block + 1, 2 * block + 77};

std::vector<std::string> backends()
{
    const char *names[8];
    return {names, names + tw_quant_delta_backends(names, 8)};
}

/* A codec and one end's states. */
class End
{
  public:
    End(const std::string &backend, size_t n, bool second) : second_(second), states_(n)
    {
        EXPECT_EQ(tw_quant_delta_create(backend.c_str(), &delta_), TW_OK);
        EXPECT_EQ(tw_quant_delta_backend_name(delta_), backend);
    }
    ~End()
    {
        tw_quant_delta_destroy(delta_);
    }
    End(const End &) = delete;
    End &operator=(const End &) = delete;

    Bytes encode(const Values &old_values, const Values &new_values)
    {
        const size_t bound = tw_quant_delta_bound_bytes(old_values.size());
        Bytes dst(bound + 64, 0xee);
        size_t bytes = 0;
        const auto segment = segment_of(old_values.data(), new_values.data(), nullptr, old_values.size());
        EXPECT_EQ(tw_quant_delta_encode(delta_, &segment, 1, dst.data(), bound, &bytes), TW_OK);
        EXPECT_LE(bytes, bound);
        for (size_t i = bound; i < dst.size(); i++) {
            EXPECT_EQ(dst[i], 0xee) << "written behind the bound";
        }
        dst.resize(bytes);
        return dst;
    }

    /* The message lies at the very end of its memory, so that a sanitizer sees what reads beyond it. */
    tw_status_t decode(const Values &old_values, const Bytes &message, Values *new_values)
    {
        const Bytes delta_size(message);
        Values dst(old_values.size() + 32, 0xeeee);
        const auto segment = segment_of(old_values.data(), nullptr, dst.data(), old_values.size());
        const tw_status_t status =
            tw_quant_delta_decode(delta_, &segment, 1, delta_size.data(), delta_size.size());
        for (size_t i = old_values.size(); i < dst.size(); i++) {
            EXPECT_EQ(dst[i], 0xeeee) << "written behind the values";
        }
        dst.resize(old_values.size());
        *new_values = dst;
        return status;
    }

    tw_quant_delta_segment_t segment_of(const void *base, const void *src, void *dst, size_t n)
    {
        return {base, src, dst, second_ ? states_.data() : nullptr, n};
    }
    tw_quant_delta_t *delta()
    {
        return delta_;
    }
    Bytes &states()
    {
        return states_;
    }

  private:
    tw_quant_delta_t *delta_ = nullptr;
    bool second_;
    Bytes states_;
};

class DeltaCodec : public tw::Fixture
{
};

/* Two messages in a row, so that the second one meets states; every backend against the oracle, byte for
 * byte. */
void round_trips(Change change, size_t n, bool second)
{
    SCOPED_TRACE(name_of(change) + ", " + std::to_string(n) + " elements" + (second ? ", states" : ""));
    const auto steps = tw::make_steps(change, n, 2);
    End oracle("ref", n, second);
    const Bytes messages[] = {oracle.encode(steps[0], steps[1]), oracle.encode(steps[1], steps[2])};
    for (const std::string &backend : backends()) {
        End sender(backend, n, second), receiver(backend, n, second);
        for (size_t step = 0; step < 2; step++) {
            ASSERT_EQ(sender.encode(steps[step], steps[step + 1]), messages[step]) << backend;
            Values got;
            ASSERT_EQ(receiver.decode(steps[step], messages[step], &got), TW_OK) << backend;
            ASSERT_EQ(got, steps[step + 1]) << backend;
            ASSERT_EQ(sender.states(), receiver.states()) << backend;
        }
        ASSERT_EQ(sender.states(), oracle.states()) << backend;
    }
}

TEST_F(DeltaCodec, EveryBitComesBackOnEveryBackend)
{
    for (Change change : tw::all_changes) {
        for (size_t n : lengths) {
            round_trips(change, n, false);
            round_trips(change, n, true);
        }
    }
}

/* States may hold anything: they are the caller's memory. */
TEST_F(DeltaCodec, BackendsAgreeWhateverTheStates)
{
    const size_t n = 3000;
    const auto steps = tw::make_steps(Change::adam, n, 1);
    Bytes expected;
    for (const std::string &backend : backends()) {
        End sender(backend, n, true), receiver(backend, n, true);
        for (size_t i = 0; i < n; i++) {
            sender.states()[i] = receiver.states()[i] = uint8_t(i * 7);
        }
        const Bytes message = sender.encode(steps[0], steps[1]);
        expected = expected.empty() ? message : expected;
        EXPECT_EQ(message, expected) << backend;
        Values got;
        ASSERT_EQ(receiver.decode(steps[0], message, &got), TW_OK);
        EXPECT_EQ(got, steps[1]);
    }
}

TEST_F(DeltaCodec, DecodesOntoTheReplica)
{
    const size_t n = block + 100;
    const auto steps = tw::make_steps(Change::rare, n, 1); /* with escapes */
    for (const std::string &backend : backends()) {
        End sender(backend, n, true), receiver(backend, n, true);
        const Bytes message = sender.encode(steps[0], steps[1]);
        Values replica = steps[0];
        const auto segment = receiver.segment_of(replica.data(), nullptr, replica.data(), n);
        ASSERT_EQ(tw_quant_delta_decode(receiver.delta(), &segment, 1, message.data(), message.size()),
                  TW_OK);
        EXPECT_EQ(replica, steps[1]) << backend;
        EXPECT_EQ(sender.states(), receiver.states());
    }
}

/* Segments of these lengths, and of none, over one array. */
std::vector<tw_quant_delta_segment_t> cut(const std::vector<size_t> &sizes, const Values &base,
                                          const Values &src, Values &dst, Bytes &states)
{
    std::vector<tw_quant_delta_segment_t> segments;
    size_t at = 0;
    for (size_t n : sizes) {
        segments.push_back({base.data() + at, src.data() + at, dst.data() + at, states.data() + at, n});
        at += n;
    }
    EXPECT_EQ(at, base.size());
    return segments;
}

TEST_F(DeltaCodec, HowTheElementsAreCutMakesNoDifference)
{
    const size_t n = 2 * block + 500;
    const auto steps = tw::make_steps(Change::adam, n, 1);
    End whole("ref", n, true);
    const Bytes expected = whole.encode(steps[0], steps[1]);
    for (const std::string &backend : backends()) {
        End end(backend, 0, true);
        Bytes message(tw_quant_delta_bound_bytes(n)), here(n), there(n);
        Values got(n);
        size_t bytes = 0;
        auto segments = cut({0, 1, 128, 0, block - 200, 5, block - 1, n - 2 * block + 67, 0}, steps[0],
                            steps[1], got, here);
        ASSERT_EQ(tw_quant_delta_encode(end.delta(), segments.data(), segments.size(), message.data(),
                                        message.size(), &bytes),
                  TW_OK);
        message.resize(bytes);
        EXPECT_EQ(message, expected) << backend;
        segments = cut({block + 7, 3, n - block - 10}, steps[0], steps[1], got, there);
        ASSERT_EQ(tw_quant_delta_decode(end.delta(), segments.data(), segments.size(), message.data(), bytes),
                  TW_OK);
        EXPECT_EQ(got, steps[1]) << backend;
        EXPECT_EQ(here, there) << backend;
    }
}

/* Where the blocks' entries are in a coded message without states. */
uint8_t *entries_of(Bytes *message)
{
    tw_delta_stats_t stats;
    uint8_t *at = message->data() + sizeof(tw_delta_header_t) + 4;
    return at + tw_delta_stats_read(&stats, 0, at, message->size() - 12);
}

/* Worst case: plain plus 12 bytes a message (the rest is in End::encode), and a raw block among coded ones
 * costs itself and its entry. */
TEST_F(DeltaCodec, NothingCostsMoreThanPlain)
{
    for (size_t n : lengths) {
        const auto steps = tw::make_steps(Change::random, n, 1);
        End end("ref", n, false);
        EXPECT_LE(end.encode(steps[0], steps[1]).size(), 12 + 2 * n);
    }
    const auto mixed = tw::make_steps(Change::mixed, 4 * block, 1);
    End end("ref", 4 * block, false);
    Bytes message = end.encode(mixed[0], mixed[1]);
    size_t bytes = size_t(entries_of(&message) - message.data()) + 4 * sizeof(tw_entropy_entry_t);
    for (size_t b = 0; b < 4; b++) {
        tw_entropy_entry_t entry;
        memcpy(&entry, entries_of(&message) + b * sizeof(entry), sizeof(entry));
        EXPECT_EQ(entry.sizes == TW_ENTROPY_RAW, b % 2 == 1) << b;
        bytes +=
            b % 2 ? 2 * block : 2 * (entry.sizes >> 16) + 2 * (entry.sizes & 0xffff) + TW_ENTROPY_LANES_BYTES;
    }
    EXPECT_EQ(message.size(), bytes);
}

/* A raw block leaves less room for the next one than plain values need: one that gains a little must not be
 * put there. */
TEST_F(DeltaCodec, ABlockThatGainsTooLittleMakesTheMessagePlain)
{
    const size_t last = 300, n = block + last;
    auto steps = tw::make_steps(Change::random, n, 1);
    for (size_t i = 0; i < n; i++) {
        steps[0][i] = uint16_t((i < block ? 0x4200 : 0x3a00) | (i * 37 & 0xff));
    }
    End end("ref", n, false);
    size_t plain = 0, coded = 0;
    for (size_t cheap = 0; cheap <= last; cheap++) {
        if (cheap) {
            steps[1][n - cheap] = uint16_t(steps[0][n - cheap] + 1);
        }
        const Bytes message = end.encode(steps[0], steps[1]); /* which looks behind the bound */
        plain += !(message[2] & TW_DELTA_FLAG_CODED);
        coded += message[2] & TW_DELTA_FLAG_CODED;
    }
    EXPECT_GT(plain, 0U);
    EXPECT_GT(coded, 0U);
}

/* Within a tenth of the entropy under the exponent, and what a message and a block have besides: the tables,
 * the lanes. */
TEST_F(DeltaCodec, IsNearTheEntropy)
{
    const size_t n = 8 * block;
    const auto steps = tw::make_steps(Change::adam, n, 2);
    End one("ref", n, false), two("ref", n, true);
    const double besides = 8 * (16 + TW_DELTA_STATS_BYTES_MAX + 8 * (TW_ENTROPY_LANES_BYTES + 8));
    const double entropy = tw::entropy_bits(steps[1], steps[2]);
    const double bits = 8.0 * double(one.encode(steps[1], steps[2]).size());
    EXPECT_LT(bits, 1.1 * entropy + besides);
    EXPECT_GT(bits, 0.9 * entropy);
    two.encode(steps[0], steps[1]);
    EXPECT_LT(8.0 * double(two.encode(steps[1], steps[2]).size()), 0.92 * bits) << "the second context";
}

TEST_F(DeltaCodec, NothingChangedCostsNearlyNothing)
{
    const size_t n = 8 * block;
    const auto steps = tw::make_steps(Change::none, n, 1);
    End end("ref", n, true);
    const size_t bits_an_element = 400; /* 1 - 1/1024 of the slots: 0.0014 bits */
    EXPECT_LT(end.encode(steps[0], steps[1]).size(),
              16 + TW_DELTA_STATS_BYTES_MAX + 8 * (TW_ENTROPY_LANES_BYTES + 8) + n / bits_an_element);
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

TEST_F(DeltaCodec, UnknownBackendsAreRefused)
{
    tw_quant_delta_t *delta;
    expect_log("no backend 'abacus'");
    EXPECT_EQ(tw_quant_delta_create("abacus", &delta), TW_ERR_UNSUPPORTED);
    ASSERT_EQ(tw_quant_delta_create(nullptr, &delta), TW_OK);
    EXPECT_EQ(tw_quant_delta_backend_name(delta), backends()[0]);
    tw_quant_delta_destroy(delta);
    tw_quant_delta_destroy(nullptr);
}

TEST_F(DeltaCodec, BadArgumentsAreRefused)
{
    End end("ref", 10, true);
    const Values a(10), b(10);
    Bytes dst(100);
    size_t bytes = 12345;
    auto encode = [&](std::vector<tw_quant_delta_segment_t> segments, size_t room) {
        return tw_quant_delta_encode(end.delta(), segments.data(), segments.size(), dst.data(), room, &bytes);
    };
    const auto good = end.segment_of(a.data(), b.data(), nullptr, 10);
    auto no_base = good, no_src = good, no_state = good, endless = good;
    no_base.base = nullptr;
    no_src.src = nullptr;
    no_state.state = nullptr;
    endless.n_elems = SIZE_MAX;
    expect_log("delta_encode: segment 0 has a NULL pointer");
    EXPECT_EQ(encode({no_base}, 100), TW_ERR_INVALID);
    EXPECT_EQ(encode({no_src}, 100), TW_ERR_INVALID);
    expect_log("segment 1 has a NULL pointer, or there are more than");
    EXPECT_EQ(encode({good, endless}, 100), TW_ERR_INVALID);
    expect_log("1 of 2 segments have a state");
    EXPECT_EQ(encode({good, no_state}, 100), TW_ERR_INVALID);
    expect_log("room for 31 bytes, must be for 32");
    EXPECT_EQ(encode({good}, 31), TW_ERR_INVALID);
    EXPECT_EQ(bytes, 12345u);
    EXPECT_EQ(dst, Bytes(100)) << "nothing was written";
    EXPECT_EQ(encode({good}, 32), TW_OK);
    EXPECT_EQ(bytes, 32u);
    EXPECT_EQ(tw_quant_delta_encode(end.delta(), nullptr, 0, dst.data(), 12, &bytes), TW_OK);
    EXPECT_EQ(bytes, 12u);
}

/* A message that another one would make, spoilt in a way that the header shows. */
class DeltaHeader : public tw::Fixture
{
  protected:
    static constexpr size_t n = 2000;
    tw_status_t decode(const Bytes &message, size_t n_elems = n, bool second = false)
    {
        End end("ref", n_elems, second);
        Values old_values(steps_[0]), got;
        old_values.resize(n_elems);
        return end.decode(old_values, message, &got);
    }
    Bytes message(Change change = Change::adam)
    {
        steps_ = tw::make_steps(change, n, 1);
        End end("ref", n, false);
        return end.encode(steps_[0], steps_[1]);
    }
    std::vector<Values> steps_;
};

TEST_F(DeltaHeader, EveryFieldIsChecked)
{
    const Bytes good = message();
    ASSERT_EQ(good[2], TW_DELTA_FLAG_CODED);
    expect_log("not a lossless delta of version 3");
    for (size_t at : {size_t(0), size_t(1), size_t(2), size_t(3)}) {
        Bytes bad = good;
        bad[at] ^= 0x80;
        EXPECT_EQ(decode(bad), TW_ERR_FORMAT) << at;
    }
    Bytes longer = good;
    longer.push_back(0);
    expect_log("bytes, the message says");
    EXPECT_EQ(decode(longer), TW_ERR_FORMAT);
    expect_log("the message was made without states, the segments have some");
    EXPECT_EQ(decode(good, n, true), TW_ERR_MISMATCH);
    expect_log("the message has 2000 elements, the segments 1999");
    EXPECT_EQ(decode(good, n - 1), TW_ERR_MISMATCH);
    EXPECT_EQ(decode(good), TW_OK);
}

TEST_F(DeltaHeader, APlainMessageIsCheckedToo)
{
    const Bytes good = message(Change::random);
    ASSERT_EQ(good.size(), 12 + 2 * n);
    ASSERT_EQ(good[2], 0);
    expect_log("the message has 2000 elements, the segments 2001");
    EXPECT_EQ(decode(good, n + 1), TW_ERR_MISMATCH);
    EXPECT_EQ(decode(good), TW_OK);
}

/* Values that are sent as they are have nothing else that would show a changed bit. */
TEST_F(DeltaHeader, DamagedPlainMessagesAreNoticed)
{
    const Bytes good = message(Change::random);
    ASSERT_EQ(good[2], 0);
    expect_log("a message that is not coded is spoilt");
    for (size_t at = sizeof(tw_delta_header_t); at < good.size(); at++) {
        Bytes bad = good;
        bad[at] = uint8_t(bad[at] ^ 1 << at % 8);
        ASSERT_EQ(decode(bad), TW_ERR_FORMAT) << at;
    }
    Bytes swapped = good;
    std::swap_ranges(&swapped[100], &swapped[102], &swapped[200]);
    ASSERT_NE(swapped, good);
    EXPECT_EQ(decode(swapped), TW_ERR_FORMAT);
    Bytes headless(good.begin(), good.begin() + 11);
    headless[4] = 11;
    headless[5] = 0;
    expect_log("ends before its checksum");
    EXPECT_EQ(decode(headless), TW_ERR_FORMAT);
}

/* Cut off anywhere, with a header that knows it or not. */
TEST_F(DeltaHeader, TruncatedMessagesAreRefused)
{
    const Bytes good = message();
    expect_log("is shorter than its header");
    expect_log("bytes, the message says");
    expect_log("delta_decode: the message ends");
    expect_log("delta_decode: bad tables");
    for (size_t bytes = 0; bytes < good.size(); bytes++) {
        Bytes part(good.begin(), good.begin() + long(bytes));
        ASSERT_EQ(decode(part), TW_ERR_TRUNCATED) << bytes;
        if (bytes >= 8) {
            const auto claimed = uint32_t(bytes);
            memcpy(&part[4], &claimed, sizeof(claimed));
            ASSERT_EQ(decode(part), TW_ERR_FORMAT) << bytes;
        }
    }
}

/* A byte behind the last block that the header knows of. */
TEST_F(DeltaHeader, BytesThatNobodyNeedsAreRefused)
{
    Bytes bad = message();
    bad.push_back(0);
    const auto claimed = uint32_t(bad.size());
    memcpy(&bad[4], &claimed, sizeof(claimed));
    expect_log("bytes are left behind the last block");
    EXPECT_EQ(decode(bad), TW_ERR_FORMAT);
}

/* A changed raw bit changes one value and nothing else, which the checksum shows; an escape's raw bits mean
 * nothing. */
TEST_F(DeltaHeader, DamagedBlocksAreNoticed)
{
    Bytes good = message();
    End end("ref", n, false);
    Values got;
    size_t noticed = 0, all = good.size() - size_t(entries_of(&good) - good.data());
    expect_log("a block does not decode");
    allow_log("delta_decode");
    for (size_t at = size_t(entries_of(&good) - good.data()); at < good.size(); at++) {
        Bytes bad = good;
        bad[at] = uint8_t(bad[at] ^ 1 << at % 8);
        const tw_status_t status = end.decode(steps_[0], bad, &got);
        noticed += status != TW_OK;
        ASSERT_TRUE(status == TW_ERR_FORMAT || got == steps_[1]) << at;
    }
    EXPECT_GT(noticed, all - all / 50);
}

/* So are the blocks among coded ones that are sent as they are: what they hold is left as it was. */
TEST_F(DeltaCodec, DamagedRawBlocksAreNoticed)
{
    const auto steps = tw::make_steps(Change::mixed, 2 * block, 1);
    End sender("ref", 2 * block, false);
    Bytes good = sender.encode(steps[0], steps[1]);
    tw_entropy_entry_t entry;
    memcpy(&entry, entries_of(&good) + sizeof(entry), sizeof(entry));
    ASSERT_EQ(entry.sizes, TW_ENTROPY_RAW);
    for (const std::string &backend : backends()) {
        End end(backend, 2 * block, false);
        Values got;
        expect_log("a block that is not coded is spoilt");
        for (size_t back = 1; back <= 2 * block; back += 997) {
            Bytes bad = good;
            bad[bad.size() - back] ^= 0x10;
            ASSERT_EQ(end.decode(steps[0], bad, &got), TW_ERR_FORMAT) << backend << " " << back;
            EXPECT_EQ(got[2 * block - 1], 0xeeee);
        }
        ASSERT_EQ(end.decode(steps[0], good, &got), TW_OK);
    }
}

/* A word that no element takes, in front of those that are. */
TEST_F(DeltaHeader, WordsThatAreLeftAreRefused)
{
    Bytes bad = message();
    uint8_t *entry = entries_of(&bad);
    const long first_word = entry - bad.data() + long(sizeof(tw_entropy_entry_t));
    entry[0]++;
    ASSERT_NE(entry[0], 0);
    bad.insert(bad.begin() + first_word, {0, 0});
    const auto claimed = uint32_t(bad.size());
    memcpy(&bad[4], &claimed, sizeof(claimed));
    expect_log("a block does not decode");
    EXPECT_EQ(decode(bad), TW_ERR_FORMAT);
}

TEST_F(DeltaHeader, OtherOldValuesAreNoticed)
{
    const Bytes good = message();
    End end("ref", n, false);
    Values other = steps_[0], got;
    expect_log("a block does not decode");
    other[700] ^= 1; /* the change fits, the value does not */
    EXPECT_EQ(end.decode(other, good, &got), TW_ERR_FORMAT);
    other[700] ^= 0x0780; /* another context */
    EXPECT_EQ(end.decode(other, good, &got), TW_ERR_FORMAT);
}

TEST_F(DeltaCodec, StatesThatDifferAreNoticed)
{
    const size_t n = 5000;
    const auto steps = tw::make_steps(Change::adam, n, 2);
    for (const std::string &backend : backends()) {
        End sender(backend, n, true), late(backend, n, true);
        sender.encode(steps[0], steps[1]);
        Values got;
        expect_log("a block does not decode");
        EXPECT_EQ(late.decode(steps[1], sender.encode(steps[1], steps[2]), &got), TW_ERR_FORMAT) << backend;
    }
}

/* Words or escapes that run out in the middle: every backend stops before it reads in front of them. */
TEST_F(DeltaCodec, BlocksWithTooLittleInThemAreRefused)
{
    const size_t n = 2048;
    auto steps = tw::make_steps(Change::adam, n, 1);
    for (size_t i = 0; i < n; i += 50) {
        steps[1][i] ^= 0xa000; /* an escape */
    }
    End sender("ref", n, false);
    Bytes bad = sender.encode(steps[0], steps[1]);
    uint8_t *entry = entries_of(&bad);
    uint32_t sizes;
    memcpy(&sizes, entry, sizeof(sizes));
    ASSERT_GT(sizes & 0xffff, 2u);
    ASSERT_GT(sizes >> 16, 2u);
    /* As many bytes as before, but one word less and one escape more, and the other way round. */
    for (uint32_t lie : {sizes - 1 + 0x10000, sizes + 1 - 0x10000}) {
        memcpy(entry, &lie, sizeof(lie));
        for (const std::string &backend : backends()) {
            End end(backend, n, false);
            Values got;
            expect_log("a block does not decode");
            EXPECT_EQ(end.decode(steps[0], bad, &got), TW_ERR_FORMAT) << backend;
        }
    }
}

} // namespace
