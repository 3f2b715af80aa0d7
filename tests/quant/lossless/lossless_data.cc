#include "tests/quant/lossless/lossless_data.h"

#include <cmath>
#include <cstring>
#include <random>

#include "quant/lossless/lossless.h"

namespace tw
{
namespace
{

uint32_t special_bits(tw_type_t type, std::mt19937 &random)
{
    const uint32_t mantissa = type == TW_TYPE_FP32 ? 23 : type == TW_TYPE_BF16 ? 7 : 10;
    const uint32_t sign_bit = type == TW_TYPE_FP32 ? 31 : 15;
    const uint32_t infinity = ((1u << sign_bit) - 1) >> mantissa << mantissa;
    const uint32_t payload = random() & ((1u << mantissa) - 1), sign = (random() & 1) << sign_bit;
    const uint32_t choices[] = {0u, payload, infinity, infinity | payload, infinity - 1};
    return sign | choices[random() % 5];
}

/* A generator of one element's value, or of its bits. */
struct Maker {
    Values values;
    tw_type_t type;
    size_t columns;
    std::mt19937 random;
    std::normal_distribution<float> normal;

    float scale(size_t i) const
    {
        const auto row = float(i / columns), column = float(i % columns);
        return 1e-3f * std::exp2(2 * std::sin(row) + 3 * std::sin(7 * column));
    }

    float value(size_t i)
    {
        switch (values) {
        case Values::weight:
            return 0.02f * normal(random);
        case Values::sparse:
            return i / columns % 20 == 3 ? normal(random) : 0.0f;
        case Values::constant:
            return 0.3f;
        case Values::mostly_zero:
            return random() % 10 ? 0.0f : normal(random);
        case Values::widened:
            return rounded(normal(random) * scale(i));
        case Values::few:
            return random() % 400 ? rounded(normal(random) * scale(i)) : normal(random) * scale(i);
        case Values::sums:
            return sum(i);
        case Values::patches:
            return i / 65536 % 3 ? rounded(normal(random) * scale(i)) : sum(i);
        case Values::halves:
            return rounded(0.02f * normal(random), TW_TYPE_FP16);
        case Values::integers:
            return float(int32_t(random() >> 15 >> random() % 17) * (random() % 2 ? 1 : -1));
        case Values::outliers:
            return normal(random) * (random() % 100 ? 1e-3f : 1e4f);
        default:
            return normal(random) * scale(i);
        }
    }

    /* As another type has it. */
    static float rounded(float x, tw_type_t to = TW_TYPE_BF16)
    {
        uint16_t bits;
        tw_convert_from_fp32(to, &x, 1.0f, &bits, 1);
        tw_convert_to_fp32(to, &bits, &x, 1);
        return x;
    }

    float sum(size_t i)
    {
        float all = 0;
        for (int k = 0; k < 4; k++) {
            all += rounded(normal(random) * scale(i));
        }
        return all;
    }

    bool is_bits(size_t i) const
    {
        return values == Values::random || values == Values::special || values == Values::tiny ||
               values == Values::crowded || (values == Values::mixed && i / 65536 % 2) ||
               (values == Values::patches && i / 65536 % 3 == 2);
    }

    uint32_t bits()
    {
        const uint32_t sign = type == TW_TYPE_FP32 ? 0x80000000u : 0x8000u;
        if (values == Values::special) {
            return special_bits(type, random);
        }
        if (values == Values::crowded) {
            const uint32_t head = (random() & 0x807f) | (100 + random() % 14) << 7;
            const uint32_t tail = random() % 3 ? random() & 0xffff : 0;
            return type == TW_TYPE_FP32 ? head << 16 | tail : head;
        }
        return values == Values::tiny ? (random() & sign) | random() % 9 : uint32_t(random());
    }
};

} // namespace

std::string name_of(Values values)
{
    const char *names[] = {"gradient", "weight", "zero",        "sparse",   "constant", "random",
                           "special",  "tiny",   "mostly_zero", "outliers", "mixed",    "widened",
                           "few",      "sums",   "halves",      "integers", "patches",  "crowded"};
    return names[size_t(values)];
}

std::vector<uint8_t> make_values(Values values, tw_type_t type, size_t n, size_t columns)
{
    const size_t elem_bytes = tw_type_bytes(type);
    std::vector<uint8_t> bytes(n * elem_bytes);
    Maker maker{values, type, columns, std::mt19937(5), {}};
    for (size_t i = 0; i < n && values != Values::zero; i++) {
        if (maker.is_bits(i)) {
            const uint32_t bits = maker.bits();
            memcpy(&bytes[i * elem_bytes], &bits, elem_bytes);
        } else {
            const float x = maker.value(i);
            tw_convert_from_fp32(type, &x, 1.0f, &bytes[i * elem_bytes], 1);
        }
    }
    return bytes;
}

/* The head alone, as no element is coded: pieces; of each a bit for each of its rows; lists of scales, bits
 * that are all zero. */
std::vector<uint8_t> make_zero_message(tw_type_t type, const std::vector<ZeroPiece> &pieces)
{
    std::vector<uint8_t> bytes, zeros;
    size_t list_bits = 0;
    uint32_t n_elems = 0;
    bytes.reserve(1000);
    bytes.resize(TW_QUANT_LOSSLESS_HEADER_BYTES + TW_LOSSLESS_HEAD_BYTES);
    bytes.push_back(uint8_t(pieces.size()));
    for (const ZeroPiece &piece : pieces) {
        const uint32_t n = piece.n_rows * piece.row_elems;
        bytes.push_back(uint8_t(TW_LOSSLESS_FLAG_ZEROS | (piece.has_columns ? TW_LOSSLESS_FLAG_COLUMNS : 0)));
        bytes.insert(bytes.end(), {uint8_t(n | 0x80), uint8_t(n >> 7), uint8_t(piece.row_elems), 0, 0});
        for (uint32_t row = 0; row < piece.n_rows; row += 8) {
            zeros.push_back(uint8_t(piece.n_rows - row < 8 ? (1u << (piece.n_rows - row)) - 1 : 0xff));
        }
        list_bits += piece.has_columns ? 4 + piece.row_elems : 0;
        n_elems += n;
    }
    bytes.insert(bytes.end(), zeros.begin(), zeros.end());
    bytes.resize(bytes.size() + (list_bits + 7) / 8);
    bytes.resize((bytes.size() + 1) / 2 * 2);
    const auto head_bytes = uint32_t(bytes.size() - TW_QUANT_LOSSLESS_HEADER_BYTES);
    uint8_t *head = bytes.data() + TW_QUANT_LOSSLESS_HEADER_BYTES;
    memcpy(head, &head_bytes, sizeof(head_bytes));
    const tw_lossless_header_t header = {TW_LOSSLESS_MAGIC,
                                         TW_LOSSLESS_VERSION,
                                         uint8_t(type),
                                         TW_LOSSLESS_CODED,
                                         uint32_t(bytes.size()),
                                         n_elems,
                                         tw_lossless_ref.check(head, head_bytes / 2, 0)};
    memcpy(bytes.data(), &header, sizeof(header));
    return bytes;
}

} // namespace tw
