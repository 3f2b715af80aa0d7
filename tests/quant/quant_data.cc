#include "tests/quant/quant_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "quant/arithmetic/float.h"

namespace tw
{

const char *name_of(Data data)
{
    static const char *const names[n_data] = {"gauss",    "outlier",  "denormal", "zeros", "nan",
                                              "infinity", "negative", "constant", "huge",  "spread"};
    return names[int(data)];
}

namespace
{

using Random = std::mt19937_64;

float sign_of(Random &random)
{
    return random() & 1 ? -1.0f : 1.0f;
}

/* The type's range of exponents: 2^lowest is its smallest denormal. */
int lowest_exponent(tw_type_t type)
{
    return type == TW_TYPE_FP16 ? -24 : type == TW_TYPE_BF16 ? -133 : -149;
}

int highest_exponent(tw_type_t type)
{
    return type == TW_TYPE_FP16 ? 15 : 127;
}

float normal(Random &random)
{
    return std::normal_distribution<float>()(random);
}

float make_element(tw_type_t type, Data data, size_t i, Random &random)
{
    const float top = tw_float_type_max(type);
    switch (data) {
    case Data::gauss:
        return normal(random);
    case Data::outlier:
        return i % 500 == 17 ? 200.0f * sign_of(random) : normal(random);
    case Data::denormal:
        return sign_of(random) * std::ldexp(float(random() % 8), lowest_exponent(type));
    case Data::zeros:
        return sign_of(random) * 0.0f;
    case Data::nan:
        return random() % 300 == 0 ? NAN : normal(random);
    case Data::infinity:
        return random() % 300 == 0 ? sign_of(random) * INFINITY : normal(random);
    case Data::negative:
        return -0.001f - std::fabs(normal(random));
    case Data::constant:
        return 0.37f * float(i / 64 + 1);
    case Data::huge:
        return sign_of(random) * top * (1.0f - 0x1p-12f * float(random() % 8));
    case Data::spread: {
        const int range = highest_exponent(type) - lowest_exponent(type);
        const float mantissa = 1.0f + float(random() % 1024) / 1024.0f;
        const int exponent = lowest_exponent(type) + int(i / 8 % size_t(range));
        return sign_of(random) * std::ldexp(mantissa, exponent);
    }
    }
    return 0.0f;
}

} // namespace

namespace
{

std::vector<uint8_t> generate(tw_type_t type, Data data, size_t n, uint64_t seed)
{
    Random random(seed * 1000003 + uint64_t(data) * 31 + uint64_t(type));
    std::vector<uint8_t> array(n * tw_type_bytes(type));
    for (size_t i = 0; i < n; i++) {
        tw_float_store_saturate(type, array.data(), i, make_element(type, data, i, random));
    }
    return array;
}

/* Short arrays are windows into one that is made once: tests ask for very many. */
constexpr size_t window_elems = 8192, window_step = 64, windows = 61;

const std::vector<uint8_t> &pool_of(tw_type_t type, Data data)
{
    static std::map<std::pair<tw_type_t, Data>, std::vector<uint8_t>> pools;
    std::vector<uint8_t> &pool = pools[{type, data}];
    if (pool.empty()) {
        pool = generate(type, data, window_elems + windows * window_step, 0);
    }
    return pool;
}

} // namespace

std::vector<uint8_t> make_data(tw_type_t type, Data data, size_t n, uint64_t seed)
{
    if (n > window_elems) {
        return generate(type, data, n, seed);
    }
    const std::vector<uint8_t> &pool = pool_of(type, data);
    const uint8_t *first = pool.data() + seed % windows * window_step * tw_type_bytes(type);
    return std::vector<uint8_t>(first, first + n * tw_type_bytes(type));
}

static bool is_of_sums(tw_quant_kind_t kind)
{
    return tw_quant_row_get(kind)->sums != 0;
}

std::vector<tw_quant_kind_t> block_kinds()
{
    std::vector<tw_quant_kind_t> kinds;
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        if (tw_quant_row_get(tw_quant_kind_t(kind))->form == TW_QUANT_BLOCKS) {
            kinds.push_back(tw_quant_kind_t(kind));
        }
    }
    return kinds;
}

std::vector<tw_quant_codec_t> all_codecs(const std::vector<int> &blocks)
{
    std::vector<tw_quant_codec_t> all;
    for (int block : blocks) {
        for (tw_quant_kind_t kind : block_kinds()) {
            for (int options = 0; options < 8; options++) {
                const unsigned has = tw_quant_row_get(kind)->has;
                const int stochastic = options >> 1 & 1, hadamard = options >> 2;
                if ((stochastic && !(has & TW_QUANT_HAS_STOCHASTIC)) ||
                    (hadamard && !(has & TW_QUANT_HAS_HADAMARD))) {
                    continue;
                }
                all.push_back(
                    {kind, block, tw_quant_scale_t(options & 1), tw_quant_round_t(stochastic), hadamard, 0});
            }
        }
    }
    return all;
}

std::vector<tw_quant_codec_t> sum_codecs(const std::vector<int> &blocks)
{
    std::vector<tw_quant_codec_t> codecs = all_codecs(blocks);
    codecs.erase(std::remove_if(codecs.begin(), codecs.end(),
                                [](const tw_quant_codec_t &codec) { return !is_of_sums(codec.kind); }),
                 codecs.end());
    return codecs;
}

std::string text_of(const tw_quant_codec_t &codec)
{
    char buf[80];
    return tw_quant_codec_format(&codec, buf, sizeof(buf));
}

static constexpr uint8_t guard_byte = 0xa5;
static constexpr size_t guard_bytes = 64;

Guarded::Guarded(size_t bytes, size_t offset)
    : bytes_(bytes), total_(bytes + 2 * guard_bytes + 128), memory_(new uint8_t[total_])
{
    memset(memory_.get(), guard_byte, total_);
    const size_t boundary = (64 - reinterpret_cast<uintptr_t>(memory_.get()) % 64) % 64;
    start_ = boundary + guard_bytes + offset % 64;
}

Guarded::Guarded(const std::vector<uint8_t> &content, size_t offset) : Guarded(content.size(), offset)
{
    if (!content.empty()) {
        memcpy(data(), content.data(), content.size());
    }
}

bool Guarded::intact() const
{
    for (size_t i = 0; i < total_; i++) {
        if ((i < start_ || i >= start_ + bytes_) && memory_[i] != guard_byte) {
            return false;
        }
    }
    return true;
}

std::vector<uint8_t> Guarded::content() const
{
    return std::vector<uint8_t>(memory_.get() + start_, memory_.get() + start_ + bytes_);
}

__attribute__((weak)) std::optional<std::vector<const tw_quant_backend_t *>> extra_backends()
{
    return std::nullopt;
}

__attribute__((weak)) size_t extra_backends_take_every()
{
    return 1;
}

Codec::Codec(const tw_quant_codec_t &codec, const std::string &backend)
{
    for (const tw_quant_backend_t *extra :
         extra_backends().value_or(std::vector<const tw_quant_backend_t *>())) {
        if (extra->is.name == backend) {
            quant_ = static_cast<tw_quant_t *>(calloc(1, sizeof(tw_quant_t)));
            quant_->codec = codec;
            quant_->backend = extra;
            EXPECT_EQ(extra->create(quant_), TW_OK) << backend;
            return;
        }
    }
    const tw_quant_params_t params = {codec, TW_MEM_HOST, backend.c_str()};
    EXPECT_EQ(tw_quant_create(&params, &quant_), TW_OK) << backend;
}

Codec::~Codec()
{
    tw_quant_destroy(quant_);
}

std::vector<uint8_t> encode(tw_quant_t *quant, tw_type_t type, const std::vector<uint8_t> &plain,
                            const Place &place)
{
    const size_t n = plain.size() / tw_type_bytes(type);
    std::vector<uint8_t> encoded(tw_quant_encoded_bytes(tw_quant_codec_get(quant), n), 0x5a);
    const tw_quant_args_t args = {type, place.seed, place.step, 1.0f, nullptr, nullptr, 0, 0};
    const tw_quant_segment_t segment = {plain.data(), nullptr,         encoded.data(), n,
                                        place.tensor, place.first_elem};
    EXPECT_EQ(tw_quant_encode(quant, &args, &segment, 1), TW_OK);
    return encoded;
}

std::vector<uint8_t> decode(tw_quant_t *quant, tw_type_t type, const std::vector<uint8_t> &encoded, size_t n)
{
    std::vector<uint8_t> plain(n * tw_type_bytes(type), 0x5a);
    const tw_quant_args_t args = {type, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    const tw_quant_segment_t segment = {encoded.data(), nullptr, plain.data(), n, 0, 0};
    EXPECT_EQ(tw_quant_decode(quant, &args, &segment, 1), TW_OK);
    return plain;
}

std::vector<float> decode_fp32(tw_quant_t *quant, const std::vector<uint8_t> &encoded, size_t n)
{
    return floats_of(TW_TYPE_FP32, decode(quant, TW_TYPE_FP32, encoded, n));
}

std::vector<uint8_t> bytes_of(const std::vector<float> &values)
{
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    if (!values.empty()) {
        memcpy(bytes.data(), values.data(), bytes.size());
    }
    return bytes;
}

std::vector<float> floats_of(tw_type_t type, const std::vector<uint8_t> &array)
{
    std::vector<float> values(array.size() / tw_type_bytes(type));
    for (size_t i = 0; i < values.size(); i++) {
        values[i] = float(value_at(type, array, i));
    }
    return values;
}

std::vector<std::string> host_backends(bool with_reference)
{
    const char *names[8];
    std::vector<std::string> found;
    if (const auto extras = extra_backends()) {
        for (const tw_quant_backend_t *extra : *extras) {
            found.push_back(extra->is.name);
        }
        return found;
    }
    for (size_t i = 0, n = tw_quant_backends(TW_MEM_HOST, names, 8); i < n; i++) {
        if (with_reference || strcmp(names[i], "ref") != 0) {
            found.push_back(names[i]);
        }
    }
    return found;
}

double value_at(tw_type_t type, const std::vector<uint8_t> &array, size_t i)
{
    if (type == TW_TYPE_FP32) {
        float x;
        memcpy(&x, array.data() + 4 * i, 4);
        return double(x);
    }
    uint16_t h;
    memcpy(&h, array.data() + 2 * i, 2);
    return double(tw_float_load(type, &h, 0));
}

bool same_values(tw_type_t type, const std::vector<uint8_t> &a, const std::vector<uint8_t> &b)
{
    if (a == b) {
        return true;
    }
    const size_t bytes = tw_type_bytes(type);
    if (a.size() != b.size()) {
        return false;
    }
    for (size_t i = 0; i < a.size() / bytes; i++) {
        const bool both_nan = std::isnan(value_at(type, a, i)) && std::isnan(value_at(type, b, i));
        if (!both_nan && memcmp(a.data() + i * bytes, b.data() + i * bytes, bytes) != 0) {
            return false;
        }
    }
    return true;
}

} // namespace tw

std::ostream &operator<<(std::ostream &out, const tw_quant_codec_t &codec)
{
    return out << tw::text_of(codec);
}
