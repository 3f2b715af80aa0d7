/* The lossless delta of elements of 8 bits: e4m3, e5m2, and any other bytes. */
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "quant/delta/delta.h"
#include "tests/common/fixture.h"

namespace
{

using Bytes = std::vector<uint8_t>;

constexpr size_t chunk = TW_DELTA8_CHUNK_ELEMS;
const size_t lengths[] = {0,     1,     31,        1023,  1024,      1025,
                          65536, 65537, chunk - 1, chunk, chunk + 1, 2 * chunk + 77};

std::vector<std::string> backends()
{
    const char *names[8];
    return {names, names + tw_quant_delta_backends(names, 8)};
}

/* Bits of the mantissa; the rest of 7 are the exponent's. */
constexpr int e4m3 = 3, e5m2 = 2;

/* What a code's magnitude stands for, but for a factor of two. */
double value_of(int format, int magnitude)
{
    const int exponent = magnitude >> format, mantissa = magnitude & ((1 << format) - 1);
    return exponent ? std::ldexp((1 << format) + mantissa, exponent - 1) : mantissa;
}

/* The nearest code, whose largest magnitude is 0x7b. */
uint8_t code_of(int format, double value)
{
    static auto &limits = *new std::map<int, std::vector<double>>; /* between a magnitude and the next one */
    std::vector<double> &of_format = limits[format];
    for (int magnitude = int(of_format.size()); magnitude < 0x7b; magnitude++) {
        of_format.push_back((value_of(format, magnitude) + value_of(format, magnitude + 1)) / 2);
    }
    const auto best = std::upper_bound(of_format.begin(), of_format.end(), std::fabs(value));
    return uint8_t((best - of_format.begin()) | (std::signbit(value) ? 0x80 : 0));
}

enum class Change { none, adam, rare, random, mixed };
constexpr Change all_changes[] = {Change::none, Change::adam, Change::rare, Change::random, Change::mixed};

/* Weights before and after a step of this size beside them; scaled to the format's range. */
struct Step {
    Bytes old_codes, new_codes;
};

Step make_step(Change change, size_t n, int format = e4m3, double rate = 0.03)
{
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    const double scale = value_of(format, 0x7b) / 5;
    Step step = {Bytes(n), Bytes(n)};
    for (size_t i = 0; i < n; i++) {
        const double weight = normal(random), moved = weight + rate * normal(random);
        const bool any = change == Change::random || (change == Change::mixed && i / chunk % 2 == 0) ||
                         (change == Change::rare && random() % 1000 == 0);
        step.old_codes[i] = any ? uint8_t(random()) : code_of(format, scale * weight);
        step.new_codes[i] = any ? uint8_t(random())
                            : change == Change::none || change == Change::rare
                                ? step.old_codes[i]
                                : code_of(format, scale * moved);
    }
    return step;
}

class Codec
{
  public:
    explicit Codec(const std::string &backend = "ref")
    {
        EXPECT_EQ(tw_quant_delta_create(backend.c_str(), &delta_), TW_OK);
    }
    ~Codec()
    {
        tw_quant_delta_destroy(delta_);
    }
    Codec(const Codec &) = delete;
    Codec &operator=(const Codec &) = delete;

    Bytes encode(const Step &step)
    {
        const size_t n = step.old_codes.size(), bound = tw_quant_delta8_bound_bytes(n);
        const tw_quant_delta_segment_t segment = {step.old_codes.data(), step.new_codes.data(), nullptr,
                                                  nullptr, n};
        Bytes dst(bound + 64, 0xee);
        size_t bytes = 0;
        EXPECT_EQ(tw_quant_delta8_encode(delta_, &segment, 1, dst.data(), bound, &bytes), TW_OK);
        EXPECT_LE(bytes, bound);
        EXPECT_EQ(size_t(std::count(dst.begin() + long(bound), dst.end(), 0xee)), 64u) << "behind the bound";
        dst.resize(bytes);
        return dst;
    }

    Bytes encode_alone(const Bytes &codes)
    {
        const tw_quant_delta_segment_t segment = {nullptr, codes.data(), nullptr, nullptr, codes.size()};
        Bytes dst(tw_quant_delta8_bound_bytes(codes.size()));
        size_t bytes = 0;
        EXPECT_EQ(tw_quant_delta8_encode(delta_, &segment, 1, dst.data(), dst.size(), &bytes), TW_OK);
        dst.resize(bytes);
        return dst;
    }

    tw_status_t decode(const Bytes &old_codes, const Bytes &message, Bytes *new_codes)
    {
        const Bytes exact(message); /* a sanitizer sees what reads beyond it */
        *new_codes = Bytes(old_codes.size());
        const tw_quant_delta_segment_t segment = {old_codes.data(), nullptr, new_codes->data(), nullptr,
                                                  old_codes.size()};
        return tw_quant_delta8_decode(delta_, &segment, 1, exact.data(), exact.size());
    }
    tw_quant_delta_t *delta()
    {
        return delta_;
    }

  private:
    tw_quant_delta_t *delta_ = nullptr;
};

/* Every backend against the oracle, byte for byte. Returns the message's length. */
size_t comes_back(const Step &step)
{
    const Bytes expected = Codec().encode(step);
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        Bytes got;
        EXPECT_EQ(codec.encode(step), expected) << backend;
        EXPECT_EQ(codec.decode(step.old_codes, expected, &got), TW_OK) << backend;
        EXPECT_EQ(got, step.new_codes) << backend;
    }
    return expected.size();
}

class DeltaNarrow : public tw::Fixture
{
};

TEST_F(DeltaNarrow, EveryBitComesBackOnEveryBackend)
{
    for (Change change : all_changes) {
        for (size_t n : lengths) {
            SCOPED_TRACE(std::to_string(int(change)) + ", " + std::to_string(n) + " elements");
            comes_back(make_step(change, n));
        }
    }
    comes_back(make_step(Change::adam, 100000, e5m2));
}

/* All 256 old codes with all 256 new ones, among many that stay, so that they are coded. */
TEST_F(DeltaNarrow, AnyCodeBecomesAnyOther)
{
    Step step = make_step(Change::none, 12 * 65536);
    for (size_t pair = 0; pair < 65536; pair++) {
        step.old_codes[12 * pair] = uint8_t(pair);
        step.new_codes[12 * pair] = uint8_t(pair >> 8);
    }
    EXPECT_LT(comes_back(step), step.old_codes.size() / 2);
}

/* Within a seventh of the entropy under the old element's size. */
TEST_F(DeltaNarrow, IsNearTheEntropy)
{
    const size_t n = 4 * chunk;
    for (int format : {e4m3, e5m2}) {
        for (double rate : {0.003, 0.03}) {
            const Step step = make_step(Change::adam, n, format, rate);
            std::array<std::map<int, double>, 32> counts;
            for (size_t i = 0; i < n; i++) {
                const int change = int8_t(step.new_codes[i] ^ (step.new_codes[i] >> 7) * 0x7f) -
                                   int8_t(step.old_codes[i] ^ (step.old_codes[i] >> 7) * 0x7f);
                counts[size_t(step.old_codes[i] & 0x7f) >> 2][change]++;
            }
            double bits = 0;
            for (const auto &one : counts) {
                double total = 0;
                for (const auto &each : one) {
                    total += each.second;
                }
                for (const auto &each : one) {
                    bits -= each.second * std::log2(each.second / total);
                }
            }
            const double took = 8.0 * double(Codec().encode(step).size());
            EXPECT_LT(took, bits * 8 / 7) << format << " " << rate << ": " << bits / double(n) << " bits";
            EXPECT_GT(took, bits * 0.9);
        }
    }
}

/* Without old elements, or with others that do not matter: near the entropy. */
TEST_F(DeltaNarrow, ElementsByThemselves)
{
    const size_t n = 2 * chunk + 7;
    for (int format : {e4m3, e5m2}) {
        const Step step = make_step(Change::none, n, format);
        std::array<double, 256> counts = {};
        double bits = 0;
        for (uint8_t code : step.new_codes) {
            counts[code]++;
        }
        for (double count : counts) {
            bits -= count ? count * std::log2(count / double(n)) : 0;
        }
        const Bytes expected = Codec().encode_alone(step.new_codes);
        EXPECT_EQ(expected[sizeof(tw_delta8_header_t)], TW_DELTA8_RANKED);
        EXPECT_LT(8.0 * double(expected.size()), 1.03 * bits) << format;
        EXPECT_GT(8.0 * double(expected.size()), 0.99 * bits);
        for (const std::string &backend : backends()) {
            Codec codec(backend);
            Bytes got(n);
            EXPECT_EQ(codec.encode_alone(step.new_codes), expected) << backend;
            const tw_quant_delta_segment_t segment = {nullptr, nullptr, got.data(), nullptr, n};
            ASSERT_EQ(tw_quant_delta8_decode(codec.delta(), &segment, 1, expected.data(), expected.size()),
                      TW_OK);
            EXPECT_EQ(got, step.new_codes) << backend;
        }
        /* weights that are all others */
        Step loaded = step;
        loaded.old_codes = make_step(Change::random, n).old_codes;
        EXPECT_EQ(comes_back(loaded), expected.size());
    }
    /* each code once at least */
    Step all = make_step(Change::none, 3000);
    for (size_t i = 0; i < 256; i++) {
        all.new_codes[2 * i] = uint8_t(i);
    }
    all.old_codes.assign(3000, 0);
    EXPECT_LT(comes_back(all), 3000u);
}

TEST_F(DeltaNarrow, NothingCostsMoreThanPlain)
{
    for (size_t n : lengths) {
        const Step step = make_step(Change::random, n);
        EXPECT_EQ(Codec().encode(step).size(), 16 + n + (n + chunk - 1) / chunk);
    }
    /* a chunk that cannot be coded leaves the others alone */
    const Step mixed = make_step(Change::mixed, 2 * chunk);
    EXPECT_LT(Codec().encode(mixed).size(), chunk + chunk / 4);
    EXPECT_LT(Codec().encode(make_step(Change::none, 8 * chunk)).size(), 8 * chunk / 200);
}

/* The same message whatever the segments; new codes go where the old ones lie. */
TEST_F(DeltaNarrow, HowTheElementsAreCutMakesNoDifference)
{
    const size_t n = chunk + 500;
    const Step step = make_step(Change::adam, n);
    const Bytes expected = Codec().encode(step);
    for (const std::string &backend : backends()) {
        Codec codec(backend);
        Bytes message(tw_quant_delta8_bound_bytes(n)), replica = step.old_codes;
        std::vector<tw_quant_delta_segment_t> segments;
        size_t at = 0, bytes = 0;
        for (size_t size : {size_t(0), size_t(1), chunk - 7, size_t(0), size_t(9), size_t(497), size_t(0)}) {
            segments.push_back(
                {replica.data() + at, step.new_codes.data() + at, replica.data() + at, nullptr, size});
            at += size;
        }
        ASSERT_EQ(at, n);
        ASSERT_EQ(tw_quant_delta8_encode(codec.delta(), segments.data(), segments.size(), message.data(),
                                         message.size(), &bytes),
                  TW_OK);
        message.resize(bytes);
        EXPECT_EQ(message, expected) << backend;
        ASSERT_EQ(
            tw_quant_delta8_decode(codec.delta(), segments.data(), segments.size(), message.data(), bytes),
            TW_OK);
        EXPECT_EQ(replica, step.new_codes) << backend;
    }
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

TEST_F(DeltaNarrow, BadArgumentsAreRefused)
{
    Codec codec;
    Bytes a(10), b(10), state(10), dst(100);
    size_t bytes = 12345;
    auto encode = [&](const tw_quant_delta_segment_t &segment, size_t room) {
        return tw_quant_delta8_encode(codec.delta(), &segment, 1, dst.data(), room, &bytes);
    };
    expect_log("delta8_encode: segment 0 has a NULL pointer or a state");
    for (const tw_quant_delta_segment_t &bad : std::vector<tw_quant_delta_segment_t>{
             {a.data(), nullptr, nullptr, nullptr, 10},
             {a.data(), b.data(), nullptr, state.data(), 10},
             {a.data(), b.data(), nullptr, nullptr, (size_t(1) << 31) + 1}}) {
        EXPECT_EQ(encode(bad, 100), TW_ERR_INVALID);
    }
    expect_log("room for 26 bytes, must be for 27");
    EXPECT_EQ(encode({a.data(), b.data(), nullptr, nullptr, 10}, 26), TW_ERR_INVALID);
    EXPECT_EQ(bytes, 12345u);
    EXPECT_EQ(dst, Bytes(100)) << "nothing was written";
    EXPECT_EQ(tw_quant_delta8_encode(codec.delta(), nullptr, 0, dst.data(), 16, &bytes), TW_OK);
    EXPECT_EQ(bytes, 16u);
    EXPECT_EQ(tw_quant_delta8_bound_bytes(SIZE_MAX), SIZE_MAX);
}

class DeltaNarrowMessage : public DeltaNarrow
{
  protected:
    static constexpr size_t n = 3000;
    tw_status_t decode(const Bytes &message, size_t n_elems = n)
    {
        Bytes old_codes = step.old_codes, got;
        old_codes.resize(n_elems);
        return codec.decode(old_codes, message, &got);
    }
    static void set_bytes(Bytes &message)
    {
        const auto bytes = uint32_t(message.size());
        memcpy(&message[4], &bytes, sizeof(bytes));
    }
    Codec codec;
    Step step = make_step(Change::adam, n);
    Bytes good = codec.encode(step);
};

TEST_F(DeltaNarrowMessage, EveryFieldIsChecked)
{
    ASSERT_LT(good.size(), n / 2);
    expect_log("not a lossless delta of 8 bits of version 1");
    for (size_t at = 0; at < 4; at++) {
        Bytes bad = good;
        bad[at] ^= 0x80;
        EXPECT_EQ(decode(bad), TW_ERR_FORMAT) << at;
    }
    Bytes longer = good;
    longer.push_back(0);
    expect_log("bytes, the message says");
    EXPECT_EQ(decode(longer), TW_ERR_FORMAT);
    set_bytes(longer);
    expect_log("the message does not decode");
    EXPECT_EQ(decode(longer), TW_ERR_FORMAT);
    expect_log("the message has 3000 elements, the segments 2999");
    EXPECT_EQ(decode(good, n - 1), TW_ERR_MISMATCH);
    EXPECT_EQ(decode(good), TW_OK);
}

TEST_F(DeltaNarrowMessage, CutMessagesAreRefused)
{
    const Bytes raw = codec.encode(make_step(Change::random, n)), ranked = codec.encode_alone(step.new_codes);
    ASSERT_EQ(ranked[sizeof(tw_delta8_header_t)], TW_DELTA8_RANKED);
    expect_log("is shorter than its header");
    expect_log("bytes, the message says");
    expect_log("a chunk is not all there");
    allow_log("delta_decode");
    for (const Bytes &message : {good, raw, ranked}) {
        for (size_t bytes = 0; bytes < message.size(); bytes++) {
            Bytes part(message.begin(), message.begin() + long(bytes));
            ASSERT_EQ(decode(part), TW_ERR_TRUNCATED) << bytes;
            if (bytes >= sizeof(tw_delta8_header_t)) {
                set_bytes(part);
                ASSERT_EQ(decode(part), TW_ERR_FORMAT) << bytes;
            }
        }
    }
}

TEST_F(DeltaNarrowMessage, WhatIsSpoiltIsNoticed)
{
    const Step other = make_step(Change::random, n);
    const Bytes raw = codec.encode(other);
    Bytes got;
    expect_log("the message does not decode");
    allow_log("delta");
    for (size_t at = sizeof(tw_delta8_header_t) - 4; at < good.size(); at++) {
        Bytes bad = good;
        bad[at] = uint8_t(bad[at] ^ 1 << at % 8);
        const tw_status_t status = codec.decode(step.old_codes, bad, &got);
        ASSERT_TRUE(status != TW_OK || got == step.new_codes) << at;
    }
    for (size_t at = sizeof(tw_delta8_header_t); at < raw.size(); at++) {
        Bytes bad = raw;
        bad[at] = uint8_t(bad[at] ^ 1 << at % 8);
        ASSERT_LT(codec.decode(other.old_codes, bad, &got), 0) << at;
    }
}

/* An old element of the same size leads to the same 16 bits: the checksum is of the new elements. */
TEST_F(DeltaNarrowMessage, OtherOldValuesAreNoticed)
{
    expect_log("the message does not decode: spoilt, or made from other old values");
    allow_log("a block does not decode");
    for (size_t at = 0; at < n; at += 77) {
        for (uint8_t bit : {0x01, 0x80, 0x08}) {
            step.old_codes[at] ^= bit;
            ASSERT_EQ(decode(good), TW_ERR_FORMAT) << at;
            step.old_codes[at] ^= bit;
        }
    }
    EXPECT_EQ(decode(good), TW_OK);
}

} // namespace
